"""Whom a job that stands still waits for, from where its ranks stand. Pure.

A process group numbers its collectives, and all its ranks begin them in the same order. So the lowest number that somebody
waits in and others have not begun names those others; where nobody is missing, they began different things as the same number.
What torch's flight recorder does not see (send and recv, monitored_barrier, new_group on gloo) shows in the stacks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipway.launch.rank_ranges import rank_ranges
from slipway.launch.watch.standing import Call, Standing, clock

MOST = 4  # ranks that are described each by itself


@dataclass(frozen=True)
class Hang:
    """What a job that stands still waits for. `ranks`: the culprits, none where all do the same; `text`: a sentence."""

    ranks: tuple[int, ...]
    text: str
    waiting: int | None = None  # one of those that wait


def find_hang(standings: Sequence[Standing]) -> Hang | None:
    """Who keeps the others waiting, by where all ranks stand; None where nobody waits in a collective."""
    by_rank = {standing.rank: standing for standing in sorted(standings, key=lambda standing: standing.rank)}
    waits = {rank: one for rank, one in by_rank.items() if one.pending or one.waits_in}
    if not waits:
        return None
    return (
        _astray(by_rank)
        or _missing(by_rank)
        or _different(by_rank)
        or _unrecorded(by_rank, waits)
        or _all_alike(by_rank, waits)
    )


def _astray(by_rank: Mapping[int, Standing]) -> Hang | None:
    """Ranks that wait for a store that is not torchrun's: nobody answers there."""
    astray = [rank for rank, one in by_rank.items() if one.store]
    if not astray:
        return None
    text = (
        f"{_ranks(astray, by_rank)} cannot join the others: the script {by_rank[astray[0]].store}; "
        f"{_places(astray, by_rank)}"
    )
    return Hang(tuple(astray), text, next((rank for rank in by_rank if rank not in astray), None))


def _first_pending(by_rank: Mapping[int, Standing]) -> list[tuple[Call, list[int]]]:
    """Of each process group the first collective that somebody waits in, and who does; the oldest first."""
    found: dict[str, Call] = {}
    for one in by_rank.values():
        for call in one.pending:
            if call.group not in found or call.number < found[call.group].number:
                found[call.group] = call
    calls = sorted(found.values(), key=lambda call: call.since)
    return [
        (call, [rank for rank, one in by_rank.items() if any(_same(call, other) for other in one.pending)])
        for call in calls
    ]


def _same(call: Call, other: Call) -> bool:
    return (call.group, call.number) == (other.group, other.number)


def _members(call: Call, by_rank: Mapping[int, Standing]) -> list[int]:
    """The ranks of a collective's process group."""
    known = (group for one in by_rank.values() for group in one.groups if group.name == call.group and group.runs)
    told = next((group.ranks for group in known), None)
    return [rank for rank in by_rank if told is None or any(rank in run for run in told)]


def _missing(by_rank: Mapping[int, Standing]) -> Hang | None:
    """Ranks that have not begun what others wait in. Who waits elsewhere himself is a link of the chain, not its end."""
    chain: list[tuple[int, int, Hang]] = []
    for call, waiting in _first_pending(by_rank):
        missing = [rank for rank in _members(call, by_rank) if by_rank[rank].begun(call.group) < call.number]
        if not missing:
            continue
        ends = [rank for rank in missing if not (by_rank[rank].pending or by_rank[rank].waits_in)]
        ends = [rank for rank in ends if by_rank[rank].known] or ends
        have = "has" if len(ends or missing) == 1 else "have"
        text = (
            f"{_ranks(ends or missing, by_rank)} {have} not come to {call}{_group(call, by_rank)}, in which "
            f"{_count(waiting)} since {clock(call.since)}; {_places(ends or missing, by_rank)}"
        )
        hang = Hang(tuple(ends or missing), text, waiting[0])
        if ends:
            return hang
        chain.append((len(missing), -len(waiting), hang))
    if not chain:
        return None
    chain.sort(key=lambda link: link[:2])  # fewest are to blame for what most wait in
    first, *more = (hang for _, _, hang in chain)
    others = "; ".join(hang.text for hang in more[: MOST - 1])
    order = "the ranks wait for each other in different collectives: "
    return Hang(first.ranks, order + first.text + (f"; and {others}" if others else ""), first.waiting)


