"""What a loop reads its batches from, and how each kind begins again where it was.

| source | how it resumes |
| --- | --- |
| a DataLoader over a map-style data set | its indices are skipped, and no sample is read twice |
| an object with `state_dict` and `load_state_dict` | by its own state |
| anything else that can be iterated | it is read again up to the position, and draws the same random numbers |
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, islice
from threading import Thread
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from slipway.protocol.mistake import ConfigurationError
from slipway.protocol.printable import counted
from slipway.train.snapshots.state import random_states, set_random_states
from slipway.train.user.worker_draws import NotedCollate

CPU = torch.device("cpu")
Draw = Callable[[], None] | None
# Where loaders of accelerate and of Lightning Fabric keep torch's.
INSIDE = ("base_dataloader", "_dataloader")
MOST_PARTS = 1000  # of a loader: an object may make new ones whenever it is asked
END = object()  # in the place of a batch
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)  # signals that stop a job


class BatchSource(Protocol):
    """Where batches come from."""

    length: int | None  # of a pass, in batches, where it is known
    batch_size: int | None  # of this process, where indices can be skipped one by one

    def begin(self, epoch: int, samples: int, batches: int, again: Draw, then: Draw) -> Iterator[Any]:
        """Begin a pass after so many `samples` of this process and, after those, so many `batches`.

        `again`: the loader was read in an epoch before, and this restores the random generators as they were just before this
        call. `then`: samples are skipped, and this has to be called after all that draws random numbers before the first batch.
        """

    def batches_in(self, samples: int) -> int:
        """Return how many batches of a pass are over once so many `samples` of this process are skipped."""

    def state(self) -> Any:
        """Return what has to be kept besides the position."""

    def load(self, state: Any) -> None:
        """Restore `state`, before `begin`."""


def open_source(
    loader: Any, say: Callable[[str], None], seed: int | None, call: int = 0, device: torch.device = CPU
) -> BatchSource:
    """Return the source for what a user passed to `run.batches`. `seed`: samples are seeded one by one, None: they are not.
    `call`: the number of the call in its epoch. `device`: whose random generator is used beside those of the CPU.

    Raises ConfigurationError for what cannot be iterated, and for a `seed` where no sample has an index.
    """
    if not isinstance(loader, Iterable):
        raise ConfigurationError(f"run.batches takes a DataLoader or anything else to iterate over, not {loader!r}.")
    if isinstance(loader, enumerate | _BaseDataLoaderIter):
        raise ConfigurationError(
            f"run.batches({type(loader).__name__}): Slipway cannot tell where this iterator began. Pass the loader itself, "
            "and wrap the result: enumerate(run.batches(loader)), iter(run.batches(loader))."
        )
    inner = inner_of(loader)
    if isinstance(inner, DataLoader) and inner.num_workers and not isinstance(inner.worker_init_fn, Sheltered):
        inner.worker_init_fn = Sheltered(inner.worker_init_fn)
    if callable(getattr(inner, "state_dict", None)) and callable(getattr(inner, "load_state_dict", None)):
        source: BatchSource = WithState(loader)
    elif isinstance(inner, DataLoader) and not isinstance(inner.dataset, IterableDataset):
        return Indexed(loader, inner, seed)
    else:
        source = Plain(loader, say, call, device)
    if seed is not None:
        raise ConfigurationError(
            "exact_augmentation=True needs a DataLoader over a data set with indices, since a sample is seeded by its "
            "position. Leave it out here, or give the data set __getitem__ and __len__."
        )
    return source


def inner_of(loader: Any) -> Any:
    """Return torch's loader within one of a framework, or else the loader itself."""
    return next((loader.__dict__[name] for name in INSIDE if name in getattr(loader, "__dict__", ())), loader)


def data_of_workers(loader: Any) -> str:
    """Return the class of the data set that worker processes of a loader read from; empty if it has none."""
    inner = inner_of(loader)
    data = getattr(inner, "dataset", None)
    data = data.inner if isinstance(data, Seeded) else data
    return type(data).__name__ if isinstance(inner, DataLoader) and inner.num_workers else ""


