"""Everything after a program's name belongs to the program: no parser of the launcher or of torchrun sees it."""

import json
from pathlib import Path

import pytest
from stand_ins import Slipway

from slipway.process.agent import AgentConfig

# What torchrun's parser would take for its own (it abbreviates), what our own would, and what a shell or argparse treats apart.
WORDS = {
    "beginnings of torchrun's options": ["--r", "16", "--n=2", "--no", "--m", "--mo", "0.8", "--s=5", "--l", "--rdzv", "-r", "-t"],
    "options of torchrun": ["--nnodes", "4", "--role=x", "--rdzv-backend", "c10d", "--run-path", "--standalone"],
    "options of ours": ["--nproc-per-node=8", "--master_port", "tcp://x", "--max-restarts", "x", "--env-file", "none"],
    "forms of starting": ["-m", "pkg", "-mpkg", "--module", "--no-python", "python", "train.py"],
    "asking for help": ["-h", "--help", "--version", "--json"],
    "a separator": ["--", "--r", "--", "x"],
    "a separator at the end": ["x", "--"],
    "values that begin with a dash": ["--lr", "-1e-3", "-", "-x-", "---"],
    "nothing": ["", "", "--name="],
    "names of files, placeholders, blanks": ["@file", "$HOME", "$$", "${local_rank}", "a b", "*", "käse", "a=b", "\n"],
}  # fmt: skip
FORMS = {
    "a script": ["train.py"],
    "a script without .py": ["train"],
    "a module": ["-m", "pkg.train"],
    "a module, joined": ["-mpkg.train"],
    "a program": ["--no-python", "./program"],
}
TORCHRUNS = {
    "--nnodes", "--node-rank", "--nproc-per-node", "--master-addr", "--master-port", "--max-restarts", "--signals-to-handle",
    "--no-python",
}  # fmt: skip
PLACES = {
    "one node": {},
    "several nodes": {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"},
    "one process of several": {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1"},
}


@pytest.fixture(autouse=True)
def _files(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    for name in ("train.py", "train", "program", "pkg/__init__.py", "pkg/train.py"):
        (tmp_path / name).write_text("")
    (tmp_path / "program").chmod(0o755)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("words", WORDS)
def test_a_program_gets_every_word_after_its_name(slipway: Slipway, words: str, form: str, place: str) -> None:
    answer = slipway("plan", "--json", "--nproc-per-node=1", *FORMS[form], *WORDS[words], **PLACES[place])
    assert answer.code == 0, answer.err
    argv = json.loads(answer.out)["torchrun"]["argv"]
    assert argv[-len(WORDS[words]) :] == WORDS[words]
    if argv[0] != "torchrun":
        return  # a process of its own, without torchrun
    terms = AgentConfig.read(["1", "2", "3,4", "errors", "0,0,1", "", "", *argv[1:]])
    assert terms.command[-len(WORDS[words]) :] == tuple(WORDS[words])
    assert terms.command[0] == "setpriv"
    assert {option.partition("=")[0] for option in terms.options} <= TORCHRUNS


def test_a_workload_that_settings_name_takes_its_words_the_same_way(slipway: Slipway) -> None:
    answer = slipway("plan", "--json", WORKLOAD="train.py --r 16 -- --nnodes 4")
    assert json.loads(answer.out)["torchrun"]["argv"][-6:] == ["train.py", "--r", "16", "--", "--nnodes", "4"]


@pytest.mark.parametrize("word", ["$$", "$$$", "a$$b$", "$$$$", "$", "$x"])
def test_torchrun_which_fills_in_placeholders_passes_dollars_on_as_they_were(word: str) -> None:
    from string import Template

    (passed,) = AgentConfig.read(["1", "2", "3,4", "errors", "0,0,1", "", "", "--", "program", word]).arguments
    assert Template(passed).safe_substitute(local_rank="0") == word  # as torch's macros.substitute does
