"""Whom a job that hangs waits for, by where its ranks stand: the pure part."""

from dataclasses import replace
from typing import Any

import pytest

from slipway.launch.hangs.hang import find_hang, stacks_of
from slipway.launch.hangs.stack_dump import Call, Frame, Group, StackDump, read_stack_dump, runs_of

TORCH = "/venv/lib/python3.13/site-packages/torch/distributed/distributed_c10d.py"
IN_LOAD = (
    Frame("/usr/lib/python3.13/threading.py", 3, "wait"),
    Frame("/home/me/user.py", 6, "load"),
    Frame("/home/me/user.py", 20, "<module>"),
)
IN_STEP = (Frame(TORCH, 3014, "all_reduce"), Frame("/home/me/user.py", 9, "step"))


def call(
    number: int,
    name: str = "all_reduce",
    group: str = "0",
    done: bool = False,
    shape: str = "Float [4]",
    since: float = 0.0,
) -> Call:
    return Call(group, number, name, shape, since, done)


def waits(rank: int, *calls: Call, node: int = 0, groups: tuple[Group, ...] = ()) -> StackDump:
    return StackDump(rank, node, frames=IN_STEP, calls=calls, groups=groups)


def works(rank: int, *calls: Call, node: int = 0, state: str = "", groups: tuple[Group, ...] = ()) -> StackDump:
    return StackDump(rank, node, state, () if state else IN_LOAD, calls, groups)


def group(name: str, *ranks: int, begun: int = 0) -> Group:
    return Group(name, runs_of(ranks), begun)


def text(*dumps: StackDump) -> str:
    hang = find_hang(dumps)
    assert hang is not None
    return hang.text


def test_who_has_not_come_is_named_with_the_collective_and_the_line() -> None:
    hang = find_hang([*(waits(rank, call(56)) for rank in (0, 2, 3)), works(1, call(55, done=True), node=1)])
    assert hang is not None
    assert hang.ranks == (1,)
    assert hang.text == (
        "rank 1 (node 1) has not reached all_reduce #56; 3 ranks have been waiting since 00:00:00 UTC; rank 1 is at user.py:6 load()"
    )


def test_the_stacks_are_the_culprits_and_one_that_waits() -> None:
    dumps = [*(waits(rank, call(56)) for rank in (0, 2, 3)), works(1)]
    hang = find_hang(dumps)
    assert hang is not None
    lines = stacks_of(hang, dumps)
    assert [line.split()[1] for line in lines if line.startswith("  rank")] == ["1", "0"]
    assert lines[1] == "    /home/me/user.py:20 <module>()"


def test_several_are_named_together() -> None:
    assert text(waits(0, call(2)), *(works(rank) for rank in (1, 2, 3))).startswith(
        "ranks 1-3 have not reached all_reduce #2; rank 0 has been waiting"
    )


def test_nobody_waits_where_all_work() -> None:
    assert find_hang([works(0, call(5, done=True)), works(1, call(5, done=True))]) is None


@pytest.mark.parametrize("state", ["is stopped (SIGSTOP)", "does not answer", "has left"])
def test_a_process_that_says_nothing_is_told_as_it_is(state: str) -> None:
    assert text(waits(0, call(3)), works(1, state=state)).endswith(f"since 00:00:00 UTC; rank 1 {state}")


def test_the_end_of_a_chain_is_to_blame() -> None:
    pairs = (group("1", 0, 1), group("2", 1, 2))
    hang = find_hang(
        [
            waits(0, call(1, group="1"), groups=pairs[:1]),
            waits(1, call(1, group="2"), groups=pairs),
            works(2, groups=pairs[1:]),
        ]
    )
    assert hang is not None
    assert hang.ranks == (2,)
    assert "of the process group of ranks 1, 2" in hang.text


def test_who_is_not_in_the_group_is_not_missed() -> None:
    pair = (group("1", 0, 1),)
    hang = find_hang([waits(0, call(4, group="1"), groups=pair), works(1, groups=pair), works(2)])
    assert hang is not None
    assert hang.ranks == (1,)


