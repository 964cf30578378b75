"""How the run ended on this node: what torchrun told, what the workers wrote, and what the kernel counted.

Pure but for reading the workers' outcome files and the cgroup's out-of-memory counter.
"""

import errno
import re
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from slipway.launch.hangs.hang import ADVICE, logs_command
from slipway.launch.hangs.standing import other_store
from slipway.launch.resolve.advice import advise
from slipway.launch.verdict.verdict import CODES, Outcome, apart
from slipway.process.tree import signal_name
from slipway.protocol.causes import (
    DRIVER_TOO_OLD,
    NO_DEVICE,
    NO_INTERFACE,
    OLDEST_DRIVER,
    SMALL_SHM,
    cause_of,
    in_one_line,
    is_remote,
)
from slipway.protocol.cgroups import cgroup_folders, read_kernel_file
from slipway.protocol.errors import DISK_ERRORS, MORE_PROCESSES, NO_MORE_PROCESSES
from slipway.protocol.files import OUTCOMES, error_file, rank_file, read_json
from slipway.protocol.outcomes import GOOD, Word
from slipway.protocol.printable import last_line, rank_ranges
from slipway.protocol.tracebacks import ProgramEnd, Raised, read_final_traceback

_DISK_NUMBERS = "|".join(str(number) for number in sorted(DISK_ERRORS))
DISK_FULL = rf"\[Errno ({_DISK_NUMBERS})\]|No space left on device"  # as outcome files tell them
DISK_BROKEN = rf"\[Errno ({errno.EROFS}|{errno.EIO})\]"
NO_PYTHON = r"\b(Syntax|Indentation|Tab)Error: "  # of a file that a script imports
DENIED = rf"\[Errno ({errno.EACCES}|{errno.EPERM})\]"
OUT_OF_MEMORY_BESIDE = "out-of-memory kills were counted in this cgroup meanwhile"
OUT_OF_MEMORY = "out of memory: killed by the kernel (SIGKILL), which counts an out-of-memory kill in this cgroup"
KILLED = "SIGKILL: somebody killed it (kill -9), no out-of-memory kill was counted here"
STANDING = 4  # ranks of which it is told one by one where they stood
RECENT = 200  # last lines of stderr of a rank that failed; what it printed before, it may have got over
# In messages of c10d's socket.cpp.
_STORE = re.compile(r"(?:timed out|connect to|connection)[^()]*\((?:::ffff:)?([\w.:-]+), ?([0-9]{2,5})\)")
MakeOutcome = Callable[..., Outcome]  # makes this node's outcome of a word, its evidence and more of its fields


@dataclass
class Facts:
    """What the launcher saw while the workers ran. `stop` is the word that was asked for; `failures` as the agent tells."""

    node_rank: int
    host: str
    own: bool
    ranks: tuple[int, ...]
    stop: str = ""
    signal: str = ""  # what asked, by name
    numbers: tuple[int, ...] = ()  # the signals that a user's script got
    killed: bool = False  # its workers had not ended when the grace of a stop was over
    impatient: bool = False  # or when Ctrl-C or `slipway stop` came again
    disk: str = ""  # why the stop flag could not be written
    started: bool = False  # torchrun told that its workers run
    hang: str = ""  # that no rank moves any more, and whom the others wait for
    behind: int | None = None  # the first of those
    hung: float = 0.0  # when that was noticed (Unix seconds)
    stacks: tuple[str, ...] = ()  # of those, and of one that waits
    recorded: bool = False  # NCCL's last collectives were asked for
    moved: bool | None = None  # past the first step; None where nobody can tell
    saved: int | None = None  # the step of the newest snapshot, where it is of this attempt
    lost: str = ""  # which other node failed first
    still: float = 0.0  # seconds for which this launcher was frozen before it found the others gone
    status: int = 0  # torchrun's return code, negative for a signal
    failures: list[dict[str, Any]] = field(default_factory=list)
    ooms: int = 0  # out-of-memory kills in this cgroup meanwhile
    left: Mapping[int, float] = field(default_factory=dict)  # the ranks that ended with 0, and when
    last: Mapping[int, Sequence[str]] = field(default_factory=dict)  # lines of stderr, by rank
    printed: Mapping[int, Sequence[str]] = field(default_factory=dict)  # and of stdout
    ended: Mapping[int, ProgramEnd] = field(default_factory=dict)  # what their watchers said at their ends
    places: Mapping[int, str] = field(default_factory=dict)  # where ranks with heartbeats stood
    agent_log: str = ""
    parent: str = "torchrun"  # what started the workers
    run: Path | None = None  # the run directory, as the workers know it
    runtime: str = "host"  # what runs us, as in Host
    device: str = "cuda"  # what the plan gave to the processes: cuda or cpu
    store_port: int = 0  # of torch's store, as the plan has it; 0: unknown


