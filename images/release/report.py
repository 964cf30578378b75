"""What the image weighs, layer by layer, on disk and packed: `make image-report`. Ends with 1 above a target.

What `docker save` writes is read as a stream, and every layer goes through `zstd -3` on its way; nothing is kept on disk
here. The floor under the packed size is what would have to be fetched anyway: the wheels, which the image lists in
wheels.tsv, and the base.
"""

from __future__ import annotations

import gzip
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

WHEELS = "opt/slipway/share/wheels.tsv"
CHUNK = 1 << 20  # bytes
TELL_EVERY = 500_000_000  # bytes


@dataclass(frozen=True)
class Layer:
    """A layer: what made it, its files' bytes, and its bytes as `zstd -3` packs it."""

    name: str
    files: int
    packed: int


@dataclass(frozen=True)
class Report:
    """An image's layers, the base first, and the bytes of the wheels in it."""

    layers: list[Layer]
    wheels: int

    @property
    def files(self) -> int:
        """Bytes on disk."""
        return sum(layer.files for layer in self.layers)

    @property
    def packed(self) -> int:
        """Bytes on the wire."""
        return sum(layer.packed for layer in self.layers)

    @property
    def ratio(self) -> float:
        """The packed size against the floor: wheels and packed base."""
        return self.packed / (self.wheels + self.layers[0].packed)

    def above_target(self) -> list[str]:
        """What weighs more than it may."""
        checks = (
            ("GB on disk", self.files / 1e9, 6.8),
            ("GB packed", self.packed / 1e9, 3.4),
            ("ratio", self.ratio, 1.1),
        )
        return [f"{what}: {is_:.3f} is above the target, {target}" for what, is_, target in checks if is_ > target]

    def table(self) -> str:
        """The report as people read it."""
        rows = [(layer.name, layer.files, layer.packed) for layer in self.layers]
        rows.append(("all layers", self.files, self.packed))
        lines = [f"{'layer':<48} {'bytes':>14} {'zstd -3':>14}"]
        lines += [f"{name:<48} {files:>14,} {packed:>14,}" for name, files, packed in rows]
        floor = f"{self.wheels:,} wheels + {self.layers[0].packed:,} base"
        return "\n".join([*lines, f"ratio to the floor ({floor}): {self.ratio:.3f}"])


class Passing:
    """A layer's tar on its way: whoever reads it lets `zstd -3` read along, which counts."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = gzip.GzipFile(fileobj=source) if source.peek(2)[:2] == b"\x1f\x8b" else source  # type: ignore[attr-defined]
        self._zstd = subprocess.Popen(
            ["bash", "-c", "zstd -3 --quiet --stdout | wc --bytes"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def read(self, size: int) -> bytes:
        """Up to so many bytes of the tar."""
        assert self._zstd.stdin
        data = self._source.read(size)
        self._zstd.stdin.write(data)
        return data

    def packed(self) -> int:
        """Read what is left; the bytes that came out of zstd."""
        while self.read(CHUNK):
            pass
        counted, _ = self._zstd.communicate()
        return int(counted)


def tell(seen: int, more: int) -> None:
    """Say on stderr how far it is, now and then."""
    if seen // TELL_EVERY != (seen + more) // TELL_EVERY:
        print(f"image-report: {(seen + more) / 1e9:.1f} GB read", file=sys.stderr, flush=True)


def read_saved(stream: IO[bytes]) -> Report:
    """Read what `docker save` writes: layers, and JSON that says what they are.

    Raises:
        KeyError: no wheels.tsv in any layer, so this is not Slipway's image.
    """
    texts: dict[str, bytes] = {}
    sizes: dict[str, tuple[int, int]] = {}
    links: dict[str, str] = {}  # a layer that occurs twice is saved once
    seen = 0
    with tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK) as saved:
        for member in saved:
            if member.issym():
                links[member.name] = posixpath.normpath(f"{posixpath.dirname(member.name)}/{member.linkname}")
            content = saved.extractfile(member) if member.isreg() else None
            if content is None:
                continue
            if content.peek(1)[:1] in (b"{", b"[", b"") or member.name.endswith("VERSION"):  # type: ignore[attr-defined]
                texts[member.name] = content.read()
                continue
            files, passing = 0, Passing(content)
            with tarfile.open(fileobj=passing, mode="r|", bufsize=CHUNK) as layer:  # type: ignore[call-overload]
                for entry in layer:
                    if entry.name == WHEELS:
                        texts[WHEELS] = layer.extractfile(entry).read()
                    files += entry.size
                    tell(seen, entry.size)
                    seen += entry.size
            sizes[member.name] = files, passing.packed()
    manifest = json.loads(texts["manifest.json"])[0]
    names = layer_names(json.loads(texts[manifest["Config"]])["history"])
    paths = [links.get(path, path) for path in manifest["Layers"]]
    layers = [Layer(name, *sizes[path]) for name, path in zip(names, paths, strict=True)]
    return Report(layers, sum(int(row.split("\t")[1]) for row in texts[WHEELS].decode().splitlines()))


def layer_names(history: list[dict[str, str]]) -> Iterator[str]:
    """What made each layer, in few words; the first is the base."""
    made = [step.get("created_by", "") for step in history if not step.get("empty_layer")]
    for index, command in enumerate(made):
        short = re.sub(r"^(RUN )?(\|\d.*?)?/bin/sh -c (#\(nop\) )?|\s*# buildkit$", "", command)
        yield " ".join(short.split())[:48] if index else "base"


def main() -> int:
    """Report on IMAGE, by default slipway:dev; the exit code."""
    image = os.environ.get("IMAGE") or "slipway:dev"
    if not shutil.which("zstd"):
        print("image-report: zstd is needed. On Debian: apt-get install zstd", file=sys.stderr)
        return 78
    with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as save:
        assert save.stdout
        try:
            report = read_saved(save.stdout)
        except tarfile.ReadError:
            print(f"image-report: Docker did not give {image}. Type: make image", file=sys.stderr)
            return 78
        except KeyError as missing:
            print(f"image-report: {image} is not Slipway's image: it has no {missing}", file=sys.stderr)
            return 78
    print(report.table())
    problems = report.above_target()
    print("\n".join(f"image-report: {problem}" for problem in problems), end="\n" if problems else "", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
