"""Jobs with data, tensor, pipeline and expert parallelism that come to a standstill, and what torch's flight recorders hold then.

Each rank has a program of a few steps. Its host enqueues what the program says, ahead of its GPU, and waits for the GPU at the end of
a step, in some jobs after each recv. The GPU takes one thing after the other, but sends and the gradients' reduction go beside. A
collective ends once all members have come to it. At some moment culprits fail, and the job runs on until nothing moves any more.
"""

import collections
import heapq
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from slipway.launch.hangs.flight_recorder import read_answer
from slipway.launch.hangs.hang import Hang, find_hang
from slipway.launch.hangs.stack_dump import read_stack_dump

KINDS = ("host", "error", "kernel", "link", "desync")
CHECKED = 10  # moments between two polls of torch's watchdog for what is done


class Group(NamedTuple):
    name: str
    ranks: tuple[int, ...]


class Item(NamedTuple):
    """What a host enqueues. `peer`: of a send or a recv; `aside`: not in the order of the other things; `size`: as torch has it."""

    group: Group | None
    name: str
    size: int
    aside: bool = False
    peer: int | None = None


SYNC = Item(None, "sync", 0)


class Shape(NamedTuple):
    """How a job is divided. A rank is (stage * data + replica) * tensor + place."""

    data: int
    tensor: int
    stages: int
    experts: int  # replicas that share experts

    @property
    def ranks(self) -> int:
        return self.data * self.tensor * self.stages

    def rank(self, stage: int, replica: int, place: int) -> int:
        return (stage * self.data + replica) * self.tensor + place

    def groups(self) -> Iterator[tuple[str, list[int]]]:
        stages, replicas, places = range(self.stages), range(self.data), range(self.tensor)
        yield "world", [*range(self.ranks)]
        for stage in stages:
            yield from (("data", [self.rank(stage, one, place) for one in replicas]) for place in places)
            yield from (("tensor", [self.rank(stage, one, place) for place in places]) for one in replicas)
            for first in range(0, self.data, self.experts):
                some = range(first, first + self.experts)
                yield "expert", [self.rank(stage, one, place) for one in some for place in places]
        for one in replicas:
            yield from (("pipe", [self.rank(stage, one, place) for stage in stages]) for place in places)


@dataclass
class Begun:
    """What a rank has enqueued."""

    item: Item
    number: int
    key: tuple[Any, ...]
    time: float
    after: int  # things of the main queue that come before it
    arrived: bool = False
    done: float | None = None  # when it ended


@dataclass
class Rank:
    program: list[Item]
    at: int = 0
    begun: list[Begun] = field(default_factory=list)
    main: list[Begun] = field(default_factory=list)
    aside: list[Begun] = field(default_factory=list)
    passed: int = 0  # of the main queue
    numbers: dict[str, int] = field(default_factory=dict)
    sends: dict[Any, int] = field(default_factory=dict)
    host_down: bool = False
    gpu_down: bool = False
    unseen: float | None = None  # what ended after this moment, its watchdog did not see any more
    waits: bool = False
    speed: float = 1.0


class Culprit(NamedTuple):
    kind: str
    ranks: tuple[int, ...]  # one, or those of a group whose link is stuck


