"""`make image-report`: the sums are right, and too much is a failure."""

import gzip
import io
import json
import re
import runpy
import subprocess
import tarfile
from contextlib import ExitStack

import pytest
from commands import ROOT, make, run

report = runpy.run_path(str(ROOT / "images/release/report.py"))
Layer, Report = report["Layer"], report["Report"]
pytestmark = pytest.mark.needs("zstd")


def figures(table: str) -> dict[str, tuple[int, int]]:
    """Bytes and packed bytes by layer, from the table."""
    rows = re.findall(r"^(.+?) +([\d,]+) +([\d,]+)$", table, re.MULTILINE)
    return {name: (int(files.replace(",", "")), int(packed.replace(",", ""))) for name, files, packed in rows}


def test_the_image_weighs_no_more_than_it_may() -> None:
    layers = figures(make("image-report"))
    assert {"base", "COPY /layers/nvidia/ /", "COPY /layers/torch/ /", "COPY /layers/code/ /"} <= set(layers)
    on_disk, packed = layers["all layers"]
    assert on_disk <= 6.8e9
    assert packed <= 3.4e9
    readme = re.search(r"^\| in all \| (\d+) \| (\d+) \|", (ROOT / "images/README.md").read_text(), re.MULTILINE)
    assert readme
    assert [float(size) for size in readme.groups()] == [
        pytest.approx(size / 1e6, rel=0.01) for size in (on_disk, packed)
    ]


def test_it_adds_up_layers_and_compares_them_with_wheels_and_base(small: str) -> None:
    table = make("image-report", IMAGE=small)
    layers = figures(table)
    wheels_tsv = len("a-1-py3-none-any.whl\t1000000\t00\nb-1-py3-none-any.whl\t500000\t00\n")
    assert layers["base"][0] == 2_000_000
    assert 2_000_000 <= layers["base"][1] < 2_010_000, "random bytes cannot be packed"
    assert layers["COPY share /opt/slipway/share"][0] == wheels_tsv
    assert layers["all layers"][0] == 2_000_000 + wheels_tsv
    ratio = layers["all layers"][1] / (1_500_000 + layers["base"][1])
    assert table.endswith(f": {ratio:.3f}")


def pack(files: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    """A tar archive of files and symbolic links."""
    with io.BytesIO() as buffer, tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
        tar.close()
        return buffer.getvalue()


def saved(layers: list[bytes], history: list[dict], wheels: str) -> io.BytesIO:
    """What `docker save` of an engine with containerd's image store writes: packed layers under their digests."""
    blobs = {f"blobs/sha256/{number}": gzip.compress(pack({"file": content})) for number, content in enumerate(layers)}
    blobs["blobs/sha256/last"] = gzip.compress(pack({"opt/slipway/share/wheels.tsv": wheels.encode()}))
    manifest = [{"Config": "blobs/sha256/config", "Layers": list(blobs)}]
    rest = {"blobs/sha256/config": {"history": history}, "manifest.json": manifest, "oci-layout": {}}
    return io.BytesIO(pack(blobs | {name: json.dumps(content).encode() for name, content in rest.items()}))


def test_layers_that_the_engine_has_packed_already_are_unpacked_first() -> None:
    history = [{}, {"created_by": "ENV A=b", "empty_layer": True}, {"created_by": "COPY x / # buildkit"}, {}]
    read = report["read_saved"](saved([b"a" * 100_000, b"b" * 50_000], history, "a-1-py3-none-any.whl\t700\t00\n"))
    assert [(layer.name, layer.files) for layer in read.layers][:2] == [("base", 100_000), ("COPY x /", 50_000)]
    assert read.layers[0].packed < 1000
    assert read.wheels == 700


def test_a_layer_that_occurs_twice_which_the_engine_saves_once_is_found() -> None:
    layers = {
        "a/layer.tar": pack({"x": b"x" * 1000}),
        "c/layer.tar": pack({"opt/slipway/share/wheels.tsv": b"a-1.whl\t700\t00\n"}),
    }
    manifest = [{"Config": "config.json", "Layers": ["a/layer.tar", "b/layer.tar", "c/layer.tar"]}]
    history = [{"created_by": name} for name in ("base", "COPY y /", "COPY z /")]
    texts = {"config.json": {"history": history}, "manifest.json": manifest}
    files = layers | {name: json.dumps(content).encode() for name, content in texts.items()}
    read = report["read_saved"](io.BytesIO(pack(files, {"b/layer.tar": "../a/layer.tar"})))
    assert [(layer.name, layer.files) for layer in read.layers][:2] == [("base", 1000), ("COPY y /", 1000)]


@pytest.mark.parametrize(
    ("layers", "wheels", "problems"),
    [
        ([(6.8e9, 3.4e9)], 0, []),
        ([(6.9e9, 3.4e9)], 0, ["GB on disk: 6.900 is above the target, 6.8"]),
        ([(6.8e9, 3.5e9)], 0, ["GB packed: 3.500 is above the target, 3.4"]),
        ([(1e8, 1e8), (4e9, 2.12e9)], 1.9e9, ["ratio: 1.110 is above the target, 1.1"]),
    ],
)
def test_what_is_above_a_target_is_named(layers: list[tuple[float, float]], wheels: int, problems: list[str]) -> None:
    assert Report([Layer("x", *sizes) for sizes in layers], wheels).above_target() == problems


def test_an_image_that_is_not_there_is_named() -> None:
    done = run(".venv/bin/python", "images/release/report.py", IMAGE="slipway-test-none")
    assert done.returncode == 78
    assert "Type: make image" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_image_without_a_list_of_wheels_is_not_ours(small: str, undo: ExitStack) -> None:
    other = f"{small}-other"
    undo.callback(run, "docker", "image", "rm", "--force", other)
    subprocess.run(
        ["docker", "buildx", "build", "--load", "--tag", other, "-"],
        input=f"FROM scratch\nCOPY --from={small} random /\n",
        text=True,
        check=True,
        capture_output=True,
    )
    done = run(".venv/bin/python", "images/release/report.py", IMAGE=other)
    assert done.returncode == 78
    assert "is not Slipway's image" in done.stderr
