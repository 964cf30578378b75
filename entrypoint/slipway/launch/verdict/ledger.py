"""The ledger of a job: each of its seconds is booked once, as one kind. Pure: moments come in, in seconds of one clock.

What a launcher saw of an attempt, and what the first of its ranks said of itself, become seconds of each kind.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, NamedTuple

from slipway.protocol.decoding import Between, MalformedError, decode, decode_known
from slipway.protocol.files import ATTEMPTS, RANKS, SECONDS
from slipway.protocol.phases import Phase


class Kind(StrEnum):
    """What a second of a job went into. The order is that of a job's life; those from `repeating` on are what restarts cost."""

    QUEUED = (
        "queued"  # between two starts of the launcher: in a scheduler's queue, or while a container is started again
    )
    WAITING = "waiting"  # for nodes, before the first attempt
    STARTING = "starting"  # from the launcher's start to the first step: processes, data, a snapshot
    COMPILING = "compiling"  # the first step
    TRAINING = "training"  # waiting for data is part of it
    RUNNING = "running"  # of a script: nobody knows what it does
    EVALUATING = "evaluating"
    SAVING = "saving"  # training stands still for a snapshot
    ENDING = "ending"  # from the last step to the verdict, where nothing failed
    REPEATING = "repeating"  # steps that an earlier attempt had done
    NOTICING = "noticing"  # from the last sign of life to the verdict on a failure
    PAUSING = "pausing"  # between two attempts
    REJOINING = "rejoining"  # waiting for nodes, between two attempts
    RESTARTING = "restarting"  # as `starting` and `compiling`, of a later attempt


KINDS = tuple(Kind)
COSTS = KINDS[KINDS.index(Kind.REPEATING) :]  # of restarts
WORK = (Kind.TRAINING, Kind.RUNNING)  # what a job is for
TOLD = 0.01  # of all seconds: what is less is not worth a word in a line
UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
MOST_WAITED = 8  # ranks that are written down, those that were waited for most
KIND_OF = {
    Phase.SETUP: Kind.STARTING,
    Phase.PREPARE: Kind.STARTING,
    Phase.LOAD: Kind.STARTING,
    Phase.FIRST_STEP: Kind.COMPILING,
    Phase.TRAIN: Kind.TRAINING,
    Phase.DATA: Kind.TRAINING,
    Phase.MEASURE: Kind.TRAINING,
    Phase.EVALUATE: Kind.EVALUATING,
    Phase.SAVE: Kind.SAVING,
    Phase.FINISH: Kind.ENDING,
}


@dataclass(frozen=True)
class Waited:
    """For how many seconds of training all others waited for a rank. ValueError for numbers that no job has."""

    rank: int
    seconds: float

    def __post_init__(self) -> None:
        """Keep what others say possible."""
        if not 0 <= self.rank < RANKS or not 0 <= self.seconds <= SECONDS:
            raise ValueError("impossible wait")


