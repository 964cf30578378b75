"""What a run tells to type next, read from what it showed."""

from collections.abc import Iterable


def next_commands(rows: Iterable[str]) -> list[str]:
    """The commands that are told to type next, each with the rows that a backslash leads to."""
    commands: list[str] = []
    goes_on = False
    for row in rows:
        if goes_on or "next: " in row:
            text = row.strip() if goes_on else row.partition("next: ")[2]
            commands[len(commands) - goes_on :] = [f"{commands[-1]}\n{text}" if goes_on else text]
            goes_on = text.endswith("\\")
    return commands
