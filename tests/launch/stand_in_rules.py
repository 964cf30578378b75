"""Jobs whose agent and workers need no torch, and rules that say what a rank does at a step, of a stand-in or of a real worker."""

import json
from dataclasses import dataclass
from pathlib import Path

from launchers import Launcher
from waiting import wait_until

SITE = Path(__file__).with_name("stand_ins")


@dataclass(frozen=True)
class Rule:
    """What a rank does once it says that it is at a step of an attempt: `hold`, `exit CODE`, `signal NAME` or `raise MESSAGE`."""

    do: str
    step: int = 5
    rank: int = 0
    attempt: int = 1
    phase: str = "train"

    @property
    def at(self) -> str:
        """How the worker finds it."""
        return f"attempt {self.attempt} rank {self.rank} {self.phase} {self.step}"


class Rules:
    """Rules of the jobs of a test, and the ranks that they hold."""

    def __init__(self, folder: Path) -> None:
        """`folder` is where held ranks leave a file each."""
        self._folder, self._started = folder, folder.with_name("started")
        folder.mkdir()
        self._started.mkdir()

    def variables(self, *rules: Rule, torch: bool = False, pause: float | None = None) -> dict[str, str]:
        """The environment of a launcher whose workers follow the rules; with `torch` they are the real ones.

        `pause`: seconds between two attempts, where not as the launcher has it.
        """
        told = [{"at": rule.at, "do": rule.do, "file": str(self._file(rule))} for rule in rules]
        return {
            "PYTHONPATH": str(SITE),
            "STAND_INS": "" if torch else "1",
            "STAND_IN_RULES": json.dumps(told),
            "STAND_IN_STARTED": str(self._started),
            **({} if pause is None else {"STAND_IN_PAUSE": str(pause)}),
        }

    def wait_for(self, rule: Rule, job: Launcher) -> None:
        """Return once the rank is held."""

        def is_held() -> bool:
            assert job.process.poll() is None, f"ended without a rank that was held at {rule.at}:\n{job.text}"
            return self._file(rule).exists()

        wait_until(is_held, lambda: f"a rank to be held at {rule.at}:\n{job.text}")

    def let_go(self, rule: Rule) -> None:
        """Let a rank go on."""
        self._file(rule).unlink()

    @property
    def started(self) -> list[str]:
        """Attempt and rank (`1-0`) of each worker that was started, and not forked."""
        return sorted(file.name for file in self._started.iterdir())

    def _file(self, rule: Rule) -> Path:
        return self._folder / rule.at.replace(" ", "-")