@dataclass(frozen=True)
class Ledger:
    """Seconds in the order of KINDS, over how many `attempts`; `until` is when it was written (Unix seconds), `waited` what of
    the training was waiting for single ranks. It travels between launchers: ValueError for numbers that no job has.
    """

    seconds: tuple[float, ...] = (0.0,) * len(KINDS)
    attempts: int = 0
    until: float = 0.0
    waited: tuple[Waited, ...] = ()

    def __post_init__(self) -> None:
        """Keep what others say possible."""
        if len(self.seconds) != len(KINDS) or not all(0 <= one <= SECONDS for one in (*self.seconds, self.until)):
            raise ValueError("impossible seconds")
        if not 0 <= self.attempts <= ATTEMPTS:
            raise ValueError("impossible attempts")
        if len(self.waited) > MOST_WAITED:
            raise ValueError("impossible waits")

    def __getitem__(self, kind: Kind) -> float:
        """The seconds of a kind."""
        return self.seconds[KINDS.index(kind)]

    @property
    def wall(self) -> float:
        """All seconds since the job began."""
        return sum(self.seconds)

    @property
    def restarts(self) -> int:
        """How often it was started again."""
        return max(0, self.attempts - 1)

    @property
    def written(self) -> "Ledger":
        """The ledger as it is written down, so that all who tell it say the same."""
        return replace(
            self,
            seconds=tuple(round(one, 2) for one in self.seconds),
            waited=tuple(Waited(each.rank, round(each.seconds, 2)) for each in self.waited),
        )

    def book(self, parts: Mapping[Kind, float]) -> "Ledger":
        """The ledger with these seconds, too."""
        return replace(self, seconds=tuple(self[kind] + max(0.0, parts.get(kind, 0.0)) for kind in KINDS))

    def wait_for(self, waited: Mapping[int, float]) -> "Ledger":
        """The ledger with these seconds of waiting for ranks, too."""
        known = {each.rank: each.seconds for each in self.waited}
        whole = {rank: known.get(rank, 0.0) + waited.get(rank, 0.0) for rank in known.keys() | waited}
        most = sorted(whole.items(), key=lambda item: (-item[1], item[0]))[:MOST_WAITED]
        return replace(self, waited=tuple(Waited(rank, min(max(seconds, 0.0), SECONDS)) for rank, seconds in most))


NOTHING = Ledger()  # is booked yet


@dataclass(frozen=True)
class Seen:
    """What was seen of an attempt. The launcher: when it began, when its workers had `started`, when it `noticed` that they are
    to end, and when they had `ended`. Of the first of its ranks: when it `spoke` last, seconds `spent` in each phase until then,
    the step that it went on from (`first`), the highest that it `reached`, and the highest of all attempts `before`; for how long
    it made steps `again` as it had gone back itself, and `waited` for single ranks.
    """

    begun: float
    ended: float
    builtin: bool = True
    started: float | None = None
    noticed: float | None = None
    spoke: float | None = None
    spent: Mapping[Phase, float] = field(default_factory=dict)
    first: int = 0
    reached: int = 0
    before: int = 0
    again: float = 0.0
    waited: Mapping[int, float] = field(default_factory=dict)


def book_attempt(seen: Seen, *, good: bool, again: bool) -> dict[Kind, float]:
    """The seconds of an attempt by kind, which are all that it lasted. `good`: it ended as asked; `again`: it is not the job's
    first.
    """
    parts, last = _by_phases(seen) if seen.builtin and seen.spoke is not None else _by_moments(seen)
    _add(parts, Kind.ENDING if good else Kind.NOTICING, seen.ended - last)
    if again:
        _add(parts, Kind.RESTARTING, parts.pop(Kind.STARTING, 0.0) + parts.pop(Kind.COMPILING, 0.0))
    booked = sum(parts.values())  # clocks of two processes may differ by a little
    return {kind: part * (seen.ended - seen.begun) / booked for kind, part in parts.items()} if booked else parts


def _by_phases(seen: Seen) -> tuple[dict[Kind, float], float]:
    """The seconds until the last word of a rank, by what it said, and when that was."""
    spoke, parts = seen.spoke or 0.0, dict.fromkeys(KINDS, 0.0)
    for phase, seconds in seen.spent.items():
        _add(parts, KIND_OF[phase], seconds)
    _add(parts, Kind.STARTING, spoke - sum(seen.spent.values()) - seen.begun)
    done, known = seen.reached - seen.first, min(seen.before, seen.reached) - seen.first
    share = max(0, known) / done if done > 0 else 0.0  # steps take as long as each other
    again = min(seen.again, parts[Kind.TRAINING])
    again += (parts[Kind.TRAINING] - again) * share
    _add(parts, Kind.REPEATING, again)
    parts[Kind.TRAINING] -= again
    return parts, spoke


