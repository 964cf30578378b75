"""What `slipway prove` makes of the events of its runs: the first difference, its cause, the kills, the answer."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from slipway.check.proof import BETWEEN, FIRST, VALIDATION, WITHIN, choose_kills, compare
from slipway.check.proof_lines import different_lines, exact_lines, unsteady_lines
from slipway.protocol.proof import Event, EventKind, event_file, read_events

Run = dict[int, list[list[Event]]]
EPOCH = 3  # batches
OBJECTS = {
    "model": ["Net", "", True, "model", 2, 1],
    "optimizer": ["AdamW", "", True, "optimizer", 0, 0],
    "ema": ["AveragedModel", "train.py:31", False, "model", 2, 0],
    "loader.sampler.rng": ["Random", "train.py:9", False, "generator", 0, 0],
}


def place(step: int) -> str:
    return json.dumps({"step": step, "epoch": step // EPOCH, "batches": step % EPOCH})


def record(kind: EventKind, step: int, number: int, value: object = 1, **more: Any) -> Event:
    return Event(kind, place(step), number, {"": value}, {"numpy": 5}, **more)


def states(kind: EventKind, step: int, loop: str = "epochs", warmed: bool = False, **values: object) -> Event:
    everything = {f"{name}.weight": step for name in OBJECTS} | {
        f"{name}.weight": value for name, value in values.items()
    }
    everything["optimizer.state.0.exp_avg"] = step
    facts = {"objects": OBJECTS, "loop": loop, "warmed": warmed, "left_out": 0, "hookless": [], "length": EPOCH}
    return Event(kind, place(step), 0, everything, {}, False, facts)


def steps(first: int, last: int, **values: object) -> list[Event]:
    """A training from a boundary to another; `values` of objects at these boundaries."""
    found = [states(EventKind.BEGIN, first, **values)]
    for step in range(first, last):
        if step == EPOCH > first:
            found.append(record(EventKind.OUTPUT, step, 0, validates=True, facts={"module": "Net"}))
        found += [
            record(EventKind.BATCH, step, 1, step),
            record(EventKind.FORWARD, step, 2, step, facts={"module": "Net"}),
            record(EventKind.STEP, step, 3, "0.1"),
            record(EventKind.LOG, step, 4, "0.5"),
            states(EventKind.BOUNDARY, step + 1, **values),
        ]
    return found


def changed(events: list[Event], kind: EventKind, step: int, **changes: Any) -> list[Event]:
    return [
        event._replace(**changes) if (event.kind, json.loads(event.at)["step"]) == (kind, step) else event
        for event in events
    ]


WHOLE = steps(0, 5)


def of_ranks(*attempts: list[Event], ranks: int = 2) -> Run:
    return {rank: [[*events] for events in attempts] for rank in range(ranks)}


@pytest.mark.parametrize(
    ("attempts", "answer"),
    [
        ([WHOLE], None),
        ([steps(0, 2)[:-3], steps(1, 5)], None),  # it was killed within a step, which it repeated
        (
            [steps(0, 2), steps(2, 5, ema=7)],
            'step 3: the batches are the same, ema.weight is not: AveragedModel "ema" (train.py:31) was not passed to '
            "slipway.resume. Pass it: slipway.resume(…, ema=ema)",
        ),
        (
            [steps(0, 2), steps(2, 5, **{"optimizer.params.0": 7})],
            'step 3: the batches are the same, optimizer.params.0.weight is not: AdamW "optimizer" trains '
            "parameters of no model that was passed. Pass what they belong to",
        ),
        (
            [steps(0, 2), [*steps(2, 4, ema=7), *steps(4, 5)[1:]]],
            None,  # made again before it was used
        ),
        ([steps(0, 2), changed(steps(2, 5), EventKind.BATCH, 3, values={"": 8})], "step 4: the batch is another one"),
        (
            [steps(0, 2), changed(steps(2, 5, **{"loader.sampler.rng": 7}), EventKind.BATCH, 2, values={"": 8})],
            'step 3: the batch is another one: Random "loader.sampler.rng" (train.py:9) is a generator that is not saved',
        ),
        (
            [steps(0, 2), changed(steps(2, 5), EventKind.BATCH, 2, values={"": 8}, random={"numpy": 6})],
            "step 3: the batch is another one: the random numbers of numpy are not those of a run without kills",
        ),
        (
            [steps(0, 2), changed(steps(2, 5), EventKind.BATCH, 2, values={"": 8}, facts={"workers": "Tokens"})],
            "step 3: the batch is another one: worker processes of a DataLoader read it from Tokens, and begin again",
        ),
        (
            [steps(0, 2), changed(steps(2, 5), EventKind.FORWARD, 2, values={"": 8})],
            "step 3: the batch is the same, what goes into Net is not",
        ),
        (
            [steps(0, 2), changed(steps(2, 5), EventKind.OUTPUT, 3, values={"": 8})],
            "step 4: Net returns something else in a validation",
        ),
        (
            [steps(0, 2), changed(steps(2, 5), EventKind.STEP, 2, values={"": "0.2"})],
            "step 3: the learning rate is 0.2 instead of",
        ),
        ([steps(0, 2), changed(steps(2, 5), EventKind.LOG, 2, values={"": "0.4"})], "step 3: run.log got "),
        (
            [steps(0, 2), [states(EventKind.BEGIN, 2, model=7), *steps(2, 5, model=7)[1:]]],
            'step 3: the batches are the same, model.weight is not: Net "model" did not come back',
        ),
        ([steps(0, 2), [*steps(2, 5)[:-1], record(EventKind.BATCH, 4, 5)]], "step 5: a batch too many"),
        ([steps(0, 2), steps(2, 4)], "step 5: a batch is missing"),
        (
            [steps(0, 2), [event for event in steps(2, 5) if event.kind != EventKind.FORWARD]],
            "step 3: a step of an optimizer comes",
        ),
        ([steps(0, 5), changed(steps(2, 5), EventKind.BATCH, 4, at=place(9))], "step 5: "),
    ],
)
def test_the_answer_names_the_first_difference_its_cause_and_what_to_do(
    attempts: list[list[Event]], answer: str | None
) -> None:
    reference, repeated = of_ranks(WHOLE), of_ranks(*attempts)
    lines = different_lines(reference, repeated, choose_kills(reference, 1, random.Random(0)), "")
    if answer is None:
        assert lines == []
    else:
        assert lines[0].startswith(f"differs first at {answer}"), lines


def test_a_generator_that_is_restored_with_the_first_batch_is_no_cause() -> None:
    resumed = changed(steps(2, 5), EventKind.BATCH, 3, values={"": 8})
    resumed[0] = states(EventKind.BEGIN, 2, **{"loader.sampler.rng": 7})
    [line, *_] = different_lines(of_ranks(WHOLE), of_ranks(steps(0, 2), resumed), [], "")
    assert line.startswith("differs first at step 4: the batch is another one. Keep in run.state")


def with_script(events: list[Event], **values: object) -> list[Event]:
    """The events with the script's plain values at each boundary, which are numbers of the step unless they are given."""
    found = []
    for event in events:
        if "objects" in event.facts:
            step = json.loads(event.at)["step"]
            script = {"count": step, "level": step, "set": step, "started": 1} | values
            if event.kind == EventKind.BOUNDARY:
                script |= {"set": step, "loss": 0.5 * step}  # what an iteration sets
            event = event._replace(facts={**event.facts, "script": script, "where": {"level": "train.py:5"}})
        found.append(event)
    return found


