"""The process that copies a run to its store, one for each node. It is no worker: it has no torch, touches no GPU, and takes what
processor time is left over.

The launcher starts it with `python -m slipway.store.copier`, writes requests to its stdin, one JSON object a line, and reads an
answer to each from its stdout. Between two requests it looks for new snapshots, and copies the newest. How far it is says a file
in the node's folder. It ends with its launcher: at the end of stdin.
"""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipway.protocol import files, snapshots
from slipway.protocol.snapshots import Version
from slipway.store import open_store
from slipway.store.address import parse_store
from slipway.store.catalog import Catalog
from slipway.store.claims import SupersededAttemptError, claim, creates_once, highest_claim, read_claim, require_newest
from slipway.store.layout import RECORDS, Location, claim_name
from slipway.store.objects import MissingObjectError, ObjectStore, StoreError, StoreRefusedError, UnreachableError
from slipway.store.progress import CopyProgress, write_progress
from slipway.store.records import RecordCopy, fetch_records
from slipway.store.restore import restore
from slipway.store.retention import clean
from slipway.store.suspects import find_suspects, withdraw
from slipway.store.upload import AbandonedError, DamagedError, Pace, VanishedError, upload

POLL = 1.0  # s between polls of the disk
RETRY = (2.0, 5.0, 15.0, 30.0)  # s before the next try, the last one from then on
CLAIMS_EVERY = 15.0  # s between polls for a later attempt
METRICS_EVERY = 60.0  # s between two copies of metrics.jsonl, which grows
NICE = 10


@dataclass(frozen=True)
class Assignment:
    """What is copied: a run, by an attempt, from a run directory, of which these `ranks` are on this node.

    The `leader` is the node of rank 0. It claims the attempt, copies the records, and deletes what is replaced.
    """

    run: str
    attempt: int
    path: Path
    node: Path
    ranks: tuple[int, ...]
    keep: int
    finished: bool = False  # before this launcher came

    @property
    def leader(self) -> bool:
        """Whether this is the node of rank 0."""
        return 0 in self.ranks