class RecordedJob:
    """A job at its standstill."""

    def __init__(self, seed: int, largest: int = 512) -> None:
        self.random = random.Random(seed)
        self.shape = self._choose_shape(largest)
        self.groups: dict[int, dict[str, Group]] = {rank: {} for rank in range(self.shape.ranks)}
        for number, (kind, ranks) in enumerate(self.shape.groups()):
            if len(ranks) > 1 or kind == "world":
                for rank in ranks:
                    self.groups[rank][kind] = Group(str(number), tuple(ranks))
        self.batches = self.random.choice((2, 3))
        self.layers = self.random.choice((1, 1, 2))
        self.syncs_pipe = self.random.random() < 0.4
        self.eager = self.random.random() < 0.5  # the source of a broadcast does not wait for the others
        programs = [[*self._program(rank)] for rank in range(self.shape.ranks)]
        self.ranks = [Rank(program, speed=self.random.choice((0.5, 1.0, 1.0, 4.0))) for program in programs]
        self.arrived: dict[Any, list[tuple[int, Begun]]] = {}
        self.stuck: set[str] = set()
        self.events: list[tuple[float, int, str, Any]] = []
        self.count, self.now = 0, 0.0
        self.culprits: list[Culprit] = []
        self.only_active = self.random.random() < 0.5
        self.timed = self.random.random() < 0.2
        self._run()

    def _choose_shape(self, largest: int) -> Shape:
        size = min(2 ** self.random.choice((3, 3, 4, 4, 5, 5, 6, 6, 7, 8, 9)), largest)
        tensor = self.random.choice([one for one in (1, 2, 4, 8) if one <= size])
        stages = self.random.choice([one for one in (1, 2, 4) if one * tensor <= size])
        data = size // tensor // stages
        return Shape(data, tensor, stages, self.random.choice([one for one in (1, 2, 4, 8) if data % one == 0]))

    def _program(self, rank: int) -> Iterator[Item]:
        stage = rank // (self.shape.data * self.shape.tensor)
        groups, last = self.groups[rank], self.shape.stages - 1
        early = min(last - stage, self.batches)
        order = ["f"] * early + ["f", "b"] * (self.batches - early) + ["b"] * early
        for _ in range(3):
            for what in order:
                forward = what == "f"
                source, target = (stage - 1, stage + 1) if forward else (stage + 1, stage - 1)
                pipe = groups.get("pipe")
                if forward and stage in (0, last) and "tensor" in groups:
                    yield Item(groups["tensor"], "broadcast", 77)
                if pipe and 0 <= source <= last:
                    yield Item(pipe, "recv", 50, peer=pipe.ranks[source])
                    yield from [SYNC] * self.syncs_pipe
                yield from self._layers(groups)
                if pipe and 0 <= target <= last:
                    yield Item(pipe, "send", 50, aside=True, peer=pipe.ranks[target])
            if "data" in groups:
                for part in range(3):
                    yield Item(groups["data"], "_reduce_scatter_base", 1000 + part, aside=True)
            yield Item(groups["world"], "all_reduce", 1)
            yield SYNC
            if "data" in groups:
                yield Item(groups["data"], "_all_gather_base", 900)

    def _layers(self, groups: dict[str, Group]) -> Iterator[Item]:
        for _ in range(self.layers):
            if "tensor" in groups:
                yield Item(groups["tensor"], "_all_gather_base", 10)
            if "expert" in groups:
                yield Item(groups["expert"], "all_to_all", 20)
                yield Item(groups["expert"], "all_to_all", 21)
            if "tensor" in groups:
                yield Item(groups["tensor"], "_reduce_scatter_base", 30)

    def _at(self, time: float, what: str, value: Any) -> None:
        self.count += 1
        heapq.heappush(self.events, (time, self.count, what, value))

    def _run(self) -> None:
        for rank in range(self.shape.ranks):
            self._at(self.random.random(), "host", rank)
        self.fails = int(self.random.uniform(0.2, 0.5) * len(self.ranks[0].program))
        while self.events:
            self.now, _, what, value = heapq.heappop(self.events)
            getattr(self, f"_{what}")(value)

    def _host(self, rank: int) -> None:
        one = self.ranks[rank]
        if one.host_down or one.at >= len(one.program):
            return
        item = one.program[one.at]
        if item is SYNC:
            if any(begun.done is None for begun in one.begun[-300:]):
                one.waits = True
                return
            one.at += 1
        else:
            one.at += 1
            self._begin(rank, one, item)
        if rank == 0 and one.at == self.fails:
            self._at(self.now + self.random.uniform(0, 30), "fail", None)
        self._at(self.now + one.speed, "host", rank)

    def _begin(self, rank: int, one: Rank, item: Item) -> None:
        assert item.group
        if item.peer is None:
            number = one.numbers[item.group.name] = one.numbers.get(item.group.name, 0) + 1
            key: tuple[Any, ...] = (item.group.name, number)
        else:
            ends = (rank, item.peer) if item.name == "send" else (item.peer, rank)
            one.sends[ends] = one.sends.get(ends, 0) + 1
            key, number = (*ends, one.sends[ends]), one.numbers.get(item.group.name, 0)
        begun = Begun(item, number, key, self.now, len(one.main))
        one.begun.append(begun)
        (one.aside if item.aside else one.main).append(begun)
        self._advance(rank)

    def _advance(self, rank: int) -> None:
        """Let a GPU come to what it can."""
        one = self.ranks[rank]
        if one.gpu_down:
            return
        while one.passed < len(one.main) and one.main[one.passed].done is not None:
            one.passed += 1
        if one.passed < len(one.main) and not one.main[one.passed].arrived:
            self._arrive(rank, one.main[one.passed])
        taken = set()
        one.aside = [begun for begun in one.aside if begun.done is None]
        for begun in one.aside:
            channel = (begun.item.group, begun.item.peer)
            if begun.after <= one.passed and channel not in taken and not begun.arrived:
                self._arrive(rank, begun)
            taken.add(channel)

    def _arrive(self, rank: int, begun: Begun) -> None:
        begun.arrived = True
        here = self.arrived.setdefault(begun.key, [])
        here.append((rank, begun))
        group = begun.item.group
        assert group
        if begun.item.name == "broadcast" and self.eager and rank == group.ranks[0]:
            self._at(self.now + 1, "end", (rank, begun))
        size = 2 if begun.item.peer is not None else len(group.ranks)
        alike = begun.item.peer is not None or len({(one.item.name, one.item.size) for _, one in here}) == 1
        if len(here) == size and alike and group.name not in self.stuck:
            moment = self.now + self.random.uniform(1, 4)
            for member, one in here:
                self._at(moment, "end", (member, one))

    def _end(self, what: tuple[int, Begun]) -> None:
        rank, begun = what
        one = self.ranks[rank]
        if begun.done is None and begun.item.group.name not in self.stuck:  # type: ignore[union-attr]
            begun.done = self.now
            self._advance(rank)
            if one.waits and all(other.done is not None for other in one.begun[-300:]):
                one.waits = False
                self._at(self.now, "host", rank)

    def _fail(self, _: None) -> None:
        for rank in self.random.sample(range(self.shape.ranks), self.random.choice((1, 1, 2, 3))):
            kind = self.random.choice(KINDS)
            one, group = self.ranks[rank], self.random.choice([*self.groups[rank].values()])
            if kind == "desync" and not self._leave_order(rank, one):
                kind = "host"
            one.host_down |= kind == "host"
            one.gpu_down |= kind in ("error", "kernel")
            if kind == "error":
                one.unseen = self.now - self.random.uniform(0, 2 * CHECKED)
            if kind == "link":
                self.stuck.add(group.name)
            self.culprits.append(Culprit(kind, group.ranks if kind == "link" else (rank,)))

    def _leave_order(self, rank: int, one: Rank) -> bool:
        """Let a rank do something else in a group than the others as its next."""
        for place in range(one.at, len(one.program)):
            item = one.program[place]
            if item.group and item.peer is None and len(item.group.ranks) > 1:
                one.program[place:place] = [Item(item.group, "all_reduce", 3)]
                return True
        return False

    def recorder(self, rank: int) -> dict[str, Any]:
        """What torch's recorder of a rank holds, as torch writes it to a file; its groups' local numbers are the rank's own."""
        one, known = self.ranks[rank], self.groups[rank]
        numbers = {group.name: place for place, group in enumerate(known.values())}
        entries, sent = [], 0
        for begun in one.begun:
            sent += begun.item.peer is not None
            done = begun.done is not None and (one.unseen is None or begun.done < one.unseen)
            if not (done and self.only_active):
                entries.append(self._entry(rank, begun, sent, done, numbers))
        return {
            "version": "2.10",
            "entries": entries[-2000:],
            "pg_config": {g.name: {"name": g.name, "desc": "", "ranks": str([*g.ranks])} for g in known.values()},
            "pg_status": {str(place): {"last_enqueued_collective": 11986, "last_started_collective": -1,
                                       "last_completed_collective": 11980} for place in numbers.values()},
        }  # fmt: skip

    def _entry(self, rank: int, begun: Begun, sent: int, done: bool, numbers: dict[str, int]) -> dict[str, Any]:
        group, name = begun.item.group, begun.item.name
        assert group
        if begun.item.peer is not None:
            here, there = group.ranks.index(rank), group.ranks.index(begun.item.peer)
            name = f"send {here}->{there}" if name == "send" else f"recv {here}<-{there}"
        return {
            "pg_id": numbers[group.name],
            "process_group": (group.name, "undefined"),
            "collective_seq_id": begun.number,
            "p2p_seq_id": sent,
            "profiling_name": f"nccl:{name}",
            "time_created_ns": 1_700_000_000_000_000_000 + int(begun.time * 1e6) + rank * 7,
            "input_sizes": [[begun.item.size]],
            "input_dtypes": ["BFloat16"],
            "state": "completed" if done else "scheduled",
            "time_discovered_started_ns": 1_700_000_000_000_000_001 if self.timed and begun.arrived else None,
            "retired": done,
            "is_p2p": begun.item.peer is not None,
        }


