"""`slipway eval`: a run or an export, judged again by one process, is worth what its training said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import click
import pytest
import tokenizers
from click.testing import CliRunner, Result
from PIL import Image
from tokenizers import models, pre_tokenizers, trainers
from training_jobs import Run

from slipway.cli import cli
from slipway.protocol.errors import LaunchError
from slipway.protocol.mistake import ConfigurationError
from slipway.train.export import export_run
from slipway.train.worker.context import outside_job
from slipway.train.workloads.judgement import Judgement, judge_trained

pytestmark = pytest.mark.usefixtures("shared_cache")

Start = Callable[..., Run]

TEXT = ("--batch-size", 8, "--warmup", 2, "--eval-samples", 33, "--sample-tokens", 0, "--steps", 4, "--save-every", 2)
GPT = (*TEXT, "--layers", 2, "--heads", 2, "--embed", 32, "--context", 32, "--precision", "fp32")


PICTURES = (
    "--train-pictures", 64, "--eval-pictures", 33, "--batch-size", 16, "--warmup", 2, "--steps", 4, "--save-every", 2,
    "--precision", "fp32",
)  # fmt: skip


def judge(source: Path, **more: object) -> Judgement:
    with outside_job() as context:
        return judge_trained(source, context, **more)  # type: ignore[arg-type]


def noted(run: Run, step: int) -> dict[str, float]:
    """What the training wrote down at `step`."""
    [line] = [line for line in run.metrics if line["step"] == step and "val_loss" in line]
    return {name: value for name, value in line.items() if name not in ("time", "step")}


@pytest.mark.core
@pytest.mark.parametrize(
    ("workload", "args", "exported"),
    [
        ("gpt", GPT, True),
        ("gpt", (*GPT, "--dropout", 0.1, "--vocab-size", 300), True),
        ("finetune", (*TEXT, "--context", 16, "--precision", "fp32"), True),
        ("vision", PICTURES, True),
        ("linear", ("--dataset-size", 65, "--steps", 4), False),
    ],
)
def test_a_run_and_its_export_are_judged_as_they_were_in_training(
    train: Start, tmp_path: Path, workload: str, args: tuple[object, ...], exported: bool
) -> None:
    run = train(workload, *args, "--eval-every", 2)
    assert run.exit_code == 0
    found = judge(run.folder)
    assert found.results == pytest.approx(noted(run, 4), abs=1e-6)
    assert found.same_data
    if exported:
        export_run(run.folder, tmp_path / "model")
        assert judge(tmp_path / "model").results == pytest.approx(noted(run, 4), abs=1e-6)
        assert judge(run.folder, step=2).results == pytest.approx(noted(run, 2), abs=1e-6)


def test_a_pipeline_of_two_processes_is_one_model_to_others(job: Start, tmp_path: Path) -> None:
    run = job("pipeline", *GPT, "--accumulate", 4, "--export", tmp_path / "model")
    assert run.exit_code == 0, run.output
    for source in (run.folder, tmp_path / "model"):
        assert judge(source).results == pytest.approx(noted(run, 4), abs=1e-6)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A text that no workload knows."""
    file = tmp_path / "private" / "poem.txt"
    file.parent.mkdir()
    file.write_text("Whose woods these are I think I know.\n" * 500)
    return file


def test_other_data_can_be_judged_by(train: Start, text: Path) -> None:
    run = train("gpt", *GPT)
    found = judge(run.folder, dataset=f"file:{text}")
    assert found.dataset == f"file:{text}"
    assert not found.same_data
    assert found.results["val_loss"] != pytest.approx(noted(run, 4)["val_loss"], abs=1e-3)


def test_a_tokenizer_and_a_column_are_those_of_the_training(train: Start, tmp_path: Path) -> None:
    lines = [json.dumps({"poem": f"Whose woods these are I think I know. {number}"}) for number in range(400)]
    (tmp_path / "poems.jsonl").write_text("\n".join(lines))
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=300))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    data = ("--dataset", f"file:{tmp_path / 'poems.jsonl'}", "--column", "poem")
    run = train("gpt", *GPT, *data, "--tokenizer", tmp_path / "tokenizer.json", "--export", tmp_path / "model")
    (tmp_path / "tokenizer.json").unlink()
    found = judge(run.folder)
    assert found.results == pytest.approx(noted(run, 4), abs=1e-6)
    assert "perplexity" in found.results
    assert judge(tmp_path / "model", dataset=str(data[1])).results == found.results


def test_an_export_whose_data_lie_elsewhere_asks_for_them(train: Start, text: Path, tmp_path: Path) -> None:
    run = train("gpt", *GPT, "--dataset", f"file:{text}")
    assert judge(run.folder, dataset=f"file:{text}").results == pytest.approx(noted(run, 4), abs=1e-6)
    export_run(run.folder, tmp_path / "model")
    with pytest.raises(ConfigurationError, match=r"was trained on file:…/poem\.txt.*Type --dataset"):
        judge(tmp_path / "model")
    found = judge(tmp_path / "model", dataset=f"file:{text}")
    assert found.results == pytest.approx(noted(run, 4), abs=1e-6)
    assert found.same_data


def test_what_cannot_be_judged_is_told(train: Start, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"neither a run directory nor an export"):
        judge(tmp_path)
    with pytest.raises(ConfigurationError, match=r"holds one step only. Leave out --step"):
        judge(tmp_path, step=2)
    run = train("linear", "--dataset-size", 64, "--steps", 2)
    with pytest.raises(click.UsageError, match="No such option '--dataset'"):
        judge(run.folder, dataset="stdlib")


def test_pictures_of_other_classes_are_refused(train: Start, tmp_path: Path) -> None:
    for part in ("train", "val"):
        for name in ("cat", "dog"):
            (tmp_path / "pets" / part / name).mkdir(parents=True)
            Image.new("RGB", (32, 32)).save(tmp_path / "pets" / part / name / "1.png")
    run = train("vision", *PICTURES)
    with pytest.raises(ConfigurationError, match=r"another model: classes 10, not 2"):
        judge(run.folder, dataset=f"folder:{tmp_path / 'pets'}")


def call(*words: object) -> Result:
    return CliRunner().invoke(cli.slipway, list(map(str, words)))


def test_the_command_line_shows_now_beside_then_or_json(train: Start, tmp_path: Path) -> None:
    run = train("gpt", *GPT)
    shown = call("eval", run.folder)
    assert (shown.exit_code, shown.stderr) == (0, "tokenizer: bytes, 256 tokens, token 0 ends a document\n")
    value = f"{noted(run, 4)['val_loss']:.6f}"
    assert ["val_loss", value, value] in [line.split() for line in shown.stdout.splitlines()]
    told = json.loads(call("eval", run.folder, "--json").stdout)
    assert told["results"] == pytest.approx(told["training"]["results"], abs=1e-6)
    assert (told["step"], told["training"]["step"], told["dataset"]) == (4, 4, "stdlib")
    wrong = call("eval", tmp_path).exception
    assert isinstance(wrong, LaunchError)
    assert wrong.code == 78