@dataclass
class Copier:
    """Copies one run. `tick` does what is due."""

    store: ObjectStore
    to: Assignment
    pace: Pace
    nonce: str
    finishing: Callable[[], bool] = lambda: False
    progress: CopyProgress = field(default_factory=CopyProgress)
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        """Nothing is asked of the store yet."""
        self.catalog = Catalog(self.store, self.to.run)
        self.recorder = RecordCopy(self.store, self.to.run, self.to.attempt, self.to.path)
        self._done: set[tuple[int, bytes]] = set()  # parts and manifests that are in the store
        self._bad: set[tuple[int, bytes]] = set()  # those that are damaged on the disk
        self.damaged = ""  # why a snapshot is not copied, as long as no later one is
        self._claimed = self._unclean = False
        self._metrics_at = self._looked_at = 0.0

    def tick(self) -> bool:
        """Copy what is due; returns whether a snapshot was copied. Raises StoreError, SupersededAttemptError, OSError."""
        if not self._claimed and not self._claim():
            return False
        self._read_claims()
        if self.to.leader:
            self._copy_records()
        refused = self._withdraw()
        found = self._next()
        if found is None:
            if refused:
                raise refused
            if self._unclean and not self.finishing():
                self._clean()
            return False
        version, part, path, manifest = found
        self.progress.copying, self.progress.done, self.progress.total = version[1], 0, 0
        place = Location(self.to.attempt, version[1], part)
        self.catalog.forget(place)
        before = self.progress.bytes

        def note(done: int, total: int) -> None:
            self.progress.done, self.progress.total = done, total
            self.progress.bytes = before + done
            self.tell()

        try:
            upload(self.store, self.to.run, path, place, self.pace, note, lambda: self._is_late(version))
        except DamagedError as error:
            self._bad.add((part, manifest))
            self.damaged = f"step {version[1]} is not copied: {error}"
            return False
        except (VanishedError, AbandonedError):
            return False
        finally:
            self.progress.copying = None
        self._done.add((part, manifest))
        self.damaged = ""
        self._settle()
        return True

    def finish(self) -> None:
        """Copy what there still is, the records last: the outcome is among them. Raises as `tick`."""
        while self.tick():
            pass
        if self._claimed:
            self._catch_up()
        if self._claimed and self.to.leader:
            self.recorder.copy()

    @property
    def newest(self) -> int | None:
        """The step of the newest snapshot on this node's disk."""
        found = [version for part in self._parts for version, _ in self._local(part)]
        return max(found)[1] if found else None

    @property
    def copied(self) -> int | None:
        """The step of the newest snapshot in the store, of those on this node's disk."""
        found = []
        for part in self._parts:
            for version, path in self._local(part):
                with suppress(OSError):
                    found += [version] if (part, files.read_run_bytes(path / snapshots.MANIFEST)) in self._done else []
        return max(found)[1] if found else None

    def tell(self) -> None:
        """Write down how far it is, where `slipway status` and the launcher look."""
        self.progress.seconds = round(time.process_time(), 2)
        with suppress(OSError):
            write_progress(self.to.node, self.progress)

    def _claim(self) -> bool:
        """Claim the attempt on the node of rank 0, wait for the claim elsewhere. Returns whether there is one."""
        run, attempt = self.to.run, self.to.attempt
        if self.to.leader:
            record = files.read_json(self.to.path / files.RUN_FILE)
            if files.attempt_in(record) != attempt:  # it is about to be written
                return False
            about = {"nonce": self.nonce, "host": socket.gethostname(), "time": self.clock(), "run": record}
            claim(self.store, run, attempt, about, finished=self.to.finished)
        elif (highest_claim(self.store, run) or 0) < attempt:
            return False
        require_newest(self.store, run, attempt)
        self._claimed = True
        self.catalog.refresh()
        for part in self._parts:
            self._done |= {(part, stored.manifest) for stored in self.catalog.snapshots(part)}
        self._report_newest()
        return True

    def _read_claims(self) -> None:
        """Notice from time to time whether a later attempt has the run, also where there is nothing to copy."""
        if abs(self.clock() - self._looked_at) >= CLAIMS_EVERY:
            self._looked_at = self.clock()
            require_newest(self.store, self.to.run, self.to.attempt)
            self._catch_up()

    def _copy_records(self) -> None:
        self.recorder.copy(tuple(name for name in RECORDS if name != files.METRICS_FILE))
        if abs(self.clock() - self._metrics_at) >= METRICS_EVERY:
            self._metrics_at = self.clock()
            self.recorder.copy((files.METRICS_FILE,))

    def _withdraw(self) -> StoreRefusedError | None:
        """Delete the copies of snapshots that the training has set aside. Returns why it is refused: others are copied anyway.

        Raises StoreError, SupersededAttemptError, OSError.
        """
        suspects = [suspect for part in self._parts for suspect in find_suspects(self.to.path, part)]
        if not suspects:
            return None
        self.catalog.refresh()
        try:
            for suspect in suspects:
                withdraw(self.store, self.to.run, self.to.attempt, self.catalog, suspect)
                self._done.discard((suspect.part, suspect.manifest))
                files.touch_run_file(suspect.path / snapshots.WITHDRAWN)
        except StoreRefusedError as error:
            return error
        self.catalog.refresh()
        self.progress.step = self.progress.taken = None
        self._report_newest()
        return None

    def _settle(self) -> None:
        """After a snapshot was copied: note it, copy the metrics up to it, and delete what it replaces."""
        self.catalog.refresh()
        self._report_newest()
        if self.to.leader:
            self.recorder.copy((files.METRICS_FILE,))
            self._unclean = True
            self._clean()

    def _clean(self) -> None:
        """Delete what newer snapshots replace. Where that fails, what is copied counts all the same, and it is tried again."""
        clean(self.store, self.to.run, self.to.attempt, self.to.keep, self.catalog)
        self._unclean = False

    def _catch_up(self) -> None:
        """Look again for the newest complete snapshot: other nodes copy their parts later, and a listing may lag."""
        if self.progress.step != self.copied:
            self.catalog.refresh()
            self._report_newest()

    def _report_newest(self) -> None:
        newest = next(self.catalog.sets(), None)
        if newest is None:
            return
        local = dict(self._local(newest[0].place.part))
        try:
            taken = (local[newest[0].version] / snapshots.MANIFEST).stat().st_mtime
        except (KeyError, OSError):  # it is no longer on this disk, or never was
            taken = self.catalog.taken(newest[0])
        self.progress.step, self.progress.taken = newest[0].place.step, taken

    @property
    def _parts(self) -> list[int]:
        """The parts that this node copies: each is numbered by the first of its ranks, and copied by that one's node."""
        return [rank for rank in self.to.ranks if rank == 0 or snapshots.part_folder(self.to.path, rank).is_dir()]

    def _local(self, part: int) -> list[tuple[Version, Path]]:
        """The snapshots of a part on the disk."""
        try:
            paths = snapshots.list_snapshots(snapshots.part_folder(self.to.path, part))
        except OSError:  # a disk that is away for a while
            return []
        return [(snapshots.snapshot_version(path), path) for path in paths]

    def _next(self) -> tuple[Version, int, Path, bytes] | None:
        """What to copy: the newest snapshot, but a step of which another part is on its way comes first; None without any.

        Otherwise nodes that copy at different speeds would seldom have copied all parts of one step.
        """
        found = []
        for part in self._parts:
            waiting = []
            for version, path in self._local(part):
                with suppress(OSError):
                    waiting.append((version, part, path, files.read_run_bytes(path / snapshots.MANIFEST)))
            stored = max((each[0] for each in waiting if (part, each[3]) in self._done), default=(-1, -1))
            found += [each for each in waiting if each[0] > stored and (part, each[3]) not in self._bad]
        if not found:
            return None
        several = (
            len(self._parts) > 1
            or self.to.ranks[0] != 0
            or any((self.to.path / files.SNAPSHOTS).glob(f"{snapshots.PART}*"))
        )
        begun = self._begun() if several else set()
        return max(found, key=lambda each: (each[0][1] in begun, each[0], -each[1]))

    def _begun(self) -> set[int]:
        self.catalog.refresh()
        return {place.step for place in self.catalog.objects if place.attempt == self.to.attempt}

    def _is_late(self, version: Version) -> bool:
        """Whether little time is left, and there is a newer snapshot than this one."""
        return self.finishing() and any(each > version for part in self._parts for each, _ in self._local(part))


