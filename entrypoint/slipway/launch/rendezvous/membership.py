"""Node 0's bookkeeping of a rendezvous: which nodes are here, which are missing or turned away, and whether all fit together,
from their node infos to a table of differences. It knows no network.

What must agree and does not ends the job with 78 before torchrun starts; what should agree is a warning.
"""

import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile

from slipway.launch.rendezvous.messages import Hello, NodeInfo
from slipway.launch.resolve.runtimes import runtime_of
from slipway.protocol.printable import counted, rank_ranges

STRAYS = 64  # launchers beyond our own number of nodes that are kept for the table of differences
RANKS = 1_000_000  # a node rank above this is nonsense


@dataclass(frozen=True)
class Member:
    """A launcher that is here. `address` is where its connection came from, None where it is on node 0's machine.

    `offset` is its clock in seconds ahead of node 0's.
    """

    hello: Hello
    address: str | None
    offset: float

    @property
    def info(self) -> NodeInfo:
        """How the launcher describes itself."""
        return self.hello.info


def has_missed(one: Hello, other: Hello) -> bool:
    """Of two launchers of one node: whether `one` was absent from an attempt of this job that `other` made or watched."""
    return bool(one.info.tries and other.info.tries) and one.info.attempt < other.info.attempt


def was_replaced(one: Hello, other: Hello) -> bool:
    """Of two launchers of one node: whether `other` has replaced `one`, because `one` missed an attempt, or alone was frozen."""
    return has_missed(one, other) or (one.frozen and not other.frozen and not has_missed(other, one))


