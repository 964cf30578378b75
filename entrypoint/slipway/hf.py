"""Hugging Face's Trainer as a job that resumes: `Trainer(…, callbacks=[slipway.hf.Callback()])`, and `trainer.train()` as ever.

The loop and the checkpoints stay the Trainer's. What it lacks is here: all ranks stop after the same step and save, a checkpoint
counts once all ranks have written it, the next start finds the newest of these, and each run has a folder of its own for them.
"""

from __future__ import annotations

import functools
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import TrainOutput

import slipway
from slipway.protocol.durable import sync_tree
from slipway.protocol.mistake import ConfigurationError
from slipway.train.user.run import explained

COMPLETE = "slipway-complete"  # a file in each checkpoint that all ranks have written
TRAININGS: Counter[str] = Counter()  # how many began in this process, by output_dir
CHECKPOINT = re.compile(r"checkpoint-(\d+)")


class _AtItsEndError(Exception):
    """The training was resumed from its last step."""


class Callback(TrainerCallback):  # type: ignore[misc]
    """Slipway's part of a training by `transformers.Trainer`, or by a class that is derived from it. Pass it to the constructor.

    Where the launcher started the script, checkpoints and what else the Trainer writes go to a folder of `output_dir`'s name in
    the run directory, so that two runs do not mix theirs. A second `train()` of a process for the same folder has its checkpoints
    in `training-2` there, a third one in `training-3`.
    """

    def __init__(self) -> None:
        """Before the Trainer is made."""
        self._run: slipway.ResumableRun | None = None

    def on_init_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Give the run a folder of its own, and have `trainer.train()` resume from it."""
        trainer = self._find_trainer()
        notes = list(_prepare(args))
        train = trainer.train

        @functools.wraps(train)
        def resuming(resume_from_checkpoint: str | bool | None = None, *words: Any, **named: Any) -> Any:
            self._run = slipway.resume(snapshots=False)
            if args.process_index == 0:
                for note in notes:
                    print(f"slipway: note: {note}", flush=True)
            usual = args.output_dir
            TRAININGS[usual] += 1
            if TRAININGS[usual] > 1:  # what lies there belongs to the first one
                args.output_dir = str(Path(usual, f"training-{TRAININGS[usual]}"))
            newest = None
            if resume_from_checkpoint is not False:
                with explained():
                    newest = newest_checkpoint(Path(args.output_dir), args.device)
                    if resume_from_checkpoint is True and newest is None:
                        newest = newest_checkpoint(Path(usual), args.device)
            given = None if resume_from_checkpoint is True else resume_from_checkpoint
            try:
                result = train(newest or given, *words, **named)
            except _AtItsEndError:
                if args.load_best_model_at_end and trainer.state.best_model_checkpoint:
                    trainer._load_best_model()
                result = TrainOutput(trainer.state.global_step, math.nan, {})
            finally:
                args.output_dir = usual
            self._run.finish()
            return result

        trainer.train = resuming

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Raise ConfigurationError where the callback came too late to resume."""
        if self._run is None:
            raise ConfigurationError(
                "slipway.hf.Callback: pass it to the constructor, Trainer(…, callbacks=[slipway.hf.Callback()]). Added later, it "
                "cannot make trainer.train() resume."
            )

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Leave a training that was resumed at its end: the Trainer would do one more step."""
        if state.global_step >= state.max_steps:
            raise _AtItsEndError

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Save where a stop was requested: on all ranks after the same step."""
        control.should_save |= self._started.boundary(step=state.global_step, saved=False)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Show that an evaluation goes on."""
        if self._run:
            self._run.beat()

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Mark the checkpoint as complete, and leave where a stop was requested."""
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        if dist.is_initialized():
            dist.barrier()
        if state.is_local_process_zero and folder.is_dir():  # on each node, since they may have disks of their own
            sync_tree(folder)
            (folder / COMPLETE).touch()
        self._started.boundary(step=state.global_step)

    @property
    def _started(self) -> slipway.ResumableRun:
        if self._run is None:
            raise RuntimeError("the training has not begun")
        return self._run

    def _find_trainer(self) -> Any:
        """The Trainer whose constructor is calling: callbacks are not told."""
        frame = sys._getframe().f_back
        while frame:
            if isinstance(trainer := frame.f_locals.get("self"), Trainer):
                return trainer
            frame = frame.f_back
        raise ConfigurationError("slipway.hf.Callback: pass it to the constructor of a Trainer.")


def _prepare(args: Any) -> Iterator[str]:
    """Change a Trainer's arguments to what a job needs that resumes; yield what to say of them."""
    if folder := os.environ.get("SLIPWAY_RUN_DIR"):
        args.output_dir = str(Path(folder, Path(args.output_dir or "trainer").name))
        if args.local_process_index == 0:
            Path(args.output_dir).mkdir(parents=True, exist_ok=True)
        yield f"the Trainer writes to {args.output_dir}, this run's own folder"
    if args.save_total_limit == 1:
        args.save_total_limit = 2  # the Trainer removes the old one before all ranks have written the new one
        yield "two checkpoints are kept instead of one, since a failure may leave the newest incomplete"
    if args.save_strategy == "no":
        yield "save_strategy is 'no', so the training is saved where it is stopped, and begins again after a failure"
    if args.save_only_model:
        yield "save_only_model=True: after a failure the optimizer and the schedule begin again"
    if args.ignore_data_skip:
        yield "ignore_data_skip=True: after a failure the epoch's data begin again"


def newest_checkpoint(folder: Path, device: torch.device) -> str | None:
    """The newest checkpoint in `folder` that is complete, and that all processes can read; None without any. All call this,
    and exchange numbers on `device`.

    Raises ConfigurationError where some of them can read one, and there is none that all can.
    """
    here = {int(found[1]) for path in folder.glob(f"*/{COMPLETE}") if (found := CHECKPOINT.fullmatch(path.parent.name))}
    newest, anywhere = max(here, default=0), False
    while dist.is_initialized():  # each goes back to the least of their newest, until that is the same
        both = torch.tensor([newest, -newest], device=device)
        dist.all_reduce(both, op=dist.ReduceOp.MIN)
        least, most = both[0].item(), -both[1].item()
        anywhere |= most > 0
        if least == most:
            break
        newest = max((step for step in here if step <= least), default=0)
    if anywhere and not newest:
        raise ConfigurationError(
            f"no checkpoint in {folder} can be read by the processes of all nodes, though some can read one. Put the runs on a "
            "disk that all nodes share (--runs DIR), or set save_on_each_node=True."
        )
    return str(folder / f"checkpoint-{newest}") if newest else None
