"""Outcomes -> first cause, exit codes, block."""

import json
from itertools import permutations
from typing import Any

import pytest
from participants import make_outcome

from slipway.launch.verdict.block import (
    ENDINGS,
    TERMINATION_BYTES,
    block,
    outcome_json,
    termination_message,
    what_to_do,
)
from slipway.launch.verdict.cause import Cause, CauseKind, said
from slipway.launch.verdict.restarts import AttemptHistory
from slipway.launch.verdict.verdict import CODES, Outcome, Verdict, apart, judge
from slipway.protocol.outcomes import Word


def ended(*words: str | tuple[str, dict[str, Any]]) -> list[Outcome]:
    """Outcomes of nodes 0, 1, …, one second apart in this order."""
    pairs = [(word, {}) if isinstance(word, str) else word for word in words]
    return [make_outcome(rank, word, time=1000.0 + rank, **more) for rank, (word, more) in enumerate(pairs)]


GLOO = {"evidence": "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"}
TIMEOUT = {"evidence": "RuntimeError: Timed out waiting 1800000ms for recv operation to complete"}

NO_DRIVER = {"evidence": "RuntimeError: Found no NVIDIA driver on your system"}


NOTICE = ("stopped", {"cause": Cause(CauseKind.NOTICED, "saved", name="a notice")})


@pytest.mark.parametrize(
    ("outcomes", "first", "codes"),
    [
        (ended("finished", "finished"), 0, (0, 0)),
        (ended("stopped", NOTICE), 1, (75, 75)),  # all stopped because of that machine
        (ended("stopped", "cancelled", NOTICE), 1, (79, 79, 79)),
        (ended("peer", "stopped", NOTICE), 2, (75, 75, 75)),
        (ended("failed", NOTICE), 0, (1, 1)),
        (ended("finished", "failed"), 1, (1, 1)),
        (ended("peer", "failed"), 1, (1, 1)),
        (ended("peer", "peer", "failed"), 2, (1, 1, 1)),
        (ended("peer", "failed", "failed"), 1, (1, 1, 1)),
        (ended("peer", "peer"), 0, (76, 76)),
        (ended("finished", "peer"), 1, (76, 76)),
        (ended("peer", "lost"), 1, (76, 76)),
        (ended("failed", "lost"), 0, (1, 1)),
        (ended("lost", "failed"), 0, (76, 76)),
        (ended(("failed", GLOO), "lost"), 1, (76, 76)),
        (ended(("failed", TIMEOUT), ("failed", {"evidence": "ValueError: mine"})), 1, (1, 1)),
        (ended(("failed", GLOO), ("failed", GLOO)), 0, (1, 1)),
        (ended(("failed", GLOO), ("peer", TIMEOUT)), 1, (76, 76)),  # another attempt may help
        (ended("peer", ("failed", NO_DRIVER)), 1, (1, 1)),  # of a script that wants a GPU where there is none
        (ended("peer", "unhealthy", "peer"), 1, (76, 77, 76)),
        (ended("unhealthy", "unhealthy", "peer"), 0, (77, 77, 76)),
        (ended("unhealthy", "failed", "lost"), 0, (77, 76, 76)),
        (ended("peer", ("unhealthy", GLOO), ("configuration", GLOO)), 1, (76, 77, 76)),
        (ended("peer", ("configuration", GLOO), "failed"), 1, (78, 78, 78)),
        (ended("failed", "unhealthy"), 0, (1, 1)),
        (ended("peer", "configuration"), 1, (78, 78)),
        (ended("no-progress", "peer"), 0, (93, 93)),
        (ended("stopped", "stopped"), 0, (75, 75)),
        (ended("finished", "stopped"), 1, (75, 75)),
        (ended("stopped", "cancelled"), 1, (79, 79)),
        (ended("stopped", "failed"), 1, (1, 1)),
        (ended("peer", ("peer", {"stacks": ("rank 0 waits",)}), "failed"), 1, (76, 76, 76)),  # a hang is no echo
    ],
    ids=lambda value: "-".join(o.word for o in value) if isinstance(value, list) else None,
)
def test_the_first_cause_and_the_codes(outcomes: list[Outcome], first: int, codes: tuple[int, ...]) -> None:
    for order in permutations(outcomes):
        verdict = judge(order)
        assert verdict.first.node_rank == first
        assert tuple(verdict.code(rank) for rank in range(len(codes))) == codes


