"""Real rendezvous on 127.0.0.1: who comes together, who does not, and what everybody is told."""

import errno
import itertools
import re
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from stage import LOOPBACK, Client, Launcher, make_info, play
from waiting import wait_until

from slipway.check.finding import ok
from slipway.launch.rendezvous import coordinator
from slipway.launch.rendezvous import messages as wire
from slipway.launch.rendezvous.config import RendezvousConfig
from slipway.launch.rendezvous.neighbour_check import NeighbourCheck
from slipway.launch.rendezvous.rendezvous import Rendezvous
from slipway.launch.resolve import runtimes
from slipway.launch.resolve.connectivity import listen
from slipway.protocol.errors import CONFIGURATION, PEER, LaunchError

Make = Callable[..., Launcher]


def test_launchers_agree_on_attempt_run_store_and_folder(launcher: Make, port: int, tmp_path: Path) -> None:
    launchers = [launcher(rank, 4, info={"attempt": rank}) for rank in range(4)]
    play(*launchers)
    for rank, one in enumerate(launchers):
        assert one.begun is not None, one.log
        assert (one.begun.group_rank, one.begun.nodes, one.begun.attempt, one.begun.run) == (rank, 4, 4, "linear-of-0")
        assert (one.begun.address, one.begun.port, one.begun.processes) == (LOOPBACK, port + 1, 2)
        assert (one.begun.shared, one.begun.interface, one.begun.notes) == (True, "lo", ())
        assert one.code == 0
    assert list(tmp_path.iterdir()) == []


def test_where_launchers_bring_findings_all_learn_what_each_found(launcher: Make) -> None:
    def read_peers(rendezvous: Rendezvous) -> None:
        wait_until(lambda: len(rendezvous.peers) == 20, "the findings of all")
        found.append([(peer.info.node_rank, peer.info.findings[0].found) for peer in rendezvous.peers])

    found: list[Any] = []
    rows = [tuple(ok("disk", f"{rank}" * 200) for _ in range(40)) for rank in range(20)]
    launchers = [launcher(rank, 20, info={"findings": rows[rank]}, work=read_peers) for rank in range(20)]
    play(*launchers)
    assert found == [[(rank, f"{rank}" * 200) for rank in range(20)]] * 20


@pytest.mark.core
def test_each_launcher_goes_to_the_address_at_which_it_found_node_0(launcher: Make) -> None:
    launchers = [launcher(rank, 2, address="localhost") for rank in range(2)]
    play(*launchers)
    assert [one.begun and one.begun.address for one in launchers] == [
        "localhost",
        LOOPBACK,
    ]  # node 0's own name for itself stays
    first, second = (one.begun.nonce for one in launchers if one.begun)
    assert first == second != ""


def test_a_launcher_of_another_job_that_finds_this_one_at_its_address_is_not_taken_in(launcher: Make) -> None:
    stray = launcher(1, 2, info={"nonce": "b" * 16, "tries": 1}, timeout=3.0)
    launchers = [launcher(rank, 2, info={"nonce": "a" * 16, "tries": 1}) for rank in range(2)]
    launchers[0].start()
    stray.start()
    stray.join(20)
    assert stray.code == PEER, stray.log
    assert "leads to another job, of node 0 on host0" in stray.log
    play(launchers[1])
    launchers[0].join(20)
    assert [one.code for one in launchers] == [0, 0]
    assert "refused node 1 (host1), which belongs to another job" in launchers[0].log