def read_outcomes(node_dir: Path, ranks: Iterable[int]) -> dict[int, dict[str, Any]]:
    """What those of the ranks that came to an end so far wrote about it, by rank."""
    return {rank: record for rank in ranks if (record := read_json(rank_file(node_dir, OUTCOMES, rank)))}


def read_recorded(node_dir: Path, ranks: Iterable[int]) -> dict[int, list[str]]:
    """The tracebacks that `torch.distributed.elastic`'s @record wrote, by rank, in lines."""
    found = {}
    for rank in ranks:
        message = read_json(node_dir / OUTCOMES / error_file(rank)).get("message")
        more = message.get("extraInfo") if isinstance(message, dict) else None
        stack = more.get("py_callstack") if isinstance(more, dict) else None
        if isinstance(stack, str):
            found[rank] = stack.splitlines()
    return found


def is_bad(record: Mapping[str, Any]) -> bool:
    """Whether a rank wrote that it failed, or lost another."""
    return str(record.get("outcome")) not in GOOD


def is_cause_known(records: Mapping[int, Mapping[str, Any]], failures: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a rank failed by itself, by what the ranks wrote and torchrun told. One that only lost another wrote so, or was
    aborted by gloo: the other may still be writing down why."""
    told = {failure["rank"] for failure in failures if failure["exitcode"] != -signal.SIGABRT}
    bad = {rank for rank, record in records.items() if is_bad(record)}
    return any(records.get(rank, {}).get("outcome") != Word.PEER for rank in told | bad)


def choose_outcome(facts: Facts, node_dir: Path, now: float) -> Outcome:
    """Return this node's outcome, its first cause chosen by causality: a rank that failed itself before one that lost it."""
    files = read_outcomes(node_dir, facts.ranks)
    facts = replace(facts, last={**facts.last, **read_recorded(node_dir, facts.ranks)})

    def outcome(word: str, evidence: str = "", **more: Any) -> Outcome:
        return Outcome(facts.node_rank, facts.host, word, **{"time": now, "evidence": evidence, **more})

    if facts.lost and facts.still:
        frozen = f"it was frozen for {facts.still:.0f} s (the launcher or its machine), and the other nodes counted it as lost"
        return outcome(Word.LOST, frozen, time=now - facts.still)
    bad = {rank: record for rank, record in files.items() if is_bad(record)}
    if facts.own and len(files) == len(facts.ranks) and not bad:  # whatever became of the processes afterwards
        return _as_asked(facts, files, outcome)
    if facts.disk:
        return outcome(Word.UNHEALTHY, facts.disk, advice=_advice(Word.UNHEALTHY, facts.disk, facts.runtime))
    if facts.killed and facts.impatient:
        return outcome(
            Word.CANCELLED, "killed at the second Ctrl-C or `slipway stop`; what was not in a snapshot is lost"
        )
    if any(record.get("outcome") != Word.PEER for record in bad.values()):
        return _first_failure(facts, bad, now, outcome)
    if facts.hang:
        advice = f"{ADVICE} `{logs_command(facts.run, facts.behind)}`"
        advice += "; NCCL's last collectives are beside its log (nccl-attempt-*)" if facts.recorded else ""
        word = Word.CANCELLED if facts.stop == Word.CANCELLED else Word.PEER
        # Before what others lost because their peers were ended.
        return outcome(word, facts.hang, rank=facts.behind, advice=advice, time=facts.hung or now, stacks=facts.stacks)
    if facts.killed:
        return _too_late(facts, [rank for rank in facts.ranks if rank not in files] or list(facts.ranks), outcome)
    if bad or facts.failures:
        return _first_failure(facts, bad, now, outcome)
    if facts.lost and facts.status != 0:
        meanwhile = _bystanders(facts, facts.ranks, now)
        return outcome(Word.PEER, f"ended because of {facts.lost}", meanwhile=meanwhile)
    if facts.status != 0:
        return _launcher_failure(facts, outcome)
    return _as_asked(facts, files, outcome)


def _as_asked(facts: Facts, files: Mapping[int, Mapping[str, Any]], outcome: MakeOutcome) -> Outcome:
    """All workers ended well, as far as they said anything."""
    words = {record.get("outcome") for record in files.values()}
    if word := next((word for word in (Word.CANCELLED, Word.STOPPED) if word in words), ""):
        record = next(record for record in files.values() if record.get("outcome") == word)
        return outcome(word, str(record.get("message") or facts.signal))
    if facts.stop and not facts.own:
        return outcome(facts.stop, f"the script ended after {facts.signal}")
    messages = [str(files[rank]["message"]) for rank in sorted(files) if files[rank].get("message")]
    return outcome(Word.FINISHED, messages[0] if messages else "")


def _too_late(facts: Facts, late: Sequence[int], outcome: MakeOutcome) -> Outcome:
    """Not ended within the grace. What its user stopped for good nobody may start again; 76 lets a scheduler do it."""
    if facts.moved is False:
        return outcome(facts.stop, f"{facts.signal} came before the first step: there was nothing to save")
    noun, verb = ("rank", "was") if len(late) == 1 else ("ranks", "were")
    ranks = f"{noun} {', '.join(map(str, late))}"
    evidence = f"{facts.signal}: {ranks} had not ended when the grace period was over, and {verb} killed"
    word: str = Word.CANCELLED if facts.stop == Word.CANCELLED else Word.PEER
    advice = "the newest snapshot is intact; more time: --grace-seconds S"
    return outcome(word, evidence, rank=late[0], advice=advice)


def _first_failure(facts: Facts, bad: Mapping[int, Mapping[str, Any]], now: float, outcome: MakeOutcome) -> Outcome:
    told = {failure["rank"]: failure for failure in facts.failures}
    causes = [_cause(facts, rank, bad.get(rank, {}), told.get(rank, {}), now) for rank in sorted({*bad, *told})]
    if not facts.own and all(order[0] for order, _ in causes):
        causes += _untold_causes(facts, [rank for rank in facts.ranks if rank not in {*told, *facts.left}], now)
    (echo, *_), first = min(causes, key=lambda cause: cause[0])
    if echo and not facts.stop:
        first["meanwhile"] = _bystanders(
            facts, [rank for rank in facts.ranks if rank not in {*bad, *told}], first["time"]
        )
    if facts.stop and facts.saved is not None and first["evidence"] == KILLED:
        # Schedulers that take a machine back do not wait for a word of ours. A crash stays a crash.
        rank, intact = first["rank"], f"the snapshot of step {facts.saved} is intact"
        return outcome(facts.stop, f"{facts.signal}, while rank {rank} was killed (SIGKILL); {intact}", rank=rank)
    logs = logs_command(facts.run, first["rank"])
    advice = _other_store(first["evidence"], facts.store_port)
    return outcome(**first, advice=advice or _advice(first["word"], first["evidence"], facts.runtime, logs))


def _other_store(evidence: str, port: int) -> str:
    """What to do where a script waited for a store at another port than torchrun's; empty where it did not."""
    found = _STORE.search(evidence)
    if not (found and port) or int(found[2]) == port:
        return ""
    return f"the script {other_store(found[1], found[2], f'port {port}')}"


def _untold_causes(facts: Facts, ranks: Sequence[int], now: float) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Why ranks failed of which torchrun says nothing: one that closes its connections before it ends outlives its peers."""
    causes = []
    for rank in ranks:
        raised = read_final_traceback([*facts.last.get(rank, ())][-RECENT:], 1, facts.ended.get(rank))
        said = raised.evidence if raised else ""
        word = cause_of(said)
        if raised and word != Word.PEER and "killed by signal" not in said:
            cause = {"word": word, "evidence": said, "rank": rank, "time": now, "where": raised.where}
            causes.append(((False, False, False, False, True, now, rank), cause))
    return causes


def _cause(
    facts: Facts, rank: int, record: Mapping[str, Any], failure: Mapping[str, Any], now: float
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How one rank failed, with a key that orders causes before their consequences."""
    word = str(record.get("outcome"))
    word = word if word in CODES else Word.FAILED  # a file may be damaged
    exitcode = int(failure.get("exitcode", 1))
    if record:
        evidence, where = str(record.get("exception") or record.get("message") or ""), record.get("where")
        evidence += f"; {OUT_OF_MEMORY_BESIDE}" if facts.ooms else ""  # perhaps of a data loader
    else:
        killed = exitcode == -signal.SIGKILL
        raised = None if killed else read_final_traceback(facts.last.get(rank, ()), exitcode, facts.ended.get(rank))
        evidence, where = _status_text(exitcode, facts, rank, raised), raised.where if raised else None
        said = cause_of(evidence)
        # A script that lost a peer failed: what it does about that, and whether it can go on, is its own affair. One that waited
        # for it until the time was over, or whose NCCL gave up, could do nothing.
        word = said if facts.own or said != Word.PEER or is_remote(evidence) else Word.FAILED
        if facts.device == "cpu" and re.search(NO_DEVICE, evidence):
            word = Word.FAILED  # the launcher said at the start that there is none
    if not record and facts.own and (re.search(DISK_FULL, evidence) or NO_MORE_PROCESSES.search(evidence)):
        word = Word.UNHEALTHY  # the worker could not write down how it ended
    if facts.own and facts.run and re.search(rf"{DENIED}.*'{re.escape(str(facts.run))}/", evidence):
        word = Word.CONFIGURATION  # as where that is found before the start
    asked = {code for number in facts.numbers for code in (-number, 128 + number)}  # as shells count signals
    if not record and exitcode in asked:
        word, evidence, where = facts.stop, f"the script ended by {facts.signal}, as asked", None
    time = _time(record.get("time"), failure.get("time"), now)
    # A rank with a reason of its own explains those that only lost it, a signal from outside explains most, and
    # gloo aborts where something else went wrong before. Among those that only lost another, those that a retry may help decide,
    # whichever was read first.
    echo = word == Word.PEER or cause_of(evidence) == Word.PEER
    order = (
        echo,
        echo and word != Word.PEER,
        word == facts.stop,
        exitcode == -signal.SIGABRT,
        exitcode >= 0,
        time,
        rank,
    )
    return order, {"word": word, "evidence": evidence, "rank": rank, "time": time, "where": where}


def _time(*candidates: object) -> float:
    return next(float(value) for value in candidates if isinstance(value, int | float))


def _status_text(exitcode: int, facts: Facts, rank: int, raised: Raised | None) -> str:
    last = last_line(facts.last.get(rank, ()))
    said = f": {raised.evidence}" if raised else f"; it said last: {last}" if last else ""
    if exitcode >= 0:
        return f"exit code {exitcode}{said}"
    if exitcode == -signal.SIGKILL and facts.ooms:
        return OUT_OF_MEMORY
    if exitcode == -signal.SIGKILL:
        return KILLED
    return f"{signal_name(-exitcode)}{said}"


def _bystanders(facts: Facts, ranks: Sequence[int], time: float) -> str:
    """What those did that did not fail: where everybody else only lost one of them, one of them is the reason."""
    told = [_standing(facts, rank, time) for rank in ranks[:STANDING]]
    more = [f"so much for the first {STANDING} of ranks {rank_ranges(ranks)}"] if len(ranks) > STANDING else []
    return "; ".join([*told, *more])


def _standing(facts: Facts, rank: int, time: float) -> str:
    if rank in facts.left:
        return f"rank {rank} had left with 0, {apart(facts.left[rank], time)}"
    last = last_line(facts.printed.get(rank, ())) or last_line(facts.last.get(rank, ()))
    known = [facts.places.get(rank, ""), f"its last line was: {in_one_line(last)[:100]}" if last else ""]
    return ", ".join([f"rank {rank} had not ended", *filter(None, known)])


def _launcher_failure(facts: Facts, outcome: MakeOutcome) -> Outcome:
    if facts.stop and not facts.started:
        return outcome(facts.stop, f"{facts.signal} came before the workers had started")
    if facts.status == -signal.SIGKILL and facts.ooms:
        return outcome(Word.FAILED, OUT_OF_MEMORY, advice=_advice(Word.FAILED, OUT_OF_MEMORY, facts.runtime))
    if facts.status < 0:
        name = signal_name(-facts.status)
        return outcome(Word.FAILED, f"{facts.parent} was ended by {name}; its workers were ended, too")
    last = next((line for line in reversed(facts.agent_log.splitlines()) if line.strip()), "no message")
    if NO_MORE_PROCESSES.search(last):
        return outcome(Word.UNHEALTHY, f"{facts.parent}: {last.strip()}", advice=MORE_PROCESSES)
    unmet = not facts.started and ("Timeout" in facts.agent_log or "timed out" in facts.agent_log)
    return outcome(Word.PEER if unmet else Word.FAILED, f"{facts.parent} ended with {facts.status}: {last.strip()}")


def _advice(word: str, evidence: str, runtime: str, logs: str = "") -> str:
    if evidence.startswith("out of memory") or OUT_OF_MEMORY_BESIDE in evidence:
        return "give the container more memory, or use a smaller batch or fewer data-loader workers"
    if re.search(SMALL_SHM, evidence):
        return f"give /dev/shm more room: {advise('shared memory', runtime)}"
    if NO_MORE_PROCESSES.search(evidence):
        return MORE_PROCESSES
    if "OutOfMemoryError" in evidence:
        return "use a smaller batch (--batch-size), or a part of it at a time (--accumulate)"
    if word == Word.CONFIGURATION and re.search(NO_PYTHON, evidence):
        return "correct that line; every start would end there"
    if word == Word.CONFIGURATION and re.search(DENIED, evidence):
        return "let this user write to the run directory again (ls -ld), and go on with --resume auto"
    if re.search(DISK_BROKEN, evidence):
        return "look at this disk (mount, dmesg): it is read-only or broken; the job can go on elsewhere with --resume auto"
    if re.search(DISK_FULL, evidence):
        return "free some space; the newest snapshot is intact"
    if "Duplicate GPU" in evidence:
        return "NCCL wants a GPU for each process: fewer of them (--nproc-per-node), or --backend gloo"
    if re.search(NO_INTERFACE, evidence):
        return "name a network interface of this node in NCCL_SOCKET_IFNAME (`ip -brief address` shows them), or none"
    if re.search(DRIVER_TOO_OLD, evidence):
        return f"update the host's NVIDIA driver: CUDA 12 needs {OLDEST_DRIVER} or newer, and `nvidia-smi` shows which it is"
    if word == Word.PEER:
        seen = f" (`{logs}`)" if logs else ""
        return f"look at what was lost{seen}; the job can be started again with --resume auto"
    if word == Word.UNHEALTHY:
        return "look at this node (`slipway check --local`, nvidia-smi, dmesg); the job can go on elsewhere with --resume auto"
    return f"see all that it printed: `{logs}`" if word == Word.FAILED and logs else ""


def count_ooms(root: Path = Path("/")) -> int:
    """Return how many processes of this cgroup the kernel killed for lack of memory so far (cgroup v2 and v1).

    Never raises: 0 where the kernel's files cannot be read, or went away.
    """
    with suppress(OSError):
        for folder in cgroup_folders(root, "memory"):
            for name in ("memory.events", "memory.oom_control"):
                for line in read_kernel_file(folder / name).splitlines():
                    key, _, count = line.partition(" ")
                    if key == "oom_kill" and count.isdigit():
                        return int(count)
    return 0
