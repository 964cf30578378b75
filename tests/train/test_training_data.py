"""The order of samples, and the text of the standard library."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.train.loop.loader import Sampler
from slipway.train.text.files import is_validation, read_stdlib, stdlib_files

SIZES = st.integers(1, 600)
SEEDS = st.integers(0, 2**63)


@given(SIZES, SEEDS, st.integers(0, 1000))
def test_every_sample_comes_once_per_epoch(size: int, seed: int, epoch: int) -> None:
    seen = Sampler(size, seed).indices(epoch * size, size)
    assert sorted(seen) == list(range(size))


@given(SIZES, SEEDS, st.integers(0, 2000), st.lists(st.integers(0, 50), min_size=1, max_size=8))
def test_a_stream_read_in_pieces_is_the_stream_read_at_once(
    size: int, seed: int, start: int, pieces: list[int]
) -> None:
    sampler = Sampler(size, seed)
    position, parts = start, []
    for count in pieces:
        parts.append(sampler.indices(position, count))
        position += count
    assert np.array_equal(np.concatenate(parts), sampler.indices(start, sum(pieces)))


@pytest.mark.parametrize("size", [64, 1000, 4097])
def test_orders_differ_between_epochs_and_seeds(size: int) -> None:
    first, second = Sampler(size, 0).indices(0, size), Sampler(size, 0).indices(size, size)
    other = Sampler(size, 1).indices(0, size)
    for one, two in [(first, second), (first, other), (first, np.arange(size))]:
        assert (one == two).sum() < 10
        assert abs(np.corrcoef(one, two)[0, 1]) < 4 / size**0.5


def test_each_sample_is_equally_likely_to_come_first() -> None:
    firsts = [int(Sampler(5, seed).indices(0, 1)[0]) for seed in range(2000)]
    assert min(firsts.count(sample) for sample in range(5)) > 320


def test_a_trillion_samples_need_no_memory() -> None:
    picked = Sampler(10**12, 0).indices(10**11, 1000)
    assert len(set(picked.tolist())) == 1000
    assert picked.max() < 10**12


@pytest.fixture
def library(tmp_path: Path) -> Path:
    for number in range(60):
        (tmp_path / f"module{number}.py").write_text(f"# {number}\n")
    for name in ("test/a.py", "json/tests/b.py", "site-packages/c.py", "json/tool.py", "turtle.py", "data.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("# more\n")
    return tmp_path


def test_only_the_librarys_own_source_is_read(library: Path) -> None:
    names = [path.relative_to(library).as_posix() for path in stdlib_files(library)]
    assert names == sorted([*(f"module{number}.py" for number in range(60)), "json/tool.py"])


def test_the_text_is_split_by_file_into_two_disjoint_parts(library: Path) -> None:
    text = read_stdlib(library)
    train, validation = (set(part.decode().splitlines()) for part in (text.train, text.validation))
    assert train
    assert validation
    assert not train & validation
    assert train | validation == {*(f"# {number}" for number in range(60)), "# more"}


def test_the_split_depends_on_nothing_but_names(library: Path) -> None:
    before = [name for name in ("module1.py", "module2.py", "json/tool.py") if is_validation(name)]
    (library / "module0.py").unlink()
    assert read_stdlib(library) == read_stdlib(library)
    assert before == [name for name in ("module1.py", "module2.py", "json/tool.py") if is_validation(name)]
    assert (is_validation("enum.py"), is_validation("argparse.py")) == (True, False)


def test_any_change_changes_the_hash(library: Path) -> None:
    before = read_stdlib(library).sha256
    (library / "module1.py").rename(library / "module100.py")
    renamed = read_stdlib(library).sha256
    (library / "module2.py").write_text("# 3\n")
    assert len({before, renamed, read_stdlib(library).sha256}) == 3


def test_this_pythons_library_is_large_enough() -> None:
    text = read_stdlib()
    assert len(text.train) > 5_000_000
    assert 0.05 < len(text.validation) / len(text.train) < 0.2
