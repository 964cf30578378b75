"""What others put into a store, or into a run directory that is copied to one: it harms nobody, and a line says what it is."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fake_store import FakeStore, make_snapshot
from google_stand_in import BUCKET, Google, serve_google
from stand_ins import Slipway

from slipway.protocol.files import LARGEST, METRICS_FILE, OPTIONS_FILE, RUN_FILE
from slipway.protocol.snapshots import MANIFEST
from slipway.store import open_store
from slipway.store.address import parse_store
from slipway.store.claims import claim, highest_claim, read_claim
from slipway.store.copier import Assignment, Copier
from slipway.store.files import fetch_files, find_files, hash_listing
from slipway.store.folder import FolderStore
from slipway.store.objects import MissingObjectError, ObjectStore, StoreError, StoreRefusedError
from slipway.store.records import RecordCopy, fetch_records
from slipway.store.restore import restore
from slipway.store.upload import Pace

OTHER = 65_534 if os.geteuid() == 0 else os.geteuid()  # the user who attacks
SECRET = b"only the victim may read this"
CLAIM = "run/claims/00000001.json"
RECORD = f"run/attempt-00000001/record/{OPTIONS_FILE}"
PLACE = "run/attempt-00000001/snapshots/step-00000005"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder of the victim's that nobody else may touch."""
    folder = tmp_path / "victim"
    folder.mkdir(mode=0o700)
    for name in (OPTIONS_FILE, "00000001.json", "secret"):
        (folder / name).write_bytes(SECRET)
    return folder


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    """A store with a run of one snapshot, which was claimed."""
    (tmp_path / "store").mkdir()
    store = FolderStore(tmp_path / "store")
    copy_run(store, tmp_path / "run")
    return store


def copy_run(store: ObjectStore, run: Path) -> None:
    """A run of one attempt with one snapshot, and its copy."""
    make_snapshot(run, 5)
    (run / RUN_FILE).write_text(json.dumps({"workload": "gpt", "attempt": 1}))
    (run / OPTIONS_FILE).write_text("{}")
    assert Copier(store, Assignment("run", 1, run, run, (0,), 2), Pace(parallel=1), "nonce").tick()


def plant(path: Path, make: Callable[[Path], object], owner: int = OTHER) -> None:
    """Put something in the place of what is there, as that user would have done."""
    if path.is_dir() and not path.is_symlink():
        path.rename(path.with_name(f"{path.name}-away"))
    else:
        path.unlink(missing_ok=True)
    make(path)
    os.chown(path, owner, -1, follow_symlinks=False)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("level", ["run", "run/attempt-00000001", "run/attempt-00000001/record"])
@pytest.mark.parametrize("owner", [0, OTHER])
def test_nothing_is_written_read_or_deleted_through_a_link_in_a_store(
    store: FolderStore, tmp_path: Path, victim: Path, owner: int, level: str
) -> None:
    below = RECORD.removeprefix(f"{level}/")
    inner = victim / below
    inner.parent.mkdir(parents=True, exist_ok=True)
    inner.write_bytes(SECRET)
    before = contents(victim)
    plant(tmp_path / "store" / level, lambda path: path.symlink_to(victim), owner)
    said = rf"{level} is a link, which is not followed"
    for name in (RECORD, f"{level}/new"):
        with pytest.raises(StoreRefusedError, match=said):
            store.write(name, b"{}")
        with pytest.raises(StoreRefusedError, match=said):
            store.create(name, b"{}")
        with pytest.raises(StoreRefusedError, match=said):
            store.delete([name])
        with pytest.raises(MissingObjectError, match=said):
            store.read(name)
        with pytest.raises(StoreRefusedError, match=said):
            store.written(name)
    with pytest.raises(StoreRefusedError, match=said):
        store.list_objects(f"{level}/")
    assert contents(victim) == before
    assert inner.is_file(), "nor are folders removed that are empty"


def test_a_folder_of_a_run_that_is_a_link_is_no_run_and_a_line_says_so(
    store: FolderStore, tmp_path: Path, victim: Path
) -> None:
    plant(tmp_path / "store/other", lambda path: path.symlink_to(victim))
    assert store.list_folders("") == ["run"]
    [line] = store.odd
    assert line == (
        f"{tmp_path}/store/other is a link, which is not followed within a run directory or a store, so it is skipped"
    )


def test_the_copier_writes_no_records_into_the_folder_that_a_link_leads_to(
    store: FolderStore, tmp_path: Path, victim: Path
) -> None:
    plant(tmp_path / "store/run/attempt-00000001/record", lambda path: path.symlink_to(victim))
    before = contents(victim)
    with pytest.raises(StoreRefusedError, match="record is a link"):
        RecordCopy(store, "run", 1, tmp_path / "run").copy()
    assert contents(victim) == before


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)  # of which nothing is on the disk


PLANTS: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to a file": lambda path: path.symlink_to(__file__),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a huge file": huge,
}


