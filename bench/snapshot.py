"""How long training stands still for a snapshot, against other ways to save the same state on the same disk.

    python bench/snapshot.py [--rounds 8] [--folder DIR]

A GPT with AdamW, 0.74 GB of state, on the CPU with one thread. Each round takes all sides in turn. What the loop does (its
checksums, verification and the rename come in the background) and DCP's async_save go on while steps are taken, until all
is on the disk; some steps before that show what one takes otherwise. Then other sizes, against torch.save only.
"""

import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from report import Report, options_parser, read_options
from sides import Spread
from snapshot_peers import PEERS, AsyncDcp, save_with_torch
from snapshot_sides import (
    Saved,
    make_training,
    save_beside,
    save_here,
    save_with_slipway,
    tensors,
    time_beside,
    time_parts,
)

from slipway.train.loop.training import Training

STALL, SLOWER = 0.45, 1.10  # of torch.save and fsync; of a step when nothing is written
EMBED, OTHERS = 656, (168, 336, 928)  # 0.75 GB; 0.05, 0.2 and 1.5 GB
SMOKE = 64  # instead of each
LARGE, FEW = 10**9, 3  # rounds with more bytes than this
SLIPWAY, PLAIN, ASYNC = "slipway", "torch.save and fsync", "DCP async_save"

Rounds = list[dict[str, Saved]]


def main() -> int:
    """Print the tables; 1 where a target is missed without a reason."""
    parser = options_parser(__doc__)
    parser.add_argument("--folder", type=Path, help="a folder on the disk to measure; by default the system's own")
    options = read_options(parser)
    torch.set_num_threads(1)
    report = Report(
        "Snapshots: how long training stands still",
        "Model and AdamW state in fp32, one training thread. All sides write to the same disk, durably. Slipway's snapshots "
        "are also read back and compared with their checksums.",
        options,
    )
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        rows = [compare(Path(name), SMOKE if options.smoke else EMBED, report)]
        for embed in (SMOKE,) if options.smoke else OTHERS:
            rows.append(measure_size(Path(name), embed, options.rounds))
    columns = [
        "state", "rounds", "stands still, s", "/ torch.save", "written and verified after, s", "torch.save, s", "GB",
    ]  # fmt: skip
    report.table("Over the size of the state", columns, sorted(rows, key=lambda row: float(row[0].split()[0])))
    return report.close()


def compare(folder: Path, embed: int, report: Report) -> list[str]:
    """All sides, with one size. Returns its row for the table of sizes."""
    training = make_training(folder / "compared", embed)
    dcp = AsyncDcp(training, folder / "dcp")
    sides: dict[str, Callable[[], Saved]] = {
        SLIPWAY: lambda: save_with_slipway(training),
        ASYNC: lambda: save_beside(training, folder / "dcp", dcp.start, dcp.busy, lambda: dcp.waited),
    }
    sides |= {name: partial(save_here, training, folder / "saved", way) for name, way in PEERS.items()}
    first, rounds = take_turns(sides, report.options.rounds)
    columns = [
        "", "stands still, s", "CPU s", "the first time, s", "lost in all, s", "durable after, s",
        "a step meanwhile, × alone", "GB",
    ]  # fmt: skip
    heading = f"{told(training)} of state, one thread trains"
    report.table(heading, columns, [row(name, first[name], rounds) for name in sides])
    parts = time_parts(training) | time_beside(training, folder / "beside")
    report.table("What it consists of", ["", "median of 3"], [[name, f"{value:.3f}"] for name, value in parts.items()])
    because = ", ".join(f"{name.removesuffix(', s')}: {value:.2f}" for name, value in parts.items())
    report.target(f"slipway / {PLAIN}", ratio(rounds), STALL, at_most=True, reason=because)
    report.target(f"slipway / {ASYNC}", ratio(rounds, ASYNC), 1.0, at_most=True, reason=because)
    slower = Spread.of([one[SLIPWAY].slower for one in rounds])
    report.target("a step while a snapshot is written, of one alone", slower, SLOWER, at_most=True, reason=because)
    return size_row(training, rounds)


def measure_size(folder: Path, embed: int, rounds: int) -> list[str]:
    """The same with another size, only against torch.save. Returns its row."""
    training = make_training(folder / f"of-{embed}", embed)
    sides: dict[str, Callable[[], Saved]] = {
        SLIPWAY: lambda: save_with_slipway(training),
        PLAIN: lambda: save_here(training, folder / "saved", save_with_torch),
    }
    return size_row(training, take_turns(sides, min(rounds, FEW) if size(training) > LARGE else rounds)[1])


def take_turns(sides: Mapping[str, Callable[[], Saved]], count: int) -> tuple[dict[str, Saved], Rounds]:
    """Every side once, which is the first time, then in each round all of them; every other in the opposite order."""
    first = {name: side() for name, side in sides.items()}
    rounds = []
    for number in range(count):
        names = list(sides)[:: 1 if number % 2 else -1]
        rounds.append({name: sides[name]() for name in names})
    return first, rounds


def ratio(rounds: Rounds, peer: str = PLAIN) -> Spread:
    """How long training stands still with Slipway, over how long it does with a peer, round by round."""
    return Spread.of([one[SLIPWAY].stall / one[peer].stall for one in rounds])


def size(training: Training) -> int:
    """Bytes of what is saved."""
    return sum(tensor.nbytes for tensor in tensors(training))


def told(training: Training) -> str:
    """The same for people."""
    return f"{size(training) / 1e9:.2f} GB"


def row(name: str, first: Saved, rounds: Rounds) -> list[str]:
    """A side's row of the first table."""
    taken = [one[name] for one in rounds]
    what = ("stall", "cpu", "lost", "done", "slower")
    stall, cpu, lost, done, slower = (Spread.of([getattr(one, value) for one in taken]) for value in what)
    texts = [str(stall), f"{cpu.median:.3f}", f"{first.stall:.3f}", str(lost), str(done)]
    return [name, *texts, str(slower) if first.slower else "-", f"{first.size / 1e9:.3f}"]


def size_row(training: Training, rounds: Rounds) -> list[str]:
    """A size's row of the second table."""
    stall, done = (Spread.of([getattr(one[SLIPWAY], what) for one in rounds]) for what in ("stall", "done"))
    plain = Spread.of([one[PLAIN].stall for one in rounds])
    texts = [str(value) for value in (stall, ratio(rounds), done, plain)]
    return [told(training), str(len(rounds)), *texts, f"{rounds[-1][SLIPWAY].size / 1e9:.3f}"]


if __name__ == "__main__":
    sys.exit(main())
