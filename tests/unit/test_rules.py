"""What the launcher that leads does about others: whom it admits."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from participants import make_info

from slipway.launch.rendezvous.config import RendezvousConfig
from slipway.launch.rendezvous.membership import Member, Membership
from slipway.launch.rendezvous.messages import Hello, Led, NodeInfo, Refused, Stopping
from slipway.launch.rendezvous.rules import Act, Reply, State, assess
from slipway.protocol.errors import CONFIGURATION, PEER


def make_config(nodes: int = 2, spares: int = 0, node_rank: int = 0) -> RendezvousConfig:
    return RendezvousConfig(
        node_rank=node_rank, nodes=nodes, spares=spares, address="node0", port=29500, timeout=1.0, folder=Path(), say=print
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
