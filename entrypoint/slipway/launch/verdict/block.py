"""How a verdict reads: the block that every node prints, `outcome.json`, the termination message of a pod. Pure."""

import dataclasses
import datetime
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slipway.launch.verdict.ledger import ledger_json
from slipway.launch.verdict.restarts import FUTILE, Course
from slipway.launch.verdict.verdict import CODES, Outcome, Verdict, apart
from slipway.protocol.errors import EXITS, PEER, UNHEALTHY
from slipway.protocol.files import OUTCOME_FILE
from slipway.protocol.outcomes import Word

ENDINGS: Mapping[str, str] = {
    Word.FINISHED: "finished",
    Word.STOPPED: "stopped by the system",
    Word.CANCELLED: "cancelled by the user",
    Word.FAILED: "the workload failed",
    Word.CONFIGURATION: "wrong configuration",
    Word.PEER: "a peer was lost, or workers hung",
    Word.LOST: "a node was lost",
    Word.UNHEALTHY: "a node is unhealthy",
    Word.NO_PROGRESS: "no progress",
}
TALLIES = {**{word: word for word in CODES}, Word.PEER: "ended because a peer went away"}
_COMMAND = re.compile(r"`(slipway [^`]+)`")  # in an advice
SHOWN = 8  # attempts that people are shown; outcome.json has all
TERMINATION_BYTES = 4096  # Kubernetes' limit for a termination message
MESSAGE_LENGTHS = (3_500, 1_700, 600, 200)  # characters, which take up to six bytes; the first that fits is kept


def block(
    verdict: Verdict,
    course: Course = Course(),  # noqa: B008  # frozen
    rank: int | None = None,
    typed: Callable[[str], str] = str,
) -> tuple[str, ...]:
    """The lines that every node prints at the end; `course`: the attempts that this launcher made; `rank`: the only one that it
    can speak for, as it was started for that process alone; `typed`: how a command of `slipway` is typed outside of what ran it.
    """
    nodes = sum(tally.nodes for tally in verdict.tallies)
    evidence = f": {verdict.first.evidence}" if verdict.first.evidence else ""
    if verdict.word == Word.FINISHED:
        after = f" after {course.made} attempts" if course.made > 1 else ""
        where = _count(nodes) if rank is None else f"rank {rank}"
        return (f"finished on {where}{after}{evidence}",)
    lines = [f"{heading(verdict.word, verdict.first.evidence)}: {locate(verdict.first)}{evidence}"]
    lines += [f"  where       {verdict.first.where}"] if verdict.first.where else []
    lines += [f"  when        {utc(verdict.first.time)}"]
    lines += [f"  meanwhile   {verdict.first.meanwhile}"] if verdict.first.meanwhile else []
    lines += [_beside(other, verdict.first) for other in verdict.others]
    lines += [f"  nodes       {nodes}: {_summary(verdict)}"] if nodes > 1 else []
    lines += _attempts(course)
    lines += stack_lines(verdict.first.stacks)
    advice = _COMMAND.sub(lambda command: typed(command[1]), verdict.first.advice)
    lines += [f"  what to do  {advice}"] if advice else []
    return (*lines, f"  exit code   {_codes(verdict, course.why)}")


def heading(word: str, evidence: object) -> str:
    """How an outcome with this word is called in front of its evidence: a hang that is known is no lost peer."""
    return "workers hung" if word == Word.PEER and str(evidence).startswith("hang: ") else ENDINGS[word]


def stack_lines(stacks: Sequence[str]) -> list[str]:
    """Where the ranks of a hang stood."""
    return [f"  {'stacks' if number == 0 else '':<12}{line}" for number, line in enumerate(stacks)]


def locate(outcome: Outcome) -> str:
    """Where an outcome happened: `node 1 (gpu08), rank 9`."""
    rank = "" if outcome.rank is None else f", rank {outcome.rank}"
    return f"node {outcome.node_rank} ({outcome.host}){rank}"


