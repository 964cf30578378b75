"""A question that needs torch: a child process answers it with a line of JSON, or ends in a way that is an answer, too."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LAST_SECONDS = 5.0  # for a child that was killed


@dataclass(frozen=True)
class ProbeEnding:
    """How a child ended: its report, its exit code (None: it had to be killed) and what it said last on stderr."""

    report: Mapping[str, Any]
    status: int | None
    said: str = ""


def start_probe(module: str, word: str, environ: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a module of `train` with one argument, in this environment."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, word],
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def wait_for_probe(child: subprocess.Popen[str], until: float) -> ProbeEnding:
    """How a child ended; one that has not at `until` (monotonic seconds) is killed."""
    try:
        out, err = child.communicate(timeout=max(0.1, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # one that hangs in the driver survives even that
            child.communicate(timeout=LAST_SECONDS)
        return ProbeEnding({}, None)
    return ProbeEnding(last_json(out.splitlines()), child.returncode, next(iter(err.strip().splitlines()[-1:]), ""))


def last_json(lines: Sequence[str]) -> Mapping[str, Any]:
    """The last line of JSON; libraries may have printed something, too."""
    for line in reversed(lines):
        try:
            report = json.loads(line)
        except ValueError:
            continue
        if isinstance(report, dict):
            return report
    return {}
