"""Where a rank may stand in an attempt, and for how long: a worker says the phase, the launcher has the patience."""

from enum import StrEnum


class Phase(StrEnum):
    """What a rank does. `patience`: how long it may stand still there, in multiples of SLIPWAY_HANG_SECONDS or, before the first
    step is done, of SLIPWAY_START_SECONDS.
    """

    patience: int

    def __new__(cls, word: str, patience: int) -> "Phase":
        """A phase by the word that stands in a heartbeat."""
        phase = str.__new__(cls, word)
        phase._value_, phase.patience = word, patience
        return phase

    SETUP = "setup", 3  # imports from a cold network disk, the first connections among the ranks
    PREPARE = "prepare", 12  # data that are fetched or made, once per node; it beats as they come
    LOAD = "load", 4  # a large snapshot, given to the others over the network
    FIRST_STEP = "first-step", 6  # torch.compile and kernel searches take many minutes
    TRAIN = "train", 1
    DATA = "data", 1  # the other ranks wait in `train` meanwhile
    EVALUATE = "evaluate", 4
    MEASURE = "measure", 4  # many calls of a collective at once, over a network that may be slow
    SAVE = "save", 6  # a large snapshot to a slow disk
    FINISH = "finish", 6  # the last snapshot's writer


BEFORE_FIRST_STEP = frozenset({Phase.SETUP, Phase.PREPARE, Phase.LOAD, Phase.FIRST_STEP})


PHASES = {phase.value: phase for phase in Phase}  # by the word
