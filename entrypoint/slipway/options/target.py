"""Where an export may go: asked before training starts, so that a job of two days does not fail at its end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from slipway.protocol.mistake import ConfigurationError

RECORD = "slipway.json"  # in every export: what it is, and which snapshot it was made from


def read_export_record(folder: Path) -> dict[str, Any] | None:
    """What an export says about itself; None where `folder` is no export of ours."""
    try:
        record = json.loads((folder / RECORD).read_bytes())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("snapshot"), str) else None


def require_target(folder: Path) -> None:
    """Raise ConfigurationError unless an export can be written to `folder`: new, empty, or an older export of ours."""
    if folder.is_symlink() and read_export_record(folder) is None:
        raise ConfigurationError(
            f"{folder} is a link, and an export is not written through one. Type the name of a new folder."
        )
    if folder.is_dir():
        if os.path.ismount(folder):
            raise ConfigurationError(
                f"{folder} is a mount point, and an export is created by renaming a folder. Type a folder in it: "
                f"{folder / 'model'}"
            )
        if any(folder.iterdir()) and read_export_record(folder) is None:
            raise ConfigurationError(
                f"{folder} is not empty, and nothing in it is overwritten. Type the name of a new folder: "
                f"{folder}-2, for example."
            )
    elif folder.exists():
        raise ConfigurationError(f"{folder} is a file; type the name of a new folder.")
    parent = next(parent for parent in folder.absolute().parents if parent.exists())
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigurationError(
            f"{parent} cannot be written, so {folder} cannot be created there; type another folder."
        )
