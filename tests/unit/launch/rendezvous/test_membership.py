"""Who is here, who is missing, who is turned away."""

from dataclasses import replace
from typing import Any

import pytest
from participants import make_info

from slipway.launch.rendezvous.codec import decode, encode
from slipway.launch.rendezvous.membership import Member, Membership, was_replaced
from slipway.launch.rendezvous.messages import Hello


def make_membership(
    nodes: int,
    least: int | None = None,
    allow_uneven: bool = False,
    doubtful: bool = False,
    spares: int = 0,
    **own: Any,
) -> Membership:
    return Membership(
        own=make_info(0, nodes, **own),
        nodes=nodes,
        least=least or nodes,
        process="node 0's",
        allow_uneven=allow_uneven,
        doubtful=doubtful,
        spares=spares,
    )


def make_hello(node_rank: int, nodes: int | str, process: str = "p", **changes: Any) -> Hello:
    return Hello(process, 0.0, 1, "key", make_info(node_rank, nodes, **changes))


def admit(membership: Membership, *hellos: Hello) -> None:
    for hello in hellos:
        membership.admit(Member(hello, None, 0.0))


@pytest.mark.parametrize(
    ("one", "other", "replaced"),
    [
        ({"tries": 1, "attempt": 1}, {"tries": 2, "attempt": 2}, True),
        ({"tries": 2, "attempt": 2}, {"tries": 1, "attempt": 1}, False),
        ({"tries": 2, "attempt": 2, "frozen": True}, {"tries": 1, "attempt": 1}, False),
        ({"tries": 1, "attempt": 1}, {"tries": 1, "attempt": 1}, False),
        ({"frozen": True}, {}, True),
        ({"frozen": True}, {"frozen": True}, False),
        ({}, {"tries": 1, "attempt": 1}, False),  # it was started to replace the other, which is here after all
        ({"attempt": 1}, {"tries": 2, "attempt": 2}, False),  # its disk knows of an attempt; it has made none
    ],
)
def test_of_two_launchers_of_one_node_the_one_that_missed_an_attempt_or_was_frozen_was_replaced(
    one: dict[str, Any], other: dict[str, Any], replaced: bool
) -> None:
    first, second = (
        replace(
            make_hello(2, 4, **{name: value for name, value in each.items() if name != "frozen"}),
            frozen="frozen" in each,
        )
        for each in (one, other)
    )
    assert was_replaced(first, second) == replaced


def test_the_missing_are_named() -> None:
    membership = make_membership(8)
    admit(membership, *(make_hello(rank, 8) for rank in (0, 1, 2, 4, 5)))
    assert membership.describe(20.4) == "waiting for nodes: 5 of 8 after 20 s; missing node ranks 3, 6, 7"
    assert not membership.complete


def test_one_missing_node_is_a_rank_not_ranks() -> None:
    assert make_membership(2).describe(3).endswith("0 of 2 after 3 s; missing node ranks 0, 1")
    membership = make_membership(2)
    admit(membership, make_hello(0, 2))
    assert membership.describe(3).endswith("1 of 2 after 3 s; missing node rank 1")


@pytest.mark.parametrize(
    ("own", "others", "run"),
    [
        ({"goes_on": True}, ({}, {"goes_on": True, "snapshot": 40}, {"goes_on": True, "snapshot": 20}), "linear-of-2"),
        ({"goes_on": True}, ({"goes_on": True, "snapshot": 40}, {"goes_on": True, "snapshot": 40}), "linear-of-1"),
        ({"goes_on": True}, ({"goes_on": True, "snapshot": 20}, {"goes_on": True, "snapshot": 40}), "linear-of-2"),
        ({"goes_on": True}, ({"goes_on": True, "snapshot": 0}, {"goes_on": True, "snapshot": 1}), "linear-of-2"),
        ({"goes_on": True}, ({"goes_on": True}, {"snapshot": 40}), "linear-of-0"),  # that one is to begin a new run
        ({"goes_on": True, "snapshot": 0}, ({"goes_on": True, "snapshot": 40},), "linear-of-0"),
        ({}, ({"goes_on": True, "snapshot": 40},), "linear-of-0"),
        ({"goes_on": True}, ({"tries": 1}, {"goes_on": True, "snapshot": 40}), "linear-of-1"),
    ],
)
def test_an_empty_disk_on_node_0_does_not_begin_anew_what_others_have(
    own: dict[str, Any], others: tuple[dict[str, Any], ...], run: str
) -> None:
    nodes = len(others) + 1
    membership = make_membership(nodes, **own)
    admit(
        membership,
        make_hello(0, nodes, **own),
        *(make_hello(rank + 1, nodes, **info) for rank, info in enumerate(others)),
    )
    assert membership.run == run


