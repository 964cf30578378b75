"""What launchers of one process each tell each other where their processes stand, and which of them judges."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from environments import PER_PROCESS
from stand_ins import resolve

from slipway.launch.hangs.stack_dump import Call, Frame, Group, StackDump
from slipway.launch.node import Node
from slipway.launch.resolve.job_spec import Job
from slipway.launch.run_directory.run import Run
from slipway.launch.several_processes import SeveralProcesses
from slipway.launch.verdict.cause import Cause, CauseKind
from slipway.launch.verdict.restarts import Ending
from slipway.launch.verdict.verdict import Outcome

Processes = list[SeveralProcesses]


@pytest.fixture
def start(tmp_path: Path) -> Callable[[], Processes]:
    """Start the launchers of four processes on two nodes."""

    def launch() -> Processes:
        (tmp_path / "node-0").mkdir(exist_ok=True)
        found = []
        for rank in range(4):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank % 2)}
            found.append(SeveralProcesses(resolve(PER_PROCESS | place), tmp_path))
            found[-1].join(cast(Job, None), Node(Run(tmp_path, "none", 1)), lambda: False)
        return found

    return launch


def dumps(rank: int) -> tuple[StackDump, ...]:
    call = Call("0", 3, "all_reduce", "Float 4", 10.0, False)
    return (
        StackDump(rank, rank // 2, frames=(Frame("a.py", 1, "f"),), calls=(call,), groups=(Group("0", ((0, 3, 1),)),)),
    )


def end(one: SeveralProcesses, outcome: Outcome) -> Ending:
    return one.report(outcome, lambda verdict, leaving: Ending(verdict), lambda: False)


def test_the_launcher_of_process_0_judges_once_all_stand_still(start: Callable[[], Processes]) -> None:
    jobs = start()
    assert jobs[0].compare(dumps(0)) is None
    assert [jobs[rank].compare(dumps(rank)) for rank in (1, 2, 3)] == [None, None, None]
    assert jobs[0].compare(dumps(0)) == [one for rank in range(4) for one in dumps(rank)]
    assert jobs[2].compare(None) is None
    assert jobs[0].compare(dumps(0)) is None


def test_who_is_through_has_left_and_the_next_one_judges(start: Callable[[], Processes]) -> None:
    jobs = start()
    end(jobs[0], Outcome(0, "h", "finished", 1.0))
    for rank in (3, 2):
        assert jobs[rank].compare(dumps(rank)) is None
    found = jobs[1].compare(dumps(1)) or ()
    assert [(one.rank, one.state) for one in found] == [(0, "has left"), (1, ""), (2, ""), (3, "")]


def test_a_hang_that_ended_the_one_that_judges_ends_those_that_still_stand(start: Callable[[], Processes]) -> None:
    jobs = start()
    hang = Outcome(0, "h", "peer", 1.0, 3, Cause(CauseKind.HANG, "rank 3"), stacks=("  rank 3",))
    assert end(jobs[0], hang).verdict.first == hang
    assert jobs[1].news is None
    assert jobs[1].compare(dumps(1)) is None
    assert jobs[1].news == hang
    verdict = end(jobs[1], Outcome(0, "h", "failed", 2.0, 1, Cause(text="RuntimeError: terminated"))).verdict
    assert (verdict.first, verdict.code(0)) == (hang, 76)


def test_what_was_said_in_an_earlier_start_is_over(start: Callable[[], Processes]) -> None:
    for rank, one in enumerate(start()):
        end(one, Outcome(rank // 2, "h", "peer", 1.0, 3, Cause(CauseKind.HANG, "rank 3"), stacks=("  rank 3",)))
    jobs = start()
    assert jobs[1].compare(dumps(1)) is None
    assert jobs[1].news is None


@pytest.mark.parametrize("text", ["", "[]", '{"rendezvous": 1}', "{" * 70_000, '{"rendezvous": 2, "type": "ping"}'])
def test_what_makes_no_sense_counts_as_nothing(start: Callable[[], Processes], tmp_path: Path, text: str) -> None:
    jobs = start()
    for rank in (1, 2, 3):
        jobs[rank].compare(dumps(rank))
    (tmp_path / "node-0" / "process-3.json").write_text(text)
    assert jobs[0].compare(dumps(0)) is None


def test_another_rank_is_not_spoken_for(start: Callable[[], Processes]) -> None:
    jobs = start()
    for rank in (1, 2, 3):
        jobs[rank].compare(dumps(1))
    assert jobs[0].compare(dumps(0)) is None


def test_without_a_folder_that_all_share_nothing_is_known(tmp_path: Path) -> None:
    one = SeveralProcesses(resolve(PER_PROCESS), tmp_path / "elsewhere")
    assert one.compare(dumps(3)) is None
    assert one.compare(None) is None
    assert end(one, Outcome(1, "h", "finished", 1.0)).verdict.first.good