def find(job: RecordedJob) -> Hang | None:
    """What is made of the recorders of all its ranks."""
    records = {rank: job.recorder(rank) for rank in range(job.shape.ranks)}
    members = {
        rank: {name: json.loads(row["ranks"]) for name, row in one["pg_config"].items()}
        for rank, one in records.items()
    }
    answers = {
        rank: read_answer({"records": [one], "members": members[rank], "threads": []}) for rank, one in records.items()
    }
    return find_hang([read_stack_dump(rank, 0, answer) for rank, answer in answers.items()])


def verdict(job: RecordedJob, hang: Hang | None) -> str:
    """How well the answer fits.

    all      exactly the culprits are named
    some     culprits alone are named, and others hide behind them
    group    no rank is named, but a group in which all have begun what does not end, a culprit's: its kernel or its link is stuck
    pair     the two of a pair are named that do not agree, or that wait for each other, one of them a culprit
    over     the job had ended before anything failed, and nothing is named
    wrong    whatever else; `alone`: a healthy rank is named alone
    """
    if hang is None and all(one.at == len(one.program) and all(begun.done for begun in one.begun) for one in job.ranks):
        return "over"
    guilty = {rank for culprit in job.culprits for rank in culprit.ranks}
    named = set(hang.ranks) if hang else set()
    if hang is None or (not named and not guilty & {*hang.among}):
        return "wrong"
    if named <= guilty:
        return "all" if named == guilty else "some" if named else "group"
    strays = named - guilty
    if len(strays) <= len(named & guilty) and ("do not agree" in hang.text or "each other" in hang.text):
        return "pair"
    return "alone" if len(named) == 1 else "wrong"


def main(first: int, end: int) -> None:
    """Print how many jobs of each kind are judged how well."""
    found = collections.Counter[tuple[str, str]]()
    for seed in range(first, end):
        job = RecordedJob(seed)
        hang = find(job)
        kinds = [culprit.kind for culprit in job.culprits]
        how = verdict(job, hang)
        found[f"{len(kinds)} culprits" if len(kinds) > 1 else kinds[0], how] += 1
        if how in ("wrong", "alone"):
            print(
                seed,
                how,
                job.shape,
                kinds,
                [culprit.ranks[:4] for culprit in job.culprits],
                hang and hang.text[:200],
                flush=True,
            )
    for (kind, how), count in sorted(found.items()):
        print(f"{kind:12} {how:6} {count}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
