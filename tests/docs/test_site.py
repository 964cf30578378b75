"""docs/ as a site."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.core

ROOT = Path(__file__).parents[2]


def test_it_builds_without_warnings_or_links_that_lead_nowhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("mkdocs"), "build", "--site-dir", tmp_path / "site"],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site/index.html").is_file()
