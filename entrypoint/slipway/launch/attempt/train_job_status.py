"""How far the training is, for Kubeflow Trainer's users: it stands in the TrainJob's status, where its controller asks for it.

Kubeflow Trainer from 2.2 on, feature gate TrainJobRuntimeStatus (alpha, off by default): KEP-2779 and pkg/statusserver of
https://github.com/kubeflow/trainer. Whatever fails here is told once, and never touches the training.
"""

import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from slipway.launch.run_directory.heartbeats import Beat, newest_numbers, read_beats

URL, CA, TOKEN = (f"KUBEFLOW_TRAINER_SERVER_{name}" for name in ("URL", "CA_CERT", "TOKEN"))  # the last two are paths
EVERY = 30.0  # s between two posts; the controller asks for 5 at least
TIMEOUT = 5.0  # s for a connection, and for each answer


class TrainJobStatus:
    """Posts while a workload of ours runs, from a thread of its own, and once more at its end. A context manager."""

    def __init__(
        self, environ: Mapping[str, str], run: Path, node_dir: Path, say: Callable[[str], None], every: float = EVERY
    ) -> None:
        """`environ` has the three variables; `every` are seconds."""
        self._environ, self._run, self._node_dir, self._say, self._every = environ, run, node_dir, say, every
        self._over, self._told = threading.Event(), False
        self._began: tuple[float, int] | None = None  # when the first step of this attempt was seen, and which
        self._thread = threading.Thread(target=self._post_on, daemon=True, name="train-job-status")

    def __enter__(self) -> Self:
        """Begin; without a thread nothing is told."""
        with suppress(RuntimeError):
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait a moment for the last post."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(TIMEOUT)  # within what a pod has beyond the grace for its snapshot

    def _post_on(self) -> None:
        while not self._over.wait(self._every):
            self._try()
        self._try()

    def _try(self) -> None:
        try:
            beat = read_beats(self._node_dir, (0,)).get(0)
            if beat and beat.steps:
                now = time.monotonic()
                if self._began is None and beat.step:
                    self._began = now, beat.step
                left = seconds_left(beat, self._began, now)
                post(self._environ, make_status(beat, newest_numbers(self._run).get("loss"), left, time.time()))
        except Exception as error:  # whatever it is, it is no business of the training's
            if not self._told:
                self._say(
                    f"Trainer cannot be told how far the training is, which goes on: {type(error).__name__}: {error}"
                )
            self._told = True


def seconds_left(beat: Beat, began: tuple[float, int] | None, now: float) -> float | None:
    """Seconds to the last step at the pace since `began`, a time and its step; None where nothing has moved since."""
    if began is None or not beat.steps or beat.step <= began[1]:
        return None
    return (beat.steps - beat.step) * (now - began[0]) / (beat.step - began[1])


def make_status(beat: Beat, loss: float | None, left: float | None, now: float) -> dict[str, Any]:
    """The body of a post, which replaces the status there; `left` are seconds, `now` is a Unix time."""
    steps = beat.steps or 1
    metrics = {"step": str(beat.step), "steps": str(steps)} | ({"loss": f"{loss:.6g}"} if loss is not None else {})
    return {
        "trainerStatus": {
            "progressPercentage": min(100, 100 * beat.step // steps),
            **({"estimatedRemainingSeconds": round(left)} if left is not None else {}),
            "metrics": [{"name": name, "value": value} for name, value in metrics.items()],
            "lastUpdatedTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)),
        }
    }


def post(environ: Mapping[str, str], status: Mapping[str, Any]) -> None:
    """Post a status. The token changes every hour and the authority may, so both are read anew.

    Follows no redirects and asks no proxy: the token is for the cluster's own server. Raises OSError, ValueError,
    http.client.HTTPException.
    """
    url = urlsplit(environ[URL])
    if url.scheme != "https" or not url.hostname:
        raise ValueError(f"{URL}={environ[URL]} is no https:// address")
    token = Path(environ[TOKEN]).read_text(encoding="ascii").strip()
    context = ssl.create_default_context(cafile=environ[CA])
    connection = http.client.HTTPSConnection(url.hostname, url.port, timeout=TIMEOUT, context=context)
    try:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        connection.request("POST", url.path, json.dumps(status), headers)
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise OSError(
                f"{url.netloc} answers {answer.status} {answer.reason}: {answer.read(300).decode(errors='replace')}"
            )
    finally:
        connection.close()
