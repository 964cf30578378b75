"""Whether a run that was killed did the same as one that was not, by the events of both, and where to kill it. Pure.

The events of a rank are divided at its boundaries: an attempt resumes at one of them, and repeats what came after it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from slipway.protocol.proof import ELSEWHERE, Event, EventKind, EventMoment

Events = Mapping[int, Sequence[Sequence[Event]]]  # by rank and attempt
CLEAR = ("epochs", "steps")  # loops of which it is known where they begin
DERIVED = (
    EventKind.FORWARD,
    EventKind.OUTPUT,
    EventKind.LOG,
    EventKind.BOUNDARY,
)  # events that other bits of the gradients change
PARAMETERS = "parameters"  # of an optimizer, which belong to no module
FIRST, WITHIN, BETWEEN, VALIDATION = "in the first step", "within an epoch", "between epochs", "in a validation"
MOMENTS = (FIRST, VALIDATION, BETWEEN, WITHIN)  # of kills, the rare ones first


@dataclass
class Interval:
    """What a rank did between two boundaries, and its states at the first of these; None where an attempt resumed at it."""

    at: str
    boundary: Event | None = None
    events: list[Event] = field(default_factory=list)

    @property
    def place(self) -> dict[str, Any]:
        """The position of the first boundary."""
        return dict(json.loads(self.at))


@dataclass
class RankAttempt:
    """What a rank did in an attempt, and its states where its loop began or resumed."""

    begin: Event
    intervals: list[Interval]

    @property
    def last(self) -> Event:
        """The states at the last boundary."""
        return next((each.boundary for each in reversed(self.intervals) if each.boundary), self.begin)

    def states_at(self, at: str) -> Event | None:
        """The states at a boundary, or where the loop began."""
        found = next((each.boundary for each in self.intervals if each.at == at), None)
        return found or (self.begin if self.begin.at == at else None)


class EventDifference(NamedTuple):
    """Where an attempt did not repeat an undisturbed run: at which interval and event of that, on which rank, in which attempt;
    both events, None where one has none; and which of their values differ.
    """

    interval: int
    number: int
    rank: int
    attempt: int
    expected: Event | None
    found: Event | None
    names: tuple[str, ...] = ()

    @property
    def step(self) -> int:
        """The step in which it is, counted from 1."""
        event = self.expected or self.found
        return event.step if event else 0


class LostObject(NamedTuple):
    """An object that was not restored. `sort`: model, optimizer, scheduler, generator, other; or PARAMETERS."""

    name: str
    kind: str
    where: str
    passed: bool
    sort: str


class Kill(NamedTuple):
    """A kill: after which interval, of which rank at which event, in which step (counted from 1), what kind of moment that is."""

    interval: int
    moment: EventMoment
    step: int
    kind: str


def divide(events: Sequence[Event]) -> RankAttempt | None:
    """Return an attempt; None if its loop never began. What came before it began does not count."""
    begins = [number for number, event in enumerate(events) if event.kind == EventKind.BEGIN]
    if not begins:
        return None
    begin = events[begins[-1]]
    intervals = [Interval(begin.at)]
    for event in events[begins[-1] + 1 :]:
        if event.at != intervals[-1].at:
            intervals.append(Interval(event.at))
        if event.kind == EventKind.BOUNDARY:
            intervals[-1].boundary = event
        else:
            intervals[-1].events.append(event)
    return RankAttempt(begin, intervals)


def undisturbed(run: Events) -> dict[int, RankAttempt]:
    """Return what each rank of a run without kills did."""
    return {rank: attempt for rank, attempts in run.items() if (attempt := divide(attempts[0]))}


def owner(entry: str, objects: Iterable[str]) -> str:
    """Return the name of the object that an entry of the states belongs to; an empty one if there is none."""
    return max((name for name in objects if entry == name or entry.startswith(f"{name}.")), key=len, default="")


def differing(one: Event, other: Event) -> tuple[str, ...]:
    """Return the names of the values that differ; of states, those of objects that both have."""
    left, right = dict(one.values), dict(other.values)
    if one.kind in (EventKind.BEGIN, EventKind.BOUNDARY):
        both = one.facts["objects"].keys() & other.facts["objects"].keys()
        left, right = ({name: value for name, value in each.items() if owner(name, both)} for each in (left, right))
    return tuple(name for name in {**left, **right} if left.get(name) != right.get(name))


def compare(reference: Events, repeated: Events, *, exact: bool = True) -> EventDifference | None:
    """The first difference from an undisturbed run, if any; `exact=False` ignores values that other gradient bits change."""
    return min(first_of_ranks(reference, repeated, exact).values(), key=lambda each: each[:3], default=None)


def first_of_ranks(reference: Events, repeated: Events, exact: bool) -> dict[int, EventDifference]:
    """Return the first difference of each rank that has one."""
    found = {}
    for rank, whole in undisturbed(reference).items():
        attempts = [divide(events) for events in repeated.get(rank, ())]
        differences = differences_of(rank, whole, attempts, exact)
        if first := min(differences, key=lambda each: each[:2], default=None):
            found[rank] = first
    return found


def differences_of(
    rank: int, whole: RankAttempt, attempts: Sequence[RankAttempt | None], exact: bool
) -> Iterator[EventDifference]:
    """Yield the first difference of each attempt, and what is missing at the end."""
    order = {each.at: number for number, each in enumerate(whole.intervals)}
    last = next((each for each in reversed(attempts) if each), whole)
    # An object that was not passed may be made again before it is used: it counts if it still differs at the end.
    lasting = set(differing(whole.last, last.last)) if last.last.at == whole.last.at else set()
    for number, attempt in enumerate(attempts):
        loop = attempt.begin.facts["loop"] if attempt else ""
        for interval in attempt.intervals[number > 0 and loop == ELSEWHERE :] if attempt else ():
            if interval.at not in order:
                step = interval.place["step"]
                place = sum(each.place["step"] <= step for each in whole.intervals)
                yield EventDifference(
                    place, 0, rank, number, None, interval.boundary or next(iter(interval.events), None)
                )
                break
            resumed = (
                attempt is not None and interval is attempt.intervals[0] and attempt.begin.facts["loop"] not in CLEAR
            )
            killed = attempt is not None and interval is attempt.intervals[-1] and number < len(attempts) - 1
            place = order[interval.at]
            found = first_in(whole.intervals[place], interval, exact, lasting, resumed, killed)
            if found:
                yield EventDifference(place, found[0], rank, number, *found[1:])
                break
    missing = whole.intervals[order.get(last.intervals[-1].at, len(order)) + 1 :]
    if missing:
        expected = missing[0].boundary or next(iter(missing[0].events), None)
        yield EventDifference(order[missing[0].at], 0, rank, len(attempts) - 1, expected, None)


def first_in(
    expected: Interval, found: Interval, exact: bool, lasting: set[str], resumed: bool, killed: bool
) -> tuple[int, Event | None, Event | None, tuple[str, ...]] | None:
    """Return the first difference in an interval: the number of the event, both events, the names of values.

    `lasting`: what differs at the end; `resumed`: it is unknown where in it the loop resumed; `killed`: it was broken off.
    """
    if exact and expected.boundary and found.boundary:
        objects = found.boundary.facts["objects"]
        names = differing(expected.boundary, found.boundary)
        if names := tuple(name for name in names if name in lasting or objects[owner(name, objects)][2]):
            return -1, expected.boundary, found.boundary, names
    left, right = (training(each.events) if resumed else each.events for each in (expected, found))
    for number, (one, other) in enumerate(zip(left, right, strict=False)):
        names = differing(one, other) if exact or one.kind not in DERIVED else ()
        if names or (one.kind, one.facts, one.validates) != (other.kind, other.facts, other.validates):
            return number, one, other, names
    if len(left) < len(right):
        return len(left), None, right[len(left)], ()
    return (len(right), left[len(right)], None, ()) if len(right) < len(left) and not killed else None


def training(events: Sequence[Event]) -> Sequence[Event]:
    """Return the events from the first one that trains."""
    trains = (number for number, each in enumerate(events) if not each.validates and each.kind != EventKind.LOG)
    return events[next(trains, len(events)) :]


# Why


def find_lost(reference: Events, repeated: Events, first: EventDifference) -> list[LostObject]:
    """Return the objects that an attempt with a difference did not have as they were at the boundary where it resumed.

    What is as it should be at the next boundary was restored in the meantime: generators of loaders with the first batch.
    """
    whole, attempt = divide(reference[first.rank][0]), divide(repeated[first.rank][first.attempt])
    then = whole.states_at(attempt.begin.at) if whole and attempt else None
    if whole is None or attempt is None or then is None or attempt.begin.facts["loop"] == ELSEWHERE:
        return []
    objects, order = attempt.begin.facts["objects"], {each.at: number for number, each in enumerate(whole.intervals)}
    names = differing(then, attempt.begin)
    owners = {owner(name, objects) for name in names}
    later = next((each.boundary for each in attempt.intervals if each.boundary and each.at in order), None)
    if later and (expected := whole.states_at(later.at)):
        still = {owner(name, objects) for name in differing(expected, later)}
        led_to_it = order[later.at] > first.interval  # then they may have been restored after the difference
        owners = {name for name in owners if name in still or (led_to_it and objects[name][3] != "generator")}
    own = {name for name in owners if any(each.startswith(f"{name}.params.") for each in names)}  # see state_of
    found = (LostObject(name, *objects[name][:4]) for name in objects if name in owners)
    return [each._replace(sort=PARAMETERS) if each.name in own else each for each in found]


def find_values(reference: Events, repeated: Events, first: EventDifference) -> list[str]:
    """Return the plain values of the script that began again in an attempt with a difference, with the lines that set them.

    What is as it should be at the next boundary was set in the meantime. What differs between two first starts is no such value.
    """
    whole, attempt = divide(reference[first.rank][0]), divide(repeated[first.rank][first.attempt])
    earlier = divide(repeated[first.rank][0])
    then = whole.states_at(attempt.begin.at) if whole and attempt else None
    if whole is None or attempt is None or earlier is None or then is None or first.attempt == 0:
        return []
    later = next((each.boundary for each in attempt.intervals if each.boundary), None)
    pairs = [(then, attempt.begin)]
    if later and (expected := whole.states_at(later.at)):
        pairs.append((expected, later))
    lost = set.intersection(*(other_values(*each) for each in pairs)) - other_values(whole.begin, earlier.begin)
    where = attempt.begin.facts.get("where", {})
    names = [name for name in attempt.begin.facts.get("script", {}) if name in lost]
    return [f"{name} ({where[name]})" if name in where else name for name in names]


def other_values(one: Event, other: Event) -> set[str]:
    """Return the names of the script's plain values that both have, and that differ."""
    left, right = (each.facts.get("script", {}) for each in (one, other))
    return {name for name in left.keys() & right.keys() if left[name] != right[name]}


