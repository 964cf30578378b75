"""Whether a job hangs, and which ranks it waits for: by where its ranks are (`find_hang`, reported by `HangReport`), and by their
heartbeats (`HangDetector`).

A process group numbers its collectives, and all its ranks begin them in the same order. So it shows who waits for whom
(waiting.py), and who began different things under the same number. What torch's flight recorder does not see (send and recv,
monitored_barrier, new_group on gloo) shows in the stacks.
"""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from slipway.launch.hangs.stack_dump import Call, StackDump, clock
from slipway.launch.hangs.waiting import Blame, Fault, WaitGraph
from slipway.launch.hangs.watch import Stillness
from slipway.launch.run_directory.node_directory import Beat
from slipway.launch.verdict.cause import Cause, CauseKind
from slipway.launch.verdict.verdict import Outcome
from slipway.process.machine import CLOCK, Clock
from slipway.process.tree import STATES
from slipway.protocol.files import HANG_FILE, own_file, write_passing_json
from slipway.protocol.outcomes import Word
from slipway.protocol.phases import BEFORE_FIRST_STEP, Phase
from slipway.protocol.printable import rank_ranges

# Takes where this launcher's ranks stand (None: they move), and returns where all ranks do once all stand still, to the one that
# judges.
Compare = Callable[[Sequence[StackDump] | None], Sequence[StackDump] | None]
MOST = 4  # ranks that are described each by itself


@dataclass(frozen=True)
class Hang:
    """What a job that makes no progress waits for. `ranks`: those at fault, none where all do the same; `text`: a sentence."""

    ranks: tuple[int, ...]
    text: str
    waiting: int | None = None  # one of those that wait
    among: tuple[int, ...] = ()  # where no rank is known to be at fault: those whose GPUs or links are


def find_hang(dumps: Sequence[StackDump]) -> Hang | None:
    """Which ranks keep the others waiting, by where all ranks are; None where none waits in a collective."""
    by_rank = {dump.rank: dump for dump in sorted(dumps, key=lambda dump: dump.rank)}
    waits = {rank: one for rank, one in by_rank.items() if one.pending or one.waits_in}
    if not waits:
        return None
    waiting = WaitGraph(by_rank)
    return (
        _astray(by_rank)
        or _different(by_rank, waiting)
        or _blamed(by_rank, waiting)
        or _unrecorded(by_rank, waits)
        or _all_alike(by_rank, waits, waiting)
    )


def _astray(by_rank: Mapping[int, StackDump]) -> Hang | None:
    """Ranks that wait for a store that is not torchrun's, where nothing answers."""
    astray = [rank for rank, one in by_rank.items() if one.store]
    if not astray:
        return None
    text = (
        f"{_ranks(astray, by_rank)} cannot join the others: the script {by_rank[astray[0]].store}; "
        f"{_places(astray, by_rank)}"
    )
    return Hang(tuple(astray), text, next((rank for rank in by_rank if rank not in astray), None))


def _blamed(by_rank: Mapping[int, StackDump], waiting: WaitGraph) -> Hang | None:
    """Ranks that others wait for, and that wait for none."""
    blames = [blame for blame in waiting.blames if blame.fault is not Fault.HELD]
    # Who waits in what no recorder sees is a link of a chain, not its end; of a rank that says nothing it is not known.
    idle = [rank for blame in blames for rank in blame.ranks if rank in waiting.heads or not by_rank[rank].waits_in]
    chosen = [rank for rank in idle if by_rank[rank].known] or idle
    circle = any(blame.fault is Fault.CIRCLE for blame in blames) or not chosen
    if chosen:
        blames = [replace(blame, ranks=found) for blame in blames if (found := _among(blame.ranks, chosen))]
    if not blames:
        return None
    more = f"; and {len(blames) - MOST} more" if len(blames) > MOST else ""
    text = "; and ".join(_sentence(blame, by_rank, waiting) for blame in blames[:MOST]) + more
    order = "the ranks wait for each other in different collectives: " if circle else ""
    ranks = tuple(dict.fromkeys(rank for blame in blames for rank in blame.ranks))
    return Hang(ranks, order + text, blames[0].waiting[0])