def begin_pass(loader: Any) -> Iterator[Any]:
    """Return `iter(loader)`. Worker processes that this starts inherit that STOPS are blocked, and so does every thread there.

    `Sheltered` comes too late for some: an older loader's iterator that is collected in a new worker starts threads.
    """
    before = signal.pthread_sigmask(
        signal.SIG_BLOCK, STOPS if isinstance(getattr(inner_of(loader), "worker_init_fn", None), Sheltered) else ()
    )
    try:
        return iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Sheltered:
    """What a worker process of a loader does first: from now on only the process that trains can stop it.

    torchrun and some schedulers send a signal to every process of a job. A worker that it ended would be an error in the process
    that trains, before that has saved anything.
    """

    def __init__(self, inner: Callable[[int], None] | None) -> None:
        """`inner` is the user's own `worker_init_fn`."""
        self._inner, self._trains = inner, os.getpid()

    def __call__(self, worker: int) -> None:
        """In the worker, where torch has set its own handlers before."""
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        Thread(target=self._obey, daemon=True).start()
        if self._inner is not None:
            self._inner(worker)

    def _obey(self) -> None:
        while signal.sigwaitinfo(STOPS).si_pid != self._trains:
            continue
        os._exit(0)  # as torch's handler does, so that the loader does not report an error


def set_epoch(loader: Any, epoch: int) -> None:
    """Call `set_epoch` of a loader, of its samplers and of its data sets, at whatever depth, where there is one."""
    if hasattr(loader, "_num_iter_calls"):  # Lightning Fabric's, by which it calls `set_epoch` itself
        loader._num_iter_calls = epoch
    for place in parts_of(loader, "sampler", "batch_sampler"):
        call_set_epoch(place, epoch)
    inner = inner_of(loader)
    data = parts_of(getattr(inner, "dataset", None), "dataset", "datasets")
    ordered = [place for place in data if call_set_epoch(place, epoch)]
    if getattr(inner, "persistent_workers", False) and not all(map(is_shared, ordered)):
        inner._iterator = None  # the workers have copies that know nothing of it: they are started again


def call_set_epoch(place: Any, epoch: int) -> bool:
    """Call `set_epoch` where there is one; return whether there is."""
    set_it = getattr(place, "set_epoch", None)
    if callable(set_it):
        set_it(epoch)
    return callable(set_it)


def is_shared(data: Any) -> bool:
    """Whether a data set keeps a number where its copies in other processes see it, as that of `datasets` keeps its epoch."""
    tensors = (each for each in getattr(data, "__dict__", {}).values() if isinstance(each, torch.Tensor))
    return any(each.is_shared() for each in tensors)  # type: ignore[no-untyped-call]


def parts_of(outer: Any, *names: str) -> list[Any]:
    """Return what `outer` consists of, itself first: all that these attributes hold, at any depth, a list's parts one by one."""
    found: dict[int, Any] = {}
    waiting = [outer]
    while waiting and len(found) < MOST_PARTS:
        place = waiting.pop(0)
        if place is None or id(place) in found:
            continue
        found[id(place)] = place
        for name in names:
            inside = getattr(place, name, None)
            waiting += inside if isinstance(inside, list | tuple) else [inside]
    return list(found.values())


def length_of(loader: Any) -> int | None:
    """Return the number of batches in a pass, None where nobody knows."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError, AttributeError):
        return None


class WithState:
    """An object that knows its own position, such as torchdata's StatefulDataLoader."""

    batch_size: int | None = None

    def __init__(self, loader: Any) -> None:
        """`loader` has `state_dict` and `load_state_dict`."""
        self._loader, self.length = loader, length_of(loader)

    def begin(self, epoch: int, samples: int, batches: int, again: Draw, then: Draw) -> Iterator[Any]:
        """See BatchSource; its state says where."""
        iterator = begin_pass(self._loader)
        if then is not None:
            then()
        return iterator

    def batches_in(self, samples: int) -> int:
        """See BatchSource."""
        return 0

    def state(self) -> Any:
        """See BatchSource."""
        return self._loader.state_dict()

    def load(self, state: Any) -> None:
        """See BatchSource."""
        self._loader.load_state_dict(state)