def _different(by_rank: Mapping[int, Standing]) -> Hang | None:
    """Ranks that began different collectives, or sizes, as the same number: a desynchronised job."""
    for call, waiting in _first_pending(by_rank):
        kinds: dict[tuple[str, str], list[int]] = {}
        for rank in _members(call, by_rank):
            if entry := by_rank[rank].entry(call.group, call.number):
                kinds.setdefault((entry.name, entry.shape if _must_agree(entry.name) else ""), []).append(rank)
        if len(kinds) > 1:
            ordered = sorted(kinds.items(), key=lambda item: (len(item[1]), -item[1][0]))
            odd = ordered[0][1]
            rows = "; ".join(
                f"{_ranks(ranks, by_rank)} {name}{f' of {shape}' if shape else ''} ({by_rank[ranks[0]].place})"
                for (name, shape), ranks in sorted(kinds.items(), key=lambda item: item[1][0])[:MOST]
            )
            text = f"the ranks do not agree on collective #{call.number}{_group(call, by_rank)}: {rows}"
            return Hang(tuple(odd), text, next((rank for rank in waiting if rank not in odd), None))
    return None


def _must_agree(name: str) -> bool:
    """Whether all ranks give a collective the same sizes."""
    return any(word in name for word in ("all_reduce", "allreduce", "broadcast", "all_gather", "allgather", "reduce"))


def _unrecorded(by_rank: Mapping[int, Standing], waits: Mapping[int, Standing]) -> Hang | None:
    """Some wait in what is not recorded, and others do not."""
    others = [rank for rank in by_rank if rank not in waits]
    inside = {rank: one for rank, one in waits.items() if one.waits_in and not one.pending}
    if not (others and inside):
        return None
    rank, one = next(iter(inside.items()))
    have = "has" if len(others) == 1 else "have"
    text = (
        f"{_ranks(others, by_rank)} {have} not come to {one.waits_in}(), in which {_count(list(inside))}; "
        f"{_places(others, by_rank)}"
    )
    return Hang(tuple(others), text, rank)


def _all_alike(by_rank: Mapping[int, Standing], waits: Mapping[int, Standing]) -> Hang:
    """All wait: for a process that stands still, for each other, or for the network."""
    odd = [rank for rank, one in by_rank.items() if one.state]
    if odd:
        keep = "keeps" if len(odd) == 1 else "keep"
        text = f"{_ranks(odd, by_rank)} {keep} the others waiting; {_places(odd, by_rank)}"
        return Hang(tuple(odd), text, next(iter(waits)))
    rank, one = next(iter(waits.items()))
    what = str(one.pending[0]) if one.pending else f"{one.waits_in}()"
    text = f"all ranks wait, rank {rank} in {what}, and nothing gets through: {_places(list(waits), by_rank)}"
    return Hang((), text, rank)


def _places(ranks: Sequence[int], by_rank: Mapping[int, Standing]) -> str:
    """Where some ranks stand."""
    if len(ranks) == 1:
        return f"it {by_rank[ranks[0]].place}"
    more = f" and {len(ranks) - MOST} more" if len(ranks) > MOST else ""
    return ", ".join(f"rank {rank} {by_rank[rank].place}" for rank in ranks[:MOST]) + more


def _ranks(ranks: Sequence[int], by_rank: Mapping[int, Standing]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} (node {by_rank[ranks[0]].node_rank})"
    return f"ranks {rank_ranges(ranks)}"


def _count(waiting: Sequence[int]) -> str:
    return f"rank {waiting[0]} waits" if len(waiting) == 1 else f"{len(waiting)} ranks wait"


def _group(call: Call, by_rank: Mapping[int, Standing]) -> str:
    """Of which process group a collective is, where that is not the one of all ranks."""
    members = _members(call, by_rank)
    return "" if len(members) == len(by_rank) else f" of the process group of ranks {rank_ranges(members)}"


def stacks_of(hang: Hang, standings: Sequence[Standing]) -> list[str]:
    """The stacks of one rank that waits and of those that it waits for, as lines."""
    by_rank = {one.rank: one for one in standings}
    ranks = [*hang.ranks[:MOST], *([hang.waiting] if hang.waiting is not None else [])]
    return [line for rank in dict.fromkeys(ranks) for line in by_rank[rank].lines()]