def _beside(other: Outcome, first: Outcome) -> str:
    if other.own:
        return f"  then        {locate(other)}: {other.evidence or other.word}"
    finished = f"finished {apart(other.time, first.time)}" if other.good else ""
    return f"  meanwhile   {locate(other)}: {finished or other.meanwhile or other.evidence or other.word}"


def _attempts(course: Course) -> list[str]:
    earlier = course.tries[:-1]
    lines = [
        f"  attempt {attempt.number:<4}{locate(attempt.outcome)}: {attempt.outcome.evidence or attempt.outcome.word}"
        for attempt in earlier[-SHOWN:]
    ]
    lines[:0] = (
        [f"  attempts    {len(earlier) - SHOWN} more before these: see {OUTCOME_FILE}"] if len(earlier) > SHOWN else []
    )
    restarts = max(0, course.made - 1)
    if not (lines or restarts or course.why):
        return []
    return [*lines, f"  restarts    {restarts or 'none'}{f': {course.why}' if course.why else ''}"]


def outcome_json(
    verdict: Verdict,
    node_rank: int,
    course: Course = Course(),  # noqa: B008  # frozen
    earlier: Sequence[Mapping[str, Any]] = (),
    differences: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The content of `outcome.json` on one node; `earlier` attempts are those of other starts of the run, as they stood there,
    `differences` those of the model's replicas.
    """
    return {
        "code": verdict.code(node_rank),
        **dataclasses.asdict(verdict),
        "attempt": course.number,
        "attempts": [*earlier, *(dataclasses.asdict(attempt) for attempt in course.tries)],
        "no_restart": course.why,
        "ledger": ledger_json(course.ledger),
        "replicas": list(differences),
    }


def termination_message(code: int, message: str, verdict: Verdict | None = None) -> bytes:
    """What a pod says at its end, for `/dev/termination-log`: one JSON object of at most 4096 bytes.

    Whatever ended it, there are `code`, `word` and `message`; behind a job's end comes the verdict.
    """
    fields: dict[str, Any] = {"code": code, "word": EXITS[code].word, "message": message}
    trims: list[dict[str, Any]] = [{}]
    if verdict:
        fields |= dataclasses.asdict(verdict)
        trims += [{"first": dataclasses.asdict(verdict.first) | {"stacks": []}}]  # they are in outcome.json
        trims += [{"others": [], "unhealthy": []}, {"first": _shortened(verdict.first)}]
    for less in (*trims, *({"message": message[:length]} for length in MESSAGE_LENGTHS)):
        fields |= less
        text = json.dumps(fields, ensure_ascii=False).encode(errors="replace")
        if len(text) <= TERMINATION_BYTES:
            break
    return text


def _shortened(outcome: Outcome) -> dict[str, Any]:
    texts = {name: (getattr(outcome, name) or "")[:200] for name in ("evidence", "where", "advice", "meanwhile")}
    return dataclasses.asdict(outcome) | {"host": outcome.host[:100], "stacks": []} | texts


def _summary(verdict: Verdict) -> str:
    return ", ".join(f"{tally.nodes} {TALLIES[tally.word]}" for tally in verdict.tallies)


def _codes(verdict: Verdict, why: str) -> str:
    if why == FUTILE:
        return f"{CODES[verdict.word]} (no scheduler needs to retry it: the cause is still there)"
    if verdict.word != Word.UNHEALTHY:
        return f"{CODES[verdict.word]} (a scheduler should {EXITS[CODES[verdict.word]].then})"
    ranks = ", ".join(str(rank) for rank in verdict.unhealthy[:20])
    return f"{UNHEALTHY} on node {ranks}, {PEER} on the others"


def _count(nodes: int) -> str:
    return "1 node" if nodes == 1 else f"{nodes} nodes"


def utc(seconds: float) -> str:
    """A time in unix seconds as people read it; whatever a file says."""
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"at {seconds:.0f} s"
