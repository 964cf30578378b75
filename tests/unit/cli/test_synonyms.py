"""Options as others call them: each leads to one of ours that is there, with the line to type."""

import click
import pytest
from stand_ins import Slipway

from slipway.cli.cli import slipway as program
from slipway.cli.launching import launcher_options
from slipway.cli.synonyms import COMMANDS, SYNONYMS
from slipway.options import WORKLOADS as KINDS
from slipway.options.command import click_command

LAUNCHERS = {name for option in launcher_options() for name in option.opts if not getattr(option, "hidden", False)}
OWN = {kind: {name for option in click_command(KINDS[kind]).params for name in option.opts} for kind in KINDS}


def test_every_option_that_the_table_leads_to_is_there() -> None:
    ours = {name.partition(" ")[0] for names in SYNONYMS.values() for name in names}
    assert ours <= LAUNCHERS.union(*OWN.values())


def test_no_option_of_ours_is_led_away_where_it_is_there() -> None:
    led = {name: where for name in SYNONYMS for where, own in OWN.items() if name in own}
    assert set(led) == {"--steps", "--epochs", "--iterations", "--dtype", "--model", "--world-size"}, (
        "where others have none"
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("plan --gpus=all gpt --lr 1", "slipway plan --nproc-per-node=auto gpt --lr 1"),
        ("gpt --gpus all --steps 3", "slipway gpt --nproc-per-node auto --steps 3"),
        ("gpt --bf16 True --steps 3", "slipway gpt --precision bf16 --steps 3"),
        ("gpt --bf16 --steps 3", "slipway gpt --precision bf16 --steps 3"),
        ("gpt --epoch 3 --data 'file:my text'", "slipway gpt --epochs 3 --data ''\"'\"'file:my' 'text'\"'\"''"),
        ("run --machine_rank 1 -m pkg --machine_rank 2", "slipway run --node-rank 1 -m pkg --machine_rank 2"),
        ("allreduce --steps 7", "slipway allreduce --iterations 7"),
        ("gpt --lerning-rate 1", "slipway gpt --lr 1"),
        ("gpt --stpes 1", ""),  # one of ours, misspelt, is told of without
        ("allreduce --fp16", "slipway allreduce --dtype fp16"),
        ("gpt --device cuda:0 --steps 3", "slipway gpt --nproc-per-node gpu --steps 3"),
        ("gpt --device=cud", "slipway gpt --nproc-per-node=gpu"),
        ("plan --device cpux gpt", "slipway plan --nproc-per-node cpu gpt"),
        ("gpt --device 0", ""),  # of another meaning: no line that is refused
        ("gpt --num-nodes two", ""),
        ("linear --optimizer adam", ""),
        ("allreduce --lr 1", ""),
    ],
)
def test_the_whole_line_is_given(slipway: Slipway, words: str, line: str) -> None:
    answer = slipway(*words.split())
    assert answer.code == 2
    assert answer.err.partition("Type: ")[2].rstrip() == line


@pytest.mark.parametrize(
    ("option", "setting"), [("--resume none", "SLIPWAY_RESUME"), ("--nproc-per-node 1", "NPROC_PER_NODE")]
)
def test_an_option_of_the_launcher_in_workload_is_answered_with_its_setting(
    slipway: Slipway, option: str, setting: str
) -> None:
    answer = slipway("plan", WORKLOAD=f"linear {option}")
    assert answer.code == 78
    assert f"WORKLOAD has {option.split()[0]}, which is an option of the launcher" in answer.err
    assert f"set {setting}." in answer.err


def test_an_option_in_a_setting_has_no_line_and_is_told_all_the_same(slipway: Slipway) -> None:
    answer = slipway("plan", WORKLOAD="gpt --learning-rate 1")
    assert answer.err.rstrip().endswith("No such option '--learning-rate': it is --lr here.")


def test_options_before_everything_are_given_a_place(slipway: Slipway) -> None:
    assert "Type: slipway run --nproc-per-node auto" in slipway("--gpus", "all").err
    assert "Type: docker run --gpus … IMAGE" in slipway("--gpus", "all", SLIPWAY_IMAGE="slipway:dev").err
    assert "Type:" not in slipway("--bananas").err


def test_every_command_that_is_suggested_is_there() -> None:
    context = click.Context(program)
    for words in map(str.split, COMMANDS.values()):
        command = None if words[0].startswith("--") else program.get_command(context, words[0])
        assert command or words[0] in ("--help", "--version")
        for word in words[1:]:
            inner = (
                command.commands
                if isinstance(command, click.Group)
                else {name for one in command.params for name in one.opts}
            )
            assert word in inner


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("render kubernetes gpt", "slipway render k8s"),
        ("render kubctl", "slipway render k8s"),
        ("render sbatch", "slipway render slurm"),
        ("render compos", "slipway render compose"),
        ("render nothing-like-it", "Available are compose, jobset, k8s, slurm, trainer."),
        ("data download", "slipway data fetch"),
        ("data prepar", "slipway data prepare"),
        ("gpt --preset medium", "--preset gpt2-medium"),
        ("gpt --preset XL", "--preset gpt2-xl"),
        ("gpt --preset=tny", "--preset tiny"),
        ("vision --model resnet", "--model resnet9"),
        ("gpt --precision float16", "--precision fp16"),
        ("gpt --schedule cos", "--schedule cosine"),
        ("gpt --resume auot", "Did you mean auto?"),
        ("gpt --resume Auto", "Did you mean auto?"),
        ("gpt --nproc-per-node cud", "--nproc-per-node cud: type gpu for one process per GPU"),
        ("completion bsh", "Did you mean bash?"),
        ("kubernetes", "Did you mean render k8s?"),
        ("list", "Did you mean runs?"),
        ("statsu", "Did you mean status?"),
    ],
)
def test_what_is_meant_is_asked(slipway: Slipway, words: str, meant: str) -> None:
    assert meant in slipway(*words.split()).err


@pytest.mark.parametrize("words", ["check --devise 1", "vision --devise 1", "sample RUN --device cud", "gpt --tea 3"])
def test_what_only_looks_alike_because_of_its_dashes_is_not_suggested(slipway: Slipway, words: str) -> None:
    answer = slipway(*words.split())
    assert not any(bogus in answer.err for bogus in ("--env-file", "--tee", "--eval-pictures")), answer.err