def test_where_all_are_here_the_fault_is_told_to_be_another() -> None:
    membership = make_membership(2)
    admit(membership, make_hello(0, 2), make_hello(1, 3))
    assert membership.describe(7.6) == "all 2 nodes are present after 8 s, but their configurations differ"


@pytest.mark.parametrize(
    ("here", "enough", "complete"),
    [
        ((), False, False),
        ((0,), False, False),
        ((0, 3), True, False),
        ((1, 2), False, False),  # node 0 itself must be there
        ((1, 2, 3), False, False),
        ((0, 1, 2, 3), True, True),
        ((0, 4), False, False),  # beyond the nodes that are expected
    ],
)
def test_a_job_that_may_shrink_begins_with_the_least_and_node_0(
    here: tuple[int, ...], enough: bool, complete: bool
) -> None:
    membership = make_membership(4, least=2)
    admit(membership, *(make_hello(rank, 5 if rank > 3 else 4) for rank in here))
    assert (membership.enough, membership.complete) == (enough, complete)
    assert membership.ranks == tuple(rank for rank in here if rank < 4)


@pytest.mark.parametrize("beyond", [2, 3, 9])
def test_who_is_beyond_the_expected_is_shown_but_counts_for_nothing(beyond: int) -> None:
    membership = make_membership(2)
    admit(membership, make_hello(beyond, 10), make_hello(0, 2))
    assert (dict(membership.hosts), membership.ranks) == ({beyond: f"host{beyond}", 0: "host0"}, (0,))
    assert {rank: info.nodes for rank, info in membership.infos.items()} == {beyond: "10", 0: "2"}
    assert membership.describe(1).startswith("waiting for nodes: 1 of 2")
    membership.vacate(beyond)
    assert membership.describe(1).startswith("waiting for nodes: 1 of 2")


def test_the_least_and_the_most_are_waited_for() -> None:
    membership = make_membership(4, least=2)
    admit(membership, make_hello(0, 4))
    assert membership.describe(1) == "waiting for nodes: 1 of 2 to 4 after 1 s; missing node ranks 1-3"


@pytest.mark.parametrize(
    ("change", "allow_uneven", "fits"),
    [
        ({}, False, True),
        ({"workload": "gpt"}, False, False),
        ({"processes": 4}, False, False),
        ({"processes": 4}, True, True),
        ({"driver": "1"}, False, True),
        ({"problem": "no GPU"}, False, False),
    ],
)
def test_who_fits_agrees_in_what_must_agree(change: dict[str, Any], allow_uneven: bool, fits: bool) -> None:
    assert make_membership(2, allow_uneven=allow_uneven).fits(Member(make_hello(1, 2, **change), None, 0.0)) is fits


@pytest.mark.parametrize(("tries", "newest"), [((), None), ((0, 0), None), ((0, 2, 1), 1), ((1, 2, 2), 1), ((3, 3), 0)])
def test_the_launcher_that_made_the_most_attempts_knows_best_the_lowest_rank_of_several(
    tries: tuple[int, ...], newest: int | None
) -> None:
    membership = make_membership(4)
    admit(
        membership,
        *(make_hello(rank, 4, tries=tries[rank], attempt=tries[rank]) for rank in reversed(range(len(tries)))),
    )
    assert (membership.newest.info.node_rank if membership.newest else None) == newest


def test_a_rank_taken_twice_and_left_counts_right() -> None:
    membership = make_membership(2)
    admit(membership, make_hello(0, 2), make_hello(1, 2), make_hello(1, 2))
    assert membership.complete
    membership.vacate(1)
    membership.vacate(1)
    assert membership.missing == (1,)
    assert not membership.complete


