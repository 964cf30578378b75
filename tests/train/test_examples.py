"""The examples run as they say, on two processes."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import torch
from ports import take_port
from training_jobs import raise_stop_flag, worker_environment
from waiting import PATIENCE

import slipway
from slipway.options import parse
from slipway.options.gpt import GptOptions

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
Alone = Callable[..., None]


def run(folder: Path, *words: str, **variables: str) -> str:
    """Start a program in a folder with a clean environment; what it said, once it has ended well."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "USER", "TMPDIR", "LANG") if name in os.environ}
    ours = {"PYTHONPATH": str(Path(slipway.__file__).parents[1]), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(
        [sys.executable, *words], cwd=folder, env=kept | ours | variables, stdin=subprocess.DEVNULL, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def start(folder: Path, example: str, *args: str) -> str:
    """Run an example on two processes through the launcher, on from where a run in `folder / run` ended."""
    options = ("--nproc-per-node", "2", "--run-dir", "run", "--resume", "auto")
    return run(folder, "-m", "slipway", "run", *options, str(EXAMPLES / example), *args)


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run an example in this process, as a job of one."""

    def begin(example: str, *args: str) -> None:
        for name, value in worker_environment(tmp_path / "run", "none").items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [example, *args])
        monkeypatch.setattr(
            "slipway.train.user.run.require_first", lambda: None
        )  # other tests left runs in this process
        runpy.run_path(str(EXAMPLES / example), run_name="__main__")

    return begin


def test_own_task_trains_and_goes_on_with_more_processes(alone: Alone, tmp_path: Path) -> None:
    alone("own_task.py", "--steps", "60", "--turns", "1")
    said = start(tmp_path, "own_task.py", "--steps", "70", "--turns", "1")
    assert "70 steps of 64 samples (32 per process)" in said
    assert "resuming from" in said
    assert "finished at step 70" in said
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "accuracy" in line] == [60, 70]


@pytest.mark.core
def test_own_task_learns(alone: Alone, tmp_path: Path) -> None:
    alone("own_task.py", "--steps", "500", "--turns", "1")
    assert json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["accuracy"] > 0.95


def test_own_task_is_short() -> None:
    assert len((EXAMPLES / "own_task.py").read_text().splitlines()) < 80


def test_own_loop_trains_alone_and_goes_on_under_slipway_and_torchrun(
    alone: Alone, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone("own_loop.py", "--epochs", "2")
    assert "epoch 2 of 2" in capsys.readouterr().out
    said = start(tmp_path, "own_loop.py", "--epochs", "3")
    assert "resuming from" in said
    assert "epoch 2 of" not in said
    assert "epoch 3 of 3" in said
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2", f"--master-port={take_port()}")
    assert "epoch 1 of 1" in run(tmp_path, *torchrun, str(EXAMPLES / "own_loop.py"), "--epochs", "1")
    said = run(tmp_path, *torchrun, str(EXAMPLES / "own_loop.py"), "--epochs", "2", SLIPWAY_RESUME="auto")
    assert "without its launcher: snapshots on the disk only, in" in said
    assert "epoch 1 of" not in said
    assert "epoch 2 of 2" in said


def test_own_loop_stops_when_it_is_asked_to(alone: Alone, tmp_path: Path) -> None:
    raise_stop_flag(tmp_path / "run", "cancelled")
    with pytest.raises(SystemExit) as end:
        alone("own_loop.py")
    assert end.value.code == 0, "torchrun takes any other code for a failure"
    outcome = json.loads((tmp_path / "run" / "node-0" / "outcome" / "rank-0.json").read_text())
    assert (outcome["outcome"], outcome["message"]) == ("cancelled", "cancelled at step 1, snapshot saved")
    assert outcome["snapshot"] == "step-00000001"


@pytest.mark.core
def test_plain_runs_alone_and_goes_on_under_torchrun_and_slipway(
    alone: Alone, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone("plain.py", "--epochs", "1")
    assert "epoch 1 of 1: loss" in capsys.readouterr().out
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2", f"--master-port={take_port()}")
    said = run(tmp_path, *torchrun, str(EXAMPLES / "plain.py"), "--epochs", "2")
    assert "epoch 1 of" not in said
    assert "epoch 2 of 2" in said
    said = start(tmp_path, "plain.py", "--epochs", "3")
    assert "epoch 2 of" not in said
    assert float(re.findall(r"epoch 3 of 3: loss ([\d.]+)", said)[0]) < 0.4
    assert set(torch.load(tmp_path / "plain.pt", weights_only=True)) == {"model", "optimizer", "epoch"}


def test_plain_knows_nothing_of_slipway() -> None:
    tree = ast.walk(ast.parse((EXAMPLES / "plain.py").read_text()))
    names = [
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in tree
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    modules = {str(name).partition(".")[0] for name in names}
    assert modules == {"argparse", "gc", "os", "pathlib", "torch"}


def test_one_model_over_two_devices_learns(tmp_path: Path) -> None:
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", start(tmp_path, "model_parallel.py"))]
    assert len(losses) == 5
    assert losses[-1] < 0.1 < losses[0]


def test_model_parallel_says_how_to_start_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    example = import_module("model_parallel")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(example, "LOCAL_WORLD_SIZE", 4)
    with pytest.raises(SystemExit, match=r"need 8, and here are 4. Type: slipway run --nproc-per-node 2 "):
        example.choose_devices()
    monkeypatch.setattr(example, "LOCAL_WORLD_SIZE", 2)
    monkeypatch.setattr(example, "LOCAL_RANK", 1)
    assert [device.index for device in example.choose_devices()] == [2, 3]


def make_tiny_model(folder: Path) -> None:
    """A Llama with random weights that reads bytes."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(letters, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=64, tie_word_embeddings=True,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


@pytest.mark.filterwarnings("default")
def test_a_model_of_transformers_is_fine_tuned_and_can_be_read_again(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "model")
    (tmp_path / "text.txt").write_text(
        "".join(f"the quick brown fox jumps over {number} dogs\n" for number in range(99))
    )
    args = ("--model", "model", "--dataset", "text.txt", "--length", "32", "--lr", "0.01", "--steps", "20")
    said = start(tmp_path, "transformers_finetune.py", *args)
    assert float(re.findall(r"perplexity ([\d.]+)", said)[0]) < 100, "a guess among 256 letters has 256"
    from transformers import AutoModelForCausalLM, AutoTokenizer

    trained = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    assert trained.config.model_type == "llama"
    assert AutoTokenizer.from_pretrained(tmp_path / "run" / "model")("the")["input_ids"]


def test_without_transformers_it_says_what_to_type(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(SystemExit, match="Type: pip install transformers"):
        alone("transformers_finetune.py")


def test_the_options_in_the_file_are_real_and_those_behind_a_hash_at_their_value(tmp_path: Path) -> None:
    file, everything = EXAMPLES / "config.yaml", tmp_path / "everything.yaml"
    options = parse(GptOptions, ["--config", str(file)])
    assert options.given == {
        "config",
        "preset",
        "layers",
        "dataset",
        "steps",
        "epochs",
        "warmup",
        "log_every",
        "sample_prompt",
    }
    everything.write_text(re.sub(r"^# (?=[a-z-]+:( |$))", "", file.read_text(), flags=re.MULTILINE))
    all_given = parse(GptOptions, ["--config", str(everything)])
    assert len(all_given.given) > 2 * len(options.given)
    assert all_given.values() | {"config": None} == options.values() | {"config": None}