@pytest.mark.parametrize("what", PLANTS)
def test_what_is_no_file_of_ours_is_passed_over_with_a_line_and_neither_holds_nor_fills_the_reader(
    store: FolderStore, tmp_path: Path, victim: Path, what: str
) -> None:
    for name in (CLAIM, RECORD, f"{PLACE}/{MANIFEST}"):
        plant(tmp_path / "store" / name, PLANTS[what])
        with pytest.raises(MissingObjectError, match=r"is a link|is not a regular file|has more than 16 MiB"):
            store.read(name)
        store.list_objects("run/")
        assert any(str(tmp_path / "store" / name) in line and "so it is skipped" in line for line in store.odd)
        store.odd.clear()
    assert highest_claim(store, "run") == (1 if what == "a huge file" else None)
    assert read_claim(store, "run", 1) == {}
    assert not fetch_records(store, "run", tmp_path / "fetched", always=True)
    assert restore(store, "run", tmp_path / "fetched", [0]).step is None
    assert not (tmp_path / "fetched" / OPTIONS_FILE).exists()


@pytest.mark.parametrize("what", PLANTS)
def test_a_snapshot_with_what_is_no_file_of_ours_is_skipped_and_the_one_before_it_is_used(
    store: FolderStore, tmp_path: Path, what: str
) -> None:
    make_snapshot(tmp_path / "run", 6)
    assert Copier(store, Assignment("run", 1, tmp_path / "run", tmp_path / "run", (0,), 2), Pace(), "nonce").tick()
    plant(tmp_path / "store" / PLACE.replace("5", "6") / MANIFEST, PLANTS[what])
    assert restore(store, "run", tmp_path / "fetched", [0]).step == 5
    assert any("step-00000006/manifest.json" in line for line in store.odd)


@pytest.mark.parametrize("what", PLANTS)
def test_a_command_that_reads_a_store_ends_whatever_is_in_the_place_of_a_claim_and_says_what_it_skips(
    slipway: Slipway, store: FolderStore, tmp_path: Path, victim: Path, what: str
) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert slipway("status", f"file://{tmp_path}/store/run", **cache).code == 0
    plant(tmp_path / "store/run/claims/00000002.json", PLANTS[what])
    answer = slipway("status", f"file://{tmp_path}/store/run", **cache)
    assert answer.code == (78 if what == "a huge file" else 0), "a file counts as a claim, though nothing says of what"
    assert "slipway: " in answer.err
    assert "claims/00000002.json" in answer.err
    assert "so it is skipped" in answer.err


@pytest.mark.parametrize("what", PLANTS)
def test_what_others_put_into_a_run_directory_is_not_copied(
    store: FolderStore, tmp_path: Path, victim: Path, what: str
) -> None:
    run = tmp_path / "run"
    make_snapshot(run, 6)
    for name in (METRICS_FILE, OPTIONS_FILE, "snapshots/step-00000006/manifest.json"):
        plant(run / name, PLANTS[what])
    copier = Copier(store, Assignment("run", 1, run, run, (0,), 2), Pace(), "nonce")
    assert not copier.tick()
    assert store.read(RECORD) == b"{}", "as it was"
    if what != "a link to nothing":
        assert any(line.startswith(f"{run / METRICS_FILE} ") and "not copied" in line for line in store.odd)


@pytest.mark.parametrize("name", ["../../../escaped", "/tmp/escaped", "..", "", ".", "a\0b", MANIFEST])
def test_a_manifest_that_names_what_no_file_beside_it_can_be_is_skipped_with_a_line(tmp_path: Path, name: str) -> None:
    store = FakeStore()
    copy_run(store, tmp_path / "run")
    manifest = json.loads(store.objects[f"{PLACE}/{MANIFEST}"])
    manifest["files"][name] = manifest["files"]["model.safetensors"]
    store.objects[f"{PLACE}/{MANIFEST}"] = json.dumps(manifest).encode()
    store.objects[f"{PLACE}/{name}"] = store.objects[f"{PLACE}/model.safetensors"]
    found = restore(store, "run", tmp_path / "a/b/c/fetched", [0])
    assert found.step is None
    assert not [*tmp_path.rglob("*escaped")]
    assert [line for line in store.odd if "it names" in line and repr(name) in line] or name == MANIFEST


def test_what_a_bucket_has_in_the_place_of_a_claim_or_a_manifest_is_read_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore")
    with serve_google(google := Google()) as variables:
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value)
        store = open_store(parse_store(f"gs://{BUCKET}/jobs"))
        copy_run(store, tmp_path / "run")
        for name in (CLAIM, f"{PLACE}/{MANIFEST}"):
            google.objects[f"jobs/{name}"] = (bytes(LARGEST + 1), datetime.now(UTC))
        assert read_claim(store, "run", 1) == {}
        assert restore(store, "run", tmp_path / "fetched", [0]).step is None
    assert store.odd == {f"{name} has more than 16 MiB, so it is skipped" for name in (CLAIM, f"{PLACE}/{MANIFEST}")}


