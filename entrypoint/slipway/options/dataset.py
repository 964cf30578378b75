"""What `--dataset` and `--tokenizer` may say, and what of it can be checked before anything starts."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import click

from slipway.options.kind import Kind
from slipway.options.paths import NotLocalError, explain_address, require_local
from slipway.protocol.errors import told_if_unreadable
from slipway.protocol.mistake import ConfigurationError, nearest

STDLIB, FILE, TOKENS, HUB = "stdlib", "file", "tokens", "hub"
FORMS = "stdlib, file:PATH, tokens:DIR or hub:OWNER/NAME[/FOLDER][@REVISION]"
NO_PLAIN_TEXT = frozenset({".parquet", ".jsonl", ".ndjson", ".json"})
VALIDATION = 0.01  # the share of a text for validation, unless file names or an option say otherwise
MANIFEST = "manifest.json"  # makes a folder one of tokens
REPO = r"[\w.-]+(/[\w.-]+)?(@[\w./-]+)?"


class Dataset(Kind[str]):
    """Text to train on: one of FORMS."""

    name = "data"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """As `--help` shows it."""
        return "stdlib|file:PATH|tokens:DIR|hub:REPO"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The same text. Fails for any other form, with what was probably meant."""
        scheme, _, rest = str(value).partition(":")
        if value == STDLIB or (scheme in (FILE, TOKENS, HUB) and rest):
            return str(value)
        if not nearest(scheme, (FILE, TOKENS, HUB)) and (why := explain_address(str(value))):
            raise NotLocalError(f"{value!r}: {why}. Type {FORMS}.", ctx, param)
        raise click.BadParameter(f"{value!r} is not a data set: type {FORMS}.{meant_dataset(str(value))}", ctx, param)


def meant_dataset(value: str) -> str:
    """What a wrong `--dataset` probably meant, as a sentence; empty where nothing comes near."""
    scheme, colon, rest = value.partition(":")
    near = nearest(scheme, (STDLIB, FILE, TOKENS, HUB))
    if near and colon and near != STDLIB:
        return f" Did you mean {near}:{rest or '…'}?"
    if _is_there(value):
        return f" Did you mean {TOKENS if (Path(value) / MANIFEST).exists() else FILE}:{value}?"
    if near:
        return f" Did you mean {near}{'' if near == STDLIB else ':…'}?"
    return f" Did you mean {HUB}:{value}?" if "/" in value and re.fullmatch(REPO, value) else ""


def _is_there(path: str) -> bool:
    with suppress(OSError):  # this user may not look there
        return Path(path).exists()
    return False


class HubData(NamedTuple):
    """A data set on the Hub: its repo (`owner/name` or `owner/name@revision`), and a folder in it, or none."""

    repo: str
    folder: str


def parse_hub_data(source: str) -> HubData:
    """Take `OWNER/NAME[/FOLDER][@REVISION]` apart. Raises ConfigurationError where it is none."""
    path, mark, revision = source.partition("@")
    parts = path.strip("/").split("/")
    if not all(parts) or (mark and not revision):
        raise ConfigurationError(f"--dataset {HUB}:{source} names no repo; type {HUB}:OWNER/NAME[/FOLDER][@REVISION].")
    return HubData("/".join(parts[:2]) + mark + revision, "/".join(parts[2:]))


@told_if_unreadable("Give the path of a data set that this user can read.")
def check_dataset(dataset: str) -> None:
    """Raise ConfigurationError where a path is not there, is an empty file, or is no folder of tokens."""
    scheme, _, rest = dataset.partition(":")
    if scheme == HUB:
        parse_hub_data(rest)
    if scheme in (FILE, TOKENS):
        require_local(rest, f"--dataset {dataset}")
    if scheme in (FILE, TOKENS) and not Path(rest).exists():
        text = f"--dataset {dataset}: there is no {rest}{seen_from(rest)}.{nearest_path(rest)}"
        raise ConfigurationError(text, missing=rest)
    if scheme == FILE and Path(rest).is_dir() and not any(Path(rest).iterdir()):
        made = ", which Docker made because the file of -v is missing on the host" if Path(rest).is_mount() else ""
        raise ConfigurationError(f"--dataset {dataset}: {rest} is an empty folder{made}.")
    if scheme == FILE and Path(rest).is_file() and not Path(rest).stat().st_size:
        raise ConfigurationError(f"--dataset {dataset}: {rest} is empty; there is no text in it.")
    if scheme == TOKENS and not (Path(rest) / MANIFEST).is_file():
        again = Path(rest) / ".preparation"
        raise ConfigurationError(
            f"--dataset {dataset}: {rest} is not finished; continue with the same `slipway data prepare` command."
            if again.exists()
            else f"--dataset {dataset}: {rest} holds no {MANIFEST}. Make a folder of tokens by "
            f"`slipway data prepare INPUT --out DIR`, or type {FILE}:{rest} for text."
        )


def require_length(dataset: str, context: int) -> None:
    """Raise ConfigurationError for one plain file that, in bytes, has less than a sample to train on and one to judge by.

    Each is `context` tokens and the one that follows; what ends the text is a token as well.
    """
    scheme, _, rest = dataset.partition(":")
    if scheme != FILE or not Path(rest).is_file() or Path(rest).suffix.lower() in NO_PLAIN_TEXT:
        return
    size, needed = Path(rest).stat().st_size, 2 * context + 1
    if size < needed:
        less = f", or type --context {(size - 1) // 2}" if size > 2 else ""
        raise ConfigurationError(
            f"--dataset {dataset}: the file is too small: it has {size:,} bytes, and {needed:,} are needed for --context "
            f"{context}: one sample for training and one for validation. Use more text{less}."
        )


def check_tokenizer(name: str) -> None:
    """Raise ConfigurationError for a path that is not there; what could be a repo of the Hub is asked for later."""
    require_local(name, f"--tokenizer {name}")
    if not Path(name).exists() and (not re.fullmatch(REPO, name) or name.endswith(".json") or name.startswith(".")):
        raise ConfigurationError(
            f"--tokenizer {name}: there is no {name}{seen_from(name)}.{nearest_path(name)} Type bytes, the path of a "
            "tokenizer.json or of a folder with one, or a repo of the Hub.",
            missing=name,
        )


def seen_from(path: str) -> str:
    """Where a relative path was looked for."""
    return "" if Path(path).is_absolute() else f" in {Path.cwd()}"


def nearest_path(path: str) -> str:
    """A sentence with the name beside `path` that comes nearest; empty where there is none."""
    folder = Path(path).parent
    near = nearest(Path(path).name, sorted(other.name for other in folder.iterdir()) if folder.is_dir() else ())
    return f" Did you mean {folder / near}?" if near else ""
