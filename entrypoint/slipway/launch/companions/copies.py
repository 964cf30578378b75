"""The launcher's side of a store (--store): it starts the process that copies the run (slipway/store/copier.py), has it fetch
what this node lacks before a job resumes, and reports how old the newest copy is. A store never stops a training that runs.
"""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from slipway.launch.attempt.stops import Stops
from slipway.launch.companions.companion import Companion, WaitError
from slipway.launch.resolve.job_spec import Job
from slipway.launch.resolve.packages import pip_install
from slipway.launch.resolve.topology import Topology
from slipway.launch.run_directory.directory import RunDirectory, newest_run
from slipway.launch.run_directory.node_directory import NodeDirectory
from slipway.launch.run_directory.records import RunRecord
from slipway.launch.run_directory.run import NoNewRunError, Run, is_finished, place_run
from slipway.process.machine import CLOCK, Clock
from slipway.protocol.decoding import decode_known
from slipway.protocol.errors import CODE_OF, UNHEALTHY, LaunchError
from slipway.protocol.printable import printable
from slipway.store.address import SEGMENT, StoreAddress
from slipway.store.progress import read_progress

POLL = 5.0  # s between polls of the progress of the copy
PATIENCE = 60.0  # s without an answer from a store after which a line says so
FIRST = 60.0  # s that the store has to answer before a new run begins without
PROBE = "-"  # the name of no run: whether the store answers
MARGIN = 2.0  # s of the grace period that are left for the end of the launcher


class SilentStoreError(Exception):
    """The store, or the process that speaks with it, does not answer; the message says why."""


