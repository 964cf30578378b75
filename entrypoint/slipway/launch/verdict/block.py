"""How a verdict reads: the block that every node prints, `outcome.json`, the termination message of a pod. Pure."""

import dataclasses
import json
import platform
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slipway.launch.verdict.cause import Cause, CauseKind, other_store
from slipway.launch.verdict.ledger import ledger_json
from slipway.launch.verdict.restarts import AttemptHistory
from slipway.launch.verdict.verdict import CODES, Outcome, Verdict, apart
from slipway.protocol.causes import CONFIGURED, Sign
from slipway.protocol.errors import EXITS, PEER, UNHEALTHY
from slipway.protocol.files import OUTCOME_FILE
from slipway.protocol.outcomes import Word
from slipway.protocol.printable import utc
from slipway.protocol.variants import advise_old_driver

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
Advise = Callable[[Outcome], str]  # says what helps against the cause of an outcome
TALLIES = {**{word: word for word in CODES}, Word.PEER: "ended because a peer went away"}
SHOWN = 8  # attempts that people are shown; outcome.json has all
TERMINATION_BYTES = 4096  # Kubernetes' limit for a termination message
MESSAGE_LENGTHS = (3_500, 1_700, 600, 200)  # characters, which take up to six bytes; the first that fits is kept


def block(
    verdict: Verdict,
    history: AttemptHistory = AttemptHistory(),  # noqa: B008  # frozen
    rank: int | None = None,
    advise: Advise = lambda outcome: "",
) -> tuple[str, ...]:
    """The lines that every node prints at the end; `history`: the attempts that this launcher made; `rank`: the only one that it
    can speak for, as it was started for that process alone.
    """
    first, nodes = verdict.first, sum(tally.nodes for tally in verdict.tallies)
    evidence = f": {first.evidence}" if first.evidence else ""
    if verdict.word == Word.FINISHED:
        after = f" after {history.made} attempts" if history.made > 1 else ""
        where = f"{nodes} node{'s' * (nodes > 1)}" if rank is None else f"rank {rank}"
        return (f"finished on {where}{after}{evidence}",)
    lines = [f"{heading(verdict.word, first.cause.kind)}: {locate(first)}{evidence}"]
    lines += [f"  where       {first.where}"] if first.where else []
    lines += [f"  when        {utc(first.time)}"]
    lines += [f"  meanwhile   {first.meanwhile}"] if first.meanwhile else []
    lines += [_beside(other, first) for other in verdict.others]
    ends = ", ".join(f"{tally.nodes} {TALLIES[tally.word]}" for tally in verdict.tallies)
    lines += [f"  nodes       {nodes}: {ends}"] if nodes > 1 else []
    lines += _attempts(history)
    lines += stack_lines(first.stacks)
    lines += [f"  what to do  {advice}"] if (advice := advise(first)) else []
    return (*lines, f"  exit code   {_codes(verdict, history.why)}")


def heading(word: str, cause: object) -> str:
    """How an outcome with this word, and a cause of this kind, is called: a hang that is known is no lost peer."""
    return "workers hung" if word == Word.PEER and cause == CauseKind.HANG else ENDINGS[word]


# What helps, by the kind of the cause. {logs} is the command that shows all that a rank printed.
ADVICE = {
    CauseKind.HANG: "read the stacks above, which are also in outcome.json; for all that the rank printed, type {logs}",
    CauseKind.LATE: "the newest snapshot is intact; more time: --grace-seconds S",
    CauseKind.OVERTAKEN: (
        "the newest snapshot is intact; the notice left less time than a snapshot takes: save more often (--save-every)"
    ),
    CauseKind.RUN_GONE: "if it was renamed, continue with --run-dir NEW-NAME --resume auto; else look at its disk",
}
# Where nothing more is known of how a worker ended.
ADVICE_BY_WORD: Mapping[str, str] = {
    Word.PEER: "look at what was lost ({logs}); the job can be started again with --resume auto",
    Word.UNHEALTHY: (
        "look at this node (`slipway check --local`, nvidia-smi, dmesg); the job can continue elsewhere with --resume auto"
    ),
    Word.FAILED: "for its complete output, type {logs}",
}


def what_to_do(outcome: Outcome, lacks: Callable[[str], str], run: Path | None = None) -> str:
    """What helps against the cause of an outcome; empty where nobody knows. `lacks` returns what to ask of whatever runs us for
    what it lacks; `run`: the run directory, which need not be named where it is the newest."""
    cause, rank = outcome.cause, outcome.rank
    signs = [sign for sign in cause.signs if outcome.word == Word.CONFIGURATION or sign not in CONFIGURED]
    advice = ADVICE.get(cause.kind) or next((sign.advice for sign in signs if sign.advice), "")
    if cause.remedy:
        elsewhere = "; the job can continue elsewhere with --resume auto" * (outcome.word == Word.UNHEALTHY)
        advice = f"{cause.remedy} (NVIDIA's catalog of Xid errors){elsewhere}"
    elif cause.store:
        host, port, ours = cause.store
        advice = f"the script {other_store(host, port, f'port {ours}')}"
    elif not advice and Sign.OLD_DRIVER in signs:
        advice = advise_old_driver(cause.text, platform.machine())
    elif not advice and (rank is not None or cause.kind == CauseKind.NO_FLAG):
        advice = ADVICE_BY_WORD.get(outcome.word, "")
    if cause.kind == CauseKind.GAVE_UP:
        advice = f"fix the cause, or save more often (--save-every); {advice or ADVICE_BY_WORD[Word.FAILED]}"
    advice += "; NCCL's last collectives are beside its log (nccl-attempt-*)" * (Sign.RECORDED in signs)
    named = f" {shlex.quote(str(run))}" if run else ""
    logs = f"`slipway logs{named} --rank {rank or 0}`"
    for lacking in ("package", "shared memory", "another disk"):
        if (place := f"{{{lacking.replace(' ', '_')}}}") in advice:
            advice = advice.replace(place, lacks(lacking))
    if missing := re.search(r"No module named '(\w+)", cause.text):
        advice = advice.replace("pip install PACKAGE", f"pip install {missing[1]}")
    return advice.replace("{logs}", logs)


