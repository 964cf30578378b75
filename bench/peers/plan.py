"""What the sides of `bench/gpt.py` train, and for how long: the same for all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

PROCESSES = 2  # of each side, with one thread each
PLAN, PIPE = "BENCH_PLAN", "BENCH_PIPE"  # the variables in which a side finds them


@dataclass(frozen=True)
class Size:
    """Dimensions of a GPT, and what a process reads at once: `batch` samples of `context` tokens, `parts` times a step."""

    name: str
    layers: int
    embed: int
    context: int
    batch: int
    parts: int
    heads: int = 4
    vocab_size: int = 256  # bytes

    @property
    def tokens(self) -> int:
        """Tokens of a step, all processes together."""
        return PROCESSES * self.parts * self.batch * self.context


@dataclass(frozen=True)
class Plan:
    """What all sides do alike: `steps` in blocks of `block`, in `precision`, which may be auto."""

    size: Size
    precision: str
    steps: int
    block: int
    compile: bool  # accelerate's and Fabric's model
    folder: str
    lr: float = 1e-3  # nanoGPT's for small models; the others of its defaults as well
    weight_decay: float = 0.1
    clip: float = 1.0
    log_every: int = 10
    seed: int = 0

    @property
    def warmup(self) -> int:
        """Steps over which the learning rate rises."""
        return max(1, self.steps // 10)

    @property
    def text(self) -> Path:
        """The training text, in the form that nanoGPT keeps tokens in: uint16."""
        return Path(self.folder) / "train.bin"

    def write(self) -> str:
        """As an environment variable holds it."""
        return json.dumps(asdict(self))


def read_plan(environ: Mapping[str, str]) -> Plan:
    """The plan of a process that has this environment."""
    values = json.loads(environ[PLAN])
    return Plan(**{**values, "size": Size(**values["size"])})