def test_a_node_that_counts_more_nodes_is_waited_for_by_nobody_but_seen_by_all() -> None:
    membership = make_membership(2)
    admit(membership, make_hello(0, 2), make_hello(1, 3))
    assert (membership.complete, membership.everyone) == (True, False)
    admit(membership, make_hello(2, 3))
    assert (membership.complete, membership.everyone) == (True, True)
    membership.vacate(1)
    assert (membership.complete, membership.everyone) == (False, False)


def test_a_world_size_of_absurd_length_is_only_a_text() -> None:
    membership = make_membership(1)
    admit(membership, make_hello(0, "9" * 5_000))
    assert membership.everyone
    admit(membership, make_hello(0, "10000000"))
    assert membership.everyone
    admit(membership, make_hello(0, "1000000"))
    assert not membership.everyone


@pytest.mark.parametrize(
    ("hello", "own", "said"),
    [
        (make_hello(1, 2), {}, None),
        (make_hello(0, 2, process="node 0's"), {}, None),
        (make_hello(0, 2), {}, "RANK=0 is taken by host0, which MASTER_ADDR names; every node needs a RANK of its own."),
        (make_hello(2, 2), {}, "RANK=2, but WORLD_SIZE=2 allows 0 to 1"),
        (make_hello(-1, 2), {}, "RANK=-1"),
        (make_hello(2, 3), {}, None),  # WORLD_SIZE differs: that belongs into the table
        (make_hello(-1, 3), {}, "RANK=-1"),
        (make_hello(1_000_000, 3), {}, "RANK=1000000"),
        (make_hello(999_999, 3), {}, None),
        (make_hello(2_000_000, 3), {}, "RANK=2000000"),
        (make_hello(0, 2, process="a"), {}, "RANK=0 is taken by host0"),
        (make_hello(1, 2, job="40"), {"job": "41"}, "this is job 40"),
        (make_hello(0, 3), {}, "RANK=0 is taken by host0"),
        (make_hello(1, 2, job="42"), {"job": "41"}, "this is job 42, but the launcher at this address belongs to job 41"),
        (make_hello(1, 2, job="42"), {"job": "42"}, None),
        (make_hello(1, 2, job="42"), {}, None),
    ],
)  # fmt: skip
def test_who_can_never_be_a_member(hello: Hello, own: dict[str, Any], said: str | None) -> None:
    objection = make_membership(2, **own).objection(hello)
    assert (objection is None) if said is None else (objection is not None and said in objection)


def test_the_ranks_that_there_are_are_named() -> None:
    assert (
        make_membership(5).objection(make_hello(7, 5)) == "RANK=7, but WORLD_SIZE=5 allows 0 to 4. RANK counts nodes."
    )


def test_strays_are_bounded() -> None:
    membership = make_membership(2)
    admit(membership, make_hello(0, 2), make_hello(1, 2), *(make_hello(rank, 1000) for rank in range(2, 65)))
    assert membership.objection(make_hello(65, 1000)) is None
    for rank in (66, 67):  # also where two came at once
        admit(membership, make_hello(rank - 1, 1000))
        assert membership.objection(make_hello(rank, 1000)) is not None
    assert membership.objection(make_hello(66, 1000)) == "RANK=66, but WORLD_SIZE=2 allows 0 to 1. RANK counts nodes."
    assert membership.objection(make_hello(1, 2)) is None  # those that are expected are let in as before


def test_a_job_that_is_under_way_is_told_to_start_the_missing_again() -> None:
    membership = make_membership(3, least=2, processes=3, doubtful=True)
    admit(membership, make_hello(0, 3, tries=1))
    assert membership.under_way.startswith("the job is running: start its command again on the missing nodes")
    assert membership.question == ""
    admit(membership, make_hello(1, 3))
    assert membership.under_way == ""


