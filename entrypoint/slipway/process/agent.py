"""torchrun, started in this process, that tells the launcher which workers it has and how each of them ended.

Started by the launcher as `python -m slipway.process.agent LAUNCHER EVENTS LOGS ERRORS EARLY LINK FILES TORCHRUN-ARGUMENTS…`, or
forked from a process that was (warm.py). LAUNCHER is its process id, EVENTS the number of a pipe for JSON lines, LOGS a
comma-separated list of pipes (stdout and stderr of each worker in turn), ERRORS a folder for the error files of
`torch.distributed.elastic`'s @record. EARLY is for warm.py: whether workers begin early (1 or 0), the first one's rank here, and
how many there are on all nodes. LINK is the number of a socket for a process that is left for the next attempt, empty where none
is wanted; FILES are the numbers of further files that workers get, as the launcher has them open. The first `--` ends torchrun's
own arguments: what follows is the worker's command, which torchrun's parser never sees. The only file that knows both the
launcher and torch.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from slipway.process import warm
from slipway.process.standby import leave_behind
from slipway.process.tree import stand_between
from slipway.protocol.binding import on_cores, own_cores, own_device
from slipway.protocol.files import STOP_FILE, error_file

MARK, MARK_SECONDS = "slipway", 20.0  # a key in torch's store, and how long the other nodes wait for it
LEFT_TO_TORCHRUN = "--signals-to-handle=SIGQUIT"  # all other signals are the launcher's
A_DAY = 86_400  # s; after a failure the launcher ends those that take too long, not torchrun after its 30 s


@dataclass(frozen=True)
class AgentConfig:
    """What the launcher tells an agent; see above."""

    launcher: int
    events: int
    pipes: tuple[int, ...]
    errors: str
    crew: warm.Crew
    link: int | None
    options: tuple[str, ...]  # torchrun's
    command: tuple[str, ...]  # each worker's

    @classmethod
    def read(cls, argv: Sequence[str]) -> "AgentConfig":
        """Of the words behind the module's name."""
        launcher, events, logs, errors, early, link, files, *arguments = argv
        begins, rank, world_size = map(int, early.split(","))
        pipes, more = (tuple(int(number) for number in text.split(",") if number) for text in (logs, files))
        end = arguments.index("--")
        options, command = tuple(arguments[:end]), tuple(arguments[end + 1 :])
        crew = warm.Crew(command if begins else (), rank, world_size, pipes, more)
        parking = int(link) if link else None
        return cls(int(launcher), int(events), pipes, errors, crew, parking, options, command)

    @property
    def arguments(self) -> list[str]:
        """What torchrun passes to the worker's program; where it fills in ${local_rank} it would make one $ of two."""
        return [word.replace("$$", "$$$$") for word in self.command[1:]]


def main(argv: Sequence[str]) -> int:
    """Run torchrun to its end; 0, or 1 when a worker failed. What is forked from the parked process comes here as well."""
    terms = AgentConfig.read(argv)
    stand_between(terms.launcher)
    begun = terms.crew.begin()
    with warm.no_collection():
        from torch.distributed import run  # noqa: F401
        from torch.distributed.launcher import api  # noqa: F401
    if terms.link is not None:
        if work := leave_behind(terms.link, terms.launcher, begun, begin_again):
            return work()
        os.close(terms.link)
    return run_torchrun(terms, begun)


def begin_again(argv: Sequence[str]) -> Callable[[], int]:
    """What a process has to do that was forked from the parked one, as an agent or as one of its workers."""
    terms = AgentConfig.read(argv)
    stand_between(terms.launcher)
    begun = terms.crew.fork()
    return begun if callable(begun) else partial(run_torchrun, terms, begun)


