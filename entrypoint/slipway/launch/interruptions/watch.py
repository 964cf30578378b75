"""A thread of the launcher that asks the metadata service of the machine's cloud for interruption notices."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Self

from slipway.launch.resolve.job_spec import Job
from slipway.launch.resolve.spot import OFF, TITLES, Watched, choose_watched
from slipway.process.machine import CLOCK, Clock

if TYPE_CHECKING:  # an HTTP client takes as long to import as the rest of a launcher; most machines need none
    from slipway.launch.interruptions.metadata import Service
    from slipway.launch.interruptions.notice import Notice

FIRST_SECONDS = 2.0  # that a start waits for the first look: on a machine that is about to go, nothing should begin
PATIENCE = 3  # polls that may fail in a row before that is reported
LONGEST = 15.0  # s between polls while the service fails: some notices leave 30 s


def open_service(cloud: str, environ: Mapping[str, str]) -> Service:
    """The metadata service of a cloud, at its usual address or the one that the environment names."""
    from slipway.launch.interruptions.metadata import SERVICES, address_of, fetch_from

    return SERVICES[cloud](fetch_from(address_of(cloud, environ)))


def watch_notices(job: Job, note: Callable[[str, float | None], object], say: Callable[[str], None]) -> NoticeWatch:
    """The watch on notices of the machine that a job runs on, each of which is a request to stop. Raises LaunchError."""
    watched = choose_watched(job.sources, job.host.dmi)
    asks, approves = partial(open_service, watched.cloud, job.environ), bool(job.sources.parsed("SLIPWAY_SPOT_APPROVE"))
    return NoticeWatch(watched, note, say, asks, approves=approves)


class NoticeWatch:
    """The watch on one cloud's notices, as a context manager. It ends with the first notice, after which the node leaves."""

    def __init__(
        self,
        watched: Watched,
        note: Callable[[str, float | None], object],
        say: Callable[[str], None],
        open_service: Callable[[], Service],
        clock: Clock = CLOCK,
        *,
        approves: bool = False,
    ) -> None:
        """`note` is called from the thread with a notice as text and the seconds that it leaves, None where it does not say.

        `say` prints a line; `open_service` connects to nothing yet. `approves`: at the end, the machine of a notice may go.
        """
        self._watched, self._note, self._say, self._open, self._clock = watched, note, say, open_service, clock
        self._over, self._polled = threading.Event(), threading.Event()
        self._failures, self._reported, self._approves = 0, False, approves
        self._taken: tuple[Service, Notice] | None = None
        self._warnings: set[Notice] = set()

    def __enter__(self) -> Self:
        """Start to watch, and wait a moment for the first answer. Nothing is asked where no cloud is watched."""
        if self._watched.cloud != OFF:
            self._say(f"watching for interruption notices of {TITLES[self._watched.cloud]} ({self._watched.why})")
            with suppress(RuntimeError):  # no more threads: the workers will report that
                threading.Thread(target=self._run, daemon=True, name="interruption notices").start()
                self._polled.wait(FIRST_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        """End the watch, without waiting for a request that is under way. What was to be saved has been saved by now."""
        self._over.set()
        if self._approves and self._taken and self._taken[1].approval:
            self._approve(*self._taken)

    def _approve(self, service: Service, notice: Notice) -> None:
        from http.client import HTTPException

        try:
            service.approve(notice)
        except (OSError, HTTPException, ValueError) as error:
            self._say(f"warning: {notice.text} is not approved, so the machine stays until its deadline: {error}")
        else:
            self._say(f"{notice.text} is approved: this machine may go before the deadline")

    def _run(self) -> None:
        service = self._open()
        while not self._over.is_set() and not self.poll(service):
            self._over.wait(self.pause(service))

    def pause(self, service: Service) -> float:
        """Seconds until the next look."""
        return min(service.pause * float(2**self._failures), LONGEST)

    def poll(self, service: Service) -> bool:
        """Ask once; whether this machine is about to go, and nothing more need be asked."""
        from http.client import HTTPException

        try:
            found = service.poll(self._clock.time(), wait=self._polled.is_set())
        except (OSError, HTTPException, ValueError) as error:
            self._fail(error)
            return False
        finally:
            self._polled.set()
        self._succeed()
        for notice in found.notices:
            if not notice.warning:
                self._taken = (service, notice)
                now = self._clock.time() if found.date is None else found.date
                self._note(notice.text, None if notice.deadline is None else notice.deadline - now)
                return True
            if notice not in self._warnings:
                self._warnings.add(notice)
                self._say(f"{notice.text}: the job continues")
        return False

    def _fail(self, error: Exception) -> None:
        from slipway.launch.interruptions.metadata import explain_failure

        self._failures += 1
        if self._failures == PATIENCE and not self._reported:
            self._reported = True
            trouble, remedy = explain_failure(self._watched.cloud, error)
            self._say(f"warning: interruption notices cannot be read: {trouble}. To fix it: {remedy}.")

    def _succeed(self) -> None:
        if self._reported:
            self._reported = False
            self._say(f"interruption notices of {TITLES[self._watched.cloud]} are watched again")
        self._failures = 0
