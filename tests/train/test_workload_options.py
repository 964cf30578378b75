"""What may be typed after the name of a workload."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

import slipway
from slipway.options import WORKLOADS, parse
from slipway.options.command import GROUPS, WHAT
from slipway.options.gpt import GptOptions
from slipway.options.linear import LinearOptions

pytestmark = pytest.mark.core


@pytest.mark.parametrize(
    ("workload", "args", "expected"),
    [
        ("linear", [], {"epochs": 10, "steps": None, "precision": "fp32", "given": frozenset(), "batch_size": 32}),
        ("linear", ["--steps", "5"], {"epochs": None, "steps": 5, "given": frozenset({"steps", "epochs"})}),
        ("linear", ["--batch-size-per-process", "4"], {"batch_size": None, "batch_size_per_process": 4}),
        ("linear", ["--input_size=3", "--dataset-size", "9"], {"input_size": 3, "dataset_size": 9}),
        ("linear", ["--lr", "1e-3", "--save_every", "7"], {"lr": 0.001, "save_every": 7}),
        ("gpt", [], {"preset": "tiny", "layers": 4, "batch_size": 16, "steps": 1000, "compile": False}),
        ("gpt", ["--preset", "gpt2"], {"layers": 12, "embed": 768, "vocab_size": 50257, "compile": None}),
        ("gpt", ["--layers", "2", "--preset", "gpt2"], {"layers": 2, "embed": 768}),
        ("gpt", ["--epochs", "2"], {"epochs": 2, "steps": None}),
        ("gpt", ["--compile"], {"compile": True}),
        ("gpt", ["--preset=gpt2", "--no-compile"], {"compile": False}),
        ("gpt", ["--batch-size", "12", "--accumulate", "3"], {"batch_size": 12, "accumulate": 3}),
        ("gpt", ["--sample-prompt", "a_b-c"], {"sample_prompt": "a_b-c"}),
        ("linear", ["--memory-every", "7"], {"memory_every": 7}),
        ("linear", ["--memory-every", "auto"], {"memory_every": "auto"}),
    ],
)
def test_arguments_become_options(workload: str, args: list[str], expected: dict[str, object]) -> None:
    options = parse(WORKLOADS[workload], args)
    assert {name: getattr(options, name) for name in expected} == expected


def test_options_that_are_left_out_have_their_defaults_and_other_names_are_refused() -> None:
    options = LinearOptions(lr=0.5)
    assert (options.lr, options.batch_size, options.sources) == (0.5, 32, {})
    assert options.sources is not LinearOptions().sources
    assert dataclasses.replace(options, keep=3).values() == {**options.values(), "keep": 3}
    with pytest.raises(TypeError, match=r"^LinearOptions has no option keeps, laer$"):
        LinearOptions(laer=0.1, keeps=1, keep=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.lr = 0.1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("workload", "args", "message"),
    [
        ("linear", ["--epoch", "3"], "Did you mean"),
        ("linear", ["--batchsize", "3"], "--batch-size"),
        ("linear", ["--layers", "3"], "No such option"),
        ("linear", ["--steps", "0"], "is not a whole number of 1 or more. Type for example --steps 1"),
        ("linear", ["--lr", "-0.1"], "is not a number above 0"),
        ("linear", ["--lr", "fast"], "'fast' is not a number above 0"),
        ("linear", ["--steps", "2.5"], "is not a whole number of 1 or more"),
        ("linear", ["--keep", "0"], "is not a whole number of 1 or more"),
        ("linear", ["--steps", "3", "--epochs", "3"], "--steps and --epochs exclude each other"),
        ("linear", ["--batch-size", "32", "--accumulate", "5"], "--accumulate 5 does not divide --batch-size 32"),
        ("linear", ["extra"], "unexpected extra argument"),
        ("linear", ["--memory-every", "often"], "'often' is neither auto nor a number of steps"),
        ("linear", ["--memory-every", "-1"], "neither auto nor a number of steps"),
        ("linear", ["--schedule", "sine"], "'cosine', 'linear', 'constant'"),
        ("linear", ["--batch-size", "8", "--batch-size-per-process", "4"], "exclude each other"),
        ("gpt", ["--heads", "3"], "--heads 3 does not divide --embed 128"),
        ("gpt", ["--preset", "huge"], "'tiny', 'small', 'gpt2'"),
        ("gpt", ["--vocab-size", "100"], "--vocab-size 100 is less than the 256 different bytes"),
        ("gpt", ["--dropout", "1"], "is not a number from 0 to below 1"),
    ],
)
def test_what_is_not_understood_is_refused(workload: str, args: list[str], message: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        parse(WORKLOADS[workload], args)
    assert message in caught.value.format_message()


@pytest.mark.parametrize("workload", sorted(WORKLOADS))
def test_help_shows_every_option_with_its_default(workload: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(click.exceptions.Exit) as caught:
        parse(WORKLOADS[workload], ["--help"])
    assert caught.value.exit_code == 0
    printed = capsys.readouterr().out
    for field in dataclasses.fields(WORKLOADS[workload]):
        assert field.name == "sources" or f"--{field.name.replace('_', '-')}" in printed
    assert f"Usage: slipway {workload}" in printed


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--help"], ("Transformer blocks. [default: 4; x>=1]", "[default: no-compile]", "those of --preset tiny.")),
        (
            ["--preset", "gpt2", "--help"],
            ("Transformer blocks. [default: 12; x>=1]", "[default: (on a GPU)]", "of --preset gpt2."),
        ),
        (["-h", "--preset=small"], ("Transformer blocks. [default: 6; x>=1]", "those of --preset small.")),
    ],
)
def test_help_shows_the_defaults_of_the_preset_that_is_typed(
    words: list[str], shown: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(click.exceptions.Exit):
        parse(GptOptions, words)
    printed = " ".join(capsys.readouterr().out.split())
    assert [text for text in shown if text not in printed] == [], printed
    assert "[default: 2; x>=1]" in printed


@pytest.mark.parametrize("workload", sorted(WORKLOADS))
def test_help_has_groups_with_what_is_trained_first(workload: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(click.exceptions.Exit):
        parse(WORKLOADS[workload], ["--help"])
    printed = capsys.readouterr().out
    titles = re.findall(r"(?m)^(\w[\w ]*):$", printed)
    assert titles == [title for title in (*GROUPS, "Help") if title in titles]
    assert titles[0] == WHAT
    first = re.findall(r"(?m)^  (--[\w-]+)", printed)[0]
    assert first == ("--preset" if len(WORKLOADS[workload].presets) > 1 else "--config")


def test_every_option_in_a_group_exists() -> None:
    fields = {field.name for kind in WORKLOADS.values() for field in dataclasses.fields(kind)}
    assert {name for names in GROUPS.values() for name in names} <= fields


@pytest.mark.parametrize("kind", [LinearOptions, GptOptions])
def test_presets_name_options_that_exist(kind: type[LinearOptions] | type[GptOptions]) -> None:
    names = {field.name for field in dataclasses.fields(kind)}
    assert all(set(preset) <= names for preset in kind.presets.values())


def test_importing_the_options_loads_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; from slipway.options import parse; from slipway.options.gpt import GptOptions; parse(GptOptions, ['--lr', '1']); "
        "print([name for name in ('torch', 'numpy', 'tqdm', 'safetensors') if name in sys.modules])"
    )
    environment = {"PYTHONPATH": str(Path(slipway.__file__).parents[1])}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
