"""What torch's flight recorders tell, read: the forms that torch 2.10 has for gloo and for NCCL."""

from typing import Any

import pytest

from slipway.launch.hangs.flight_recorder import COLLECTIVES, read_answer, read_numbers


def entry(
    number: int, name: str = "gloo:all_reduce", *, done: bool = False, group: str = "0", **more: Any
) -> dict[str, Any]:
    fields = {
        "collective_seq_id": number,
        "profiling_name": name,
        "retired": done,
        "process_group": [group, "undefined"],
    }
    return {**fields, "is_p2p": False, "p2p_seq_id": 0, "pg_id": 0, "input_sizes": [[4]], "input_dtypes": ["Float"],
            "time_created_ns": 1_500_000_000 + number} | more  # fmt: skip


def read(*records: list[dict[str, Any]], members: dict[str, list[int]] | None = None) -> dict[str, Any]:
    rows = [{"entries": entries} for entries in records]
    return read_answer({"records": rows, "members": {"0": [0, 1]} if members is None else members, "threads": []})


def pending(answer: dict[str, Any]) -> list[tuple[str, int, str]]:
    return [tuple(call[:3]) for call in answer["begun"] if not call[6]]


def test_collectives_are_read() -> None:
    answer = read([entry(1, done=True), entry(2)])
    assert answer["begun"] == [
        ["0", 1, "all_reduce", [[4]], ["Float"], 1.500000001, True, False, None],
        ["0", 2, "all_reduce", [[4]], ["Float"], 1.500000002, False, False, None],
    ]
    assert answer["last"] == {"0": 2}


def test_of_many_the_newest_are_kept_and_all_that_are_not_done() -> None:
    answer = read([entry(number, done=number != 5) for number in range(1, 500)])
    assert len(answer["begun"]) == COLLECTIVES + 1
    assert pending(answer) == [("0", 5, "all_reduce")]


def test_sends_and_receives_have_a_count_of_their_own() -> None:
    answer = read([entry(3, "nccl:all_reduce", done=True), entry(3, "nccl:send 0->1", is_p2p=True)])
    assert pending(answer) == [("0", 3, "send")]
    assert answer["last"] == {"0": 3}


@pytest.mark.parametrize(("name", "peer"), [("nccl:send 1->2", 9), ("nccl:recv 1<-0", 4)])
def test_sends_and_receives_name_the_other_end_by_its_rank_in_the_group(name: str, peer: int) -> None:
    answer = read([entry(3, name, group="1", is_p2p=True)], members={"1": [4, 6, 9]})
    assert [(call[2], call[-1]) for call in answer["begun"]] == [(name[5:9], peer)]
    assert read([entry(3, name, group="1", is_p2p=True)])["begun"] == [], "nobody knows the group's ranks"


@pytest.mark.parametrize(
    ("entries", "waiting"),
    [
        (["send 0->1 7", "recv 0<-1 7", "coalesced 7 over"], []),
        (["send 0->1 7", "recv 0<-1 7", "coalesced 7"], ["send", "recv"]),
        (["send 0->1 7", "recv 0<-1 7"], []),  # only what is not done is recorded, and their end is not there
        (["send 0->1 7", "recv 0<-1 8"], ["send", "recv"]),  # each begun by itself
        (["send 0->1 7 over", "send 0->1 8"], ["send"]),
    ],
)
def test_sends_and_receives_that_are_not_over(entries: list[str], waiting: list[str]) -> None:
    rows = []
    for text in entries:
        words = [word for word in text.split() if word != "over"]
        name = "nccl:" + " ".join(words[:-1])
        rows.append(entry(3, name, is_p2p=True, p2p_seq_id=int(words[-1]), done="over" in text))
    assert [name for _, _, name in pending(read(rows))] == waiting


def test_a_start_counts_where_torch_recorded_it() -> None:
    times = (None, 0, 1_500_000_000)
    answer = read([entry(number, time_discovered_started_ns=time) for number, time in enumerate(times)])
    assert [call[7] for call in answer["begun"]] == [False, False, True]


@pytest.mark.parametrize(
    ("done", "waiting"), [(True, []), (False, [("0", 4, "all_gather"), ("0", 4, "reduce_scatter")])]
)
def test_collectives_begun_as_one_are_done_with_the_entry_that_ends_them(done: bool, waiting: object) -> None:
    """torch retires that alone."""
    inside = [entry(4, "nccl:all_gather"), entry(4, "nccl:reduce_scatter")]
    assert pending(read([entry(3, done=True), *inside, entry(4, "nccl:coalesced", done=done)])) == waiting


def test_sends_begun_as_one_say_nothing_of_the_collective_before() -> None:
    sends = [entry(3, "nccl:send 0->1", is_p2p=True), entry(3, "nccl:recv 1<-0", is_p2p=True)]
    answer = read([entry(3, "nccl:all_reduce"), *sends, entry(3, "nccl:coalesced", done=True)])
    assert pending(answer) == [("0", 3, "all_reduce")]


def test_two_backends_of_a_group_count_for_themselves() -> None:
    answer = read([entry(3, done=True)], [entry(3, "nccl:broadcast")])
    assert pending(answer) == [("0/1", 3, "broadcast")]
    assert answer["members"] == {"0": [0, 1], "0/1": [0, 1]}


def test_groups_are_told_apart() -> None:
    answer = read([entry(9, done=True), entry(2, group="1")], members={"0": [0, 1], "1": [0]})
    assert pending(answer) == [("1", 2, "all_reduce")]
    assert answer["last"] == {"0": 9, "1": 2}


@pytest.mark.parametrize("odd", [{"process_group": None}, {"profiling_name": 3}, {"time_created_ns": "x"}])
def test_another_torchs_recorder_leaves_the_stacks(odd: dict[str, Any]) -> None:
    answer = read_answer({"records": [{"entries": [entry(1) | odd]}], "members": {}, "threads": [["", True, []]]})
    assert (answer["begun"], answer["threads"]) == ([], [["", True, []]])


def test_numbers_are_read() -> None:
    status = {"0": {"last_completed_collective": "4", "last_enqueued_collective": "5", "last_started_collective": "-1"}}
    assert read_numbers([{"pg_status": status}, {}]) == {"0/0": [5, 4]}
