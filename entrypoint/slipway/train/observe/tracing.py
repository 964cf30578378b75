"""Steps of a running training are traced where somebody asks for it: `slipway trace RUN --steps N`.

Rank 0 finds the request, a file in its node's folder, when it begins to exchange the stop flag; with the flag all ranks learn how
many steps are wanted, and so begin behind the same one.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from slipway.protocol import files, snapshots
from slipway.protocol.phases import Phase
from slipway.train.observe.traces import MOST_RANKS, Recording, collect
from slipway.train.worker.context import Context

MOST_STEPS = 100


class Tracing:
    """Traces steps of one training, on all ranks together. Nothing that fails here ends the training."""

    def __init__(self, context: Context) -> None:
        """Look for requests on rank 0, unless this is a training beside the job's own."""
        place = context.place
        self._context, self._folder = context, place.node_dir
        self._recording: Recording | None = None
        self._wanted = 0
        self._request: dict[str, Any] = {}  # on rank 0, the one that is served
        self._seen: object = None
        self._looks = place.rank == 0 and place.run_dir == place.node_dir.parent
        if self._looks:
            context.flag.wanted = self._poll
            with suppress(OSError):  # a full disk: then `slipway trace` refuses, and training continues
                files.touch_run_file(self._folder / files.TRACEABLE)

    def _poll(self) -> int:
        """How many steps a request asks for that nobody has taken; it is taken with that."""
        try:
            (self._folder / files.TRACE_WANTED).stat()
        except OSError:
            return 0
        request = files.read_json(self._folder / files.TRACE_WANTED)
        # One that could not be removed is not served again.
        steps, new = request.get("steps"), request.get("id") != self._seen
        fits = type(steps) is int and 0 < steps <= MOST_STEPS and request.get("attempt") == self._context.place.attempt
        taken = fits and new and not self._request
        if taken:
            self._request, self._seen = request, request.get("id")
            self._tell("taken")  # before the request is gone, so that whoever asked finds the one or the other
        self._remove(files.TRACE_WANTED)
        return int(steps) if taken and steps else 0

    def begin(self, step: int) -> None:
        """Before each step, by every rank: begin to record where that was agreed on."""
        wanted = self._context.flag.take_steps_to_trace()
        if not wanted or self._recording is not None:
            return
        self._context.beat(Phase.MEASURE)  # the profiler takes seconds when it starts for the first time
        self._wanted = wanted
        on_gpu, rank = self._context.device.type == "cuda", self._context.place.rank
        self._recording = Recording(step, on_gpu, rank < MOST_RANKS)
        self._tell("tracing", step=step)

    def poll(self, ends: str) -> bool:
        """After each step, by every rank: write the trace when it is complete, or where it `ends` before that, and why. Returns
        whether it was written.
        """
        if self._recording is None:
            return False
        self._recording.step()
        if self._recording.steps < self._wanted and not ends:
            return False
        self.finish(ends)
        return True

    def finish(self, why: str = "") -> None:
        """Write what was recorded so far, by every rank; nothing where nothing was. `why`: what ended it early."""
        recording, self._recording = self._recording, None
        if recording is None:
            return
        context, place = self._context, self._context.place
        context.beat(Phase.SAVE)
        self._tell("collecting", step=recording.first)
        name = snapshots.snapshot_name(recording.first + 1)
        why = why if recording.steps < self._wanted else ""
        found = collect(
            recording, context.side, place.run_dir / files.TRACES / name, {"wanted": self._wanted, "why": why},
            lambda: context.beat(Phase.SAVE),
        )  # fmt: skip
        if recording.error:
            context.warn(f"rank {place.rank}: the profiler failed; training continues: {recording.error}")
        if found["unwritten"]:
            context.warn(f"the trace cannot be written; training continues: {found['unwritten']}")
            self._tell("failed", why=f"it cannot be written: {found['unwritten']}")
        else:
            self._tell("done", step=recording.first, folder=name, why=why)
        self._request = {}
        context.beat(Phase.TRAIN)

    def close(self) -> None:
        """Stop whatever is under way, by any rank alone."""
        recording, self._recording = self._recording, None
        if recording is not None and self._context.device.type == "cpu":  # else it may wait for a device that hangs
            recording.stop()
        if self._request:
            self._tell("failed", why="training ended before")
            self._request = {}
        if self._looks:
            self._remove(files.TRACEABLE)

    def _tell(self, state: str, **more: Any) -> None:
        """Let whoever asked know; where that cannot be written they notice it themselves."""
        if self._request:
            row = {"id": self._request.get("id"), "attempt": self._context.place.attempt, "state": state}
            with suppress(OSError):
                files.write_passing_json(self._folder / files.TRACE_FILE, row | {"steps": self._wanted} | more)

    def _remove(self, name: str) -> None:
        with suppress(OSError), files.held_folder(self._folder) as folder:
            (folder / name).unlink(missing_ok=True)
