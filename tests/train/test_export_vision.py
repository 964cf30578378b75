"""A classifier of pictures as others load it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from training_jobs import Run

from slipway.options import parse
from slipway.options.vision import VisionOptions
from slipway.train.models.classifier import Classifier
from slipway.train.worker.context import outside_job
from slipway.train.workloads.vision import make_task, open_pictures

pytestmark = pytest.mark.usefixtures("shared_cache")

Start = Callable[..., Run]

LIMITS = ("--train-pictures", "16", "--eval-pictures", "9")
VISION = (*LIMITS, "--batch-size", 4, "--warmup", 1, "--steps", 2, "--precision", "fp32")


@pytest.mark.parametrize("model", ["small", "resnet18"])
def test_the_hub_mixin_loads_a_classifier_that_normalises_and_gives_the_same_logits(
    train: Start, tmp_path: Path, model: str
) -> None:
    run = train("vision", *VISION, "--model", model, "--export", tmp_path / "model")
    assert run.exit_code == 0
    loaded = Classifier.from_pretrained(tmp_path / "model", strict=True)
    options = parse(VisionOptions, [*LIMITS, "--model", model])
    with outside_job() as context, torch.no_grad():
        task, pictures = make_task(options, context), open_pictures(options, context)
        task.model.load_state_dict({name.removeprefix("model/"): part for name, part in run.tensors().items()})
        given = pictures.evaluation(torch.arange(9))[0]
        expected = task.model.eval()(task.validation.batch(torch.arange(9))[0])
        for shown in (given.permute(0, 3, 1, 2), given.permute(0, 3, 1, 2) / 255):
            torch.testing.assert_close(loaded(shown), expected, atol=1e-4, rtol=1e-4)
    assert loaded.names == list(pictures.classes)


def test_the_model_card_of_a_classifier_tells_its_accuracy(train: Start, tmp_path: Path) -> None:
    run = train("vision", *VISION, "--export", tmp_path / "model")
    card = ModelCard.load(tmp_path / "model" / "README.md")
    assert {result.metric_type for result in card.data.eval_results or ()} == {"val_loss", "accuracy"}
    assert f"| accuracy | {run.metrics[-1]['accuracy']:.6g} | share of right answers |" in card.text
    assert card.data.to_dict()["pipeline_tag"] == "image-classification"
    assert 'Classifier.from_pretrained("model")' in card.text
