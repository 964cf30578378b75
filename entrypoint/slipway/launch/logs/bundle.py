"""What goes into the archive about a run for a bug report: its files, versions, a check of this node, and a page about them."""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from slipway.launch.health.finding import findings_lines
from slipway.launch.health.quick import quick_check
from slipway.launch.logs.archive import (
    ALL,
    LARGEST,
    NAME_ENDS,
    PARTS,
    SMALLEST,
    ArchivePart,
    find_files,
    list_others,
    read_part,
    write_archive,
)
from slipway.launch.logs.lines import tell_elsewhere
from slipway.launch.resolve.devices import read_devices
from slipway.launch.resolve.host import read_host
from slipway.launch.resolve.versions import read_versions
from slipway.launch.verdict.block import utc
from slipway.protocol.files import RUN_FILE, read_json
from slipway.protocol.redact import make_redactor, secret_arguments, secret_values

HERE = (("versions.json", "software and devices where this was packed"), ("check.txt", "the health of that node"))


@dataclass(frozen=True)
class Bundle:
    """An archive, its size in bytes, what one should know about it, and what of the run is not in it."""

    path: Path
    size: int
    notes: tuple[str, ...]
    left_out: tuple[str, ...]


def bundle_run(run: Path, name: str, environ: Mapping[str, str], env_file: Mapping[str, str], now: float) -> Bundle:
    """Pack a run into the archive `name`, by default one in the working directory. Raises LaunchError.

    The values of secrets in `environ`, `env_file` and the run's arguments are taken out, and all that looks like one.
    """
    run = run.resolve()
    target = Path(name or f"slipway-{run.name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}{NAME_ENDS}")
    secrets = secret_values(environ, env_file)
    files = find_files(run)
    left_out = tuple(list_others(run, files))
    notes = [
        f"secrets whose values were known where this was packed: {', '.join(sorted(secrets)) or 'none'}; others that a "
        "program printed without their names are found by their form only"
    ]
    notes += [elsewhere] if (elsewhere := tell_elsewhere(run)) else []

    def parts() -> Iterator[ArchivePart]:
        most = max(SMALLEST, min(LARGEST, ALL // max(len(files), 1)))
        for file in files:
            part, missing = read_part(str(file.relative_to(run)), file, most)
            notes.extend([f"{part.name} was cut: {missing:,} bytes in its middle are left out"] if missing else [])
            yield part
        yield from look_here(run, environ)
        yield ArchivePart("README.txt", (readme(run, files, notes, left_out, now),))

    arguments = read_json(run / RUN_FILE).get("arguments")
    typed = secret_arguments(arguments) if isinstance(arguments, list) else []
    write_archive(target, parts(), make_redactor([*secrets.values(), *typed]), now)
    return Bundle(target, target.stat().st_size, tuple(notes), left_out)


def look_here(run: Path, environ: Mapping[str, str]) -> Iterator[ArchivePart]:
    """Versions and health of the node where this is called. Whatever goes wrong with that is told in their place."""
    texts = ["", ""]
    try:
        host, devices = read_host(environ), read_devices(environ)
        texts[0] = json.dumps(read_versions(host, devices), indent=1) + "\n"
        texts[1] = "\n".join(findings_lines(quick_check(environ, host, devices, run.parent, None))) + "\n"
    except Exception as error:
        texts = [text or f"{type(error).__name__}: {error}\n" for text in texts]
    for (name, _), text in zip(HERE, texts, strict=True):
        yield ArchivePart(name, (text,))


def readme(run: Path, files: list[Path], notes: list[str], left_out: tuple[str, ...], now: float) -> str:
    """README.txt: what is in the archive, and what is not."""
    lines = [f"The run {run.name}, packed by `slipway logs --bundle` at {utc(now)}.", ""]
    for pattern, what in PARTS:
        count = sum(file.relative_to(run).match(pattern) for file in files)
        lines.append(f"{pattern:<26}{what}{f' ({count} files)' if count > 1 else '' if count else ': none here'}")
    lines += [f"{name:<26}{what}" for name, what in HERE]
    lines += [
        "",
        "Secrets were replaced by *** where their names or forms told. Look through it before you pass it on.",
    ]
    return "\n".join([*lines, "", "Notes:", *notes, "", "Left out:", *(left_out or ["nothing"])]) + "\n"