@dataclass(eq=False, kw_only=True)
class Membership:
    """The members of one rendezvous, by node rank, for `nodes` and `spares`, of which `least` must come (RendezvousConfig has the
    rest). `own` describes the launcher that leads, of node 0 or its successor; only its launcher `process` can have that rank.
    """

    own: NodeInfo
    nodes: int
    least: int
    process: str
    allow_uneven: bool
    doubtful: bool
    spares: int = 0
    members: dict[int, Member] = field(default_factory=dict)
    # Counted as launchers come and go, since each of thousands asks for both: members among the expected ones, and the
    # launcher that knows of the newest attempt of this job (None where none knows of any).
    _here: int = 0
    newest: Member | None = None

    @property
    def launchers(self) -> int:
        """How many launchers there may be."""
        return self.nodes + self.spares

    def objection(self, hello: Hello) -> str | None:
        """Why this launcher can never be a member (only its fault: the rendezvous continues), or None."""
        info, own = hello.info, self.own
        if info.node_rank == own.node_rank and hello.process != self.process:
            named = "MASTER_ADDR names" if own.node_rank == 0 else "leads the job"
            return f"RANK={own.node_rank} is taken by {own.host}, which {named}; every node needs a RANK of its own."
        if info.job is not None and own.job is not None and info.job != own.job:
            return (
                f"this is job {info.job}, but the launcher at this address belongs to job {own.job}. "
                "Give each job a MASTER_PORT of its own."
            )
        if 0 <= info.node_rank < self.launchers:
            return None
        # A node that counts the nodes differently is part of the job: the table will show it.
        strays = sum(rank >= self.launchers for rank in self.members)
        if info.nodes != own.nodes and self.launchers <= info.node_rank < RANKS and strays < STRAYS:
            return None
        size = f"{self.nodes}+{self.spares}" if self.spares else f"{self.nodes}"
        return f"RANK={info.node_rank}, but WORLD_SIZE={size} allows 0 to {self.launchers - 1}. RANK counts nodes."

    def rival(self, hello: Hello) -> Member | None:
        """Another launcher with the same node rank; a launcher's own older connection is no rival."""
        member = self.members.get(hello.info.node_rank)
        return member if member and member.hello.process != hello.process else None

    def admit(self, member: Member) -> None:
        """Make a launcher a member."""
        self.vacate(member.info.node_rank)
        self.members[member.info.node_rank] = member
        self._here += member.info.node_rank < self.launchers
        self.newest = max(
            (one for one in (self.newest, member) if one and one.info.tries), key=_seniority, default=None
        )

    def vacate(self, node_rank: int) -> None:
        """Forget who had this node rank."""
        if gone := self.members.pop(node_rank, None):
            self._here -= node_rank < self.launchers
            if gone is self.newest:
                left = [member for member in self.members.values() if member.info.tries]
                self.newest = max(left, key=_seniority, default=None)

    @property
    def missing(self) -> tuple[int, ...]:
        """The node ranks that no launcher has claimed."""
        return tuple(rank for rank in range(self.launchers) if rank not in self.members)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The node ranks that are here, in order, of those that node 0 expects."""
        return tuple(sorted(rank for rank in self.members if rank < self.launchers))

    @property
    def participants(self) -> tuple[int, ...]:
        """The node ranks that run the next attempt, in the order of their places; whoever else is here is a spare node.

        Without spare nodes all run, by their ranks. Else the node that leads has place 0, those that ran in the attempt before
        keep their places, and the others that are here take the places that are left, the lower ranks first.
        """
        if not self.spares:
            return self.ranks
        held, lead = self.held, self.own.node_rank
        order = sorted(self.ranks, key=lambda rank: (rank != lead, held.get(rank, -1) < 1, rank))[: self.nodes]
        places = {
            place: rank for rank in reversed(order) if 0 < (place := held.get(rank, -1)) < self.nodes and rank != lead
        }
        left = [rank for rank in order if rank not in places.values()]
        places |= zip((place for place in range(self.nodes) if place not in places), left, strict=False)
        return tuple(places[place] for place in sorted(places))

    @property
    def held(self) -> Mapping[int, int]:
        """The places in the newest attempt of this job, by node rank, of those who ran it and are here."""
        number = self.newest.info.attempt if self.newest else 0
        infos = [member.info for member in self.members.values() if member.info.tries and member.info.attempt == number]
        return {info.node_rank: info.place for info in infos if info.place >= 0}

    @property
    def veterans(self) -> int:
        """How many of the expected launchers that are here, beside the one that leads, knew of an attempt of this job before."""
        return sum(bool(self.members[rank].info.tries) for rank in self.ranks if rank != self.own.node_rank)

    @property
    def next_attempt(self) -> int:
        """The number of the next attempt: higher than any that a launcher which is here, or its run directory, knows of."""
        return max(max(member.info.attempt, member.hello.offered) for member in self.members.values()) + 1

    @property
    def complete(self) -> bool:
        """Whether everyone that node 0 expects is here."""
        return self._here == self.launchers

    @property
    def enough(self) -> bool:
        """Whether as many as must be there are here, the one that leads among them."""
        return self._here >= self.least and self.own.node_rank in self.members

    @property
    def run(self) -> str:
        """The name of the run: as those who made attempts of this job have it, else as node 0 does. Where that is to be resumed
        and has no snapshot, as with an empty disk, it is the run with the newest snapshot that another is to go on with.
        """
        if self.newest:
            return self.newest.info.run
        if not self.own.goes_on or self.own.snapshot is not None:
            return self.own.run
        kept = [
            (info.snapshot, -info.node_rank, info.run)
            for info in self.infos.values()
            if info.goes_on and info.snapshot is not None
        ]
        return max(kept)[-1] if kept else self.own.run

    @property
    def nonce(self) -> str:
        """What tells the job from every other, as far as one of those present took part in it."""
        return self.newest.info.nonce if self.newest else ""

    @property
    def everyone(self) -> bool:
        """Whether everyone that any of those present expects is here."""
        if not self.complete:
            return False
        texts = {member.info.nodes for member in self.members.values()}
        return all(len(self.members) >= int(text) for text in texts if text.isdecimal() and len(text) < 8)

    def fits(self, member: Member) -> bool:
        """Whether a launcher agrees with node 0 in all that must agree."""
        return fits(member.info, self.own, self.allow_uneven)

    def misfit(self, member: Member) -> str:
        """Why a launcher cannot wait as a spare node, with a table of what differs from the job; empty where it can."""
        reference = self.own
        if self.newest and self.newest.info.node_rank != member.info.node_rank:
            reference = self.newest.info
        if member.info.problem or fits(member.info, reference, self.allow_uneven):
            return member.info.problem
        infos = {reference.node_rank: reference, member.info.node_rank: member.info}
        differences = [one for one in find_differences(infos, {}, self.allow_uneven) if one.must]
        names = ", ".join(difference.name for difference in differences)
        table = draw_table(differences, {rank: info.host for rank, info in infos.items()})
        return "\n".join((f"this spare node differs from the others in {names}:", *table))

    @property
    def infos(self) -> Mapping[int, NodeInfo]:
        """The node infos of those present, by node rank."""
        return {rank: member.info for rank, member in self.members.items()}

    @property
    def hosts(self) -> Mapping[int, str]:
        """The host names of those present, by node rank."""
        return {rank: member.info.host for rank, member in self.members.items()}

    def describe(self, seconds: float) -> str:
        """`waiting for nodes: 5 of 8 after 20 s; missing node ranks 3, 6, 7`."""
        if not self.missing:
            return f"all {self.nodes} nodes are present after {seconds:.0f} s, but their configurations differ"
        ranks = f"node rank{'s' if len(self.missing) > 1 else ''} {rank_ranges(self.missing)}"
        if self.spares:
            return f"waiting for nodes: {self._here} of {self.nodes} after {seconds:.0f} s; any of {ranks} will do"
        wanted = f"{self.least} to {self.nodes}" if self.least < self.nodes else f"{self.nodes}"
        return f"waiting for nodes: {self._here} of {wanted} after {seconds:.0f} s; missing {ranks}"

    @property
    def under_way(self) -> str:
        """What to do where the job has begun already, without nodes that it needs; else empty."""
        if self.newest and not self.enough and runtime_of(self.own.runtime).has_services:
            return (
                "the job is running, and waits until its controller replaces the pods that ended: a Job does so 10 s after a "
                "pod's end, and later each time (kubectl get pods); an empty disk is enough."
            )
        if self.newest and not self.enough:
            return "the job is running: start its command again on the missing nodes; an empty disk is enough."
        return ""

    @property
    def question(self) -> str:
        """What to ask where WORLD_SIZE may count processes: those of the nodes that are here, or of this node alone."""
        if not self.doubtful or self.newest or not self.missing:
            return ""
        here = [info.processes for rank, info in self.infos.items() if rank < self.nodes]
        asked = f"WORLD_SIZE={self.nodes} counts nodes. Was it meant to count"
        if len(here) > 1:
            made = f"{len(here)} × {here[0]}" if len(set(here)) == 1 else " + ".join(map(str, here))
            told = (
                f"{asked} processes? The nodes here start {made} = {self.nodes} processes: set WORLD_SIZE={len(here)}."
            )
            return told if sum(here) == self.nodes else ""
        kinds = {self.own.processes: "processes", len(self.own.gpus): "GPUs"}
        if kind := kinds.get(self.nodes):
            return f"{asked} the {self.nodes} {kind} of this machine? Then unset WORLD_SIZE."
        most = max(kinds)
        if most == 1 or self.nodes % most:
            return ""
        return f"{asked} processes (this node has {most})? Then set WORLD_SIZE={self.nodes // most}."


def _seniority(member: Member) -> tuple[int, bool, int]:
    """A later attempt comes first, then who took part in it, then the lower node rank."""
    return member.info.attempt, member.info.place >= 0, -member.info.node_rank


@dataclass(frozen=True)
class Rule:
    """One thing to compare: its name in the table, whether it must agree, how to read it from a node's info, what to do.

    What is `optional` counts only between those that have it.
    """

    name: str
    must: bool
    read: Callable[[NodeInfo], str]
    advice: str = ""
    optional: bool = False

    def agree(self, one: NodeInfo, other: NodeInfo) -> bool:
        """Whether two node infos have the same, or one of them nothing that counts."""
        here, there = self.read(one), self.read(other)
        return here == there or (self.optional and not (here and there))


def gpu_models(info: NodeInfo) -> str:
    """`8 × NVIDIA H100` or `no GPU`; several models are listed."""
    kinds = sorted(set(info.gpus))
    return ", ".join(f"{info.gpus.count(kind)} × {kind}" for kind in kinds) or "no GPU"


def read_optional(name: str) -> Callable[[NodeInfo], str]:
    """Read a field that may be None, which the table shows as `none`."""
    return lambda info: "none" if (value := getattr(info, name)) is None else str(value)


PROCESSES, SNAPSHOT = "processes per node", "newest snapshot"
SAME_COMMAND = "type the same command on all nodes"
RULES = (
    Rule("WORLD_SIZE (nodes)", True, lambda info: info.nodes, "WORLD_SIZE counts nodes and is the same on all of them"),
    Rule("workload", True, lambda info: info.workload, SAME_COMMAND),
    Rule("arguments", True, lambda info: shlex.join(info.arguments), SAME_COMMAND),
    Rule(
        PROCESSES,
        True,
        lambda info: str(info.processes),
        "give every node the same number, or --allow-uneven to run with the smallest on all",
    ),
    Rule("backend", True, lambda info: info.backend),
    Rule("slipway", True, lambda info: info.version, "start the same image on all nodes"),
    Rule("torch", True, read_optional("torch"), "start the same image on all nodes"),
    Rule("NCCL", True, read_optional("nccl"), "start the same image on all nodes"),
    Rule("embedded data", True, read_optional("data"), "start the same image on all nodes"),
    Rule("image", True, read_optional("image"), "start the same image on all nodes"),
    # Two jobs that meet by mistake; a path may be another one on each node.
    Rule(
        "--run-dir (a name)",
        True,
        lambda info: "" if info.run_dir.startswith("/") else info.run_dir,
        "give all nodes of a job the same run directory, and each job a MASTER_ADDR of its own",
        optional=True,
    ),
    Rule(
        "--run-dir (a path)",
        False,
        lambda info: info.run_dir.rpartition("/")[2] if info.run_dir.startswith("/") else "",
        optional=True,
    ),
    Rule("script (checksum)", False, lambda info: info.script, "copy the script to all nodes again"),
    Rule("driver", False, read_optional("driver")),
    Rule("GPUs", False, gpu_models),
    Rule(SNAPSHOT, False, read_optional("snapshot")),
)


def _rules(allow_uneven: bool) -> tuple[Rule, ...]:
    return tuple(replace(rule, must=False) if rule.name == PROCESSES and allow_uneven else rule for rule in RULES)


def fits(info: NodeInfo, reference: NodeInfo, allow_uneven: bool) -> bool:
    """Whether all that must agree does, between two node infos, and the node has no problem of its own."""
    return not info.problem and all(rule.agree(info, reference) for rule in _rules(allow_uneven) if rule.must)


@dataclass(frozen=True)
class Difference:
    """One thing in which nodes differ: each value with the node ranks that have it, by their lowest rank."""

    name: str
    must: bool
    values: tuple[tuple[str, tuple[int, ...]], ...]
    advice: str = ""


CLOCK_SECONDS = 2.0  # a larger clock offset makes logs and snapshot times of several nodes hard to read together


def find_differences(
    infos: Mapping[int, NodeInfo], offsets: Mapping[int, float], allow_uneven: bool
) -> tuple[Difference, ...]:
    """All differences between the node infos (by node rank); `offsets` are clocks in seconds ahead of node 0's."""
    found = []
    goes_on = any(info.tries for info in infos.values())  # then a newcomer gets its snapshot from the others
    for rule in (rule for rule in _rules(allow_uneven) if not (goes_on and rule.name == SNAPSHOT)):
        nodes = defaultdict(list)
        for node_rank in sorted(infos):
            nodes[rule.read(infos[node_rank])].append(node_rank)
        if len(nodes) - (rule.optional and "" in nodes) > 1:
            values = tuple((value, tuple(ranks)) for value, ranks in nodes.items())
            found.append(Difference(rule.name, rule.must, values, rule.advice))
    astray = [rank for rank in sorted(offsets) if abs(offsets[rank]) > CLOCK_SECONDS]
    strays = tuple((f"{offsets[rank]:+.1f} s", (rank,)) for rank in astray)
    if strays:
        found.append(Difference("clock (against node 0)", False, strays, "let NTP or chrony set the clocks"))
    return tuple(found)