def test_nobody_is_told_to_start_a_pod_again_that_a_controller_replaces() -> None:
    membership = make_membership(2, runtime="kubernetes")
    admit(membership, make_hello(0, 2, runtime="kubernetes"))
    assert membership.under_way == ""  # it has not begun
    admit(membership, make_hello(0, 2, tries=1, runtime="kubernetes"))
    assert "a Job does so 10 s after a pod's end, and later each time" in membership.under_way
    assert "start its command" not in membership.under_way


EIGHT = {"processes": 8, "gpus": ("H200",) * 8}
QUESTIONS = [  # WORLD_SIZE, the nodes that are here, what is asked
    (4, [{"processes": 2}] * 2, "The nodes here start 2 × 2 = 4 processes: set WORLD_SIZE=2."),
    (16, [EIGHT] * 2, "The nodes here start 2 × 8 = 16 processes: set WORLD_SIZE=2."),
    (6, [{"processes": 4}, {"processes": 2}], "The nodes here start 4 + 2 = 6 processes: set WORLD_SIZE=2."),
    (4, [{"processes": 2}] * 3, ""),
    (4, [{"processes": 1}] * 2, ""),
    (2, [{"processes": 1}] * 2, ""),  # nobody is missing
    (4, [{"processes": 4}], "Was it meant to count the 4 processes of this machine? Then unset WORLD_SIZE."),
    (4, [{"processes": 2, "gpus": ("H200",) * 4}], "Was it meant to count the 4 GPUs of this machine? Then unset WORLD_SIZE."),
    (4, [{"processes": 3, "gpus": ("H200",) * 5}], ""),
    (16, [EIGHT], "processes (this node has 8)? Then set WORLD_SIZE=2."),
    (6, [{"processes": 2}], "processes (this node has 2)? Then set WORLD_SIZE=3."),
    (6, [{"processes": 1}], ""),
    (6, [{"processes": 4}], ""),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "here", "asks"), QUESTIONS)
@pytest.mark.parametrize("doubtful", [True, False])
def test_who_may_have_counted_processes_is_asked_unless_a_scheduler_gave_the_number(
    nodes: int, here: list[dict[str, Any]], asks: str, doubtful: bool
) -> None:
    membership = make_membership(nodes, doubtful=doubtful, **here[0])
    admit(membership, *(make_hello(rank, nodes, **own) for rank, own in enumerate(here)))
    if asks and doubtful:
        assert membership.question.startswith(f"WORLD_SIZE={nodes} counts nodes. Was it meant to count ")
        assert membership.question.endswith(asks)
    else:
        assert membership.question == ""


def test_node_0_asks_about_its_own_machine_before_any_launcher_is_here() -> None:
    assert make_membership(4, doubtful=True, processes=4).question.endswith(
        "Was it meant to count the 4 processes of this machine? Then unset WORLD_SIZE."
    )


def test_the_processes_of_a_node_beyond_the_expected_are_not_counted() -> None:
    membership = make_membership(4, doubtful=True)
    admit(membership, *(make_hello(rank, 4, processes=2) for rank in (0, 1)), make_hello(9, 10, processes=2))
    assert membership.question.endswith("The nodes here start 2 × 2 = 4 processes: set WORLD_SIZE=2.")


@pytest.mark.parametrize(("tries", "nonce"), [((0, 0), ""), ((0, 1), "of 1"), ((2, 1), "of 0")])
def test_a_job_that_is_under_way_is_told_from_others_as_those_have_it_that_took_part(
    tries: tuple[int, ...], nonce: str
) -> None:
    membership = make_membership(2)
    admit(
        membership,
        *(make_hello(rank, 2, tries=tried, attempt=tried, nonce=f"of {rank}") for rank, tried in enumerate(tries)),
    )
    assert membership.nonce == nonce


def over_the_wire(hello: Hello) -> Hello:
    return decode(encode(hello))


def test_a_launcher_is_known_by_what_it_says_over_the_wire() -> None:
    membership = make_membership(2, job="job 41")
    own = over_the_wire(make_hello(0, 2, process="node 0's", job="job 41"))
    assert membership.objection(own) is None
    admit(membership, make_hello(1, 2, process="first"))
    assert membership.rival(over_the_wire(make_hello(1, 2, process="first"))) is None


