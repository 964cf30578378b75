"""`slipway data`: data on their way to the training."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slipway.cli.runs import warn_if_fleeting
from slipway.inspect.stored import cached, store_errors
from slipway.launch.companions.copies import require_store
from slipway.launch.resolve.host import make_folders, read_host
from slipway.options.dataset import MANIFEST
from slipway.options.help import WholeHelp
from slipway.options.numbers import Real, Whole
from slipway.options.paths import LocalPath, explain_address
from slipway.protocol.errors import FAILED, UNHEALTHY, LaunchError, code_of
from slipway.protocol.mistake import ConfigurationError, ExplainedError
from slipway.protocol.printable import counted, listed
from slipway.protocol.redact import redact
from slipway.store import open_store
from slipway.store.address import SUPPORTED, StoreAddress, is_store, parse_store

if TYPE_CHECKING:
    from slipway.store.files import Fetched

SHOWN = 6  # names in a list


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


@click.group(cls=WholeHelp, epilog="\b\nExample: slipway data prepare notes.txt --out tokens")
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

    INPUT is text, JSON (.jsonl, .ndjson, .json) or parquet (.parquet), or a folder of such files.
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
        sizes = counted(part.documents, "document"), counted(part.bytes, "byte"), counted(part.tokens, "token")
        click.echo(f"{name}: {', '.join(sizes)}")
    warn_if_fleeting(out)
    click.echo(f"train on them: slipway gpt --dataset {shlex.quote(f'tokens:{out}')}")


@data.command(
    "fetch",
    epilog="If it is interrupted, run the same command again to continue.\n\n"
    "\b\nExample: slipway data fetch openai-community/gpt2 --include '*.json' --include model.safetensors\n"
    "Example: slipway data fetch s3://bucket/tokens --out tokens && slipway gpt --dataset tokens:tokens",
)
@click.argument("source", metavar="REPO[@REVISION]|URL")
@click.option("--revision", help="Branch, tag or commit of the repository; by default the current main branch.")
@click.option("--include", multiple=True, metavar="GLOB", help="Only files whose names match; can be repeated.")
@click.option("--kind", type=click.Choice(["model", "dataset"]), help="Type of the repository.  [default: model]")
@click.option(
    "--out", type=LocalPath(path_type=Path), help="For a URL: the new folder or file.  [default: in the cache]"
)
@click.option("--ignore-etags", is_flag=True, help="For a URL: do not compare files with the MD5 in their ETag.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: repo and commit, or url; folder; size of each file.")
def fetch_data(
    source: str,
    revision: str | None,
    include: tuple[str, ...],
    kind: str | None,
    out: Path | None,
    ignore_etags: bool,
    as_json: bool,
) -> None:
    """Fetch a model or a data set from the Hub, or files from a store, into a cache that all workloads share.

    URL is the address of a file or of a folder in a store, such as s3://BUCKET/PATH. The kinds of stores and their credentials
    are those of --store. The files appear in the cache only when all of them are complete. The cache is slipway/data in
    XDG_CACHE_HOME.

    For a REPO the cache is the Hub's own: HF_HOME, else huggingface in XDG_CACHE_HOME. A token comes from HF_TOKEN, or from
    the file at HF_TOKEN_PATH. Once it is fetched, trainings with HF_HUB_OFFLINE=1 use no network.
    """
    if is_store(source):
        if revision or kind:
            raise click.UsageError(
                f"--revision and --kind are for repositories of the Hub, and {source} is in a store."
            )
        _fetch_files(source, include, out, etags=not ignore_etags, as_json=as_json)
        return
    if explain_address(source):
        raise LaunchError(
            f"{redact('', source)} cannot be fetched: {SUPPORTED} is needed, or OWNER/NAME of a repository of the Hub."
        )
    if out or ignore_etags:
        raise click.UsageError(f"--out and --ignore-etags are for URLs, and {source} is a repository of the Hub.")
    _fetch_repo(source, revision, include, kind or "model", as_json=as_json)


def _fetch_files(url: str, include: tuple[str, ...], out: Path | None, *, etags: bool, as_json: bool) -> None:
    """Fetch files from a store. Raises LaunchError."""
    try:
        address = parse_store(url)
    except ValueError as error:
        raise LaunchError(f"{redact('', url)}: {error}.") from None
    assert address is not None
    require_store(address)
    again = "Nothing incomplete is in place; the same command continues once that is fixed."
    with launch_errors(again):
        target = (out or cached(str(address), "data")).absolute()
        with store_errors(str(address), target, again), _transfer_errors(str(address), again):
            found = _transfer(address, target, include, partial(click.echo, err=as_json), etags=etags)
    inside = sorted(path for path in target.rglob("*") if path.is_file()) if target.is_dir() else [target]
    above = target if target.is_dir() else target.parent
    files = {str(path.relative_to(above)): path.stat().st_size for path in inside}
    if as_json:
        about = {"url": str(address), "folder": str(target), "files": files, "compared": found.compared}
        click.echo(json.dumps(about, indent=1))
        return
    _show_files(files, target, again=not found.bytes)
    if found.bytes and found.compared < len(files):
        plain = len(files) - found.compared
        click.echo(f"compared by size, for lack of a checksum in the store: {plain} of {counted(len(files), 'file')}")
    click.echo(f"use it: {_use(target, files)}")


def _transfer(
    address: StoreAddress, target: Path, include: tuple[str, ...], say: Callable[[str], None], *, etags: bool
) -> Fetched:
    """Find the files at an address, and fetch those that are wanted. Raises what `fetch_files` raises, and LaunchError."""
    from slipway.store.files import fetch_files, find_files, read_sums
    from slipway.train.hub.fetch import ByteProgress

    store = open_store(address._replace(path="/" if address.scheme == "file" else ""))
    # Links on the way to what was typed are followed, those within it only as FolderStore.find says.
    name = (os.path.realpath(address.path) if address.scheme == "file" else address.path).strip("/")
    there = find_files(store, name)
    files = {each: there[each] for each in there if not include or any(fnmatchcase(each, glob) for glob in include)}
    if not files:
        raise LaunchError(f"{address} has no file {' or '.join(include)}. It holds {listed(sorted(there), SHOWN)}.")
    progress = ByteProgress(str(address), sum(facts.size for facts in files.values()), say)
    try:
        sums = read_sums(store, name, there)
        return fetch_files(store, str(address), name, files, target, sums, etags=etags, say=say, note=progress.add)
    finally:
        progress.close()


@contextmanager
def _transfer_errors(address: str, again: str) -> Iterator[None]:
    """Raise LaunchError for what is wrong with the files or their place."""
    from slipway.store.download import CorruptError
    from slipway.store.files import NoRoomError, OtherFilesError

    try:
        yield
    except OtherFilesError as error:
        raise LaunchError(str(error)) from None
    except NoRoomError as error:
        raise LaunchError(f"{address} cannot be fetched: {error}. {again}", UNHEALTHY) from None
    except CorruptError as error:
        raise LaunchError(f"{address} arrived damaged: {error}.", FAILED) from None


def _use(target: Path, files: Mapping[str, int]) -> str:
    """The command that trains on files."""
    path = shlex.quote(str(target))
    if MANIFEST in files:
        return f"slipway gpt --dataset tokens:{path}"
    pictures = any(name.lower().endswith((".png", ".jpg", ".jpeg")) for name in files)
    return f"slipway vision --dataset folder:{path}" if pictures else f"slipway gpt --dataset file:{path}"


def _fetch_repo(repo: str, revision: str | None, include: tuple[str, ...], kind: str, *, as_json: bool) -> None:
    """Fetch a repository of the Hub. Raises LaunchError."""
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
    _show_files(files, folder)
    use = f"slipway gpt --dataset hub:{pinned}" if kind == "dataset" else f"slipway finetune --model {pinned}"
    click.echo(f"use it: {use}")


def _show_files(files: Mapping[str, int], folder: Path, *, again: bool = False) -> None:
    for name, size in files.items():
        click.echo(f"{size / 1e6:12,.3f} MB  {name}")
    there = "in place already" if again else "in"
    click.echo(f"{counted(len(files), 'file')}, {sum(files.values()) / 1e6:,.3f} MB, {there} {folder}")