class Plain:
    """Anything else: a list, a DataLoader over an iterable data set, a generator."""

    batch_size: int | None = None

    def __init__(self, loader: Any, say: Callable[[str], None], call: int, device: torch.device) -> None:
        """`say` is called with how long it took to read up to a position. `call`, `device`: see open_source."""
        self._loader, self._say, self.length = loader, say, length_of(loader)
        self._call, self._device = call, device

    def begin(self, epoch: int, samples: int, batches: int, again: Draw, then: Draw) -> Iterator[Any]:
        """See BatchSource."""
        begun = time.monotonic()
        iterator = self._read(begin_pass(self._loader), epoch)
        for _ in islice(iterator, batches):
            continue
        if then is not None:
            then()
        if batches:
            kind = type(self._loader).__name__
            self._say(
                f"read {counted(batches, 'batch')} of {kind} again in {time.monotonic() - begun:.1f} s, to resume after them"
            )
        return iterator

    def _read(self, iterator: Iterator[Any], epoch: int) -> Iterator[Any]:
        """Yield the batches. From the second on, each is read with random numbers of its own: what the order of a next pass draws
        would else depend on what the script draws between the batches, and nobody draws that while they are read again.
        """
        first = [*islice(iterator, 1)]
        place = hashlib.blake2b(f"{self._call}".encode() + bytes(torch.get_rng_state().numpy()), digest_size=7).digest()
        yield from first
        for seed in seeds_of(int.from_bytes(place, "little"), epoch, 0, 1, 1):
            with seeded(seed, self._device):
                batch = next(iterator, END)
            if batch is END:
                return
            yield batch

    def batches_in(self, samples: int) -> int:
        """See BatchSource."""
        return 0

    def state(self) -> None:
        """See BatchSource."""

    def load(self, state: Any) -> None:
        """See BatchSource."""


class Indexed:
    """A DataLoader over a map-style data set: indices are skipped, so nothing is read twice.

    Its sampler of indices is replaced, in the loader itself, by one that can skip; so persistent workers go on to be used.
    """

    def __init__(self, loader: Any, inner_loader: DataLoader[Any], seed: int | None) -> None:
        """`loader` reads from `inner_loader`, or is that. `seed`: every sample is seeded by this, the epoch and its position."""
        self.length = length_of(loader)
        name = "batch_sampler" if inner_loader.batch_sampler is not None else "sampler"
        inner = getattr(inner_loader, name)
        self._loader, self._inner = loader, inner_loader
        self._skipping = inner if isinstance(inner, Skipping) else Skipping(inner)
        self.batch_size = inner.batch_size if plain_batches(self._skipping.inner) else None
        self._skipping.seed = seed
        if inner is not self._skipping:
            self._replace(name, self._skipping)
        if seed is not None and not isinstance(inner_loader.dataset, Seeded):
            self._replace("dataset", Seeded(inner_loader.dataset))
            self._replace("collate_fn", SeededCollate(inner_loader.collate_fn))
        if seed is None and inner_loader.num_workers and not isinstance(inner_loader.collate_fn, NotedCollate):
            self._replace("collate_fn", NotedCollate(inner_loader.collate_fn))

    @property
    def draws_in_workers(self) -> bool:
        """Whether samples that are not seeded draw random numbers in worker processes, as far as is known."""
        return isinstance(noted := self._inner.collate_fn, NotedCollate) and noted.drew

    def _replace(self, name: str, value: Any) -> None:
        # DataLoader refuses to set these, since workers that run already would not notice: they are started again.
        self._inner.__dict__[name] = value
        self._inner._iterator = None

    def begin(self, epoch: int, samples: int, batches: int, again: Draw, then: Draw) -> Iterator[Any]:
        """See BatchSource."""
        # Persistent workers draw their seed once, in the process that started them; later epochs draw the order alone.
        persistent = self._inner.persistent_workers and self._inner._iterator is None
        self._skipping.arrange(epoch, samples, batches, again if persistent else None, then)
        iterator = begin_pass(self._loader)
        # Without workers the sampler would begin with the first batch, in the midst of what that draws.
        if not self._skipping.begin():  # a generator, which begins as late
            iterator = chain([*islice(iterator, 1)], iterator)
        self._skipping.arrange(epoch, 0, 0)  # for whoever iterates over the loader without us
        return iterator

    def batches_in(self, samples: int) -> int:
        """See BatchSource."""
        inner = self._skipping.inner
        if not samples or self.length is None:
            return 0
        rest = range(len(inner.sampler) - samples)
        return self.length - len(BatchSampler(rest, inner.batch_size, inner.drop_last))

    def state(self) -> None:
        """See BatchSource."""

    def load(self, state: Any) -> None:
        """See BatchSource."""