def find_drawn(reference: Events, repeated: Events, first: EventDifference) -> list[str]:
    """Return the global random generators whose state differs at the first event of the attempt that has the difference.

    One that nobody seeds differs from the beginning, and explains nothing.
    """
    found = [drawn_at_begin(reference[first.rank][0], repeated[first.rank][each]) for each in (0, first.attempt)]
    return [name for name in found[1] if first.attempt == 0 or name not in found[0]]


def drawn_at_begin(reference: Sequence[Event], repeated: Sequence[Event]) -> list[str]:
    """Return the global random generators whose state differs at the first event of an attempt."""
    whole, attempt = divide(reference), divide(repeated)
    if whole is None or attempt is None:
        return []
    resumed = next((each.events for each in whole.intervals if each.at == attempt.begin.at), [])
    for one, other in zip(training(resumed), training(attempt.intervals[0].events), strict=False):
        return [name for name, state in one.random.items() if other.random.get(name) != state]
    return []


# Where to kill


def choose_kills(reference: Events, count: int, dice: random.Random) -> list[Kill]:
    """Return kills in the order of the run: one at a moment of each kind, if the run has such moments.

    The others, and the one within an epoch, are in the second half, where what is counted by epochs has moved on.
    """
    possible = [kill for rank, attempt in undisturbed(reference).items() for kill in moments_of(rank, attempt)]
    middle = max((kill.interval for kill in possible), default=0) / 2
    chosen: list[Kill] = []
    for number in range(count):
        taken = {kill.interval for kill in chosen}
        left = [kill for kill in possible if kill.interval not in taken]
        late = [kill for kill in left if kill.interval >= middle]
        kind = MOMENTS[number] if number < len(MOMENTS) else WITHIN
        fitting = [kill for kill in (late if kind == WITHIN else left) if kill.kind == kind] or late or left
        if fitting:
            chosen.append(dice.choice(fitting))
    return sorted(chosen)


def moments_of(rank: int, attempt: RankAttempt) -> Iterator[Kill]:
    """Yield all moments at which a rank can be killed."""
    begun = [next((event for event in each.events if event.validates), None) for each in attempt.intervals]
    teaches = 2 * sum(event is not None for event in begun) > len(begun)  # a frozen teacher computes in each step
    last = attempt.last.step - 2  # a run that resumes later could not stop at the same step
    for number, interval in enumerate(attempt.intervals):
        before = attempt.intervals[max(0, number - 1)].place
        for event in interval.events if interval.place["step"] <= max(0, last) else ():
            kind = FIRST if number == 0 else WITHIN
            if number and event is begun[number] and not teaches:
                kind = VALIDATION
            elif number and event is interval.events[0] and interval.place.get("epoch") != before.get("epoch"):
                kind = BETWEEN
            yield Kill(number, EventMoment(rank, event.at, event.number), event.step, kind)
