"""`slipway data`: data on their way to the training."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click

from slipway.launch.resolve.host import make_folders, read_host
from slipway.options.numbers import Real, Whole
from slipway.options.paths import LocalPath
from slipway.protocol.errors import FAILED, LaunchError, code_of
from slipway.protocol.mistake import ConfigurationError, ExplainedError


@contextmanager
def launch_errors(after: str = "", *, snapshots: bool = False) -> Iterator[None]:
    """Turn what the user, the Hub or the disk did wrong into a line and an exit code; `after` follows on the disk's.

    So, with torch, is turned what is wrong with `snapshots`. What is done inside finds the user name, the home and the caches
    that trainings find.
    """
    mended = read_host(os.environ).mended
    os.environ.update(mended)  # before training code is imported: some of it reads them only then
    mistakes: tuple[type[Exception], ...] = (ConfigurationError,)
    try:
        make_folders(mended)
        if snapshots:
            from slipway.train.snapshots.snapshot import SnapshotError

            mistakes += (SnapshotError,)
        yield
    except mistakes as error:
        raise LaunchError(str(error)) from None
    except ExplainedError as error:
        raise LaunchError(str(error), FAILED) from None
    except OSError as error:
        raise LaunchError(f"{error}. {after}" if after else str(error), code_of(error)) from None


@click.group(epilog="\b\nExample: slipway data prepare notes.txt --out tokens")
def data() -> None:
    """Prepare and fetch data."""


@data.command(
    "prepare",
    epilog="If it is interrupted, run the same command again to continue.\n\n"
    "\b\nExample: slipway data prepare corpus --out tokens && slipway gpt --dataset tokens:tokens",
)
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT…", type=LocalPath(path_type=Path))
@click.option("--out", required=True, type=LocalPath(file_okay=False, path_type=Path), help="Folder for the tokens.")
@click.option(
    "--tokenizer", default="bytes", show_default=True, help="bytes, a tokenizer.json, a folder or a Hub repo with one."
)
@click.option(
    "--column", default="text", show_default=True, help="The column (or key) with the text, for JSON lines and parquet."
)
@click.option(
    "--validation",
    type=Real(0, 1, max_open=True),
    help="Fraction for validation. By default the file names decide (train…, validation…), else 0.01.",
)
@click.option(
    "--processes",
    type=Whole(1),
    default=lambda: len(os.sched_getaffinity(0)),
    help="Number of parallel processes; by default the number of CPUs.",
)
@click.option(
    "--shard-tokens", type=Whole(1), default=2**28, show_default=True, help="Maximum number of tokens per file."
)
@click.option(
    "--dtype",
    type=click.Choice(["auto", "uint16", "uint32"]),
    default="auto",
    show_default=True,
    help="Type of the tokens; auto selects the smallest that is large enough.",
)
@click.option("--allow-unknown", is_flag=True, help="Continue even if the tokenizer does not know most of the text.")
def prepare_data(
    inputs: tuple[Path, ...],
    out: Path,
    tokenizer: str,
    column: str,
    validation: float | None,
    processes: int,
    shard_tokens: int,
    dtype: str,
    allow_unknown: bool,
) -> None:
    """Turn text into tokens that `--dataset tokens:DIR` trains on.

    INPUT is text, JSON lines (.jsonl, .ndjson, .json) or parquet (.parquet), or a folder of such files.
    """
    from slipway.options.dataset import check_tokenizer
    from slipway.train.text.coverage import judge_coverage
    from slipway.train.text.preparation import Settings, prepare
    from slipway.train.text.tokenizer import BYTES, described, open_tokenizer

    with launch_errors(f"{out} is not finished; the same command resumes once that is fixed."):
        check_tokenizer(tokenizer)
        settings = Settings(column, validation, shard_tokens, dtype)
        own = open_tokenizer(tokenizer)
        click.echo(described(own))
        judge = partial(judge_coverage, tokenizer=tokenizer, allowed=allow_unknown)
        folder = prepare(inputs, out, own, settings, processes, click.echo, judge=judge)
        if own.identity != BYTES:
            click.echo(judge(folder.coverage))
    for name, part in (("training", folder.train), ("validation", folder.validation)):
        click.echo(f"{name}: {part.documents:,} documents, {part.bytes:,} bytes, {part.tokens:,} tokens")
    click.echo(f"train on them: slipway gpt --dataset {shlex.quote(f'tokens:{out}')}")


@data.command(
    "fetch",
    epilog="\b\nExample: slipway data fetch openai-community/gpt2 --include '*.json' --include model.safetensors",
)
@click.argument("repo", metavar="REPO[@REVISION]")
@click.option("--revision", help="A branch, a tag or a commit; by default the current main branch.")
@click.option("--include", multiple=True, metavar="GLOB", help="Only files whose names match; can be repeated.")
@click.option(
    "--kind",
    type=click.Choice(["model", "dataset"]),
    default="model",
    show_default=True,
    help="Type of the repository.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: repo with its commit, kind, folder, bytes of files.")
def fetch_repo(repo: str, revision: str | None, include: tuple[str, ...], kind: str, as_json: bool) -> None:
    """Fetch a model or a data set from the Hub into the cache that all workloads share.

    The cache is the Hub's own: HF_HOME, else huggingface in XDG_CACHE_HOME. A token comes from HF_TOKEN, or from the file
    at HF_TOKEN_PATH. HF_HUB_OFFLINE=1 then prevents network access of trainings.
    """
    from slipway.train.hub.fetch import fetch, read_source

    with launch_errors("Nothing half-written is kept; the same command resumes once that is fixed."):
        say = partial(click.echo, err=as_json)
        folder = fetch(repo, revision=revision, kind=kind, include=include, say=say)
    files = {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    pinned = f"{read_source(repo)[0]}@{folder.name}"
    if as_json:
        about = {"repo": pinned, "kind": kind, "folder": str(folder), "files": files}
        click.echo(json.dumps(about, indent=1))
        return
    for name, size in files.items():
        click.echo(f"{size / 1e6:12,.3f} MB  {name}")
    click.echo(f"{len(files)} files, {sum(files.values()) / 1e6:,.3f} MB, in {folder}")
    use = f"slipway gpt --dataset hub:{pinned}" if kind == "dataset" else f"slipway finetune --model {pinned}"
    click.echo(f"use it: {use}")
