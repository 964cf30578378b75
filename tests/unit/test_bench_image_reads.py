"""bench/image_reads.py: what is counted for which part of an image."""

import runpy
from pathlib import Path

import pytest

reads = runpy.run_path(str(Path(__file__).parents[2] / "bench/image_reads.py"))
SITE = "/var/lib/docker/overlay2/0/diff/opt/slipway/lib/python3.13/site-packages"


@pytest.mark.parametrize(
    ("path", "part"),
    [
        (f"{SITE}/nvidia/nccl/lib/libnccl.so.2", "NVIDIA's libraries"),
        (f"{SITE}/nvidia_nccl_cu12-2.27.5.dist-info/RECORD", "NVIDIA's libraries"),
        (f"{SITE}/torch/lib/libtorch_cpu.so", "torch"),
        (f"{SITE}/torch-2.10.0.dist-info/RECORD", "torch"),
        (f"{SITE}/triton/_C/libtriton.so", "torch"),
        (f"{SITE}/torchvision/_C.so", "other packages"),
        (f"{SITE}/numpy/__init__.py", "other packages"),
        (f"{SITE}/slipway/cli/cli.py", "Slipway"),
        (f"{SITE}/slipway.pth", "Slipway"),
        ("/var/lib/docker/overlay2/0/diff/opt/slipway/share/sbom.cdx.json", "other packages"),
        ("/var/lib/docker/overlay2/0/diff/usr/lib/python3.13/json/__init__.py", "Debian and Python"),
    ],
)
def test_each_file_belongs_to_a_part(path: str, part: str) -> None:
    assert reads["part_of"](path) == part


def test_a_file_with_two_names_counts_once_and_links_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(5000))
    (tmp_path / "same").hardlink_to(tmp_path / "file")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "empty").touch()
    files = reads["list_files"]([tmp_path])
    assert sorted(files.values()) == [0, 5000]
    reads["drop_from_cache"](files)
    (tmp_path / "file").read_bytes()
    assert reads["count_cached"](files).total() == 5000