def _among(ranks: Sequence[int], chosen: Sequence[int]) -> tuple[int, ...]:
    return tuple(rank for rank in ranks if rank in chosen)


def _sentence(blame: Blame, by_rank: Mapping[int, StackDump], waiting: WaitGraph) -> str:
    """What is wrong with some ranks, who waits, and where they are."""
    have = "has" if len(blame.ranks) == 1 else "have"
    word = Fault.MISSING if blame.fault is Fault.CIRCLE else blame.fault
    since = f"{_count(blame.waiting)} been waiting since {clock(blame.call.since)}"
    return (
        f"{_ranks(blame.ranks, by_rank)} {have} {word} {blame.call}{_group(blame.call, by_rank, waiting)}; "
        f"{'others have' if blame.fault is Fault.BEHIND else since}; {_places(blame.ranks, by_rank)}"
    )


def _different(by_rank: Mapping[int, StackDump], waiting: WaitGraph) -> Hang | None:
    """Ranks that began different collectives, or sizes, as the same number: a desynchronised job."""
    entries = {
        rank: {(call.group, call.number): call for call in one.calls if call.peer is None}
        for rank, one in by_rank.items()
    }
    for name, number, _ in waiting.collectives():
        kinds: dict[tuple[str, str], list[int]] = {}
        for rank in waiting.members(name):
            if entry := entries[rank].get((name, number)):
                kinds.setdefault((entry.name, entry.shape if _must_agree(entry.name) else ""), []).append(rank)
        if len(kinds) > 1:
            fewest = min(map(len, kinds.values()))
            odd = [rank for ranks in kinds.values() if len(ranks) == fewest for rank in ranks]
            rows = "; ".join(
                f"{_ranks(ranks, by_rank)} {kind}{f' of {shape}' if shape else ''} ({by_rank[ranks[0]].place})"
                for (kind, shape), ranks in sorted(kinds.items(), key=lambda item: item[1][0])[:MOST]
            )
            call = next(entries[rank][name, number] for rank in odd)
            text = f"the ranks do not agree on collective #{number}{_group(call, by_rank, waiting)}: {rows}"
            return Hang(tuple(odd), text, next((rank for rank in waiting.members(name) if rank not in odd), None))
    return None


def _must_agree(name: str) -> bool:
    """Whether all ranks give a collective the same sizes."""
    return any(word in name for word in ("all_reduce", "allreduce", "broadcast", "all_gather", "allgather", "reduce"))


def _unrecorded(by_rank: Mapping[int, StackDump], waits: Mapping[int, StackDump]) -> Hang | None:
    """Some wait in what is not recorded, and others do not."""
    others = [rank for rank in by_rank if rank not in waits]
    inside = {rank: one for rank, one in waits.items() if one.waits_in and not one.pending}
    if not (others and inside):
        return None
    rank, one = next(iter(inside.items()))
    have = "has" if len(others) == 1 else "have"
    text = (
        f"{_ranks(others, by_rank)} {have} not reached {one.waits_in}(); {_count(list(inside))} been waiting in it; "
        f"{_places(others, by_rank)}"
    )
    return Hang(tuple(others), text, rank)


def _all_alike(by_rank: Mapping[int, StackDump], waits: Mapping[int, StackDump], waiting: WaitGraph) -> Hang:
    """All wait: for a process that is stopped, for each other, or for a kernel or the network."""
    odd = [rank for rank, one in by_rank.items() if one.state]
    if odd:
        keep = "keeps" if len(odd) == 1 else "keep"
        text = f"{_ranks(odd, by_rank)} {keep} the others waiting; {_places(odd, by_rank)}"
        return Hang(tuple(odd), text, next(iter(waits)))
    held = [blame for blame in waiting.blames if len(blame.ranks) < len(by_rank)]
    if held:
        text = "; and ".join(
            f"{_ranks(blame.ranks, by_rank)} have begun {blame.call}{_group(blame.call, by_rank, waiting)}, and it does not "
            f"end: a GPU or a link of theirs; {_places(blame.ranks, by_rank)}"
            for blame in held[:MOST]
        )
        return Hang((), text, held[0].waiting[0], tuple(dict.fromkeys(rank for blame in held for rank in blame.ranks)))
    rank, one = next(iter(waits.items()))
    what = str(one.pending[0]) if one.pending else f"{one.waits_in}()"
    text = f"all ranks wait, rank {rank} in {what}, but no data arrive: {_places(list(waits), by_rank)}"
    return Hang((), text, rank, tuple(waits))


