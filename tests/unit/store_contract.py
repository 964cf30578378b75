"""What every store has to do. tests/unit runs this with a folder and the fake, tests/launch/test_store_server.py with a real server."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from slipway.store.objects import MissingObjectError, ObjectStore


def reads_what_was_written(store: ObjectStore) -> None:
    store.write("run/a/b", b"one")
    store.write("run/a/b", b"two")
    assert store.read("run/a/b") == b"two"
    store.write("run/a/empty", b"")
    assert store.read("run/a/empty") == b""
    large = bytes(range(256)) * 40_000  # 10 MB
    store.write("run/large", large)
    assert store.read("run/large") == large


def lists_names_and_sizes_below_a_prefix(store: ObjectStore) -> None:
    assert store.list_objects("run/") == {}
    names = [f"run/a/{number:05d}" for number in range(30)]
    for name in [*names, "run/b/c/d", "run-2/a", "other"]:
        store.write(name, b"123")
    assert store.list_objects("run/a/") == dict.fromkeys(names, 3)
    assert store.list_objects("run/") == dict.fromkeys([*names, "run/b/c/d"], 3)
    assert store.list_objects("ru/") == {}, "a prefix ends at a slash"
    assert store.list_folders("") == ["run", "run-2"]
    assert store.list_folders("run/") == ["a", "b"]
    assert store.list_folders("nothing/") == []


def says_what_is_missing(store: ObjectStore) -> None:
    with pytest.raises(MissingObjectError):
        store.read("run/nothing")


def finds_an_object_or_what_is_below_it(store: ObjectStore) -> None:
    for name in ("data/a", "data/b/c", "data-2/a", "single"):
        store.write(name, name.encode())
    assert {name: facts.size for name, facts in store.find("data").items()} == {"data/a": 6, "data/b/c": 8}
    assert [*store.find("single")] == ["single"]
    assert store.find("dat") == {}, "a prefix ends at a slash"
    assert sorted(store.find("")) == ["data-2/a", "data/a", "data/b/c", "single"]


def reads_parts_of_what_was_found(store: ObjectStore) -> None:
    store.write("data/a", b"0123456789")
    facts = store.find("data/a")["data/a"]
    assert store.find("data") == {"data/a": facts}, "a listing and a look at one object say the same"
    assert store.read_part("data/a", facts, 0, 10) == b"0123456789"
    assert store.read_part("data/a", facts, 3, 5) == b"34"
    store.write("data/a", b"9876543210")
    with pytest.raises(MissingObjectError):
        store.read_part("data/a", facts, 3, 5)
    store.delete(["data/a"])
    with pytest.raises(MissingObjectError):
        store.read_part("data/a", facts, 3, 5)


def says_when_an_object_was_written(store: ObjectStore) -> None:
    store.write("run/a", b"1")
    store.write("run/b", b"2")
    assert 1.5e9 < store.written("run/a") <= store.written("run/b"), "Unix seconds"
    with pytest.raises(MissingObjectError):
        store.written("run/nothing")


def deletes_what_is_there(store: ObjectStore) -> None:
    store.write("run/a", b"1")
    store.write("run/b", b"2")
    store.delete(["run/a", "run/never-there"])
    assert store.list_objects("run/") == {"run/b": 1}
    store.delete([])


def creates_once(store: ObjectStore) -> None:
    assert store.create("run/claims/1.json", b"mine")
    assert not store.create("run/claims/1.json", b"yours")
    assert store.read("run/claims/1.json") == b"mine"
    store.delete(["run/claims/1.json"])
    assert store.create("run/claims/1.json", b"yours")


def creates_for_one_of_many(store: ObjectStore) -> None:
    for number in range(5):
        with ThreadPoolExecutor(8) as pool:
            made = [*pool.map(lambda who, number=number: store.create(f"run/claims/{number}", b"%d" % who), range(8))]
        assert made.count(True) == 1
        assert store.read(f"run/claims/{number}") == b"%d" % made.index(True)
    assert len(store.list_objects("run/")) == 5, "nothing else stays behind"


CONTRACT: tuple[Callable[[ObjectStore], None], ...] = (
    reads_what_was_written,
    lists_names_and_sizes_below_a_prefix,
    says_what_is_missing,
    finds_an_object_or_what_is_below_it,
    reads_parts_of_what_was_found,
    says_when_an_object_was_written,
    deletes_what_is_there,
    creates_once,
    creates_for_one_of_many,
)
