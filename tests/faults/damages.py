"""Files that are found damaged: what is done to the run directory of a job that died, before it is resumed."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from harms import Harm
from launchers import Launcher
from scene import Scene

Damage = Callable[[Path], object]  # takes the folder of snapshots
NEWEST = "step-00000020"


def found(damage: Damage) -> Harm:
    """A run that was killed after step 25, with snapshots of the steps 10 and 20, is damaged and then resumed."""

    def provoke(scene: Scene) -> Launcher:
        shutil.copytree(scene.killed, scene.run)
        damage(scene.run / "snapshots")
        scene.harm()
        scene.resumed = scene.start("--resume", "auto")
        return scene.resumed

    return provoke


def truncate(file: str) -> Damage:
    """Cut off the last byte."""
    return lambda folder: os.truncate(path := folder / NEWEST / file, path.stat().st_size - 1)


def flip(file: str) -> Damage:
    """Turn a bit in the middle."""

    def damage(folder: Path) -> None:
        path = folder / NEWEST / file
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(content)

    return damage


def delete(file: str) -> Damage:
    """Take it away."""
    return lambda folder: (folder / NEWEST / file).unlink()


def empty(file: str) -> Damage:
    """Leave the name and nothing else."""
    return lambda folder: (folder / NEWEST / file).write_bytes(b"")


def overwrite(file: str, **values: object) -> Damage:
    """Other values in a JSON file."""

    def damage(folder: Path) -> None:
        path = folder / NEWEST / file
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return damage


def empty_all(folder: Path) -> None:
    """No snapshot has a model."""
    for file in folder.glob("step-*/model.safetensors"):
        file.write_bytes(b"")


def turn_times_round(folder: Path) -> None:
    """The older snapshot seems to be the newer one, and all else is from 1970."""
    for path in [*folder.parent.rglob("*"), folder.parent]:
        os.utime(path, (0, 0))
    os.utime(folder / "step-00000010", (2e9, 2e9))
