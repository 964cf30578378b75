"""All rows, one after the other, as a page and a picture: bench/RESULTS.md and bench/results.svg.

    .venv/bench/bin/python bench/results.py [--rounds 8] [--only launch,gpt] [--gpu] [--keep DIR]

Each row is a script of its own, with a target from its own pages; what another script said stands as it was said. A row that
fails is named on the page and makes this end with 1, and so does a target that is missed for no known reason.

With --keep a second call goes on where a first one was cut short, as on a machine that is lent for minutes: the page has all
rows that are asked for, and those that DIR holds are not measured again.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import platform
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from picture import draw, read_ratios

FOLDER = Path(__file__).parent
Told = dict[str, Any]  # what a script wrote with --json, and the script with its seconds


@dataclass(frozen=True)
class Page:
    """A page of results: its file, what one types for it, its rows, and the packages whose versions it names."""

    file: Path
    goal: str
    rows: tuple[str, ...]
    packages: tuple[str, ...]


CPU = Page(
    FOLDER / "RESULTS.md",
    "make bench",
    (
        "launch",
        "gpt",
        "vision_data",
        "vision",
        "ddp",
        "scaling",
        "snapshot",
        "storing",
        "overhead",
        "recovery",
        "resilience",
        "container",
    ),
    ("torch", "torchvision", "accelerate", "lightning-fabric", "safetensors", "click"),
)
GPU = Page(
    FOLDER / "RESULTS-GPU.md",
    "make bench-gpu",
    ("gpu/gpt2", "gpu/ddp_of_one", "gpu/cifar", "gpu/resnet50", "gpu/warm_start", "gpu/stall"),
    ("torch", "torchvision", "triton"),
)


def main() -> int:
    """Run the rows; write page and picture. 1 where a row failed or a target is missed for no known reason."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--smoke", action="store_true", help="one short round of each row; writes nothing")
    parser.add_argument("--gpu", action="store_true", help="the rows that need a GPU: RESULTS-GPU.md")
    parser.add_argument("--only", type=lambda text: text.split(","), help="some of the rows")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep there what rows tell, for another call to go on")
    options = parser.parse_args()
    if options.keep and options.smoke:
        parser.error("--smoke tells nothing that is worth keeping")
    page = GPU if options.gpu else CPU
    rows = options.only or page.rows
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found = {row: measure(row, options, folder) for row in rows}
    reports = [told for told in found.values() if told]
    failed = [row for row, told in found.items() if told is None]
    minutes = sum(told["seconds"] for told in reports) / 60
    print(f"\n{len(reports)} rows in {minutes:.1f} minutes{f'; failed: {failed}' if failed else ''}", flush=True)
    if reports and not options.smoke:
        write(page, reports, failed, minutes)
    unexplained = [told for report in reports for told in report["targets"] if not (told["met"] or told["reason"])]
    return int(bool(failed or (unexplained and not options.smoke)))


def measure(row: str, options: argparse.Namespace, folder: Path) -> Told | None:
    """What a row told, now or in a call before; nothing where it was left out for want of an engine, None where it failed."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{row.replace('/', '-')}.json"
    if not file.exists():
        new, begun = file.with_suffix(".new"), time.monotonic()
        new.unlink(missing_ok=True)
        words = [f"--rounds={options.rounds}", f"--json={new}", *(["--smoke"] if options.smoke else [])]
        code = subprocess.run([sys.executable, str(FOLDER / f"{row}.py"), *words], check=False).returncode
        seconds = time.monotonic() - begun
        print(f"-- {row}: {seconds:.0f} s, ended with {code}\n", flush=True)
        if not new.exists():
            return {} if options.smoke and code == 0 else None
        new.write_text(json.dumps(json.loads(new.read_text()) | {"seconds": seconds, "script": f"{row}.py"}))
        new.rename(file)
    told: Told = json.loads(file.read_text())
    return told


def write(page: Page, reports: list[Told], failed: list[str], minutes: float) -> None:
    """Write the page and its picture."""
    picture = page.file.with_name(page.file.name.lower()).with_suffix(".svg")
    lines = [*heading(page, minutes, picture), *summary(reports)]
    lines += [line for report in reports for line in section(report)]
    lines += [f"\n**{row}** failed." for row in failed]
    told = "\n".join(lines) + "\n"
    page.file.write_text(told)
    picture.write_text(draw(read_ratios(told)))
    print(f"written: {page.file}, {picture}")


def heading(page: Page, minutes: float, picture: Path) -> list[str]:
    """The page's first lines: when, where and with what it was measured."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in page.packages)
    return [
        "# Measured side by side",
        "",
        f"`{page.goal}` wrote this page on {datetime.datetime.now(datetime.UTC):%Y-%m-%d}, in {minutes:.0f} minutes, of commit "
        f"{commit()}, on Linux {platform.release().partition('-')[0]}, with {versions}.",
        "",
        "Both sides of every row ran in the same session and took turns. A ratio is the median of the ratios of all rounds, "
        "with the smallest and the largest in brackets. If a target is missed, the row names the limiting factor.",
        "",
        f"![Slipway's time or speed against its peers']({picture.name})",
    ]


def commit() -> str:
    """What was measured, as git describes it; outside a checkout nothing does."""
    words = ["git", "describe", "--always", "--dirty=, changed since"]
    try:
        described = subprocess.run(words, cwd=FOLDER, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        described = ""
    return described.strip() or "unknown"


def summary(reports: list[Told]) -> list[str]:
    """All targets in one table."""
    lines = ["", "| what | measured | to reach | |", "| --- | --- | --- | --- |"]
    for report in reports:
        for told in report["targets"]:
            limit = f"{'≤' if told['at_most'] else '≥'} {told['limit']:g} {told['unit']}"
            met = "met" if told["met"] else f"**missed**: {told['reason'] or 'unexplained'}"
            lines.append(f"| {report['title']}: {told['what']} | {value(told)} | {limit} | {met} |")
    return lines


def value(told: Told) -> str:
    """A target's median with its spread."""
    spread = told["value"]
    return f"{spread['median']:.3g} ({spread['least']:.3g} to {spread['most']:.3g}) {told['unit']}"


def section(report: Told) -> list[str]:
    """What one script told."""
    lines = ["", f"## {report['title']}", "", report["about"], ""]
    lines += [f"`bench/{report['script']}`, {report['seconds']:.0f} s; {report['machine']}."]
    for table in report["tables"]:
        lines += ["", f"### {table['heading']}", ""]
        lines += [
            f"| {' | '.join(row)} |" for row in (table["columns"], ["---"] * len(table["columns"]), *table["rows"])
        ]
    for note in report["notes"]:
        lines += ["", note]
    return lines


if __name__ == "__main__":
    sys.exit(main())