def plain_batches(sampler: Any) -> bool:
    """Whether a sampler only puts the indices of another one together."""
    return type(sampler) is BatchSampler


class Skipping:
    """A sampler of indices or of batches of these, whose next pass can begin in the midst of one of the `inner`."""

    def __init__(self, inner: Any) -> None:
        """`inner` is the loader's own."""
        self.inner = inner
        self.seed: int | None = None
        self._under_way: SkippingIterator | None = None
        self.arrange(0, 0, 0)

    def arrange(self, epoch: int, samples: int, batches: int, restart: Draw = None, then: Draw = None) -> None:
        """Let the next pass, of this epoch, begin after so many `samples`, which only plain batches can, and `batches`. `restart`
        is called before the first index is drawn, `then` before the first that is not skipped.
        """
        self._epoch, self._samples, self._batches = epoch, samples, batches
        self._restart, self._then = restart, then
        self._under_way = None

    def begin(self) -> bool:
        """Skip now what the pass that was begun since `arrange` is to skip; return whether there is one."""
        if self._under_way is not None:
            self._under_way.begin()
        return self._under_way is not None

    def __iter__(self) -> SkippingIterator:
        """Begin a pass, by the DataLoader. Like a sampler of torch's it draws no random number before the first index."""
        epoch, samples, batches = self._epoch, self._samples, self._batches  # DataLoader calls this twice with workers
        seeds = None if self.seed is None else seeds_of(self.seed, epoch, samples, *places_of(self.inner))
        self._under_way = SkippingIterator(self.inner, samples, batches, seeds, self._restart, self._then)
        return self._under_way

    def __len__(self) -> int:
        """The length of a whole pass."""
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        """Whatever else the sampler has; `set_epoch` for one."""
        if name == "inner":  # while it is copied
            raise AttributeError(name)
        return getattr(self.inner, name)


class SkippingIterator:
    """A pass over a sampler."""

    def __init__(
        self,
        inner: Any,
        samples: int,
        batches: int,
        seeds: Iterator[int] | None,
        restart: Draw,
        then: Draw,
    ) -> None:
        """`seeds`: one for each index. `restart`, `then`: see Skipping."""
        self._restart, self._then = restart, then
        self._inner, self._samples, self._batches, self._seeds = inner, samples, batches, seeds
        self._indices: Iterator[Any] | None = None

    def begin(self) -> Iterator[Any]:
        """Skip what is to be skipped, once."""
        if self._indices is None:
            inner = self._inner
            if self._restart is not None:
                self._restart()
            if self._samples:
                rest = islice(iter(inner.sampler), self._samples, None)
                inner = BatchSampler(rest, inner.batch_size, inner.drop_last)
            self._indices = iter(inner)
            for skipped in islice(self._indices, self._batches):
                self._with_seeds(skipped)
            if self._then is not None:
                self._then()
        return self._indices

    def __iter__(self) -> SkippingIterator:
        """Itself."""
        return self

    def __next__(self) -> Any:
        """The next index, or batch of them; with a seed each where they are seeded."""
        return self._with_seeds(next(self.begin()))

    def _with_seeds(self, indices: Any) -> Any:
        if self._seeds is None:
            return indices
        if isinstance(indices, list | tuple):
            return [SeededIndex(*each) for each in zip(indices, self._seeds, strict=False)]
        return SeededIndex(indices, next(self._seeds))


