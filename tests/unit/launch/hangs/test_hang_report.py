"""What a launcher makes of where all ranks stand, and node 0 of nodes that are through."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slipway.launch.hangs.hang import BUSY, HangReport
from slipway.launch.hangs.stack_dump import Call, Frame, StackDump
from slipway.launch.rendezvous.messages import Moving, Stuck
from slipway.launch.rendezvous.server import Server, State
from slipway.launch.verdict.cause import Cause, CauseKind
from slipway.launch.verdict.verdict import Outcome, judge

WAITS = StackDump(0, 0, frames=(Frame("a.py", 1, "f"),), calls=(Call("0", 3, "all_reduce", "", 0.0, False),))
HANG = (
    "rank 1 (node 0) has not reached all_reduce #3; rank 0 has been waiting since 00:00:00 UTC; rank 1 is at b.py:2 g()"
)


def works(cores: float = 0.0) -> StackDump:
    return StackDump(1, 0, frames=(Frame("b.py", 2, "g"),), cores=cores)


class Scene:
    def __init__(self, folder: Path, *, end: bool = False) -> None:
        self.said: list[str] = []
        self.file = folder / "hang.json"
        self.report = HangReport(folder, 100.0, self.said.append, end=end)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_hang_is_told_once_and_kept_as_long_as_it_lasts(scene: Scene) -> None:
    assert scene.report.judge((WAITS, works()), 10.0) is not None
    assert scene.report.judge((WAITS, works()), 20.0) is None
    assert [line for line in scene.said if line.startswith("hang")] == [f"hang: {HANG}"]
    assert all(any(f"`slipway {name} " in line for line in scene.said) for name in ("stop", "stacks"))
    assert json.loads(scene.file.read_text())["text"] == HANG
    assert scene.report.judge(None, 30.0) is None
    assert scene.said[-1] == "progress has resumed: this was not a hang, or it is over"
    assert not scene.file.exists()
    assert scene.report.judge((WAITS, works()), 40.0) is not None


def test_who_works_is_waited_for_twice_as_long(scene: Scene) -> None:
    busy = (WAITS, works(2 * BUSY))
    assert scene.report.judge(busy, 10.0) is None
    assert scene.report.judge(busy, 109.0) is None
    assert scene.report.judge(busy, 111.0) is not None


def test_what_moved_meanwhile_is_waited_for_anew(scene: Scene) -> None:
    busy = (WAITS, works(2 * BUSY))
    scene.report.judge(busy, 10.0)
    scene.report.judge(None, 100.0)
    assert scene.report.judge(busy, 111.0) is None
    assert not scene.said


def test_its_file_is_gone_with_the_attempt(scene: Scene) -> None:
    scene.report.judge((WAITS, works()), 10.0)
    scene.report.forget()
    assert not scene.file.exists()


def test_a_disk_that_is_full_changes_nothing(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "none")
    assert scene.report.judge((WAITS, works()), 10.0) is not None


def test_a_hang_that_ends_a_job_is_its_reason_whatever_others_made_of_being_ended(tmp_path: Path) -> None:
    """A script of another node may have a handler for SIGTERM that raises, or a clock that is behind."""
    scene = Scene(tmp_path, end=True)
    hang = scene.report.judge((WAITS, works()), 10.0)
    assert hang is not None
    ended = scene.report.outcome(hang, 0, "host0")
    other = Outcome(1, "host1", "failed", ended.time + 1.0, 1, Cause(text="RuntimeError: terminated"))
    verdict = judge([other, ended])
    assert (verdict.word, verdict.first, verdict.code(1)) == ("peer", ended, 76)
    assert verdict.first.stacks[0] == "  rank 1 (node 0) is at b.py:2 g()"
    assert not any("the job is not stopped" in line for line in scene.said)


def make_server(nodes: int = 2, processes: int = 1) -> Server:
    server = Server(cast(Any, SimpleNamespace()))
    membership = cast(Any, SimpleNamespace(ranks=tuple(range(nodes))))
    server.state = State(membership, running=True, processes=processes, places={rank: rank for rank in range(nodes)})
    return server


def tell(server: Server, node_rank: int, message: object) -> None:
    member = SimpleNamespace(info=SimpleNamespace(node_rank=node_rank, host="h"), offset=0.0)
    server._hear(message, cast(Any, member))


def stuck(*ranks: int) -> list[Stuck]:
    return [Stuck(StackDump(rank, 0, frames=WAITS.frames), first=rank == ranks[0]) for rank in ranks]


def test_all_nodes_have_to_stand_still() -> None:
    server = make_server()
    tell(server, 0, *stuck(0))
    assert server.dumps() is None
    tell(server, 1, *stuck(1))
    assert [(one.rank, one.node_rank) for one in server.dumps() or ()] == [(0, 0), (1, 1)]
    tell(server, 1, Moving())
    assert server.dumps() is None


def test_what_is_known_of_a_node_counts_until_it_told_of_all_its_ranks_again() -> None:
    server = make_server(nodes=1, processes=2)
    first, second = stuck(0, 1)
    tell(server, 0, first)
    assert server.dumps() is None
    tell(server, 0, second)
    tell(server, 0, first)
    assert len(server.dumps() or ()) == 2


@pytest.mark.parametrize("through", [0, 1])
def test_ranks_of_a_node_that_is_through_have_left(through: int) -> None:
    server = make_server(processes=2)
    server.state.outcomes[through] = Outcome(through, "h", "finished", 1.0)
    assert server.dumps() is None
    here = 2 * (1 - through)
    for message in stuck(here, here + 1):
        tell(server, 1 - through, message)
    found = server.dumps() or ()
    assert {one.rank for one in found if one.state == "has left"} == {2 * through, 2 * through + 1}
    assert len(found) == 4


def test_a_node_that_failed_ends_the_job_and_nobody_hangs() -> None:
    server = make_server()
    tell(server, 0, *stuck(0))
    server.take(Outcome(1, "h", "failed", 1.0))
    assert server.dumps() is None


def test_node_0_that_is_through_ends_the_others_that_hang() -> None:
    server = make_server()
    server.state.outcomes[0] = Outcome(0, "h", "finished", 1.0)
    sent: list[Any] = []
    server.broadcast = lambda message, but=None: sent.append(message)  # type: ignore[method-assign,assignment]
    server.correct(Outcome(0, "h", "peer", 2.0, 1, Cause(CauseKind.HANG, "x"), stacks=("  rank 1",)))
    assert server.state.outcomes[0].word == "peer"
    assert sent[0].outcome.evidence == "hang: x"
