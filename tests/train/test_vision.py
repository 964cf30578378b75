"""Networks trained on pictures of digits, by one process and by several."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from once import shared_folder
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.nn import functional
from training_jobs import Run

from slipway.options import parse
from slipway.options.vision import VisionOptions
from slipway.protocol.durable import sync_tree
from slipway.protocol.mistake import ConfigurationError
from slipway.train.models.cnn import build, flops_per_picture
from slipway.train.pictures.arrays import Normaliser, Pictures, read_arrays
from slipway.train.pictures.glyphs import CLASSES, DEVIATION, MEAN
from slipway.train.workloads.vision import CLASS, Mistake, accuracy_table, draw_grid, find_mistakes, results, sums

Start = Callable[..., Run]

# 330 pictures: an epoch ends in the middle of a batch.
FEW = (
    "--train-pictures", 330, "--eval-pictures", 101, "--batch-size", 32, "--warmup", 0, "--lr", 0.02, "--precision", "fp32",
)  # fmt: skip
STEMS = ("model", "optimizer", "ranks")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One cache for all tests: the pictures are made once, by the first job that needs them."""
    folder = shared_folder(tmp_path_factory) / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


def judged(run: Run) -> dict[str, float]:
    """The results of the last evaluation."""
    return {name: value for name, value in run.metrics[-1].items() if name not in ("time", "step")}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.timeout(600)
