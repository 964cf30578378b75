"""Options of the launcher: torchrun's spelling, hyphens and underscores, before and behind the workload's name."""

import json
import os
from pathlib import Path

import pytest
from stand_ins import Slipway

TWO = {"nodes": 2, "node_rank": 1, "processes_per_node": 3, "master_addr": "n0", "master_port": 1234}
HYPHENS = ["--nnodes", "2", "--node-rank", "1", "--nproc-per-node", "3", "--master-addr", "n0", "--master-port", "1234"]
UNDERSCORES = [f"--{word[2:].replace('-', '_')}" if word.startswith("--") else word for word in HYPHENS]
EQUALS = ["--nnodes=2", "--node_rank=1", "--nproc-per-node=3", "--master_addr=n0", "--master-port=1234"]


@pytest.fixture(autouse=True)
def _package(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    for name in ("__init__", "__main__", "main"):
        (tmp_path / f"pkg/{name}.py").touch()


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
@pytest.mark.parametrize("option", ["--rdzv-endpoint=node7:29600", "--rdzv_endpoint=node7:29600"])
def test_rendezvous_options_may_be_typed_around_a_workload(slipway: Slipway, where: str, option: str) -> None:
    words = [option, "--rdzv_id", "x", "linear"] if where == "before" else ["linear", option, "--rdzv_id", "x"]
    topology, _ = read(slipway, *words, WORLD_SIZE="2")
    assert (topology["node_rank"], topology["master_addr"], topology["master_port"]) == (None, "node7", 29600)


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


FORMS = [
    (["train"], "", ["train"]),
    (["./train"], "", ["./train"]),
    (["-mpkg", "--lr", "1"], "", ["-m", "pkg", "--lr", "1"]),
    (["--module", "pkg", "-m"], "", ["-m", "pkg", "-m"]),
    (["-m", "--nproc-per-node", "2", "pkg"], "", ["-m", "pkg"]),
    (["--nproc_per_node", "2", "-mpkg", "-mx"], "", ["-m", "pkg", "-mx"]),
    (["-t", "3", "-mpkg"], "", ["-m", "pkg"]),
    ([], "train", ["train"]),
]


@pytest.mark.parametrize(("words", "workload", "program"), FORMS)
def test_a_program_is_named_as_torchrun_and_python_have_it(
    slipway: Slipway, words: list[str], workload: str, program: list[str]
) -> None:
    Path("train").write_text("print()\n")
    _, argv = read(slipway, *words, **({"WORKLOAD": workload} if workload else {}))
    assert argv[argv.index("-u") + 1 :] == program


@pytest.mark.parametrize(
    "words", [["--no-python", "tool", "-m", "x"], ["--no_python", "--nproc-per-node", "2", "tool", "-m", "x"]]
)
def test_a_program_that_needs_no_python_is_started_as_it_is(slipway: Slipway, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "tool").chmod(0o755)
    _, argv = read(slipway, *words, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert argv[-4:] == ["--default-signal=TERM,INT,USR1,HUP", "tool", "-m", "x"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--no-python"], 78, "needs a program"),
        (["--no-python", "absent"], 78, "There is no program absent"),
        (["--module"], 78, "name of a module"),
        (["--no-python", "-m", "x"], 2, "type one of them"),
        (["shell"], 78, "slipway run --no-python shell"),
        (["binary"], 78, "slipway run --no-python binary"),
        (["--role", "r", "train"], 78, "--role is an option of torchrun: all workers have the same role"),
        (["--local_addr", "a", "train"], 78, "NCCL_SOCKET_IFNAME"),
        (["-r", "3", "train"], 78, "slipway logs"),
        (["--redirects=3", "train"], 78, "slipway logs"),
        (["--log-dir", "x", "train"], 78, "--run-dir DIR"),
        (["linear", "--log-dir", "x"], 78, "--run-dir DIR"),
    ],
)
def test_what_cannot_be_started_so_is_told_with_what_to_type(
    slipway: Slipway, words: list[str], code: int, says: str
) -> None:
    Path("train").touch()
    Path("shell").write_text("#!/bin/sh\n")
    Path("binary").write_bytes(b"\x7fELF\x02")
    answer = slipway("plan", *words)
    assert (answer.code, says in answer.err) == (code, True), answer.err


def test_what_changes_nothing_here_is_taken(slipway: Slipway) -> None:
    Path("train").touch()
    words = ["-t", "3", "--tee=3", "--monitor-interval", "1", "--start_method", "fork", "--rdzv-backend", "c10d"]
    topology, argv = read(slipway, *words, "--rdzv-endpoint=localhost:0", "--rdzv_id", "mine", "--nnodes", "1", "train")
    assert topology["nodes"] == 1
    assert "--rdzv-id=mine" in argv, "TORCHELASTIC_RUN_ID"


@pytest.mark.parametrize(
    ("words", "warned"),
    [
        (["train.py", "--nproc-per-node", "2"], "slipway run --nproc-per-node … train.py"),
        (["train.py", "--lr", "1", "--grace_seconds=5"], "slipway run --grace-seconds … train.py"),
        (["-m", "pkg", "--standalone"], "slipway run --standalone … -m pkg"),
        (["--nproc-per-node", "1", "train.py", "--resume", "auto", "--backend", "gloo"], ""),
        (["linear", "--nproc-per-node", "2"], ""),
    ],
)
def test_an_option_of_ours_behind_a_script_is_warned_of_and_passed_on(
    slipway: Slipway, words: list[str], warned: str
) -> None:
    Path("train.py").touch()
    answer = slipway("plan", *words)
    assert answer.code == 0
    lines = [line for line in answer.out.splitlines() if "comes after" in line]
    assert [line.partition("program: ")[2] for line in lines] == ([warned] if warned else [])
    assert not warned or words[-1] in answer.out.splitlines()[-1]
