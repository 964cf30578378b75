"""A worker of one of our workloads without torch: what the launcher sees of one, at every step, and nothing else.

It stands in for `slipway.train.workloads.gpt` and `linear` where tests/launch/stand_ins is in PYTHONPATH. All ranks take their
steps together, over a socket at torchrun's address; each beats, looks at the stop flag and leaves an outcome; snapshots have the
real names and manifests, on the disk and in memory, and nothing in them. In memory it keeps some only with a --memory-every that
is a number, since `auto` goes by the clock.
"""

import hashlib
import json
import os
import shutil
import socket
import sys
import time
import traceback
from contextlib import suppress
from typing import Any

from slipway.options import WORKLOADS, Common, parse
from slipway.protocol.files import (
    HEARTBEATS,
    HONOURS_STOP,
    METRICS_FILE,
    OUTCOMES,
    SNAPSHOTS,
    STOP_FILE,
    rank_file,
    read_json,
    touch_run_file,
    write_json,
)
from slipway.protocol.memory import PAGE, Header, newest_in, read_header, write_header
from slipway.protocol.outcomes import Word
from slipway.protocol.phases import Phase
from slipway.protocol.snapshots import MANIFEST, list_snapshots, snapshot_attempt, snapshot_name, snapshot_step
from slipway.train.worker.launcher import Heartbeat
from slipway.train.worker.place import Place, read_place

PACE = 0.005  # s that a step takes, so that a job without an end computes little
ASK = 0.05  # s between two tries to meet the other ranks
LOADS = 2  # attempts that may begin from one snapshot in memory


class PeerLostError(Exception):
    """Another rank is gone."""


class Ranks:
    """All ranks of the job; what one says is known to all. Rank 0 listens."""

    def __init__(self, place: Place) -> None:
        """Return once all ranks are connected."""
        self._place, self._files = place, list[Any]()
        address = os.environ.get("MASTER_ADDR", ""), int(os.environ.get("MASTER_PORT", "0"))
        if place.world_size > 1:
            self._files = self._gather_here(address[1]) if place.rank == 0 else [self._join(address)]

    def _gather_here(self, port: int) -> list[Any]:
        files: dict[int, Any] = {}
        with self._listen(port) as server:
            while len(files) < self._place.world_size - 1:
                file = server.accept()[0].makefile("rw")
                run, attempt, rank = json.loads(file.readline() or '["", 0, 0]')
                if run != self._place.run_dir.name:  # a job that was given the same port
                    continue
                # Else one of an attempt that somebody else goes on with.
                print(attempt == self._place.attempt or "", file=file, flush=True)
                if attempt == self._place.attempt:
                    files[rank] = file
        return [files[rank] for rank in sorted(files)]

    @staticmethod
    def _listen(port: int) -> socket.socket:
        while True:  # a rank that asks before anybody listens may get this port as its own for a moment
            with suppress(OSError):
                return socket.create_server(("", port))
            time.sleep(ASK)

    def _join(self, address: tuple[str, int]) -> Any:
        while True:
            with suppress(OSError):
                link = socket.create_connection(address)
                if link.getsockname() != link.getpeername():
                    file = link.makefile("rw")
                    greeting = self._place.run_dir.name, self._place.attempt, self._place.rank
                    print(json.dumps(greeting), file=file, flush=True)
                    if answer := file.readline():
                        if not answer.strip():
                            raise PeerLostError("Connection closed by peer")
                        return file
                link.close()
            time.sleep(ASK)

    def share(self, value: Any) -> list[Any]:
        """The value of every rank, on every rank. Raises PeerLostError."""
        try:
            if self._place.rank:
                return self._ask(self._files[0], value)
            values = [value, *(json.loads(self._read(file)) for file in self._files)]
            for file in self._files:
                print(json.dumps(values), file=file, flush=True)
        except OSError as error:
            raise PeerLostError(str(error)) from error
        return values

    def _ask(self, file: Any, value: Any) -> list[Any]:
        print(json.dumps(value), file=file, flush=True)
        values: list[Any] = json.loads(self._read(file))
        return values

    @staticmethod
    def _read(file: Any) -> str:
        line: str = file.readline()
        if not line:
            raise PeerLostError("Connection closed by peer")
        return line


