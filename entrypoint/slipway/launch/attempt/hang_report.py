"""What is made of where all ranks stand: whether that is a hang, told once, and kept in a file for others as long as it lasts."""

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from slipway.launch.verdict.verdict import Outcome
from slipway.launch.watch.culprit import Hang, find_hang, stacks_of
from slipway.launch.watch.standing import Standing
from slipway.protocol.files import HANG_FILE, own_file, write_passing_json
from slipway.protocol.outcomes import Word

BUSY = 0.05  # of a core: who works so much, beside others perhaps, may be waited for twice as long
ADVICE = "look at the lines above, where it stands; for all that it printed type"


def logs_command(run: Path | None, rank: int | None) -> str:
    """What shows all that a rank printed; the newest run needs no name."""
    named = [shlex.quote(str(run))] if run else []
    return " ".join(["slipway logs", *named, f"--rank {rank or 0}"])


class HangReport:
    """Of one attempt, where it is judged for all. All moments are monotonic seconds."""

    def __init__(
        self,
        node_dir: Path,
        limit: float,
        say: Callable[[str], None],
        *,
        end: bool,
        hears: Callable[[str], None] = lambda hang: None,
        process: int | None = None,
    ) -> None:
        """`limit`: the seconds after which what stands still is a hang; `end`: whether one is ended; `hears` is told of one;
        `process`: the rank of the launcher's only one, where each has its own.
        """
        self._file, self._limit, self._say, self.end = own_file(node_dir, HANG_FILE, process), limit, say, end
        self._hears = hears
        self._since: float | None = None  # when all ranks were first known to stand still
        self._told = False
        self.stacks: tuple[str, ...] = ()  # of those that are told of

    def judge(self, everywhere: Sequence[Standing] | None, now: float) -> Hang | None:
        """Take where all ranks stand, None where some move; the hang that is told now, if any."""
        if everywhere is None:
            self._since = None
            if self._told:
                self._told = False
                self.forget()
                self._say("something moves again: it was no hang, or is over")
            return None
        self._since = now if self._since is None else self._since
        hang = None if self._told else find_hang(everywhere)
        if hang is None:
            return None
        busy = any(one.cores >= BUSY for one in everywhere if one.rank in hang.ranks)
        if busy and now - self._since < self._limit:
            return None
        self._tell(hang, everywhere)
        return hang

    def _tell(self, hang: Hang, standings: Sequence[Standing]) -> None:
        self._told, self.stacks = True, tuple(stacks_of(hang, standings))
        self._say(f"hang: {hang.text}")
        self._hears(f"hang: {hang.text}")
        for line in self.stacks:
            self._say(line)
        self._note({"time": time.time(), "text": hang.text, "ranks": list(hang.ranks), "stacks": list(self.stacks)})
        if not self.end:
            self._say("it is left alone; --on-hang end would end it, `slipway stop` does. All stacks: slipway stacks")

    def outcome(self, hang: Hang, node_rank: int, host: str) -> Outcome:
        """How the attempt ends where the hang ends it, though this node's own ranks are through."""
        rank, evidence = next(iter(hang.ranks), None), f"hang: {hang.text}"
        advice = f"{ADVICE} `{logs_command(self._file.parent.parent, rank)}`"
        return Outcome(node_rank, host, Word.PEER, time.time(), rank, evidence, advice=advice, stacks=self.stacks)

    def forget(self) -> None:
        """The hang is over, or the attempt."""
        with suppress(OSError):
            self._file.unlink(missing_ok=True)

    def _note(self, hang: Mapping[str, object]) -> None:
        with suppress(OSError):  # a full disk is not the hang's to tell
            write_passing_json(self._file, hang)
