"""`slipway selftest` on real jobs: rows that are broken on purpose are reported, and a stop leaves nothing behind."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

from launchers import Launcher
from waiting import wait_until

Start = Callable[..., Launcher]

# One number of a product is wrong; and the rank that is to raise is killed instead, so that its job has another verdict.
BREAKS = """
import sys
if "slipway.train.measure.health" in sys.orig_argv:
    import torch
    honest = torch.matmul
    def flip(*factors, out):
        honest(*factors, out=out)
        out[7, 11] += 1
    torch.matmul = flip
if "slipway.cli.rehearsal" in sys.orig_argv:
    sys.argv[sys.argv.index("raise")] = "kill"
"""


def test_rows_that_are_broken_are_each_reported_and_a_sick_node_counts_first(start: Start, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BREAKS)
    words = ("selftest", "--json", "--only", "products,triton,exception")
    job = start(*words, PYTHONPATH=str(tmp_path), TMPDIR=str(tmp_path), CUDA_VISIBLE_DEVICES="")
    assert job.end(300) == 77, job.text
    report = json.loads(job.text[job.text.index("{\n") : job.text.rindex("}") + 1])
    product, triton, exception = report["rows"]
    assert (product["level"], product["code"]) == ("failed", 77)
    assert "the first at (7, 11)" in product["found"]
    assert triton["level"] == "skipped"
    assert (exception["level"], exception["code"]) == ("failed", 1)
    assert "SIGKILL" in exception["found"]
    assert "it should have ended with 1 and named rank 1 (this rank raises" in exception["found"]
    [folder] = tmp_path.glob("slipway-selftest-*")
    assert (folder / "exception" / "outcome.json").is_file()


def test_a_stop_leaves_no_process_and_no_file(start: Start, tmp_path: Path) -> None:
    job = start("selftest", "--only", "exception", TMPDIR=str(tmp_path), CUDA_VISIBLE_DEVICES="")
    launcher = "slipway-selftest-*/exception/node-0/launcher.json"
    wait_until(lambda: list(tmp_path.glob(launcher)), lambda: f"{launcher}:\n{job.text}")
    job.signal(signal.SIGTERM)
    assert job.end(60) == 75, job.text
    assert "stopped; no files or processes were left" in job.text
    assert list(tmp_path.glob("slipway-selftest-*")) == []
    assert commands_with(str(tmp_path)) == []


def commands_with(word: str) -> list[str]:
    """The command lines of all processes in which a word stands."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = file.read_text(errors="replace")
        except OSError:
            continue
        found += [command] if word in command else []
    return found
