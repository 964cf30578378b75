"""Why something ended, or is not started again, as a value that travels between launchers and is kept on disk; and the sentences
that people read of it: what happened (`str(cause)`) and what helps (`what_to_do`). Pure.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from slipway.process.tree import signal_name
from slipway.protocol.causes import Sign, find_signs

TEXT, NAME = 500, 253  # characters of a text and of a name that travel


class CauseKind(StrEnum):
    """What there is to report, with the sentence for it. {status} is the `number` as an exit code or, below 0, a signal."""

    sentence: str

    def __new__(cls, value: str, sentence: str) -> Self:
        """A kind that is written as this value."""
        kind = str.__new__(cls, value)
        kind._value_, kind.sentence = value, sentence
        return kind

    # fmt: off
    SAID = "said", "{text}"
    RAISED = "raised", "{status}: {text}"
    ENDED = "ended", "{status}{last}"
    KILLED = "killed", "SIGKILL: somebody killed it (kill -9), no out-of-memory kill was counted here"
    OUT_OF_MEMORY = "out-of-memory", (
        "out of memory: killed by the kernel (SIGKILL), which counts an out-of-memory kill in this cgroup"
    )
    PARENT_SIGNALLED = "parent-signalled", "{name} was ended by {status}; its workers were ended, too"
    PARENT_FAILED = "parent-failed", "{name} ended with {number}: {text}"
    HANG = "hang", "hang: {text}"
    FROZEN = "frozen", "it was frozen for {number} s (the launcher or its machine), and the other nodes counted it as lost"
    BECAUSE = "because", "ended because of {text}"
    NO_FLAG = "no-flag", "the stop flag cannot be written, so no snapshot can be saved: {text}"
    RUN_GONE = "run-gone", "{name} was deleted or renamed while the job ran, and its snapshots with it; then: {text}"
    # A stop; {name} is what asked for it.
    ASKED = "asked", "the script ended because of {name}, as requested"
    AFTER = "after", "the script ended after {name}"
    BEFORE_START = "before-start", "{name} came before the workers had started"
    BEFORE_STEP = "before-step", "{name} came before the first step: there was nothing to save"
    BETWEEN = "between", "{name} came before attempt {next}; attempt {number} ended at {text}"
    LATE = "late", "{name}: {ranks} had not ended when the grace period was over, and {were} killed"
    OVERTAKEN = "overtaken", "{name}: {ranks} had not ended in time, and {were} killed before the cloud takes the machine back"
    NOTICED = "noticed", "{name}: {text}"
    IMPATIENT = "impatient", "killed at the second Ctrl-C or `slipway stop`; everything since the last snapshot is lost"
    TAKEN = "taken", "{name}, while rank {text} was killed (SIGKILL); the snapshot of step {number} is intact"
    # Why there is no further attempt.
    STUCK = "stuck", "{number} attempts in a row left no newer snapshot"
    GAVE_UP = "gave-up", "{number} attempts left {name}; the last failed: {text}"
    NO_RESTARTS = "no-restarts", "--max-restarts is 0"
    LIMIT = "limit", "--max-restarts {name}, and {number} failures in a row were without progress"
    FUTILE = "futile", "it failed before its first step, so another attempt would most likely end in the same way"
    PER_PROCESS = "per-process", "with one launcher per process there are no restarts"
    ONLY_REQUEUED = "only-requeued", "{name} cannot restart a task of a step, only requeue the whole job"
    LEAVES = "leaves", "this node leaves, and the others {text}"
    # fmt: on


@dataclass(frozen=True)
class Cause:
    """`kind` says which sentence it is, and the rest is what that names. `text`: words of others; `number`: an exit code, below
    0 a signal, or a count; `name`: of a signal, a program or a folder; `signs`: what the text means, found in all of it. `store`:
    host and port where a script looked for torch's store, and the port of torchrun's. `gpu`: the Xid error before it,
    `remedy`: what NVIDIA's catalog says is to be done about that.
    """

    kind: CauseKind = CauseKind.SAID
    text: str = ""
    number: int = 0
    name: str = ""
    signs: tuple[Sign, ...] = ()
    store: tuple[str, ...] = ()
    gpu: str = ""
    remedy: str = ""

    def __post_init__(self) -> None:
        """Keep what travels bounded. ValueError for a store that is incomplete."""
        if len(self.store) not in (0, 3):
            raise ValueError("impossible store")
        object.__setattr__(self, "text", self.text[:TEXT])
        object.__setattr__(self, "name", self.name[:NAME])
        object.__setattr__(self, "gpu", self.gpu[:NAME])
        object.__setattr__(self, "remedy", self.remedy[:NAME])
        object.__setattr__(self, "store", tuple(word[:NAME] for word in self.store))

    def __str__(self) -> str:
        """The sentence."""
        several = "," in self.text
        sentence = self.kind.sentence.format(
            **vars(self),
            status=signal_name(-self.number) if self.number < 0 else f"exit code {self.number}",
            last=self.text and f"; it said last: {self.text}",
            next=self.number + 1,
            ranks=f"rank{'s' * several} {self.text}",
            were="were" if several else "was",
        )
        beside = Sign.MEMORY in self.signs and self.kind != CauseKind.OUT_OF_MEMORY
        sentence = f"{self.gpu}; {sentence}".removesuffix("; ") if self.gpu else sentence
        return sentence + "; out-of-memory kills were counted in this cgroup meanwhile" * beside


def said(text: str) -> Cause:
    """What a program, or whoever else knows, said of it."""
    return Cause(text=text, signs=find_signs(text))


def other_store(address: str, port: str, own: str) -> str:
    """What to say of a script that connects to a store which is not torchrun's; `own` is where torchrun's is."""
    return (
        f"looks for torch's store at {address}, port {port}, and torchrun's is at {own}: remove the lines that set MASTER_ADDR "
        "and MASTER_PORT, or your own init_method"
    )
