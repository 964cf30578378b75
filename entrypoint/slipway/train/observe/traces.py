"""What torch's profiler records on all ranks, brought together: by `slipway trace` for our own loop, by `trace` for any other.

Each rank's clock is compared with rank 0's, since those of two machines differ by more than a step may take.
"""

from __future__ import annotations

import gzip
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity

from slipway.options.paths import require_local
from slipway.protocol.durable import write_whole
from slipway.protocol.files import CLOCKS_FILE, held_folder, rank_trace, write_json
from slipway.train.worker.place import silent_stdout

MOST_RANKS = 64  # whose traces are kept; a page with more is of no use to anybody
ROUNDS = 16  # readings of the clocks, of which the median counts
HEADER = 2048  # bytes in which a rank tells about its trace
PIECE = 2**26  # bytes that are sent at once
LEVEL = 4  # of gzip: a third of the time of the usual one, and a tenth larger


class Recording:
    """What the profiler sees of this rank, step by step. Where it fails that is noted, and nothing is raised."""

    def __init__(self, step: int, on_gpu: bool, records: bool = True) -> None:
        """Begin behind `step`. `records`: else the steps are counted alone."""
        self.first, self.steps, self.error = step, 0, ""
        self._mark: torch.profiler.record_function | None = None
        self._profile: torch.profiler.profile | None = None
        if not records:
            return
        try:
            if on_gpu:
                torch.cuda.synchronize()  # what was begun before belongs to no step of these
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
            profile = torch.profiler.profile(activities=activities, record_shapes=True, acc_events=True)
            profile.start()
            self._profile = profile
            self._open()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.error = self.error or f"{type(error).__name__}: {error}"

    def _open(self) -> None:
        if self._profile is None:
            return
        self._mark = torch.profiler.record_function(f"step {self.first + self.steps + 1}")
        self._mark.__enter__()  # type: ignore[no-untyped-call]

    def _close(self) -> None:
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.__exit__(None, None, None)

    def step(self) -> None:
        """Say that a step is done."""
        try:
            self._close()
            self.steps += 1
            self._open()
        except Exception as error:
            self._fail(error)

    def stop(self) -> None:
        """Stop the profiler, and keep what it has."""
        if self._profile is None:
            return
        try:
            self._close()
            self._profile.stop()
        except Exception as error:
            self._fail(error)

    def export(self) -> bytes:
        """What was recorded, as Chrome's JSON in gzip; nothing where the profiler failed."""
        profile, self._profile = self._profile, None
        if profile is None or self.error:
            return b""
        try:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "recorded.json"
                profile.export_chrome_trace(str(file))
                return gzip.compress(file.read_bytes(), LEVEL)
        except Exception as error:
            self._fail(error)
            return b""


def collect(
    recording: Recording,
    group: dist.ProcessGroup | None,
    folder: Path,
    about: Mapping[str, Any],
    beat: Callable[[], None],
) -> dict[str, Any]:
    """Send the traces of all ranks to rank 0, which writes them and a file with the clocks into `folder`. Called by all ranks.

    `group` is a gloo group, None with a single process. `about` is added to the file with the clocks. `beat` is called before and
    after each part that takes time. Returns the content of that file, and `unwritten`: on rank 0 the reason if writing failed.
    """
    recording.stop()
    rank, world = (dist.get_rank(group), dist.get_world_size(group)) if group is not None else (0, 1)
    clocks = compare_clocks(group)
    beat()
    data = recording.export()
    beat()
    rows = exchange_headers(group, own_row(rank, recording, len(data)))
    for row, (offset, spread) in zip(rows, clocks, strict=True):
        row |= {"offset": offset, "spread": spread}
    unwritten = ""
    for row in rows[:MOST_RANKS]:
        source = row["rank"]
        if source and row["bytes"] and rank in (0, source):
            data = pass_to_first(data, row["bytes"], source, rank, group, beat)
        if rank == 0 and not unwritten and row["bytes"]:
            unwritten = write_trace(folder, rank_trace(source), data)
        beat()
        if group is not None:
            dist.barrier(group=group)  # so that no rank waits in one long exchange
    steps = {"first": recording.first, "steps": recording.steps}
    content = {**about, **steps, "world_size": world, "ranks": rows[:MOST_RANKS]}
    if rank == 0 and not unwritten:
        try:
            write_json(folder / CLOCKS_FILE, content)
        except OSError as error:
            unwritten = str(error)
    return content | {"unwritten": unwritten}


