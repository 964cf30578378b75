"""An address such as s3://bucket is refused wherever a path is accepted, and creates no folder."""

from pathlib import Path

import click
import pytest
from stand_ins import Slipway

from slipway.cli.cli import slipway as commands
from slipway.launch.resolve.settings import SETTINGS
from slipway.options import WORKLOADS
from slipway.options.command import click_options
from slipway.options.paths import LocalPath, explain_address, parse_path

ADDRESSES = [
    "s3://bucket/runs",
    "S3://bucket/runs",
    "s3:/bucket/runs",
    " gs://bucket/runs",
    "az://container/runs",
    "abfs://container@account.dfs.core.windows.net/runs",
    "hdfs://namenode:8020/runs",
    "https://example.org/runs",
    "file:///runs",
    "simplecache::s3://bucket/runs",
    "C:/runs",
    "s3:bucket/runs",
    "GS:bucket",
]
PATHS = [
    "runs",
    "./runs",
    "/mnt/shared/runs",
    "../s3",
    "./s3://bucket",
    "s3:",
    "a/b:/c",
    "job:1",
    "",
    "auto",
    "none",
    "~/x",
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_is_no_path(address: str) -> None:
    with pytest.raises(ValueError, match=r"not supported|type the path without file:"):
        parse_path(address)


@pytest.mark.parametrize("path", PATHS)
def test_a_path_is_taken_as_it_is(path: str) -> None:
    assert parse_path(path) == path


def test_the_message_says_how_to_copy_to_the_store() -> None:
    assert "aws s3 sync" in explain_address("s3://bucket")
    assert "slipway data fetch s3://BUCKET/PATH" in explain_address("s3://bucket")
    assert "gcloud storage rsync" in explain_address("gs://bucket")
    assert "OWNER/NAME" in explain_address("hf://owner/name")


def refused(slipway: Slipway, *words: str, **environ: str) -> str:
    """The message of a command that is refused with 78, leaves no file, and names what was typed."""
    before = sorted(Path().iterdir())
    answer = slipway(*words, **environ)
    assert (answer.code, answer.out) == (78, ""), answer.err
    assert sorted(Path().iterdir()) == before
    assert "s3:// is not supported. A local or mounted path is needed" in answer.err, answer.err
    assert "aws s3 sync" in answer.err
    return answer.err


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--runs", "s3://b/runs", "linear"),
        ("run", "linear", "--runs=s3://b/runs"),
        ("run", "--run-dir", "s3://b/runs/1", "linear"),
        ("run", "--resume", "s3://b/runs/1", "linear"),
        ("run", "--env-file", "s3://b/.env", "linear"),
        ("run", "s3://b/train.py"),
        ("plan", "--runs", "s3://b/runs", "linear"),
        ("render", "slurm", "--runs", "s3://b/runs", "linear"),
        ("render", "k8s", "--run-dir", "s3://b/runs/1", "linear"),
        ("run", "linear", "--config", "s3://b/options.yaml"),
        ("run", "gpt", "--export", "s3://b/model"),
        ("run", "gpt", "--dataset", "s3://b/text"),
        ("run", "gpt", "--dataset", "file:s3://b/text"),
        ("run", "gpt", "--dataset", "tokens:s3://b/text"),
        ("run", "gpt", "--tokenizer", "s3://b/tokenizer.json"),
        ("run", "finetune", "--model", "s3://b/model"),
        ("run", "vision", "--dataset", "s3://b/pictures"),
        ("run", "vision", "--dataset", "folder:s3://b/pictures"),
        ("data", "prepare", "s3://b/text", "--out", "tokens"),
        ("data", "prepare", ".", "--out", "s3://b/tokens"),
        ("data", "prepare", ".", "--out", "tokens", "--tokenizer", "s3://b/tokenizer.json"),
        ("status", "--runs", "s3://b/runs"),
        ("runs", "--runs", "s3://b/runs"),
        ("logs", "--bundle", "s3://b/1.tar.gz"),
        ("report", "--out", "s3://b/report.html"),
        ("export", ".", "s3://b/model"),
    ],
    ids=" ".join,
)
def test_every_place_for_a_path_refuses_an_address(slipway: Slipway, words: tuple[str, ...]) -> None:
    assert "s3://b" in refused(slipway, *words)


