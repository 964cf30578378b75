"""`slipway prove train.py`: does this script resume exactly? It is run undisturbed and with kills, and both are compared."""

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from slipway.cli.launching import CONTEXT, WORDS, Launching, launcher_options
from slipway.cli.selftest import StoppedError, private_folder
from slipway.options.numbers import Whole
from slipway.protocol.errors import CONFIGURATION, FAILED, FINISHED, STOPPED, LaunchError
from slipway.protocol.files import node_folder
from slipway.protocol.printable import counted
from slipway.protocol.proof import FAILURE, KILLED, VARIABLE, read_events, write_request

if TYPE_CHECKING:
    from slipway.check.proof import Events, Kill

# What of the launcher a proof decides itself.
DECIDED = frozenset(
    (
        *("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT", "standalone", "SLIPWAY_MAX_RESTARTS", "SLIPWAY_CHECK"),
        *("SLIPWAY_RUNS", "SLIPWAY_RUN_DIR", "SLIPWAY_RESUME", "SLIPWAY_STORE", "SLIPWAY_STORE_LIMIT"),
        "SLIPWAY_STORE_PARALLEL",
    )
)
EVERY = 30.0  # seconds between two lines about a run's progress
NEEDED = (
    "Only a loop with slipway.resume, or slipway.train.fit, resumes: see docs/own-script.md, and begin with "
    "run = slipway.resume(model=model, optimizer=optimizer)"
)


class Trial(NamedTuple):
    """What is tried: the script with its arguments, options of the launcher before it, how many launchers and steps."""

    words: list[str]
    options: list[str]
    nodes: int
    steps: int
    folder: Path

    @property
    def own_starter(self) -> bool:
        """Whether torchrun or python starts the script, and nobody starts it again."""
        from slipway.launch.resolve.starters import starter

        return starter(self.words) in ("torchrun", "python")


class ProofRun(NamedTuple):
    """A run that has ended: its exit code, why it failed, its events, and how many of its kills were done."""

    code: int
    cause: str
    events: "Events"
    killed: int


def prove_script(words: tuple[str, ...], steps: int, kills: int, seed: int, nodes: int, **options: Any) -> None:
    """Test whether a script resumes exactly: run it twice undisturbed and once with kills, and compare all steps.

    Compared on every rank are what goes into the models, everything that was passed to `slipway.resume` or trains beside it,
    the learning rates, and what `run.log` got. The script runs in the working directory, as always; its run directories are
    temporary.

    Exit code 0: it resumes exactly. 1: it differs, or fails; the answer says where first, why, and what to do. 78: it has
    neither `slipway.resume` nor `fit`, or the configuration is wrong.
    """
    from slipway.process.tree import OwnProcesses

    require_own_loop(words)
    typed = [word for option in click.get_current_context().command.params for word in typed_option(option, options)]
    own = OwnProcesses()
    try:
        with private_folder(own, "slipway-prove-") as folder:
            code = answer(Trial([*words], typed, nodes, steps, folder), kills, seed)
            if not code:
                shutil.rmtree(folder)
    except StoppedError as stopped:
        click.echo(f"slipway: prove: {stopped}: stopped; no files or processes were left", err=True)
        sys.exit(stopped.code)
    if code:
        click.echo(f"slipway: prove: the logs of the runs are in {folder}", err=True)
    sys.exit(code)


def typed_option(option: click.Parameter, values: Mapping[str, Any]) -> list[str]:
    """Return the words of an option of the launcher that was typed."""
    value = values.get(option.name or "")
    if value is None or value is False or not isinstance(option, click.Option):
        return []
    return [option.opts[0]] if option.is_flag else [option.opts[0], str(value)]


def require_own_loop(words: Sequence[str]) -> None:
    """Raise LaunchError where neither the script nor a module beside it mentions Slipway. Nothing of them is run."""
    if not words:
        raise click.UsageError("Type what is to be proven: slipway prove train.py")
    script = Path(words[0])
    if script.suffix != ".py" or not script.is_file():  # the launcher says what is wrong, or the run shows it
        return
    beside = (file for pattern in ("*.py", "*/*.py") for file in script.absolute().parent.glob(pattern))
    texts = (file.read_text(errors="replace") for file in (script, *beside))
    if not any("slipway" in text for text in texts):
        raise LaunchError(f"{script}: neither it nor a module beside it imports slipway. {NEEDED}")


def answer(trial: Trial, kills: int, seed: int) -> int:
    """Do all runs, and print what they showed. Returns the exit code. Raises LaunchError for what cannot be proven."""
    from slipway.check.proof import choose_kills, compare
    from slipway.check.proof_lines import different_lines, exact_lines, unsteady_lines
    from slipway.launch.attempt.terminal import say

    first = run(trial, 1, [])
    require_sound(first)
    second = run(trial, 2, [])
    require_sound(second)
    if difference := compare(first.events, second.events):
        click.echo("\n".join(unsteady_lines(first.events, second.events, difference)))
        return FAILED
    chosen = choose_kills(first.events, kills, random.Random(seed))
    say("prove: kills: " + "; ".join(f"rank {kill.moment.rank} at step {kill.step}, {kill.kind}" for kill in chosen))
    third = run(trial, 3, chosen)
    lines = different_lines(first.events, third.events, chosen[: third.killed], third.cause)
    click.echo("\n".join(lines or exact_lines(first.events, third.killed, kills)))
    return FAILED if lines else FINISHED


