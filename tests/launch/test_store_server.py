"""Buckets on real servers of S3 (SeaweedFS) and Azure Blob (Azurite): the contract of a store, interrupted uploads, and what a
user's mistakes end with.
"""

import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fake_store import make_snapshot
from launchers import Launcher
from object_servers import SCHEMES, SERVERS
from store_contract import CONTRACT

from slipway.store import open_store
from slipway.store.address import parse_store
from slipway.store.catalog import Catalog
from slipway.store.claims import claim
from slipway.store.download import download
from slipway.store.layout import Location
from slipway.store.objects import ObjectStore
from slipway.store.retention import clean
from slipway.store.upload import Pace, upload


@pytest.fixture(scope="module", params=SCHEMES)
def scheme(request: pytest.FixtureRequest) -> str:
    """That of the addresses of a server."""
    return str(request.param)


@pytest.fixture(scope="module")
def endpoint(scheme: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables that lead to the server."""
    with SERVERS[scheme].serve(tmp_path_factory.mktemp(scheme)) as port:
        yield SERVERS[scheme].variables(port)


@pytest.fixture
def address(scheme: str, request: pytest.FixtureRequest) -> str:
    """A store of the test's own in the bucket."""
    return f"{scheme}://test/{abs(hash(request.node.name)):x}"


@pytest.fixture
def bucket(endpoint: dict[str, str], address: str, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """The same, opened."""
    for name, value in endpoint.items():
        monkeypatch.setenv(name, value)
    return open_store(parse_store(address))


@pytest.mark.parametrize("rule", CONTRACT, ids=lambda rule: rule.__name__)
def test_a_bucket_keeps_the_contract(bucket: ObjectStore, rule: Callable[[ObjectStore], None]) -> None:
    rule(bucket)


def test_a_listing_of_several_pages_is_complete(bucket: ObjectStore) -> None:
    """S3 lists 1,000 objects at a time, Azure 5,000."""
    names = [f"run/{number:05d}" for number in range(5_100)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: bucket.write(name, b"1"), names))
    assert bucket.list_objects("run/") == dict.fromkeys(names, 1)
    assert sorted(bucket.find("run")) == names


UPLOAD = """
import sys
from pathlib import Path
from slipway.store.address import parse_store
from slipway.store.layout import Location
from slipway.store import open_store
from slipway.store.upload import Pace, upload
print("begins", flush=True)
upload(open_store(parse_store(sys.argv[1])), "run", Path(sys.argv[2]), Location(1, int(sys.argv[3])), Pace(parallel=2, piece=65536))
"""


def test_50_uploads_that_are_killed_leave_nothing_invalid_lose_nothing_valid_and_are_cleaned(
    bucket: ObjectStore, address: str, tmp_path: Path
) -> None:
    print("seed 48")
    dice, complete, killed = random.Random(48), set[int](), 0
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
        catalog = Catalog(bucket, "run")
        catalog.refresh()
        found = {each[0].place.step: each[0] for each in catalog.sets()}
        assert complete <= {*found}, "nothing that was complete is lost"
        for new in {*found} - complete:  # the last request of a process that was killed may have its effect later
            folder = download(bucket, found[new], tmp_path / "back", 0.0)
            original = tmp_path / "snapshots" / folder.name
            assert all((folder / each.name).read_bytes() == each.read_bytes() for each in original.iterdir())
        complete |= {*found}
    assert killed > 25
    claim(bucket, "run", 2, {"nonce": "2"})
    upload(bucket, "run", make_snapshot(tmp_path, 99, 2), Location(2, 99), Pace())
    catalog.refresh()
    clean(bucket, "run", 2, 1, catalog)
    left = [name for name in bucket.list_objects("run/") if "/claims/" not in name]
    assert sorted(name.rpartition("/")[2] for name in left) == ["manifest.json", "model.safetensors", "state.json"]


@pytest.mark.parametrize("wrong", ["bucket", "key"])
def test_a_wrong_bucket_or_key_ends_with_78_before_anything_starts(
    start: Callable[..., Launcher], endpoint: dict[str, str], scheme: str, tmp_path: Path, wrong: str
) -> None:
    address = f"{scheme}://{'no-such-bucket' if wrong == 'bucket' else 'test'}/jobs"
    keys = SERVERS[scheme].wrong_key if wrong == "key" else {}
    job = start("linear", "--store", address, **(endpoint | keys))
    assert job.end() == 78, job.text
    assert f"{address} cannot be used" in job.text
    assert not (tmp_path / "runs").exists()


def test_data_are_fetched_from_the_bucket_with_their_checksums_and_mistakes_end_with_78(
    bucket: ObjectStore,
    start: Callable[..., Launcher],
    endpoint: dict[str, str],
    scheme: str,
    address: str,
    tmp_path: Path,
) -> None:
    contents = {"a.txt": b"first", "b/large.bin": random.Random(48).randbytes(20_000_000), "b/empty": b""}
    for name, content in contents.items():
        bucket.write(f"data/{name}", content)
    job = start("data", "fetch", f"{address}/data", "--out", "data", **endpoint)
    assert job.end() == 0, job.text
    assert ("no checksum" in job.text) == (scheme == "az"), "the ETag of S3's server is the MD5"
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
        (f"{scheme}://no-such-bucket/data", {}),
        (f"{address}/data", SERVERS[scheme].wrong_key),
    ):
        job = start("data", "fetch", wrong, "--out", "x", **(endpoint | keys))
        assert job.end() == 78, job.text
        assert f"{wrong} cannot be read" in job.text
        assert not (tmp_path / "x").exists()