def test_ranks_that_wait_for_each_other_in_different_groups() -> None:
    pair = (group("1", 0, 1),)
    hang = find_hang([waits(0, call(3)), waits(1, call(1, group="1"), groups=pair), waits(2, call(3))])
    assert hang is not None
    assert hang.text.startswith("the ranks wait for each other in different collectives: rank ")
    assert hang.text.count("has not reached") == 2


def test_different_collectives_as_the_same_number() -> None:
    hang = find_hang([waits(0, call(7)), waits(1, call(7, "barrier")), waits(2, call(7))])
    assert hang is not None
    assert hang.ranks == (1,)
    assert (
        "do not agree on collective #7: ranks 0, 2 all_reduce of Float [4] (is at user.py:9 step()); rank 1 (node 0) barrier"
        in hang.text
    )


def test_different_sizes_as_the_same_number() -> None:
    assert "Float [4]" in text(waits(0, call(7)), waits(1, call(7, shape="Float [5]")))


def test_one_that_is_done_here_already_still_says_what_it_was() -> None:
    assert "do not agree on collective #7" in text(waits(0, call(7)), works(1, call(7, "broadcast", done=True)))


def test_what_is_not_recorded_shows_in_the_stacks() -> None:
    inside = StackDump(0, 0, frames=(Frame(TORCH, 99, "recv"), Frame("/home/me/user.py", 3, "get")))
    hang = find_hang([inside, works(1)])
    assert hang is not None
    assert hang.ranks == (1,)
    assert (
        hang.text
        == "rank 1 (node 0) has not reached recv(); rank 0 has been waiting in it; rank 1 is at user.py:6 load()"
    )


@pytest.mark.parametrize("package", ["lightning_fabric", "lightning/fabric"])
def test_so_does_the_barrier_of_lightning_which_calls_torchs_itself(package: str) -> None:
    file = f"/venv/lib/python3.13/site-packages/{package}/utilities/distributed.py"
    inside = StackDump(0, 0, frames=(Frame(file, 418, "__call__"), Frame("/home/me/user.py", 3, "get")))
    assert text(inside, works(1)).startswith(
        "rank 1 (node 0) has not reached barrier(); rank 0 has been waiting in it; rank 1 is at"
    )
    inside = StackDump(0, 0, frames=(Frame("/home/me/user.py", 3, "get"), Frame(file, 418, "__call__")))
    assert find_hang([inside, works(1)]) is None


def test_all_in_the_same_collective_is_nobodys_fault() -> None:
    hang = find_hang([waits(0, call(7)), waits(1, call(7))])
    assert hang is not None
    assert hang.ranks == ()
    assert hang.text.startswith("all ranks wait, rank 0 in all_reduce #7, but no data arrive")


ANSWER = {
    "members": {"0": [0, 1], "1": [1]},
    "begun": [
        ["0", 3, "all_reduce", [[4]], ["Float"], 1.5, False, False, None],
        ["1", 1, "broadcast", [[2]], ["Long"], 1.0, True, False, None],
    ],
    "last": {"0": 3, "1": 7},
    "threads": [["MainThread", True, [["a.py", 1, "f"]]], ["other", False, []]],
}


def test_an_answer_is_read() -> None:
    one = read_stack_dump(1, 0, ANSWER)
    assert one.frames == (Frame("a.py", 1, "f"),)
    assert [str(entry) for entry in one.pending] == ["all_reduce #3"]
    assert one.groups == (group("0", 0, 1, begun=3), group("1", 1, begun=7))
    assert one.calls[0].shape == "Float [4]"


@pytest.mark.parametrize("name", sorted(ANSWER))
@pytest.mark.parametrize("value", [None, 7, [[1]], {"a": 1}, "x"])
def test_an_answer_that_makes_no_sense_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError):
        read_stack_dump(1, 0, {**ANSWER, name: {"a": "b"} if name == "last" and value == {"a": 1} else value})