class Stores(Companion):
    """The store of a job. `superseded`: who continues the run with a later attempt."""

    def __init__(self, job: Job, stops: Stops, say: Callable[[str], None], clock: Clock = CLOCK) -> None:
        """Raises LaunchError (78) where this installation cannot use the store."""
        self._job, self._stops, self._say, self._clock = job, stops, say, clock
        address = job.sources.parsed("SLIPWAY_STORE")
        assert isinstance(address, StoreAddress)  # else this companion is not loaded
        self._address = address
        self._process: subprocess.Popen[bytes] | None = None
        self._node: NodeDirectory | None = None
        self._attempt, self.superseded = 0, ""
        self._polled = -POLL
        self._complained, self._told = False, set[str]()
        self._leads = job.plan.topology.rank == 0  # whether this is the node of rank 0, which speaks for all
        self._since: float | None = None  # when the store began to fail
        self._answers = b""
        self._nonce, self._began = os.urandom(8).hex(), 0.0
        self._assignment: dict[str, Any] = {}  # what is copied
        require_store(self._address)
        if job.plan.topology.process:
            raise LaunchError(
                "--store needs one launcher per node, and this job has one per process. Start one task per node: "
                "--ntasks-per-node=1 in Slurm."
            )

    def __enter__(self) -> Self:
        """Start the process, with a store. Raises LaunchError where it cannot be started."""
        self._start()
        return self

    def _start(self) -> None:
        address, sources = self._address, self._job.sources
        options = {
            "url": str(address),
            "limit": int(sources.value("SLIPWAY_STORE_LIMIT")) * 1e6,
            "parallel": int(sources.value("SLIPWAY_STORE_PARALLEL")),
            "nonce": self._nonce,
        }
        command = [sys.executable, "-P", "-u", "-m", "slipway.store.copier", json.dumps(options)]
        self._answers, self._began = b"", self._clock.monotonic()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=dict(self._job.environ),
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchError(f"The process that copies to {address} cannot be started: {error}", UNHEALTHY) from None

    def __exit__(self, *error: object) -> None:
        """Wait until the newest snapshot is in the store, as long as there is time, and report which one is."""
        if self._process is None:
            return
        if self._node is not None and not self.superseded:
            self._finish(self._node)
        self._end(self._process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(1.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def restore(self) -> None:
        """Fetch what this node lacks of the run that it is to resume, so that it continues as from its own disk.

        Raises LaunchError: 78 where the store refuses or has another run of this name, 77 where it does not answer and nothing is
        here to resume from, 75 or 79 for a stop.
        """
        job = self._job
        plan, topology = job.plan, job.plan.topology
        run = place_run(plan, job.sources, self._clock.time())
        require_elsewhere(self._address, run.path)
        named = bool(job.sources.value("SLIPWAY_RUN_DIR") or topology.job)
        known = named or newest_run(Path(job.sources.value("SLIPWAY_RUNS")), plan.workload.name) is not None
        if run.resume == "auto" and not known and topology.rank:
            return  # node 0 knows the name
        if named or run.resume == "auto":
            wanted = {"run": require_name(run.path)} if known else {"run": "", "workload": plan.workload.name}
        else:
            wanted = {"run": PROBE}
        try:
            found = self._ask({"do": "look", **wanted}, FIRST)
            if not found:
                return
            record = decode_known(RunRecord, found["record"]) or RunRecord()
            own = topology.may_have_begun and record.job == topology.job is not None
            if run.resume != "auto" and not own:
                if topology.rank:
                    return  # node 0 may have begun this very run, before this node was replaced
                raise NoNewRunError(
                    f"{self._address} has a run {found['run']} already, and nothing in it is overwritten. Add --resume auto to "
                    "resume it, or choose another name with --run-dir."
                )
            self._fetch(run.path.with_name(found["run"]), found["run"])
        except SilentStoreError as error:
            self._begin_without(run, error)

    def reserve(self, path: Path) -> bool:
        """Whether a new run may have this folder's name: no other run in the store has it."""
        topology = self._job.plan.topology
        record = {"workload": self._job.plan.workload.name, "job": topology.job}
        try:
            return bool(
                self._ask({"do": "reserve", "run": require_name(path), "record": record}, FIRST).get("free", True)
            )
        except SilentStoreError:
            return True  # the claim of its first attempt will show

    def finished(self, run: Run) -> None:
        """Copy what the store lacks of a run that is finished, as where it did not answer at the end."""
        topology = self._job.plan.topology
        if run.node(topology.node_rank).path.is_dir():  # else this disk has only what was fetched
            self._copy(run, topology, finished=True)

    def begin(self, run: Run, topology: Topology) -> None:
        """Copy what this attempt writes, from now on, in which this node has the place of the `topology`."""
        self._copy(run, topology)

    def _copy(self, run: Run, topology: Topology, *, finished: bool = False) -> None:
        self._leads = topology.rank == 0
        self._node, self._attempt = run.node(topology.node_rank), run.attempt
        self._assignment = {
            "do": "copy",
            "run": require_name(run.path),
            "attempt": run.attempt,
            "path": str(run.path),
            "node": str(self._node.path),
            "ranks": [*topology.ranks],
            "keep": getattr(self._job.options, "keep", 2),
            "finished": finished,
        }
        with suppress(SilentStoreError):  # the process has ended: `_revive` starts it again, and repeats this
            self._ask(self._assignment, 0.0)

    def _revive(self, pause: float = PATIENCE) -> None:
        """Start the process again where it has ended, killed for its memory perhaps, at most once in a `pause` (seconds)."""
        process, old = self._process, self._clock.monotonic() - self._began
        if process is None or process.poll() is None or old < pause:
            return
        self._end(process)
        self._say(f"warning: the process that copies to {self._address} has ended; it is started again")
        with suppress(LaunchError, SilentStoreError):
            self._start()
            self._ask(self._assignment, 0.0)

    def poll(self, run: Run) -> str:
        """Notice that another launcher continues the run, and say once that the store fails, and once that it works again."""
        now = self._clock.monotonic()
        if self._node is not None and now - self._polled >= POLL:
            self._look(self._node, now)
        return self.superseded

    def _look(self, node: NodeDirectory, now: float) -> None:
        self._revive()
        self._polled, record = now, read_progress(node.path)
        if record.attempt == self._attempt:  # else it is of an earlier one, of another launcher perhaps
            self.superseded = record.superseded
        if not record.error:
            if self._complained:
                self._say(f"{record.store}: copies succeed again")
            self._since, self._complained = None, False
            return
        self._since = now if self._since is None else self._since
        if not self._complained and now - self._since >= PATIENCE:
            self._complained = True
            about = record.describe(self._clock.time()) if self._leads else f"{record.store} does not answer"
            self._say(f"warning: {about}; the training continues: {record.error}")

    def _fetch(self, path: Path, run: str) -> None:
        """Have the process fetch records, and snapshots unless nothing is left to do. Raises LaunchError, SilentStoreError."""
        self._say(f"looking in {self._address}/{run} for what is newer than on this disk")
        job = self._job
        if self._leads:
            self._ask({"do": "records", "run": run, "path": str(path)}, None)
        if job.single and job.sources.value("SLIPWAY_RESUME") == "auto" and is_finished(path, job.plan):
            return
        ranks = [*job.plan.topology.ranks]
        found = self._ask({"do": "restore", "run": run, "path": str(path), "ranks": ranks}, None)
        for line in found["skipped"]:
            self._say(f"warning: skipping a snapshot in {self._address}/{run}: {line}")
        if found["step"] is not None:
            self._say(
                f"fetched the snapshot of step {found['step']} ({found['size'] / 1e6:,.1f} MB) from {self._address}/{run}"
            )

    def _begin_without(self, run: Run, error: SilentStoreError) -> None:
        """A store that does not answer: begin with what is here, unless a job would begin at step 0 that the store may have."""
        topology = self._job.plan.topology
        resumes = run.resume == "auto" or topology.may_have_begun
        if resumes and RunDirectory(run.path).newest_step is None and topology.rank == 0:
            raise WaitError(
                f"{self._address} does not answer ({error}), and {run.path} has no snapshot. The job is not started, because it "
                "may have to resume from one in the store. Start it again when the store answers, or as another run: --run-dir.",
                UNHEALTHY,
            ) from None
        self._say(f"warning: {self._address} does not answer; the job starts, and copies are tried again: {error}")

    def _finish(self, node: NodeDirectory) -> None:
        grace = self._job.seconds("SLIPWAY_GRACE_SECONDS")
        ends = [end for stop in self._stops.came for end in (stop.at + grace, stop.by)]
        until = min(ends) - MARGIN if ends else None
        self._revive(0.0)
        if self._leads:
            self._say(f"copying what is new to {self._address}/{self._assignment['run']}")
        try:
            found = self._ask({"do": "finish"}, grace, until)
        except SilentStoreError as error:
            found = {"failure": str(error)}
        record = read_progress(node.path)
        if record.superseded:
            self._say(f"warning: {record.superseded}")
        elif found.get("failure") or found.get("step") != found.get("newest"):
            why = record.error or found.get("failure")
            about = (
                record.describe(self._clock.time())
                if self._leads
                else f"{record.store} lacks parts of the newest snapshot"
            )
            again = f"--run-dir {shlex.quote(self._assignment['path'])} --resume auto"
            self._say(
                f"warning: {about}{f': {why}' if why else ''}. To copy the rest later, type the same command with {again}"
            )
        elif self._leads and found.get("step") is not None:
            self._say(f"{record.store} has step {found['step']}, the newest snapshot")

    def _ask(self, request: Mapping[str, Any], seconds: float | None, until: float | None = None) -> dict[str, Any]:
        """The answer to a request. `seconds`: how long to wait while nothing moves, None for ever, 0 not at all; `until`: no
        longer than that moment.

        Raises SilentStoreError without one, LaunchError (78) for a refusal, and 75 or 79 where a stop comes before the job runs.
        """
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write(f"{json.dumps(request)}\n".encode())
            process.stdin.flush()
        except (OSError, ValueError):  # of a pipe whose other end is gone, or that is closed
            raise SilentStoreError("the process that copies has ended") from None
        answer = self._read_answer(seconds, until, request["do"]) if seconds != 0.0 else {}
        for line in answer.pop("odd", []):
            if line not in self._told:
                self._told.add(line)
                self._say(f"warning: {printable(line)}")
        if answer.get("kind") == "refused":
            raise LaunchError(
                f"{self._address} cannot be used: {answer['error']}. Check the address, the credentials and their rights "
                "(docs/storage.md)."
            )
        if "error" in answer:
            raise SilentStoreError(answer["error"])
        return answer

    def _read_answer(self, seconds: float | None, until: float | None, do: str) -> dict[str, Any]:
        """Wait for an answer; those that nobody waited for come first."""
        assert self._process is not None
        assert self._process.stdout is not None
        number, moved, at = self._process.stdout.fileno(), self._done(), self._clock.monotonic()
        while True:
            while b"\n" in self._answers:
                line, _, self._answers = self._answers.partition(b"\n")
                answer: dict[str, Any] = json.loads(line)
                if answer.pop("do") == do:
                    return answer
            now = self._clock.monotonic()
            if (done := self._done()) != moved:
                moved, at = done, now
            if (seconds is not None and now - at > seconds) or (until is not None and now > until):
                raise SilentStoreError(
                    "it was not done in time" if do == "finish" else f"no answer within {seconds:.0f} s"
                )
            if do == "finish":
                self._stops.poll()
                if self._stops.impatient:
                    raise SilentStoreError("it was not waited for")
            elif self._stops.came:
                raise WaitError(
                    f"{self._stops.came[0].name} came before anything was started.", CODE_OF[self._stops.word]
                )
            if select.select([number], [], [], 0.1)[0]:
                if not (read := os.read(number, 65_536)):
                    raise SilentStoreError("the process that copies has ended")
                self._answers += read

    def _done(self) -> int:
        """Bytes that were copied so far: what moves while something is waited for."""
        return read_progress(self._node.path).bytes if self._node else 0


def require_store(address: StoreAddress) -> None:
    """Raise LaunchError (78) where what a store needs is not installed."""
    if not address.folder and find_spec("obstore") is None:
        raise LaunchError(
            f"{address} needs obstore, which {sys.executable} does not have: this Slipway was installed without its "
            f"extra `store`. Type: {pip_install('obstore')}"
        )


def require_elsewhere(address: StoreAddress, run: Path) -> None:
    """Raise LaunchError (78) where a store is the folder that the run itself is in."""
    if address.folder and Path(address.folder).resolve() == run.parent.resolve():
        raise LaunchError(
            f"{address} is the folder of runs itself, so a copy of {run} would be lost with it. Name a folder on another disk."
        )


def require_name(path: Path) -> str:
    """The name of a run in a store, by its folder. Raises LaunchError (78) for one that is no name of objects."""
    if not re.fullmatch(SEGMENT, path.name) or path.name.startswith("."):
        raise LaunchError(
            f"--run-dir {path}: its last part is the run's name in the store, and may have letters, digits and -_.=+@, only."
        )
    return path.name
