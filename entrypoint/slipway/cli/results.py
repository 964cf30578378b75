"""Commands for what a run yielded: `slipway sample`, `slipway eval`, `slipway export`."""

import contextlib
import json
import sys
from pathlib import Path

import click

from slipway.cli.data import launch_errors
from slipway.cli.runs import RUNS, complete_run, named_folder, warn_if_fleeting
from slipway.options.numbers import Real, Whole
from slipway.options.paths import LocalPath, RunPath
from slipway.protocol.printable import counted

RUN = click.argument("run", type=RunPath(), shell_complete=complete_run)
STEP = click.option("--step", type=Whole(0), help="Use the snapshot of this step instead of the newest.")


@click.command("sample", epilog='\b\nExample: slipway sample gpt-20260101-120000 --prompt "def "')
@RUN
@RUNS
@click.option("--prompt", default="def ", show_default=True, help="The text to continue.")
@click.option("--tokens", type=Whole(1, 100_000), default=400, show_default=True, help="Number of tokens to add.")
@click.option(
    "--temperature", type=Real(0), default=0.6, show_default=True, help="Randomness; 0 selects the most likely token."
)
@click.option("--seed", default=0, show_default=True, help="The same seed gives the same text.")
def sample_run(run: str, runs: str | None, prompt: str, tokens: int, temperature: float, seed: int) -> None:
    """Continue a text with the newest snapshot of a gpt RUN: a path or a name in the folder of runs."""
    path = named_folder(run, runs)
    with launch_errors(snapshots=True):
        from slipway.train.text.language import sample

        click.echo(sample(path, prompt, tokens, temperature, seed))


@click.command("eval", epilog="\b\nExample: slipway eval gpt-20260101-120000")
@click.argument("source", metavar="RUN|DIR", type=RunPath(), shell_complete=complete_run)
@RUNS
@click.option("--dataset", help="Evaluate on the validation part of other data, named as for training.")
@STEP
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: the new results and those that the training recorded."
)
def evaluate_run(source: str, runs: str | None, dataset: str | None, step: int | None, as_json: bool) -> None:
    """Re-evaluate a trained model, in one process on this machine's best device.

    RUN is a path or a name in the folder of runs, DIR a folder that `slipway export` made.
    """
    path = named_folder(source, runs)
    with launch_errors(snapshots=True):
        from slipway.train.worker.context import outside_job
        from slipway.train.workloads.judgement import judge_trained

        with contextlib.redirect_stdout(sys.stderr), outside_job() as context:
            found = judge_trained(path, context, dataset, step)
    trained, noted = found.trained, dict(found.trained.evaluation)
    at = int(noted.pop("step", -1))
    if as_json:
        about = {"run": trained.run, "workload": trained.workload, "step": trained.step, "dataset": found.dataset}
        training = {"step": at, "results": noted} if noted else None
        more = {"same_data": found.same_data, "samples": found.samples, "results": found.results, "training": training}
        click.echo(json.dumps(about | more, indent=1))
        return
    click.echo(
        f"{trained.workload}, step {trained.step} of {trained.run}, on {counted(found.samples, 'sample')} of {found.dataset}"
    )
    if dataset is None and not found.same_data:
        click.echo("note: these data are not those of the training, which were " + trained.data)
    width = max(map(len, found.results))
    click.echo(f"{'':<{width}}  {'now':>12}" + (f"  {f'at step {at}':>12}" if noted else ""))
    for name, value in found.results.items():
        before = f"  {noted[name]:>12.6f}" if name in noted else ""
        click.echo(f"{name:<{width}}  {value:>12.6f}{before}")


@click.command(epilog="\b\nExample: slipway export gpt-20260101-120000 my-model")
@RUN
@RUNS
@click.argument("folder", type=LocalPath(path_type=Path), metavar="DIR")
@STEP
@click.option("--push", "repo", metavar="OWNER/NAME", help="Upload the model to this repository of the Hub.")
@click.option("--public", is_flag=True, help="If --push creates the repository, make it public.")
def export(run: str, runs: str | None, folder: Path, step: int | None, repo: str | None, public: bool) -> None:
    """Write the model of a RUN into a new folder DIR, in the format that `from_pretrained` reads, with a model card.

    RUN is a path or a name in the folder of runs. If DIR already contains this model, it is not written again; --push then
    uploads it as it is. The token for --push comes from HF_TOKEN or from the file at HF_TOKEN_PATH.
    """
    if public and not repo:
        raise click.UsageError("--public applies to the repository that --push creates; add --push OWNER/NAME.")
    path = named_folder(run, runs)
    with launch_errors(snapshots=True):
        from slipway.train.export import export_run, push_folder

        new = export_run(path, folder, step, name=repo or "")
        click.echo(f"exported {path} to {folder}" if new else f"{folder} already contains this model")
        warn_if_fleeting(folder)
        if repo:
            click.echo(f"pushed to {push_folder(folder, repo, public, f'The model of {folder.absolute().name}')}")
