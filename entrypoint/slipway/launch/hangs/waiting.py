"""Who waits for whom in a job that stands still, by what its ranks' recorders hold. Pure. Rule and reasons: docs/hangs.md.

Hosts begin collectives ahead of their GPUs, so at a hang a rank has many that are begun and not done. Of each process group it
waits in the oldest one, and for those that have not begun it, or whose GPU has not come so far. Whoever is waited for and waits
for nobody keeps the job waiting.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum

from slipway.launch.hangs.stack_dump import Call, StackDump

# A collective: its process group, its number, -1. A send and its recv: their group, the sender, the receiver.
Operation = tuple[str, int, int]
Node = int | Operation | tuple[Operation]  # a rank, what it waits in, and what it waits in before anything else
Graph = Mapping[Node, Sequence[Node]]


class Fault(StrEnum):
    """What is wrong with ranks that others wait for, as people say it."""

    MISSING = "not reached"
    BEHIND = "not finished"
    IDLE = "not started"  # on their GPUs, by torch's times
    CIRCLE = "each other"  # waited for
    HELD = "no data"  # all have begun it, and it does not end


class Which(StrEnum):
    """Which waiting a graph has."""

    ALL = "all"
    FIRST = "first"  # what holds a rank up, and nothing that it began later
    CERTAIN = "certain"  # for who is late, and not for who comes to it after something else; no sends


@dataclass(frozen=True)
class Blame:
    """Ranks that keep others waiting in `call`, in which `waiting` wait."""

    fault: Fault
    ranks: tuple[int, ...]
    call: Call
    waiting: tuple[int, ...]


def operation(rank: int, call: Call) -> Operation:
    """What a call of this rank is a part of."""
    if call.peer is None:
        return call.group, call.number, -1
    return (call.group, rank, call.peer) if call.sends else (call.group, call.peer, rank)


def members_of(by_rank: Mapping[int, StackDump]) -> dict[str, list[int]]:
    """The ranks of each process group whose ranks somebody knows, of those that are there."""
    told = {group.name: group.ranks for one in by_rank.values() for group in one.groups if group.runs}
    return {name: [rank for run in runs for rank in run if rank in by_rank] for name, runs in told.items()}


class WaitGraph:
    """Who waits for whom. `heads`: of each rank the oldest that is not done of each group and peer, the oldest of all first."""

    def __init__(self, by_rank: Mapping[int, StackDump]) -> None:
        self._by_rank, self._members = by_rank, members_of(by_rank)
        self.heads: dict[int, dict[Operation, Call]] = {}
        self._begun = {rank: {group.name: group.begun for group in one.groups} for rank, one in by_rank.items()}
        self._done: dict[int, dict[str, int]] = {}
        for rank, one in by_rank.items():
            self._take(rank, one)
        self._infer()
        self._most = dict[str, int]()  # done of each group, by the rank that is farthest
        for done in self._done.values():
            self._most |= {name: max(number, self._most.get(name, 0)) for name, number in done.items()}
        self._waiting = dict[Operation, list[int]]()
        for rank, heads in self.heads.items():
            for head in heads:
                self._waiting.setdefault(head, []).append(rank)
        found = {rank: self._finished_elsewhere(rank) for rank in self.heads}
        self.behind = {rank: what for rank, what in found.items() if what}

    def _take(self, rank: int, one: StackDump) -> None:
        begun, heads, oldest = self._begun[rank], dict[Operation, Call](), dict[str, int]()
        for call in one.calls:
            if call.peer is None:
                begun[call.group] = max(call.number, begun.get(call.group, 0))
                if not call.done:
                    oldest[call.group] = min(call.number, oldest.get(call.group, call.number))
        for call in sorted(one.pending, key=lambda call: call.since):
            if call.peer is not None or call.number == oldest[call.group]:
                heads.setdefault(operation(rank, call), call)
        self._done[rank] = begun | {name: number - 1 for name, number in oldest.items()}
        if heads:
            self.heads[rank] = heads

    def _infer(self) -> None:
        """A recorder that holds only what is not done does not say what a rank has begun of a group in which it has done all."""
        for rank, heads in self.heads.items():
            for (name, number, receiver), head in heads.items():
                for other in self.members(name) if receiver < 0 else ():
                    if not self._begun[other].get(name, 0) and self._is_past(other, rank, head):
                        self._begun[other][name] = self._done[other][name] = number

    def _finished_elsewhere(self, rank: int) -> Operation | None:
        """What others have finished and this rank has not, of the oldest that it waits in: its GPU is broken."""
        for what, head in self.heads[rank].items():
            if what[2] < 0:
                return what if self._have_most_finished(*what[:2]) else None
            peer = what[1] if rank == what[2] else what[2]
            if peer in self._by_rank and what not in self.heads.get(peer, ()) and self._is_past(peer, rank, head):
                return what
        return None

    def _have_most_finished(self, name: str, number: int) -> bool:
        """Whether most have finished a collective, and all have begun it. What a rank has begun is not known where its recorder
        holds nothing of the group. One that finished alone is the source of a broadcast.
        """
        known = [rank for rank in self.members(name) if self._begun[rank].get(name, 0)]
        if number > self._most.get(name, 0) or any(self._begun[rank][name] < number for rank in known):
            return False
        return 2 * sum(self._done[rank].get(name, 0) >= number for rank in known) >= len(known)

    def _is_past(self, peer: int, rank: int, head: Call) -> bool:
        """Whether another rank has begun a collective that this rank began after `head`, and so `head` as well."""
        begun = self._begun[peer]
        later = (call for call in self._by_rank[rank].calls if call.peer is None and call.since > head.since)
        return any(begun.get(call.group, 0) >= call.number for call in later)

    def members(self, name: str) -> Sequence[int]:
        """The ranks of a process group; all, where nobody knows them."""
        return self._members.get(name) or [*self._by_rank]

    def collectives(self) -> list[Operation]:
        """The oldest of each group that ranks wait in, the oldest first."""
        since = {what: min(self.heads[rank][what].since for rank in ranks) for what, ranks in self._waiting.items()}
        return sorted((what for what in since if what[2] < 0), key=since.__getitem__)

    def _late(self, what: Operation) -> list[int]:
        """Who has not begun it, or has something older in its group that is not done."""
        name, number, receiver = what
        if receiver >= 0:  # sends and recvs have no numbers that both ends share
            here = [rank for rank in (number, receiver) if rank in self._by_rank]
            return [rank for rank in here if what not in self.heads.get(rank, ())]
        return [
            rank
            for rank in self.members(name)
            if self._begun[rank].get(name, 0) < number or self._done[rank].get(name, 0) < number - 1
        ]

    def graph(self, which: Which) -> dict[Node, list[Node]]:
        """From each rank to what it waits in, and from that to those who are late, or who come to it after something else."""
        found: dict[Node, list[Node]] = {rank: [] for rank in self._by_rank}
        for what, waiting in self._waiting.items():
            found[what], found[what,] = [*self._late(what)], [rank for rank in waiting if self._comes_later(rank, what)]
            for rank in {*waiting} - self.behind.keys():
                first = self._first(rank) == what
                if which is Which.ALL or (not _sends(rank, what) and (first or which is Which.CERTAIN)):
                    if found[what]:
                        found[rank].append(what)
                    elif found[what,] and first and which is not Which.CERTAIN:
                        found[rank].append((what,))
        return found

    def _comes_later(self, rank: int, what: Operation) -> bool:
        """Whether something else holds a rank up that it began before this."""
        heads = self.heads[rank]
        return heads[self._first(rank)].since < heads[what].since

    def _only_sends(self, rank: int) -> bool:
        return all(_sends(rank, what) for what in self.heads.get(rank, ()))

    def _first(self, rank: int) -> Operation:
        """What holds a rank up: the oldest that it waits in. Its sends go beside, so they do only where there is nothing else."""
        heads = self.heads[rank]
        return next((what for what in heads if not _sends(rank, what)), next(iter(heads)))

    @functools.cached_property
    def blames(self) -> list[Blame]:
        """Who keeps the others waiting; the ranks that most wait for first."""
        graph, first, certain = map(self.graph, Which)
        found = dict[tuple[Fault, Operation], set[int]]()
        for end in ends(graph, self.heads):
            for part in _narrow(first, end):
                for rest in _narrow(certain, part):
                    for rank in rest:
                        held = len(end) == 1 or (len(part) == 1 and not self._only_sends(rank))
                        found.setdefault(self._fault(rank, rest, graph, held=held), set()).add(rank)
        blames = [self._blame(fault, what, ranks) for (fault, what), ranks in found.items()]
        return sorted(blames, key=lambda blame: (-len(blame.waiting), blame.ranks))

    def _fault(self, rank: int, part: Set[int], graph: Graph, *, held: bool) -> tuple[Fault, Operation]:
        """What is wrong with one of those that wait for nobody else, and in what the most wait for it."""
        if rank in self.behind:
            return Fault.BEHIND, self.behind[rank]
        late = [what for what in self._waiting if rank in graph[what]]
        if rank in self.heads and (not late or (held and not graph[self._first(rank)])):
            return Fault.HELD, self._first(rank)
        if len(part) > 1:
            return Fault.CIRCLE, max(late, key=lambda what: len(part & {*self._waiting[what]}))
        return Fault.MISSING, min(late, key=lambda what: (len(graph[what]), -len(self._waiting[what])))

    def _blame(self, fault: Fault, what: Operation, ranks: Set[int]) -> Blame:
        waiting = self._waiting[what]
        call = min((self.heads[rank][what] for rank in waiting), key=lambda call: call.since)
        if fault is Fault.HELD:
            ranks = {*waiting}
            started = {rank for rank in waiting if self.heads[rank][what].started}
            if (idle := ranks - started) and started:  # torch recorded when GPUs started it
                fault, ranks = Fault.IDLE, idle
        return Blame(
            fault, tuple(sorted(ranks)), call, tuple(rank for rank in waiting if rank not in ranks) or tuple(waiting)
        )


def ends(graph: Graph, starts: Iterable[int]) -> Iterator[Set[int]]:
    """The sets of ranks that some of `starts` lead to, that lead to each other, and to no other rank."""
    back: dict[Node, list[Node]] = {node: [] for node in graph}
    for node, more in graph.items():
        for other in more:
            back[other].append(node)
    left = reach(graph, *starts)
    while left:
        start = next(iter(left))
        while True:
            ahead, behind = reach(graph, start), reach(back, start)
            outside = [node for node in ahead if node not in behind]
            if not outside:
                break
            start = outside[-1]
        yield {node for node in ahead if isinstance(node, int)}
        for node in behind:
            left.pop(node, None)


def _narrow(graph: Graph, circle: Set[int]) -> list[Set[int]]:
    """Of ranks that wait for each other those for whom others wait in a smaller graph, too; all where none is."""
    if len(circle) == 1:
        return [circle]
    graph = within(graph, circle)
    waited_for = {node for what, more in graph.items() if not isinstance(what, int) for node in more}
    return [part for part in ends(graph, circle) if part & waited_for] or [circle]


def _sends(rank: int, what: Operation) -> bool:
    return what[1] == rank and what[2] >= 0


def reach(graph: Graph, *starts: Node) -> dict[Node, None]:
    """What one comes to from some nodes, they included; the farthest last."""
    found, queue = dict.fromkeys(starts), [*starts]
    for node in queue:
        for other in graph[node]:
            if other not in found:
                found[other] = None
                queue.append(other)
    return found


def within(graph: Graph, ranks: Set[int]) -> Graph:
    """Some ranks alone, with what they wait in."""
    return {
        node: [other for other in more if not isinstance(other, int) or other in ranks]
        for node, more in graph.items()
        if not isinstance(node, int) or node in ranks
    }
