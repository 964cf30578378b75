"""Who may lead a job with spare nodes (docs/rendezvous.md, "When node 0 is lost"), without network and clock.

Each attempt runs on as many launchers as there are nodes. Where these are more than half of all launchers
(RendezvousConfig.succeeds), any two attempts have a launcher in common, and a launcher takes part in one attempt at a time.
"""

from collections.abc import Collection, Sequence

from slipway.launch.rendezvous.config import Endpoint, RendezvousConfig
from slipway.launch.rendezvous.membership import Membership, fits, has_missed
from slipway.launch.rendezvous.messages import Hello, Led, NodeInfo, Successor

VOTE_SECONDS = 7.0  # for which a vote counts; a launcher that waits for the one that is to lead votes every 5 s
REDIRECT_SECONDS = 15.0  # for which it counts that another launcher leads the job; it says so more often
YIELD_SECONDS = 10.0  # that node 0 leaves to the launcher which leads in its place before it offers to lead again
NEXT_SECONDS = 5.0  # between two spare nodes that are asked to lead in node 0's place


class Leadership:
    """What a launcher that may lead knows from one attempt to the next.

    `remaining` are the nodes that continue after the last attempt, which it led: nobody else need be waited for.
    """

    def __init__(self, config: RendezvousConfig) -> None:
        self._config = config
        self.remaining: frozenset[int] = frozenset()
        self._votes: dict[int, tuple[str, float]] = {}  # by node rank: the job's nonce, and when
        self._redirect: tuple[Led, float] | None = None  # on node 0: who leads in its place, and when it said so
        # The launchers that were members, each by its last hello, by their node rank, the newest last.
        self._members: dict[int, list[Hello]] = {}

    def vote(self, hello: Hello, now: float) -> bool:
        """A launcher that connects asks this one to lead, if that may be: whether its vote counts."""
        counts = self._config.succeeds and 0 <= hello.info.node_rank < self._config.launchers
        if counts:
            self._votes[hello.info.node_rank] = hello.info.nonce, now
        return counts

    def voters(self, nonce: str, now: float) -> set[int]:
        """The node ranks of this job's launchers that ask this one to lead."""
        return {rank for rank, (job, at) in self._votes.items() if at > now - VOTE_SECONDS and job in ("", nonce)}

    def clear_votes(self) -> None:
        """An attempt begins: each launcher has found one that leads."""
        self._votes.clear()

    def joined(self, hello: Hello) -> None:
        """A launcher became a member."""
        others = [one for one in self._members.get(hello.info.node_rank, []) if one.process != hello.process]
        self._members[hello.info.node_rank] = [*others, hello]

    def is_superseded(self, hello: Hello) -> bool:
        """Whether another launcher has taken the place of this one, because it was a member later, or in an attempt that this one
        missed. That other one may be in a group of launchers that cannot be reached, and each rank counts once.
        """
        members = self._members.get(hello.info.node_rank, []) if self._config.succeeds else []
        places = [place for place, one in enumerate(members) if one.process == hello.process]
        later = members[places[0] + 1 :] if places else []
        return any(not has_missed(one, hello) for one in later) or any(has_missed(hello, one) for one in members)

    def follow(self, led: Led, now: float) -> None:
        """Note on node 0 which launcher leads in its place."""
        self._redirect = led, now

    def redirect(self, now: float) -> Led | None:
        """Where launchers are sent that ask node 0 to lead, since another one leads the job."""
        return self._redirect[0] if self._redirect and now < self._redirect[1] + REDIRECT_SECONDS else None

    def head_start(self, *, led: bool, lost: bool) -> float:
        """How many seconds this launcher waits before it leads, so that the leader of the last attempt may lead again; none if
        this launcher `led`, or that leader is `lost`.

        Else node 0 does not lead at once: some launchers would follow it and some the old leader, and each leader would wait for
        the launchers of the other.
        """
        if self._config.node_rank or led:
            return 0.0
        if lost:
            self._redirect = None
        return 0.0 if lost else YIELD_SECONDS


def may_lead(config: RendezvousConfig, voters: Collection[int]) -> bool:
    """Whether a spare node leads in node 0's place: if as many launchers as an attempt needs ask it to, itself among them."""
    return config.succeeds and config.node_rank in voters and len(voters) >= config.nodes


def follows(config: RendezvousConfig, info: NodeInfo, membership: Membership | None, nonce: str) -> bool:
    """Whether node 0 follows the launcher with this info: one of another rank, in a job with spare nodes that has begun. Its
    nonce is that of the job, if any launcher that is here knows it.
    """
    if config.node_rank or not (config.succeeds and 0 < info.node_rank < config.launchers and info.nonce):
        return False
    known = nonce or (membership.nonce if membership else "")
    if membership is None or known not in ("", info.nonce):
        return known in ("", info.nonce)
    jobs, nonces = {info.job, membership.own.job} - {None}, {info.nonce, membership.own.nonce} - {""}
    return len(jobs) < 2 and len(nonces) < 2 and fits(info, membership.own, config.allow_uneven)


def may_run_elsewhere(config: RendezvousConfig, membership: Membership) -> bool:
    """Whether a spare node may lead the job, unknown to this node: with launchers that others, which are here, have replaced.

    They are as many as an attempt needs where fewer others are here that were in the job before than it has spare nodes. One
    that leads tells node 0 so within REDIRECT_SECONDS.
    """
    return bool(config.succeeds and membership.newest) and membership.veterans < config.spares


def find_leaders(
    config: RendezvousConfig, led: Endpoint, successors: Sequence[Successor], *, lost: bool
) -> list[tuple[Endpoint, float]]:
    """Where a launcher looks for one that leads, beside node 0, each with the seconds after which it asks there: the one that
    `led` last comes first, and is asked alone for a while unless it is `lost`.
    """
    places = dict.fromkeys((led, *(Endpoint(one.address or "", one.port) for one in successors)))
    others = [place for place in places if place != config.endpoint]
    skipped = led != config.endpoint and lost
    return [(place, NEXT_SECONDS * (number - skipped)) for number, place in enumerate(others)]
