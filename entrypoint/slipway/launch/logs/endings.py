"""How the attempts of a run ended, as far as its `outcome.json` knows."""

from contextlib import suppress
from pathlib import Path

from slipway.launch.muster.codec import plain
from slipway.launch.run_directory.run import last_outcome
from slipway.launch.verdict.block import ENDINGS, locate
from slipway.launch.verdict.verdict import Outcome
from slipway.protocol.files import OUTCOME_FILE, read_json


def heading(run: Path, attempt: int) -> str:
    """The line above an attempt, with the reason for it: how the one before ended, where that is known."""
    before = read_endings(run).get(attempt - 1)
    return f"--- attempt {attempt}{f' (attempt {attempt - 1} ended: {before})' if before else ''} ---"


def closing(run: Path, attempt: int) -> str:
    """The line below the last attempt of a run that is over; empty for any other."""
    ending = read_endings(run).get(attempt) if last_outcome(run).get("attempt") == attempt else None
    return f"--- attempt {attempt} ended: {ending} ---" if ending else ""


def read_endings(run: Path) -> dict[int, str]:
    """How each attempt ended: `node 1 (gpu08): no heartbeat for 30 s`. What is damaged is left out."""
    tries = read_json(run / OUTCOME_FILE).get("attempts")
    endings = {}
    for tried in tries if isinstance(tries, list) else []:
        with suppress(KeyError, TypeError, ValueError):
            endings[int(tried["number"])] = plain(_tell(Outcome(**tried["outcome"])), 1000)
    return endings


def _tell(outcome: Outcome) -> str:
    if outcome.good:
        return f"{ENDINGS[outcome.word]}{outcome.evidence and f': {outcome.evidence}'}"
    return f"{locate(outcome)}: {outcome.evidence or ENDINGS[outcome.word]}"