def test_the_block_names_node_rank_and_exception() -> None:
    outcomes = ended(
        "peer",
        (
            "failed",
            {
                "rank": 9,
                "evidence": "ValueError: bad label",
                "where": "train.py:12 in step",
            },
        ),
    )
    assert block(judge(outcomes), advise=lambda outcome: "look at the log") == (
        "the workload failed: node 1 (host1), rank 9: ValueError: bad label",
        "  where       train.py:12 in step",
        "  when        1970-01-01 00:16:41 UTC",
        "  nodes       2: 1 failed, 1 ended because a peer went away",
        "  what to do  look at the log",
        "  exit code   1 (a scheduler should retry within its limit)",
    )


def test_what_another_attempt_would_not_change_is_not_left_to_a_scheduler() -> None:
    outcomes = ended(("failed", {"rank": 0, "evidence": "ValueError: bad label"}))
    lines = block(judge(outcomes), AttemptHistory(why=Cause(CauseKind.FUTILE)))
    assert any(line.startswith("  restarts    none: it failed before its first step") for line in lines)
    assert lines[-1] == "  exit code   1 (no scheduler needs to retry it: the cause is still there)"
    assert "should retry" in block(judge(outcomes), AttemptHistory(why=Cause(CauseKind.NO_RESTARTS)))[-1]


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("train.py: error: unrecognized arguments: --leraning-rate 3", "correct the script's own arguments"),
        ("train.py: error: the following arguments are required: --data", "correct the script's own arguments"),
        ("Error: No such option: --lr Did you mean --lrs?", "correct the script's own arguments"),
        ("ModuleNotFoundError: No module named 'einops'", "pip install einops"),
    ],
)
def test_a_mistake_that_each_start_would_find_again_is_not_left_to_a_scheduler(text: str, advice: str) -> None:
    verdict = judge(ended(("failed", {"rank": 0, "cause": said(text)})))
    assert advice in what_to_do(verdict.first, lambda what: "pip install PACKAGE")
    assert "no scheduler needs to retry it" in block(verdict)[-1]


def test_a_message_that_only_begins_like_one_about_arguments_may_be_retried() -> None:
    verdict = judge(ended(("failed", {"rank": 0, "cause": said("download: error: the server does not answer")})))
    assert "should retry" in block(verdict)[-1]


def test_the_block_shows_the_stacks_of_a_hang() -> None:
    stacks = ("rank 1 (node 0) is at b.py:2 g()", "    at f() a.py:1")
    outcomes = ended(("peer", {"rank": 1, "cause": Cause(CauseKind.HANG, "x"), "stacks": stacks}))
    lines = block(judge(outcomes))
    assert lines[0] == "workers hung: node 0 (host0), rank 1: hang: x"
    assert f"  stacks      {stacks[0]}" in lines
    assert f"              {stacks[1]}" in lines


def test_where_all_lost_somebody_it_is_told_who_did_not_fail() -> None:
    stood = {"rank": None, "evidence": "ended because of node 0", "meanwhile": "rank 2 had not ended"}
    outcomes = ended(("failed", GLOO | {"rank": 0, "meanwhile": "rank 1 had not ended"}), ("peer", stood), "finished",
                     ("peer", {"rank": 4}), ("failed", GLOO | {"rank": 5}))  # fmt: skip
    verdict = judge([*outcomes, make_outcome(5, "finished", time=999.5)])
    assert [outcome.node_rank for outcome in verdict.others] == [5, 1, 2]
    assert [line for line in block(verdict) if line.startswith("  meanwhile")] == [
        "  meanwhile   rank 1 had not ended",
        "  meanwhile   node 5 (host5): finished 0.5 s earlier",
        "  meanwhile   node 1 (host1): rank 2 had not ended",
        "  meanwhile   node 2 (host2): finished 2.0 s later",
    ]


def test_where_somebody_had_a_reason_nobody_asks_what_the_others_did() -> None:
    assert judge(ended("failed", "finished", "peer")).others == ()
    assert judge(ended("finished", "finished")).others == ()
    assert judge(ended("stopped", "peer", "finished")).others == ()