def _places(ranks: Sequence[int], by_rank: Mapping[int, StackDump]) -> str:
    """Where some ranks are."""
    more = f" and {len(ranks) - MOST} more" if len(ranks) > MOST else ""
    return ", ".join(f"rank {rank} {by_rank[rank].place}" for rank in ranks[:MOST]) + more


def _ranks(ranks: Sequence[int], by_rank: Mapping[int, StackDump]) -> str:
    if len(ranks) == 1:
        return by_rank[ranks[0]].name
    return f"ranks {rank_ranges(ranks)}"


def _count(waiting: Sequence[int]) -> str:
    return f"rank {waiting[0]} has" if len(waiting) == 1 else f"{len(waiting)} ranks have"


def _group(call: Call, by_rank: Mapping[int, StackDump], waiting: WaitGraph) -> str:
    """Of which process group a collective is, where that is not the one of all ranks."""
    members = waiting.members(call.group)
    known = call.peer is not None or len(members) == len(by_rank)
    return "" if known else f" of the process group of ranks {rank_ranges(members)}"


def stacks_of(hang: Hang, dumps: Sequence[StackDump]) -> list[str]:
    """The stacks of one rank that waits and of those that it waits for, as lines."""
    by_rank = {one.rank: one for one in dumps}
    ranks = [*hang.ranks[:MOST], *([hang.waiting] if hang.waiting is not None else [])]
    return [line for rank in dict.fromkeys(ranks) for line in by_rank[rank].lines()]


BUSY = 0.05  # of a core: a rank that works so much may be waited for twice as long


class HangReport:
    """Whether the job hangs, by where all ranks are, judged for all nodes in one attempt: printed once, and kept in a file as
    long as it lasts. All moments are monotonic seconds.
    """

    def __init__(
        self,
        node_dir: Path,
        limit: float,
        say: Callable[[str], None],
        *,
        end: bool,
        on_hang: Callable[[str], None] = lambda hang: None,
        compare: Compare = lambda dumps: dumps,
        process: int | None = None,
        clock: Clock = CLOCK,
    ) -> None:
        """`limit`: the seconds of standstill after which a job hangs; `end`: whether one is ended; `on_hang` is called with its
        text; `compare` exchanges with other nodes where the ranks stand; `process`: the rank of the launcher's only one, where
        each has its own.
        """
        self._file, self._limit, self._say, self.end = own_file(node_dir, HANG_FILE, process), limit, say, end
        self._on_hang, self.compare, self._clock = on_hang, compare, clock
        self._since: float | None = None  # when all ranks were first known to stand still
        self._told = False
        self.stacks: tuple[str, ...] = ()  # of those that were reported

    def judge(self, everywhere: Sequence[StackDump] | None, now: float) -> Hang | None:
        """Take where all ranks are, None where some move; returns the hang that is reported now, if any."""
        if everywhere is None:
            self._since = None
            if self._told:
                self._told = False
                self.forget()
                self._say("progress has resumed: this was not a hang, or it is over")
            return None
        self._since = now if self._since is None else self._since
        hang = None if self._told else find_hang(everywhere)
        if hang is None:
            return None
        busy = any(one.cores >= BUSY for one in everywhere if one.rank in hang.ranks)
        if busy and now - self._since < self._limit:
            return None
        self._tell(hang, everywhere)
        return hang

    def _tell(self, hang: Hang, dumps: Sequence[StackDump]) -> None:
        self._told, self.stacks = True, tuple(stacks_of(hang, dumps))
        self._say(f"hang: {hang.text}")
        self._on_hang(f"hang: {hang.text}")
        for line in self.stacks:
            self._say(line)
        record = {"time": self._clock.time(), "text": hang.text, "ranks": list(hang.ranks), "stacks": list(self.stacks)}
        with suppress(OSError):  # a full disk is reported elsewhere
            write_passing_json(self._file, record)
        if not self.end:
            run = shlex.quote(str(self._file.parent.parent))
            self._say(f"the job is not stopped; `slipway stop {run}` stops it, and --on-hang end would have")
            self._say(f"all stacks: `slipway stacks {run}`")

    def outcome(self, hang: Hang, node_rank: int, host: str) -> Outcome:
        """How the attempt ends where the hang ends it, though this node's own ranks are through."""
        rank, cause = next(iter(hang.ranks), None), Cause(CauseKind.HANG, hang.text)
        return Outcome(node_rank, host, Word.PEER, self._clock.time(), rank, cause, stacks=self.stacks)

    def forget(self) -> None:
        """The hang is over, or the attempt."""
        with suppress(OSError):  # a disk that is away; the next start deletes the file
            self._file.unlink(missing_ok=True)


