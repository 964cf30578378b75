"""A comparison of weights in rows and columns, for the terminal and for a page; from what comparison.json says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def comparison_rows(found: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of a comparison with and without DDP; empty where the file makes no sense."""
    try:
        processes, steps, seconds = int(found["processes"]), int(found["steps"]), found["seconds"]
        rows = [
            [str(name), f"{one:.8f}", f"{other:.8f}", f"{abs(one - other):.1e}"]
            for name, one, other in found["weights"]
        ]
        if found["others"][0]:
            rows.append([f"… and {found['others'][0]:,} more", "", "", f"≤ {found['others'][1]:.1e}"])
        rows.append(["largest difference", "", "", f"{found['difference']:.1e}"])
        rows.append([f"seconds for {steps:,} steps", *(f"{value:.2f}" for value in seconds), ""])
    except (KeyError, TypeError, ValueError, IndexError):
        return [], []
    with_ddp = f"{processes} processes, DDP" if processes > 1 else "1 process"
    return ["weight", with_ddp, "1 process, no DDP", "difference"], rows
