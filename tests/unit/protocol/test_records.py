"""The JSON files of a run directory: read without trust, written whole."""

import json
import threading
from pathlib import Path

import pytest

from slipway.protocol.files import read_json, write_json


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[1]", "null", '"x"', "\udcff"])
def test_a_record_that_cannot_be_read_counts_as_none(content: str) -> None:
    Path("record.json").write_text(content, encoding="utf-8", errors="surrogateescape")
    assert read_json(Path("record.json")) == {}
    assert read_json(Path("absent.json")) == {}


def test_a_reader_sees_the_old_or_the_new_record_and_never_half_of_one() -> None:
    file, seen = Path("record.json").absolute(), set()
    write_json(file, {"number": -1, "text": "x" * 100_000})

    def write() -> None:
        for number in range(40):
            write_json(file, {"number": number, "text": "x" * 100_000})

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        seen.add(json.loads(file.read_text())["number"])
    writer.join()
    assert seen <= set(range(-1, 40))
    assert [entry.name for entry in Path().iterdir() if "record" in entry.name] == ["record.json"]


def test_a_write_that_fails_leaves_the_old_record() -> None:
    write_json(Path("record.json"), {"number": 1})
    with pytest.raises(TypeError):
        write_json(Path("record.json"), {"number": object()})
    assert read_json(Path("record.json")) == {"number": 1}