def _progress(beat: Beat) -> tuple[object, ...]:
    """What of a beat shows progress: nothing else of a rank that waits for data, which it reports again and again."""
    return (beat.phase, beat.step) if beat.phase == Phase.DATA else beat


def _order(beat: Beat) -> tuple[int, int, bool]:
    """The order in which ranks lag behind: of those at the same place, one that waits for data makes the others wait for it."""
    return beat.step, beat.beats, beat.phase != Phase.DATA


class HangDetector:
    """How long each rank of this node has stood still, by its heartbeats. A rank without one is in `setup`.

    Only changes count, and only time during which we polled: a clock that is set back or a container that was frozen is no hang.
    """

    def __init__(self, ranks: Iterable[int], limit: float, now: float, start: float | None = None) -> None:
        """`limit`: the seconds that phase `train` may stand still, 0 for any time; `now`: monotonic seconds. `start`: what takes
        the limit's place in phases before the first step is done, where that is another.
        """
        self._limit, self._start = limit, limit if start is None else start
        self._beats = {rank: Beat(rank) for rank in ranks}
        self._still = {rank: Stillness(now, 0.0, _progress(beat)) for rank, beat in self._beats.items()}

    def poll(self, beats: Mapping[int, Beat], now: float) -> None:
        """Take the newest beats, read at `now`."""
        self._beats |= {rank: beats[rank] for rank in self._beats.keys() & beats.keys()}
        for rank, beat in self._beats.items():
            self._still[rank].poll(_progress(beat), now)

    @property
    def hangs(self) -> bool:
        """Whether every rank has stood still for longer than its phase allows: one that works may be waited for."""
        return all(0 < self._allowed(beat) < self._still[rank].seconds for rank, beat in self._beats.items())

    def _allowed(self, beat: Beat) -> float:
        """Seconds that a rank may stand still there, 0 for any time."""
        return (self._start if beat.phase in BEFORE_FIRST_STEP else self._limit) * beat.phase.patience

    def started(self, step: int) -> bool:
        """Whether a rank took a step in this attempt. `step`: of the newest snapshot, where it began, or shortly before."""
        beats = [beat for beat in self._beats.values() if beat.phase not in BEFORE_FIRST_STEP]
        return any(beat.phase != Phase.DATA or beat.step > step for beat in beats)  # it waits for data before that, too

    def stragglers(self, state: Callable[[int], str]) -> tuple[Beat, ...]:
        """The ranks that the others wait for, if known, else all. `state`: a process's state, as a letter of /proc/PID/stat."""
        beats = tuple(self._beats.values())
        odd = tuple(beat for beat in beats if beat.pid and state(beat.pid) in STATES)
        least = min(map(_order, beats))
        return odd or tuple(beat for beat in beats if _order(beat) == least)

    def describe(self, behind: tuple[Beat, ...], state: Callable[[int], str]) -> str:
        """What shows the hang."""
        lines = []
        for beat in behind[:MOST]:
            how = STATES.get(state(beat.pid), "") if beat.pid else ""
            lines.append(
                f"rank {beat.rank} ({beat.place}, for {self._still[beat.rank].seconds:.0f} s{', ' if how else ''}{how})"
            )
        more = f" and {len(behind) - MOST} more" if len(behind) > MOST else ""
        who = (
            "no rank makes progress, and none is behind the others" if len(behind) == len(self._beats) > 1 else "behind"
        )
        return f"{who}: {'; '.join(lines)}{more}"
