"""Where the time of traced steps went: the operators that took most, and communication that training waited for."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipway.inspect.trace_events import (
    CALLS,
    KERNELS,
    STEP,
    Spans,
    common,
    exchanges_values,
    is_in_flight,
    is_nccl,
    length,
    of_kind,
    union,
    without,
)
from slipway.protocol.printable import counted

SHOWN, RANKS_SHOWN = 10, 16  # rows
NAME = 64  # characters of an operator's name


@dataclass(frozen=True)
class RankSummary:
    """The steps of one rank, in microseconds: how long they took, each operator's own time and calls, communication."""

    rank: int
    steps: int
    span: float
    on_gpu: bool
    operators: Mapping[str, tuple[float, int]]
    communication: float
    hidden: float  # of that, the part beside which something was computed

    @property
    def exposed(self) -> float:
        """The part of communication in which nothing was computed."""
        return self.communication - self.hidden


def summarise(rank: int, events: Sequence[Mapping[str, Any]]) -> RankSummary:
    """What the events of one rank come to."""
    steps = [event for event in of_kind(events, "user_annotation") if event["name"].startswith(STEP)]
    kernels = list(of_kind(events, *KERNELS))
    flying = [event for event in events if is_in_flight(event)]
    if kernels:
        operators = own_times(event for event in kernels if not is_nccl(event))
        computing = union(span_of(event) for event in kernels if not is_nccl(event))
        talking = [span_of(event) for event in kernels if is_nccl(event)]
        # What NCCL does is its kernels; gloo has none.
        talking += [span_of(event) for event in flying if not is_nccl(event) and exchanges_values(event)]
        whole = union(span_of(event) for event in kernels)
        span = whole[-1][1] - whole[0][0] if whole else 0.0
    else:
        calls = [event for event in of_kind(events, "cpu_op") if not is_in_flight(event)]
        operators = own_times(calls)
        operators = {name: own for name, own in operators.items() if not name.startswith(CALLS)}
        computing = computed(calls)
        talking = [span_of(event) for event in flying if exchanges_values(event)]
        span = 0.0
    communication = union(talking)
    span = max(span, length(union(map(span_of, steps))))
    hidden = length(common(communication, computing))
    return RankSummary(rank, len(steps), span, bool(kernels), operators, length(communication), hidden)


def span_of(event: Mapping[str, Any]) -> tuple[float, float]:
    """From when to when."""
    return event["ts"], event["ts"] + event["dur"]


def computed(calls: Iterable[Mapping[str, Any]]) -> Spans:
    """When operators ran on a CPU, without those that begin a collective or wait for one."""
    threads: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for event in calls:
        threads[event.get("pid"), event.get("tid")].append(event)
    return union(
        span
        for events in threads.values()
        for span in without(
            union(map(span_of, events)), union(span_of(event) for event in events if event["name"].startswith(CALLS))
        )
    )


def own_times(events: Iterable[Mapping[str, Any]]) -> dict[str, tuple[float, int]]:
    """The time of each operator without those that it calls, and how often it ran."""
    found: dict[str, tuple[float, int]] = {}
    threads: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for event in events:
        threads[event.get("pid"), event.get("tid")].append(event)

    def add(name: str, time: float, calls: int) -> None:
        before = found.get(name, (0.0, 0))
        found[name] = before[0] + time, before[1] + calls

    for thread in threads.values():
        callers: list[Mapping[str, Any]] = []
        for event in sorted(thread, key=lambda one: (one["ts"], -one["dur"])):
            while callers and span_of(callers[-1])[1] <= event["ts"]:
                callers.pop()
            add(event["name"], event["dur"], 1)
            if callers:  # what lasts longer than its caller, by a rounding, is no more of it than fits
                add(callers[-1]["name"], -min(event["dur"], span_of(callers[-1])[1] - event["ts"]), 0)
            callers.append(event)
    return found


def table(summaries: Sequence[RankSummary]) -> Iterator[str]:
    """The summaries of all ranks as lines."""
    if not summaries:
        return
    steps = max(1, *(one.steps for one in summaries))
    spans = sorted(one.span / steps for one in summaries)
    yield f"a step took {spans[len(spans) // 2] / 1e3:.4g} ms"
    totals: dict[str, tuple[float, int]] = {}
    for one in summaries:
        for name, (time, calls) in one.operators.items():
            before = totals.get(name, (0.0, 0))
            totals[name] = before[0] + time, before[1] + calls
    whole, share = sum(time for time, _ in totals.values()), steps * len(summaries)
    rows = sorted(totals.items(), key=lambda row: -row[1][0])[:SHOWN]
    where = "kernels" if any(one.on_gpu for one in summaries) else "operators"
    width = max([len(where), *(len(short(name)) for name, _ in rows)])
    yield f"  {where:<{width}}  {'own ms a step':>13}  {'calls':>7}  share"
    for name, (time, calls) in rows:
        part = time / whole if whole else 0.0
        yield f"  {short(name):<{width}}  {time / share / 1e3:>13.4g}  {calls / share:>7.4g}  {part:>5.1%}"
    yield from communication_table(summaries, steps)


def short(name: str) -> str:
    """A name as it fits into the table; a kernel's carries its template's arguments."""
    return name if len(name) <= NAME else f"{name[: NAME - 1]}…"


def communication_table(summaries: Sequence[RankSummary], steps: int) -> Iterator[str]:
    """By rank: how long it communicated, and for how much of that it computed nothing. The worst where they are many."""
    if not any(one.communication for one in summaries):
        yield "  no communication"
        return
    worst = sorted(summaries, key=lambda one: -one.exposed)[:RANKS_SHOWN]
    yield f"  {'rank':>5}  {'communication ms a step':>23}  {'hidden':>8}  {'exposed':>8}  of the step"
    for one in sorted(worst, key=lambda one: one.rank):
        numbers = [f"{value / steps / 1e3:.4g}" for value in (one.communication, one.hidden, one.exposed)]
        part = one.exposed / one.span if one.span else 0.0
        yield f"  {one.rank:>5}  {numbers[0]:>23}  {numbers[1]:>8}  {numbers[2]:>8}  {part:>11.1%}"
    if len(worst) < len(summaries):
        yield f"  and {counted(len(summaries) - len(worst), 'more rank')}, with shorter waits"