def test_a_launcher_that_can_open_nothing_says_so(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("asyncio.events.new_event_loop", fail)
    rendezvous = Rendezvous(
        RendezvousConfig(node_rank=1, nodes=2, address=LOOPBACK, port=port, timeout=5, folder=tmp_path, say=print)
    )
    with pytest.raises(LaunchError, match=r"Too many open files.*ulimit -n"), rendezvous:
        pass


def test_a_folder_that_some_share_is_named(launcher: Make, tmp_path: Path) -> None:
    launchers = [launcher(rank, 3, folder=tmp_path / str(rank // 2)) for rank in range(3)]
    play(*launchers)
    assert launchers[2].begun is not None
    assert not launchers[2].begun.shared
    assert "only nodes 0, 1 share a run directory" in launchers[2].begun.notes[0]


def test_a_store_port_in_use_is_replaced(launcher: Make, port: int) -> None:
    launchers = [launcher(rank, 2) for rank in range(2)]
    with listen(port + 1):
        play(*launchers)
    assert launchers[0].begun is not None
    assert launchers[1].begun is not None
    assert launchers[0].begun.port == launchers[1].begun.port != port + 1


@pytest.mark.parametrize("there", [True, False], ids=["a Service", "no Service"])
def test_node_0_says_where_the_service_behind_its_own_name_does_not_resolve(
    launcher: Make, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """Kubelet writes a pod's own name into its /etc/hosts, so that the pod itself always finds it."""
    real = socket.getaddrinfo

    def resolve(name: str, *words: Any, **more: Any) -> list[Any]:
        if name == "job.team.svc.cluster.local" and not there:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(LOOPBACK, *words, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    node0 = launcher(0, 2, address="job-0.job.team.svc.cluster.local", timeout=2.0, info={"runtime": "kubernetes"})
    play(node0)
    assert node0.code == PEER
    assert ("kubectl get service job --namespace team" in node0.log) is not there


def test_who_gives_up_asks_whether_processes_were_counted(launcher: Make) -> None:
    nodes = [launcher(rank, 4, timeout=8.0, info={"processes": 2}, more={"doubtful": True}) for rank in (0, 1)]
    play(*nodes)
    assert [node.code for node in nodes] == [PEER, PEER]
    assert "2 × 2 = 4 processes: set WORLD_SIZE=2." in str(nodes[0].error)
    assert "2 × 2 = 4 processes: set WORLD_SIZE=2." in nodes[1].log


def test_without_node_0_the_others_end_with_76_and_say_what_usually_causes_it(launcher: Make, port: int) -> None:
    alone = launcher(1, 2, timeout=4.0)
    play(alone)
    assert alone.code == PEER
    assert (
        f"nothing listens at 127.0.0.1:{port} (connection refused); usually: node 0 has not started" in alone.lines[0]
    )
    assert re.search(r"connection refused after \d s; missing node rank 0$", alone.lines[1])
    assert str(alone.error).startswith("gave up after 4 s; missing node rank 0: nothing listens at 127.0.0.1")


def test_an_address_that_does_not_resolve_ends_with_76_and_its_name(launcher: Make) -> None:
    alone = launcher(1, 2, address="no-such-host.invalid", timeout=4.0, info={"runtime": "kubernetes"})
    play(alone)
    assert alone.code == PEER
    assert "MASTER_ADDR=no-such-host.invalid does not resolve" in alone.lines[0]
    assert "publishNotReadyAddresses" in alone.lines[0]
    assert "no-such-host.invalid" in str(alone.error)


def test_something_else_behind_the_port_is_told_apart(launcher: Make, port: int) -> None:
    def hang_up() -> None:
        while True:
            try:
                door.accept()[0].close()
            except OSError:
                return

    with listen(port) as door:
        threading.Thread(target=hang_up, daemon=True).start()
        alone = launcher(1, 2, timeout=4.0)
        play(alone)
        door.shutdown(socket.SHUT_RDWR)
    assert alone.code == PEER
    assert "answers, but not as a Slipway launcher" in alone.lines[0]


def test_of_several_addresses_behind_a_name_the_one_with_node_0_is_found(
    launcher: Make, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = ("127.0.0.2", "127.0.0.3")
    real = socket.getaddrinfo

    def resolve(name: str, *words: Any, **more: Any) -> list[Any]:
        names = (*wrong, LOOPBACK) if name == "job.test" else (name,)
        return [found for name in names for found in real(name, *words, **more)]

    def greet_oddly() -> None:
        with suppress(OSError):
            while True:
                with other.accept()[0] as visitor:
                    visitor.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr("slipway.launch.rendezvous.client.GREETING_SECONDS", 0.5)
    monkeypatch.setattr("slipway.launch.rendezvous.client.QUIET_SECONDS", 0.0)
    with socket.create_server((wrong[0], port)), socket.create_server((wrong[1], port)) as other:
        threading.Thread(target=greet_oddly, daemon=True).start()
        launchers = [launcher(0, 2), launcher(1, 2, address="job.test")]
        play(*launchers)
        other.shutdown(socket.SHUT_RDWR)
    assert [one.code for one in launchers] == [0, 0], launchers[1].log
    assert f"job.test:{port} (127.0.0.2, 127.0.0.3, 127.0.0.1) does not answer" in launchers[1].log
    assert launchers[1].begun
    assert launchers[1].begun.address == LOOPBACK


@pytest.mark.parametrize(("more", "codes"), [((), [CONFIGURATION] * 2), ((LOOPBACK,), [0, 0])])
def test_a_link_local_address_of_ipv6_behind_a_name_is_refused_with_the_reason_or_passed_over(
    launcher: Make, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], codes: list[int]
) -> None:
    real = socket.getaddrinfo

    def resolve(name: str, *words: Any, **others: Any) -> list[Any]:
        names = ("fe80::1", *more) if name == "job.test" else (name,)
        return [found for name in names for found in real(name, *words, **others)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    launchers = [launcher(rank, 2, address="job.test", timeout=6.0) for rank in range(2)]
    play(*launchers)
    assert [one.code for one in launchers] == codes, launchers[1].log
    assert all(("job.test leads to fe80::1, a link-local address" in one.log) == (not more) for one in launchers)


def test_a_name_that_leads_elsewhere_at_first_is_resolved_again(
    launcher: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as a record that is out of date is in somebody's cache."""
    answers, real = iter(("127.0.0.2", "127.0.0.2")), socket.getaddrinfo

    def resolve(name: str, *words: Any, **more: Any) -> list[Any]:
        return real(next(answers, LOOPBACK) if name == "job.test" else name, *words, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    launchers = [launcher(0, 2), launcher(1, 2, address="job.test")]
    play(*launchers)
    assert [one.code for one in launchers] == [0, 0], launchers[1].log
    assert launchers[1].begun
    assert launchers[1].begun.address == LOOPBACK


def test_node_0_that_does_not_find_itself_says_so(launcher: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway.launch.rendezvous.rendezvous.loopback_address", lambda address: LOOPBACK)
    lost = launcher(0, 2, address="127.0.0.2", timeout=3.5)  # where nobody listens
    play(lost)
    assert lost.code == PEER
    assert "usually: this is node 0, and MASTER_ADDR leads to another machine" in lost.log


def _where(launcher: Make) -> dict[str, Any]:
    template = launcher(0, 1)
    return {"port": template.port, "folder": template.folder}


@pytest.mark.parametrize("here", [2, 3])
def test_a_node_with_a_problem_of_its_own_ends_all_that_are_here_in_its_words(launcher: Make, here: int) -> None:
    launchers = [launcher(rank, 3) for rank in range(here)]
    launchers[0].info = make_info(0, 3, problem="no snapshot in runs/gpt-1 verifies. " + "x" * 200)
    play(*launchers)
    assert [one.code for one in launchers] == [CONFIGURATION] * here
    assert {str(one.error) for one in launchers} == {f"node 0 (host0): {launchers[0].info.problem}"}


def test_what_should_agree_is_a_warning_on_all_nodes(launcher: Make) -> None:
    launchers = [launcher(rank, 2, info={"driver": f"58{rank}"}) for rank in range(2)]
    play(*launchers)
    for one in launchers:
        assert one.code == 0
        assert one.begun is not None
        assert one.begun.notes[0].startswith("warning:")
        assert "581" in "\n".join(one.begun.notes)


@pytest.mark.parametrize(
    ("info", "fields", "said"),
    [
        ({"node_rank": 1}, {}, "RANK=1 is taken by host1"),
        ({}, {"token": "wrong"}, "SLIPWAY_TOKEN"),
        ({}, {"token": ""}, "SLIPWAY_TOKEN"),
    ],
)
def test_who_does_not_belong_gets_78_and_the_rendezvous_goes_on(
    launcher: Make, info: dict[str, Any], fields: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipway.launch.rendezvous.client.UNPROVEN_SECONDS", 0.5)
    secret = "c0rrect-horse"
    launchers = [launcher(rank, 3, info={"job": "41"}, token=secret) for rank in range(3)]
    launchers[0].start()
    launchers[1].start()
    wait_until(lambda: "waiting for nodes: 2 of 3" in launchers[0].log, "the other node")
    where = _where(launcher) | {"token": secret} | fields
    stranger = Launcher(make_info(**{"node_rank": 2, "nodes": 3, "job": "41", "host": "stranger"} | info), 3, **where)
    play(stranger)
    assert stranger.code == CONFIGURATION
    assert said in stranger.log
    play(launchers[2])
    launchers[0].join(10)
    launchers[1].join(10)
    assert [one.code for one in launchers] == [0, 0, 0]
    assert said in launchers[0].log
    assert all(secret not in one.log for one in [*launchers, stranger])


def test_a_launcher_that_was_frozen_makes_room_for_its_replacement(launcher: Make, port: int) -> None:
    """It answers, as both are alive. Who has replaced it is the newer one."""
    launchers = [launcher(rank, 3) for rank in range(3)]
    launchers[0].start()
    with Client(port) as frozen:
        assert isinstance(frozen.introduce(make_info(1, 3), frozen=True), wire.Welcome)

        def answer() -> None:
            while message := frozen.receive():
                if isinstance(message, wire.Ping):
                    frozen.send(wire.Pong())

        answering = threading.Thread(target=answer)
        answering.start()
        play(*launchers[1:])
        answering.join(10)
    launchers[0].join(10)
    assert [one.code for one in launchers] == [0, 0, 0]
    assert "node 1 (host1) was frozen or cut off; another launcher of this rank replaces it" in launchers[0].log


def test_a_reconnecting_launcher_replaces_its_own_older_connection(launcher: Make, port: int) -> None:
    stop = threading.Event()
    node0 = launcher(0, 3, stopped=stop.is_set)
    node0.start()
    with Client(port) as first, Client(port) as again:
        assert isinstance(first.introduce(make_info(1, 3), process="same"), wire.Welcome)
        assert isinstance(again.introduce(make_info(1, 3), process="same"), wire.Welcome)
        with pytest.raises(AssertionError, match="closed the connection"):
            first.wait_for(wire.Start)
        assert node0.is_alive()
        assert again.wait_for(wire.Waiting).line.endswith("missing node rank 2 (for at most 20 s)")
    stop.set()
    node0.join(10)


def test_a_launcher_of_another_version_ends_at_once_with_78(launcher: Make, port: int) -> None:
    def greet() -> None:
        with door.accept()[0] as visitor:
            visitor.sendall(b'{"rendezvous":2,"type":"greeting","challenge":"00"}\n')
            visitor.recv(1)  # until the launcher hangs up

    with listen(port) as door:
        threading.Thread(target=greet, daemon=True).start()
        alone = launcher(1, 2)
        play(alone)
    assert alone.code == CONFIGURATION
    assert "another version's launcher: protocol 2 there, 3 here" in str(alone.error)


@pytest.mark.parametrize("node_rank", [0, 1])
def test_a_stop_while_waiting_ends_the_wait(launcher: Make, node_rank: int) -> None:
    looks = itertools.count()
    alone = launcher(node_rank, 2, timeout=3600.0, stopped=lambda: next(looks) > 5)
    alone.start()
    alone.join(60)
    assert not alone.is_alive()
    assert (alone.begun, alone.error) == (None, None)


def test_a_node_that_leaves_while_waiting_is_missing_again(launcher: Make, port: int) -> None:
    node0 = launcher(0, 2, timeout=4.0)
    node0.start()
    with Client(port) as brief:
        assert isinstance(brief.introduce(make_info(1, 2)), wire.Welcome)
        # A hello is not enough: node 1 never answers the probe.
        assert isinstance(brief.wait_for(wire.Probe), wire.Probe)
    node0.join(10)
    assert node0.code == PEER
    assert "missing node rank 1" in node0.log


@pytest.mark.parametrize(
    ("runtime", "failing", "said"),
    [("kubernetes", 2, "Networks may need a while"), ("host", 1, "Trying once more.")],
)
def test_a_neighbour_that_cannot_be_reached_at_first_is_tried_again(
    launcher: Make, runtime: str, failing: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit, visits = NeighbourCheck._visit, []

    async def blocked(neighbours: NeighbourCheck, probe: wire.Probe) -> str:
        visits.append(probe.round)
        return "no answer" if len(set(visits)) <= failing else await visit(neighbours, probe)

    monkeypatch.setattr(NeighbourCheck, "_visit", blocked)
    monkeypatch.setattr(coordinator, "AGAIN_SECONDS", 0.1)
    launchers = [launcher(rank, 2, info={"runtime": runtime}) for rank in range(2)]
    play(*launchers)
    assert [one.code for one in launchers] == [0, 0]
    assert "cannot connect to node" in launchers[1].log
    assert said in launchers[1].log


def test_a_neighbour_that_cannot_be_reached_ends_all_with_78(
    launcher: Make, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = runtimes.KUBERNETES._replace(opening=0.0)
    monkeypatch.setattr(runtimes, "RUNTIMES", {**runtimes.RUNTIMES, quick.name: quick})
    monkeypatch.setattr(coordinator, "AGAIN_SECONDS", 0.1)
    node0 = launcher(0, 2, info={"runtime": quick.name})
    node0.start()
    with Client(port) as behind_nat:
        behind_nat.introduce(make_info(1, 2))  # its port for the neighbour is 1, where nothing listens
        for _ in range(2):  # once may be a network that was away for a moment
            probe = behind_nat.wait_for(wire.Probe)
            behind_nat.send(wire.Probed(probe.round, "", True))
        end = behind_nat.wait_for(wire.End)
    node0.join(10)
    assert (end.code, node0.code) == (CONFIGURATION, CONFIGURATION)
    text = "\n".join(end.lines)
    assert "node 0 (host0) cannot connect to node 1 (host1)" in text
    assert "connection refused" in text
    assert "NetworkPolicy" in text
    assert text == str(node0.error)


def test_a_run_name_that_leaves_the_folder_is_refused(launcher: Make) -> None:
    launchers = [launcher(rank, 2, info={"run": "../../etc"}) for rank in range(2)]
    play(*launchers)
    assert launchers[1].code == CONFIGURATION
    assert "cannot be a folder" in str(launchers[1].error)


def test_opening_and_closing_without_joining_is_quick_and_quiet(launcher: Make) -> None:
    one = launcher(0, 2)
    with one.open() as rendezvous:
        assert isinstance(rendezvous, Rendezvous)
    assert one.lines == []
    with pytest.raises(LaunchError), listen(one.port), one.open():
        pass
