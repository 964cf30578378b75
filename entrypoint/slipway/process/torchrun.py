"""torchrun in this process, with workers of ours and with a report of each of them to the launcher.

torchrun has no interface for what is needed here, so some of its classes are replaced by the ones below; each says why. They are
written for torch/distributed/elastic (multiprocessing/api.py, rendezvous/static_tcp_rendezvous.py). docs/tried-on.md lists the
versions of torch that they were tried with.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.distributed import DistStoreError, TCPStore, run  # type: ignore[attr-defined]
from torch.distributed.elastic import multiprocessing
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from slipway.process import warm
from slipway.protocol.binding import on_cores, own_cores, own_device
from slipway.protocol.files import STOP_FILE, error_file

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousInfo

    from slipway.process.agent import AgentConfig

MARK, MARK_SECONDS = "slipway", 20.0  # a key in torch's store, and how long the other nodes wait for it
LEFT_TO_TORCHRUN = "--signals-to-handle=SIGQUIT"  # all other signals are the launcher's
A_DAY = 86_400  # s; after a failure the launcher ends those that take too long, not torchrun after its 30 s
TAKEN_BY_TORCH = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def run_torchrun(terms: AgentConfig, begun: Sequence[warm.Worker]) -> int:
    """Run torchrun to its end, with workers that have `begun` or, where none have, that it starts; 0, or 1 when one failed."""
    known = hasattr(LaunchConfig, "signals_to_handle")  # not in torch 2.9
    options = [each for each in terms.options if known or each != LEFT_TO_TORCHRUN]
    handlers = {number: signal.getsignal(number) for number in TAKEN_BY_TORCH}
    StaticTCPRendezvous.next_rendezvous = meet  # type: ignore[method-assign]
    # Where start_processes() looks them up.
    multiprocessing.SubprocessContext = partial(Workers, terms, handlers)  # type: ignore[assignment, misc]
    multiprocessing.api.get_subprocess_handler = partial(Worker, terms, begun)  # type: ignore[attr-defined]
    # Without a log directory torchrun leaves an empty one in /tmp per run. Its parser would take options of the worker's command
    # that begin like its own (--r) for these, so it gets no more than the name of the program.
    parsed = run.parse_args([f"--log-dir={os.devnull}", *options, "--", terms.command[0]])  # type: ignore[no-untyped-call]
    config, program, _ = run.config_from_args(parsed)
    config.logs_specs = Logs(terms)
    try:
        elastic_launch(config=config, entrypoint=program)(*terms.arguments)
    except ChildFailedError:
        return 1  # the launcher knows
    return 0


class Logs(multiprocessing.LogsSpecs):
    """Where the workers write. torchrun's own writes files; ours leads each worker's streams to the launcher's pipes."""

    def __init__(self, terms: AgentConfig) -> None:
        super().__init__()
        self._folder, self._pipes = terms.errors, [f"/dev/fd/{number}" for number in terms.pipes]

    @property
    def root_log_dir(self) -> str:
        """The folder with the workers' error files."""
        return self._folder

    def reify(self, envs: dict[int, dict[str, str]]) -> multiprocessing.LogsDest:
        """The streams and error file of each worker, by local rank."""
        files = {local: str(Path(self._folder, error_file(env["RANK"]))) for local, env in envs.items()}
        for local, env in envs.items():
            env["TORCHELASTIC_ERROR_FILE"] = files[local]
        return multiprocessing.LogsDest(
            stdouts={local: self._pipes[2 * local] for local in envs},
            stderrs={local: self._pipes[2 * local + 1] for local in envs},
            error_files=files,
        )


