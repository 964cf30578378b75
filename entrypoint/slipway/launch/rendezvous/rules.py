"""The rules of the launcher that leads: whom it admits, and what each message of the others does while it gathers them, while an
attempt runs, and between two attempts.

They know no network and no clock; server.py carries out what they return. docs/reference.py writes MESSAGES
into docs/rendezvous.md, with the docstrings of its rules. A rule changes the state that it is given: to copy it
for each message of thousands of nodes would take the square of their number.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum, auto
from typing import Any, NamedTuple

from slipway.launch.hangs.stack_dump import StackDump
from slipway.launch.rendezvous import messages as wire
from slipway.launch.rendezvous.config import RendezvousConfig
from slipway.launch.rendezvous.leadership import REDIRECT_SECONDS, may_run_elsewhere
from slipway.launch.rendezvous.link import Link
from slipway.launch.rendezvous.membership import Member, Membership, was_replaced
from slipway.launch.rendezvous.messages import SUCCESSORS
from slipway.launch.resolve.topology import SPARE
from slipway.launch.verdict.cause import Cause
from slipway.launch.verdict.restarts import Ending
from slipway.launch.verdict.verdict import Outcome
from slipway.protocol.errors import CODE_OF, CONFIGURATION, PEER
from slipway.protocol.outcomes import Word

RANKS = 1024  # of a node, at most
KEPT_SECONDS = 60.0  # for which a node rank is kept for who asked for it, or had it in the last attempt


class Stage(StrEnum):
    """What the launcher that leads does, from one attempt to the next."""

    BETWEEN = "between attempts"
    GATHERING = "while nodes wait"
    RUNNING = "while an attempt runs"


@dataclass
class State:
    """What belongs to one attempt, and to the waiting before it. Each attempt has a new one.

    `membership` is None between two attempts, `deadline` of the rendezvous, by the loop's clock; `odd_since` is when the first
    launcher came that does not fit; `stopping` has who was asked to stop since the rendezvous began. Once those
    `expected` are here (who remained after the last attempt; before the first one, all nodes but spare ones), and enough,
    nobody else need be waited for. `places` has the nodes that run, or are about to, by their
    ranks and in the order of their places; `start` is what they were told.
    """

    membership: Membership | None = None
    running: bool = False
    nonce: str = ""  # of the job, once it runs
    deadline: float = math.inf
    odd_since: float = math.inf
    enough_since: float = math.inf  # as many as are needed are here
    changes: int = 0  # how often launchers that may take part became members or left
    round: int = 0  # of probes
    probed: dict[int, wire.Probed] = field(default_factory=dict)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    failed: bool = False  # whether one of them is bad
    stopping: dict[int, wire.Stopping] = field(default_factory=dict)
    links: dict[int, Link] = field(default_factory=dict)
    refused: str = ""  # the last launcher that was, and why: it may be a missing node
    expected: set[int] = field(default_factory=set)
    places: dict[int, int] = field(default_factory=dict)
    neighbours: dict[int, int] = field(default_factory=dict)  # to which they connect
    start: wire.Start | None = None
    processes: int = 0  # of each node
    dumps: dict[int, tuple[StackDump, ...]] = field(default_factory=dict)  # of nodes that stand still
    # Of nodes that have not reported all their ranks yet.
    telling: dict[int, tuple[StackDump, ...]] = field(default_factory=dict)

    @property
    def stage(self) -> Stage:
        """What is done at the moment."""
        if self.membership is None:
            return Stage.BETWEEN
        return Stage.RUNNING if self.running else Stage.GATHERING

    def start_of(self, node_rank: int) -> wire.Start:
        """What a launcher receives at the start: its place, or that it is a spare node."""
        assert self.start
        place = self.places.get(node_rank, SPARE)
        return replace(self.start, group_rank=place, notes=() if place == SPARE else self.start.notes)

    @property
    def lost(self) -> set[int]:
        """The node ranks that went away without a word while the attempt ran."""
        return {rank for rank, outcome in self.outcomes.items() if outcome.word == Word.LOST}


class Send(NamedTuple):
    """A message to be sent: over one link, or to all launchers `but` one."""

    message: object
    link: Link | None = None
    but: int | None = None


Effects = list[Send | str]  # what is to be sent, and lines to be printed, in order


class Act(Enum):
    """What a leader does about a hello."""

    ADMIT = auto()
    WAIT = auto()  # until this launcher leads
    PING = auto()  # the launcher that has this rank: is it alive?
    REPLACE = auto()  # that one: it counts as lost
    CLOSE = auto()  # the connection, after a message


class Reply(NamedTuple):
    """What a leader does about a hello, with the message that it sends and a line that it prints."""

    act: Act
    message: wire.Refused | wire.Led | None = None
    note: str = ""


def never(reason: str) -> Reply:
    """Refuse a launcher, which then ends."""
    return Reply(Act.CLOSE, wire.Refused(CONFIGURATION, reason))


def later(reason: str, note: str = "") -> Reply:
    """Refuse a launcher, which then tries again."""
    return Reply(Act.CLOSE, wire.Refused(PEER, reason, again=True), note)


def taken(rank: int, host: str) -> Reply:
    """Refuse a launcher that asked for its rank: if it took part in nothing yet, it asks for another one."""
    return Reply(Act.CLOSE, wire.Refused(PEER, f"RANK={rank} is taken by {host}."))


def assess(
    state: State,
    config: RendezvousConfig,
    member: Member,
    redirect: wire.Led | None = None,
    superseded: bool = False,
    waited: bool = False,
    alive: bool | None = None,
) -> Reply:
    """What the launcher that leads does about a hello.

    `redirect` says who leads instead; `superseded`: another launcher has taken the place of this one; `waited`: this one has
    waited for the next attempt; `alive`: whether the launcher that has its rank answered a ping (None: it was sent none).
    """
    membership, hello, info, rank = state.membership, member.hello, member.info, member.info.node_rank
    if membership is None and not waited:
        return Reply(Act.CLOSE, redirect) if redirect else Reply(Act.WAIT)
    if membership is None:
        return Reply(Act.CLOSE) if config.node_rank else later("node 0 is between two attempts.")
    known = state.nonce or membership.nonce or membership.own.nonce
    if info.nonce and known and info.nonce != known:
        refused = wire.Refused(CONFIGURATION, f"another job, of node 0 on {membership.own.host}", again=True)
        return Reply(Act.CLOSE, refused, f"refused node {rank} ({info.host}), which belongs to another job")
    if hello.who and rank == config.node_rank and hello.process != config.process:
        return taken(rank, membership.own.host)
    if reason := membership.objection(hello):
        return never(reason)
    rival = membership.rival(hello) if rank in state.links else None
    replaced = rival is not None and not state.running and was_replaced(rival.hello, hello)
    yields = rival is not None and gives_way(state, rival.hello, hello)
    if rival and not (replaced or yields) and alive is None:
        return Reply(Act.PING)
    if rival and not (replaced or yields) and alive:
        if state.stopping:  # a scheduler may replace what it stops before that has saved
            return later(f"RANK={rank} is taken by {rival.info.host}, which is stopping.")
        if hello.who:
            return taken(rank, rival.info.host)
        return never(f"RANK={rank} is taken by {rival.info.host}; every node needs a RANK of its own.")
    if superseded:
        return later("another launcher has taken the place of this one.")
    if rival:
        was = f"node {rank} ({rival.info.host}) was frozen or cut off; another launcher of this rank replaces it"
        return Reply(Act.REPLACE, note=was if replaced else "")
    # A spare node is refused alone. What differs on another one is in the table that all nodes print.
    if config.spares and (state.running or rank >= config.nodes) and (why := membership.misfit(member)):
        return never(why)
    if state.running and not (config.spares and rank not in state.places):
        later_on = f"node {rank} ({info.host}) is present, and joins at the next attempt"
        return later("the job is running without this node; waiting for its next attempt.", later_on)
    return Reply(Act.ADMIT)


class Reservation(NamedTuple):
    """For whom a node rank is kept, and until when, by the loop's clock: `who` asked for it, or the launcher that has it."""

    who: str
    until: float


