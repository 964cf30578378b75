"""What a snapshot of a user's own loop contains, and how it is restored (see Contents in snapshots/job.py)."""

from __future__ import annotations

import hashlib
import json
import secrets
import sys
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch

from slipway.protocol.mistake import ConfigurationError
from slipway.protocol.redact import redact_words
from slipway.train.snapshots.snapshot import Snapshot
from slipway.train.snapshots.state import load_random_states, other_random_states, set_random_states
from slipway.train.user.by_rank import RUN, Collected, names_of, own_pieces, with_own
from slipway.train.user.counts import Counts
from slipway.train.user.declared import Declared, require_same_arguments
from slipway.train.user.generators import RandomStates, all_random_states
from slipway.train.user.joining import is_launched
from slipway.train.user.module_attributes import ModuleAttributes
from slipway.train.user.objects import Objects, Tensors
from slipway.train.user.pause import Pause
from slipway.train.user.position import Position
from slipway.train.user.repeated import Repeated
from slipway.train.user.replaying import UserReplays
from slipway.train.user.unrepeatable import EarlyUse, Structure
from slipway.train.user.values import from_bytes, pack_plain, to_bytes, unpack
from slipway.train.worker.context import Context

SMALLEST = 1 << 14  # bytes for what a rank has of its own in a snapshot: its generators take some 8 KiB
LOOP = "own"  # what snapshots of users' loops say of themselves


