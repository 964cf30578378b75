"""Whatever connects to node 0's port during a rendezvous: it completes all the same, and memory stays bounded."""

import asyncio
import gc
import math
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

import pytest
from stage import LOOPBACK, Client, Launcher, make_info, make_outcome, play
from waiting import PATIENCE, wait_until

from slipway.launch.rendezvous import client as rendezvous_client
from slipway.launch.rendezvous import messages as wire
from slipway.launch.rendezvous import server
from slipway.launch.rendezvous.authentication import Session, key_of
from slipway.launch.rendezvous.codec import LINE_BYTES, decode, encode
from slipway.launch.rendezvous.config import Network
from slipway.launch.rendezvous.neighbour_check import VISITORS
from slipway.launch.resolve.connectivity import listen
from slipway.launch.verdict.restarts import Ending
from slipway.launch.verdict.verdict import judge
from slipway.protocol.decoding import MalformedError
from slipway.protocol.errors import CONFIGURATION, LaunchError

Make = Callable[..., Launcher]
GREETING = encode(wire.Greeting("0" * 32))
HELLO = encode(wire.Hello("p", 0.0, 1, "k", make_info(1, 2)))


@contextmanager
def waiting_node_0(launcher: Make, token: str = "") -> Iterator[Launcher]:
    """Node 0 of two waits inside the block; afterwards node 1 comes, and both must agree and finish."""
    launchers = [launcher(rank, 2, timeout=120.0, token=token) for rank in range(2)]
    launchers[0].start()
    Client(launchers[0].port).socket.close()
    yield launchers[0]
    play(launchers[1])
    launchers[0].join(10)
    assert [one.code for one in launchers] == [0, 0], launchers[0].log


def answer_to(port: int, data: bytes, *, hang_up: bool = False) -> list[object]:
    """What node 0 says to somebody who sends these bytes, until it hangs up."""
    with Client(port) as client:
        try:
            client.socket.sendall(data)
            if hang_up:
                client.socket.shutdown(socket.SHUT_WR)
            messages = []
            while message := client.receive():
                messages.append(message)
        except ConnectionError:  # node 0 hung up on a sender that was still sending
            pass
        return messages


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "not a line of JSON"),
        (b"\x16\x03\x01\x02\x00\x01\n", "not a line of JSON"),
        (b"{}\n", "not a message of Slipway"),
        (b'{"rendezvous":9,"type":"hello"}\n', "another version's launcher: protocol 9 there, 3 here"),
        (HELLO[:-20] + b"\n", "not a line of JSON"),
        (HELLO.replace(b'"attempt":0', b'"attempt":9007199254740991'), "impossible attempt: 9007199254740991"),
        (HELLO.replace(b'"failures":0', b'"failures":-1'), "impossible failures: -1"),
        (encode(wire.Ping()), "not a greeting"),
        (b"x" * (LINE_BYTES * 2), f"more than {LINE_BYTES} bytes in one line"),
        (HELLO, "not a greeting"),
        (GREETING.replace(b"00", b"", 1), "impossible nonce"),
        (GREETING + HELLO, "SLIPWAY_TOKEN differs"),
    ],
)
def test_garbage_is_answered_in_words(launcher: Make, data: bytes, said: str) -> None:
    with waiting_node_0(launcher) as node0:
        answers = answer_to(node0.port, data)
        assert (
            any(isinstance(answer, wire.Refused) and said in answer.reason for answer in answers) or len(data) > 99_999
        )
        wait_until(lambda: said in node0.log, lambda: f"{said!r}:\n{node0.log}")


def test_half_a_message_is_answered_too(launcher: Make) -> None:
    with waiting_node_0(launcher) as node0:
        refused = answer_to(node0.port, HELLO[:30], hang_up=True)[-1]
        assert isinstance(refused, wire.Refused)
        assert refused.reason.startswith("the connection ended in the middle of a message")