@pytest.mark.parametrize("letter", ["n", "ü"])
def test_a_message_of_a_rank_fits_into_a_line(letter: str) -> None:
    from slipway.launch.rendezvous.client import stack_dump_line
    from slipway.launch.rendezvous.codec import LINE_BYTES, decode

    many = {
        "members": {str(name): [rank * rank for rank in range(name, name + 300)] for name in range(100)},
        "last": {},
        "begun": [
            [str(number % 100), number, letter * 500, [[10**9] * 90], ["Float"] * 90, 1.5, number % 2 == 0, False, None]
            for number in range(3000)
        ],
        "threads": [["MainThread", True, [[letter * 5000, 10**6, letter * 5000]] * 500]],
    }
    line = stack_dump_line(read_stack_dump(1, 0, many), first=True)
    assert len(line) < LINE_BYTES
    assert decode(line).dump.place.startswith("is at ")


@pytest.mark.parametrize("odd", [float("inf"), float("nan"), 10**400, 2**60, -1, 1e300])
@pytest.mark.parametrize("place", ["number", "since", "line", "member"])
def test_a_number_that_makes_no_sense_is_refused(place: str, odd: float) -> None:
    call = [
        "0",
        odd if place == "number" else 3,
        "all_reduce",
        [[4]],
        ["Float"],
        odd if place == "since" else 1.5,
        False,
        False,
        None,
    ]
    frame = ["a.py", odd if place == "line" else 1, "f"]
    answer = {
        "members": {"0": [odd if place == "member" else 0]},
        "last": {},
        "begun": [call],
        "threads": [["MainThread", True, [frame]]],
    }
    with pytest.raises(ValueError):
        read_stack_dump(1, 0, answer)


def test_a_time_of_another_node_that_makes_no_sense_is_shown_somehow() -> None:
    assert "UTC" in text(waits(0, call(3, since=1e300)), works(1))


@pytest.mark.parametrize("state", ["does not answer", "has no watcher", "is waiting for a disk or a driver"])
def test_who_could_not_be_asked_is_blamed_only_where_nobody_else_is(state: str) -> None:
    hang = find_hang([waits(0, call(3)), works(1, state=state), works(2)])
    assert hang is not None
    assert hang.ranks == (2,)


@pytest.mark.parametrize(
    ("ranks", "runs"),
    [
        ((), ()),
        ((3,), ((3, 3, 0),)),
        (range(5000), ((0, 4999, 1),)),
        (range(2, 4096, 8), ((2, 4090, 8),)),
        ((0, 1, 2, 8, 9, 10), ((0, 2, 1), (8, 10, 1))),
    ],
    ids=str,
)
def test_ranks_as_runs(ranks: tuple[int, ...], runs: tuple[tuple[int, int, int], ...]) -> None:
    assert runs_of(ranks) == runs
    assert [rank for run in Group("1", runs).ranks for rank in run] == list(ranks)


def test_a_group_of_thousands_is_known() -> None:
    """Half of a job: the others are not missed."""
    answer = {"members": {"1": range(0, 2048, 2)}, "last": {"1": 4}, "threads": [["", True, []]]}
    inside = {**answer, "begun": [["1", 4, "all_reduce", [[4]], ["Float"], 1.5, False, False, None]]}
    outside = {"members": {}, "last": {}, "threads": [["", True, []]], "begun": []}
    late = read_stack_dump(2, 0, {**answer, "last": {"1": 3}, "begun": []})
    hang = find_hang([read_stack_dump(0, 0, inside), read_stack_dump(1, 0, outside), late])
    assert hang is not None
    assert hang.ranks == (2,)


def test_who_began_it_long_ago_is_not_missed() -> None:
    """Its collectives of that group are older than those that it tells of."""
    done = works(
        1, *(call(number, group="2", done=True) for number in range(20)), groups=(group("1", 0, 1, 2, begun=4),)
    )
    here = (group("1", 0, 1, 2, begun=4),)
    hang = find_hang(
        [waits(0, call(4, group="1"), groups=here), done, works(2, groups=(group("1", 0, 1, 2, begun=3),))]
    )
    assert hang is not None
    assert hang.ranks == (2,)


def test_of_several_that_wait_for_each_other_all_are_to_blame_the_one_that_most_wait_for_first() -> None:
    pair = (group("1", 0, 1),)
    hang = find_hang(
        [waits(0, call(3)), waits(1, call(1, group="1", since=-1.0), groups=pair), waits(2, call(3)), waits(3, call(3))]
    )
    assert hang is not None
    assert hang.ranks == (1, 0)