@pytest.mark.parametrize("address", ["s3://b/runs/1", "gs://b/1", "az://container/1", "file:///mnt/runs/1", "S3://b/1"])
@pytest.mark.parametrize("command", ["logs", "stop", "stacks", "trace"])
def test_what_a_store_does_not_have_of_a_run_is_refused_with_the_commands_for_it(
    slipway: Slipway, command: str, address: str
) -> None:
    answer = slipway(command, address)
    assert (answer.code, answer.out) == (78, ""), answer.err
    assert f"{address!r}: slipway {command} needs a run on a disk of this machine" in answer.err
    assert "slipway status, report, eval, sample and export" in answer.err


@pytest.mark.parametrize(
    "address", ["s3://key:SECRET9@b/x", "az://c/x?sv=1&sig=SECRET9", "https://a.blob.core.windows.net/c?sig=SECRET9"]
)
@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["logs"],
        ["data", "fetch"],
        ["export", "."],
        ["run", "linear", "--store"],
        ["run", "linear", "--resume"],
    ],
    ids=" ".join,
)
def test_a_key_in_an_address_is_not_shown(slipway: Slipway, words: list[str], address: str) -> None:
    answer = slipway(*words, address)
    assert answer.code == 78, answer.err
    assert "SECRET9" not in answer.out + answer.err


@pytest.mark.parametrize("name", ["SLIPWAY_RUNS", "SLIPWAY_RUN_DIR", "SLIPWAY_RESUME"])
def test_a_setting_refuses_an_address_and_says_where_it_came_from(slipway: Slipway, name: str) -> None:
    assert f"{name}=s3://b (from the environment)" in refused(slipway, "run", "linear", **{name: "s3://b"})
    Path(".env").write_text(f"{name}=s3://b\n")
    assert f"{name}=s3://b (from .env)" in refused(slipway, "run", "linear")


def test_a_config_file_refuses_an_address_and_names_the_line(slipway: Slipway) -> None:
    Path("options.yaml").write_text("steps: 3\nexport: s3://b/model\n")
    assert "options.yaml line 2: export" in refused(slipway, "run", "gpt", "--config", "options.yaml")


def test_a_folder_that_an_address_once_created_can_still_be_named(slipway: Slipway) -> None:
    Path("s3:", "b").mkdir(parents=True)
    assert slipway("plan", "--runs", "./s3:/b", "linear").code == 0


def test_every_option_for_a_path_is_of_the_kind_that_refuses_addresses() -> None:
    group = click.Context(commands)
    kinds = [command for name in commands.list_commands(group) if (command := commands.get_command(group, name))]
    inner = [each for command in kinds if isinstance(command, click.Group) for each in command.commands.values()]
    found = [param for command in (*kinds, *inner) for param in command.params]
    found += [param for kind in WORKLOADS.values() for param in click_options(kind, next(iter(kind.presets)))]
    assert [
        param for param in found if isinstance(param.type, click.Path) and not isinstance(param.type, LocalPath)
    ] == []
    assert len([param for param in found if isinstance(param.type, LocalPath)]) > 20


def test_every_setting_for_a_path_refuses_addresses() -> None:
    paths = [setting for setting in SETTINGS if {"DIR", "PATH"} & {*setting.metavar.split("|")}]
    assert {setting.name for setting in paths} == {"SLIPWAY_RUNS", "SLIPWAY_RUN_DIR", "SLIPWAY_RESUME"}
    assert {setting.parse for setting in paths} == {parse_path}


def test_a_path_as_a_store_is_answered_with_the_address_that_is_meant(slipway: Slipway) -> None:
    answer = slipway("plan", "linear", "--store", "/tmp/backup")
    assert answer.code == 78
    assert answer.err.rstrip().endswith("others are not supported; perhaps file:///tmp/backup is meant.")
    assert slipway("plan", "linear", "--store", "s4://b/x").err.rstrip().endswith("others are not supported.")
