"""How often launchers say what they wait for: less often the longer it lasts, and why again every few minutes. Pure."""

LINE_SECONDS = (5.0, 30.0)  # between two lines: at first, and in the long run
CAUSE_SECONDS = 180.0  # between two explanations of the same cause, of which the first one may have scrolled away


def pause_after(waited: float) -> float:
    """The seconds until the next line, after so many seconds of waiting."""
    return min(max(LINE_SECONDS[0], waited / 4), LINE_SECONDS[1])


class Complaints:
    """What one launcher said so far in a muster of why it cannot reach node 0. All moments are seconds since it began."""

    def __init__(self) -> None:
        self._explained: dict[str, float] = {}  # when the cause of each kind of failure was given
        self._next = 0.0  # when the next line is due

    def is_due(self, waited: float) -> bool:
        """Whether it is time for a line."""
        return waited >= self._next

    def explains(self, kind: str, waited: float) -> bool:
        """Whether the cause of this kind of failure is to be given, now for the first time or again; notes that it is."""
        due = kind not in self._explained or waited - self._explained[kind] >= CAUSE_SECONDS
        if due:
            self._explained[kind] = waited
        return due

    def say(self, waited: float) -> None:
        """Note that a line is printed."""
        self._next = waited + pause_after(waited)
