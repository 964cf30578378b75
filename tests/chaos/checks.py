"""What must be true of every ending, and of every job that finished."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import needs
from plans import Harm
from scene import end_state

from slipway.launch.verdict.restarts import STUCK
from slipway.protocol.errors import CANCELLED, EXITS, FAILED, FINISHED, NO_PROGRESS, PEER, STOPPED
from slipway.protocol.files import METRICS_FILE, OUTCOME_FILE, RUN_FILE, parse_json, read_json
from slipway.protocol.snapshots import newest_step

if TYPE_CHECKING:
    from places import Node

ENTRY = ("launcher", "tini", "container")  # whose signals are requests to stop
KILLED = (-9, 137)


def find_odd_ending(node: "Node", code: int, done: Sequence[Harm], steps: int) -> list[str]:
    """What does not fit about a node's exit code and its record, after these harms to any node of the job."""
    acts = {harm.act for harm in done if harm.target in ENTRY}
    causes = {
        FINISHED: True,
        FAILED: bool(done),
        PEER: bool(done),
        STOPPED: bool(acts & {"SIGTERM", "SIGUSR1", "stop"}),
        CANCELLED: "SIGINT" in acts,
        NO_PROGRESS: len(done) >= STUCK,
    }
    where, wrong = f"node {node.rank}, start {node.start}", []
    if code in EXITS and not causes.get(code, False):
        wrong.append(f"{where} ended with {code}, for which there was no cause")
    elif code not in EXITS and code not in KILLED and node.text:  # who has said nothing yet had no handlers yet
        wrong.append(f"{where} ended with {code}, which is in no table")
    for run in node.runs:
        verdict = read_json(run / OUTCOME_FILE)
        counts = verdict.get("attempt") == read_json(run / RUN_FILE).get("attempt")
        if counts and verdict.get("code") == FINISHED and newest_step(run) != steps:
            wrong.append(f"{where} says finished, and its newest snapshot is that of step {newest_step(run)}")
    return wrong


def find_odd_result(run: Path, undisturbed: Path, steps: int) -> list[str]:
    """In what a run that finished differs from an undisturbed one."""
    try:
        if end_state(run, steps) != end_state(undisturbed, steps):
            return [f"{run}: the last snapshot differs from that of {undisturbed}"]
    except (AssertionError, OSError, ValueError) as error:
        return [f"{run}: the last snapshot is not as it should be: {error!r}"]
    wrong = []
    measured, wanted = losses(run), losses(undisturbed)
    if measured != wanted[len(wanted) - len(measured) :]:  # what an empty disk has begins later
        wrong.append(f"{run / METRICS_FILE} differs from that of {undisturbed}")
    known = known_files()
    for path in sorted(run.rglob("*")):
        name = str(path.relative_to(run))
        if path.is_file() and not any(re.match(pattern, name) for pattern in known):
            wrong.append(f"left: {path}")
    if read_json(run / OUTCOME_FILE).get("code") != FINISHED:
        wrong.append(f"{run / OUTCOME_FILE} does not say that it is finished")
    return wrong


def losses(run: Path) -> list[tuple[object, ...]]:
    """Steps and losses, without what the clock says; none on the disk of a node without rank 0."""
    lines = (run / METRICS_FILE).read_bytes().splitlines() if (run / METRICS_FILE).exists() else []
    names = ("step", "loss", "grad_norm", "val_loss")
    return [tuple(parse_json(line).get(name) for name in names) for line in lines]


def known_files() -> list[str]:
    """Patterns of what may lie in a run directory, as docs/internals.md lists it; holders of a folder are gone at the end."""
    page = (needs.ROOT / "docs/internals.md").read_text()
    table = page.partition("| in `runs/<name>` |")[2].partition("\n\n")[0]
    names = re.findall(r"`([^`]+)`", "".join(line.split("|")[1] for line in table.splitlines() if line.count("|") > 2))
    return [pattern_of(name) for name in names if not name.startswith(("node-R/launcher", "launcher-"))]


def pattern_of(name: str) -> str:
    """`node-R/logs/` or `snapshots/step-…/` as a regular expression."""
    pattern = re.escape(name).replace("…", r"\d+")
    pattern = re.sub(r"(?<=\\-)[NR](?=[/.\\])", r"\\d+", pattern)
    return pattern + (r"[^/]+$" if name.endswith("/") else "$")