def test_a_launcher_that_sends_garbage_is_removed_and_the_rendezvous_goes_on(launcher: Make) -> None:
    with waiting_node_0(launcher) as node0, Client(node0.port) as turncoat:
        assert isinstance(turncoat.introduce(make_info(1, 2)), wire.Welcome)
        turncoat.socket.sendall(b"\0" * 100 + b"\n")
        assert turncoat.wait_for(wire.Refused).reason.startswith("a message was changed")


def test_a_hello_that_comes_drop_by_drop_is_cut_off(launcher: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte does not make the time for a hello begin anew."""
    monkeypatch.setattr(server, "HELLO_SECONDS", 0.5)
    with waiting_node_0(launcher) as node0, Client(node0.port) as drip:
        wait_until(lambda: not is_taken(drip.socket), "the end of a hello without an end", every=0.1)


def is_taken(connection: socket.socket) -> bool:
    """Whether the other side takes another byte."""
    try:
        connection.sendall(b"{")
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def test_strangers_leave_a_bounded_number_of_lines(launcher: Make) -> None:
    with waiting_node_0(launcher) as node0:
        for number in range(60):
            answer_to(node0.port, b'{"rendezvous":3,"type":"%d"}\n' % number)
            answer_to(node0.port, b'{"rendezvous":%d,"type":"hello"}\n' % (number + 4))
        assert len(node0.lines) < 40


def test_ten_thousand_connections_and_two_hundred_idle_ones(launcher: Make) -> None:
    with waiting_node_0(launcher) as node0, ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection((LOOPBACK, node0.port), timeout=5))
        knock(node0.port, 10_000)
        wait_until(lambda: kept() < 1_000, lambda: f"the end of {kept()} objects of 10,000 connections", every=0.2)
        assert len(node0.lines) < 40


def kept() -> int:
    """How many objects of connections this process has, node 0 among others."""
    gc.collect()
    kinds = (asyncio.StreamReader, asyncio.StreamWriter, asyncio.Task)
    return sum(isinstance(each, kinds) for each in gc.get_objects())


# In a process of its own: two threads of one interpreter hand it over only every 5 ms.
KNOCK = """
import random, socket, sys
port, times, hello = int(sys.argv[1]), int(sys.argv[2]), sys.stdin.buffer.read()
chance = random.Random(7)
for _ in range(times):
    with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
        kind = chance.randrange(4)
        if kind == 1:
            stranger.sendall(chance.randbytes(chance.randrange(1, 300)))
        elif kind == 2:
            stranger.sendall(hello[: chance.randrange(len(hello))])
        elif kind == 3 and chance.randrange(20) == 0:
            stranger.sendall(b"[" * 60_000 + b"\\n")
"""


def knock(port: int, times: int) -> None:
    """Connections one after another: some silent, some with random bytes, some with half a hello or a long line."""
    subprocess.run([sys.executable, "-c", KNOCK, str(port), str(times)], input=HELLO, check=True, timeout=120)


def test_thousands_of_open_strangers_hold_a_bounded_number_of_places(
    launcher: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest give way, so that a launcher gets in at any time."""
    monkeypatch.setattr(server, "HELLO_SECONDS", 10 * PATIENCE)  # none goes because its time is over
    with waiting_node_0(launcher) as node0, ExitStack() as stack:
        strangers = [
            stack.enter_context(socket.create_connection((LOOPBACK, node0.port), timeout=5)) for _ in range(600)
        ]
        wait_until(lambda: sum(map(_is_closed, strangers)) >= 600 - 2 - server.STRANGERS, "the end of the oldest")
        with Client(node0.port) as member:
            assert isinstance(member.introduce(make_info(1, 2)), wire.Welcome)


def _is_closed(connection: socket.socket) -> bool:
    """Whether node 0 has hung up, behind its greeting or before."""
    connection.setblocking(False)
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


def test_a_ring_listener_answers_only_who_knows_its_key(launcher: Make, port: int) -> None:
    with waiting_node_0(launcher) as node0, Client(node0.port) as insider:
        insider.introduce(make_info(1, 2))
        probe = insider.wait_for(wire.Probe)
        for line in (encode(wire.Knock("wrong")), b"x" * 99_999, b"", encode(wire.Ping())):
            with Client(probe.port) as visitor:
                visitor.socket.sendall(line)
                visitor.socket.shutdown(socket.SHUT_WR)
                with suppress(ConnectionResetError):
                    assert visitor.receive() is None
        with ExitStack() as idle:
            for _ in range(VISITORS):
                idle.enter_context(Client(probe.port))
            visitor = idle.enter_context(Client(probe.port))
            visitor.send(wire.Knock(probe.key))
            assert visitor.receive() == wire.Here(0)


def test_a_launcher_that_reads_nothing_does_not_hold_up_the_others(launcher: Make) -> None:
    launchers = [launcher(rank, 3) for rank in range(3)]
    launchers[0].start()
    with Client(launchers[0].port) as deaf, Client(launchers[0].port) as other:
        assert isinstance(deaf.introduce(make_info(2, 3)), wire.Welcome)  # and reads no more
        assert isinstance(other.introduce(make_info(1, 3)), wire.Welcome)
        other.wait_for(wire.Probe)
    play(launchers[1], launchers[2])
    launchers[0].join(20)
    assert [one.code for one in launchers] == [0, 0, 0]


@contextmanager
def false_node_0(port: int, *messages: object, token: str | None = None, seen: str = "") -> Iterator[list[bytes]]:
    """Somebody listens where node 0 is expected, who knows another token or none, and sends these messages to whoever comes;
    what it receives. `seen`: the address from which it says that others come, if not their own.
    """
    received: list[bytes] = []

    def answer(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as file, suppress(OSError):
            connection.sendall(GREETING)
            theirs = decode(file.readline()).nonce
            session = Session(key_of(token or ""), listener="0" * 32, connector=theirs, listens=True)
            for line in map(encode, (wire.Proof(seen or connection.getpeername()[0]), *messages)):
                connection.sendall(line if token is None else session.seal(line))
            received.extend(file)

    with socket.create_server((LOOPBACK, port)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    answer(listener.accept()[0])

        threading.Thread(target=serve, daemon=True).start()
        yield received
        listener.shutdown(socket.SHUT_RDWR)


def test_a_stranger_who_speaks_of_another_version_ends_no_launcher_with_a_token(launcher: Make, port: int) -> None:
    launchers = [launcher(rank, 2, token="a token that nobody guesses") for rank in range(2)]
    with socket.create_server((LOOPBACK, port)) as liar:
        liar.settimeout(PATIENCE)
        launchers[1].start()
        for _ in range(2):
            with liar.accept()[0] as visitor:
                visitor.sendall(b'{"rendezvous":9}\n')
                visitor.recv(1)
    play(launchers[0])
    launchers[1].join(20)
    assert [one.code for one in launchers] == [0, 0], launchers[1].log


def test_an_answer_without_a_proof_is_forgotten_when_the_next_attempt_begins(launcher: Make) -> None:
    """It was heard beside the launcher that led the attempt before."""

    client = rendezvous_client.Client(launcher(1, 2, timeout=-1.0).open()._config)
    client._unproven_since = 0.0
    with pytest.raises(LaunchError, match="gave up"):
        asyncio.run(client.join(make_info(1, 2)))
    assert client._unproven_since == math.inf


@pytest.mark.parametrize("token", [None, "", "another one"])
def test_a_launcher_with_a_token_follows_no_node_0_that_does_not_prove_it(
    launcher: Make, port: int, token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It neither ends with what that one says nor tells it anything, and finds the right one afterwards."""
    monkeypatch.setattr("slipway.launch.rendezvous.client.QUIET_SECONDS", 0.0)
    good = make_outcome(0)
    lies = (wire.Welcome(60.0, "liar", 30.0), Ending(judge((good,))), wire.End(78, ("no",)), wire.Refused(78, "no"))
    launchers = [launcher(rank, 2, token="a token that nobody guesses") for rank in range(2)]
    with false_node_0(port, *lies, token=token) as received:
        launchers[1].start()
        wait_until(lambda: received, "an answer to the false node 0")
        wait_until(lambda: "SLIPWAY_TOKEN" in launchers[1].log, lambda: f"a line about it: {launchers[1].log}")
    assert {decode(line).__class__ for line in received} == {wire.Refused}
    play(launchers[0])
    launchers[1].join(20)
    assert [one.code for one in launchers] == [0, 0], launchers[1].log


def test_nothing_is_said_over_a_connection_that_is_forwarded(
    launcher: Make, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay that changes nothing has node 0 see another address than the launcher's own."""
    monkeypatch.setattr("slipway.launch.rendezvous.client.QUIET_SECONDS", 0.0)
    token = "a token that nobody guesses"
    launchers = [launcher(rank, 2, token=token) for rank in range(2)]
    with false_node_0(port, wire.Welcome(60.0, "far", 30.0), token=token, seen="127.0.0.9") as received:
        launchers[1].start()
        wait_until(lambda: received, "an answer")
        wait_until(lambda: "does not lead straight to node 0" in launchers[1].log, lambda: launchers[1].log)
    assert {decode(line.partition(b" ")[2]).__class__ for line in received} == {wire.Refused}
    assert "from 127.0.0.1 arrives as one from 127.0.0.9" in launchers[1].log
    play(launchers[0])
    launchers[1].join(20)
    assert [one.code for one in launchers] == [0, 0], launchers[1].log


@pytest.mark.parametrize("own", [(LOOPBACK, "127.0.0.9"), ("127.0.0.9",), (LOOPBACK,)])
def test_a_connection_that_stays_on_this_machine_may_come_from_another_of_its_addresses(
    launcher: Make, port: int, own: tuple[str, ...]
) -> None:
    """Docker's rules do that to one from a bridge's address to itself. Both ends have to be this machine's."""
    one = launcher(
        1, 2, token="a token that nobody guesses", more={"network": replace(Network(), own_names=lambda: own)}
    )
    with false_node_0(port, wire.End(76, ("over",)), token=one.token, seen="127.0.0.9") as received:
        one.start()
        wait_until(lambda: received, "an answer")
    assert isinstance(decode(received[0].partition(b" ")[2]), wire.Hello) == (len(own) == 2)


def test_node_0_says_why_nobody_follows_it_through_a_proxy(launcher: Make) -> None:
    with waiting_node_0(launcher, token="a token that nobody guesses") as node0, Client(node0.port) as client:
        client.authenticate("a token that nobody guesses")
        client.send(wire.Refused(78, "a connection from 10.0.0.9 arrives as one from 127.0.0.1"))
        wait_until(lambda: "refused 127.0.0.1: a connection from 10.0.0.9 arrives" in node0.log, lambda: node0.log)


def test_a_relayed_greeting_proves_nothing(launcher: Make) -> None:
    """The attacker has node 1 connect to it, and passes on what it says as its own, with a message of its own at the end."""
    with waiting_node_0(launcher, token="a token that nobody guesses") as node0, Client(node0.port) as attacker:
        greeting = attacker.receive()
        attacker.send(wire.Greeting(greeting.nonce))  # sent back
        proof = attacker.receive_line()
        for line in (proof, proof.partition(b" ")[0] + b" " + HELLO):
            attacker.socket.sendall(line)
        wait_until(lambda: "SLIPWAY_TOKEN differs" in node0.log, lambda: node0.log)


@pytest.mark.parametrize("code", [0, 3, -1])
def test_an_end_or_a_refusal_has_the_code_of_a_failure(code: int) -> None:
    for message in (b'"end","code":%d,"lines":[]', b'"refused","code":%d,"reason":"","again":false'):
        with pytest.raises(MalformedError, match="impossible exit code"):
            decode(b'{"rendezvous":3,"type":' + message % code + b"}")


def test_only_a_job_with_spare_nodes_can_be_led_by_another_node(launcher: Make) -> None:
    """Without a token, one line took over every job that waited."""
    with waiting_node_0(launcher) as node0, Client(node0.port) as liar:
        liar.authenticate()
        liar.send(wire.Led(make_info(1, 2, nonce="n"), LOOPBACK, 4242))
        assert liar.receive_line() == b""
        assert "leads the job" not in node0.log


def test_whoever_opens_most_connections_loses_them_first(launcher: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow launcher keeps its place beside a flood from another address."""
    monkeypatch.setattr(server, "HELLO_SECONDS", 10 * PATIENCE)
    with waiting_node_0(launcher) as node0, ExitStack() as stack, Client(node0.port) as slow:
        flood = [
            stack.enter_context(socket.create_connection((LOOPBACK, node0.port), 5, ("127.0.0.2", 0)))
            for _ in range(600)
        ]
        wait_until(lambda: sum(map(_is_closed, flood)) >= 600 - 2 - server.STRANGERS, "the end of the oldest")
        assert isinstance(slow.introduce(make_info(1, 2)), wire.Welcome)


def test_the_first_of_two_nodes_with_rank_0_is_told_who_the_second_is(
    launcher: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipway.launch.rendezvous.coordinator.ASK_SECONDS", 0.0)
    monkeypatch.setattr("slipway.launch.rendezvous.coordinator.FIRST_LINE_SECONDS", 0.1)
    monkeypatch.setattr("slipway.launch.rendezvous.coordinator.pause_after", lambda waited: 0.1)
    first = launcher(0, 2)
    first.start()
    wait_until(lambda: "missing node rank 1" in first.log, "the first")
    second = launcher(
        0, 2, info={"host": "second"}, more={"network": replace(Network(), listen=lambda *_, **__: listen(0))}
    )
    play(second)
    assert (second.code, second.begun) == (CONFIGURATION, None)
    wait_until(lambda: "second was refused: RANK=0 is taken by host0" in first.log, "the name of the second")
    play(launcher(1, 2))
    first.join(10)
    assert first.code == 0


def found_at(*addresses: str) -> Network:
    """A network in which MASTER_ADDR leads to these addresses."""

    async def resolve(name: str) -> tuple[str, ...]:
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return addresses

    return replace(Network(), resolve=resolve, own_names=lambda: ("gpu07", "10.0.0.7"))


def test_a_service_mesh_before_node_0_is_named(launcher: Make, port: int) -> None:
    node0, node1 = (launcher(rank, 2, address="node0", more={"network": found_at(LOOPBACK)}) for rank in range(2))
    node0.start()
    with Client(port, sender="127.0.0.6") as client:
        answer = client.introduce(make_info(1, 2))
    assert (answer.code, answer.again) == (CONFIGURATION, False)
    assert "hands this connection on from 127.0.0.6" in answer.reason
    assert 'sidecar.istio.io/inject: "false"' in answer.reason
    wait_until(lambda: f"refused node rank 1 (host1) at 127.0.0.6: {answer.reason}" in node0.log, "node 0's own line")
    play(node1)
    node0.join(10)
    assert node0.code == 0, "a neighbour of this machine is none"


def test_node_0_that_does_not_find_itself_says_so_at_once_and_does_not_wait_for_others(
    launcher: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipway.launch.rendezvous.client.NAMELESS_SECONDS", 0.2)
    monkeypatch.setattr("slipway.launch.rendezvous.client.QUIET_SECONDS", 600.0)
    node0 = launcher(0, 2, address="gpu7", timeout=600.0, more={"network": found_at()})
    play(node0)
    assert node0.code == CONFIGURATION
    said = "MASTER_ADDR=gpu7 does not resolve (Name or service not known); usually: this is node 0, and"
    assert [line for line in node0.lines if said in line] == node0.lines[:1]
    assert said in str(node0.error)
    assert "10.0.0.7" in str(node0.error)
    assert "missing" not in node0.log
