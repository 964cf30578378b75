"""Where a loop is in its data: in which epoch, in which of its calls of `run.batches`, and how far in that one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch.utils.data import Dataset

from slipway.protocol.mistake import ConfigurationError
from slipway.protocol.printable import counted
from slipway.train.snapshots.state import set_random_states
from slipway.train.user.data_attributes import DataAttributes, attributes_of, is_state
from slipway.train.user.found import GENERATORS, places_of_variables
from slipway.train.user.generators import (
    Drawing,
    Draws,
    Generator,
    RandomStates,
    all_random_states,
    generators_of,
    read_through,
    set_generator,
    state_of_generator,
)
from slipway.train.user.sources import BatchSource, Indexed, open_source, set_epoch
from slipway.train.user.unrepeatable import Iterators
from slipway.train.worker.context import Context


@dataclass
class DataPlace:
    """How far a call of `run.batches` came, the same on all ranks.

    `samples`: of all processes together, on which a job with another number of processes had trained; `batches`: of each
    process, after those.
    """

    call: int = 0  # in this epoch
    samples: int = 0
    batches: int = 0
    batch_size: int | None = None  # of one process, where samples can be skipped one by one
    length: int | None = None  # of all of it, in batches
    over: bool = False
    again: bool = False  # whether the same call was made in an epoch before

    @property
    def begun(self) -> bool:
        """Whether samples of it were trained on."""
        return bool(self.samples or self.batches)


class Position:
    """The position in the data, which moves as batches are handed out.

    Within `run.epochs` an epoch may have several calls of `run.batches`; elsewhere each call is an epoch of its own.
    """

    def __init__(self, context: Context, generators: Sequence[Generator] = ()) -> None:
        """At the beginning. `generators`: those that were passed, from which the script draws as from the process's own."""
        self._context, self._device, self._passed = context, context.device, generators
        self.goes_on = False  # whether the loop was given an iterator that had been read in an epoch before
        self._iterators, self._told = Iterators(), False
        self._yielded = 0  # batches of the call, in this process
        self.epoch, self.in_epochs, self.used = 0, False, False
        self.reading = DataPlace()
        self._calls = 0
        self._first = 0  # the batches that make up what a job with another number of processes had read of this pass
        self._source: BatchSource | None = None  # that is being read
        self._begun: Draws | None = None  # as it began
        self._starts: list[Draws] = []  # of an epoch, and after each of its calls: from which other code draws
        self._generators: dict[int, list[Drawing]] = {}  # of the loaders, with attributes of their data, by call
        self._stored: dict[int, list[Any]] = {}  # their states where the loop resumes, until the call
        self._resumed: list[Drawing] = []  # those that have them again; several loaders may share one
        self._noted = False
        self._again: list[tuple[Drawing, Any]] = []  # attributes of data where the loop resumes, until its call
        self._made: list[Drawing] = []  # that the script had made before its loop; each epoch may make others
        self._state: Any = None  # of the source where the loop resumes, until it is opened
        self._random: RandomStates | None = None  # where the loop resumes, until it does

    @property
    def calls(self) -> int:
        """How many calls of `run.batches` there were in this epoch."""
        return self._calls

    @property
    def generators(self) -> set[int]:
        """The identities of the generators that are saved with the position."""
        return {id(each) for own in self._generators.values() for each in own}

    @property
    def is_midway(self) -> bool:
        """Whether data of an epoch were read."""
        return self.in_epochs and (self.reading.begun or self.reading.over or self.reading.call > 0)

    def begin_epoch(self) -> None:
        """Begin an epoch, or resume in its midst: what comes before `batches` draws the same again; that restores the rest."""
        self._calls, self.in_epochs = 0, True
        if self._stored or not self._noted:
            self._note_made()
        if self._starts:
            self._restore_start(0)
        else:
            self.restore_random()
            self._starts = [self._draws()]

    def end_epoch(self) -> None:
        """Note that the epoch is over."""
        self.epoch += 1
        self.reading, self._calls, self._source, self._begun = DataPlace(), 0, None, None
        self._starts, self._made = [], []  # what is read is known by now, and nothing else is kept alive

    def restore_random(self) -> None:
        """Until the loop has resumed: have the random generators as they were in the snapshot."""
        if self._random is not None:
            set_random_states(self._device, self._random)

    def _restore_start(self, number: int) -> None:
        if number < len(self._starts):
            self._starts[number].restore(self._device, self._passed)

    def _draws(self) -> Draws:
        return Draws(all_random_states(self._device), [*map(state_of_generator, self._passed)])

    @property
    def resumed_with(self) -> RandomStates | None:
        """The states that the loop will begin with, until it has."""
        return self._random

    @property
    def reads(self) -> bool:
        """Whether anything was read in this epoch."""
        return self._calls > 0

    @property
    def is_first(self) -> bool:
        """Whether the batch is the first one of its call in the first epoch of this process."""
        return self._yielded == 1 and not self.reading.again

    @property
    def batch(self) -> int:
        """The number of the batch that was read last, within its pass."""
        return max(0, self._first + self.reading.batches - 1)

    @property
    def draws_in_workers(self) -> bool:
        """Whether worker processes draw random numbers for the batches that are read, which no restart would draw again."""
        return isinstance(self._source, Indexed) and self._source.draws_in_workers

    @property
    def is_last(self) -> bool:
        """Whether that is the last one of its pass, as far as is known."""
        return self.in_epochs and not self.reading.over and self.batch == (self.reading.length or 0) - 1

    def give_back(self) -> bool:
        """Count the batch that was read last as not trained on; return False where its source cannot read it again."""
        back = self._source is not None and self._source.state() is None
        self.reading.batches -= back
        return back

    def note_resumed(self) -> None:
        """Note that the loop has resumed, unless `batches` still has to."""
        if self._source is not None or not self.reading.begun:
            self._random = None

    def batches(self, loader: Any, seed: int | None, boundary: Callable[[], object]) -> Iterator[Any]:
        """Yield the batches that were not trained on, with a `boundary` after each. `seed`: see `open_source`."""
        if self._source is not None:
            raise ConfigurationError(
                "run.batches was called while batches of another call were still being read. Combine the data sets "
                "(torch.utils.data.StackDataset, ConcatDataset), and iterate over a validation loader without run.batches."
            )
        self.used = True
        call, self._calls = self._calls, self._calls + 1
        if call < self.reading.call or (call == self.reading.call and self.reading.over):
            self._resume_generators(call, self._drawing(loader), begun=True)
            self._restore_start(call + 1)
            return
        if call > self.reading.call:
            self.reading, self._begun = DataPlace(call), None
        iterator, reading = self._begin(loader, seed), self.reading
        self.note_resumed()
        self._yielded = 0
        try:
            for batch in iterator:
                reading.batches += 1
                self._yielded += 1
                yield batch
                boundary()
        finally:  # the loop was left, by `break` or because there are no more batches
            if reading is self.reading:
                reading.over, self._source, self._begun = True, None, None
                self._starts.append(self._draws())
                if not self.in_epochs:
                    self.end_epoch()

    def _begin(self, loader: Any, seed: int | None) -> Iterator[Any]:
        reading, device = self.reading, self._device
        source = open_source(loader, self._say_again, seed, reading.call, device)
        self._note_iterator(loader)
        set_epoch(loader, self.epoch)
        require_same_batches(reading, source, self.epoch)
        again = reading.call in {*self._generators, *self._stored}
        generators = self._drawing(loader)
        self._resume_generators(reading.call, generators, begun=reading.begun or not self.in_epochs)
        if reading.begun or not self.in_epochs:
            self.restore_random()
        # Code that makes the batches, such as a generator function, may draw from those that were passed.
        drawing = [*generators, *self._passed]
        now = Draws(all_random_states(device), [*map(state_of_generator, drawing)])
        if self._begun is None:
            self._begun, reading.again = now, again
        begun = self._begun
        begun.restore(device, drawing)
        if self._state is not None:
            source.load(self._state)
            self._state = None
        samples = reading.samples // self._context.place.world_size
        iterator = source.begin(
            self.epoch,
            samples,
            reading.batches,
            (lambda: begun.restore(device, drawing)) if reading.again else None,
            # What the order of the data drew was drawn before the snapshot.
            (lambda: now.restore(device, drawing)) if reading.begun else None,
        )
        reading.length, reading.batch_size = source.length, source.batch_size
        self._first = source.batches_in(samples)
        self._source = source
        self._name_outgrown(generators)
        return iterator

    def _drawing(self, loader: Any) -> list[Drawing]:
        """The generators of a loader, and the attributes of what it reads from, with what the script had built."""
        return [*generators_of(loader), *self._attributes(read_through(loader))]

    def _attributes(self, places: Iterable[Any]) -> list[DataAttributes]:
        seen = [each for own in (self._made, *self._generators.values()) for each in own]
        return attributes_of(places, [each for each in seen if isinstance(each, DataAttributes)])

    def _note_made(self) -> None:
        """Note what the script had made before its loop, as it had built that. After a restart, have the attributes of data be as
        in the snapshot, so that the epoch finds them so, if name or class tell which object is meant. Others wait for their call.
        """
        self._noted = True
        variables = places_of_variables()
        values = [each.value for each in variables.values()]
        known = self._attributes(values)
        for each in known:
            each.name = variables[id(each.inner)].name
        self._made = [*(each for each in values if isinstance(each, GENERATORS)), *known]
        for state in filter(is_state, (each for own in self._stored.values() for each in own)):
            alike = [each for each in known if each.kind == state["kind"]]
            meant = [each for each in alike if len(alike) == 1 or each.name == state["name"]]
            if meant and not is_in(self._resumed, meant[0]):
                self._resumed.append(meant[0])
                meant[0].load(state)

    def _resume_generators(self, call: int, generators: Sequence[Drawing], *, begun: bool) -> None:
        """Have the generators of a call as they were in the snapshot, in which it had `begun`, or another epoch's call before it.

        One that did so with another call has been drawn from, and one that this epoch has made or set is as it should be.
        """
        self._generators[call] = [*generators]
        for generator, state in zip(generators, self._stored.pop(call, ()), strict=False):
            if is_state(state) != isinstance(generator, DataAttributes):
                break  # the script has others now
            if isinstance(generator, DataAttributes) and begun:
                self._again.append((generator, state))
            elif isinstance(generator, DataAttributes) and generator.state()["attributes"]:
                continue  # the epoch's code has set them
            elif is_in(self._resumed, generator) or not (begun or is_in(self._made, generator)):
                continue
            self._resumed.append(generator)
            set_generator(generator, state)
        if call == self.reading.call and begun and not self.reading.over:
            for generator, state in self._again:  # of the calls before this one, after which code has run again
                set_generator(generator, state)
            self._again = []

    def _note_iterator(self, loader: Any) -> None:
        """Say once that a loop reads on from an iterator, which no restart can."""
        again = self._iterators.goes_on(loader, self.reading.call)
        self.goes_on = again or (self.goes_on and isinstance(loader, Iterator))
        if self.goes_on and not self._told:
            self._told = True
            self._warn(
                f"warning: run.batches({type(loader).__name__}) reads from an iterator that was made before the epoch. It cannot "
                "begin again: after a resume it is not where it was, and the samples are others. Pass what begins again in each "
                "epoch, such as the loader itself, or read the iterator in a single run.batches, without run.epochs."
            )

    def _name_outgrown(self, drawing: Sequence[Drawing]) -> None:
        for each in (own for own in drawing if isinstance(own, DataAttributes)):
            for name in each.outgrown():
                kind = type(each.inner).__name__
                instead = (
                    f"Compute the order from the epoch's number instead: a method set_epoch(epoch) of {kind} is called before "
                    "each epoch."
                )
                if isinstance(each.inner, Dataset):
                    instead = "Keep it in a buffer of a model that is passed to slipway.resume."
                self._warn(
                    f"warning: {kind}.{name} is changed while {kind} is read, and is too long to be saved: after a failure it "
                    f"starts from its beginning. {instead}"
                )

    def _warn(self, text: str) -> None:
        if self._context.place.rank == 0:
            self._context.warn(text)

    def _say_again(self, text: str) -> None:
        if not self.goes_on:
            self._context.say(text)

    def describe(self) -> dict[str, Any]:
        """Return what all ranks have in common, as JSON."""
        return {"epoch": self.epoch, "in_epochs": self.in_epochs, "goes_on": self.goes_on, **asdict(self.reading)}

    def of_rank(self) -> dict[str, Any]:
        """Return what differs from rank to rank, besides the random generators as they are now."""
        begun = self._begun
        return {
            "starts": [dict(each.random) for each in self._starts],
            "passed": [[*each.generators] for each in self._starts],
            "random": dict(begun.random) if begun else None,
            "begun": [*begun.generators] if begun else [],
            "generators": self._stored
            | {call: [*map(state_of_generator, own)] for call, own in self._generators.items()},
            "source": self._source.state() if self._source else self._state,
        }

    def load(self, described: Mapping[str, Any], own: Mapping[str, Any], world_size: int) -> None:
        """Restore a position; `own` is what this rank returned from `of_rank`, or another one if there was no such rank.

        `world_size`: the number of processes that the position comes from. The random generators are as the loop needs them.
        """
        fields = dict(described)
        self.epoch, self.in_epochs = fields.pop("epoch"), fields.pop("in_epochs")
        self.goes_on = fields.pop("goes_on", False)
        self.reading = DataPlace(**fields)
        passed = own.get("passed") or [()] * len(own["starts"])  # in snapshots of earlier versions
        self._starts = [Draws(*each) for each in zip(own["starts"], passed, strict=True)]
        self._random = all_random_states(self._device)
        if world_size == self._context.place.world_size:
            self._begun = Draws(own["random"], own["begun"]) if own["random"] else None
            self._stored, self._state = dict(own["generators"]), own["source"]
        elif self.reading.begun:
            self._divide_anew(world_size)

    def _divide_anew(self, before: int) -> None:
        reading, now = self.reading, self._context.place.world_size
        reading.length = None
        if reading.batch_size is None:
            self._context.say(
                f"note: the data have no indices that could be divided among {now} processes instead of {before}: each resumes "
                f"after {counted(reading.batches, 'batch')} of its own, so samples may be missing or used twice in this epoch"
            )
            return
        reading.samples += reading.batches * reading.batch_size * before
        reading.batches = 0
        if rest := reading.samples % now:
            reading.samples -= rest
            self._context.say(
                f"note: used twice in this epoch, since {now} processes cannot divide what is left: {counted(rest, 'sample')}"
            )


def is_in(generators: Sequence[Drawing], generator: Drawing) -> bool:
    """Whether a generator, and not one that is equal, is among others."""
    return any(generator is each for each in generators)


def require_same_batches(reading: DataPlace, source: BatchSource, epoch: int) -> None:
    """Raise ConfigurationError where a loader that is to be resumed in its midst has other batches than it had."""
    if not reading.begun or reading.length is None:
        return
    if source.length != reading.length:
        differ = f"has {source.length} batches, and it had {reading.length}"
    elif source.batch_size != reading.batch_size:
        differ = f"has a batch size of {source.batch_size}, and it had one of {reading.batch_size}"
    else:
        return
    raise ConfigurationError(
        f"The loader {differ} when the snapshot was taken, after batch {reading.batches} of epoch {epoch}: it is not known which "
        "samples were trained on. Use the same data and the same batch size, or start another run: --run-dir PATH."
    )