def test_what_was_seen_from_outside_is_told_beside_what_is_odd() -> None:
    seen = StackDump(1, 0, "does not answer", IN_LOAD)
    assert text(waits(0, call(3)), seen).endswith("; rank 1 is at user.py:6 load(), and does not answer")
    hang = find_hang([waits(0, call(3)), seen, works(2, state="has no watcher")])
    assert hang is not None
    assert hang.ranks == (1,)


IN_INIT = (
    Frame("/venv/lib/python3.13/site-packages/torch/distributed/rendezvous.py", 191, "_create_c10d_store"),
    Frame(TORCH, 9, "f"),
)
STORE = "looks for torch's store at localhost, port 12355, and torchrun's is at 10.0.0.1, port 29501: remove the lines that set"


def joins(rank: int, *store: object) -> StackDump:
    threads = [["MainThread", True, [[frame.file, frame.line, frame.function] for frame in IN_INIT]]]
    return read_stack_dump(rank, 0, {"members": {}, "last": {}, "begun": [], "threads": threads, "store": store})


def test_a_script_that_waits_for_a_store_of_its_own_is_told_where_torchruns_is() -> None:
    astray = [joins(rank, "localhost", 12355, "10.0.0.1", 29501) for rank in (0, 1)]
    assert text(*astray).startswith(f"ranks 0, 1 cannot join the others: the script {STORE}")
    assert "no data arrive" in text(joins(0), joins(1))


def test_who_waits_for_another_store_is_to_blame_and_not_those_that_wait_for_it() -> None:
    hang = find_hang([waits(0, call(1)), joins(1, "localhost", 12355, "10.0.0.1", 29501)])
    assert hang is not None
    assert (hang.ranks, hang.waiting) == ((1,), 0)
    assert hang.text.startswith(f"rank 1 (node 0) cannot join the others: the script {STORE}")


# On GPUs the host runs ahead: a rank has many collectives that are begun and not done.


def queue(rank: int, first: int, last: int, group: str = "0", **more: Any) -> tuple[Call, ...]:
    return tuple(
        replace(call(number, group=group, since=rank + number * 10.0), **more) for number in range(first, last + 1)
    )


def send(peer: int, since: float = 0.0, name: str = "send") -> Call:
    return replace(call(9, name, group="pipe", since=since), peer=peer)


def culprits(*dumps: StackDump) -> tuple[int, ...]:
    hang = find_hang(dumps)
    assert hang is not None
    return hang.ranks


def test_the_first_that_all_have_begun_says_nothing() -> None:
    hang = find_hang([*(waits(rank, *queue(rank, 4, 9)) for rank in (0, 2, 3)), works(1, *queue(1, 4, 6))])
    assert hang is not None
    assert hang.ranks == (), "it waits in the same one"
    hang = find_hang([*(waits(rank, *queue(rank, 4, 9)) for rank in (0, 2, 3)), works(1, *queue(1, 1, 3, done=True))])
    assert hang is not None
    assert (hang.ranks, hang.text[:45]) == ((1,), "rank 1 (node 0) has not reached all_reduce #4")


def test_whose_gpu_has_not_finished_what_the_others_have_is_named_though_it_began_all() -> None:
    others = [waits(rank, *queue(rank, 7, 9)) for rank in (0, 2, 3)]
    assert text(*others, waits(1, *queue(1, 4, 9))) == (
        "rank 1 (node 0) has not finished all_reduce #4; others have; rank 1 is at user.py:9 step()"
    )


def test_of_two_groups_each_with_a_rank_behind_both_are_named() -> None:
    groups = group("1", 0, 1, 2), group("2", 3, 4, 5)
    here = [waits(rank, *queue(rank, 7, 9, "1"), groups=groups[:1]) for rank in (0, 1)]
    there = [waits(rank, *queue(rank, 3, 4, "2"), groups=groups[1:]) for rank in (3, 4)]
    assert culprits(*here, *there, works(2, groups=groups[:1]), works(5, groups=groups[1:])) == (2, 5)


