"""What arrives from the network becomes a message or a MalformedError, whatever it is."""

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from participants import make_info, make_outcome

from slipway.check.finding import sick
from slipway.launch.hangs.stack_dump import Call, Frame, Group, StackDump
from slipway.launch.rendezvous import messages as wire
from slipway.launch.rendezvous.codec import LINE_BYTES, OtherProtocolError, decode, encode
from slipway.launch.rendezvous.messages import NodeInfo
from slipway.launch.verdict.cause import Cause, CauseKind
from slipway.launch.verdict.ledger import KINDS, Ledger, Waited
from slipway.launch.verdict.restarts import Ending
from slipway.launch.verdict.verdict import judge
from slipway.protocol.causes import Sign
from slipway.protocol.decoding import MalformedError

HELLO = wire.Hello("process", 1.5, 4242, "key", make_info(1, 4, gpus=("H200", "H200"), snapshot=7))
BOOKED = Ledger(tuple(map(float, range(len(KINDS)))), 2, 1000.5, (Waited(3, 4.5),))
EXAMPLES = (
    wire.Greeting("c0ffee" * 5 + "00"),
    wire.Proof("10.0.0.3"),
    HELLO,
    wire.Ask("a" * 64, "--rdzv-id train", (2, 1)),
    wire.Assigned(3),
    wire.Welcome(600.0, "host0", 30.0),
    wire.Refused(78, "no"),
    wire.Led(make_info(2, 2, nonce="a1"), "10.0.0.3", 4242),
    wire.Waiting("waiting for nodes"),
    wire.Probe(1, 2, None, 4242, "key", "file", 3),
    wire.Probed(1, "", True),
    wire.Knock("key"),
    wire.Here(3),
    wire.Start(3, "run", 3, 2, 8, 29501, False, False, 2, 1, 60, BOOKED, 40, ("a note",)),
    wire.Successor(2, "host2", None, 4242, first=True),
    wire.Peer(make_info(1, 4, findings=(sick("GPU 0", "lost"),)), -1.5),
    wire.End(76, ("line",)),
    wire.Report(make_outcome(1, "failed", rank=3, evidence="ValueError: é×✓")),
    wire.Report(
        make_outcome(1, "failed", cause=Cause(CauseKind.RAISED, "x", -9, signs=(Sign.ECHO,), store=("h", "1", "2")))
    ),
    wire.News(make_outcome(2, "lost")),
    wire.Stopping("SIGTERM", "the stop file", 1, "host1"),
    Ending(judge([make_outcome(0), make_outcome(1, "unhealthy"), make_outcome(2, "peer")]), 1.0, None, (1,), 2),
    wire.Stuck(
        StackDump(
            3,
            1,
            frames=(Frame("train.py", 7, "load"),),
            calls=(Call("1", 56, "all_reduce", "Float [4]", 1.5, False),),
            groups=(Group("1", ((2, 3, 1),), 56),),
            cores=0.5,
        ),
        first=True,
    ),
    wire.Moving(),
    wire.Ping(),
    wire.Pong(),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def test_every_kind_of_message_has_an_example() -> None:
    assert {type(example) for example in EXAMPLES} == set(wire.KINDS.values())


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_wire(message: object) -> None:
    line = encode(message)
    assert line.count(b"\n") == 1
    assert decode(line) == message


@given(st.binary(max_size=300))
def test_random_bytes_are_malformed(line: bytes) -> None:
    with pytest.raises(MalformedError):
        decode(line)


@given(st.sampled_from(EXAMPLES), st.data())
def test_a_truncated_message_is_malformed(message: object, data: st.DataObject) -> None:
    line = encode(message).rstrip()
    with pytest.raises(MalformedError):
        decode(line[: data.draw(st.integers(0, len(line) - 1))])


@given(st.sampled_from(EXAMPLES), st.data(), JSON)
@settings(max_examples=300)
def test_a_message_with_a_changed_field_is_malformed_or_well_typed(
    message: object, data: st.DataObject, value: object
) -> None:
    fields = json.loads(encode(message))
    where = fields
    while isinstance(where, dict) and where:
        name = data.draw(st.sampled_from(sorted(where)))
        if not isinstance(where[name], dict) or data.draw(st.booleans()):
            where[name] = value
            break
        where = where[name]
    try:
        parsed = decode(json.dumps(fields).encode())
    except MalformedError:
        return
    assert decode(encode(parsed)) == parsed


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"[" * 60_000, "not a line of JSON"),
        (b'{"rendezvous":3,"type":"here","node_rank":' + b"9" * 5_000 + b"}", "not a line of JSON"),
        (b'{"rendezvous":3,"type":"here","node_rank":99999999999999999}', "out of range"),
        (b'{"rendezvous":3,"type":"here","node_rank":true}', "not of type int"),
        (b'{"rendezvous":3,"type":"welcome","seconds":Infinity,"host":""}', "out of range"),
        (b'{"rendezvous":3,"type":"welcome","seconds":NaN,"host":""}', "out of range"),
        (b'{"rendezvous":3,"type":"__class__"}', "unknown type"),
        (b'{"rendezvous":3,"type":["hello"]}', "unknown type"),
        (b'{"rendezvous":3,"type":"hello"}', "process is missing"),
        (b'{"rendezvous":3,"type":"probed","round":1,"trouble":null,"sees":true}', "not of type str"),
        (b"GET / HTTP/1.1", "not a line of JSON"),
        (b'"rendezvous"', "not a message of Slipway"),
    ],
)
def test_hostile_lines_are_named(line: bytes, said: str) -> None:
    with pytest.raises(MalformedError, match=said):
        decode(line)


