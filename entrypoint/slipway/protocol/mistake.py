"""A user's mistake, as launcher, options and workers tell it apart from all other errors."""


class ConfigurationError(Exception):
    """A mistake of the user's outside the command line; the message says what to type instead."""