def test_a_job_of_hundreds_of_nodes_knows_them_by_what_they_say_over_the_wire() -> None:
    membership = Membership(
        own=make_info(399, 400), nodes=400, least=400, process="its", allow_uneven=False, doubtful=False, spares=1
    )
    for rank in range(401):
        admit(membership, over_the_wire(make_hello(rank, 400, process="its")))
        assert membership.complete == (rank == 400)
    assert membership.objection(over_the_wire(make_hello(399, 400, process="its"))) is None
    taken, beyond = (membership.objection(over_the_wire(make_hello(rank, 400))) for rank in (399, 401))
    assert taken == "RANK=399 is taken by host399, which leads the job; every node needs a RANK of its own."
    assert beyond == "RANK=401, but WORLD_SIZE=400+1 allows 0 to 400. RANK counts nodes."


def test_what_is_known_of_the_newest_attempt_goes_with_the_launcher_that_knew_it() -> None:
    membership = make_membership(3)
    admit(membership, *(make_hello(rank, 3, tries=rank, attempt=rank, nonce=f"of {rank}") for rank in range(3)))
    said = [membership.nonce]
    for rank in (2, 1):
        membership.vacate(rank)
        said.append(membership.nonce)
    assert said == ["of 2", "of 1", ""]


@pytest.mark.parametrize(
    ("attempts", "offered", "number"),
    [((0, 0), (0, 0), 1), ((2, 1), (0, 0), 3), ((0, 3), (4, 1), 5), ((5, 0), (0, 5), 6)],
)
def test_the_next_attempt_has_a_higher_number_than_any_that_is_known(
    attempts: tuple[int, int], offered: tuple[int, int], number: int
) -> None:
    membership = make_membership(2)
    admit(
        membership,
        *(
            replace(make_hello(rank, 2, tries=attempts[rank], attempt=attempts[rank]), offered=offered[rank])
            for rank in (0, 1)
        ),
    )
    assert membership.next_attempt == number


def test_the_places_that_are_held_are_those_of_the_nodes_that_ran_the_newest_attempt() -> None:
    membership = make_membership(2, spares=2)
    places = {0: (2, 0), 1: (1, 1), 2: (2, 1), 3: (2, -1)}
    admit(
        membership,
        *(make_hello(rank, 2, tries=tries, attempt=tries, place=place) for rank, (tries, place) in places.items()),
    )
    assert membership.held == {0: 0, 2: 1}


def test_a_rival_is_another_process_with_the_same_rank() -> None:
    membership = make_membership(2)
    admit(membership, make_hello(1, 2, process="first"))
    assert membership.rival(make_hello(1, 2, process="first")) is None
    assert membership.rival(make_hello(1, 2, process="second")) is not None
    assert membership.rival(make_hello(1, 2, process="another")) is not None
    assert membership.rival(make_hello(0, 2, process="second")) is None


@pytest.mark.parametrize(
    ("nodes", "spares", "here", "members"),
    [
        # rank: (attempts that it made, place in the last one)
        (2, 1, {0: (0, -1), 1: (0, -1), 2: (0, -1)}, (0, 1)),
        (2, 1, {0: (0, -1), 2: (0, -1)}, (0, 2)),
        (2, 1, {0: (1, 0), 2: (1, -1)}, (0, 2)),
        (3, 1, {0: (1, 0), 2: (1, 2), 3: (1, -1)}, (0, 3, 2)),  # 2 keeps its place
        (2, 1, {0: (2, 0), 1: (0, -1), 2: (2, 1)}, (0, 2)),  # 1 returns, and waits
        (2, 1, {0: (2, 0), 1: (1, 1), 2: (2, 1)}, (0, 2)),  # 1 was cut off, and knows of the attempt before
        (2, 1, {0: (0, -1), 1: (3, 1), 2: (3, -1)}, (0, 1)),  # a new node 0
        (3, 2, {0: (1, 0), 3: (1, -1), 4: (1, -1)}, (0, 3, 4)),
        (3, 2, {0: (1, 0), 1: (1, 2), 2: (1, 2), 4: (1, -1)}, (0, 2, 1)),  # two that claim one place
        (3, 2, {0: (1, 0), 1: (1, 99), 2: (1, 0)}, (0, 1, 2)),  # places that cannot be
        (3, 2, {0: (1, 0), 4: (1, 2)}, (0, 4)),
        (3, 0, {0: (1, 0), 1: (1, 2), 2: (1, 1)}, (0, 1, 2)),  # without spare nodes ranks are places
    ],
)
def test_those_that_ran_keep_their_places_and_others_take_what_is_left(
    nodes: int, spares: int, here: dict[int, tuple[int, int]], members: tuple[int, ...]
) -> None:
    membership = make_membership(nodes, spares=spares)
    admit(
        membership,
        *(make_hello(rank, nodes, tries=tries, attempt=tries, place=place) for rank, (tries, place) in here.items()),
    )
    assert membership.participants == members