class RunContents:
    """Everything that a run restores: the passed objects, `state`, the position, random generators, and how far it is."""

    def __init__(
        self,
        context: Context,
        objects: Objects,
        counts: Counts,
        position: Position,
        pause: Pause,
        replays: UserReplays,
        warn: Callable[[str], None],
    ) -> None:
        """At the first start, by all ranks. `warn` prints a line on rank 0, unless it is empty."""
        self.state: dict[str, Any] = {}  # the user's plain values
        self.declared = Declared(objects, warn)
        self._context, self._objects, self._counts = context, objects, counts
        self._position, self._pause, self._replays, self._warn = position, pause, replays, warn
        self.attributes = ModuleAttributes(objects)
        self._structure, self._repeated = Structure(objects), Repeated(objects, self.attributes)
        self._early = EarlyUse(objects, warn)
        self._first: RandomStates = all_random_states(context.device)  # at the first start of the run
        # Of samples, where they are seeded.
        self.seed = int(context.share(torch.tensor(torch.initial_seed() % 2**62)))
        self._series = context.share_text(secrets.token_hex(8))  # tells this start from others
        self._collected: Collected | None = None  # for the snapshot that is being taken

    @property
    def number(self) -> int:
        """See Contents: `step`, but that each boundary counts at which any optimizer stepped."""
        return self._counts.number

    @property
    def mark(self) -> Hashable:
        """See Contents."""
        return (self.number, *self.place().values())

    def place(self) -> dict[str, Any]:
        """Return how far the run is, as it is also recorded where it is proven."""
        return {"step": self._counts.step, "iteration": self._counts.iteration, **self._position.describe()}

    def align(self) -> None:
        """Nothing is: what differs is stored for each rank."""

    def require_sound(self) -> None:
        """Forbid nothing: whether a number may be infinite is the user's affair."""

    def check_state(self) -> bool:
        """Return whether `state` holds anything. Raises ConfigurationError if that cannot be saved."""
        return bool(pack_plain(self.state, "run.state", {}))

    def of_rank(self) -> Mapping[str, torch.Tensor]:
        """See Contents."""
        tensors, packed, sharded = self._objects.collect()
        tensors[RUN] = {}
        state = self.state
        if not self._counts.finishing:
            changed, before, _ = self._repeated.since_rest(self._counts.step)
            for (name, part), text in changed.items():
                packed[name][part] = json.loads(text)
            state = state if before is None else before
        self._collected = Collected(tensors, packed, sharded, pack_plain(state, "run.state", tensors[RUN]))
        parts = {
            "lines": self._counts.lines,
            "own": {},
            "first": dict(self._first),
            "attributes": self.attributes.changed(),
            "replaced": self._repeated.replaced if self._position.is_midway else {},
            **self._position.of_rank(),
        }
        own = to_bytes(parts, "the data loader's state_dict()")
        differing, most = own_pieces(self._context, self._objects, self._collected, len(own))
        if not most:
            own = to_bytes({**parts, "own": differing}, "the data loader's state_dict()")
            most = int(max(self._context.gather_number(len(own))))
        # Room in memory is made for tensors of certain sizes, and a snapshot of other sizes is not kept while new room is
        # made. The texts in here differ in length from step to step.
        size = max(SMALLEST, 1 << (most - 1).bit_length())
        data = torch.cat(
            [torch.tensor([len(own)]).view(torch.uint8), own, torch.zeros(size - len(own), dtype=torch.uint8)]
        )
        return {**other_random_states(), **(self._pause.states or {}), "data": data}

    def collect(self) -> tuple[Tensors, dict[str, Any]]:
        """See Contents."""
        collected, self._collected = self._collected, None
        assert collected is not None  # by `of_rank`
        for change in self._structure.changes():
            self._warn(change)
        counts = self._counts
        number = number_of(self._series, self.mark, counts.finishing)
        return collected.tensors, {
            "loop": LOOP,
            "objects": collected.packed,
            **({"sharded": collected.sharded, "set": number} if collected.sharded else {}),
            "kinds": self._objects.kinds,
            "values": collected.values,
            "position": self._position.describe(),
            "iteration": counts.iteration,
            "steps": counts.step,
            "fresh": self._pause.fresh,
            "finished": [counts.loop, counts.total] if counts.finishing else None,
            "looped": counts.looped or bool(counts.loop) or self._position.used,
            "seed": self.seed,
            "declared": self.declared.state(),
            "arguments": redact_words(sys.argv[1:]),
            **self._replays.state(),
        }

    def drop(self) -> None:
        """Let go of what `of_rank` kept for `collect`, on a rank that keeps no snapshot."""
        self._collected = None

    def begin_epoch(self) -> None:
        """Begin an epoch, or resume within it."""
        self._repeated.begin(self.state)
        self._position.begin_epoch()
        self._early.begin_epoch()

    def begin_batches(self) -> None:
        """At a call of `run.batches`: where the loop resumes in this one, undo what came before it in the epoch a second time."""
        self._early.begin_data()
        if self._position.calls == self._position.reading.call:
            self._repeated.undo(self.state)

    def rest(self) -> None:
        """Note that the code of an epoch begins, or what follows its data: if the job stops there, all of it is done again."""
        self._repeated.rest(self.state, self._counts.step)

    def go_on(self) -> None:
        """Note that it is over."""
        self._repeated.go_on()

    def changed_for_good(self) -> list[str]:
        """Return the names of the objects that this code has changed, and that no snapshot can have as they were before it."""
        return self._repeated.since_rest(self._counts.step)[2]

    def note_moved(self) -> None:
        """Note that the state is another one than at the last boundary."""
        self._position.note_resumed()
        self._repeated.drop()
        self._counts.move()

    def load(self, found: Snapshot, environ: Mapping[str, str]) -> None:
        """Restore everything. Raises ConfigurationError if it is the snapshot of something else."""
        context, place, counts = self._context, self._context.place, self._counts
        state, ranks = found.state, found.tensors["ranks"]
        if state.get("loop") != LOOP:
            origin = f"the workload {state['workload']}" if "workload" in state else "another program"
            raise ConfigurationError(
                f"The snapshot to resume from is one of {origin}, not of a script with slipway.resume."
            )
        if not is_launched(environ) and not environ.get("SLIPWAY_RESUME"):
            require_same_arguments(redact_words(sys.argv[1:]), state["arguments"], str(place.run_dir))
        before = state["world_size"]
        rank = place.rank if before == place.world_size else None
        data = data_of(ranks, place.rank if place.rank < before else 0)
        own = data["own"] if rank is not None else data_of(ranks, 0)["own"]
        if rank is None and own:
            context.say(f"note: {before} processes had values of their own of {names_of(own)}: all have rank 0's now")
        snapshot = with_own(found, own)
        with self.attributes.loaded_beside(data.get("attributes", {})):
            self._objects.load(snapshot)
        self.declared.load(state["declared"])
        self.state.update(unpack(snapshot.state["values"], snapshot.tensors[RUN]))
        counts.resume(snapshot.step, state.get("steps", snapshot.step))
        counts.iteration, self.seed = state["iteration"], state["seed"]
        counts.finished = tuple(state["finished"]) if state.get("finished") else None
        counts.lines = data_of(ranks, 0)["lines"]
        self._replays.resume(snapshot.step, state)
        load_random_states(context.device, ranks, rank, self.seed + counts.step + place.rank)
        self._position.load(state["position"], data, before)
        if self._position.is_midway:
            self._repeated.hold(snapshot, data.get("replaced", {}))
        if state["fresh"]:
            self._position.note_resumed()
        counts.looped = state["looped"]
        if (counts.looped or state["fresh"]) and context.device.type in data["first"]:
            self._first = data["first"]  # the loop sets those of the snapshot
            set_random_states(context.device, self._first)


def number_of(*what: object) -> int:
    """Return a number for a state, by which its parts know each other."""
    return int.from_bytes(hashlib.blake2b(repr(what).encode(), digest_size=7).digest(), "little")


def data_of(ranks: Mapping[str, torch.Tensor], rank: int) -> dict[str, Any]:
    """Undo `RunContents.of_rank` for its data."""
    stored = ranks[f"{rank}.data"].contiguous()
    size = int(stored[:8].clone().view(torch.int64))
    return dict(from_bytes(stored[8 : 8 + size]))
