"""`slipway data fetch URL`: files from a store are in place when all of them are complete and right, and not before."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
from fake_store import FakeStore
from stand_ins import Slipway

from slipway.launch.companions import copies
from slipway.store import files as store_files
from slipway.store.download import CorruptError
from slipway.store.files import Fetched, NoRoomError, OtherFilesError, fetch_files, find_files, read_sums
from slipway.store.objects import MissingObjectError, StoreError, StoreRefusedError, UnreachableError

CORPUS = {"a.txt": b"first", "b/c.txt": b"0123456789" * 5, "b/d/empty": b"", "e.bin": bytes(range(100))}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_files, "PIECE", 16)


def make_store(contents: Mapping[str, bytes] = CORPUS) -> FakeStore:
    return FakeStore({f"data/corpus/{name}": content for name, content in contents.items()})


def fetch(store: FakeStore, target: Path, name: str = "data/corpus", **options: object) -> Fetched:
    files = find_files(store, name)
    sums = read_sums(store, name, files)
    return fetch_files(store, f"s3://b/{name}", name, files, target, sums, pauses=(0.0, 0.0), **options)  # type: ignore[arg-type]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def reads(store: FakeStore) -> int:
    return [kind for kind, _ in store.requests].count("read")


def test_a_folder_comes_as_it_is_in_the_store_and_only_once(tmp_path: Path) -> None:
    store, target, done = make_store(), tmp_path / "cache/corpus", []
    found = fetch(store, target, note=done.append)
    assert contents(target) == CORPUS
    assert (found.path, found.bytes, found.compared) == (target, 155, 4)
    assert sum(done) == 155
    store.requests.clear()
    assert fetch(store, target).bytes == 0
    assert reads(store) == 0
    assert sorted(path.name for path in target.parent.iterdir()) == [".corpus.fetched.json", "corpus"]


def test_a_single_object_becomes_a_file(tmp_path: Path) -> None:
    fetch(make_store(), tmp_path / "one", "data/corpus/b/c.txt")
    assert (tmp_path / "one").read_bytes() == CORPUS["b/c.txt"]


def test_wherever_a_fetch_is_interrupted_the_next_one_continues_and_nothing_incomplete_is_in_place(
    tmp_path: Path,
) -> None:
    print("seed 48")
    dice, requests = random.Random(48), 0
    for number in range(1, 40):
        store, target = make_store(), tmp_path / f"{number}/corpus"

        def fall(kind: str, name: str, store: FakeStore = store, number: int = number) -> None:
            if kind == "read" and reads(store) >= number:
                raise UnreachableError("the connection was reset")

        store.before = fall
        try:
            fetch(store, target, etags=False)
        except UnreachableError:
            assert not target.exists()
        else:
            requests = number
            break
        parts = [path for path in target.parent.rglob("parts/*") if path.stat().st_size]
        if parts and dice.random() < 0.5:  # a machine that lost its power: the last piece never reached the disk
            damaged = dice.choice(parts)
            size = damaged.stat().st_size
            damaged.write_bytes(damaged.read_bytes()[: (size - 1) // 16 * 16].ljust(size, b"\0"))
        store.before = lambda kind, name: None
        store.requests.clear()
        fetch(store, target, etags=False)
        assert contents(target) == CORPUS
        assert sorted(path.name for path in target.parent.iterdir()) == [".corpus.fetched.json", "corpus"]
    assert requests == 1 + sum(-(-len(content) // 16) for content in CORPUS.values())


def test_what_came_before_is_not_asked_for_again(tmp_path: Path) -> None:
    store, target = make_store({"large": bytes(160)}), tmp_path / "corpus"
    store.before = lambda kind, name: fail_from(store, kind, 8)
    with pytest.raises(UnreachableError):
        fetch(store, target)
    [part] = target.parent.rglob("parts/*")
    there = part.stat().st_size // 16
    assert there > 1
    store.before = lambda kind, name: None
    store.requests.clear()
    fetch(store, target)
    assert reads(store) == 10 - (there - 1), "the last piece that was there comes again"


def fail_from(store: FakeStore, kind: str, number: int) -> None:
    if kind == "read" and reads(store) >= number:
        raise UnreachableError("the connection was reset")


def test_a_piece_that_fails_is_asked_for_again(tmp_path: Path) -> None:
    store, failed = make_store(), set()

    def fail_once(kind: str, name: str) -> None:
        if kind == "read" and name not in failed:
            failed.add(name)
            raise UnreachableError("503 SlowDown")

    files = find_files(store, "data/corpus")
    store.before = fail_once
    fetch_files(store, "s3://b/x", "data/corpus", files, tmp_path / "corpus", {}, pauses=(0.0,))
    assert contents(tmp_path / "corpus") == CORPUS
    assert len(failed) == 3, "each file but the empty one"


def test_an_object_that_changes_while_it_is_fetched_is_no_mixture(tmp_path: Path) -> None:
    store = make_store({"large": bytes(160)})
    changed = store.objects["data/corpus/large"][::-1] + b"x"
    store.before = lambda kind, name: (
        store.objects.update({"data/corpus/large": changed}) if reads(store) >= 4 else None
    )
    with pytest.raises(MissingObjectError, match="has changed since"):
        fetch(store, tmp_path / "corpus")
    assert not (tmp_path / "corpus").exists()
    said: list[str] = []
    fetch(store, tmp_path / "corpus", say=said.append)
    assert contents(tmp_path / "corpus") == {"large": changed}
    assert "of other objects is removed" in said[0]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


SIDECARS = {
    "SHA256SUMS": {"SHA256SUMS": f"{sha256(b'first')}  a.txt\n{sha256(CORPUS['b/c.txt'])} *./b/c.txt\n# a comment\n"},
    "sha256sum.txt in a folder": {"b/sha256sum.txt": f"{sha256(CORPUS['b/c.txt'])}  c.txt\n"},
    "NAME.sha256 with a name": {"b/c.txt.sha256": f"{sha256(CORPUS['b/c.txt'])}  c.txt\n"},
    "NAME.sha256 with another path": {"b/c.txt.sha256": f"{sha256(CORPUS['b/c.txt'])}  /home/me/c.txt\n"},
    "NAME.sha256 alone": {"b/c.txt.sha256": sha256(CORPUS["b/c.txt"]).upper()},
}


@pytest.mark.parametrize("name", SIDECARS)
def test_files_are_compared_with_a_list_of_checksums_beside_them(tmp_path: Path, name: str) -> None:
    sidecars = {path: text.encode() for path, text in SIDECARS[name].items()}
    store = make_store({**CORPUS, **sidecars})
    files = find_files(store, "data/corpus")
    assert read_sums(store, "data/corpus", files)["b/c.txt"] == sha256(CORPUS["b/c.txt"])
    fetch(store, tmp_path / "right")
    assert contents(tmp_path / "right") == {**CORPUS, **sidecars}
    store.objects["data/corpus/b/c.txt"] = b"9" * 50
    with pytest.raises(CorruptError, match=r"b/c\.txt: its sha256 is"):
        fetch(store, tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()
    store.objects["data/corpus/b/c.txt"] = CORPUS["b/c.txt"]
    fetch(store, tmp_path / "wrong")
    assert contents(tmp_path / "wrong") == {**CORPUS, **sidecars}


def test_a_single_file_is_compared_with_the_checksum_beside_it(tmp_path: Path) -> None:
    store = make_store({"a": b"content", "a.sha256": sha256(b"other").encode()})
    with pytest.raises(CorruptError):
        fetch(store, tmp_path / "a", "data/corpus/a")
    assert not (tmp_path / "a").exists()


def test_a_file_that_is_changed_on_its_way_is_noticed_by_its_etag_and_fetched_anew(tmp_path: Path) -> None:
    store = make_store()
    plain = store.read_part
    store.read_part = lambda name, facts, begin, end: plain(name, facts, begin, end)[::-1]  # type: ignore[method-assign]
    with pytest.raises(CorruptError, match="by its ETag"):
        fetch(store, tmp_path / "corpus")
    assert not (tmp_path / "corpus").exists()
    store.read_part = plain  # type: ignore[method-assign]
    fetch(store, tmp_path / "corpus")
    assert contents(tmp_path / "corpus") == CORPUS


def test_etags_that_are_no_md5_can_be_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fake_store.md5", lambda content: hashlib.sha256(content).hexdigest()[:32])  # KMS
    with pytest.raises(CorruptError, match="--ignore-etags"):
        fetch(make_store(), tmp_path / "corpus")
    assert fetch(make_store(), tmp_path / "corpus", etags=False).compared == 0
    assert contents(tmp_path / "corpus") == CORPUS


@pytest.mark.parametrize("name", ["../out", "a/../../out", "./a", "a//b", "/etc/x", "a\0b"])
def test_names_that_no_file_here_can_have_are_refused(name: str) -> None:
    with pytest.raises(StoreRefusedError, match="which no file here can have"):
        find_files(make_store({**CORPUS, name: b"x"}), "data/corpus")


def test_a_file_and_a_folder_of_one_name_are_refused_and_a_mark_of_a_folder_is_none() -> None:
    with pytest.raises(StoreRefusedError):
        find_files(make_store({"a": b"x", "a/b": b"y"}), "data/corpus")
    assert [*find_files(make_store({"a": b"", "a/b": b"y"}), "data/corpus")] == ["a/b"]


def test_what_is_not_there_is_missing() -> None:
    for name in ("data/corp", "data/corpus/a", "x"):
        with pytest.raises(MissingObjectError):
            find_files(make_store(), name)


def test_what_the_user_made_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus/notes").write_text("mine")
    with pytest.raises(OtherFilesError, match="was not fetched from s3://b/data/corpus"):
        fetch(make_store(), tmp_path / "corpus")
    assert contents(tmp_path / "corpus") == {"notes": b"mine"}


def test_a_store_that_changed_since_replaces_nothing(tmp_path: Path) -> None:
    fetch(make_store(), tmp_path / "corpus")
    with pytest.raises(OtherFilesError, match="the store has changed since"):
        fetch(make_store({**CORPUS, "new": b"1"}), tmp_path / "corpus")
    assert contents(tmp_path / "corpus") == CORPUS
    shutil.rmtree(tmp_path / "corpus")
    fetch(make_store({"new": b"1"}), tmp_path / "corpus")
    assert contents(tmp_path / "corpus") == {"new": b"1"}


def test_a_disk_without_room_is_noticed_before_anything_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, full = make_store(), shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    with pytest.raises(NoRoomError, match=r"has 0\.0 MB left"):
        fetch(store, tmp_path / "corpus")
    assert reads(store) == 0


def test_a_disk_that_gets_full_leaves_nothing_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fill)
        with pytest.raises(OSError, match="No space left"):
            fetch(make_store(), tmp_path / "corpus")
    assert not (tmp_path / "corpus").exists()
    fetch(make_store(), tmp_path / "corpus")
    assert contents(tmp_path / "corpus") == CORPUS


def test_one_process_of_a_machine_fetches_and_others_wait_for_it(tmp_path: Path) -> None:
    first, second, said, waits = make_store(), make_store(), [], Event()

    def say(text: str) -> None:
        said.append(text)
        waits.set()

    begun = Event()

    def hold(kind: str, name: str) -> None:
        if kind == "read" and not name.endswith(".sha256"):
            begun.set()
            assert waits.wait(60)

    first.before = hold
    with ThreadPoolExecutor(2) as pool:
        fetching = pool.submit(fetch, first, tmp_path / "corpus")
        assert begun.wait(60)
        waiting = pool.submit(fetch, second, tmp_path / "corpus", say=say)
        assert fetching.result(60).bytes == 155
        assert waiting.result(60).bytes == 0
    assert "waiting for it" in said[0]
    assert reads(second) == 0
    assert contents(tmp_path / "corpus") == CORPUS
    assert sorted(path.name for path in tmp_path.iterdir()) == [".corpus.fetched.json", "corpus"]


def test_of_two_machines_that_share_the_folder_the_first_ones_files_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store()

    def overtake(kind: str, name: str) -> None:
        if kind == "read" and not (tmp_path / "corpus").exists():
            store.before = lambda kind, name: None
            with monkeypatch.context() as patch:
                patch.setattr("socket.gethostname", lambda: "other")
                fetch(make_store(), tmp_path / "corpus")

    store.before = overtake
    assert fetch(store, tmp_path / "corpus").path == tmp_path / "corpus"
    assert contents(tmp_path / "corpus") == CORPUS
    assert sorted(path.name for path in tmp_path.iterdir()) == [".corpus.fetched.json", "corpus"]


# What a user types.


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """A folder that is fetched from."""
    folder = tmp_path / "nfs/corpus"
    for name, content in CORPUS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def test_a_folder_is_fetched_into_the_cache_or_to_a_place_of_ones_own(
    slipway: Slipway, tmp_path: Path, bucket: Path
) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    answer = slipway("data", "fetch", f"file://{bucket}", **cache)
    assert answer.code == 0, answer.err
    folder = Path(answer.out.splitlines()[-1].partition("file:")[2])
    assert contents(folder) == CORPUS
    assert folder.is_relative_to(tmp_path / "cache")
    assert "for lack of a checksum in the store: 4 of 4 files" in answer.out
    again = slipway("data", "fetch", f"file://{bucket}", **cache)
    assert f"4 files, 0.000 MB, in place already {folder}" in again.out
    answer = slipway("data", "fetch", f"file://{bucket}", "--out", "mine", "--include", "*.txt", "--json")
    assert json.loads(answer.out)["files"] == {"a.txt": 5, "b/c.txt": 50}
    assert contents(Path("mine")) == {"a.txt": CORPUS["a.txt"], "b/c.txt": CORPUS["b/c.txt"]}
    answer = slipway("data", "fetch", f"file://{bucket}/e.bin", "--out", "one.bin")
    assert Path("one.bin").read_bytes() == CORPUS["e.bin"]


@pytest.mark.parametrize(
    ("content", "use"),
    [
        ({"manifest.json": b"{}", "0.bin": b"1"}, "slipway gpt --dataset tokens:"),
        ({"train/cat/1.PNG": b"1"}, "slipway vision --dataset folder:"),
        ({"notes.txt": b"1"}, "slipway gpt --dataset file:"),
    ],
)
def test_the_last_line_trains_on_what_came(
    slipway: Slipway, tmp_path: Path, content: dict[str, bytes], use: str
) -> None:
    for name, text in content.items():
        (tmp_path / "x" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "x" / name).write_bytes(text)
    answer = slipway("data", "fetch", f"file://{tmp_path}/x", "--out", "y")
    assert answer.out.splitlines()[-1] == f"use it: {use}{tmp_path / 'y'}"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("hdfs://name/corpus",), 78, "hdfs://name/corpus cannot be fetched: s3://BUCKET[/PATH], gs://"),
        (("https://host/corpus.txt",), 78, "cannot be fetched: s3://BUCKET"),
        (("hf://datasets/x/y",), 78, "or OWNER/NAME of a repository"),
        (("s3:/bucket/x",), 78, "s3://BUCKET"),
        (("s3://Bad_Bucket/x",), 78, "needs the name of a bucket"),
        (("file://corpus",), 78, "needs an absolute path"),
        (
            ("file:///nowhere/corpus",),
            78,
            "file:///nowhere/corpus cannot be read: there is neither an object of this name",
        ),
        (("file:///tmp", "--revision", "main"), 2, "are for repositories of the Hub"),
        (("file:///tmp", "--kind", "dataset"), 2, "are for repositories of the Hub"),
        (("acme/tiny", "--out", "x"), 2, "are for URLs"),
        (("acme/tiny", "--ignore-etags"), 2, "are for URLs"),
        (("file:///tmp", "--out", "s3://b/x"), 78, "is not supported"),
    ],
)
def test_mistakes_end_with_a_line_and_create_nothing(
    slipway: Slipway, tmp_path: Path, words: tuple[str, ...], code: int, text: str
) -> None:
    answer = slipway("data", "fetch", *words, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert (answer.code, answer.out) == (code, ""), answer.err
    assert text in answer.err
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_name_that_no_file_has_is_a_mistake(slipway: Slipway, bucket: Path) -> None:
    answer = slipway("data", "fetch", f"file://{bucket}", "--include", "*.parquet", "--out", "x")
    assert answer.code == 78
    assert "has no file *.parquet. It holds a.txt, b/c.txt" in answer.err


def test_a_bucket_without_its_library_is_refused(slipway: Slipway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "find_spec", lambda name: None)
    answer = slipway("data", "fetch", "s3://bucket/x")
    assert answer.code == 78
    assert "s3://bucket/x needs obstore" in answer.err


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (UnreachableError("503 SlowDown"), 77, "does not answer: 503 SlowDown. Try again later"),
        (StoreRefusedError("AccessDenied"), 78, "cannot be read: AccessDenied. Check the address, the credentials"),
        (MissingObjectError("gone"), 78, "cannot be read: gone"),
        (CorruptError("a.txt: its sha256 is 1"), 1, "arrived damaged: a.txt: its sha256 is 1."),
        (NoRoomError("9 MB are still to come, and / has 1 MB left"), 77, "9 MB are still to come"),
        (OSError(errno.ENOSPC, "No space left on device"), 77, "No space left on device"),
        (OSError(errno.EACCES, "Permission denied"), 78, "Permission denied"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_fails_has_its_exit_code(
    slipway: Slipway, monkeypatch: pytest.MonkeyPatch, bucket: Path, error: StoreError | OSError, code: int, text: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(store_files, "fetch_files", fail)
    answer = slipway("data", "fetch", f"file://{bucket}", "--out", "x")
    assert (answer.code, answer.out) == (code, "")
    assert text in answer.err
    assert not Path("x").exists()
