"""What the launcher that leads does about others: whom it admits, and what their messages do."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from participants import make_info, make_outcome

from slipway.launch.rendezvous.config import RendezvousConfig
from slipway.launch.rendezvous.leadership import REDIRECT_SECONDS
from slipway.launch.rendezvous.membership import Member, Membership
from slipway.launch.rendezvous.messages import (
    Ask,
    Assigned,
    Hello,
    Led,
    NodeInfo,
    Pong,
    Probed,
    Refused,
    Report,
    Stopping,
)
from slipway.launch.rendezvous.rules import (
    KEPT_SECONDS,
    Act,
    Reply,
    Reservation,
    Send,
    State,
    assess,
    give_place,
    is_settled,
    lose,
    outlives,
    probe,
    step,
)
from slipway.protocol.errors import CONFIGURATION, PEER


def make_config(nodes: int = 2, spares: int = 0, node_rank: int = 0, **more: Any) -> RendezvousConfig:
    return RendezvousConfig(
        node_rank=node_rank, nodes=nodes, spares=spares, address="node0", port=29500, timeout=1.0, folder=Path(), say=print, **more
    )  # fmt: skip


def make_member(info: NodeInfo, process: str = "p", **hello: Any) -> Member:
    return Member(Hello(process, 0.0, 1, "key", info, **hello), None, 0.0)


def make_state(config: RendezvousConfig, *members: Member, **more: Any) -> State:
    """Of a leader that gathers launchers; these are members, with connections."""
    membership = Membership(
        own=make_info(config.node_rank, config.nodes),
        nodes=config.nodes,
        least=config.enough,
        process=f"launcher {config.node_rank}",
        allow_uneven=False,
        doubtful=False,
        spares=config.spares,
    )
    for member in members:
        membership.admit(member)
    links = {member.info.node_rank: cast(Any, SimpleNamespace()) for member in members}
    return State(membership, links=links, **more)


def case(*told: Any, **more: Any) -> Callable[[], Reply]:
    """A launcher that said hello, and what the one that leads knows of it."""
    return partial(assess, *told, **more)


HERE = make_member(make_info(1, 2), "first")
NEW = make_member(make_info(1, 2))
RUNNING: dict[str, Any] = {"running": True, "places": {0: 0, 1: 1}}
LED = Led(make_info(2, 2), "10.0.0.3", 4242)


@pytest.mark.parametrize(
    ("hello", "act", "says"),
    [
        (case(make_state(make_config()), make_config(), NEW), Act.ADMIT, ""),
        (case(State(), make_config(), NEW), Act.WAIT, ""),
        (case(State(), make_config(), NEW, redirect=LED), Act.CLOSE, "10.0.0.3"),
        (case(State(), make_config(), NEW, waited=True), Act.CLOSE, "later: node 0 is between two attempts"),
        (case(State(), make_config(node_rank=2), NEW, waited=True), Act.CLOSE, ""),
        (
            case(make_state(make_config(), nonce="a"), make_config(), make_member(make_info(1, 2, nonce="b"))),
            Act.CLOSE,
            "elsewhere: another job",
        ),
        (case(make_state(make_config(), nonce="a"), make_config(), make_member(make_info(0, 2, nonce="b"))), Act.CLOSE, "elsewhere"),
        (case(make_state(make_config(), nonce="a"), make_config(), make_member(make_info(1, 2, nonce="a"))), Act.ADMIT, ""),
        (case(make_state(make_config()), make_config(), make_member(make_info(2, 2))), Act.CLOSE, "never: RANK=2, but"),
        (case(make_state(make_config(), HERE), make_config(), NEW), Act.PING, ""),
        (case(make_state(make_config(), HERE), make_config(), NEW, alive=True), Act.CLOSE, "never: RANK=1 is taken"),
        (
            case(make_state(make_config(), HERE, stopping={0: Stopping("SIGTERM", "t")}), make_config(), NEW, alive=True),
            Act.CLOSE,
            "later: RANK=1 is taken by host1, which is stopping",
        ),
        (case(make_state(make_config(), HERE), make_config(), NEW, alive=False), Act.REPLACE, ""),
        (case(make_state(make_config(), HERE), make_config(), make_member(HERE.info, "first")), Act.ADMIT, ""),
        (
            case(make_state(make_config(), make_member(make_info(1, 2), "first", frozen=True)), make_config(), NEW),
            Act.REPLACE,
            "node 1 (host1) was frozen",
        ),
        (case(make_state(make_config(), HERE), make_config(), NEW, alive=False, superseded=True), Act.CLOSE, "later: another"),
        (case(make_state(make_config(), **RUNNING), make_config(), NEW), Act.CLOSE, "later: the job is running"),
        (
            case(make_state(make_config(spares=1), **RUNNING), make_config(spares=1), make_member(make_info(2, 2))),
            Act.ADMIT,
            "",
        ),
        (
            case(
                make_state(make_config(spares=1), **RUNNING),
                make_config(spares=1),
                make_member(make_info(2, 2, torch="2.9.0")),
            ),
            Act.CLOSE,
            "never: this spare node differs",
        ),
    ],
)  # fmt: skip
def test_a_hello_is_answered_by_the_first_rule_that_applies(hello: Callable[[], Reply], act: Act, says: str) -> None:
    reply, how = (
        hello(),
        {(PEER, True): "later: ", (CONFIGURATION, True): "elsewhere: ", (CONFIGURATION, False): "never: "},
    )
    said = reply.note
    if isinstance(reply.message, Refused):
        said = how[reply.message.code, reply.message.again] + reply.message.reason
    elif reply.message:
        said = reply.message.address
    assert (reply.act, said[: len(says)]) == (act, says), said
    assert bool(said) == bool(says)


def test_a_lost_launcher_has_no_rank_that_another_one_could_take() -> None:
    state = make_state(make_config(spares=1), HERE, running=True, places={0: 0, 2: 1})
    del state.links[1]
    assert assess(state, make_config(spares=1), replace(NEW, address="10.0.0.2")).act is Act.ADMIT


TERM, NOTICE = Stopping("SIGTERM", "t"), Stopping("SIGTERM", "n", notice=True)


@pytest.mark.parametrize(
    ("config", "stage", "stops", "sent", "left"),
    [
        (make_config(), {}, [TERM], ["stopping to all but 1"], True),
        (make_config(spares=1), {}, [TERM], ["end to 1"], False),
        (make_config(spares=1), {}, [TERM, NOTICE], ["end to 1"], False),
        (make_config(), RUNNING, [TERM], ["stopping to all but 1"], True),
        (make_config(), RUNNING, [NOTICE, TERM], ["stopping to all but 1"], True),  # the machine goes down: no second reason
        (make_config(spares=1), {"running": True, "places": {0: 0, 2: 1}}, [TERM], [], True),  # a spare node
    ],
)  # fmt: skip
def test_a_stop_is_passed_on_unless_the_job_continues_without_the_node(
    config: RendezvousConfig, stage: dict[str, Any], stops: list[Stopping], sent: list[str], left: bool
) -> None:
    state, found = make_state(config, HERE, **stage), []
    link = state.links[1]
    for stop in stops:
        for effect in step(state, config, HERE, stop) if 1 in state.links else ():
            assert isinstance(effect, Send)
            kind = type(effect.message).__name__.lower()
            found.append(f"{kind} to 1" if effect.link is link else f"{kind} to all but {effect.but}")
    assert (found, 1 in state.links) == (sent, left)


INT = Stopping("SIGINT", "i")
ELASTIC, REPLACED = make_config(3, least=2), make_config(3, replaced=True)
THREE: dict[str, Any] = {"running": True, "places": {0: 0, 1: 1, 2: 2}}


@pytest.mark.parametrize(
    ("config", "stage", "stops", "goes_on"),
    [
        (make_config(3), THREE, {2: TERM}, False),
        (ELASTIC, THREE, {2: TERM}, True),
        (ELASTIC, {}, {2: TERM}, True),  # while nodes wait
        (ELASTIC, THREE, {1: TERM, 2: TERM}, False),  # too few remain
        (ELASTIC, THREE, {0: TERM}, False),  # it leads
        (ELASTIC, THREE, {2: INT}, False),  # its user stopped it
        (REPLACED, THREE, {0: TERM}, True),
        (REPLACED, THREE, {0: TERM, 2: TERM}, True),
        (REPLACED, {"running": True, "membership": None}, {2: TERM}, True),  # between two attempts
        (REPLACED, THREE, {0: TERM, 1: TERM, 2: TERM}, False),  # the whole job is deleted
        (REPLACED, THREE, {0: TERM, 2: INT}, False),
        (make_config(3, awaits=True), THREE, {2: NOTICE}, True),
        (make_config(3, awaits=True), THREE, {2: TERM}, False),
    ],
)  # fmt: skip
def test_a_job_goes_on_without_the_nodes_that_leave_where_they_are_replaced_or_enough_others_remain(
    config: RendezvousConfig, stage: dict[str, Any], stops: dict[int, Stopping], goes_on: bool
) -> None:
    state = make_state(config, *(make_member(make_info(rank, 3)) for rank in range(3)))
    state = replace(state, **{"stopping": stops} | stage)
    assert outlives(state, config, stops) is goes_on


def test_the_first_failure_is_passed_on_and_no_other() -> None:
    config = make_config()
    state = make_state(config, HERE, **RUNNING)
    failed = [step(state, config, HERE, Report(make_outcome(5, "failed"))) for _ in range(2)]
    other = step(state, config, make_member(make_info(0, 2)), Report(make_outcome(0, "failed")))
    assert [len(effects) for effects in (*failed, other)] == [1, 0, 0]
    assert (state.outcomes.keys(), state.outcomes[1].host, state.failed) == ({0, 1}, "host1", True)
    assert lose(state, config, 1, "gone") == []
    assert state.outcomes[1].word == "failed", "the first word counts"


def test_a_message_without_a_rule_at_this_stage_changes_nothing() -> None:
    config = make_config()
    state = make_state(config, HERE)
    assert step(state, config, HERE, Report(make_outcome(1, "failed"))) == []
    assert step(state, config, HERE, Pong()) == []
    assert state.outcomes == {}


def test_only_the_answer_to_the_newest_probe_counts() -> None:
    config = make_config()
    state = make_state(config, make_member(make_info(0, 2), "launcher 0"), HERE)
    effects = probe(state, "file", 3)
    assert [cast(Any, effect).message.node_rank for effect in effects] == [1, 0], "each connects to the next one"
    for number in (0, 1, 2):
        step(state, config, HERE, Probed(number, "", True))
    assert state.probed == {1: Probed(1, "", True)}


ALL = [make_member(make_info(rank, 2)) for rank in range(3)]
RAN = [make_member(make_info(rank, 2, tries=1, attempt=1, place=place)) for rank, place in ((0, 0), (1, 1), (2, -1))]


@pytest.mark.parametrize(
    ("spares", "members", "more", "remaining", "settled"),
    [
        (0, ALL[:2], {}, (), True),
        (0, ALL[:1], {}, (), False),
        (0, ALL[:2], {"odd_since": 0.0}, (), True),  # all are here, and one of them does not fit
        (0, ALL[:1], {"odd_since": 0.0}, (), False),
        (0, ALL[:1], {"odd_since": -5.0}, (), True),
        (1, [ALL[0], ALL[2]], {}, (), False),  # node 1 may come within the window
        (1, [ALL[0], ALL[2]], {"enough_since": -30.0}, (), True),
        (1, [ALL[0], ALL[2]], {"expected": {0, 2}}, (0, 2), True),
        (1, [ALL[0], RAN[1]], {}, (), True),  # a new node 0, and all but one of those that ran
        (1, [ALL[0], RAN[2]], {}, (), False),
    ],
)  # fmt: skip
def test_the_leader_waits_until_nobody_else_need_be_waited_for(
    spares: int, members: list[Member], more: dict[str, Any], remaining: tuple[int, ...], settled: bool
) -> None:
    config = replace(make_config(spares=spares), window=30.0)
    members = [replace(one, hello=replace(one.hello, process=f"launcher {one.info.node_rank}")) for one in members]
    assert is_settled(make_state(config, *members, **more), config, remaining, now=0.0, patience=5.0) == settled


def test_a_leader_waits_for_one_that_may_lead_the_job_elsewhere() -> None:
    config = replace(make_config(spares=1), window=0.0)
    new = [replace(ALL[0], hello=replace(ALL[0].hello, process="launcher 0")), ALL[1]]
    state = make_state(config, *new)
    assert is_settled(state, config, (), now=0.0, patience=5.0)
    veteran = make_member(make_info(0, 2, tries=1, attempt=1), "launcher 0")
    state = make_state(config, veteran, ALL[1])
    assert [is_settled(state, config, (), now, 5.0) for now in (0.0, REDIRECT_SECONDS - 1, REDIRECT_SECONDS)] == [
        False,
        False,
        True,
    ]


NOW = 1000.0


def kept(**ranks: tuple[int, float]) -> dict[int, Reservation]:
    """For whom ranks are kept: `a=(1, 5)` is rank 1 for a, for 5 more seconds."""
    return {rank: Reservation(who, NOW + left) for who, (rank, left) in ranks.items()}


@pytest.mark.parametrize(
    ("reserved", "present", "ask", "rank"),
    [
        ({}, (0,), Ask("a", "j"), 1),
        ({}, (0, 1), Ask("a", "j"), 2),
        ({}, (0,), Ask("a", "j", (2,)), 2),
        ({}, (0, 2), Ask("a", "j", (2,)), 1),
        ({}, (0,), Ask("a", "j", (0, 7, 3)), 3),
        (kept(b=(1, 5.0)), (0,), Ask("a", "j"), 2),
        (kept(b=(1, 5.0)), (0,), Ask("a", "j", (1,)), 2),
        (kept(b=(1, 0.0)), (0,), Ask("a", "j"), 1),
        (kept(a=(2, 5.0)), (0,), Ask("a", "j"), 2),
        (kept(a=(2, -5.0)), (0,), Ask("a", "j"), 2),
        (
            kept(a=(2, 5.0)),
            (0, 2),
            Ask("a", "j"),
            2,
        ),  # its container was started again, and its old connection still counts
        (kept(b=(2, 5.0)), (0, 1, 3), Ask("a", "j"), None),
        ({}, (0, 1, 2, 3), Ask("a", "j"), None),
    ],
)
def test_who_asks_gets_its_own_rank_or_one_it_held_or_the_lowest_that_is_free(
    reserved: dict[int, Reservation], present: tuple[int, ...], ask: Ask, rank: int | None
) -> None:
    answer = give_place(reserved, present, make_config(4, job="j"), ask, NOW)
    if rank is None:
        assert isinstance(answer, Reply)
        assert answer.message == Refused(PEER, "all 4 places are taken; waiting for one to become free.", again=True)
        assert "a" not in {one.who for one in reserved.values()}
    else:
        assert answer == Assigned(rank)
        mine = {rank: one.until for rank, one in reserved.items() if one.who == "a"}
        assert mine == {rank: NOW + KEPT_SECONDS}


def test_spare_places_are_given_after_the_others() -> None:
    reserved: dict[int, Reservation] = {}
    answers = [give_place(reserved, (0,), make_config(2, 1, job="j"), Ask(who, "j"), NOW) for who in "abc"]
    assert answers[:2] == [Assigned(1), Assigned(2)]
    assert isinstance(answers[2], Reply)


@pytest.mark.parametrize(("job", "theirs"), [("--rdzv-id mine", "none"), ("", "--rdzv-id other")])
def test_a_launcher_of_another_job_gets_no_rank_and_both_are_named(job: str, theirs: str) -> None:
    reserved: dict[int, Reservation] = {}
    answer = give_place(reserved, (0,), make_config(job=job), Ask("a", theirs), NOW)
    assert isinstance(answer, Reply)
    assert isinstance(answer.message, Refused)
    assert (answer.message.code, answer.message.again, reserved) == (CONFIGURATION, False, {})
    assert f"({theirs})" in answer.message.reason
    assert f"({job or 'no --rdzv-id'}" in answer.message.reason


ASKED = make_member(make_info(1, 2), "asked", who="a")
VETERAN = make_info(1, 2, nonce="12ab", tries=1)


@pytest.mark.parametrize(
    ("info", "who", "running", "act", "code"),
    [
        (VETERAN, "b", False, Act.REPLACE, None),
        (VETERAN, "", False, Act.REPLACE, None),
        (make_info(1, 2), "", False, Act.REPLACE, None),  # its user gave it this rank
        (make_info(1, 2), "b", False, Act.CLOSE, PEER),
        (VETERAN, "b", True, Act.CLOSE, PEER),
        (VETERAN, "", True, Act.CLOSE, CONFIGURATION),
        (make_info(0, 2), "b", False, Act.CLOSE, PEER),
        (make_info(0, 2), "", False, Act.CLOSE, CONFIGURATION),
    ],
)
def test_a_rank_that_was_asked_for_is_given_up_to_whoever_has_it_of_its_own(
    info: NodeInfo, who: str, running: bool, act: Act, code: int | None
) -> None:
    config = make_config(process="launcher 0")
    state = make_state(config, ASKED, running=running)
    reply = assess(state, config, make_member(info, who=who), alive=True)
    assert reply.act is act
    assert (reply.message.code if isinstance(reply.message, Refused) else None) == code