def run_torchrun(terms: AgentConfig, begun: Sequence[warm.Worker]) -> int:
    """Run it in this process, with workers that have `begun` or, where none have, that it starts."""
    from torch.distributed import DistStoreError, TCPStore, run  # type: ignore[attr-defined]
    from torch.distributed.elastic import multiprocessing
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
    from torch.distributed.elastic.rendezvous import RendezvousInfo
    from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    errors, options = terms.errors, [*terms.options]
    if not hasattr(LaunchConfig, "signals_to_handle"):  # torch 2.9
        options.remove(LEFT_TO_TORCHRUN)
    signals = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    stop = Path(errors).with_name(STOP_FILE)
    pipes = [f"/dev/fd/{number}" for number in terms.pipes]

    def tell(**event: Any) -> None:
        os.write(terms.events, (json.dumps(event) + "\n").encode())

    class Logs(multiprocessing.LogsSpecs):
        """Each worker's stdout and stderr go straight to the launcher's pipes."""

        root_log_dir = errors

        def reify(self, envs: dict[int, dict[str, str]]) -> multiprocessing.LogsDest:
            files = {local: str(Path(errors, error_file(env["RANK"]))) for local, env in envs.items()}
            for local, env in envs.items():
                env["TORCHELASTIC_ERROR_FILE"] = files[local]
            return multiprocessing.LogsDest(
                stdouts={local: pipes[2 * local] for local in envs},
                stderrs={local: pipes[2 * local + 1] for local in envs},
                error_files=files,
            )

    class Worker(SubprocessHandler):
        """A worker, on its own device and cores. One that began before is told what torchrun would start it with."""

        def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> warm.Worker:  # type: ignore[override]
            env |= own_device(os.environ, self.local_rank_id)
            if begun:
                warm.release(begun[self.local_rank_id], env)
                return begun[self.local_rank_id]
            # Our stdin is meant for rank 0: /dev/null on other nodes. torchrun would have its workers share it.
            stdin = subprocess.DEVNULL if self.local_rank_id else None
            out, error = self._stdout, self._stderr
            with on_cores(own_cores(os.environ, self.local_rank_id)):
                return subprocess.Popen(
                    args,
                    env=env,
                    stdin=stdin,
                    stdout=out,
                    stderr=error,
                    start_new_session=True,
                    pass_fds=terms.crew.files,
                )

    class Workers(multiprocessing.SubprocessContext):
        """torchrun's workers. It closes them when one has failed, and again later: the first time tells who was first."""

        told = False
        left: frozenset[int] = frozenset()  # those that ended with 0, by local rank

        def _start(self) -> None:
            for number, handler in signals.items():
                signal.signal(number, handler)  # torch 2.9 has just taken them for its own
            super()._start()  # type: ignore[no-untyped-call]
            tell(event="started", pids=self.pids())

        def _poll(self) -> multiprocessing.api.RunProcsResult | None:
            self.tell_left()
            return super()._poll()

        def tell_left(self) -> None:
            left = frozenset(local for local, handler in self.subprocess_handlers.items() if handler.proc.poll() == 0)
            for local in sorted(left - self.left):
                tell(event="left", rank=int(self.envs[local]["RANK"]), time=time.time())
            self.left = left

        def close(self, death_sig: signal.Signals | None = None, timeout: int = 30) -> None:
            if self._failures and not self.told:
                self.told = True
                self.tell_left()
                tell(event="failed", failures=[_failure(self.envs, failure) for failure in self._failures.values()])
            # After a stop some ranks may still be saving when the first is gone: the launcher's grace bounds that, and
            # torchrun must neither signal them again nor kill them after its 30 s.
            while stop.exists() and any(handler.proc.poll() is None for handler in self.subprocess_handlers.values()):
                time.sleep(0.1)
            super().close(death_sig, A_DAY if self._failures else timeout)

    def meet(self: StaticTCPRendezvous) -> RendezvousInfo:
        """torchrun's rendezvous, but for a mark in its store: another job's store at this address would be waited at for long."""
        if self.rank == 0 and not self._store:
            # torchrun's own store would answer node 0 only once all nodes are connected: those that are there shall see the mark.
            self._store = TCPStore(
                self.master_addr,
                self.master_port,
                self.world_size,
                is_master=True,
                timeout=self.timeout,
                wait_for_workers=False,
                multi_tenant=True,
            )
        info = rendezvous(self)
        if self.rank == 0:
            info.store.set(MARK, "")
        elif self.world_size > 1:
            try:
                info.store.wait([MARK], timedelta(seconds=MARK_SECONDS))
            except DistStoreError:
                address = f"{self.master_addr}, port {self.master_port}"
                raise TimeoutError(f"torch's store at {address} is not that of this job and attempt") from None
        return info

    rendezvous = StaticTCPRendezvous.next_rendezvous
    StaticTCPRendezvous.next_rendezvous = meet  # type: ignore[method-assign]
    multiprocessing.SubprocessContext = Workers  # type: ignore[misc]  # where start_processes() looks it up
    multiprocessing.api.get_subprocess_handler = Worker  # type: ignore[attr-defined, assignment]
    # Without a log directory torchrun leaves an empty one in /tmp per run. Its parser would take options of the worker's command
    # that begin like its own (--r) for these, so it gets no more than the name of the program.
    parsed = run.parse_args([f"--log-dir={os.devnull}", *options, "--", terms.command[0]])  # type: ignore[no-untyped-call]
    config, program, _ = run.config_from_args(parsed)
    config.logs_specs = Logs()
    try:
        elastic_launch(config=config, entrypoint=program)(*terms.arguments)
    except ChildFailedError:
        return 1  # the launcher knows
    return 0


def _failure(envs: Mapping[int, Mapping[str, str]], failure: Any) -> dict[str, Any]:
    return {
        "rank": int(envs[failure.local_rank]["RANK"]),
        "local_rank": failure.local_rank,
        "pid": failure.pid,
        "exitcode": failure.exitcode,  # negative: the signal's number
        "time": time.time(),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