def _by_moments(seen: Seen) -> tuple[dict[Kind, float], float]:
    """The same by what the launcher alone saw, of a script, and of a rank that had not spoken yet."""
    last = seen.ended if seen.noticed is None else seen.noticed
    started = last if seen.builtin or seen.started is None else seen.started
    return {Kind.STARTING: max(0.0, started - seen.begun), Kind.RUNNING: max(0.0, last - started)}, last


def _add(parts: dict[Kind, float], kind: Kind, seconds: float) -> None:
    parts[kind] = parts.get(kind, 0.0) + max(0.0, seconds)


def ledger_line(ledger: Ledger) -> str:
    """A ledger in a line: `2 h 3 min (94.1 % training, 1.5 % saving; 11 restarts cost 3.2 %)`; empty where nothing is booked."""
    ledger = ledger.written
    if not ledger.wall:
        return ""
    work = Kind.RUNNING if ledger[Kind.RUNNING] > ledger[Kind.TRAINING] else Kind.TRAINING
    others = [kind for kind in KINDS if kind not in (work, *COSTS) and ledger[kind] >= TOLD * ledger.wall]
    parts = [f"{_share(ledger, kind)} {kind}" for kind in (work, *others)]
    parts[0] += "".join(f" ({text})" for text in waiting_texts(ledger))
    restarts = "1 restart" if ledger.restarts == 1 else f"{ledger.restarts} restarts"
    cost = f"; {restarts} cost {_share(ledger, *COSTS)}" if ledger.restarts else ""
    return f"{span(ledger.wall)} ({', '.join(parts)}{cost})"


def waiting_texts(ledger: Ledger) -> list[str]:
    """Whom the others waited for, and for which share of all seconds: `waiting for rank 3: 6.1 %`."""
    told = [each for each in ledger.waited if each.seconds >= TOLD * ledger.wall > 0]
    return [f"waiting for rank {each.rank}: {100 * each.seconds / ledger.wall:.1f} %" for each in told]


def _share(ledger: Ledger, *kinds: Kind) -> str:
    return f"{100 * sum(ledger[kind] for kind in kinds) / ledger.wall:.1f} %"


def span(seconds: float) -> str:
    """How long something took, for people, in its two largest units."""
    parts: list[str] = []
    left = round(seconds)
    for unit, size in UNITS:
        count, left = divmod(left, size)
        parts += [f"{count} {unit}"] if count or parts else []
    return " ".join(parts[:2]) or "0 s"


def ledger_json(ledger: Ledger) -> dict[str, object]:
    """How a ledger stands in JSON: all seconds, over how many attempts, and those of each kind that there is."""
    ledger = ledger.written
    kinds = {kind.value: ledger[kind] for kind in KINDS if ledger[kind]}
    waited = {"waited": {str(each.rank): each.seconds for each in ledger.waited}} if ledger.waited else {}
    return {
        "wall": round(ledger.wall, 2),
        "attempts": ledger.attempts,
        "until": ledger.until,
        "seconds": kinds,
        **waited,
    }


class LedgerRecord(NamedTuple):
    """A ledger as it is in a file."""

    seconds: Mapping[Kind, float]
    attempts: int = 0
    until: float = 0.0


class WaitedRecord(NamedTuple):
    """Its seconds of waiting, by rank."""

    waited: Mapping[int, Annotated[float, Between(0, SECONDS)]] = MappingProxyType({})


def ledger_of(record: object) -> Ledger | None:
    """The ledger that JSON describes; None where it makes no sense. Waits that make none are left out."""
    waited = decode_known(WaitedRecord, record) or WaitedRecord()
    waits = [Waited(rank, seconds) for rank, seconds in waited.waited.items() if rank < RANKS]
    try:
        found = decode(LedgerRecord, record)
        seconds = tuple(found.seconds.get(kind, 0.0) for kind in KINDS)
        return Ledger(seconds, found.attempts, found.until, tuple(waits[:MOST_WAITED]))
    except (MalformedError, ValueError):
        return None
