"""Paths that users type: files and folders of this machine, shared storage included, and never an address such as s3://bucket."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from slipway.protocol.errors import CONFIGURATION
from slipway.protocol.mistake import ConfigurationError
from slipway.protocol.redact import redact
from slipway.store.address import BUCKETS, is_store, parse_store

READERS = "slipway status, report, eval, sample and export"  # commands for a run in a store
COPIES = {
    "s3": "aws s3 sync",
    "gs": "gcloud storage rsync --recursive",
    **dict.fromkeys(("az", "abfs", "abfss", "wasb", "wasbs"), "azcopy sync"),
    "hdfs": "hdfs dfs -put",
}
# `s3://bucket`, `S3://bucket`, `simplecache::s3://bucket`, and `s3:/bucket`, which pathlib makes of the first; `s3:bucket`, as
# some tools have it.
ADDRESS = re.compile(rf"\s*(?:([A-Za-z][\w+.:-]*):/|({'|'.join(COPIES)}):[^/])", re.IGNORECASE)


def explain_address(path: str) -> str:
    """Return why a path is none and what to type instead, as a sentence without its end; empty if it is a path."""
    if not (found := ADDRESS.match(path)):
        return ""
    typed = found[1] or found[2]
    scheme = typed.rpartition(":")[2].lower()
    if scheme == "file":
        return f"type the path without {typed}://"
    copy = f" To copy between a folder and the store, type {COPIES[scheme]}." if scheme in COPIES else ""
    if scheme in BUCKETS:
        address = f"{scheme}://BUCKET/PATH"
        copy += f" To keep runs in a bucket, add --store {address}, and --resume auto to resume from there. To fetch data from a"
        copy += f" bucket, type slipway data fetch {address}."
    if scheme == "hf" or "//huggingface.co/" in path:
        copy = " A repo of the Hub, where one is taken, is typed OWNER/NAME."
    return (
        f"{typed}:// is not supported. A local or mounted path is needed, such as runs or /mnt/shared/runs.{copy} A folder "
        f"whose name looks like an address is ./{redact('', path.strip())}"
    )


def require_local(path: str | Path, name: str) -> None:
    """Raise ConfigurationError if `path` is an address; `name` is what was typed, such as `--resume s3://bucket`."""
    if why := explain_address(str(path)):
        raise ConfigurationError(f"{redact('', name)}: {why}.")


def parse_path(text: str) -> str:
    """Return a setting's path as it is. Raises ValueError if it is an address."""
    if why := explain_address(text):
        raise ValueError(why)
    return text


class NotLocalError(click.BadParameter):
    """An address where a path is needed: a wrong configuration wherever it is typed."""

    exit_code = CONFIGURATION


class MissingPathError(click.BadParameter):
    """A path that was typed and is not there, `missing`: which a container perhaps does not see."""

    def __init__(self, message: str, missing: str, ctx: click.Context | None, param: click.Parameter | None) -> None:
        super().__init__(message, ctx, param)
        self.missing = missing


class RunPath(click.types.StringParamType):
    """A run: a name, a path, or an address in a store, such as s3://bucket/runs/NAME."""

    name = "run"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return it as it was typed. Fails with what is allowed."""
        text = str(value)
        if not is_store(text):
            if why := explain_address(text):
                raise NotLocalError(f"{redact('', text)!r}: {why}.", ctx, param)
            return text
        try:
            return str(parse_store(text))
        except ValueError as error:
            raise NotLocalError(f"{redact('', text)!r}: {error}.", ctx, param) from None


class LocalPath(click.Path):
    """A path on the command line or in a --config file, which is not an address."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path. Fails with what is allowed."""
        if why := explain_address(str(value)):
            raise NotLocalError(f"{redact('', str(value))!r}: {why}.", ctx, param)
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            if self.exists and not Path(value).exists():
                raise MissingPathError(error.message, str(value), ctx, param) from None
            raise


class LocalRun(LocalPath):
    """A run on a disk of this machine: a name or a path, for commands that need more of it than a store has."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path. Fails with the commands that accept an address in a store."""
        if is_store(str(value)):
            name = ctx.info_name if ctx else "this command"
            text = f"{redact('', str(value))!r}: slipway {name} needs a run on a disk of this machine."
            raise NotLocalError(f"{text} Of a run in a store there are {READERS}.", ctx, param)
        return super().convert(value, param, ctx)
