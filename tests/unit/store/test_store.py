"""Copies in a store: what is there is complete, what is replaced is deleted, and who was replaced touches nothing."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from fake_store import FakeStore, Fault, KilledError, calm, is_valid, make_snapshot, steps_in
from google_stand_in import BUCKET, Google, serve_google
from ports import take_port
from store_contract import CONTRACT

from slipway.protocol.files import RUN_FILE
from slipway.protocol.proxies import proxy_variable
from slipway.protocol.snapshots import MANIFEST, SUSPECT, newest_step
from slipway.store import open_store
from slipway.store.address import parse_store
from slipway.store.catalog import Catalog
from slipway.store.claims import SupersededAttemptError, claim, highest_claim
from slipway.store.copier import Assignment, Copier, CopyService
from slipway.store.folder import FolderStore
from slipway.store.layout import Location
from slipway.store.objects import MissingObjectError, ObjectStore, StoreError, StoreRefusedError, UnreachableError
from slipway.store.progress import read_progress
from slipway.store.records import fetch_records
from slipway.store.restore import restore
from slipway.store.retention import clean
from slipway.store.upload import DamagedError, Pace, VanishedError, upload

PACE = Pace(parallel=1, piece=16)  # one request after the other, so that a seed repeats what happened
SEED = 48


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
    """A stand-in for Google Cloud Storage, to which the variables lead."""
    pytest.importorskip("obstore")
    with serve_google(google := Google()) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield google


@pytest.fixture(params=["folder", "fake", "google"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "fake":
        return FakeStore()
    if request.param == "google":
        request.getfixturevalue("google")
        return open_store(parse_store(f"gs://{BUCKET}/jobs"))
    (tmp_path / "store").mkdir()
    return FolderStore(tmp_path / "store")


@pytest.mark.parametrize("rule", CONTRACT, ids=lambda rule: rule.__name__)
def test_every_store_keeps_the_contract(store: ObjectStore, rule) -> None:
    rule(store)


def test_google_is_asked_to_create_an_object_only_where_there_is_none(google: Google) -> None:
    store = open_store(parse_store(f"gs://{BUCKET}/jobs"))
    assert store.create("run/claims/1", b"mine")
    assert not store.create("run/claims/1", b"yours")
    store.write("run/claims/1", b"written over")
    assert google.conditions == ["0", "0"]
    assert [*google.objects] == ["jobs/run/claims/1"]


def test_another_bucket_or_token_of_google_is_refused(google: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreRefusedError, match="NoSuchBucket"):
        open_store(parse_store("gs://other")).list_objects("run/")
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "another")
    for ask in (lambda store: store.list_objects("run/"), lambda store: store.create("run/a", b"")):
        with pytest.raises(StoreRefusedError, match=r"401|privileges|credentials"):
            ask(open_store(parse_store(f"gs://{BUCKET}")))


@pytest.mark.parametrize(
    ("address", "variables", "says"),
    [
        ("az://test", {}, "Account must be specified"),
        ("az://test", {"AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_STORAGE_ACCOUNT_KEY": "no base64"}, "Invalid Access Key"),
        ("az://test", {"AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_STORAGE_ENDPOINT": "localhost"}, "AZURE_STORAGE_ENDPOINT=localhost has"),
        ("s3://test", {"AWS_ENDPOINT_URL": "localhost:9000"}, "AWS_ENDPOINT_URL=localhost:9000 has to begin with http://"),
        ("s3://test", {"AWS_ENDPOINT_URL": "http://[::1"}, "has to begin with http:// or https://, and to name a server"),
        ("s3://test", {"AWS_ENDPOINT_URL": "http://localhost:99999"}, "and to name a server"),
        ("s3://test", {"AWS_ENDPOINT_URL": "http://"}, "and to name a server"),
        ("s3://test", {"AWS_ENDPOINT_URL": "http://a b"}, "and to name a server"),
        ("s3://test", {"AWS_ACCESS_KEY_ID": "a\n", "AWS_SECRET_ACCESS_KEY": "b"}, "AWS_ACCESS_KEY_ID has a space or a line break"),
        ("az://test", {"AZURE_STORAGE_ACCOUNT_KEY": " a2V5"}, "AZURE_STORAGE_ACCOUNT_KEY has a space or a line break"),
        ("gs://test", {"GOOGLE_BASE_URL": "ftp://localhost"}, "has to begin with http://"),
        ("s3://test", {"AWS_ENDPOINT_URL": "http://me:hunter2@localhost:9000"}, "AWS_ENDPOINT_URL has to be the address of a server alone"),
        ("s3://test", {"AWS_ENDPOINT_URL_S3": "hunter2@localhost"}, "Credentials are set by AWS_ACCESS_KEY_ID and"),
        ("s3://test", {"AWS_ENDPOINT": "me:hunter2@localhost"}, "without a user, a password"),
        ("gs://test", {"GOOGLE_BASE_URL": "https://host/?key=hunter2"}, "GOOGLE_BASE_URL has to be the address of a server alone"),
        ("az://test", {"AZURE_STORAGE_ENDPOINT": "https://a.example/?sv=1&sig=hunter2"}, "AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN"),
        ("az://test", {"AZURE_ENDPOINT": "https://a.example/#hunter2"}, "without a user"),
        ("s3://test", {"AWS_CA_BUNDLE": "/nowhere.pem"}, "No such file"),
        ("s3://test", {"AWS_ACCESS_KEY_ID": "a"}, "Missing SecretAccessKey|SecretAccessKey"),
        ("gs://test", {"GOOGLE_APPLICATION_CREDENTIALS": "/nowhere.json"}, "nowhere"),
        ("gs://test", {"GOOGLE_SERVICE_ACCOUNT_KEY": "{"}, "service account|credential|EOF"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused_before_anything_is_asked(
    monkeypatch: pytest.MonkeyPatch, address: str, variables: dict[str, str], says: str
) -> None:
    pytest.importorskip("obstore")
    for name in [*os.environ]:
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StoreRefusedError, match=says) as error:
        open_store(parse_store(address))
    assert "hunter2" not in str(error.value)


def test_a_folder_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreRefusedError, match="mkdir"):
        FolderStore(tmp_path / "not-mounted")
    assert not (tmp_path / "not-mounted").exists()


def test_a_file_that_goes_while_a_folder_is_listed_is_left_out_and_a_link_to_nothing_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, walk = FolderStore(tmp_path), os.walk
    store.write("run/there", b"1")
    monkeypatch.setattr(
        os, "walk", lambda *words, **more: ((*one[:2], [*one[2], "gone"]) for one in walk(*words, **more))
    )
    assert [*store.find("run")] == [*store.list_objects("run")] == ["run/there"]
    (tmp_path / "run/gone").symlink_to("nowhere")
    with pytest.raises(MissingObjectError, match="gone is missing"):
        store.find("run")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("s3://bucket", ("s3", "bucket", "")),
        ("S3://my-bucket/some/path/", ("s3", "my-bucket", "some/path")),
        ("gs://a_b.c/x", ("gs", "a_b.c", "x")),
        ("az://container/runs", ("az", "container", "runs")),
        ("file:///mnt/nfs/runs", ("file", "", "/mnt/nfs/runs")),
    ],
)
def test_addresses_are_understood(text: str, parts: tuple[str, str, str]) -> None:
    assert parse_store(text) == parts
    assert parse_store(str(parse_store(text))) == parts


@pytest.mark.parametrize(
    "text",
    [
        "runs", "/mnt/runs", "s3:bucket", "s3:/bucket", "s3://", "s3:///runs", "s3://Bucket", "s3://b", "s3://bucket/a//b", "s3://bucket/../x",
        "s3://bucket?region=x", "s3://key:secret@bucket/x", "s3://bucket/a b", "hdfs://name/x", "https://bucket.s3.amazonaws.com/x",
        "file://runs", "file://host/runs", "file:///", "file:///mnt/../x", "az://-x", "gs://A",
    ],
)  # fmt: skip
def test_what_is_no_address_of_a_store_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"s3://BUCKET|needed, without|allowed|absolute"):
        parse_store(text)


@pytest.mark.parametrize(
    "text",
    [
        "s3://key:SECRET@bucket/x", "s3://key:SEC/SECRET@bucket/x", "s3://bucket/x?X-Amz-Signature=SECRET", "s3://minio:9000/bucket#SECRET",
        "gs://bucket?access_token=SECRET", "az://container@account.blob.core.windows.net/x", "az://container/x?sv=2022&sig=SECRET",
    ],
)  # fmt: skip
def test_an_address_with_a_key_a_host_or_parameters_is_refused_with_the_variables_for_them_and_not_repeated(
    text: str,
) -> None:
    with pytest.raises(ValueError, match=r"These are set by (AWS|GOOGLE|AZURE)_") as error:
        parse_store(text)
    assert "SECRET@" not in str(error.value)
    assert "=SECRET" not in str(error.value)


def test_a_key_behind_the_path_of_a_folder_is_not_repeated() -> None:
    with pytest.raises(ValueError, match=r"not 'x\?…'") as error:
        parse_store("file:///mnt/x?sig=SECRET")
    assert "SECRET" not in str(error.value)


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_where_the_machine_is_asked_in_vain_for_credentials_the_variables_for_them_are_named(scheme: str) -> None:
    exceptions = pytest.importorskip("obstore.exceptions")
    from slipway.store.cloud import CREDENTIALS, as_store_errors

    with (
        pytest.raises(
            StoreRefusedError, match=f"{CREDENTIALS[scheme]} are not set, and this machine has no credentials"
        ),
        as_store_errors(f"{scheme}://bucket"),
    ):
        raise exceptions.GenericError(
            "Generic error: Error performing PUT http://169.254.169.254/latest/api/token in 10s"
        )


def copier(store: ObjectStore, run: Path, attempt: int = 1, ranks: tuple[int, ...] = (0, 1), keep: int = 2) -> Copier:
    """The copier of a node, whose launcher has just begun an attempt."""
    run.mkdir(parents=True, exist_ok=True)
    (run / RUN_FILE).write_text(json.dumps({"workload": "gpt", "attempt": attempt}))
    to = Assignment("run", attempt, run, run, ranks, keep)
    return Copier(store, to, PACE, nonce=f"launcher-{attempt}-{ranks}")


def test_a_snapshot_that_is_copied_comes_back_as_it_was(store: ObjectStore, tmp_path: Path) -> None:
    folder = make_snapshot(tmp_path / "one", 500, size=100)
    assert copier(store, tmp_path / "one").tick()
    found = restore(store, "run", tmp_path / "two", [0])
    assert found.step == 500
    copy = tmp_path / "two/snapshots" / folder.name
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        path.name: path.read_bytes() for path in copy.iterdir()
    }
    assert restore(store, "run", tmp_path / "two", [0]).step is None, "nothing is fetched twice"
    assert restore(store, "run", tmp_path / "three", [1]).step is None, "the node of rank 0 passes it on"


def test_the_manifest_comes_last_and_data_go_in_pieces(tmp_path: Path) -> None:
    store = FakeStore()
    make_snapshot(tmp_path, 7, size=40)
    copier(store, tmp_path).tick()
    written = [name for kind, name in store.requests if kind in ("write", "create") and "snapshots" in name]
    assert written[-1] == "run/attempt-00000001/snapshots/step-00000007/manifest.json"
    assert [name for name in written if "model" in name] == [
        f"run/attempt-00000001/snapshots/step-00000007/model.safetensors/{number:05d}" for number in range(3)
    ]


def test_1000_uploads_that_are_interrupted_leave_nothing_invalid_lose_nothing_valid_and_are_cleaned(
    tmp_path: Path,
) -> None:
    print(f"seed {SEED}")
    dice, store, attempt, complete, fell = random.Random(SEED), FakeStore(), 1, list[int](), 0
    claim(store, "run", attempt, {"nonce": "1"})
    for step in itertools.count(1):
        if fell == 1000:
            break
        folder = make_snapshot(tmp_path, step, attempt, size=dice.choice((5, 16, 40)))
        Fault(store, dice, dice.randint(1, 8))
        try:
            upload(store, "run", folder, Location(attempt, step), PACE)
        except (KilledError, UnreachableError):
            fell += 1
        calm(store)
        if f"run/attempt-{attempt:08d}/snapshots/step-{step:08d}/{MANIFEST}" in store.objects:
            complete.append(step)
        catalog = Catalog(store, "run")
        catalog.refresh()
        sets = list(catalog.sets())
        assert all(is_valid(store, each[0]) for each in sets)
        assert [each[0].place.step for each in sets] == complete[::-1]
        if complete[-1:] == [step] and dice.random() < 0.3:
            clean(store, "run", attempt, 2, catalog)
            complete = complete[-2:]
            assert steps_in(store) == complete[::-1]
        if dice.random() < 0.1:  # another launcher
            attempt += 1
            claim(store, "run", attempt, {"nonce": str(attempt)})
    attempt += 1
    claim(store, "run", attempt, {"nonce": "last"})
    upload(store, "run", make_snapshot(tmp_path, 9999, attempt), Location(attempt, 9999), PACE)
    catalog.refresh()
    clean(store, "run", attempt, 1, catalog)
    left = [name for name in store.objects if "/claims/" not in name]
    assert len(left) == 5, left  # three pieces, the state and the manifest
    assert all(name.startswith(f"run/attempt-{attempt:08d}/snapshots/step-00009999/") for name in left)


def test_a_frozen_launcher_that_wakes_after_its_replacement_took_over_overwrites_and_deletes_nothing(
    tmp_path: Path,
) -> None:
    for number in range(1, 60):
        store, old_run, new_run = FakeStore(), tmp_path / f"{number}/old", tmp_path / f"{number}/new"
        for step in (1, 2, 3):
            make_snapshot(old_run, step)
            copier(store, old_run).tick()
        store.requests.clear()
        there: dict[str, bytes] = {}
        frozen_at = ""

        def take_over(
            kind: str,
            name: str,
            store: FakeStore = store,
            new_run: Path = new_run,
            number: int = number,
            there: dict[str, bytes] = there,
        ) -> None:
            nonlocal frozen_at
            if len(store.requests) < number or frozen_at:
                return
            frozen_at = kind
            restore(store, "run", new_run, [0])
            make_snapshot(new_run, 3_000, attempt=2)
            assert copier(store, new_run, attempt=2).tick()
            there.update(store.objects)

        store.before = take_over
        make_snapshot(old_run, 4)
        old = copier(store, old_run)
        with suppress(SupersededAttemptError):
            old.tick()
        calm(store)
        if not frozen_at:
            assert number > 15, "it was frozen at each of its requests"
            break
        gone = {name for name in there if store.objects.get(name) != there[name]}
        assert frozen_at == "delete" or not gone, (number, frozen_at, gone)
        assert len(gone) <= 1, "one request that was on its way cannot be called back"
        assert steps_in(store)[0] == 3_000
        with pytest.raises(SupersededAttemptError, match="attempt 2 has continued run"):
            copier(store, old_run).tick()


def test_two_launchers_that_claim_the_same_attempt_cannot_both_have_it() -> None:
    store = FakeStore()
    claim(store, "run", 1, {"nonce": "a", "host": "one"})
    claim(store, "run", 1, {"nonce": "a", "host": "one"})  # the answer to the first was lost
    with pytest.raises(SupersededAttemptError, match="on one"):
        claim(store, "run", 1, {"nonce": "b", "host": "two"})
    claim(store, "run", 2, {"nonce": "b", "host": "two"})
    assert highest_claim(store, "run") == 2


def test_the_order_of_snapshots_is_by_attempt_then_by_step(tmp_path: Path) -> None:
    store = FakeStore()
    make_snapshot(tmp_path / "one", 600)
    copier(store, tmp_path / "one").tick()
    make_snapshot(tmp_path / "two", 500, attempt=2)
    copier(store, tmp_path / "two", attempt=2, keep=3).tick()
    assert steps_in(store) == [500, 600], "attempt 2 continued from an earlier step"


def test_as_many_snapshots_are_kept_as_asked_and_those_of_earlier_attempts_count(tmp_path: Path) -> None:
    store = FakeStore()
    for step in (1, 2, 3):
        make_snapshot(tmp_path, step)
        copier(store, tmp_path, keep=2).tick()
    assert steps_in(store) == [3, 2]
    later = copier(store, tmp_path, attempt=2, keep=2)
    later.tick()
    make_snapshot(tmp_path, 4, attempt=2)
    later.tick()
    assert steps_in(store) == [4, 3]


def set_aside(folder: Path) -> None:
    """As a training does whose replays have found a rank that computes wrongly."""
    folder.rename(folder.with_name(f"{SUSPECT}{folder.name}"))


def test_no_job_resumes_from_what_the_training_has_set_aside_and_the_step_is_copied_again(
    store: ObjectStore, tmp_path: Path
) -> None:
    run = tmp_path / "one"
    own = copier(store, run)
    for step in (5, 10):
        folder = make_snapshot(run, step)
        assert own.tick()
    set_aside(folder)
    found = restore(store, "run", run, [0])
    assert (found.step, found.newest) == (None, 5), "this disk knows it before the store does"
    assert found.skipped == ("step 10 was set aside on this disk, since it may contain wrong numbers",)
    assert not own.tick()
    assert steps_in(store) == [5]
    assert (own.progress.step, own.copied) == (5, 5)
    assert restore(store, "run", tmp_path / "two", [0]).step == 5
    again = make_snapshot(run, 10, size=20)
    assert own.tick()
    assert steps_in(store) == [10, 5]
    later = copier(store, run, attempt=2)
    assert not later.tick()
    assert steps_in(store) == [10, 5], "what has the place of the suspect stays"
    assert restore(store, "run", tmp_path / "two", [0]).step == 10
    copy = tmp_path / "two/snapshots" / again.name / "model.safetensors"
    assert copy.read_bytes() == (again / "model.safetensors").read_bytes()
    assert (run / f"snapshots/{SUSPECT}step-00000010/model.safetensors").is_file()


def test_a_later_attempt_deletes_copies_that_an_earlier_one_could_not(tmp_path: Path) -> None:
    store, run = FakeStore(), tmp_path / "run"
    for step in (5, 10):
        folder = make_snapshot(run, step)
        copier(store, run).tick()
    set_aside(folder)
    later = copier(store, run, attempt=2)
    assert not later.tick()
    assert steps_in(store) == [5]
    assert restore(store, "run", tmp_path / "two", [0]).step == 5


def test_a_snapshot_that_is_set_aside_while_it_is_copied_does_not_stay(tmp_path: Path) -> None:
    store, run = FakeStore(), tmp_path / "run"
    own = copier(store, run)
    make_snapshot(run, 5)
    own.tick()
    folder = make_snapshot(run, 10)

    def set_aside_now(kind: str, name: str) -> None:
        if kind == "create" and name.endswith(MANIFEST):
            set_aside(folder)

    store.before = set_aside_now
    assert own.tick()
    calm(store)
    assert steps_in(store) == [10, 5]
    assert not own.tick()
    assert steps_in(store) == [5]


def test_where_nothing_may_be_deleted_others_are_copied_and_the_reason_is_reported(tmp_path: Path) -> None:
    store, run = FakeStore(), tmp_path / "run"
    own = copier(store, run, keep=3)
    for step in (5, 10):
        folder = make_snapshot(run, step)
        own.tick()
    set_aside(folder)
    make_snapshot(run, 15)

    def refuse(kind: str, name: str) -> None:
        if kind == "delete":
            raise StoreRefusedError("AccessDenied")

    store.before = refuse
    assert own.tick()
    with pytest.raises(StoreRefusedError):
        own.tick()
    calm(store)
    assert not own.tick()
    assert steps_in(store) == [15, 5]


def test_a_step_that_the_same_attempt_reaches_again_replaces_its_copy_the_manifest_first(tmp_path: Path) -> None:
    store, run = FakeStore(), tmp_path / "run"
    own = copier(store, run)
    for step in (5, 10):
        folder = make_snapshot(run, step)
        own.tick()
    shutil.rmtree(folder)
    make_snapshot(run, 10, size=20)
    store.requests.clear()
    assert own.tick()
    changes = [name for kind, name in store.requests if kind in ("write", "create", "delete") and "/snapshots/" in name]
    assert changes[0] == changes[-1] == "run/attempt-00000001/snapshots/step-00000010/manifest.json"
    assert (steps_in(store), own.progress.step) == ([10, 5], 10)
    catalog = Catalog(store, "run")
    catalog.refresh()
    assert all(is_valid(store, each[0]) for each in catalog.sets())


def test_the_newest_snapshot_without_wrong_numbers_is_kept_as_far_as_the_newest_of_all_knows(tmp_path: Path) -> None:
    store = FakeStore()
    for step, clean_until, kept in (
        (5, 0, [5]),
        (10, 8, [10, 5]),
        (15, 8, [15, 5]),
        (20, 8, [20, 5]),
        (25, 21, [25, 20]),
    ):
        make_snapshot(tmp_path, step, clean=clean_until)
        copier(store, tmp_path, keep=1).tick()
        assert steps_in(store) == kept


def test_a_slow_store_gets_the_newest_snapshot_and_none_twice(tmp_path: Path) -> None:
    store = FakeStore()
    for step in (1, 2, 3):
        make_snapshot(tmp_path, step)
    own = copier(store, tmp_path)
    assert own.tick()
    assert steps_in(store) == [3]
    assert not own.tick()
    again = copier(store, tmp_path, attempt=2)
    assert not again.tick(), "a new launcher knows what is there"
    assert again.progress.step == 3


def test_a_snapshot_that_is_deleted_while_it_is_copied_is_copied_whole(tmp_path: Path) -> None:
    store, folder = FakeStore(), make_snapshot(tmp_path, 1)
    claim(store, "run", 1, {"nonce": ""})

    def delete(kind: str, name: str) -> None:
        if kind == "write":
            for path in folder.iterdir():
                path.unlink()

    store.before = delete
    upload(store, "run", folder, Location(1, 1), PACE)
    assert steps_in(store) == [1]
    with pytest.raises(VanishedError):
        upload(store, "run", folder, Location(1, 2), PACE)


def test_a_snapshot_that_is_damaged_on_the_disk_is_not_copied(tmp_path: Path) -> None:
    store, folder = FakeStore(), make_snapshot(tmp_path, 1)
    claim(store, "run", 1, {"nonce": ""})
    (folder / "model.safetensors").write_bytes(b"x" * 40)
    with pytest.raises(DamagedError, match=r"model\.safetensors"):
        upload(store, "run", folder, Location(1, 1), PACE)
    own = copier(store, tmp_path / "other")
    make_snapshot(tmp_path / "other", 2)
    damaged = make_snapshot(tmp_path / "other", 3)
    (damaged / "model.safetensors").write_bytes(b"x" * 40)
    own.nonce = ""
    assert not own.tick()
    assert "step 3 is not copied" in own.damaged
    assert own.tick()
    assert steps_in(store) == [2]


@pytest.mark.parametrize("harm", ["flip", "cut", "lose", "torn manifest"])
def test_what_is_damaged_in_the_store_is_skipped(tmp_path: Path, harm: str) -> None:
    store = FakeStore()
    for step in (1, 2):
        make_snapshot(tmp_path / "one", step)
        copier(store, tmp_path / "one").tick()
    piece = "run/attempt-00000001/snapshots/step-00000002/model.safetensors/00001"
    if harm == "flip":
        store.objects[piece] = b"x" * 16
    elif harm == "cut":
        store.objects[piece] = b"x"
    elif harm == "lose":
        del store.objects[piece]
    else:
        store.objects[piece.replace("model.safetensors/00001", MANIFEST)] = b"{"
    found = restore(store, "run", tmp_path / "two", [0])
    assert newest_step(tmp_path / "two") == 1
    assert found.step == 1
    assert [*(tmp_path / "two/snapshots").glob(".*")] == []
    assert bool(found.skipped) == (harm == "flip")


def test_a_snapshot_that_was_fetched_is_as_old_as_its_copy_and_not_as_the_fetch(tmp_path: Path) -> None:
    store = FakeStore()
    began = store.now
    make_snapshot(tmp_path / "one", 5)
    store.after = lambda kind, name: setattr(store, "now", store.now + 60)  # each request takes a minute
    copier(store, tmp_path / "one").tick()
    found = restore(store, "run", tmp_path / "two", [0])
    assert (found.newest, found.taken) == (5, began + 60), "the upload began after the claim"
    times = {path.stat().st_mtime for path in (tmp_path / "two/snapshots/step-00000005").iterdir()}
    assert times == {began + 60}
    own = copier(store, tmp_path / "two", attempt=2)
    own.tick()
    assert (own.progress.step, own.progress.taken) == (5, began + 60)
    assert restore(store, "run", tmp_path / "two", [0])[:2] == (None, 0), "it is not fetched again"


def test_the_age_of_a_copy_is_known_where_this_disk_does_not_have_the_snapshot(tmp_path: Path) -> None:
    store = FakeStore()
    for step in (5, 6):
        make_snapshot(tmp_path / "one", step)
    own = copier(store, tmp_path / "one")
    own.tick()
    of_disk = own.progress.taken
    assert of_disk == (tmp_path / "one/snapshots/step-00000006" / MANIFEST).stat().st_mtime
    claim(store, "run", 2, {"nonce": "2"})
    upload(store, "run", make_snapshot(tmp_path / "two", 7, attempt=2), Location(2, 7), PACE)
    own = copier(store, tmp_path / "one", attempt=3)
    own.tick()
    assert (own.progress.step, own.progress.taken) == (7, store.now)


def test_a_snapshot_that_is_deleted_while_its_age_is_asked_for_is_skipped(tmp_path: Path) -> None:
    store = FakeStore()
    for step in (5, 6):
        make_snapshot(tmp_path / "one", step)
        copier(store, tmp_path / "one").tick()

    def lose(kind: str, name: str) -> None:
        if kind == "written" and "step-00000006" in name:
            store.objects.pop(name, None)

    store.before = lose
    found = restore(store, "run", tmp_path / "two", [0])
    assert (found.step, found.newest) == (5, 5)
    assert "step 6: " in found.skipped[0]


def test_the_disk_counts_where_it_has_what_the_store_has_or_more(tmp_path: Path) -> None:
    store = FakeStore()
    make_snapshot(tmp_path / "one", 5)
    copier(store, tmp_path / "one").tick()
    newer = tmp_path / "newer"
    make_snapshot(newer, 6)
    assert restore(store, "run", newer, [0]).step is None
    damaged = tmp_path / "damaged"
    (make_snapshot(damaged, 6) / "model.safetensors").write_bytes(b"x" * 40)
    assert restore(store, "run", damaged, [0]).step == 5
    earlier = tmp_path / "earlier"
    make_snapshot(earlier, 9, attempt=1)
    copier(store, tmp_path / "one", attempt=2)
    claim(store, "run", 2, {"nonce": "2"})
    upload(store, "run", make_snapshot(tmp_path / "two", 7, attempt=2), Location(2, 7), PACE)
    assert restore(store, "run", earlier, [0]).step == 7, "attempt 2 is later than step 9 of attempt 1"


def test_parts_of_a_snapshot_count_together_and_each_node_copies_and_fetches_its_own(tmp_path: Path) -> None:
    store, parts = FakeStore(), [0, 1, 0, 1]  # two nodes with two ranks each, which hold the same two parts
    for node in ("one", "two"):
        for part in (0, 1):
            make_snapshot(tmp_path / node, 5, part=part, parts=parts)
    first, second = copier(store, tmp_path / "one", ranks=(0, 1)), copier(store, tmp_path / "two", ranks=(2, 3))
    assert not second.tick(), "nobody has claimed the attempt"
    assert first.tick()
    assert steps_in(store) == [], "the other part is missing"
    assert first.tick()
    assert steps_in(store) == [5]
    assert not second.tick(), "a part is copied by the node of its first rank"
    assert (first.copied, first.newest, second.copied, second.newest) == (5, 5, None, None)
    assert restore(store, "run", tmp_path / "new", [2, 3]).step == 5
    assert newest_step(tmp_path / "new") == 5
    assert len([*(tmp_path / "new/snapshots").glob("part-*/step-*")]) == 1


def test_nodes_of_different_speed_copy_parts_of_the_same_step(tmp_path: Path) -> None:
    store, parts = FakeStore(), [0, 1]
    for node, part in (("one", 0), ("two", 1)):
        make_snapshot(tmp_path / node, 5, part=part, parts=parts)
    first, second = copier(store, tmp_path / "one", ranks=(0,)), copier(store, tmp_path / "two", ranks=(1,))
    assert first.tick()
    make_snapshot(tmp_path / "two", 6, part=1, parts=parts)
    assert second.tick()
    assert steps_in(store) == [5]
    assert first.progress.step is None
    first.clock = lambda: 1e12  # the next look at what other launchers did
    assert not first.tick()
    assert first.progress.step == 5


def test_records_are_copied_and_come_back_unless_the_disk_has_later_ones(tmp_path: Path) -> None:
    store, one = FakeStore(), tmp_path / "one"
    own = copier(store, one)
    (one / "metrics.jsonl").write_text('{"step": 1}\n')
    own.tick()
    (one / "outcome.json").write_text('{"word": "finished"}')
    (one / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    own.finish()
    assert fetch_records(store, "run", tmp_path / "two")
    assert (tmp_path / "two/metrics.jsonl").read_text() == (one / "metrics.jsonl").read_text()
    assert (tmp_path / "two/outcome.json").read_text() == '{"word": "finished"}'
    assert json.loads((tmp_path / "two/run.json").read_text()) == {"workload": "gpt", "attempt": 1}
    (tmp_path / "two/metrics.jsonl").write_text("later")
    assert not fetch_records(store, "run", tmp_path / "two")
    assert (tmp_path / "two/metrics.jsonl").read_text() == "later"


def test_a_store_that_fails_is_tried_again_from_where_it_was(tmp_path: Path) -> None:
    store, own = FakeStore(), copier(FakeStore(), tmp_path)
    own = copier(store, tmp_path)
    make_snapshot(tmp_path, 1)
    dice, failed = random.Random(SEED), 0
    for number in range(1, 40):
        Fault(store, dice, number)
        store.after = lambda kind, name: None
        try:
            own.tick()
        except (StoreError, KilledError):
            failed += 1
        calm(store)
    assert failed
    assert not own.tick()
    assert steps_in(store) == [1]


def test_the_rate_is_limited_over_all_requests() -> None:
    now, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    pace = Pace(limit=10e6, clock=lambda: now[0], sleep=sleep)
    assert pace.piece == 10_000_000
    for _ in range(5):
        pace.wait(pace.piece)
    assert sum(slept) == pytest.approx(4.0)
    assert Pace().piece == 64 << 20
    assert Pace(limit=1e3).piece == 4 << 20


def test_what_is_stopped_copies_the_newest_and_gives_up_an_older_one(tmp_path: Path) -> None:
    store = FakeStore()
    own = copier(store, tmp_path)
    make_snapshot(tmp_path, 1)

    def newer(kind: str, name: str) -> None:
        if kind == "write" and not (tmp_path / "snapshots/step-00000002").exists():
            make_snapshot(tmp_path, 2)
            own.finishing = lambda: True

    store.before = newer
    assert not own.tick()
    own.finish()
    assert steps_in(store) == [2]
    assert own.newest == 2


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Server returned non-2xx status code: 403 Forbidden: <Code>SignatureDoesNotMatch</Code>", StoreRefusedError),
        ("Server returned non-2xx status code: 401 Unauthorized", StoreRefusedError),
        ("Server returned non-2xx status code: 404 Not Found: <Code>NoSuchBucket</Code>", StoreRefusedError),
        ("Error performing PUT http://169.254.169.254/latest/api/token in 10s, after 5 retries", StoreRefusedError),
        ("Server returned non-2xx status code: 503 Service Unavailable: <Code>SlowDown</Code>", UnreachableError),
        ("Server returned non-2xx status code: 404 Not Found: <!DOCTYPE HTML><html>", StoreRefusedError),
        ("Server returned non-2xx status code: 400 Bad Request (AuthorizationHeaderMalformed)", StoreRefusedError),
        ("Server returned non-2xx status code: 400 Bad Request: <Code>RequestTimeout</Code>", UnreachableError),
        ("Server returned non-2xx status code: 409 Conflict: <Code>OperationAborted</Code>", UnreachableError),
        ("Server returned non-2xx status code: 429 Too Many Requests", UnreachableError),
        ("Server returned non-2xx status code: 501 Unsupported method ('PUT')", StoreRefusedError),
        ("Received redirect without LOCATION status code: 307", StoreRefusedError),
        ("HTTP error: error sending request", UnreachableError),
        ("HTTP error: builder error", StoreRefusedError),
    ],
)
def test_an_answer_of_a_bucket_is_final_or_worth_another_try(said: str, kind: type[StoreError]) -> None:
    exceptions = pytest.importorskip("obstore.exceptions")
    from slipway.store.cloud import as_store_errors

    with pytest.raises(kind, match=r"s3://bucket: .*Generic S3 error"), as_store_errors("s3://bucket"):
        raise exceptions.GenericError(f"Generic S3 error: {said}\n\nDebug source:\nGeneric {{}}")


@pytest.mark.parametrize(
    ("variables", "url", "variable"),
    [
        ({}, "https://host", ""),
        ({"HTTPS_PROXY": "http://p:1"}, "https://host", "HTTPS_PROXY"),
        ({"HTTPS_PROXY": "http://p:1"}, "http://host", ""),
        ({"http_proxy": "p:1", "ALL_PROXY": "q:1"}, "http://host", "http_proxy"),
        ({"http_proxy": "p:1", "all_proxy": "socks5://q:1"}, "https://host", "all_proxy"),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "*"}, "https://host", ""),
        ({"HTTPS_PROXY": "http://p:1", "no_proxy": "a, *"}, "https://10.0.0.7", ""),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "a,.example.com"}, "https://b.example.com", ""),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "ample.com"}, "https://b.example.com", "HTTPS_PROXY"),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8"}, "https://10.0.0.7", ""),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8"}, "https://11.0.0.7", "HTTPS_PROXY"),
    ],
)
def test_the_variable_with_the_proxy_of_a_request_is_known(variables: dict[str, str], url: str, variable: str) -> None:
    scheme, _, host = url.partition("://")
    assert proxy_variable(scheme, host, variables) == variable


def test_a_proxy_that_does_not_answer_is_named_without_its_password_and_no_proxy_is_heeded(
    google: Google, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = pytest.importorskip("slipway.store.cloud")
    monkeypatch.setattr(cloud, "RETRIES", {"max_retries": 0})
    monkeypatch.setenv("HTTP_PROXY", f"http://me:hunter2@127.0.0.1:{take_port()}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(
        UnreachableError, match=r"through the proxy in HTTP_PROXY: .*set NO_PROXY=127\.0\.0\.1 if"
    ) as error:
        open_store(parse_store(f"gs://{BUCKET}/runs")).list_folders("")
    assert "hunter2" not in str(error.value)
    monkeypatch.setenv("NO_PROXY", "*")
    assert open_store(parse_store(f"gs://{BUCKET}/runs")).list_folders("") == []


@pytest.mark.parametrize("kind", ["external_account", "impersonated_service_account", "gdch_service_account"])
def test_a_file_of_google_that_cannot_be_used_is_named_with_the_kinds_that_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    pytest.importorskip("obstore")
    (tmp_path / "key.json").write_text(json.dumps({"type": kind, "private_key": "hunter2"}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    says = "file of GOOGLE_APPLICATION_CREDENTIALS has to be of the type service_account or authorized_user"
    with pytest.raises(StoreRefusedError, match=says) as error:
        open_store(parse_store("gs://test"))
    assert "hunter2" not in str(error.value)


def test_only_an_object_that_is_read_can_be_missing() -> None:
    pytest.importorskip("obstore")
    from slipway.store.cloud import as_store_errors

    with pytest.raises(MissingObjectError), as_store_errors("s3://bucket", reads=True):
        raise FileNotFoundError(
            "Object at location run/x not found: status code: 404 Not Found: <Code>NoSuchKey</Code>"
        )
    with pytest.raises(StoreRefusedError), as_store_errors("s3://bucket", reads=True):
        raise FileNotFoundError(
            "Object at location run/x not found: status code: 404 Not Found: <Code>NoSuchBucket</Code>"
        )
    with pytest.raises(StoreRefusedError), as_store_errors("s3://bucket"):
        raise FileNotFoundError(
            "Object at location run/x not found: status code: 404 Not Found: <Code>NoSuchKey</Code>"
        )


@pytest.mark.parametrize(
    "said",
    [
        "Generic S3 error: GET http://me:hunter2@host:9/b/x - Server returned non-2xx status code: 403 Forbidden: ",
        "Generic Azure error: PUT https://a.blob.core.windows.net/c/x?sv=2022-11-02&sig=hunter2 status code: 507",
        "Generic GCS error: GET https://host/b?X-Goog-Signature=hunter2&x=1 in 1s - error sending request",
        "Generic S3 error: error sending request: proxy http://me:hunter2@proxy:3128 refused",
        f"Generic S3 error: {'x' * 145}http://me:hunter2@host/{'y' * 300}",
    ],
)
def test_what_a_library_says_is_shown_without_the_secrets_in_it(said: str) -> None:
    exceptions = pytest.importorskip("obstore.exceptions")
    from slipway.store.cloud import as_store_errors

    kinds = (exceptions.GenericError, exceptions.PermissionDeniedError, OSError, FileNotFoundError)
    for kind in (*kinds, type("PanicException", (BaseException,), {})):
        with pytest.raises(StoreError, match=r"^s3://bucket: ") as error, as_store_errors("s3://bucket"):
            raise kind(said)
        assert "hunter2" not in str(error.value)


def test_a_library_that_panics_is_an_answer_like_another() -> None:
    pytest.importorskip("obstore")
    from slipway.store.cloud import as_store_errors

    panic = type("PanicException", (BaseException,), {})
    with pytest.raises(StoreRefusedError, match="s3://bucket: InvalidUri"), as_store_errors("s3://bucket"):
        raise panic("InvalidUri")
    with pytest.raises(KeyboardInterrupt), as_store_errors("s3://bucket"):
        raise KeyboardInterrupt


def test_the_status_and_the_code_of_an_answer_are_shown_however_long_the_rest_is() -> None:
    exceptions = pytest.importorskip("obstore.exceptions")
    from slipway.store.cloud import as_store_errors

    said = f"Generic S3 error: PUT http://host/{'x' * 400} status code: 507: <?xml?><Error><Code>StorageFull</Code></Error>"
    with (
        pytest.raises(UnreachableError, match=r"^s3://bucket: Generic S3 error: PUT .*….*: 507 \(StorageFull\)$"),
        as_store_errors("s3://bucket"),
    ):
        raise exceptions.GenericError(said)


@pytest.mark.parametrize("has_disk", [False, True])
def test_right_after_a_fetch_the_age_of_the_copy_is_known_though_the_store_answers_no_more(
    tmp_path: Path, has_disk: bool
) -> None:
    (tmp_path / "store").mkdir()
    store, run = FolderStore(tmp_path / "store"), tmp_path / "run"
    make_snapshot(tmp_path / "gone", 5)
    copier(store, tmp_path / "gone").tick()
    for path in (tmp_path / "store").rglob("*"):
        os.utime(path, (1_795_000_000.0,) * 2)
    if has_disk:
        make_snapshot(run, 6)
    service = CopyService(f"file://{tmp_path}/store", 0.0, 1)
    service.do_restore({"run": "run", "path": str(run), "ranks": [0]})
    (tmp_path / "store").rename(tmp_path / "away")
    (run / RUN_FILE).write_text('{"workload": "gpt", "attempt": 2}')
    service.do_copy({"run": "run", "attempt": 2, "path": str(run), "node": str(run), "ranks": [0], "keep": 2})
    service._tick()
    record = read_progress(run)
    assert (record.store, record.step, record.taken) == (f"file://{tmp_path}/store/run", 5, 1_795_000_000.0)
    assert record.describe(1_795_003_600.0).endswith("is of step 5, 3600 s old")
    assert "there is no folder" in record.error


def test_after_copies_that_succeeded_at_the_end_no_error_is_reported(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    make_snapshot(tmp_path / "run", 5)
    (tmp_path / "run" / RUN_FILE).write_text('{"workload": "gpt", "attempt": 1}')
    service = CopyService(f"file://{tmp_path}/store", 0.0, 1)
    paths = {"path": str(tmp_path / "run"), "node": str(tmp_path / "run")}
    service.do_copy({"run": "job", "attempt": 1, **paths, "ranks": [0], "keep": 2})
    (tmp_path / "store").rename(tmp_path / "away")
    service._tick()
    record = tmp_path / "run/store.json"
    assert "there is no folder" in json.loads(record.read_text())["error"]
    (tmp_path / "away").rename(tmp_path / "store")
    assert service.do_finish({}) == {"step": 5, "newest": 5, "failure": ""}
    assert (json.loads(record.read_text())["step"], json.loads(record.read_text())["error"]) == (5, "")


@pytest.mark.parametrize(
    ("error", "new", "known"),
    [(StoreRefusedError("AccessDenied"), "refused", None), (UnreachableError("507"), None, None), (None, None, None)],
)
def test_who_may_only_read_a_store_begins_no_run_there_and_may_resume_one(
    tmp_path: Path, error: StoreError | None, new: str | None, known: str | None
) -> None:
    store, service = FakeStore(), CopyService(f"file://{tmp_path}", 0.0, 1)
    copier(store, tmp_path / "run").tick()
    service._store = store

    def refuse(kind: str, name: str) -> None:
        if error and kind in ("write", "create"):
            raise error

    store.before = refuse
    for run in ("new", "-", ""):
        assert service._answer({"do": "look", "run": run, "workload": "vision"}).get("kind") == new
    assert service._answer({"do": "look", "run": "run"}).get("kind") == known
    assert service._answer({"do": "look", "run": "", "workload": "gpt"})["run"] == "run"


class Forgetful(FakeStore):
    """A server that takes the header If-None-Match and ignores it."""

    def create(self, name: str, content: bytes) -> bool:
        self.write(name, content)
        return True


@pytest.mark.parametrize("run", ["new", "run"])
def test_a_store_that_creates_an_object_twice_is_refused_before_anything_begins(tmp_path: Path, run: str) -> None:
    for store, kind in ((Forgetful(), "refused"), (FakeStore(), None)):
        service = CopyService(f"file://{tmp_path}", 0.0, 1)
        service._store = store
        claim(store, "run", 1, {"nonce": "a"})
        for _ in range(2):
            answer = service._answer({"do": "look", "run": run})
            assert answer.get("kind") == kind
            assert kind is None or "ignores If-None-Match" in answer["error"]


@pytest.mark.parametrize(
    ("bulk", "single", "error"),
    [
        (501, 204, None),
        (405, 204, None),
        (501, 404, None),
        (501, 403, StoreRefusedError),
        (405, 503, UnreachableError),
        (403, 204, StoreRefusedError),
    ],
)
def test_where_a_server_knows_no_request_for_several_objects_each_is_deleted_by_its_own(
    monkeypatch: pytest.MonkeyPatch, bulk: int, single: int, error: type[StoreError] | None
) -> None:
    cloud = pytest.importorskip("slipway.store.cloud")
    monkeypatch.setattr(cloud, "RETRIES", {"max_retries": 0, "retry_timeout": timedelta(seconds=10)})
    asked: list[tuple[str, str]] = []
    with serve_deletes(asked, bulk, single) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        store = open_store(parse_store("s3://bucket/jobs"))
        for name in ("run/a", "run/b"):
            if error is None:
                store.delete([name])
                continue
            with pytest.raises(error) as caught:
                store.delete([name])
            assert "Signature" not in str(caught.value)
    assert [method for method, _ in asked].count("POST") == (1 if bulk != 403 else 2), "it is remembered"
    deleted = [path for method, path in asked if method == "DELETE"]
    assert deleted == ([] if bulk == 403 else ["/bucket/jobs/run/a", "/bucket/jobs/run/b"])


@contextmanager
def serve_deletes(asked: list[tuple[str, str]], bulk: int, single: int) -> Iterator[dict[str, str]]:
    """A server that answers deletes so, and the variables that lead to it."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self._answer(bulk)

        def do_DELETE(self) -> None:
            self._answer(single)

        def _answer(self, status: int) -> None:
            asked.append((self.command, self.path.partition("?")[0]))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        keys = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key"}
        yield keys | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}"}
        server.shutdown()


