"""Options from a YAML file, and where each value came from."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from slipway.options import parse
from slipway.options.command import option_lines
from slipway.options.gpt import GptOptions
from slipway.options.linear import LinearOptions
from slipway.protocol.mistake import ConfigurationError

pytestmark = pytest.mark.core


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "train.yaml"


def test_the_command_line_wins_over_the_file_over_the_preset_over_the_default(file: Path) -> None:
    file.write_text("preset: gpt2\n# a comment\nlr: 6e-4\nsave-every: 7\ncompile: false\ncontext:\n")
    options = parse(GptOptions, ["--config", str(file), "--lr", "1"])
    assert (options.preset, options.lr, options.save_every, options.compile) == ("gpt2", 1.0, 7, False)
    assert (options.layers, options.context, options.keep) == (12, 1024, 2)
    assert {name: options.sources[name] for name in ("lr", "save_every", "layers", "keep", "config")} == {
        "lr": "command line",
        "save_every": f"{file} line 4",
        "layers": "preset gpt2",
        "keep": "default",
        "config": "command line",
    }
    assert options.given == {"preset", "lr", "save_every", "compile", "config"}


def test_of_two_that_exclude_each_other_the_stronger_source_wins(file: Path) -> None:
    file.write_text("epochs: 3\nbatch_size: 64\n")
    options = parse(LinearOptions, ["--config", str(file), "--steps", "5", "--batch-size-per-process", "8"])
    assert (options.steps, options.epochs) == (5, None)
    assert (options.batch_size, options.batch_size_per_process) == (None, 8)
    assert parse(LinearOptions, ["--config", str(file)]).epochs == 3


@pytest.mark.parametrize("name", ["default.yaml", "defaults/train.yaml", "preset small.yaml"])
def test_what_stands_in_a_file_is_given_whatever_the_file_is_called(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text("vocab_size: 300\n")
    options = parse(GptOptions, ["--config", name])
    assert options.sources["vocab_size"] == f"{name} line 1"
    assert options.given == {"config", "vocab_size"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr: 0.1\nbatchsize: 3\n", "line 2: there is no option 'batchsize'. Did you mean batch_size?"),
        ("lr: 0.1\nqqqq: 3\n", "line 2: there is no option 'qqqq'. Options are listed by: slipway linear --help"),
        ("config: other.yaml\n", "line 1: there is no option 'config'"),
        ("lr: fast\n", "line 1: lr: 'fast' is not a number above 0"),
        ("\nlr: -1\n", "line 2: lr: '-1' is not a number above 0"),
        ("compile: 3\n", "line 1: compile is true or false, not '3'"),
        ("schedule: sine\n", "line 1: schedule: 'sine' is not one of"),
        ("lr: [1, 2]\n", "line 1: lr takes a single value"),
        ("lr: 1\nlr: 2\n", "line 2: lr is given already in line 1"),
        ("steps: 1\nepochs: 2\n", "steps and epochs exclude each other"),
        ("- lr\n", "line 1: expected lines of the form `name: value`"),
        ("lr: {\n", "line 2 is no YAML: while parsing a flow node, expected the node content, but found '<stream end>'"),
        ("lr: 1\n---\nlr: 2\n", "line 2 is no YAML: expected a single document in the stream, but found another document"),
        ("lr: !!python/object/apply:os.system [true]\n", "line 1: lr takes a single value"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_file_is_told_with_file_and_line(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        parse(LinearOptions, ["--config", str(file)])
    assert message in str(caught.value)
    assert str(file) in str(caught.value)


def test_an_empty_file_says_nothing(file: Path) -> None:
    file.write_text("# lr: 3\n")
    assert parse(LinearOptions, ["--config", str(file)]).lr == 0.1


def test_a_file_that_is_not_there_is_a_wrong_command_line(file: Path) -> None:
    with pytest.raises(click.UsageError, match="does not exist"):
        parse(LinearOptions, ["--config", str(file)])


def test_options_are_shown_with_their_sources(file: Path) -> None:
    file.write_text("lr: 0.5\n")
    lines = option_lines(parse(LinearOptions, ["--config", str(file), "--steps", "3"]))
    words = {line.split()[0]: line.split()[1:] for line in lines}
    assert words["lr"] == ["0.5", str(file), "line", "1"]
    assert words["steps"] == ["3", "command", "line"]
    assert words["keep"] == ["2", "default"]
    assert words["compile"] == ["false", "default"]