class CopyService:
    """Answers the launcher's requests, and copies in between."""

    def __init__(self, url: str, limit: float, parallel: int, nonce: str = "") -> None:
        """`nonce`: the launcher, whose claims are those of each process that it starts."""
        address = parse_store(url)
        assert address is not None
        self._address, self._pace = address, Pace(limit, parallel)
        self._store: ObjectStore | None = None
        self._nonce = nonce or os.urandom(8).hex()
        self._requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._finishing = threading.Event()
        self._copier: Copier | None = None
        self._found: dict[str, CopyProgress] = {}  # by run: what a store was seen to have before anything was copied
        self._failures = 0

    def run(self) -> None:
        """Serve until stdin ends."""
        threading.Thread(target=self._read, daemon=True).start()
        pause = POLL
        while True:
            try:
                request = self._requests.get(timeout=pause)
            except queue.Empty:
                pause = self._tick()
                continue
            answer = self._answer(request)
            odd = sorted(self._store.odd) if self._store else []
            print(json.dumps({"do": request["do"], "odd": odd, **answer}), flush=True)
            pause = 0.05

    def _read(self) -> None:
        for line in sys.stdin:
            request = json.loads(line)
            if request["do"] == "finish":
                self._finishing.set()
            self._requests.put(request)
        os._exit(0)  # the launcher is gone, or needs no more: whatever is on its way has no manifest yet

    def _tick(self) -> float:
        """Do what is due. Returns the seconds to wait before the next look."""
        copier = self._copier
        if copier is None or copier.progress.superseded:
            return POLL
        try:
            copier.tick()
        except SupersededAttemptError as error:
            copier.progress.superseded = str(error)
        except (StoreError, OSError) as error:
            copier.progress.error = str(error)
            self._failures += 1
            copier.tell()
            return RETRY[min(self._failures, len(RETRY)) - 1]
        else:
            copier.progress.error = copier.damaged
            self._failures = 0
        copier.tell()
        return POLL

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request; a failure is one too."""
        try:
            answer: dict[str, Any] = getattr(self, f"do_{request['do']}")(request)
            return answer
        except SupersededAttemptError as error:
            return {"error": str(error), "kind": "superseded"}
        except StoreRefusedError as error:
            return {"error": str(error), "kind": "refused"}
        except (StoreError, OSError) as error:
            return {"error": str(error), "kind": "unreachable"}

    @property
    def store(self) -> ObjectStore:
        """The store, opened when it is first asked for anything. Raises StoreRefusedError."""
        if self._store is None:
            self._store = open_store(self._address)
        return self._store

    def do_look(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The run of a name, or the newest one of a workload: its name, its highest claim, and run.json; {} without one.

        Raises StoreRefusedError where a new run could not be written either.
        """
        run = request.get("run") or self._newest_of(request["workload"])
        number = highest_claim(self.store, run) if run else None
        exclusive = True
        with suppress(
            UnreachableError if number is None else StoreError
        ):  # full, perhaps: it is tried again; or for reading only
            exclusive = creates_once(self.store)
        if not exclusive:
            raise StoreRefusedError(
                f"{self._address} wrote an object twice that was to be created once (it ignores If-None-Match), so two jobs "
                "could own the same run, and one would be lost. Use a store that honours it, or file:///FOLDER"
            )
        if not run or number is None:
            return {}
        record = read_claim(self.store, run, number).get("run")
        return {"run": run, "attempt": number, "record": record if isinstance(record, dict) else {}}

    def _newest_of(self, workload: str) -> str:
        """The run of a workload that was claimed last by the store's clock: those of the launchers may differ."""
        found = []
        for run in self.store.list_folders(""):
            number = highest_claim(self.store, run)
            about = read_claim(self.store, run, number) if number is not None else {}
            record = about.get("run")
            if number is not None and isinstance(record, dict) and record.get("workload") == workload:
                with suppress(MissingObjectError):
                    found.append((self.store.written(claim_name(run, number)), run))
        return max(found)[1] if found else ""

    def do_reserve(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Reserve the name of a new run: whether nobody else has it."""
        if highest_claim(self.store, request["run"]) is not None:
            return {"free": False}
        about = {"nonce": self._nonce, "host": socket.gethostname(), "time": time.time(), "run": request["record"]}
        try:
            claim(self.store, request["run"], 0, about)
        except SupersededAttemptError:
            return {"free": False}
        return {"free": True}

    def do_records(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Fetch the records of a run."""
        return {"records": fetch_records(self.store, request["run"], Path(request["path"]))}

    def do_restore(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Fetch what these ranks need of the newest snapshot of a run."""
        run, path, ranks = request["run"], Path(request["path"]), request["ranks"]
        found = restore(self.store, run, path, ranks, self._pace.parallel)
        self._found[run] = CopyProgress(step=found.newest, taken=found.taken)
        return dict(found._asdict())

    def do_copy(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Copy from now on what an attempt writes. What was on its way has been copied by now."""
        ranks = tuple(request["ranks"])
        paths = Path(request["path"]), Path(request["node"])
        to = Assignment(
            request["run"], request["attempt"], *paths, ranks, request["keep"], request.get("finished", False)
        )
        before = self._copier
        if before and before.to.run == to.run:
            self._found[to.run] = before.progress
        known = self._found.get(to.run, CopyProgress())
        progress = dataclasses.replace(known, store=f"{self._address}/{to.run}", attempt=to.attempt)
        self._copier = Copier(self.store, to, self._pace, self._nonce, self._finishing.is_set, progress)
        self._copier.tell()
        return {}

    def do_finish(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Copy what is left; which step is in the store, and which one is on the disk."""
        copier = self._copier
        if copier is None or copier.progress.superseded:
            return {}
        failure = ""
        for pause in (*RETRY, 0.0):
            try:
                copier.finish()
                failure, copier.progress.error = "", copier.damaged
                break
            except (StoreError, OSError) as error:
                failure = copier.progress.error = str(error)
                copier.tell()
                time.sleep(pause)
        copier.tell()
        return {"step": copier.copied, "newest": copier.newest, "failure": failure}


def main() -> None:
    """Run the process; its argument is a JSON object. Signals that reach all processes are for the launcher alone."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        os.nice(NICE)
    options = json.loads(sys.argv[1])
    CopyService(**options).run()


if __name__ == "__main__":
    main()
