"""How the help of a group of commands reads."""

import click


class WholeHelp(click.Group):
    """A group whose help has the first sentence about each command in full."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands; click would cut what is longer than a row."""
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(limit=1000)) for name, each in commands if each])