def give_place(
    kept: dict[int, Reservation], present: Collection[int], config: RendezvousConfig, ask: wire.Ask, now: float
) -> Reply | wire.Assigned:
    """What the launcher that leads answers who asks for a node rank; it keeps the rank. `present` are the ranks of members.

    The same launcher gets its rank again, then comes one that its machine had, then the lowest. A rank is free if no member has
    it, and it is kept for nobody else.
    """
    if ask.job != config.job:
        ours, theirs = config.job or "no --rdzv-id, --run-dir or SLIPWAY_TOKEN", ask.job or "none"
        return never(
            f"the launcher at this address belongs to another job ({ours}) than this one ({theirs}). Give all nodes of a job the "
            "same name, and each job a MASTER_PORT of its own."
        )
    others = {rank for rank, one in kept.items() if one.until > now and one.who != ask.who}
    free = [rank for rank in range(1, config.launchers) if rank not in others and rank not in present]
    own = [rank for rank, one in kept.items() if one.who == ask.who]
    held = [rank for rank in ask.held if rank in free]
    rank = next(iter((*own, *held, *free)), None)
    if rank is None:
        return later(f"all {config.launchers} places are taken; waiting for one to become free.")
    for before in own:
        del kept[before]
    kept[rank] = Reservation(ask.who, now + KEPT_SECONDS)
    return wire.Assigned(rank)