class Worker:
    """One rank, from its begin to its outcome."""

    def __init__(self, place: Place, options: Common) -> None:
        """Say that it is there."""
        self._place, self._options = place, options
        self._total = options.steps or 20
        self._step, self._saved, self._snapshot = 0, -1, None
        self._folder = place.run_dir / SNAPSHOTS
        self._memory = [os.open(path, os.O_RDWR) for path in place.memory]
        touch_run_file(place.node_dir / HONOURS_STOP)
        fenced = (lambda: place.superseded) if place.is_writer else (lambda: False)
        self._heartbeat = Heartbeat(rank_file(place.node_dir, HEARTBEATS, place.rank), fenced)

    def run(self) -> int:
        """Work, and leave an outcome. Returns the exit code."""
        try:
            word = self._train()
        except PeerLostError as error:
            print(error, file=sys.stderr, flush=True)
            self._conclude(Word.PEER, f"another process of this job went away or does not answer ({error})")
            return 1
        except Exception as error:
            traceback.print_exc()
            self._conclude(Word.FAILED, str(error), exception=f"{type(error).__name__}: {error}")
            return 1
        message = f"{word} at step {self._step} of {self._total}, snapshot saved"
        self._conclude(word, f"{self._step} steps" if word == Word.FINISHED else message)
        self._heartbeat.close()
        return 0

    def _train(self) -> Word:
        self._heartbeat.beat(Phase.SETUP, 0, None)
        self._ranks = Ranks(self._place)
        self._beat(Phase.LOAD)
        self._resume()
        self._beat(Phase.FIRST_STEP)
        while not (word := self._agreed()) and self._step < self._total:
            time.sleep(PACE)
            self._step += 1
            self._beat(Phase.TRAIN)
            self._report()
            every = self._options.save_every
            if self._step == self._total or (every and self._step % every == 0):
                self._save()
            self._keep_in_memory()
            evaluated = self._options.eval_every
            if self._step == self._total or (evaluated and self._step % evaluated == 0):
                self._beat(Phase.EVALUATE)
        self._save()
        self._beat(Phase.FINISH)
        self._ranks.share(None)
        return word or Word.FINISHED

    def _beat(self, phase: Phase) -> None:
        self._heartbeat.beat(phase, self._step, self._total)

    def _agreed(self) -> Word | None:
        """What any rank sees in the stop flag, on all of them at the same step."""
        flag = self._place.node_dir / STOP_FILE
        own = 0
        if self._place.local_rank == 0 and flag.exists():
            own = 2 if read_json(flag).get("outcome") == Word.CANCELLED else 1
        return (None, Word.STOPPED, Word.CANCELLED)[max(self._ranks.share(own))]

    def _say(self, text: str) -> None:
        if self._place.rank == 0:
            print(text, flush=True)

    def _report(self) -> None:
        if self._step % self._options.log_every and self._step != self._total:
            return
        if self._place.local_rank == 0:
            print(f"step {self._step}/{self._total}  loss 1.0000", flush=True)
        if self._place.rank == 0:
            with (self._place.run_dir / METRICS_FILE).open("a") as file:
                print(json.dumps({"time": time.time(), "step": self._step, "loss": 1.0, "lr": 0.1}), file=file)

    def _resume(self) -> None:
        """Begin where the newest snapshot is, of all nodes' disks and memories; each node without it gets one."""
        found = max(
            ((snapshot_attempt(path), snapshot_step(path), str(path)) for path in list_snapshots(self._folder)),
            default=(-1, -1, ""),
        )
        kept = newest_in(self._memory)
        if kept and (kept.attempt, kept.step) > found[:2] and kept.loads < LOADS:
            found = kept.attempt, kept.step, ""
        own = found if self._place.resume == "auto" and self._place.is_writer else (-1, -1, "")
        newest = max(map(tuple, self._ranks.share(own)))
        if newest[1] < 0:
            return
        self._step = newest[1]
        self._say(f"resuming from {newest[2] or f'{snapshot_name(self._step)}, in memory'}")
        if newest[2]:
            if own[:2] != newest[:2] and self._place.is_writer:
                self._write()
            self._saved, self._snapshot = self._step, snapshot_name(self._step)
        for buffer in self._memory:
            header = read_header(buffer)
            if header and not newest[2] and (header.attempt, header.step) == newest[:2]:
                write_header(buffer, header._replace(loads=header.loads + 1))

    def _save(self) -> None:
        if self._saved == self._step:
            return
        if self._place.is_writer:
            self._write()
        self._ranks.share(None)
        self._saved, self._snapshot = self._step, snapshot_name(self._step)
        self._beat(Phase.SAVE)

    def _write(self) -> None:
        final = self._folder / snapshot_name(self._step)
        temporary = final.with_name(f".{final.name}.writing")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        (temporary / "state.json").write_bytes(b"{}")
        files = {"state.json": {"size": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}}
        manifest = {"format": 1, "step": self._step, "attempt": self._place.attempt, "files": files}
        (temporary / MANIFEST).write_text(json.dumps(manifest))
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
        later = [path for path in list_snapshots(self._folder) if snapshot_step(path) > self._step]
        for path in [*later, *list_snapshots(self._folder)[len(later) + self._options.keep :]]:
            shutil.rmtree(path)

    def _keep_in_memory(self) -> None:
        every = self._options.memory_every
        if not self._memory or not isinstance(every, int) or not every or self._step % every:
            return
        buffer = self._memory[self._step // every % 2]
        os.ftruncate(buffer, PAGE)
        write_header(buffer, Header(self._step, self._place.attempt, 0, 0, 0, 0, 0))

    def _conclude(self, word: Word, message: str, exception: str | None = None) -> None:
        told = {"outcome": word, "message": message, "step": self._step, "snapshot": self._snapshot}
        file = rank_file(self._place.node_dir, OUTCOMES, self._place.rank)
        if not self._place.superseded:
            write_json(file, {**told, "exception": exception, "where": None, "time": time.time()})


def main() -> None:
    """Run as a worker."""
    assert __spec__
    options = parse(WORKLOADS[__spec__.name.rpartition(".")[2]], sys.argv[1:])
    assert isinstance(options, Common)
    code = Worker(read_place(os.environ), options).run()
    if code:
        os._exit(code)


if __name__ == "__main__":
    main()