def test_who_waits_for_what_is_sent_is_no_end_of_a_chain() -> None:
    pair, pipe = group("1", 1, 2), group("pipe", 0, 1)
    receives = waits(0, send(1, name="recv"), groups=(pipe,))
    assert culprits(receives, waits(1, call(5, group="1"), groups=(pair, pipe)), works(2, groups=(pair,))) == (2,)
    assert culprits(receives, waits(1, send(0), groups=(pipe,)), works(2)) == (), "both are at it"


def test_a_send_that_nobody_receives_does_not_hold_its_sender_up() -> None:
    """Rank 1 is blocked after it; rank 0 would receive it, but is waiting for rank 1 elsewhere."""
    pair, pipe = group("1", 0, 1), group("pipe", 0, 1)
    hang = find_hang([waits(0, call(5, group="1"), groups=(pair, pipe)), works(1, send(0), groups=(pair, pipe))])
    assert hang is not None
    assert hang.ranks == (1,)


def test_a_send_is_over_where_its_receiver_has_begun_what_comes_later() -> None:
    """Its sender has not noticed: that GPU is broken."""
    pipe = group("pipe", 0, 1)
    assert culprits(
        waits(0, send(1, since=1.0), *queue(0, 5, 6), groups=(pipe,)), waits(1, *queue(1, 5, 6), groups=(pipe,))
    ) == (0,)


@pytest.mark.parametrize(("started", "named"), [((True, False, True), (1,)), ((False,) * 3, ()), ((True,) * 3, ())])
def test_who_has_not_started_what_all_have_begun_is_named_where_torch_recorded_starts(
    started: tuple[bool, ...], named: tuple[int, ...]
) -> None:
    assert culprits(*(waits(rank, replace(call(5), started=started[rank])) for rank in range(3))) == named


def test_a_group_whose_collective_does_not_end_is_named_and_no_rank() -> None:
    pair, other = group("1", 0, 1), group("2", 1, 2)
    stuck = [waits(rank, *queue(rank, 5, 6, "1"), groups=(pair, other)[: rank + 1]) for rank in (0, 1)]
    later = waits(2, call(3, group="2"), groups=(other,))
    stuck[1] = replace(stuck[1], calls=(*stuck[1].calls, call(3, group="2", since=99.0)))
    hang = find_hang([*stuck, later])
    assert hang is not None
    assert (hang.ranks, hang.among) == ((), (0, 1))
    assert hang.text.startswith(
        "ranks 0, 1 have begun all_reduce #5 of the process group of ranks 0, 1, and it does not end: a GPU or a link of theirs"
    )


def test_the_source_of_a_broadcast_that_is_through_blames_nobody() -> None:
    receives = [waits(rank, call(4, "broadcast"), call(5, since=9.0)) for rank in (1, 2, 3)]
    hang = find_hang([waits(0, call(5)), *receives])
    assert hang is not None
    assert (hang.ranks, hang.among) == ((), (1, 2, 3))


def test_of_two_that_do_not_agree_both_are_named() -> None:
    assert culprits(waits(0, call(7)), waits(1, call(7, "barrier"))) == (0, 1)


def test_what_a_rank_began_of_a_group_in_which_nothing_is_left_follows_from_what_it_began_later() -> None:
    """Its recorder holds only what is not done. Rank 0 has not noticed that #8 of group 1 is over."""
    groups = (group("1", 0, 1), group("2", 0, 1))
    mine = waits(0, call(8, group="1", since=1.0), call(5, group="2", since=2.0), groups=groups)
    assert culprits(mine, waits(1, call(5, group="2"), groups=groups)) == (0,)


def test_a_message_keeps_the_oldest_of_each_group_longest() -> None:
    dump = waits(0, *queue(0, 4, 9), *queue(0, 2, 5, "1"), send(3), groups=(group("0", 0), group("1", 0)))
    shorter = dump.shorter()
    assert [str(call) for call in shorter.calls] == ["all_reduce #4", "all_reduce #2", "send to rank 3"]
    assert shorter.groups == dump.groups
    assert len(replace(shorter, frames=()).shorter().groups) == 1