def test_snapshots_that_may_not_be_deleted_are_reported_as_long_as_they_are_there_and_copies_continue(
    tmp_path: Path,
) -> None:
    run, store, service = tmp_path / "run", FakeStore(), CopyService(f"file://{tmp_path}", 0.0, 1)
    service._store = store
    run.mkdir()
    (run / RUN_FILE).write_text('{"workload": "gpt", "attempt": 1}')
    service.do_copy({"run": "run", "attempt": 1, "path": str(run), "node": str(run), "ranks": [0], "keep": 1})

    def refuse(kind: str, name: str) -> None:
        if kind == "delete":
            raise StoreRefusedError("AccessDenied")

    store.before = refuse
    for step in (1, 2, 3):
        make_snapshot(run, step)
        for _ in range(3):
            service._tick()
            assert read_progress(run).error == ("AccessDenied" if step > 1 else "")
        assert steps_in(store)[0] == read_progress(run).step == step
    service._finishing.set()  # as the request does that comes before
    assert service.do_finish({}) == {"step": 3, "newest": 3, "failure": ""}, "the end does not wait for it"
    service._finishing.clear()
    calm(store)
    service._tick()
    assert read_progress(run).error == ""
    assert steps_in(store) == [3]


def test_a_clock_that_is_set_back_does_not_end_the_copies_of_metrics(tmp_path: Path) -> None:
    store, now = FakeStore(), [1_795_000_000.0]
    own = copier(store, tmp_path / "run")
    own.clock = lambda: now[0]
    for number, seconds in enumerate((0.0, -86_400.0, 61.0)):
        (tmp_path / "run/metrics.jsonl").write_text(f'{{"step": {number}}}\n' * (number + 1))
        now[0] += seconds
        own.tick()
        assert store.objects["run/attempt-00000001/record/metrics.jsonl"].count(b"\n") == number + 1


def test_the_newest_run_of_a_workload_is_the_one_that_was_claimed_last_whatever_the_clocks_of_its_hosts(
    tmp_path: Path,
) -> None:
    store, service = FakeStore(), CopyService(f"file://{tmp_path}", 0.0, 1)
    service._store = store
    for name, ahead in (("b-first", 86_400.0), ("a-last", -86_400.0)):
        run = tmp_path / name
        run.mkdir()
        (run / RUN_FILE).write_text('{"workload": "gpt", "attempt": 1}')
        to = Assignment(name, 1, run, run, (0,), 2)
        Copier(store, to, PACE, nonce=name, clock=lambda ahead=ahead: store.now + ahead).tick()
        store.now += 60.0
    assert service.do_look({"run": "", "workload": "gpt"})["run"] == "a-last"