def test_plain_values_of_the_script_that_begin_anew_are_named_if_the_training_differs() -> None:
    whole = with_script(WHOLE)
    anew = with_script(steps(2, 5), count=0, level=9, set=7, started=2)
    killed = with_script(steps(0, 2), started=3)  # another one in each process
    [line, *_] = different_lines(
        of_ranks(whole), of_ranks(killed, changed(anew, EventKind.BATCH, 3, values={"": 8})), [], ""
    )
    assert (
        "another one. After the kill these values of the script are not what they were: count, level (train.py:5). Keep"
        in line
    )
    assert different_lines(of_ranks(whole), of_ranks(killed, anew), [], "") == []


def test_a_model_that_was_left_in_another_mode_is_named() -> None:
    forgot = changed(WHOLE, EventKind.FORWARD, 3, validates=True)
    [line, *_] = different_lines(of_ranks(forgot), of_ranks(steps(0, 2), steps(2, 5)), [], "")
    assert "Net is in training mode instead of eval mode (or under no_grad). No snapshot has the mode" in line
    another = changed(steps(2, 5), EventKind.FORWARD, 3, validates=True, values={"": 8})
    [line, *_] = different_lines(of_ranks(WHOLE), of_ranks(steps(0, 2), another), [], "")
    assert "the batch is the same, what goes into Net is not" in line