def gives_way(state: State, rival: wire.Hello, hello: wire.Hello) -> bool:
    """Whether a launcher that asked for its rank, and took part in nothing yet, yields to one that has this rank of its own."""
    mine = bool(hello.info.nonce) or not hello.who
    return bool(rival.who) and not rival.info.nonce and mine and not state.running


def is_idle(state: State, config: RendezvousConfig, node_rank: int) -> bool:
    """Whether this node has no part in the attempt that runs or is about to, as a spare node."""
    return bool(config.spares and state.places) and node_rank not in state.places


def has_enough(state: State, config: RendezvousConfig, leaving: Collection[int] = ()) -> bool:
    """Whether enough launchers are here for another attempt, spare ones among them, once those leave."""
    return len(state.links.keys() - {*leaving}) >= config.enough


def outlives(state: State, config: RendezvousConfig, leaving: Collection[int]) -> bool:
    """Whether the job goes on when these nodes leave: with their replacements, or an elastic one with enough others, node
    0 among them, or with a spare node that leads in its place.
    """
    if any(stop.word != Word.STOPPED for stop in state.stopping.values()):
        return False  # its user stopped it for good
    remain = (len(state.membership.ranks) if state.membership else 0) - len(leaving)
    noticed = all(rank in state.stopping and state.stopping[rank].notice for rank in leaving)
    if config.replaced or (noticed and config.awaits):
        return remain > 0 or state.membership is None  # between two attempts everybody else remains
    successors = {member.info.node_rank for member in find_successors(state, config)}
    if config.node_rank in leaving and (successors <= {*leaving} or not state.running):
        return False
    if config.spares:
        return not state.running or has_enough(state, config, leaving)
    return config.enough < config.nodes and (config.enough <= remain or not state.running)


def find_successors(state: State, config: RendezvousConfig) -> list[Member]:
    """The spare nodes that can lead if this launcher is lost while an attempt runs, in the order in which they are asked to."""
    if not (config.succeeds and state.running and state.membership):
        return []
    members = state.membership.members
    return [members[rank] for rank in sorted(members) if rank not in state.places and members[rank].hello.door]


def name_successors(state: State, config: RendezvousConfig) -> Effects:
    """While an attempt runs, all launchers know which spare nodes lead if this one is lost."""
    spares = find_successors(state, config)[:SUCCESSORS]
    places = [(one.info.node_rank, one.info.host, one.address, one.hello.door) for one in spares]
    return [Send(wire.Successor(*place, first=place is places[0])) for place in places]


