"""Errors of which the message says it all: no traceback is printed. And what somebody who mistyped a name may have meant."""

from collections.abc import Iterable

from slipway.protocol.printable import printable


class PrintableError(Exception):
    """An error whose message can be printed, whatever paths it names."""

    def __str__(self) -> str:
        """The message."""
        return printable(super().__str__())


class ConfigurationError(PrintableError):
    """A mistake of the user's outside the command line; the message says what to type instead. `missing`: a path that was named
    and is not there, which a container perhaps does not see.
    """

    def __init__(self, message: str = "", *, missing: str = "") -> None:
        super().__init__(message)
        self.missing = missing


class ExplainedError(PrintableError):
    """A failure that is nobody's mistake, and may not come again."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Which of the `known` names somebody may have meant; empty where none is near."""
    import difflib  # only where somebody mistyped: it takes milliseconds

    return next(iter(difflib.get_close_matches(name, list(known), n=1)), "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The same as a question with a space in front; empty where none is near."""
    near = nearest(name, known)
    return f" Did you mean {near}?" if near else ""
