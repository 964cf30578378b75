"""`slipway render`: job files for schedulers, ready to be submitted, from the words, options and settings of `slipway run`."""

import click

from slipway.options.help import WholeHelp
from slipway.render.compose import compose
from slipway.render.kubernetes import COMMANDS
from slipway.render.slurm import slurm


@click.group(
    cls=WholeHelp,
    epilog="\b\nExample: slipway render slurm --nodes 2 gpt --preset small > job.sbatch && sbatch job.sbatch",
)
def render() -> None:
    """Print the file with which to submit a job to a scheduler, with the arguments and options of `slipway run`."""


for command in (compose, *COMMANDS, slurm):
    render.add_command(command)