def admit(state: State, config: RendezvousConfig, member: Member, link: Link, now: float) -> Effects:
    """Make a launcher a member."""
    assert state.membership
    rank = member.info.node_rank
    state.membership.admit(member)
    state.links[rank] = link
    state.changes += not is_idle(state, config, rank)
    if not state.membership.fits(member):
        state.odd_since = min(state.odd_since, now)
    left = max(0.0, state.deadline - now)
    welcome = Send(wire.Welcome(left, state.membership.own.host, config.heartbeat, config.node_rank), link)
    if not state.running:
        return [welcome]
    waits = f"node {rank} ({member.info.host}) waits as a spare node"
    return [welcome, Send(state.start_of(rank), link), waits, *name_successors(state, config)]


def lose(state: State, config: RendezvousConfig, rank: int, ended: str, at: float = 0.0) -> Effects:
    """A launcher's connection ended: a lost node during the run, a member less before it.

    It was lost `at` the time of its last sign of life: its peers may have failed since, because of that.
    """
    idle = is_idle(state, config, rank)
    del state.links[rank]
    state.changes += not idle
    if state.membership is None:
        return []
    host = state.membership.members[rank].info.host
    if state.running and not idle:
        return note_outcome(state, Outcome(rank, host, Word.LOST, at, cause=Cause(text=ended)))
    state.membership.vacate(rank)
    state.expected.discard(rank)
    if not state.running:
        return []
    left = len(state.links.keys() - state.places.keys())
    line = f"spare node {rank} ({host}) is lost: {ended}; spare nodes that are left: {left}"
    return [line, *name_successors(state, config)]


def note_outcome(state: State, outcome: Outcome) -> Effects:
    """Note how the run ended on a node (the first word counts), and warn the others of the first that ended badly.

    When one node fails, all report: to pass on each report to all would take the square of their number in messages.
    """
    if outcome.node_rank in state.outcomes:
        return []
    state.outcomes[outcome.node_rank] = outcome
    if outcome.good or state.failed:
        return []
    state.failed = True
    return [Send(wire.News(outcome), but=outcome.node_rank)]


def is_settled(state: State, config: RendezvousConfig, remaining: Collection[int], now: float, patience: float) -> bool:
    """Whether there is nobody left to wait for before the node infos are compared: for so many seconds of `patience` for others
    once a launcher is here that does not fit.
    """
    membership = state.membership
    assert membership
    state.enough_since = min(state.enough_since, now) if membership.enough else math.inf
    if state.enough_since <= now < state.enough_since + REDIRECT_SECONDS and may_run_elsewhere(config, membership):
        return False
    if state.odd_since < math.inf:
        return membership.everyone or now >= state.odd_since + patience
    if membership.complete or now >= state.enough_since + config.window:
        return True
    if config.spares and membership.newest and not remaining:
        # A launcher that did not lead the last attempt does not know who else was lost with the one that did. All others who
        # ran it may come yet, after the spare nodes, which have no workers to end; and they have the newest snapshot in memory.
        return membership.enough and len(membership.held) >= config.nodes - 1
    return membership.enough and bool(state.expected) and state.expected <= membership.members.keys()


def probe(state: State, file: str, attempt: int) -> Effects:
    """Have each node that is to take part in the next attempt connect to the next one, and look for a file."""
    assert state.membership
    ranks, members = state.membership.participants, state.membership.members
    state.places = {rank: place for place, rank in enumerate(ranks)}
    state.neighbours = dict(zip(ranks, (*ranks[1:], *ranks[:1]), strict=True))
    state.round, state.probed = state.round + 1, {}
    effects: Effects = []
    for rank, there in state.neighbours.items():
        place = there, members[there].address, members[there].hello.port, members[there].hello.key
        effects.append(Send(wire.Probe(state.round, *place, file, attempt), state.links[rank]))
    return effects


