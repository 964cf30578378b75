"""Whatever happens to a node, all others end soon, with true reasons, or go on by themselves to the same result."""

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from containers import PATIENCE
from scene import ENOUGH, Scene, end_state, evaluations, is_traceback, verdict
from table import PARTINGS, Parting, rows

from slipway.protocol.snapshots import snapshot_name


@pytest.mark.timeout(900)  # some rows start containers four times
@pytest.mark.parametrize("fault", rows(PARTINGS))
def test_the_job_outlives_its_nodes(fault: Parting, scene: Scene, undisturbed: Path, tell: Callable[..., None]) -> None:
    job = fault.provoke(scene)
    codes = job.end(ENOUGH)
    seconds = time.monotonic() - scene.harmed
    lines = [verdict(node.closing) for node in job.nodes]
    tell(fault, " ".join(map(str, codes)), lines[0], seconds)
    assert codes == tuple(code for code, _ in fault.ends), job.text
    for node, line, (_, pattern) in zip(job.nodes, lines, fault.ends, strict=True):
        assert re.search(pattern, line), job.text
        last = [text for text in node.lines if text.strip()][-1]
        assert last.startswith("slipway: "), job.text
        assert not is_traceback(last), job.text
    step, ended = fault.resume.step, job
    if 0 not in codes:
        assert all((node.run / "snapshots" / snapshot_name(step or 0)).is_dir() for node in job.nodes), job.text
        ended = job.again()
        assert set(ended.end(PATIENCE)) == {0}, ended.text
    finished = [node for node in ended.nodes if node.end(0) == 0]
    first = finished[0]
    assert {(node.run.name, node.attempt) for node in finished} == {(first.run.name, first.attempt)}, ended.text
    begun = [int(number) for number in re.findall(r"resuming from \S*step-(\d+)", first.text)[-1:]]
    assert bool(begun) == (step is not None), ended.text
    assert all(number >= (step or 0) for number in begun), ended.text  # in memory there may be a later one
    judged = evaluations(first.run, sum(begun) if first.fresh else 0)
    if fault.resume.exact:
        assert [end_state(node.run) for node in finished] == [end_state(undisturbed)] * len(finished)
    else:
        end_state(first.run)
    assert judged == pytest.approx(evaluations(undisturbed), rel=1e-4)
