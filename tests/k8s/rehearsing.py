"""Fixtures of the rehearsal: a cluster of one machine. What its documents ask for in vain is listed at the end.

conftest.py takes `cluster` and `list_fields` from here.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "image"))

from containers import docker, fresh_name
from controller import Job
from fields import not_honoured
from kubectl import Document
from operators import expanded
from pod import Pod
from templates import of_kind
from volumes import fresh_volume

# One process on each pod.
SMALL = (
    "run", "--nproc-per-node", "1", "gpt", "--layers", "1", "--heads", "2", "--embed", "32", "--context", "32",
    "--batch-size", "8", "--eval-samples", "16", "--sample-tokens", "0", "--log-every", "10",
)  # fmt: skip
STEPS = 60
COURSE = (*SMALL, "--steps", str(STEPS), "--save-every", "20")
INSIDE = Path(__file__).parents[1] / "faults/inside"
GO = "/tmp/go"  # in a pod, ends its hold (Pod.let_go)
STOPS = "/checkpoints/gpt-slipway/node-1/stop"  # so that the hold ends with a stop
PASSED_OVER = "a field that is passed over"


class Cluster:
    """A namespace on the engine: a network, and the volumes of its claims, which stay."""

    def __init__(self, undo: ExitStack, passed_over: dict[str, str]) -> None:
        self._undo, self._passed_over = undo, passed_over
        self._claims: dict[str, str] = {}
        self._network = fresh_name()
        docker("network", "create", self._network)
        undo.callback(docker, "network", "rm", self._network)
        self.gateway = docker(
            "network", "inspect", "--format", "{{(index .IPAM.Config 0).Gateway}}", self._network
        ).strip()

    def apply(self, documents: Iterable[Document], held: str = "") -> Job:
        """`kubectl apply` of documents with one Job, which starts. `held`: a file of pod 1 without which its rank waits at step
        25, each time that it is started: then something can happen to the job, however fast it is.
        """
        given, words = list(documents), hold_until(held) if held else ()
        self._passed_over |= not_honoured(given)
        there = expanded(given)
        [job] = of_kind(there, "Job")
        return Job(job, lambda pod, index: self.start(pod, index, there, words))

    def start(self, pod: Document, index: int, documents: list[Document], words: Sequence[str] = ()) -> Pod:
        """Start a pod, as a controller has made it; `documents`: what else is in the namespace; `words`: more for Docker."""
        for volume in pod["spec"].get("volumes", []):
            if (claim := volume.get("persistentVolumeClaim")) and claim["claimName"] not in self._claims:
                self._claims[claim["claimName"]] = fresh_volume(self._undo)
        network = ["--network", self._network, *words]
        return Pod(pod, index, documents, self._claims, network, self._undo)


def hold_until(file: str) -> tuple[str, ...]:
    """Docker's words for pods whose rank 1 waits at step 25 until it has this file. Forked workers would not read of it."""
    fault = {"do": "hold", "rank": 1, "beat": ["train", 25, 1], "go": file}
    variables = {"PYTHONPATH": "/inside", "FAULTS": json.dumps([fault]), "SLIPWAY_WARM": "0"}
    told = (word for name, value in variables.items() for word in ("--env", f"{name}={value}"))
    return ("--volume", f"{INSIDE}:/inside:ro", *told)


@pytest.fixture
def cluster(image: str, undo: ExitStack, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """An empty cluster."""
    passed_over: dict[str, str] = {}
    yield Cluster(undo, passed_over)
    request.node.user_properties += [(PASSED_OVER, row) for row in passed_over.items()]


def list_fields(terminalreporter: pytest.TerminalReporter) -> None:
    """For pytest_terminal_summary: the fields that the rehearsal could not honour."""
    if passed_over := dict(noted(terminalreporter, PASSED_OVER)):
        terminalreporter.section("fields that the rehearsal on Docker cannot honour")
        for path, reason in sorted(passed_over.items()):
            terminalreporter.write_line(f"{path.removesuffix('.*'):<56}  {reason}")


def noted(terminalreporter: pytest.TerminalReporter, name: str) -> set[tuple[str, str]]:
    """What tests have noted under a name; it came with their reports, whichever of pytest's workers they ran in."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    properties = [entry for report in reports for entry in getattr(report, "user_properties", [])]
    return {tuple(row) for found, row in properties if found == name}