def test_the_default_command_passes_97_percent_and_not_all_of_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "slipway", "vision", "--dataset", "glyphs", "--model", "small"]
    command += ["--nproc-per-node", "2", "--run-dir", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    accuracy = judged(Run(tmp_path / "run", 0, done.stdout))["accuracy"]
    assert 0.97 <= accuracy < 1
    assert f"accuracy {accuracy:.2%}" in done.stdout


def test_a_killed_job_goes_on_in_the_middle_of_an_epoch_and_ends_bit_for_bit_the_same(job: Start) -> None:
    options = (*FEW, "--steps", 17, "--save-every", 6, "--accumulate", 2, "--cutout", 6, "--flip")
    whole = job("vision", *options, folders=("whole",))
    killed = job("vision", *options, kill=[1, 15])
    assert (whole.exit_code, killed.exit_code) == (0, 9), whole.output + killed.output
    resumed = job("vision", *options, resume="auto")
    assert resumed.exit_code == 0, resumed.output
    assert "resuming from" in resumed.output
    assert same(resumed.tensors(*STEMS), whole.tensors(*STEMS))
    assert judged(resumed) == judged(whole)


def test_the_same_seed_gives_the_same_accuracy_and_another_does_not(train: Start) -> None:
    first, again, other = (
        train("vision", *FEW, "--steps", 6, "--seed", seed, folder=name)
        for name, seed in (("first", 3), ("again", 3), ("other", 4))
    )
    assert judged(first) == judged(again)
    assert same(first.tensors(), again.tensors())
    assert judged(first)["val_loss"] != judged(other)["val_loss"]


@pytest.mark.core
@pytest.mark.parametrize("pictures", [101, 1])
def test_one_two_and_three_processes_evaluate_alike(train: Start, job: Start, pictures: int) -> None:
    options = (*FEW, "--batch-size", 30, "--steps", 8, "--eval-pictures", pictures)
    alone = train("vision", *options)
    for processes in (2, 3):
        # Another run directory, so that the snapshot is judged again.
        folder = f"judged-by-{processes}"
        more = job("vision", *options, processes=processes, folders=(folder,), resume=str(alone.folder))
        assert more.exit_code == 0, more.output
        assert judged(more) == pytest.approx(judged(alone), abs=1e-6)


def test_each_class_is_counted(train: Start, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train("vision", *FEW, "--steps", 12)
    printed = capsys.readouterr().out
    [folder] = (cache / "slipway").glob("glyphs-*")
    labels = torch.from_numpy(read_arrays(folder)[0].evaluation_labels[:101]).long()
    accuracies = torch.tensor([judged(run)[f"{CLASS}{name}"] for name in CLASSES])
    counts = functional.one_hot(labels).sum(0)
    assert float((accuracies * counts).sum() / 101) == pytest.approx(judged(run)["accuracy"])
    lines = printed.splitlines()
    heading = lines.index("class  accuracy")
    assert lines[heading + 1 : heading + 11] == [f"{n:<5}  {share:8.2%}" for n, share in enumerate(accuracies.tolist())]
    assert CLASS not in printed  # not in the line of progress
    assert CLASS not in run.outcomes[0]["message"]


def test_of_many_classes_the_worst_are_shown() -> None:
    shown = accuracy_table(
        {"val_loss": 1.0, **{f"{CLASS}c{number}": number / 100 for number in range(50)}}
    ).splitlines()
    assert shown[0].startswith("the 20 worst of 50 classes")
    assert [line.split()[0] for line in shown[1:]] == [f"c{number}" for number in range(20)]


def test_a_class_without_pictures_has_no_accuracy() -> None:
    model = nn.Identity()
    logits = torch.tensor([[9.0, 0, 0], [9, 0, 0], [0, 0, 9]])
    *totals, count = sums(model, (logits, torch.tensor([0, 2, 2])), 3).tolist()
    found = results([total / count for total in totals], ("a", "b", "c"))
    assert found == {"val_loss": pytest.approx(3, abs=0.01), "accuracy": 2 / 3, "class/a": 1, "class/c": 0.5}


@pytest.mark.core
def test_mistakes_are_drawn_for_tensorboard(train: Start) -> None:
    run = train("vision", *FEW, "--steps", 2)
    charts = EventAccumulator(str(run.folder / "tensorboard"))
    charts.Reload()
    [event] = charts.Images("mistakes")
    assert (event.step, event.width, event.height) == (2, 804, 508)
    assert [point.value for point in charts.Scalars("val/class/3")] == [pytest.approx(judged(run)["class/3"])]


def test_mistakes_show_the_picture_and_both_labels() -> None:
    labels = torch.arange(4)
    pictures = Pictures(
        ("ant", "bee", "cat", "dog"), 8, MEAN, DEVIATION, 0, lambda *_: (), 4,
        lambda indices: (torch.full((len(indices), 8, 8, 3), 200, dtype=torch.uint8), labels[indices]), "",
    )  # fmt: skip

    class Twos(nn.Module):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            assert not self.training
            return functional.one_hot(torch.full((len(batch),), 2), 4).float()

    model, device = Twos(), torch.device("cpu")
    mistakes = find_mistakes(model, pictures, Normaliser(MEAN, DEVIATION, 8, device), device)
    assert [(mistake.label, mistake.guess) for mistake in mistakes] == [(0, 2), (1, 2), (3, 2)]
    assert model.training
    grid = draw_grid(mistakes, pictures.classes)
    assert (grid.shape, grid.dtype) == ((3, 130, 804), torch.uint8)
    assert bool((grid[:, 4:100, 4:100] == 200).all())
    first, second = grid[:, 100:126, 4:100], grid[:, 100:126, 104:200]
    assert not torch.equal(first[:, :13], second[:, :13])  # is ant, is bee
    assert torch.equal(first[:, 13:], second[:, 13:])  # said cat
    assert bool((first[:, 13:] < 128).any())
    other = draw_grid([Mistake(mistakes[0].picture, 0, 3)], pictures.classes)
    assert not torch.equal(other[:, 113:126, 4:100], first[:, 13:])


def test_plain_weights_are_left_that_give_the_same_results(train: Start, cache: Path) -> None:
    run = train("vision", *FEW, "--steps", 12)
    weights = torch.load(run.folder / "model.pth", weights_only=True)
    model = build("small", 10, 32)
    model.load_state_dict(weights)
    [folder] = (cache / "slipway").glob("glyphs-*")
    arrays, _ = read_arrays(folder)
    pictures = (torch.from_numpy(arrays.evaluation_pictures[:101]), torch.from_numpy(arrays.evaluation_labels[:101]))
    inputs, labels = Normaliser(MEAN, DEVIATION, 32, torch.device("cpu"))(pictures)
    with torch.no_grad():
        logits = model.eval()(inputs)
    assert float((logits.argmax(1) == labels).double().mean()) == pytest.approx(judged(run)["accuracy"])
    assert float(functional.cross_entropy(logits, labels.long())) == pytest.approx(judged(run)["val_loss"], rel=1e-5)


def test_a_damaged_cache_says_what_to_delete(
    train: Start, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train("vision", *FEW, "--steps", 1)
    [made] = (cache / "slipway").glob("glyphs-*")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    broken = tmp_path / "slipway" / made.name
    broken.mkdir(parents=True)
    for file in made.iterdir():
        (broken / file.name).symlink_to(file)
    content = bytearray((made / "evaluation_labels.npy").read_bytes())
    content[-1] ^= 1
    (broken / "evaluation_labels.npy").unlink()
    (broken / "evaluation_labels.npy").write_bytes(content)
    sync_tree(broken)
    run = train("vision", *FEW, "--steps", 1, folder="again")
    assert run.outcomes[0]["outcome"] == "configuration"
    assert f"{broken} is damaged (evaluation_labels.npy has another checksum" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "size", "parameters"),
    # 11,689,512 and 25,557,032 are torchvision's own for 1000 classes; a 3×3 instead of a 7×7 convolution has 7,680 fewer.
    [("small", 32, 99_306), ("resnet9", 32, 6_573_120), ("resnet18", 224, 11_181_642), ("resnet18", 32, 11_173_962)],
)
def test_models_have_their_size_and_take_channels_last_pictures(model: str, size: int, parameters: int) -> None:
    torch.manual_seed(0)
    network = build(model, 10, size).to(memory_format=torch.channels_last)
    assert sum(part.numel() for part in network.parameters()) == parameters
    with torch.no_grad():
        logits = network.eval()(torch.randn(2, 3, size, size).to(memory_format=torch.channels_last))
    assert logits.shape == (2, 10)


def test_work_is_counted_per_picture() -> None:
    # output positions × kernel × inputs × outputs, as multiplications; twice that as operations, three times for training
    work = 16**2 * 4**2 * 3 * 16 + 16**2 * 9 * 16 * 32 + 8**2 * 9 * 32 * 64 + 4**2 * 9 * 64 * 128 + 128 * 10
    assert flops_per_picture(build("small", 10, 32), 32) == 6 * work


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        (["--dataset", "glyph"], "Did you mean glyphs"),
        (["--dataset", "foldr:/tmp"], "Did you mean folder:/tmp"),
        (["--dataset", "/"], "Did you mean folder:/"),
        (["--dataset", "folder:/proc/nowhere"], "there is no /proc/nowhere"),
        (["--preset", "imagenet"], "type --dataset folder:PATH"),
        (["--image-size", "96"], "type --dataset folder:PATH"),
    ],
)
def test_a_wrong_data_set_says_what_to_type(typed: list[str], answer: str) -> None:
    from click import UsageError

    with pytest.raises((UsageError, ConfigurationError)) as caught:
        parse(VisionOptions, typed)
    assert answer in (caught.value.format_message() if isinstance(caught.value, UsageError) else str(caught.value))


def test_the_options_are_written_down_and_make_the_same_task_again(train: Start) -> None:
    run = train("vision", *FEW, "--steps", 1, "--model", "resnet9", "--batch-size", 4)
    stored = json.loads((run.folder / "options.json").read_text())
    assert (stored["model"], stored["dataset"], stored["train_pictures"]) == ("resnet9", "glyphs", 330)
    again = train("vision", *FEW, "--steps", 1, "--model", "small", "--batch-size", 4, resume="auto")
    assert again.outcomes[0]["outcome"] == "configuration"