def test_whoever_only_lost_a_peer_is_counted_as_such_whatever_its_own_word() -> None:
    lines = block(judge(ended(("failed", GLOO), "failed", "stopped", "finished", "peer", "lost")))
    (nodes,) = (line for line in lines if line.startswith("  nodes"))
    assert nodes.split(": ")[1] == "1 finished, 1 failed, 1 stopped, 2 ended because a peer went away, 1 lost"


def test_eight_more_causes_are_told_beside_the_first() -> None:
    lines = block(judge(ended(*["failed"] * 12)))
    assert [line.split()[2] for line in lines if line.startswith("  then")] == [str(rank) for rank in range(1, 9)]


def test_the_block_is_the_same_on_the_sick_node_and_says_who_exits_how() -> None:
    assert block(judge(ended("peer", "unhealthy")))[-1] == "  exit code   77 on node 1, 76 on the others"
    assert block(judge(ended("unhealthy")))[-1] == "  exit code   77"


def test_a_finished_job_needs_one_line() -> None:
    assert block(judge(ended("finished", "finished"))) == ("finished on 2 nodes",)
    assert block(judge(ended("finished"))) == ("finished on 1 node",)
    assert block(judge(ended("finished")), rank=3) == ("finished on rank 3",)


@pytest.mark.parametrize("word", [word for word in CODES if word != "finished"])
@pytest.mark.parametrize("moment", [1e9, 0.0, -1.0, 1e300])
def test_every_word_has_a_block_and_a_code_at_any_time(word: str, moment: float) -> None:
    verdict = judge([make_outcome(0, word, time=moment)])
    assert block(verdict)[0].endswith("node 0 (host0)")
    assert outcome_json(verdict, 0)["code"] in {1, 75, 76, 77, 78, 79, 93}


def test_the_termination_message_fits_and_keeps_the_first_cause() -> None:
    long = {"evidence": "✗" * 9_999, "where": '"' * 9_999, "host": "h" * 9_999}
    verdict = judge(ended(*[("failed", long)] * 40))
    message = termination_message(1, block(verdict)[0], verdict, lambda outcome: "\\" * 9_999)
    assert len(message) <= TERMINATION_BYTES
    told = json.loads(message)
    assert told["first"]["evidence"].startswith("✗✗✗")
    assert (told["code"], told["word"]) == (1, "failed")
    assert told["message"].startswith("the workload failed: node 0")


@pytest.mark.parametrize("letter", ["a", "\n", "✗", "🚢", "\x1b", "\udc80"])
@pytest.mark.parametrize("length", [1, 700, 3_900, 100_000])
def test_as_much_of_a_message_as_fits_is_told(letter: str, length: int) -> None:
    told = termination_message(78, letter * length)
    assert len(told) <= TERMINATION_BYTES
    kept = json.loads(told)["message"]
    assert len(kept) >= min(length, 600)


@pytest.mark.parametrize(("field", "length"), [("host", 253), ("evidence", 500), ("where", 500), ("meanwhile", 250)])
def test_what_travels_is_bounded(field: str, length: int) -> None:
    """A host name has at most 253 characters; of a text that is longer the beginning is told."""
    kept = getattr(make_outcome(0, "failed", **{field: "x" * length + "…"}), field)
    assert kept == "x" * length
    assert getattr(make_outcome(0, "failed", **{field: "short"}), field) == "short"


def test_sixty_lines_of_stacks_travel() -> None:
    assert make_outcome(0, "peer", stacks=("x" * 121,) * 61).stacks == ("x" * 120,) * 60


@pytest.mark.parametrize(("time", "text"), [(8.0, "2.0 s earlier"), (10.0, "0.0 s earlier"), (12.0, "2.0 s later")])
def test_how_far_two_times_are_apart_is_told_with_which_came_first(time: float, text: str) -> None:
    assert apart(time, 10.0) == text


@pytest.mark.parametrize(("word", "said"), [("gone", "'gone'"), ("g" * 99, f"'{'g' * 20}'")])
def test_an_unknown_word_is_refused(word: str, said: str) -> None:
    """It comes over the network, so it may be as long as it likes."""
    with pytest.raises(ValueError, match=f"unknown outcome {said}"):
        make_outcome(0, word)
    with pytest.raises(ValueError, match=f"unknown outcome {said}"):
        Verdict(word, make_outcome(0), ())


def test_every_word_that_a_verdict_may_have_reads_as_something() -> None:
    assert CODES.keys() - {Word.FINISHED} <= ENDINGS.keys()
    assert all(ENDINGS.values())