def own_row(rank: int, recording: Recording, size: int) -> dict[str, Any]:
    """What this rank tells of its trace; as JSON it is shorter than HEADER."""
    error = recording.error.encode("ascii", "replace").decode()[:300]
    node = int(os.environ.get("GROUP_RANK", "0"))
    host = socket.gethostname()[:64]
    return {"rank": rank, "node": node, "host": host, "pid": os.getpid(), "bytes": size, "error": error}


def write_trace(folder: Path, name: str, data: bytes) -> str:
    """Write a rank's trace. Returns why that was not possible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with held_folder(folder) as held:
            write_whole(held / name, data)
    except OSError as error:
        return str(error)
    return ""


def exchange_headers(group: dist.ProcessGroup | None, own: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What every rank tells of its trace, by rank."""
    text = json.dumps(own).encode()
    if group is None:
        return [json.loads(text)]
    mine = torch.zeros(HEADER, dtype=torch.uint8)
    mine[: len(text)] = torch.tensor(list(text), dtype=torch.uint8)
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, mine, group=group)
    return [json.loads(bytes(row.tolist()).rstrip(b"\0")) for row in rows]


def pass_to_first(
    data: bytes, size: int, source: int, rank: int, group: dist.ProcessGroup | None, beat: Callable[[], None]
) -> bytes:
    """Send what rank `source` has to rank 0, which returns it; by both."""
    buffer = torch.empty(size, dtype=torch.uint8)
    if rank == source:
        buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    for piece in torch.split(buffer, PIECE):
        beat()
        if rank == source:
            dist.send(piece, group=group, group_dst=0)
        else:
            dist.recv(piece, group=group, group_src=source)
    return data if rank == source else buffer.numpy().tobytes()


def compare_clocks(group: dist.ProcessGroup | None) -> list[tuple[int, int]]:
    """By how many nanoseconds each rank's clock is ahead of rank 0's, and how much that varied; by all ranks."""
    if group is None:
        return [(0, 0)]
    stamps = []
    for _ in range(ROUNDS):
        dist.barrier(group=group)
        stamps.append(time.time_ns())
    own = torch.tensor(stamps, dtype=torch.int64)
    rows = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, own, group=group)
    return clock_offsets([row.tolist() for row in rows])


def clock_offsets(rows: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """The same from what each rank's clock showed behind each barrier: medians, which one late thread does not move."""
    offsets = []
    for row in rows:
        differences = [mine - first for mine, first in zip(row, rows[0], strict=True)]
        middle = statistics.median_low(differences)
        offsets.append((middle, statistics.median_low([abs(one - middle) for one in differences])))
    return offsets


@contextmanager
def trace(folder: Path | str, group: dist.ProcessGroup | None = None) -> Iterator[Recording]:
    """Record what all ranks do in the block, for loops of one's own; `slipway trace FOLDER` makes one file of it.

    with trace("traces/mine") as traced:  # by every rank
        for batch in islice(batches, 3):
            take_step(batch)
            traced.step()

    Rank 0 writes `folder`. Where the block raises nothing is written. `group`: of the ranks that do so, None for all.
    """
    require_local(folder, str(folder))
    alone = not dist.is_initialized() or dist.get_world_size(group) == 1
    side: dist.ProcessGroup | None = None
    rank = 0 if alone else dist.get_rank(group)
    if not alone:
        with silent_stdout():
            ranks = None if group is None else dist.get_process_group_ranks(group)
            side = dist.new_group(ranks, backend="gloo", use_local_synchronization=group is not None)
            dist.barrier(group=side)
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    recording = Recording(0, on_gpu, rank < MOST_RANKS)
    try:
        yield recording
    except BaseException:
        recording.stop()
        raise
    found = collect(recording, side, Path(folder), {"wanted": recording.steps, "why": ""}, lambda: None)
    if side is not None:
        dist.destroy_process_group(side)
    if recording.error:
        print(f"the profiler failed on rank {rank}: {recording.error}", file=sys.stderr, flush=True)
    if found["unwritten"]:
        print(f"the trace cannot be written: {found['unwritten']}", file=sys.stderr, flush=True)
    elif rank == 0:
        print(f"slipway trace {folder} makes one file of what was recorded", flush=True)
