"""A bucket on a real server of S3 (SeaweedFS): the contract of a store, interrupted uploads, and what a user's mistakes end with."""

import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_store import make_snapshot
from launchers import Launcher
from s3_server import serve_s3, variables
from store_contract import CONTRACT

from slipway.store.address import parse_store
from slipway.store.catalog import Catalog
from slipway.store.claims import claim
from slipway.store.layout import Location
from slipway.store.objects import ObjectStore, open_store
from slipway.store.restore import restore
from slipway.store.retention import clean
from slipway.store.upload import Pace, upload

pytestmark = pytest.mark.needs("S3 server")


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables of a server with the bucket `test`."""
    with serve_s3(tmp_path_factory.mktemp("seaweedfs")) as port:
        yield variables(port)


@pytest.fixture
def bucket(endpoint: dict[str, str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ObjectStore:
    """A store of the test's own in the bucket."""
    for name, value in endpoint.items():
        monkeypatch.setenv(name, value)
    return open_store(parse_store(f"s3://test/{abs(hash(request.node.name)):x}"))


@pytest.mark.parametrize("rule", CONTRACT, ids=lambda rule: rule.__name__)
def test_a_bucket_keeps_the_contract(bucket: ObjectStore, rule: Callable[[ObjectStore], None]) -> None:
    rule(bucket)


UPLOAD = """
import sys
from pathlib import Path
from slipway.store.address import parse_store
from slipway.store.layout import Location
from slipway.store.objects import open_store
from slipway.store.upload import Pace, upload
print("begins", flush=True)
upload(open_store(parse_store(sys.argv[1])), "run", Path(sys.argv[2]), Location(1, int(sys.argv[3])), Pace(parallel=2, piece=65536))
"""


def test_50_uploads_that_are_killed_leave_nothing_invalid_lose_nothing_valid_and_are_cleaned(
    bucket: ObjectStore, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    print("seed 48")
    dice, newest, killed = random.Random(48), -1, 0
    address = f"s3://test/{abs(hash(request.node.name)):x}"
    claim(bucket, "run", 1, {"nonce": "1"})
    for step in range(1, 51):
        folder = make_snapshot(tmp_path, step, size=600_000)
        child = subprocess.Popen(
            [sys.executable, "-c", UPLOAD, address, str(folder), str(step)], stdout=subprocess.PIPE
        )
        assert child.stdout
        child.stdout.readline()
        objects = dice.randint(0, 11)  # of twelve: ten pieces, the state, the manifest
        prefix = f"run/{Location(1, step).folder}"
        while child.poll() is None and len(bucket.list_objects(prefix)) < objects:
            pass
        child.send_signal(signal.SIGKILL)
        killed += child.wait() == -signal.SIGKILL
        child.stdout.close()
        if f"{prefix}manifest.json" in bucket.list_objects(prefix):
            newest = step
        catalog = Catalog(bucket, "run")
        catalog.look()
        sets = [*catalog.sets()]
        assert next((each[0].place.step for each in sets), -1) == newest
        if sets:
            restore(bucket, "run", tmp_path / "back", [0])
            assert (tmp_path / f"back/snapshots/step-{newest:08d}").is_dir()
    assert killed > 25
    claim(bucket, "run", 2, {"nonce": "2"})
    upload(bucket, "run", make_snapshot(tmp_path, 99, 2), Location(2, 99), Pace())
    catalog.look()
    clean(bucket, "run", 2, 1, catalog)
    left = [name for name in bucket.list_objects("run/") if "/claims/" not in name]
    assert sorted(name.rpartition("/")[2] for name in left) == ["manifest.json", "model.safetensors", "state.json"]


def test_a_job_keeps_its_run_in_the_bucket_and_resumes_from_there(
    start: Callable[..., Launcher], endpoint: dict[str, str], tmp_path: Path
) -> None:
    words = ("linear", "--save-every", "10", "--run-dir", "job", "--store", "s3://test/jobs")
    first = start(*words, "--steps", "20", **endpoint)
    assert first.end() == 0, first.text
    assert first.closing[-1] == "s3://test/jobs/job has step 20, the newest snapshot"
    (tmp_path / "job").rename(tmp_path / "gone")
    status = start("status", "s3://test/jobs/job", **endpoint, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert status.end() == 0, status.text
    assert "ended       finished" in status.text
    again = start(*words, "--steps", "30", "--resume", "auto", **endpoint)
    assert again.end() == 0, again.text
    assert "fetched the snapshot of step 20" in again.text


@pytest.mark.parametrize(
    ("address", "keys"),
    [("s3://no-such-bucket/jobs", {}), ("s3://test/jobs", {"AWS_SECRET_ACCESS_KEY": "wrong"})],
    ids=["bucket", "key"],
)
def test_a_wrong_bucket_or_key_ends_with_78_before_anything_starts(
    start: Callable[..., Launcher], endpoint: dict[str, str], tmp_path: Path, address: str, keys: dict[str, str]
) -> None:
    job = start("linear", "--store", address, **(endpoint | keys))
    assert job.end() == 78, job.text
    assert f"{address} cannot be used" in job.text
    assert not (tmp_path / "runs").exists()


def test_data_are_fetched_from_the_bucket_with_their_checksums_and_mistakes_end_with_78(
    bucket: ObjectStore,
    start: Callable[..., Launcher],
    endpoint: dict[str, str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    address = f"s3://test/{abs(hash(request.node.name)):x}"
    contents = {"a.txt": b"first", "b/large.bin": random.Random(48).randbytes(20_000_000), "b/empty": b""}
    for name, content in contents.items():
        bucket.write(f"data/{name}", content)
    job = start("data", "fetch", f"{address}/data", "--out", "data", **endpoint)
    assert job.end() == 0, job.text
    assert "no checksum" not in job.text, "this server has the MD5 as the ETag"
    found = {
        path.relative_to(tmp_path / "data").as_posix(): path
        for path in (tmp_path / "data").rglob("*")
        if path.is_file()
    }
    assert {name: path.read_bytes() for name, path in found.items()} == contents
    again = start("data", "fetch", f"{address}/data", "--out", "data", **endpoint)
    assert again.end() == 0, again.text
    assert "in place already" in again.text
    one = start("data", "fetch", f"{address}/data/b/large.bin", "--out", "one", **endpoint)
    assert one.end() == 0, one.text
    assert (tmp_path / "one").read_bytes() == contents["b/large.bin"]
    for wrong, keys in (
        (f"{address}/nothing", {}),
        ("s3://no-such-bucket/data", {}),
        (f"{address}/data", {"AWS_SECRET_ACCESS_KEY": "wrong"}),
    ):
        job = start("data", "fetch", wrong, "--out", "x", **(endpoint | keys))
        assert job.end() == 78, job.text
        assert f"{wrong} cannot be read" in job.text
        assert not (tmp_path / "x").exists()
