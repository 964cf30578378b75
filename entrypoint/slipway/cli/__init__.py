"""What a user types: the commands, their words, and what they print."""


def main() -> None:
    """Entry point of the console script, also of one that was installed before a checkout was brought up to date."""
    from slipway.cli.cli import main as run  # whoever takes one module of this folder need not load all commands

    run()