@pytest.mark.parametrize(
    ("here", "members"),
    [
        # rank: (attempts that it made, place in the last one); node 2 of 2+1 leads
        ({1: (1, 1), 2: (1, -1)}, (2, 1)),  # it takes the place of node 0, and 1 keeps its own
        ({0: (1, 0), 1: (1, 1), 2: (1, -1)}, (2, 1)),  # node 0 was cut off
        ({0: (0, -1), 1: (2, 1), 2: (2, 0)}, (2, 1)),  # a new node 0
        ({0: (2, -1), 2: (2, 0)}, (2, 0)),  # which takes the place of node 1
    ],
)
def test_the_node_that_leads_has_the_place_of_node_0(
    here: dict[int, tuple[int, int]], members: tuple[int, ...]
) -> None:
    membership = Membership(
        own=make_info(2, 2), nodes=2, least=2, process="node 2's", allow_uneven=False, doubtful=False, spares=1
    )
    admit(
        membership,
        *(
            make_hello(rank, 2, tries=tries, attempt=tries, place=place)
            for rank, (tries, place) in here.items()
            if rank != 2
        ),
    )
    assert not membership.enough
    admit(membership, make_hello(2, 2, process="node 2's", tries=here[2][0], attempt=here[2][0], place=here[2][1]))
    assert membership.enough
    assert membership.participants == members
    assert membership.objection(make_hello(0, 2)) is None
    assert membership.objection(make_hello(2, 2)) == (
        "RANK=2 is taken by host2, which leads the job; every node needs a RANK of its own."
    )


def test_any_node_will_do_where_there_are_spare_ones() -> None:
    membership = make_membership(3, spares=2)
    admit(membership, make_hello(0, 3), make_hello(4, 3))
    assert membership.describe(7) == "waiting for nodes: 2 of 3 after 7 s; any of node ranks 1-3 will do"
    assert not membership.enough
    admit(membership, make_hello(2, 3))
    assert membership.enough
    assert not membership.complete


@pytest.mark.parametrize(
    ("rank", "reason"), [(2, None), (3, "RANK=3, but WORLD_SIZE=2+1 allows 0 to 2. RANK counts nodes.")]
)
def test_ranks_of_spare_nodes_follow_those_of_the_others(rank: int, reason: str | None) -> None:
    assert make_membership(2, spares=1).objection(make_hello(rank, 2)) == reason


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, ""),
        ({"torch": "0.1"}, "differs from the others in torch"),
        ({"problem": "no disk"}, "no disk"),
        ({"driver": "1"}, ""),
    ],
)
def test_a_spare_node_that_does_not_fit_is_told_why(changes: dict[str, Any], says: str) -> None:
    reason = make_membership(2, spares=1).misfit(Member(make_hello(2, 2, **changes), None, 0.0))
    assert bool(reason) == bool(says)
    assert says in reason


def test_a_spare_node_that_knows_the_newest_attempt_is_compared_with_the_node_that_leads() -> None:
    membership = make_membership(400, spares=1)
    admit(membership, make_hello(0, 400), over_the_wire(make_hello(400, 400, tries=1, attempt=1, torch="0.1")))
    assert "differs from the others in torch" in membership.misfit(
        Member(over_the_wire(make_hello(400, 400, torch="0.1")), None, 0.0)
    )
