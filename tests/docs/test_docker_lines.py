"""Each `docker run` that the documentation shows works on first use, where the folder for results is not there yet."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from blocks import PAGES, ROOT, join_lines

FILES = [*PAGES, *(ROOT / "images").rglob("Dockerfile"), *(ROOT / "compose").glob("*.yaml")]
WRITES = re.compile(r'-v "\$PWD(?:/(?P<folder>[\w-]+))?:[^":]+"')  # a folder of the caller's, which can be written
CALLER = '--user "$(id -u):0"'


def documented() -> list[tuple[Path, str, str]]:
    """Page, block and line of each `docker run` in a block of shell, or in a comment of a file, that mounts a folder."""
    found = []
    for file in FILES:
        text = file.read_text()
        blocks = [re.sub(r"^# ?", "", text, flags=re.MULTILINE)]
        if file.suffix == ".md":
            blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        found += [
            (file.relative_to(ROOT), block, line.strip())
            for block in blocks
            for line in join_lines(block)
            if re.search(r"\bdocker (?:compose )?run\b", line) and WRITES.search(line)
        ]
    return found


@pytest.mark.parametrize(
    ("page", "block", "line"), documented(), ids=lambda value: str(value) if isinstance(value, Path) else ""
)
def test_a_documented_container_writes_as_its_caller_into_a_folder_that_is_there(
    page: Path, block: str, line: str
) -> None:
    assert CALLER in line, f"{page}: {line}"
    before = block[: block.index(line.split(" -v ")[0].split(" \\")[0][:30])]
    for folder in filter(None, WRITES.findall(line)):
        assert f"mkdir -p {folder}" in before, f"{page}: Docker would create {folder} as root: {line}"


@pytest.mark.parametrize("page", ["README.md", "compose/README.md", "compose/compose.yaml"])
def test_beside_compose_up_is_the_whole_line_without_a_gpu(page: str) -> None:
    lines = (ROOT / page).read_text().splitlines()
    found = [match for line in lines if (match := re.search(r"COMPOSE_FILE=(\S+cpu\.yaml) docker compose up", line))]
    assert len(found) == 1
    assert all((ROOT / file).is_file() for file in found[0][1].split(":"))


def test_there_are_such_lines() -> None:
    assert len(documented()) >= 5
