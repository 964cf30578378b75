"""`vision`: a convolutional network on labelled pictures; by default a small one on generated digits.

slipway vision --dataset glyphs --model small

Besides the accuracy of each class it shows a grid of pictures that the model gets wrong.
"""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import nn
from torch.nn import functional

from slipway.options import parse
from slipway.options.vision import CIFAR10, VisionOptions
from slipway.protocol.durable import replace_file
from slipway.protocol.outcomes import Word
from slipway.protocol.printable import counted
from slipway.train.export import export_result
from slipway.train.loop.fit import fit
from slipway.train.measure.plots import aligned
from slipway.train.models.cnn import build, flops_per_picture, sgd
from slipway.train.pictures import cifar10, glyphs
from slipway.train.pictures.arrays import Normaliser, Pictures, Variation, on_device
from slipway.train.task import Batch, Task, Validation, evaluating
from slipway.train.worker.context import Context, open_context


def open_pictures(options: VisionOptions, context: Context) -> Pictures:
    """Return the pictures that `--dataset` means; by every rank. Raises ConfigurationError, and HubError for cifar10."""
    variation = Variation(options.shift, options.flips, options.cutout)
    limits = options.train_pictures, options.eval_pictures
    if options.folder is not None:
        from slipway.train.pictures.folder import open_folder  # needs torchvision, which takes most of a second

        return open_folder(options.folder, options.image_size, variation, limits, options.workers, context)
    source, read = (cifar10, cifar10.open_cifar10) if options.dataset == CIFAR10 else (glyphs, glyphs.open_glyphs)
    arrays, identity = read(context)
    return on_device(
        arrays, variation, limits, context.device,
        classes=source.CLASSES, mean=source.MEAN, deviation=source.DEVIATION, identity=identity,
    )  # fmt: skip


LEAST = 400  # steps of a training on a small folder


