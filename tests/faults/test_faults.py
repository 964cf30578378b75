"""Whatever happens, a job ends in bounded time with the right exit code and a true reason, and goes on where it was."""

import re
import subprocess
import time
from collections.abc import Callable

import pytest
from launchers import Launcher
from scene import ENOUGH, Scene, is_traceback, verdict
from table import DONE, FAULTS, Fault, rows
from waiting import wait_until

from slipway.process.tree import lives
from slipway.protocol.errors import CONFIGURATION


@pytest.mark.parametrize("fault", rows(FAULTS))
def test_it_ends_soon_and_truly_and_goes_on(
    fault: Fault, scene: Scene, reference: dict[str, str], tell: Callable[..., None]
) -> None:
    job = fault.provoke(scene)
    try:
        code = job.end(ENOUGH)
    except subprocess.TimeoutExpired:
        pytest.fail(f"still there after {ENOUGH:.0f} s:\n{job.text}", pytrace=False)
    seconds = time.monotonic() - scene.harmed
    line = scene.status() if code < 0 else verdict(job.closing)
    tell(fault, str(code), line, seconds)
    assert code == fault.code, job.text
    assert re.search(fault.line, line), job.text
    last = [text for text in job.lines if text.strip()][-1]
    assert not is_traceback(last), job.text
    assert code < 0 or last.startswith("slipway: "), job.text
    if isinstance(job, Launcher) and code != CONFIGURATION:  # which leaves a job that is there alone
        wait_until(lambda: not any(map(lives, scene.workers)), "the workers to end with their launcher")
    wanted = fault.resume
    again = scene.resume(wanted.step if wanted.intact else None)
    assert again.end() == wanted.code, again.text
    assert wanted.says in again.text
    if wanted.code == 0 and wanted.says != DONE:
        assert ("resuming from" in again.text) == (wanted.step is not None), again.text
        assert wanted.step is None or f"snapshots/step-{wanted.step:08d}\n" in again.text, again.text
    if wanted.code == 0 and wanted.exact and not wanted.intact:
        assert scene.result() == reference