def test_a_claim_in_the_place_of_which_something_else_is_belongs_to_nobody(store: FolderStore, tmp_path: Path) -> None:
    plant(tmp_path / "store/run/claims/00000002.json", os.mkfifo)
    with pytest.raises(Exception, match="attempt 2 of run belongs to another launcher"):
        claim(store, "run", 2, {"nonce": "mine"})


LINKS = {  # whose is the link, whose the file, and whether it is read
    "of another user to ours": (OTHER, 0, False),
    "of another user to theirs": (OTHER, OTHER, True),
    "of ours to ours": (0, 0, True),
}


@pytest.mark.parametrize("case", LINKS)
@pytest.mark.parametrize("file", [True, False], ids=["the file", "its folder"])
def test_of_data_that_are_fetched_a_link_is_read_if_its_file_has_the_same_owner(
    slipway: Slipway, tmp_path: Path, case: str, file: bool
) -> None:
    if os.geteuid():
        pytest.skip("only root can act for another user")
    link, target, is_read = LINKS[case]
    folder = tmp_path / "nfs/corpus"
    (tmp_path / "nfs/blobs").mkdir(parents=True)
    folder.mkdir()
    (tmp_path / "nfs/blobs/1").write_bytes(SECRET)
    os.chown(tmp_path / "nfs/blobs/1", target, -1)
    (folder / "a.txt").symlink_to("../blobs/1")
    os.chown(folder / "a.txt", link, -1, follow_symlinks=False)
    asked = f"file://{folder}/a.txt" if file else f"file://{folder}"
    answer = slipway("data", "fetch", asked, "--out", "out")
    if file or is_read:  # what somebody typed is meant
        assert answer.code == 0, answer.err
        assert SECRET in (contents(Path("out")) or {"": Path("out").read_bytes()}).values()
    else:
        assert answer.code == 78
        assert "a.txt: a link to what is not a file of the link's owner" in answer.err
        assert not Path("out").exists()


@pytest.mark.parametrize("what", ["a pipe", "a link to a device"])
def test_data_with_a_pipe_or_a_device_are_refused(slipway: Slipway, tmp_path: Path, what: str) -> None:
    (tmp_path / "store/corpus").mkdir(parents=True)
    (tmp_path / "store/corpus/a.txt").write_text("a")
    plant(tmp_path / "store/corpus/b.txt", PLANTS[what])
    answer = slipway("data", "fetch", f"file://{tmp_path}/store/corpus", "--out", "out")
    assert answer.code == 78
    assert "b.txt" in answer.err


def test_folders_in_folders_without_end_do_not_end_a_listing_with_a_traceback(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path / "store/run")
    for _ in range(1500):
        Path("d").mkdir()
        os.chdir("d")
    assert CLAIM in store.list_objects("run/")
    assert any("lies too deep" in line for line in store.odd)
    with pytest.raises(StoreError, match="too deep"):
        store.find("run")


@pytest.mark.parametrize("where", ["the folder", "a file in it"])
def test_what_is_fetched_goes_through_no_link_that_others_put_there(tmp_path: Path, victim: Path, where: str) -> None:
    store, before = FakeStore({"data/a": b"content"}), contents(victim)
    files = find_files(store, "data")
    folder = tmp_path / f".out.fetching-{socket.gethostname()}"
    if where == "the folder":
        plant(folder, lambda path: path.symlink_to(victim))
    else:
        part = folder / hash_listing(files) / "parts" / hashlib.sha256(b"a").hexdigest()
        part.parent.mkdir(parents=True)
        plant(part, lambda path: path.symlink_to(victim / "secret"))
    with pytest.raises(OSError, match=r"link|Not a directory"):
        fetch_files(store, "s3://b/data", "data", files, tmp_path / "out", {}, pauses=())
    assert contents(victim) == before, "nothing was written or deleted"


@pytest.mark.parametrize(
    "odd",
    ["run/../x", "run//x", "run/./x", "run/claims//x", "run/a/../b", f"{PLACE}//x", f"{RECORD}/../x", "../x", "/x"],
)
def test_an_object_whose_name_is_no_path_hides_no_other_and_a_line_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: str
) -> None:
    pytest.importorskip("obstore")
    with serve_google(google := Google()) as variables:
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value)
        store = open_store(parse_store(f"gs://{BUCKET}/jobs"))
        copy_run(store, tmp_path / "run")
        there = store.list_objects("run/")
        google.objects[f"jobs/{odd}"] = (b"x", datetime.now(UTC))
        assert store.list_objects("run/") == there
        assert store.list_folders("") == ["run"]
        assert restore(store, "run", tmp_path / "fetched", [0]).step == 5
    assert all(f"jobs/{odd.rpartition('/')[0]}" in line and "so it is skipped" in line for line in store.odd)
    assert store.odd
