"""What a user types: the commands, their words, and what they print."""

import gc


def main() -> None:
    """Entry point of the console script, also of one that was installed before a checkout was brought up to date."""
    # What an import creates stays until the end; to search it for garbage takes a seventh of the time of `slipway plan`.
    gc.disable()
    from slipway.cli.cli import main as run  # whoever takes one module of this folder need not load all commands

    gc.freeze()
    gc.enable()
    run()
