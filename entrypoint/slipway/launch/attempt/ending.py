"""How the run ended on this node: what torchrun reported, what the workers wrote, and what the kernel counted.

Pure but for reading the workers' outcome files.
"""

import re
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from slipway.launch.attempt.gpu_events import XidSeen
from slipway.launch.run_directory.node_directory import NodeDirectory
from slipway.launch.verdict.cause import Cause, CauseKind, said
from slipway.launch.verdict.verdict import CODES, Outcome, apart
from slipway.protocol.causes import Sign, cause_of, find_signs, in_one_line
from slipway.protocol.outcomes import GOOD, Word
from slipway.protocol.printable import last_line, rank_ranges
from slipway.protocol.tracebacks import ProgramEnd, read_final_traceback
from slipway.protocol.xids import HARMLESS, PROGRAMS, action, is_sick

DESCRIBED = 4  # ranks that did not fail and are described one by one
RECENT = 200  # last lines of stderr of a rank that failed; it may have recovered from what it printed before
# In messages of c10d's socket.cpp.
_STORE = re.compile(r"(?:timed out|connect to|connection)[^()]*\((?:::ffff:)?([\w.:-]+), ?([0-9]{2,5})\)")
MakeOutcome = Callable[..., Outcome]  # makes this node's outcome of a word, its cause and more of its fields


@dataclass(frozen=True)
class StopSeen:
    """A stop as this node saw it: the `word` that it asks for and its `name`, both empty without one."""

    word: str = ""
    name: str = ""
    numbers: tuple[int, ...] = ()  # the signals that a user's script got
    killed: bool = False  # the workers had not ended when the grace was over
    impatient: bool = False  # or when Ctrl-C or `slipway stop` came again
    disk: str = ""  # why the stop flag could not be written
    notice: bool = False  # a cloud announced that this machine goes away
    short: bool = False  # and that leaves less than the grace


@dataclass(frozen=True)
class HangSeen:
    """That no rank makes progress: what shows it, and the first `rank` that the others wait for."""

    text: str
    rank: int | None = None
    time: float = 0.0  # when that was noticed (Unix seconds), 0: now
    stacks: tuple[str, ...] = ()  # of those, and of one that waits
    recorded: bool = False  # NCCL's last collectives were asked for


@dataclass(frozen=True)
class Facts:
    """What the launcher saw while the workers ran; `failures` as the agent reports them."""

    node_rank: int
    host: str
    builtin: bool
    ranks: tuple[int, ...]
    stop: StopSeen = StopSeen()  # frozen
    hang: HangSeen | None = None
    lost: str = ""  # which other node failed first
    still: float = 0.0  # seconds for which this launcher was frozen before it found the others gone
    started: bool = False  # torchrun reported that its workers run
    moved: bool | None = None  # past the first step; None where nobody can tell
    saved: int | None = None  # the step of the newest snapshot, where it is of this attempt
    status: int = 0  # torchrun's return code, negative for a signal
    failures: Sequence[Mapping[str, Any]] = ()
    ooms: int = 0  # out-of-memory kills in this cgroup meanwhile
    left: Mapping[int, float] = field(default_factory=dict)  # the ranks that ended with 0, and when
    last: Mapping[int, Sequence[str]] = field(default_factory=dict)  # lines of stderr, by rank
    printed: Mapping[int, Sequence[str]] = field(default_factory=dict)  # and of stdout
    ended: Mapping[int, ProgramEnd] = field(default_factory=dict)  # what their watchers reported when they ended
    places: Mapping[int, str] = field(default_factory=dict)  # the positions of ranks with heartbeats
    xids: tuple[XidSeen, ...] = ()  # errors of the ranks' GPUs
    agent_log: str = ""
    parent: str = "torchrun"  # what started the workers
    run: Path | None = None  # the run directory, as the workers know it
    device: str = "cuda"  # what the plan gave to the processes: cuda or cpu
    store_port: int = 0  # of torch's store, as the plan has it; 0: unknown


def is_bad(record: Mapping[str, Any]) -> bool:
    """Whether a rank wrote that it failed, or lost another."""
    return str(record.get("outcome")) not in GOOD


