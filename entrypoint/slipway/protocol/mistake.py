"""A user's mistake, as launcher, options and workers tell it apart from all other errors, and what he may have meant."""

from collections.abc import Iterable


class ConfigurationError(Exception):
    """A mistake of the user's outside the command line; the message says what to type instead."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Which of the `known` names somebody may have meant; empty where none is near."""
    import difflib  # only where somebody mistyped: it takes milliseconds

    return next(iter(difflib.get_close_matches(name, list(known), n=1)), "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The same as a question with a space in front; empty where none is near."""
    near = nearest(name, known)
    return f" Did you mean {near}?" if near else ""