WIDTH = 72  # characters of a value in the table
ROWS = 40  # lines of a table; thousands of nodes may differ in thousands of ways


def draw_table(differences: Iterable[Difference], hosts: Mapping[int, str]) -> tuple[str, ...]:
    """Lines of `what | value | nodes`, bounded in width and number."""
    rows = [("what", "value", "nodes")]
    for difference in differences:
        name = difference.name
        for value, ranks in zip(_shown([value for value, _ in difference.values]), difference.values, strict=True):
            rows.append((name, value, _nodes(ranks[1], hosts)))
            name = ""
        if difference.advice:
            rows.append(("", f"({difference.advice})", ""))
    width = max(28, *(len(value) for _, value, nodes in rows if nodes))
    lines = [f"  {name:<22}  {value:<{width}}  {nodes}".rstrip() for name, value, nodes in rows]
    if len(lines) > ROWS:
        lines[ROWS:] = [f"  … and {counted(len(lines) - ROWS, 'more line')}"]
    return tuple(lines)


def _shown(values: list[str]) -> list[str]:
    """Values short enough for the table, with what they have in common at the start cut off where they are too long."""
    if max(len(value) for value in values) <= WIDTH:
        return [value or "none" for value in values]
    common = len(list(takewhile(lambda chars: len(set(chars)) == 1, zip(*values, strict=False))))
    start = max(0, common - 12)
    cut = [("…" if start else "") + value[start:] for value in values]
    return [value if len(value) <= WIDTH else value[: WIDTH - 1] + "…" for value in cut]


def _nodes(ranks: tuple[int, ...], hosts: Mapping[int, str]) -> str:
    names = ", ".join(hosts[rank] for rank in ranks[:3])
    return f"{rank_ranges(ranks)} ({names}{', …' if len(ranks) > 3 else ''})"
