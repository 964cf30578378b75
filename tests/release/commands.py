"""Run the targets of the Makefile as the release workflow does, with their settings in the environment."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMAGE = os.environ.get("IMAGE") or "slipway:dev"
PATIENCE = 240.0  # s
# A setting of this shell, or of the workflow that runs these tests, decides nothing in them.
SETTINGS = (
    *(
        "ARCHITECTURE",
        "ARCHIVE",
        "BASE",
        "COMPRESSION",
        "GITHUB_REF",
        "MAKEFLAGS",
        "REBUILD",
        "RELEASE",
        "REPOSITORY",
        "VARIANT",
    ),
    "VERSION",
)


def run(*words: str | Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the checkout; keywords are environment variables."""
    environ = {name: value for name, value in os.environ.items() if name not in SETTINGS} | settings
    return subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=environ, timeout=PATIENCE)


def output(*words: str | Path, **settings: str) -> str:
    """What a command prints; fails where it fails."""
    done = run(*words, **settings)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout.strip()


def make(target: str, **settings: str) -> str:
    """What `make target` prints."""
    return output("make", "--silent", target, **settings)
