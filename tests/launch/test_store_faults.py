"""A bucket that fails in many ways: copies never stop a job, what gets through is whole, and the age of the copy is reported."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from fake_store import make_snapshot
from faulty_proxy import Fault, FaultyProxy, Way, serve_faults
from launchers import Launcher
from object_servers import SCHEMES, SERVERS

from slipway.inspect.status import read_status, status_lines
from slipway.protocol.files import RUN_FILE
from slipway.store import cloud, open_store
from slipway.store.address import parse_store
from slipway.store.catalog import Catalog
from slipway.store.copier import CopyService
from slipway.store.download import download
from slipway.store.files import fetch_files, find_files
from slipway.store.objects import ObjectStore, StoreError
from slipway.store.restore import restore

SEED, KEEP = 48, 2
RETRIED = 3  # of the client's own tries, so that the table takes less time


@pytest.fixture(scope="module", params=SCHEMES)
def scheme(request: pytest.FixtureRequest) -> str:
    """That of the addresses of a server."""
    return str(request.param)


@pytest.fixture(scope="module")
def server(scheme: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with SERVERS[scheme].serve(tmp_path_factory.mktemp(scheme)) as port:
        yield port


@pytest.fixture
def proxy(scheme: str, server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """A proxy whose address the variables name."""
    print(f"seed {SEED}")
    monkeypatch.setitem(cloud.RETRIES, "max_retries", RETRIED)
    with serve_faults(server, SEED) as proxy:
        for name, value in SERVERS[scheme].variables(proxy.port).items():
            monkeypatch.setenv(name, value)
        yield proxy


class Case(NamedTuple):
    """A fault, and what the record of the copy says of it (empty: nothing, because the client's own tries get through)."""

    fault: Fault
    says: str = ""


ALWAYS = {
    "500": Case(Fault(Way.ANSWER), "500"),
    "503 SlowDown": Case(Fault(Way.ANSWER, 503, "SlowDown"), "SlowDown"),
    "429": Case(Fault(Way.ANSWER, 429, "TooManyRequests"), "429"),
    "reset": Case(Fault(Way.RESET), "error"),
    "reset after the effect": Case(Fault(Way.RESET_AFTER), "error"),
    "bodies cut short": Case(Fault(Way.CUT), "error"),
    "expired credentials": Case(Fault(Way.ANSWER, 403, "ExpiredToken"), "ExpiredToken"),
    "a clock that is wrong": Case(Fault(Way.ANSWER, 403, "RequestTimeTooSkewed"), "RequestTimeTooSkewed"),
    "a full bucket": Case(Fault(Way.ANSWER, 507, "XMinioStorageFull", only=("PUT",)), "507"),
    "a quota": Case(Fault(Way.ANSWER, 403, "QuotaExceeded", only=("PUT",)), "QuotaExceeded"),
}
SOMETIMES = {
    "500": Fault(Way.ANSWER, share=0.3),
    "503 SlowDown": Fault(Way.ANSWER, 503, "SlowDown", share=0.3),
    "429": Fault(Way.ANSWER, 429, "TooManyRequests", share=0.3),
    "answers lost": Fault(Way.LOST, 503, "SlowDown", share=0.3),
    "resets": Fault(Way.RESET, share=0.3),
    "resets after the effect": Fault(Way.RESET_AFTER, share=0.3),
    "bodies cut short": Fault(Way.CUT, share=0.3),
    "slow bytes": Fault(Way.TRICKLE),
    "credentials that expire": Fault(Way.ANSWER, 403, "ExpiredToken", share=0.1),
    "listings that lag": Fault(Way.STALE, share=0.5, only=("GET",)),
}


class Copied(NamedTuple):
    """A run whose copies go through the proxy."""

    service: CopyService
    run: Path
    address: str

    def save(self, step: int) -> None:
        make_snapshot(self.run, step, size=300_000)

    @property
    def record(self) -> dict[str, object]:
        found: dict[str, object] = json.loads((self.run / "node-0/store.json").read_text())
        return found


@pytest.fixture
def copied(proxy: FaultyProxy, scheme: str, tmp_path: Path, request: pytest.FixtureRequest) -> Copied:
    run, address = tmp_path / "run", f"{scheme}://test/{abs(hash(request.node.name)):x}"
    (run / "node-0").mkdir(parents=True)
    (run / RUN_FILE).write_text(json.dumps({"workload": "linear", "attempt": 1}))
    service = CopyService(address, 0.0, 2)
    service.do_copy(
        {"run": "job", "attempt": 1, "path": str(run), "node": str(run / "node-0"), "ranks": [0], "keep": KEEP}
    )
    return Copied(service, run, address)


@pytest.fixture
def direct(scheme: str, server: int, copied: Copied, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """The same store without the proxy."""
    with monkeypatch.context() as patch:
        for name, value in SERVERS[scheme].variables(server).items():
            patch.setenv(name, value)
        return open_store(parse_store(copied.address))


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def require_whole(direct: ObjectStore, copied: Copied, into: Path) -> list[int]:
    """Fetch every snapshot that counts, without the proxy, and compare it; the steps, newest first."""
    catalog = Catalog(direct, "job")
    catalog.refresh()
    sets = [each[0] for each in catalog.sets()]
    shutil.rmtree(into, ignore_errors=True)
    for stored in sets:
        folder = download(direct, stored, into, 0.0)
        assert content(folder) == content(copied.run / "snapshots" / folder.name)
    steps = [stored.place.step for stored in sets]
    assert restore(direct, "job", into, [0])[:4] == (None, 0, (), steps[0]), "the newest one is what a job resumes from"
    return steps


@pytest.mark.parametrize("name", ALWAYS)
def test_while_every_request_fails_the_job_goes_on_and_the_age_of_the_copy_is_reported(
    copied: Copied, direct: ObjectStore, proxy: FaultyProxy, tmp_path: Path, name: str
) -> None:
    case = ALWAYS[name]
    copied.save(10)
    copied.service._tick()
    assert (copied.record["step"], copied.record["error"]) == (10, "")
    proxy.fault = case.fault
    copied.save(20)
    for _ in range(2):
        assert copied.service._tick() > 1.0, "it waits before the next try"
    assert proxy.failed
    assert copied.record["step"] == 10
    assert case.says in str(copied.record["error"])
    said = " ".join(status_lines(read_status(copied.run)))
    assert "is of step 10, " in said
    assert " s old" in said
    assert 10 in require_whole(direct, copied, tmp_path / "back")
    if "GET" in case.fault.only:
        with pytest.raises(StoreError):
            restore(open_store(parse_store(copied.address)), "job", tmp_path / "other", [0])
        assert not [*tmp_path.glob("other/snapshots/*")]
    proxy.fault = None
    copied.service._tick()
    assert (copied.record["step"], copied.record["error"]) == (20, "")
    assert require_whole(direct, copied, tmp_path / "back") == [20, 10]


@pytest.mark.parametrize("name", SOMETIMES)
def test_while_requests_fail_at_random_what_gets_through_is_whole_and_resumes(
    copied: Copied, direct: ObjectStore, proxy: FaultyProxy, tmp_path: Path, name: str
) -> None:
    copied.save(10)
    copied.service._tick()
    proxy.fault, complete = SOMETIMES[name], {10}
    for step in range(20, 70, 10):
        copied.save(step)
        copied.service._tick()
        found = require_whole(direct, copied, tmp_path / "back")
        complete |= {*found}
        assert {*sorted(complete)[-KEEP:]} <= {*found}, "a complete snapshot goes when as many newer ones are complete"
        into = tmp_path / f"resumed-{step}"
        try:
            fetched = restore(open_store(parse_store(copied.address)), "job", into, [0])
        except StoreError:
            assert not [*into.glob("snapshots/*")]
        else:
            assert fetched.step is None or content(into / f"snapshots/step-{fetched.step:08d}") == content(
                copied.run / f"snapshots/step-{fetched.step:08d}"
            )
    assert proxy.failed
    proxy.fault = None
    answer = copied.service.do_finish({})
    assert (answer["step"], answer["failure"]) == (60, "")
    assert (copied.record["step"], copied.record["error"]) == (60, "")
    assert require_whole(direct, copied, tmp_path / "back")[0] == 60
    for step in (70, 80):
        copied.save(step)
        copied.service._tick()
    names = [each.rpartition("/")[2] for each in direct.list_objects("job/attempt-00000001/snapshots/")]
    assert len(names) == 6, "what was interrupted is cleaned"


@pytest.mark.parametrize("name", ["500", "resets", "bodies cut short", "slow bytes"])
def test_data_are_fetched_from_a_store_that_fails_at_random(
    copied: Copied, direct: ObjectStore, proxy: FaultyProxy, tmp_path: Path, name: str
) -> None:
    for number in range(5):
        direct.write(f"data/{number}", bytes([number]) * 100_000)
    proxy.fault = SOMETIMES[name]
    through, files = open_store(parse_store(copied.address)), {}
    for _ in range(20):
        try:
            files = find_files(through, "data")
            fetch_files(through, copied.address, "data", files, tmp_path / "data", {}, pauses=(0.0,) * 3)
            break
        except StoreError:
            assert not (tmp_path / "data").exists()
    assert content(tmp_path / "data") == {str(number): bytes([number]) * 100_000 for number in range(5)}


def test_a_job_ends_well_beside_a_store_that_fails(
    start: Callable[..., Launcher], proxy: FaultyProxy, scheme: str, tmp_path: Path
) -> None:
    proxy.fault = Fault(Way.RESET_AFTER, share=0.2)
    words = ("linear", "--save-every", "10", "--run-dir", "job", "--store", f"{scheme}://test/faulty")
    job = start(*words, "--steps", "40", **SERVERS[scheme].variables(proxy.port))
    assert job.end() == 0, job.text
    assert job.closing[-1] == f"{scheme}://test/faulty/job has step 40, the newest snapshot"
    (tmp_path / "job").rename(tmp_path / "gone")
    again = start(*words, "--steps", "60", "--resume", "auto", **SERVERS[scheme].variables(proxy.port))
    assert again.end() == 0, again.text
    assert "fetched the snapshot of step 40" in again.text
