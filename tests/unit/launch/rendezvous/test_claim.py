"""RANK=auto: which launcher may be node 0, what one may ask, and which ranks it had before."""

from pathlib import Path
from typing import Any

import pytest
from participants import make_info

from slipway.launch.rendezvous.claim import may_be_here
from slipway.launch.rendezvous.messages import Ask, Assigned, Hello
from slipway.launch.run_directory.directory import RunDirectory

NAMES = ("node7", "10.0.0.7", "172.17.0.1")


@pytest.mark.parametrize(
    ("address", "found", "here"),
    [
        ("node7", ("10.0.0.7",), True),
        ("train-head", ("10.0.0.7", "10.0.0.8"), True),
        ("node8", ("10.0.0.8",), False),
        ("172.17.0.1", ("172.17.0.1",), True),
        ("127.0.0.1", ("127.0.0.1",), True),
        ("127.0.0.5", ("127.0.0.5",), True),
        ("localhost", ("::1", "127.0.0.1"), True),
        ("node7", ("127.0.1.1",), True),  # Debian's own line of /etc/hosts
        ("Node7.cluster.example", ("127.0.1.1",), True),
        ("node8", ("127.0.1.1",), False),
        ("node8", (), False),
    ],
)
def test_master_addr_may_mean_this_machine(address: str, found: tuple[str, ...], here: bool) -> None:
    assert may_be_here(address, found, NAMES) is here


@pytest.mark.parametrize("odd", [{"who": ""}, {"who": "w" * 65}, {"job": "j" * 251}, {"held": (1,) * 65}])
def test_a_question_that_no_launcher_asks_is_malformed(odd: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="impossible"):
        Ask(**{"who": "a", "job": "j"} | odd)
    with pytest.raises(ValueError, match="impossible"):
        Assigned(0)
    with pytest.raises(ValueError, match="impossible"):
        Hello("p", 0.0, 1, "k", make_info(1, 2), who="w" * 65)


def test_the_ranks_of_a_container_or_else_of_a_host_are_found_in_the_run_directory(tmp_path: Path) -> None:
    places = {1: ("host", ""), 2: ("host", "c1"), 3: ("other", ""), 4: ("other", "c1"), 5: ("host", "")}
    for rank, (host, container) in places.items():
        node = tmp_path / f"node-{rank}"
        node.mkdir()
        (node / "plan.json").write_text(f'{{"host": "{host}", "container": "{container}"}}')
    run = RunDirectory(tmp_path)
    assert run.ranks_of("host", "") == [1, 5]
    assert run.ranks_of("host", "c1") == [2, 4]
    assert run.ranks_of("third", "") == []
