"""Errors of which the message says it all: no traceback is printed. And what somebody who mistyped a name may have meant."""

from collections.abc import Iterable, Sequence


class PrintableError(Exception):
    """An error whose message can be printed, whatever paths it names."""

    def __str__(self) -> str:
        """The message."""
        return printable(super().__str__())


class ConfigurationError(PrintableError):
    """A mistake of the user's outside the command line; the message says what to type instead."""


class ExplainedError(PrintableError):
    """A failure that is nobody's mistake, and may not come again."""


def printable(text: object) -> str:
    """A path or name in which bytes that are not UTF-8 are spelt out (`caf\\xe9.png`): those cannot be printed."""
    return str(text).encode(errors="surrogateescape").decode(errors="backslashreplace")


def listed(names: Sequence[object], most: int) -> str:
    """The first `most` names, printable, and a sign that there are more."""
    return ", ".join(map(printable, names[:most])) + (", …" if len(names) > most else "")


def nearest(name: str, known: Iterable[str]) -> str:
    """Which of the `known` names somebody may have meant; empty where none is near."""
    import difflib  # only where somebody mistyped: it takes milliseconds

    return next(iter(difflib.get_close_matches(name, list(known), n=1)), "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The same as a question with a space in front; empty where none is near."""
    near = nearest(name, known)
    return f" Did you mean {near}?" if near else ""
