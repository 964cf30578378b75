"""RANK=auto: the same command on every node, as with torchrun's --rdzv-endpoint."""

import re
import signal
from collections.abc import Callable

import pytest
from launchers import Launcher
from stand_in_rules import Rule, Rules

Node = Callable[..., Launcher]
NAMED = ("--run-dir", "runs/mine")


def rank_of(job: Launcher) -> int:
    """The node rank that a launcher has found out."""
    job.wait_for("slipway: this is node ")
    found = re.findall(r"this is node (\d+) of", job.text)
    return int(found[-1])


@pytest.mark.core
def test_launchers_with_the_same_command_train_together(node: Node) -> None:
    jobs = [node("auto", 2, "linear", "--epochs", "1", "--rdzv-id", "J") for _ in range(2)]
    assert [job.end() for job in jobs] == [0, 0], jobs[0].text + jobs[1].text
    assert sorted(map(rank_of, jobs)) == [0, 1]
    assert all("finished on 2 nodes" in job.text for job in jobs)


@pytest.mark.pull
def test_another_launcher_takes_the_rank_of_one_that_is_lost(node: Node, rules: Rules) -> None:
    held = Rule("hold", rank=2)
    words = ("auto", 3, "linear", "--steps", "20", *NAMED)
    jobs = {rank_of(job): job for job in [node(*words, **rules.variables(held, pause=0.1)) for _ in range(3)]}
    rules.wait_for(held, jobs[2])
    jobs[2].signal(signal.SIGKILL)
    again = node(*words, **rules.variables(pause=0.1))
    ended = [job.end() for job in (jobs[0], jobs[1], again)]
    assert ended == [0, 0, 0], jobs[0].text + again.text
    assert rank_of(again) == 2
    assert "a node was lost: node 2 (" in jobs[0].text


@pytest.mark.pull
def test_a_launcher_of_another_job_is_refused_and_both_are_named(node: Node, rules: Rules) -> None:
    first = node("auto", 2, "linear", "--steps", "3", *NAMED, **rules.variables())
    assert rank_of(first) == 0
    stray = node("auto", 2, "linear", "--steps", "3", "--run-dir", "runs/theirs", **rules.variables())
    assert stray.end() == 78, stray.text
    assert "belongs to another job (run mine) than this one (run theirs)" in stray.text
    second = node("auto", 2, "linear", "--steps", "3", *NAMED, **rules.variables())
    assert [job.end() for job in (first, second)] == [0, 0], first.text


@pytest.mark.pull
def test_a_node_0_that_was_named_gives_ranks_to_the_others(node: Node, rules: Rules) -> None:
    words = ("linear", "--steps", "3", "--rdzv-id", "J", "--rdzv-conf")
    asks = node("auto", 2, *words, "is_host=false", **rules.variables())
    asks.wait_for("nothing listens at")
    assert "--rdzv-conf is_host=true makes a launcher node 0" in asks.text
    host = node("", 2, *words, "is_host=true", **rules.variables())
    assert [job.end() for job in (host, asks)] == [0, 0], host.text + asks.text
    assert rank_of(asks) == 1


@pytest.mark.pull
def test_without_node_0_the_others_give_up_with_76_or_stop_with_75(node: Node) -> None:
    words = ("linear", "--rdzv-id", "J", "--rdzv-conf", "is_host=false")
    gives_up = node("auto", 2, *words, "--rendezvous-timeout", "4")
    stops = node("auto", 2, *words)
    assert gives_up.end() == 76, gives_up.text
    assert "gave up after 4 s; missing node rank 0" in gives_up.text
    stops.wait_for("nothing listens at")
    stops.signal(signal.SIGTERM)
    assert stops.end() == 75, stops.text
    assert "SIGTERM came before this node had a rank" in stops.text


@pytest.mark.pull
def test_a_check_finds_out_the_ranks_too(node: Node) -> None:
    jobs = [node("auto", 2, "check", "--rdzv-id", "J") for _ in range(2)]
    codes = [job.end() for job in jobs]
    text = jobs[0].text + jobs[1].text
    assert sorted(map(rank_of, jobs)) == [0, 1], text
    assert "node 0, " in jobs[0].text, text
    assert "node 1, " in jobs[0].text, text
    assert codes[0] == codes[1], text