def places_of(sampler: Any) -> tuple[int, int]:
    """Return which samples of an epoch this process reads: from which position, and every how many.

    Whatever is not divided by a DistributedSampler counts as if it were, so that no two processes use the same seeds.
    """
    inner = getattr(sampler, "sampler", sampler)
    if isinstance(inner, DistributedSampler):
        return inner.rank, inner.num_replicas
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def seeds_of(seed: int, epoch: int, samples: int, first: int, every: int) -> Iterator[int]:
    """Yield the seed of each sample of this process, which depends on seed, epoch and the sample's position in the epoch."""
    position = first + samples * every
    while True:
        digest = hashlib.blake2b(f"{seed} {epoch} {position}".encode(), digest_size=4).digest()
        yield int.from_bytes(digest, "little")
        position += every


class SeededIndex(NamedTuple):
    """The index of a sample, with the seed of what is drawn for it."""

    index: Any
    seed: int


class Read(NamedTuple):
    """What was read for `SeededCollate`: a sample, or those of a batch, with the seed of the (first) sample."""

    content: Any
    seed: int


class Seeded(Dataset[Any]):
    """A data set whose indices come with a seed: random numbers that a sample draws are the same wherever it is read."""

    def __init__(self, inner: Any) -> None:
        """`inner` is the loader's own."""
        self.inner = inner

    def __getitem__(self, place: Any) -> Any:
        """Read a sample, or what the data set makes of several indices. An index without a seed is read as ever."""
        if (
            isinstance(place, list) and place and isinstance(place[0], SeededIndex)
        ):  # where the loader has no batch size
            place = SeededIndex([each.index for each in place], place[0].seed)
        return Read(self._read(place), place.seed) if isinstance(place, SeededIndex) else self.inner[place]

    def __getitems__(self, places: list[Any]) -> Any:
        """Read the samples of a batch, one by one: read together, they could not be seeded one by one."""
        if places and isinstance(places[0], SeededIndex):
            return Read([self._read(place) for place in places], places[0].seed)
        together = getattr(self.inner, "__getitems__", None)
        return together(places) if together else [self.inner[place] for place in places]

    def _read(self, place: SeededIndex) -> Any:
        with seeded(place.seed):
            return self.inner[place.index]

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        """Whatever else the data set has."""
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


class SeededCollate:
    """Makes a batch of samples, which may draw random numbers as well (mixup): from the first sample's seed, as the next one."""

    def __init__(self, inner: Callable[[Any], Any]) -> None:
        """`inner` is the loader's own `collate_fn`."""
        self.inner = inner

    def __call__(self, read: Any) -> Any:
        """Return the batch."""
        if not isinstance(read, Read):
            return self.inner(read)
        with seeded(read.seed ^ 1):
            return self.inner(read.content)


@contextmanager
def seeded(seed: int, device: torch.device = CPU) -> Iterator[None]:
    """Have the random generators begin from `seed`, and afterwards be as they were: this may be the process that trains."""
    before, others = random_states(device), (np.random.get_state(legacy=False), random.getstate())
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    with suppress(TypeError):  # numpy's generator may be one of another kind
        np.random.seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        set_random_states(device, before)
        np.random.set_state(others[0])
        random.setstate(others[1])
