"""Docker archives of a few kilobytes, made by hand: with every way in which a layer can take away what is below it."""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MADE = 1_700_000_000  # when all files were made


@dataclass(frozen=True)
class Entry:
    """A member of a layer; without content it is a folder, or what `kind` says, a link to `link`."""

    name: str
    content: bytes | None = None
    link: str = ""
    kind: bytes = tarfile.SYMTYPE
    mode: int = 0o755

    def write(self, tar: tarfile.TarFile) -> None:
        """Add it to a tar file."""
        member = tarfile.TarInfo(self.name)
        member.mode, member.mtime = self.mode, MADE
        if self.content is not None:
            member.size = len(self.content)
        else:
            member.type, member.linkname = (self.kind, self.link) if self.link else (tarfile.DIRTYPE, "")
        tar.addfile(member, io.BytesIO(self.content or b""))


def tar_of(entries: Sequence[Entry]) -> bytes:
    """A tar file in memory."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for entry in entries:
            entry.write(tar)
    return out.getvalue()


def write_archive(path: Path, name: str, layers: Sequence[Sequence[Entry]], settings: Mapping[str, object]) -> None:
    """Write what `docker save NAME` writes, layers from the oldest to the newest, and its checksum beside it."""
    packed = [tar_of(layer) for layer in layers]
    sums = [hashlib.sha256(layer).hexdigest() for layer in packed]
    rootfs = {"type": "layers", "diff_ids": [f"sha256:{each}" for each in sums]}
    described = {"architecture": "amd64", "os": "linux", "config": settings, "rootfs": rootfs}
    config = json.dumps(described).encode()
    files = {f"{each}/layer.tar": layer for each, layer in zip(sums, packed, strict=True)}
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": list(files)}]
    files |= {"config.json": config, "manifest.json": json.dumps(manifest).encode()}
    path.write_bytes(tar_of([Entry(file, content) for file, content in files.items()]))
    write_checksum(path)


def write_checksum(path: Path) -> None:
    """Write what `make save` writes beside an archive."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.with_name(f"{path.name}.sha256").write_text(f"{digest}  {path.name}\n")