def suit_to_count(options: VisionOptions, count: int) -> VisionOptions:
    """The options for `count` pictures in a folder: a preset's batches and warm-up are for many thousands.

    If the preset's warm-up would take more than a tenth of the preset's steps, what was not typed is made smaller: a batch is
    about a sixteenth of the pictures (8 at least), the learning rate as much smaller as the batch (Goyal et al., 2017), training
    takes LEAST steps or more, and the warm-up a tenth of them. Only the preset decides, so a run that resumes for more epochs
    keeps its batch and learning rate.
    """
    if options.folder is None:
        return options
    preset, size = options.presets[options.preset], options.batch_size or count
    if preset["warmup"] <= preset["epochs"] * math.ceil(count / preset["batch_size"]) / 10:
        return options
    new: dict[str, Any] = {}
    typed = options.given | {"batch_size"} if options.batch_size_per_process else options.given
    if "batch_size" not in typed and options.batch_size:
        new["batch_size"] = size = min(size, max(8, 2 ** int(math.log2(max(1, count / 16)))))
        if "lr" not in typed:
            new["lr"] = options.lr * size / options.batch_size
    if not {"steps", "epochs"} & typed:
        new["epochs"] = max(options.epochs or 1, math.ceil(LEAST * size / count))
    steps = options.steps or new.get("epochs", options.epochs or 1) * math.ceil(count / size)
    if "warmup" not in typed:
        new["warmup"] = min(options.warmup, steps // 10)
    new = {name: value for name, value in new.items() if value != getattr(options, name)}
    return replace(
        options, **new, sources={**options.sources, **dict.fromkeys(new, f"for {counted(count, 'picture')}")}
    )


def loss(model: nn.Module, batch: Batch, smoothing: float) -> torch.Tensor:
    """Mean cross entropy in nats."""
    pictures, labels = batch
    return functional.cross_entropy(model(pictures).float(), labels, label_smoothing=smoothing)


def sums(model: nn.Module, batch: Batch, classes: int) -> torch.Tensor:
    """Return loss, correct answers, those of each class, pictures of each class, and pictures of a batch."""
    pictures, labels = batch
    logits = model(pictures).float()
    lost = functional.cross_entropy(logits, labels, reduction="none").double().sum()
    right = (logits.argmax(1) == labels).double()
    by_class = torch.zeros(2, classes, dtype=torch.float64, device=labels.device)
    by_class[0].index_add_(0, labels, right)
    by_class[1].index_add_(0, labels, torch.ones_like(right))
    count = torch.tensor([len(labels)], dtype=torch.float64, device=labels.device)
    return torch.cat([torch.stack([lost, right.sum()]), by_class.flatten(), count])


CLASS = "class/"  # before a class's name in the results


def results(means: list[float], classes: tuple[str, ...]) -> dict[str, float]:
    """Return loss, accuracy, and the accuracy of each class that has pictures."""
    right, share = means[2 : 2 + len(classes)], means[2 + len(classes) :]
    found = {f"{CLASS}{name}": right[at] / share[at] for at, name in enumerate(classes) if share[at]}
    return {"val_loss": means[0], "accuracy": means[1], **found}


PIXELS = {"cpu": 2**19, "cuda": 2**23}  # of an evaluation batch; more was not faster on a CPU


def make_task(options: VisionOptions, context: Context) -> Task:
    """Return the task on the context's device; by every rank. Raises ConfigurationError, and HubError for cifar10."""
    pictures = open_pictures(options, context)
    normalise = Normaliser(pictures.mean, pictures.deviation, pictures.size, context.device)
    classes = len(pictures.classes)
    torch.manual_seed(options.seed)
    model = build(options.model, classes, pictures.size)
    work = flops_per_picture(model, pictures.size)
    model = model.to(context.device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def mistakes() -> Mapping[str, torch.Tensor]:
        found = find_mistakes(model, pictures, normalise, context.device)
        return {"mistakes": draw_grid(found, pictures.classes)} if found else {}

    return Task(
        name="vision",
        model=model,
        description={
            "model": options.model, "classes": classes, "size": pictures.size, "names": list(pictures.classes),
            "mean": list(pictures.mean), "deviation": list(pictures.deviation),
        },
        samples=pictures.count,
        batch=lambda indices, keys: normalise(pictures.train(indices, keys)),
        loss=partial(loss, smoothing=options.label_smoothing),
        optimizer=sgd(model, options.lr, options.momentum, options.weight_decay),
        validation=Validation(
            samples=pictures.judged,
            batch_size=max(1, PIXELS[context.device.type] // pictures.size**2),
            batch=lambda indices: normalise(pictures.evaluation(indices)),
            sums=partial(sums, classes=classes),
            results=partial(results, classes=pictures.classes),
        ),
        data=pictures.identity,
        unit="pictures",
        flops_per_unit=work,
        pictures=mistakes,
        on_host=pictures.on_host,
    )  # fmt: skip


def save_weights(model: nn.Module, name: str, context: Context) -> None:
    """Write the weights alone to the run directory, for `torch.load(…, weights_only=True)`; on rank 0."""
    if context.place.rank == 0:
        content = io.BytesIO()
        torch.save({key: part.detach().cpu().contiguous() for key, part in model.state_dict().items()}, content)
        replace_file(context.place.run_dir / name, content.getvalue())


SHOWN = 20  # rows of the table of classes


def accuracy_table(evaluation: Mapping[str, float]) -> str:
    """Format the accuracy of each class; of many classes only the worst."""
    shares = {name.removeprefix(CLASS): share for name, share in evaluation.items() if name.startswith(CLASS)}
    shown, title = shares, "class"
    if len(shares) > SHOWN:
        shown = dict(sorted(shares.items(), key=lambda item: item[1])[:SHOWN])
        title = f"the {SHOWN} worst of {len(shares)} classes"
    return "\n".join(aligned([[title, "accuracy"], *([name, f"{share:.2%}"] for name, share in shown.items())]))


LOOKED_AT = 2000  # pictures that are searched for mistakes,
BATCH = 250  # so many at once
COLUMNS, ROWS = 8, 4  # of the grid
SIDE, LINE, GAP = 96, 13, 4  # pixels of a tile's picture, of a line of text, and around both


class Mistake(NamedTuple):
    """A picture, uint8 (size, size, 3), with its label and the model's answer."""

    picture: torch.Tensor
    label: int
    guess: int


@torch.no_grad()
def find_mistakes(
    model: nn.Module, pictures: Pictures, normalise: Callable[[Batch], Batch], device: torch.device
) -> list[Mistake]:
    """Return up to a grid of mistakes among at most LOOKED_AT pictures, evenly spread."""
    count = min(pictures.judged, LOOKED_AT)
    places = torch.arange(count, device=device) * pictures.judged // count
    mistakes: list[Mistake] = []
    with evaluating(model):
        for indices in torch.split(places, BATCH):
            batch = pictures.evaluation(indices)
            guesses = model(normalise(batch)[0]).argmax(1)
            wrong = (guesses != batch[1]).nonzero().squeeze(1)
            found = zip(*(part[wrong].cpu() for part in (*batch, guesses)), strict=True)
            mistakes += [Mistake(picture, int(label), int(guess)) for picture, label, guess in found]
            if len(mistakes) >= COLUMNS * ROWS:
                break
    return mistakes[: COLUMNS * ROWS]


def draw_grid(mistakes: Sequence[Mistake], classes: Sequence[str]) -> torch.Tensor:
    """Draw the grid, uint8 (3, height, width): a white sheet with a tile for each mistake."""
    rows = max(1, -(-len(mistakes) // COLUMNS))
    wide, high = SIDE + GAP, SIDE + 2 * LINE + GAP
    sheet, font = Image.new("RGB", (COLUMNS * wide + GAP, rows * high + GAP), "white"), ImageFont.load_default(10)
    for number, (picture, label, guess) in enumerate(mistakes):
        left, top = GAP + number % COLUMNS * wide, GAP + number // COLUMNS * high
        tile = Image.new("RGB", (SIDE, SIDE + 2 * LINE), "white")
        tile.paste(Image.fromarray(picture.numpy()).resize((SIDE, SIDE), Image.Resampling.NEAREST))
        words = ImageDraw.Draw(tile)
        words.text((0, SIDE), f"is {classes[label]}", "black", font)
        words.text((0, SIDE + LINE), f"said {classes[guess]}", "#b00020", font)
        sheet.paste(tile, (left, top))
    return torch.from_numpy(np.asarray(sheet).copy()).permute(2, 0, 1)


def train(context: Context, args: list[str]) -> None:
    """Train with the options in `args`; print the accuracy of each class, and save the weights as a file."""
    options = parse(VisionOptions, args)
    task = make_task(options, context)
    suited = suit_to_count(options, task.samples)
    if suited != options:
        changed = [name for name, value in suited.values().items() if value != getattr(options, name)]
        new = ", ".join(f"--{name.replace('_', '-')} {getattr(suited, name):g}" for name in changed)
        context.say(f"for {counted(task.samples, 'picture')}, instead of the preset's: {new}")
        options = suited
    result = fit(task, options, context)
    if result.outcome == Word.FINISHED:
        name = "cifar_net.pth" if options.dataset == CIFAR10 else "model.pth"
        save_weights(task.model, name, context)
    export_result(result, options, context)
    if result.evaluation:
        context.say(f"\n{accuracy_table(result.evaluation)}\n")
        context.say(f"accuracy {result.evaluation['accuracy']:.2%} on pictures that were not trained on")


def main() -> None:
    """Run as a worker."""
    with open_context(abandon=True) as context:
        train(context, sys.argv[1:])


if __name__ == "__main__":
    main()