def is_cause_known(records: Mapping[int, Mapping[str, Any]], failures: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a rank failed by itself, by what the ranks wrote and torchrun reported. One that only lost another wrote so, or was
    aborted by gloo: the other may still be writing down why."""
    reported = {failure["rank"] for failure in failures if failure["exitcode"] != -signal.SIGABRT}
    bad = {rank for rank, record in records.items() if is_bad(record)}
    return any(records.get(rank, {}).get("outcome") != Word.PEER for rank in reported | bad)


def choose_outcome(facts: Facts, node: NodeDirectory, now: float) -> Outcome:
    """Return this node's outcome, its first cause chosen by causality: a rank that failed itself before one that lost it."""
    files = node.outcomes(facts.ranks)
    facts = replace(facts, last={**facts.last, **node.tracebacks(facts.ranks)})

    def outcome(word: str, cause: Cause, **more: Any) -> Outcome:
        return Outcome(facts.node_rank, facts.host, word, **{"time": now, "cause": cause, **more})

    if facts.lost and facts.still:
        return outcome(Word.LOST, Cause(CauseKind.FROZEN, number=round(facts.still)), time=now - facts.still)
    bad = {rank: record for rank, record in files.items() if is_bad(record)}
    if (
        facts.builtin and not bad and all(rank in files for rank in facts.ranks)
    ):  # whatever happened to the processes afterwards
        return _as_asked(facts, files, outcome)
    if facts.stop.disk:
        return outcome(Word.UNHEALTHY, Cause(CauseKind.NO_FLAG, facts.stop.disk, signs=find_signs(facts.stop.disk)))
    if facts.stop.killed and facts.stop.impatient:
        return outcome(Word.CANCELLED, Cause(CauseKind.IMPATIENT))
    if any(record.get("outcome") != Word.PEER for record in bad.values()):
        return _first_failure(facts, bad, now, outcome)
    if facts.hang:
        hang = facts.hang
        cause = Cause(CauseKind.HANG, hang.text, signs=(Sign.RECORDED,) if hang.recorded else ())
        word = Word.CANCELLED if facts.stop.word == Word.CANCELLED else Word.PEER
        # Before what others lost because their peers were ended.
        return outcome(word, cause, rank=hang.rank, time=hang.time or now, stacks=hang.stacks)
    if facts.stop.killed:
        return _too_late(facts, [rank for rank in facts.ranks if rank not in files] or list(facts.ranks), outcome)
    if bad or facts.failures:
        return _first_failure(facts, bad, now, outcome)
    if facts.lost and facts.status != 0:
        meanwhile = _bystanders(facts, facts.ranks, now)
        return outcome(Word.PEER, Cause(CauseKind.BECAUSE, facts.lost), meanwhile=meanwhile)
    if facts.status != 0:
        return _launcher_failure(facts, outcome)
    return _as_asked(facts, files, outcome)


NOTICED = 1.0  # s by which NVML's event may come after the failure that it explains
SHORTLY = 60.0  # s before a failure that has a cause of its own, as a script's exception
UNNOTICED = 3600.0  # s for which ranks may wait for a broken GPU: NCCL's time-out is 10 min, and many jobs set more


def blame_gpu(outcome: Outcome, xids: Iterable[XidSeen]) -> Outcome:
    """This node's outcome with the Xid error that explains it: a broken GPU makes the node unhealthy; a program's is its own."""
    after = {xid: outcome.time - xid.time for xid in xids if xid.number not in HARMLESS}
    waited = UNNOTICED if outcome.word in (Word.PEER, Word.UNHEALTHY) else SHORTLY
    broken = next((xid for xid in after if is_sick(xid.number) and -NOTICED <= after[xid] <= waited), None)
    first = broken or next((xid for xid in after if -NOTICED <= after[xid] <= SHORTLY), None)
    if first is None or outcome.good:
        return outcome
    remedy = action(first.number, "N" if first.gpu is None else str(first.gpu))
    moment = apart(first.time, outcome.time).replace("earlier", "before")
    cause = replace(outcome.cause, gpu=f"{first}, {moment}", remedy=remedy)
    if broken and outcome.word in (Word.FAILED, Word.PEER, Word.UNHEALTHY):
        rank = next(iter(broken.ranks), outcome.rank)
        return replace(outcome, word=Word.UNHEALTHY, rank=rank, time=min(broken.time, outcome.time), cause=cause)
    own = first.number in PROGRAMS and outcome.word == Word.UNHEALTHY and Sign.DEVICE in cause.signs
    return replace(outcome, word=Word.FAILED if own else outcome.word, cause=cause)


def _as_asked(facts: Facts, files: Mapping[int, Mapping[str, Any]], outcome: MakeOutcome) -> Outcome:
    """All workers ended well, as far as they said anything."""
    words = {record.get("outcome") for record in files.values()}
    if word := next((word for word in (Word.CANCELLED, Word.STOPPED) if word in words), ""):
        record = next(record for record in files.values() if record.get("outcome") == word)
        said = str(record.get("message") or facts.stop.name)
        if facts.stop.notice:
            return outcome(word, Cause(CauseKind.NOTICED, said, name=facts.stop.name))
        return outcome(word, Cause(text=said))
    if facts.stop.word and not facts.builtin:
        return outcome(facts.stop.word, Cause(CauseKind.AFTER, name=facts.stop.name))
    messages = [str(files[rank]["message"]) for rank in sorted(files) if files[rank].get("message")]
    return outcome(Word.FINISHED, Cause(text=messages[0] if messages else ""))


def _too_late(facts: Facts, late: Sequence[int], outcome: MakeOutcome) -> Outcome:
    """Not ended within the grace. What its user stopped for good nobody may start again; 76 lets a scheduler do it."""
    if facts.moved is False:
        return outcome(facts.stop.word, Cause(CauseKind.BEFORE_STEP, name=facts.stop.name))
    word = Word.CANCELLED if facts.stop.word == Word.CANCELLED else Word.PEER
    kind = CauseKind.OVERTAKEN if facts.stop.short else CauseKind.LATE
    return outcome(word, Cause(kind, ", ".join(map(str, late)), name=facts.stop.name), rank=late[0])


def _first_failure(facts: Facts, bad: Mapping[int, Mapping[str, Any]], now: float, outcome: MakeOutcome) -> Outcome:
    reported = {failure["rank"]: failure for failure in facts.failures}
    causes = [_cause(facts, rank, bad.get(rank, {}), reported.get(rank, {}), now) for rank in sorted({*bad, *reported})]
    if not facts.builtin and all(order[0] for order, _ in causes):
        causes += _unreported_causes(facts, [rank for rank in facts.ranks if rank not in {*reported, *facts.left}], now)
    (echo, *_), first = min(causes, key=lambda cause: cause[0])
    if echo and not facts.stop.word:
        others = [rank for rank in facts.ranks if rank not in {*bad, *reported}]
        first["meanwhile"] = _bystanders(facts, others, first["time"])
    if facts.stop.word and facts.saved is not None and first["cause"].kind == CauseKind.KILLED:
        # Schedulers that take a machine back do not wait for a word of ours. A crash stays a crash.
        cause = Cause(CauseKind.TAKEN, str(first["rank"]), facts.saved, facts.stop.name)
        return outcome(facts.stop.word, cause, rank=first["rank"])
    return outcome(**first)


def _unreported_causes(facts: Facts, ranks: Sequence[int], now: float) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Why ranks failed that torchrun does not report: one that closes its connections before it ends outlives its peers."""
    causes = []
    for rank in ranks:
        raised = read_final_traceback([*facts.last.get(rank, ())][-RECENT:], 1, facts.ended.get(rank))
        word = cause_of(raised.evidence) if raised else Word.PEER
        if raised and word != Word.PEER and "killed by signal" not in raised.evidence:
            cause = {"word": word, "cause": said(raised.evidence), "rank": rank, "time": now, "where": raised.where}
            causes.append(((False, rank), cause))  # which comes before all that only lost a peer
    return causes


def _cause(
    facts: Facts, rank: int, record: Mapping[str, Any], failure: Mapping[str, Any], now: float
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How one rank failed, with a key that orders causes before their consequences."""
    word = str(record.get("outcome"))
    word = word if word in CODES else Word.FAILED  # a file may be damaged
    exitcode = int(failure.get("exitcode", 1))
    if record:
        text, where = str(record.get("exception") or record.get("message") or ""), record.get("where")
        beside = (Sign.MEMORY,) if facts.ooms else ()  # perhaps of a data loader
        cause = Cause(text=text, signs=(*beside, *find_signs(text)))
    else:
        text, cause, where = _read_status(exitcode, facts, rank)
        echo, remote = Sign.ECHO in cause.signs, Sign.REMOTE in cause.signs
        # A script that lost a peer failed: what it does about that, and whether it can go on, is its own affair. One that waited
        # for it until the time was over, or whose NCCL gave up, could do nothing.
        word = cause_of(text) if facts.builtin or not echo or remote else Word.FAILED
        if facts.device == "cpu" and Sign.DEVICE in cause.signs:
            word = Word.FAILED  # the launcher reported at the start that there is none
        if facts.builtin and {Sign.DISK_FULL, Sign.PROCESSES} & {*cause.signs}:
            word = Word.UNHEALTHY  # the worker could not write down how it ended
    if facts.builtin and facts.run and Sign.DENIED in cause.signs and f"'{facts.run}/" in text:
        word = Word.CONFIGURATION  # as where that is found before the start
    if cause.kind == CauseKind.ASKED:
        word = facts.stop.word
    time = next(float(at) for at in (record.get("time"), failure.get("time"), now) if isinstance(at, int | float))
    # A rank with a reason of its own explains those that only lost it, a signal from outside explains most, and
    # gloo aborts where something else went wrong before. Among those that only lost another, those that a retry may help decide,
    # whichever was read first.
    echo = word == Word.PEER or Sign.ECHO in cause.signs
    order = (
        echo,
        echo and word != Word.PEER,
        word == facts.stop.word,
        exitcode == -signal.SIGABRT,
        exitcode >= 0,
        time,
        rank,
    )
    return order, {"word": word, "cause": cause, "rank": rank, "time": time, "where": where}


def _read_status(exitcode: int, facts: Facts, rank: int) -> tuple[str, Cause, str | None]:
    """What a rank printed that ended without writing why, the cause by that and by its exit code, and where."""
    if exitcode in {
        code for number in facts.stop.numbers for code in (-number, 128 + number)
    }:  # as shells count signals
        return "", Cause(CauseKind.ASKED, name=facts.stop.name), None
    if exitcode == -signal.SIGKILL:
        return "", Cause(CauseKind.OUT_OF_MEMORY, signs=(Sign.MEMORY,)) if facts.ooms else Cause(CauseKind.KILLED), None
    raised = read_final_traceback(facts.last.get(rank, ()), exitcode, facts.ended.get(rank))
    text = raised.evidence if raised else last_line(facts.last.get(rank, ()))
    found = _STORE.search(text)
    store = (found[1], found[2], str(facts.store_port)) if found and facts.store_port not in (0, int(found[2])) else ()
    kind = CauseKind.RAISED if raised else CauseKind.ENDED
    return text, Cause(kind, text, exitcode, signs=find_signs(text), store=store), raised.where if raised else None


def _bystanders(facts: Facts, ranks: Sequence[int], time: float) -> str:
    """What the ranks did that did not fail: if all others only lost one of them, one of them is the reason."""
    texts = [_describe_position(facts, rank, time) for rank in ranks[:DESCRIBED]]
    more = [f"only the first {DESCRIBED} of ranks {rank_ranges(ranks)} are listed"] if len(ranks) > DESCRIBED else []
    return "; ".join([*texts, *more])


def _describe_position(facts: Facts, rank: int, time: float) -> str:
    if rank in facts.left:
        return f"rank {rank} had ended with exit code 0, {apart(facts.left[rank], time)}"
    last = last_line(facts.printed.get(rank, ())) or last_line(facts.last.get(rank, ()))
    known = [facts.places.get(rank, ""), f"its last line was: {in_one_line(last)[:100]}" if last else ""]
    return ", ".join([f"rank {rank} had not ended", *filter(None, known)])


def _launcher_failure(facts: Facts, outcome: MakeOutcome) -> Outcome:
    if facts.stop.word and not facts.started:
        return outcome(facts.stop.word, Cause(CauseKind.BEFORE_START, name=facts.stop.name))
    if facts.status == -signal.SIGKILL and facts.ooms:
        return outcome(Word.FAILED, Cause(CauseKind.OUT_OF_MEMORY, signs=(Sign.MEMORY,)))
    if facts.status < 0:
        return outcome(Word.FAILED, Cause(CauseKind.PARENT_SIGNALLED, number=facts.status, name=facts.parent))
    last = next((line for line in reversed(facts.agent_log.splitlines()) if line.strip()), "no message").strip()
    cause = Cause(CauseKind.PARENT_FAILED, last, facts.status, facts.parent, find_signs(last))
    unmet = not facts.started and ("Timeout" in facts.agent_log or "timed out" in facts.agent_log)
    word = Word.PEER if unmet else Word.FAILED
    return outcome(Word.UNHEALTHY if Sign.PROCESSES in cause.signs else word, cause)
