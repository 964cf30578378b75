"""A trained model as a run directory or an export holds it: weights, and how they came to be."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from slipway.protocol import files, snapshots
from slipway.protocol.mistake import ConfigurationError
from slipway.train.loop.metrics import read_evaluation
from slipway.train.snapshots.snapshot import MODEL, Snapshot, load_newest, load_snapshot

# Options that say where files lay on this machine, or what is done with the result.
LEFT_OUT = ("config", "export")
# An absolute path, at the start of a text or after one of these marks, up to its last part, which may hold spaces.
FOLDERS = re.compile(r"(?:^|(?<=[\s:=,@\"']))(?:~[^/\s]*)?/(?=[^/\s])(?:.*/)?(?=[^/])")
ELSEWHERE = "…/"  # stands for a folder of the machine where the training ran


@dataclass(frozen=True)
class Trained:
    """A model after `step` steps of a run."""

    run: str  # its name
    workload: str
    step: int
    snapshot: str  # sha256 of the manifest: tells this snapshot from all others
    options: Mapping[str, Any]
    sources: Mapping[str, str]
    model: Mapping[str, Any]  # the task's description
    data: str
    evaluation: Mapping[str, float]  # the newest up to this step, `step` among its values; empty without any
    nodes: int
    processes_per_node: int
    tensors: Mapping[str, torch.Tensor]


def read_trained(run: Path, step: int | None = None) -> Trained:
    """The model of a run directory, by default its newest snapshot that verifies.

    Raises ConfigurationError where there is none, or not one of `fit`'s, SnapshotError where that of `step` is damaged.
    """
    path, snapshot = find_snapshot(run, step)
    if missing := {"workload", "model", "data", "world_size"} - set(snapshot.state):
        raise ConfigurationError(
            f"{path} does not say its {min(missing)}: it is not of one of Slipway's workloads, and only their models are known "
            "here. A script of your own writes its model itself, after its loop."
        )
    stored = read_object(run / files.OPTIONS_FILE)
    record = read_object(run / files.RUN_FILE)  # absent where no launcher started it
    sources, workload = stored.pop("sources", {}), stored.pop("workload", snapshot.state["workload"])
    processes = snapshot.state["world_size"]
    nodes = max(1, int(record.get("nodes", 1)))
    return Trained(
        run=run.absolute().name,
        workload=workload,
        step=snapshot.step,
        snapshot=hashlib.sha256((path / snapshots.MANIFEST).read_bytes()).hexdigest(),
        options=stored,
        sources=sources,
        model=snapshot.state["model"],
        data=snapshot.state["data"],
        evaluation=read_evaluation(run / files.METRICS_FILE, snapshot.step),
        nodes=nodes,
        processes_per_node=max(1, processes // nodes),
        tensors=snapshot.tensors[MODEL],
    )


def publishable(trained: Trained) -> Trained:
    """The same for others to read: without what only this machine knows, and without its folders."""
    return dataclasses.replace(
        trained,
        options={name: without_folders(value) for name, value in trained.options.items() if name not in LEFT_OUT},
        sources={name: without_folders(text) for name, text in trained.sources.items() if name not in LEFT_OUT},
        data=without_folders(trained.data),
    )


def find_snapshot(run: Path, step: int | None) -> tuple[Path, Snapshot]:
    """A run's snapshot of `step`, or the newest that verifies. Raises ConfigurationError and SnapshotError."""
    if step is not None and (path := run / files.SNAPSHOTS / snapshots.snapshot_name(step)).is_dir():
        return path, load_snapshot(path, [MODEL])
    found = load_newest(run / files.SNAPSHOTS, partial(print, file=sys.stderr), [MODEL]) if step is None else None
    if found is None:
        kept = ", ".join(path.name for path in reversed(snapshots.list_snapshots(run / files.SNAPSHOTS)))
        which = f"of step {step}; it holds {kept}" if step is not None else f"that can be loaded; it holds {kept}"
        raise ConfigurationError(f"{run} has no snapshot {which}." if kept else f"{run} has no snapshot.")
    return found


def read_object(file: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is none. Raises ConfigurationError for a damaged one."""
    try:
        value = json.loads(file.read_bytes()) if file.exists() else {}
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise ConfigurationError(f"{file} holds no JSON object.")
    return value


def without_folders(value: Any) -> Any:
    """A text in which each absolute path is cut to `…/` and its last part; whatever is no text as it is."""
    return FOLDERS.sub(ELSEWHERE, value) if isinstance(value, str) else value
