"""Messages about a running job to a chat, or to any server that accepts JSON by POST (SLIPWAY_NOTIFY). Whatever fails here never
affects the job.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Self

from slipway.launch.attempt.stops import Stops
from slipway.launch.companions.companion import Companion
from slipway.launch.resolve.job_spec import Job
from slipway.launch.run_directory.run import Run
from slipway.launch.verdict.block import block
from slipway.launch.verdict.verdict import Verdict
from slipway.protocol.outcomes import Word
from slipway.protocol.redact import make_redactor, redact_json, secret_arguments, secret_values
from slipway.protocol.replicas import FindingKind, ReplicaDifference

PAUSE = 60.0  # s between two messages
EVERY = 5.0  # s between polls of what the training recorded
TRIES = (0.0, 0.5, 2.0)  # s before each try
TIMEOUT = 2.0  # s for each; with the pauses all tries of the last message fit into LAST_SECONDS
LAST_SECONDS = 10.0  # that the end of the job waits for its message: what a pod has beyond the grace for its snapshot


class Notices(Companion):
    """Messages from the launcher that decides for all, sent by a thread.

    At most one a minute is sent: what happens meanwhile is part of the next one, or of the last, which does not wait. A failure
    is reported once. The address is a secret, as those of chats are: anyone who has it can write there.
    """

    def __init__(
        self,
        url: str,
        facts: Mapping[str, Any],
        clean: Callable[[str], str],
        say: Callable[[str], None],
        pause: float = PAUSE,
    ) -> None:
        """`facts` are part of each message, `clean` takes secrets out of a text."""
        self._url, self._facts, self._clean, self._say, self._pause = url, facts, clean, say, pause
        self._leads = True  # whether it is this launcher that speaks for all
        self._waiting: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._over, self._complained = threading.Event(), False
        self._polled = time.monotonic()
        self._known: set[ReplicaDifference] | None = None  # None before the first look: what is there then is no news
        self._thread = threading.Thread(target=self._send_on, daemon=True, name="notices")

    def __enter__(self) -> Self:
        """Start the thread; where that fails nothing is sent."""
        with suppress(RuntimeError):
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Wait a moment for the last message."""
        self._over.set()
        self._waiting.put(None)
        if self._thread.ident is not None:
            self._thread.join(LAST_SECONDS)

    def lead(self, *, leads: bool) -> None:
        """Send from here on, or no longer."""
        self._leads = leads

    def hang(self, run: Run, text: str) -> None:
        """Say that the job hangs."""
        self._tell(run, "hang", text)

    def poll(self, run: Run) -> str:
        """Report differences between replicas that were found since the last look."""
        if self._leads and (self._known is None or time.monotonic() - self._polled >= EVERY):
            self._polled = time.monotonic()
            self._find_drift(run)
        return ""

    def _find_drift(self, run: Run) -> None:
        found = run.differences()
        known, self._known = self._known, {*found}
        for difference in () if known is None else (each for each in found if each not in known):
            event = "drift" if difference.kind == FindingKind.DRIFT else "arithmetic"
            self._tell(run, event, difference.sentence)

    def restart(self, run: Run, verdict: Verdict) -> None:
        """Say why an attempt ended."""
        event = "lost node" if verdict.first.word == Word.LOST else "restart"
        self._tell(
            run, event, f"restarting, because attempt {run.attempt} ended: {block(verdict)[0]}", outcome=verdict.word
        )

    def end(self, run: Run, verdict: Verdict) -> None:
        """Say how the job ended."""
        self._find_drift(run)
        self._tell(run, "end", block(verdict)[0], outcome=verdict.word, exit_code=verdict.code(0))

    def _tell(self, run: Run, event: str, text: str, **fields: Any) -> None:
        """Have it sent, at once or when the pause is over. Never waits."""
        if not self._leads:
            return
        fields |= {"run": str(run.path), "attempt": run.attempt, "time": time.time()}
        with suppress(OSError):  # a disk that is away
            fields["snapshot"] = run.newest_step
        self._waiting.put({"event": event, "text": f"{run.path.name}: {text}", **self._facts, **fields})

    def _send_on(self) -> None:
        before = -self._pause
        while (notice := self._waiting.get()) is not None:
            self._over.wait(max(0.0, before + self._pause - time.monotonic()))
            texts, ended = [notice["text"]], False
            with suppress(queue.Empty):  # all that waited is taken: one message for it
                while not ended:
                    later = self._waiting.get_nowait()
                    ended = later is None
                    if later is not None:
                        notice = later
                        texts.append(later["text"])
            self._send({**notice, "text": "\n".join(texts)})
            before = time.monotonic()
            if ended:
                return

    def _send(self, notice: Mapping[str, Any]) -> None:
        for pause in TRIES:
            time.sleep(pause)  # in a thread of its own: the job does not wait
            try:
                post(self._url, redact_json(dict(notice), self._clean))
                return
            except Exception as error:  # whatever it is, it is no business of the job's
                failure = f"{type(error).__name__}: {error}"
        if not self._complained:
            said = self._clean(failure.replace(self._url, "SLIPWAY_NOTIFY"))
            self._say(f"warning: a message to SLIPWAY_NOTIFY could not be delivered; the job continues:  {said}")
        self._complained = True


def post(url: str, content: Mapping[str, Any]) -> None:
    """Post JSON, through a proxy where the environment names one, and again where a redirect leads; not from https to http.

    Raises OSError, ValueError, http.client.HTTPException.
    """
    import urllib.error
    import urllib.request  # with http and ssl, which others do without

    class PostAgain(urllib.request.HTTPRedirectHandler):
        """urllib's own would follow 301 and 302 with a GET, without the message, and refuse 307 and 308."""

        def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
            if code not in (301, 302, 307, 308):
                return super().redirect_request(req, fp, code, msg, headers, newurl)
            if req.full_url.startswith("https:") and not newurl.startswith("https:"):
                raise urllib.error.HTTPError(req.full_url, code, "it redirects to an address without TLS", headers, fp)
            return urllib.request.Request(newurl, req.data, req.headers, req.origin_req_host, True)  # noqa: S310

    headers = {"Content-Type": "application/json", "User-Agent": "slipway"}
    request = urllib.request.Request(url, json.dumps(content).encode(), headers)  # noqa: S310  # its setting takes http(s) alone
    with urllib.request.build_opener(PostAgain).open(request, timeout=TIMEOUT) as answer:
        answer.read(300)


def open_notices(job: Job, stops: Stops, say: Callable[[str], None]) -> Notices:
    """The notices of a job. Only the launcher of node 0, or of process 0, sends any, or the one that leads in its place."""
    sources, topology = job.sources, job.plan.topology
    url = sources.value("SLIPWAY_NOTIFY")
    secrets = [*secret_values(job.environ, sources.env_file).values(), *secret_arguments(job.plan.arguments), url]
    facts = {
        "workload": job.plan.workload.name,
        "job": topology.job,
        "host": socket.gethostname(),
        "nodes": topology.nodes,
        "processes": topology.world_size,
    }
    notices = Notices(url, facts, make_redactor(secrets), say)
    notices.lead(leads=topology.rank == 0)
    return notices