def require_sound(ended: ProofRun) -> None:
    """Raise LaunchError where an undisturbed run failed, or is no run that resumes."""
    if ended.code not in (FINISHED, STOPPED):
        code = CONFIGURATION if ended.code == CONFIGURATION else FAILED
        raise LaunchError(f"It fails without a kill, so nothing can be proven: {ended.cause}", code)
    if not any(event for attempts in ended.events.values() for event in attempts[0]):
        raise LaunchError(f"Its run ended without a step of a loop that resumes. {NEEDED}")


def run(trial: Trial, number: int, kills: Sequence["Kill"]) -> ProofRun:
    """Run the script to the wanted step, with these kills."""
    from slipway.launch.attempt.terminal import say

    folder = trial.folder / f"run-{number}"
    what = f"with {counted(len(kills), 'kill')}" if kills else "undisturbed"
    say(f"prove {number}/3: {what}, {counted(trial.steps, 'step')}")
    begun = time.monotonic()
    proof = folder / "proof"
    write_request(proof, trial.steps, [kill.moment for kill in kills])
    started = [start(trial, folder, node, kills, proof) for node in range(trial.nodes)]
    codes = [wait(launcher, proof, begun) for launcher in started]
    for attempt in range(2, len(kills) + 2 if trial.own_starter else 2):  # torchrun and python start once
        if not failed(codes) or done_kills(proof) < attempt - 1:
            break
        codes = [wait(start(trial, folder, 0, kills, proof, attempt), proof, begun)]
    say(f"  done after {time.monotonic() - begun:.0f} s")
    code = next(iter(failed(codes)), codes[0])
    cause = ""
    if failed(codes):
        cause = (proof / FAILURE).read_text() if (proof / FAILURE).exists() else cause_of(folder)
    return ProofRun(code, cause, read_events(proof), done_kills(proof))


def failed(codes: Sequence[int]) -> list[int]:
    """Return the exit codes of those that did not end well."""
    return [code for code in codes if code not in (FINISHED, STOPPED)]


def done_kills(proof: Path) -> int:
    """Return how many kills were done."""
    return len([*proof.glob(f"{KILLED}*")])


def wait(launcher: subprocess.Popen[bytes], proof: Path, begun: float) -> int:
    """Return the exit code of a launcher, and say from time to time how far the run is."""
    from slipway.launch.attempt.terminal import say

    while True:
        with suppress(subprocess.TimeoutExpired):
            return launcher.wait(EVERY)
        say(f"  {time.monotonic() - begun:.0f} s: {progress(proof)}")


def start(
    trial: Trial, folder: Path, node: int, kills: Sequence["Kill"], proof: Path, attempt: int = 1
) -> subprocess.Popen[bytes]:
    """Start the launcher of a node, or torchrun or python, of which Slipway's attempts have no number."""
    run_dir, environ = node_folder(folder, node), {**os.environ, VARIABLE: str(proof)}
    place = ["--standalone"]
    if trial.nodes > 1:
        place = ["--nnodes", str(trial.nodes), "--node-rank", str(node), "--master-addr", "127.0.0.1"]
        place += ["--master-port", str(port_of(folder))]
    restarts = str(max(1, len(kills)))  # without any, there would be no snapshots in memory
    own = [*trial.options, *place, "--max-restarts", restarts, "--run-dir", str(run_dir)]
    command = [sys.executable, "-P", "-m", "slipway", "run", *own, *trial.words]
    if trial.own_starter:
        command, environ = trial.words, {**environ, "SLIPWAY_RUN_DIR": str(run_dir), "SLIPWAY_ATTEMPT": str(attempt)}
    with (folder / f"launcher-{node}.log").open("a") as log:
        return subprocess.Popen(
            command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


def port_of(folder: Path) -> int:
    """Return the port at which the launchers of a run meet, chosen when the first one starts."""
    from slipway.launch.resolve.connectivity import free_port

    file = folder / "port"
    if not file.exists():
        file.write_text(str(free_port(0)))
    return int(file.read_text())


def progress(proof: Path) -> str:
    """Return how far a run is."""
    steps = [attempts[-1][-1].step for attempts in read_events(proof).values() if attempts[-1]]
    return f"step {max(steps)}" if steps else "no step yet"


def cause_of(folder: Path) -> str:
    """Return why a run failed, in one line."""
    from slipway.launch.run_directory.directory import RunDirectory
    from slipway.protocol.printable import last_line

    first = RunDirectory(node_folder(folder, 0)).first_cause
    said = (folder / "launcher-0.log").read_text(errors="replace").splitlines()
    return (first.evidence if first else "") or last_line(said) or "it printed nothing"


def number(name: str, least: int, default: int, text: str, most: int | None = None) -> click.Option:
    """Return an option that takes a whole number."""
    kind = Whole(min=least, max=most)
    return click.Option([name], type=kind, default=default, show_default=True, metavar="N", help=text)


OPTIONS = [
    number("--steps", 2, 40, "Steps of each run."),
    number("--kills", 1, 4, "How often a process is killed."),
    number("--seed", 0, 0, "Chooses the moments of the kills."),
    number("--nodes", 1, 1, "Launchers: 2 stand for two nodes, each with its own disk, on this machine.", 2),
]
prove = Launching(
    "prove",
    callback=prove_script,
    params=[WORDS, *OPTIONS, *(option for option in launcher_options() if option.name not in DECIDED)],
    help=prove_script.__doc__,
    epilog="\b\nExample: slipway prove --nproc-per-node 2 train.py",
    context_settings=CONTEXT,
)
