"""Options of the launcher: torchrun's spelling, hyphens and underscores, before and behind the workload's name."""

import json
from pathlib import Path

import pytest
from stand_ins import Slipway

TWO = {"nodes": 2, "node_rank": 1, "processes_per_node": 3, "master_addr": "n0", "master_port": 1234}
HYPHENS = ["--nnodes", "2", "--node-rank", "1", "--nproc-per-node", "3", "--master-addr", "n0", "--master-port", "1234"]
UNDERSCORES = [f"--{word[2:].replace('-', '_')}" if word.startswith("--") else word for word in HYPHENS]
EQUALS = ["--nnodes=2", "--node_rank=1", "--nproc-per-node=3", "--master_addr=n0", "--master-port=1234"]


def read(slipway: Slipway, *words: str, **environ: str) -> tuple[dict[str, object], list[str]]:
    answer = slipway("plan", "--json", *words, **environ)
    assert answer.code == 0, answer.err
    made = json.loads(answer.out)
    return made["topology"], made["torchrun"]["argv"]


@pytest.mark.parametrize("options", [HYPHENS, UNDERSCORES, EQUALS])
@pytest.mark.parametrize("behind", [False, True])
def test_torchruns_own_names_are_understood(slipway: Slipway, options: list[str], behind: bool) -> None:
    topology, argv = read(slipway, *(["linear", *options] if behind else [*options, "linear"]))
    assert {name: topology[name] for name in TWO} == TWO
    assert argv[-1] == "slipway.train.workloads.linear"


def test_words_of_both_may_be_mixed_behind_a_workload(slipway: Slipway) -> None:
    words = ["--lr", "0.2", "--nproc_per_node", "1", "--batch_size=8", "--backend", "gloo", "--steps", "3"]
    topology, argv = read(slipway, "linear", *words)
    assert topology["processes_per_node"] == 1
    assert argv[argv.index("slipway.train.workloads.linear") + 1 :] == ["--lr", "0.2", "--batch_size=8", "--steps", "3"]


def test_behind_a_workload_a_later_option_wins(slipway: Slipway) -> None:
    assert read(slipway, "--nproc-per-node", "1", "linear", "--nproc-per-node", "4")[0]["processes_per_node"] == 4


def test_a_workloads_own_options_take_both_spellings(slipway: Slipway) -> None:
    assert slipway("plan", "linear", "--batch_size", "8", "--input-size", "4").code == 0


def test_words_behind_a_script_are_the_scripts_own(slipway: Slipway) -> None:
    Path("train.py").touch()
    words = ["--nnodes", "7", "--rdzv-id", "x", "--json", "--help", "--", "-m", "y"]
    topology, argv = read(slipway, "train.py", *words)
    assert topology["nodes"] == 1
    assert argv[-len(words) - 1 :] == ["train.py", *words]


@pytest.mark.parametrize("options", [[], ["--nproc-per-node", "1"], ["--nproc_per_node=1"], ["--oversubscribe"]])
def test_words_behind_a_module_are_the_modules_own(slipway: Slipway, options: list[str]) -> None:
    words = ["pkg.main", "--nnodes", "7", "-m", "x", "--help"]
    topology, argv = read(slipway, *options, "-m", *words)
    assert topology["nodes"] == 1
    assert argv[argv.index("-u") + 1 :] == ["-m", *words]


@pytest.mark.parametrize("where", ["before", "behind"])
@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--rdzv-backend", "static"),
        ("--rdzv_endpoint", "--master-addr HOST"),
        ("--rdzv-id", "--run-dir"),
        ("--rdzv_conf", "nothing replaces it"),
    ],
)
def test_rendezvous_options_are_refused_with_their_replacement(
    slipway: Slipway, where: str, option: str, says: str
) -> None:
    answer = slipway("plan", option, "x", "linear") if where == "before" else slipway("plan", "linear", option, "x")
    assert answer.code == 78
    assert option.replace("_", "-") in answer.err
    assert says in answer.err


def test_standalone_beats_the_environment(slipway: Slipway) -> None:
    environ = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n0"}
    for words in (["--standalone", "linear"], ["linear", "--standalone"]):
        topology, _ = read(slipway, *words, **environ)
        assert (topology["nodes"], topology["node_rank"], topology["master_addr"]) == (1, 0, "127.0.0.1")


def test_without_a_name_the_setting_says_what_is_trained(slipway: Slipway) -> None:
    _, argv = read(slipway)
    assert argv[-3:] == ["slipway.train.workloads.gpt", "--preset", "tiny"]
    _, argv = read(slipway, WORKLOAD="linear --lr '0.5'")
    assert argv[-3:] == ["slipway.train.workloads.linear", "--lr", "0.5"]
    _, argv = read(slipway, "--nproc-per-node", "1", WORKLOAD="-m pkg.main")
    assert argv[-2:] == ["-m", "pkg.main"]


@pytest.mark.parametrize("text", ["'linear", "   "])
def test_a_workload_setting_that_cannot_be_read_is_78(slipway: Slipway, text: str) -> None:
    answer = slipway("plan", WORKLOAD=text)
    assert answer.code == 78
    assert "WORKLOAD" in answer.err
    assert "Traceback" not in answer.err
