"""Sixty mistakes of a newcomer's first hour, as data: what is typed, what stands in the environment and in files.

Every message of them has to say three things, by `score`: what was read, from where, and what to type. docs/troubleshooting.md
shows them all: `RENEW_GOLDEN=1 .venv/bin/python -m pytest tests/unit/cli/test_mistakes.py` writes them there.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from slipway.cli.launching import hyphens


@dataclass(frozen=True)
class Mistake:
    """`words` behind `slipway`; `read` is what of them the message must show. `code` is the exit code, 0 for a warning."""

    words: str
    read: str
    code: int
    environ: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    gpus: int = 0

    @property
    def typed(self) -> str:
        """As one would type it, the files left out."""
        before = "".join(f"{name}={shlex.quote(value)} " for name, value in self.environ.items())
        return f"{before}slipway {self.words}"


SCRIPT = {"train.py": "import torch\n"}
TWO_NODES = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
MISTAKES = {
    "Words": (
        Mistake("lniear", "lniear", 78),
        Mistake("trian.py", "trian.py", 78, files=SCRIPT),
        Mistake("train", "train", 78, files=SCRIPT),
        Mistake("run", "gtp", 78, {"WORKLOAD": "gtp"}),
        Mistake("kubernetes", "kubernetes", 78),
        Mistake("render kubernetes gpt", "kubernetes", 2),
        Mistake("data prepar notes.txt", "prepar", 2),
        Mistake("-m", "-m", 78),
        Mistake("run --no-python ./train.sh", "./train.sh", 78, files={"train.sh": "#!/bin/sh\n"}),
        Mistake("run train.sh", "train.sh", 78, files={"train.sh": "#!/bin/sh\n"}),
        Mistake("bad.py", 'print "hello"', 78, files={"bad.py": 'import torch\n\nprint "hello"\n'}),
        Mistake("nvidia-smi", "nvidia-smi", 78),
        Mistake("--gpus all", "--gpus", 2, {"SLIPWAY_IMAGE": "slipway:dev"}),
        Mistake("--nnodes 2 gpt", "--nnodes", 2),
        Mistake("--steps 200", "--steps", 2),
    ),
    "Options that have another name here": (
        Mistake("gpt --learning-rate 0.1", "--learning-rate", 2),
        Mistake("gpt --gpus 2", "--gpus", 2),
        Mistake("run --num_processes 2 train.py", "--num-processes", 2, files=SCRIPT),
        Mistake("run --num-nodes 2 train.py", "--num-nodes", 2, files=SCRIPT),
        Mistake("gpt --machine_rank 1", "--machine-rank", 2),
        Mistake("gpt --main_process_ip n0", "--main-process-ip", 2),
        Mistake("gpt --step 200", "--step", 2),
        Mistake("gpt --max_steps=200", "--max-steps", 2),
        Mistake("gpt --num_train_epochs 1", "--num-train-epochs", 2),
        Mistake("allreduce --epochs 3", "--epochs", 2),
        Mistake("gpt --per_device_train_batch_size 8", "--per-device-train-batch-size", 2),
        Mistake("gpt --gradient_accumulation_steps 4", "--gradient-accumulation-steps", 2),
        Mistake("gpt --mixed_precision bf16", "--mixed-precision", 2),
        Mistake("gpt --fp16", "--fp16", 2),
        Mistake("gpt --cpu", "--cpu", 2),
        Mistake("gpt --output_dir out", "--output-dir", 2),
        Mistake("gpt --resume_from_checkpoint auto", "--resume-from-checkpoint", 2),
        Mistake("gpt --block_size 256", "--block-size", 2),
        Mistake("run --rdzv-backend etcd --rdzv-endpoint n0:2379 train.py", "--rdzv-backend", 78, TWO_NODES, SCRIPT),
        Mistake("run --log-dir logs train.py", "--log-dir", 78, files=SCRIPT),
    ),
    "Values": (
        Mistake("gpt --steps ten", "ten", 2),
        Mistake("gpt --steps", "--steps", 2),
        Mistake("gpt --lr 0", "'0'", 2),
        Mistake("gpt --preset large", "large", 2),
        Mistake("gpt --preset medium", "medium", 2),
        Mistake("gpt --resume auot", "auot", 78),
        Mistake("gpt --precision float16", "float16", 2),
        Mistake("gpt --compile=yes", "--compile", 2),
        Mistake("gpt --steps 10 --epochs 1", "--steps and --epochs", 2),
        Mistake("gpt --embed 100 --heads 3", "--heads 3", 2),
        Mistake("gpt --dataset shakespeare.txt", "shakespeare.txt", 2, files={"shakespeare.txt": "To be"}),
        Mistake("gpt --dataset file:shakespear.txt", "shakespear.txt", 78, files={"shakespeare.txt": "To be"}),
        Mistake("gpt --dataset file:small.txt", "6 bytes", 78, files={"small.txt": "hello\n"}),
        Mistake("gpt --config c.yaml", "step", 78, files={"c.yaml": "preset: tiny\nstep: 10\n"}),
        Mistake("gpt --config c.yaml", "ten", 78, files={"c.yaml": "steps: ten\n"}),
        Mistake("gpt --nproc-per-node two", "two", 78),
        Mistake("gpt --nproc-per-node 4", "4", 78, gpus=2),
        Mistake("gpt --backend ncll", "ncll", 78),
        Mistake("gpt --env-file job.env", "job.env", 78),
    ),
    "The environment": (
        Mistake("plan gpt", "SLIPWAY_MAX_RESTART", 0, {"SLIPWAY_MAX_RESTART": "5"}),
        Mistake("gpt", "MASTER_ADRR", 78, {"WORLD_SIZE": "2", "MASTER_ADRR": "n0"}),
        Mistake("gpt", "WORLD_SIZE=4", 78, {"WORLD_SIZE": "4"}),
        Mistake("gpt", "RANK=3", 78, {"RANK": "3"}),
        Mistake("gpt", "RANK=2", 78, {"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "n0"}),
        Mistake("gpt", "MASTER_PORT=99999", 78, {"MASTER_PORT": "99999"}),
        Mistake("gpt", "NPROC_PER_NODE=gpu", 78, {"NPROC_PER_NODE": "gpu"}),
        Mistake("gpt", "TORCHELASTIC_RUN_ID", 78, {"TORCHELASTIC_RUN_ID": "none"}),
    ),
    "The .env file": (
        Mistake("gpt", "SLIPWAY_MAX_RESTART", 78, files={".env": "SLIPWAY_MAX_RESTART=5\n"}),
        Mistake("gpt", "SLIPWAY_GRACE_SECONDS", 78, files={".env": 'SLIPWAY_GRACE_SECONDS="400"\n'}),
        Mistake("plan gpt", "WORLDSIZE", 0, files={".env": b"\xef\xbb\xbfWORLDSIZE=2\n"}),
        Mistake("gpt", "not UTF-8", 78, files={".env": "RANK=0\n".encode("utf-16")}),
    ),
}
ALL = [mistake for group in MISTAKES.values() for mistake in group]

# What tells where something was read, beside the option or word itself.
WHERE = r"from the environment|from \.env|\.env, line|\.env cannot|\bline \d|environment \(|_ID is set:"
TYPE = (
    r"(?i)\b(type|add|set|unset|use|write|give|correct|take|start|save|leave out|did you mean|available are|is not one of|use)\b"
    r"|`slipway run --help`"
)


def score(mistake: Mistake, message: str) -> int:
    """How many of the three a message says: what was read, from where, what to type."""
    words = [hyphens(word.partition("=")[0]) for word in mistake.words.split()]
    options = [word for word in words if word.startswith("-")]
    typed = mistake.read in hyphens(mistake.words).replace("=", " ") or any(word in message for word in options)
    typed = typed and (not options or any(word in message for word in options))
    where = re.search(WHERE, message) or (typed and (options or not mistake.environ))
    return (mistake.read in message) + bool(where) + bool(re.search(TYPE, message))