class Worker(SubprocessHandler):
    """A worker, on its own device and cores. torchrun always starts one; ours may have begun before, and is then released."""

    def __init__(self, terms: AgentConfig, begun: Sequence[warm.Worker], *words: Any, **named: Any) -> None:
        self._terms, self._begun = terms, begun
        super().__init__(*words, **named)

    def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> warm.Worker:  # type: ignore[override]
        env |= own_device(os.environ, self.local_rank_id)
        if self._begun:
            warm.release(self._begun[self.local_rank_id], env)
            return self._begun[self.local_rank_id]
        # Our stdin is meant for rank 0: /dev/null on other nodes. torchrun would have its workers share it.
        with on_cores(own_cores(os.environ, self.local_rank_id)):
            return subprocess.Popen(
                args,
                env=env,
                stdin=subprocess.DEVNULL if self.local_rank_id else None,
                stdout=self._stdout,
                stderr=self._stderr,
                start_new_session=True,
                pass_fds=self._terms.workers.files,
            )


class Workers(multiprocessing.SubprocessContext):
    """All workers of this node. torchrun keeps to itself when they start and end; ours reports it to the launcher.

    torchrun closes them when one has failed, and again later: the first time shows which failed first.
    """

    def __init__(self, terms: AgentConfig, handlers: dict[signal.Signals, Any], *words: Any, **named: Any) -> None:
        self._terms, self._handlers = terms, handlers
        self._reported = False
        self._left: frozenset[int] = frozenset()  # those that ended with 0, by local rank
        super().__init__(*words, **named)

    def _start(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # torch 2.9 has just taken them for its own
        super()._start()  # type: ignore[no-untyped-call]
        self._report(event="started", pids=self.pids())

    def _poll(self) -> multiprocessing.api.RunProcsResult | None:
        self._report_left()
        return super()._poll()

    def close(self, death_sig: signal.Signals | None = None, timeout: int = 30) -> None:
        """End the workers. After a stop some may still be saving when the first is gone: the launcher's grace bounds that, and
        torchrun must neither signal them again nor kill them after its 30 s.
        """
        if self._failures and not self._reported:
            self._reported = True
            self._report_left()
            self._report(event="failed", failures=[self._describe(failure) for failure in self._failures.values()])
        stop = Path(self._terms.errors).with_name(STOP_FILE)
        while stop.exists() and any(handler.proc.poll() is None for handler in self.subprocess_handlers.values()):
            time.sleep(0.1)
        super().close(death_sig, A_DAY if self._failures else timeout)

    def _report_left(self) -> None:
        left = frozenset(local for local, handler in self.subprocess_handlers.items() if handler.proc.poll() == 0)
        for local in sorted(left - self._left):
            self._report(event="left", rank=int(self.envs[local]["RANK"]), time=time.time())
        self._left = left

    def _describe(self, failure: Any) -> dict[str, Any]:
        return {
            "rank": int(self.envs[failure.local_rank]["RANK"]),
            "local_rank": failure.local_rank,
            "pid": failure.pid,
            "exitcode": failure.exitcode,  # negative: the signal's number
            "time": time.time(),
        }

    def _report(self, **event: Any) -> None:
        os.write(self._terms.events, (json.dumps(event) + "\n").encode())


torchs_meeting = StaticTCPRendezvous.next_rendezvous


def meet(self: StaticTCPRendezvous) -> RendezvousInfo:
    """torchrun's rendezvous, with a mark in its store: without it a node waits for minutes at another job's store.

    torchrun's own store would answer node 0 only once all nodes are connected; those that are there shall see the mark.
    """
    if self.rank == 0 and not self._store:
        self._store = TCPStore(
            self.master_addr,
            self.master_port,
            self.world_size,
            is_master=True,
            timeout=self.timeout,
            wait_for_workers=False,
            multi_tenant=True,
        )
    info = torchs_meeting(self)
    if self.rank == 0:
        info.store.set(MARK, "")
    elif self.world_size > 1:
        try:
            info.store.wait([MARK], timedelta(seconds=MARK_SECONDS))
        except DistStoreError:
            address = f"{self.master_addr}, port {self.master_port}"
            raise TimeoutError(f"torch's store at {address} is not that of this job and attempt") from None
    return info