def turn_away(state: State, rank: int) -> Link:
    """Have a launcher leave that does not fit, or cannot be led by one that does not; its link."""
    assert state.membership
    state.membership.vacate(rank)
    state.odd_since = math.inf
    return state.links.pop(rank)


def begin(state: State, config: RendezvousConfig, start: wire.Start) -> Effects:
    """The attempt starts on the nodes that have places; the others that are here wait as spare nodes."""
    assert state.membership
    state.running, state.start, state.processes, state.nonce = True, start, start.processes, start.nonce
    starts = [Send(state.start_of(rank), state.links[rank]) for rank in state.membership.ranks]
    return [*starts, *name_successors(state, config)]


def end(state: State, message: wire.End | Ending) -> Effects:
    """The attempt ends, or the waiting for it."""
    state.membership, state.running = None, False
    return [Send(message)]


def disband(state: State) -> Collection[Link]:
    """Lead nobody any more. The links are to be cut, so that all launchers look for another leader."""
    links, state.links, state.membership, state.running = state.links, {}, None, False
    return links.values()


def step(state: State, config: RendezvousConfig, member: Member, message: object) -> Effects:
    """What a message of a member does. What no rule is for is a sign of life, as every message is."""
    rule = MESSAGES.get(type(message), {}).get(state.stage)
    return rule(state, config, member, message) if rule else []


def _probed(state: State, config: RendezvousConfig, member: Member, probed: wire.Probed) -> Effects:
    """The leader notes it, if it answers the newest `probe`."""
    if probed.round == state.round:
        state.probed[member.info.node_rank] = probed
    return []


def _report(state: State, config: RendezvousConfig, member: Member, report: wire.Report) -> Effects:
    """The leader notes it, if the node takes part; the others receive the first failure (`news`)."""
    rank, own = member.info.node_rank, report.outcome
    if rank not in state.places:
        return []
    return note_outcome(state, replace(own, node_rank=rank, host=member.info.host, time=own.time - member.offset))


def _stuck(state: State, config: RendezvousConfig, member: Member, stuck: wire.Stuck) -> Effects:
    """The leader notes it, and looks for the cause once no node makes progress."""
    rank = member.info.node_rank
    known = () if stuck.first else state.telling.get(rank, ())
    state.telling[rank] = (*known, replace(stuck.dump, node_rank=rank))[:RANKS]
    if len(state.telling[rank]) == state.processes:
        state.dumps[rank] = state.telling[rank]
    return []


def _moving(state: State, config: RendezvousConfig, member: Member, moving: wire.Moving) -> Effects:
    """The leader forgets what `stuck` said."""
    state.dumps.pop(member.info.node_rank, None)
    return []


def _stopping(state: State, config: RendezvousConfig, member: Member, stopping: wire.Stopping) -> Effects:
    """The others receive it and stop. If the job continues without this node, only this node leaves, once no attempt runs."""
    rank = member.info.node_rank
    stop, before = replace(stopping, node_rank=rank, host=member.info.host), state.stopping.get(rank)
    if state.running and is_idle(state, config, rank):
        return []
    if before and before.notice != stop.notice and stop.word == Word.STOPPED:
        return []  # a machine that a notice named goes down with a SIGTERM: what came first counts
    state.stopping[rank] = stop
    if not outlives(state, config, state.stopping):
        return [Send(stop, but=rank)]
    if state.running:
        return []
    del state.stopping[rank]
    end = Send(wire.End(CODE_OF[stop.word], (f"{stop.text}: it leaves the job",)), state.links[rank])
    return [end, *lose(state, config, rank, "it leaves")]  # at once: a start that still counted on it would fail


MESSAGES: Mapping[type, Mapping[Stage, Callable[[State, RendezvousConfig, Member, Any], Effects]]] = {
    wire.Probed: {Stage.GATHERING: _probed},
    wire.Report: {Stage.RUNNING: _report},
    wire.Stuck: {Stage.RUNNING: _stuck},
    wire.Moving: {Stage.RUNNING: _moving},
    wire.Stopping: dict.fromkeys(Stage, _stopping),
}