def test_a_rank_is_named_if_the_others_are_right() -> None:
    repeated = of_ranks(steps(0, 2), steps(2, 5))
    repeated[1][1] = changed(repeated[1][1], EventKind.BATCH, 3, values={"": 8})
    [line, *_] = different_lines(of_ranks(WHOLE), repeated, [], "")
    assert line.startswith("differs first at step 4, rank 1: the batch is another one")


def test_what_is_evaluated_before_the_loop_of_boundaries_does_not_count() -> None:
    evaluation = record(EventKind.FORWARD, 2, 1, 9, validates=True, facts={"module": "Net"})
    resumed = steps(2, 5)
    resumed[0] = states(EventKind.BEGIN, 2, loop="")
    resumed.insert(1, evaluation)
    assert compare(of_ranks(WHOLE), of_ranks(steps(0, 2), resumed)) is None
    resumed[0] = states(EventKind.BEGIN, 2, loop="epochs")
    assert compare(of_ranks(WHOLE), of_ranks(steps(0, 2), resumed)) is not None


def test_an_exact_script_is_told_what_was_compared_and_what_was_not() -> None:
    lines = exact_lines(of_ranks(WHOLE), 4)
    assert lines == [
        "resumes exactly: 5 steps, 4 kills, 2 ranks; equal: batches, 2 parameters, 2 optimizer states, 1 buffer, learning rates, "
        "validations, what run.log got"
    ]
    lines = exact_lines(of_ranks(steps(0, 2), ranks=1), 1, 4)
    assert lines[0].startswith("resumes exactly: 2 steps, 1 kill, 1 rank; equal: ")
    assert lines[1:] == [
        "only 1 of 4 kills were possible: a passed optimizer stepped only 2 times",
        "the end of an epoch is not proven: --steps 5",
    ]


def test_with_three_ranks_weights_count_only_after_run_warm_up() -> None:
    resumed = changed(steps(2, 5, model=7, ema=7), EventKind.FORWARD, 3, values={"": 8})
    repeated = of_ranks(steps(0, 2), resumed, ranks=3)
    assert different_lines(of_ranks(WHOLE, ranks=3), repeated, [], "") == []
    [line, *_] = exact_lines(of_ranks(WHOLE, ranks=3), 1)
    assert line.endswith("equal: batches, learning rates")
    assert "run.warm_up" in exact_lines(of_ranks(WHOLE, ranks=3), 1)[1]
    warmed = [
        event._replace(facts={**event.facts, "warmed": True}) if "loop" in event.facts else event for event in WHOLE
    ]
    assert different_lines(of_ranks(warmed, ranks=3), repeated, [], "")


def test_a_script_that_differs_from_itself_and_one_that_fails_are_told_so() -> None:
    other = of_ranks(changed(WHOLE, EventKind.BATCH, 1, values={"": 8}))
    difference = compare(of_ranks(WHOLE), other)
    assert difference is not None
    [line] = unsteady_lines(of_ranks(WHOLE), other, difference)
    assert line.startswith("differs from itself without a kill, first at step 2: the batch is another one. Seed ")
    kills = choose_kills(of_ranks(WHOLE), 1, random.Random(0))
    [line] = different_lines(of_ranks(WHOLE), of_ranks(steps(0, 2)), kills, "NameError: x")
    assert line == "differs first at step 1: after a kill in the first step the script fails: NameError: x"


def test_kills_are_at_a_moment_of_each_kind_in_the_order_of_the_run(dice: random.Random) -> None:
    reference = of_ranks(steps(0, 11))
    kills = choose_kills(reference, 4, dice)
    assert sorted(kill.kind for kill in kills) == sorted((FIRST, WITHIN, BETWEEN, VALIDATION))
    assert [kill.interval for kill in kills] == sorted({kill.interval for kill in kills})
    [within] = [kill.step for kill in kills if kill.kind == WITHIN]
    assert within > 4, "what is counted by epochs has moved on"
    events = {(event.at, event.number) for event in reference[0][0]}
    assert all((kill.moment.at, kill.moment.number) in events for kill in kills)
    assert len(choose_kills(reference, 6, dice)) == 6
    assert [kill.step for kill in choose_kills(of_ranks(steps(0, 5)), 6, dice)] == [1, 2, 3, 4], "not in the last step"


def test_a_line_that_a_kill_has_torn_is_left_out(tmp_path: Path) -> None:
    event_file(tmp_path, 0, 1).write_text(json.dumps(WHOLE[1]) + "\n" + json.dumps(WHOLE[2])[:-3])
    assert read_events(tmp_path) == {0: [[WHOLE[1]]]}