def test_another_version_of_the_protocol_is_told_apart() -> None:
    with pytest.raises(OtherProtocolError, match="protocol 2 there, 3 here"):
        decode(b'{"rendezvous":2,"type":"greeting","challenge":"x"}')


def test_escape_sequences_and_lone_surrogates_never_reach_a_terminal() -> None:
    waiting = decode(b'{"rendezvous":3,"type":"waiting","line":"\\u001b[2J\\nred\\ud800"}')
    assert waiting.line == " red\ufffd"
    waiting.line.encode()


@pytest.mark.parametrize("argument", ["two\nlines", "a\ttab", "\x1b[1mbold", "caf\udce9.txt", "plain"])
def test_a_node_info_is_the_same_on_both_sides(argument: str) -> None:
    info = make_info(1, 4, arguments=("--prompt", argument))
    assert decode(encode(wire.Peer(info, 0.0))).info == info


def test_a_message_above_the_limit_is_never_sent() -> None:
    with pytest.raises(ValueError, match="exceeds the limit"):
        encode(wire.Waiting("x" * LINE_BYTES))


def test_a_node_info_with_endless_arguments_still_fits_and_still_tells_them_apart() -> None:
    infos = [make_info(0, 2, arguments=("x" * 100_000, tail), gpus=("g" * 9_999,) * 999) for tail in "ab"]
    assert all(len(encode(wire.Hello("p", 0.0, 1, "k", info))) < LINE_BYTES for info in infos)
    assert infos[0].arguments != infos[1].arguments


def test_unknown_fields_of_a_known_message_are_ignored() -> None:
    assert decode(b'{"rendezvous":3,"type":"ping","later":[1]}') == wire.Ping()


def test_a_launcher_that_imports_the_rendezvous_has_not_paid_for_asyncio() -> None:
    heavy = "{'asyncio', 'torch', 'numpy', 'ssl'}"
    program = f"import sys, slipway.launch.rendezvous; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_node_info_needs_nothing_but_what_every_launcher_knows() -> None:
    info = make_info(0, 1)
    assert isinstance(info, NodeInfo)
    assert (info.driver, info.snapshot, info.attempt) == (None, None, 0)