def stack_lines(stacks: Sequence[str]) -> list[str]:
    """Where the ranks of a hang stood."""
    return [f"  {'stacks' if number == 0 else '':<12}{line}" for number, line in enumerate(stacks)]


def locate(outcome: Outcome) -> str:
    """Where an outcome happened: `node 1 (gpu08), rank 9`."""
    rank = "" if outcome.rank is None else f", rank {outcome.rank}"
    return f"node {outcome.node_rank} ({outcome.host}){rank}"


def _beside(other: Outcome, first: Outcome) -> str:
    if other.independent:
        return f"  then        {locate(other)}: {other.evidence or other.word}"
    finished = f"finished {apart(other.time, first.time)}" if other.good else ""
    return f"  meanwhile   {locate(other)}: {finished or other.meanwhile or other.evidence or other.word}"


def _attempts(history: AttemptHistory) -> list[str]:
    earlier = history.tries[:-1]
    lines = [
        f"  attempt {attempt.number:<4}{locate(attempt.outcome)}: {attempt.outcome.evidence or attempt.outcome.word}"
        for attempt in earlier[-SHOWN:]
    ]
    lines[:0] = (
        [f"  attempts    {len(earlier) - SHOWN} more before these: see {OUTCOME_FILE}"] if len(earlier) > SHOWN else []
    )
    restarts = max(0, history.made - 1)
    if not (lines or restarts or history.why):
        return []
    return [*lines, f"  restarts    {restarts or 'none'}{f': {history.why}' if history.why else ''}"]


def outcome_json(
    verdict: Verdict,
    node_rank: int,
    history: AttemptHistory = AttemptHistory(),  # noqa: B008  # frozen
    earlier: Sequence[Mapping[str, Any]] = (),
    differences: Sequence[Mapping[str, Any]] = (),
    advise: Advise = lambda outcome: "",
) -> dict[str, Any]:
    """The content of `outcome.json` on one node; `earlier` attempts are those of other starts of the run, as they stood there,
    `differences` those of the model's replicas.
    """
    return {
        "code": verdict.code(node_rank),
        **verdict_record(verdict, advise),
        "attempt": history.number,
        "attempts": [
            *earlier,
            *(vars(one) | {"outcome": outcome_record(one.outcome, advise)} for one in history.tries),
        ],
        "no_restart": str(history.why or ""),
        "ledger": ledger_json(history.ledger),
        "replicas": list(differences),
    }


def outcome_record(outcome: Outcome, advise: Advise) -> dict[str, Any]:
    """An outcome in JSON: of its cause the kind, for programs, and the sentences, for people."""
    texts = {"cause": outcome.cause.kind, "evidence": outcome.evidence, "advice": advise(outcome)}
    return vars(outcome) | texts


def verdict_record(verdict: Verdict, advise: Advise) -> dict[str, Any]:
    """A verdict in JSON."""
    first, *others = (outcome_record(outcome, advise) for outcome in (verdict.first, *verdict.others))
    return {**dataclasses.asdict(verdict), "first": first, "others": others}


def termination_message(
    code: int, message: str, verdict: Verdict | None = None, advise: Advise = lambda outcome: ""
) -> bytes:
    """What a pod says at its end, for `/dev/termination-log`: one JSON object of at most 4096 bytes.

    Whatever ended it, there are `code`, `word` and `message`; after a job's end comes the verdict.
    """
    fields: dict[str, Any] = {"code": code, "word": EXITS[code].word, "message": message}
    trims: list[dict[str, Any]] = [{}]
    if verdict:
        fields |= verdict_record(verdict, advise)
        first = fields["first"] | {"stacks": []}  # they are in outcome.json
        short = {name: (first[name] or "")[:200] for name in ("evidence", "where", "advice", "meanwhile")}
        trims += [{"first": first}, {"others": [], "unhealthy": []}]
        trims += [{"first": first | short | {"host": first["host"][:100]}}]
    for less in (*trims, *({"message": message[:length]} for length in MESSAGE_LENGTHS)):
        fields |= less
        text = json.dumps(fields, ensure_ascii=False).encode(errors="replace")
        if len(text) <= TERMINATION_BYTES:
            break
    return text


def _codes(verdict: Verdict, why: Cause | None) -> str:
    same = {Sign.PACKAGE, Sign.ARGUMENTS} & {*verdict.first.cause.signs}  # what every start would find again
    if (why and why.kind == CauseKind.FUTILE) or (same and verdict.word == Word.FAILED):
        return f"{CODES[verdict.word]} (no scheduler needs to retry it: the cause is still there)"
    if verdict.word != Word.UNHEALTHY:
        return f"{CODES[verdict.word]} (a scheduler should {EXITS[CODES[verdict.word]].then})"
    ranks = ", ".join(str(rank) for rank in verdict.unhealthy[:20])
    several = sum(tally.nodes for tally in verdict.tallies) > 1
    return f"{UNHEALTHY} on node {ranks}, {PEER} on the others" if several else str(UNHEALTHY)
