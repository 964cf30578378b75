"""The end of a job on this node: its verdict is written down, printed and passed to the pod; then come a picture of the losses,
where the results are, and what to type next.
"""

import itertools
import math
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from slipway.launch.attempt.terminal import columns_of, say, short_path, write_own
from slipway.launch.resolve.advice import advise
from slipway.launch.resolve.catalog import words_of
from slipway.launch.resolve.container_checks import fleeting_results, results_folder, seen_outside, unseen_file
from slipway.launch.resolve.host import CHECKPOINTS, Host, is_read_only, mount_point, mounted_from
from slipway.launch.resolve.job_spec import Job
from slipway.launch.resolve.next_lines import (
    FORMS,
    WORKSPACE,
    Invocation,
    as_typed,
    compose_project,
    fill_in,
    fold_command,
    name_store,
    next_commands,
    without_run,
)
from slipway.launch.resolve.runtimes import HOST, Runtime, runtime_of
from slipway.launch.resolve.settings import SETTINGS
from slipway.launch.resolve.sources import Claim
from slipway.launch.run_directory.directory import RunDirectory
from slipway.launch.run_directory.run import Run, is_free
from slipway.launch.verdict.block import Advise, block, outcome_json, termination_message, what_to_do
from slipway.launch.verdict.ledger import ledger_line
from slipway.launch.verdict.restarts import AttemptHistory
from slipway.launch.verdict.verdict import Outcome, Verdict
from slipway.protocol.files import OUTCOME_FILE, write_json
from slipway.protocol.outcomes import Word
from slipway.protocol.printable import listed, printable
from slipway.protocol.redact import redact_words, secret_values

# Which run and which nodes, and what the command says in its own way; every name of it is one of SETTINGS.
NOT_REPEATED = {
    *("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT", "NPROC_PER_NODE", "WORKLOAD"),
    *("SLIPWAY_RUNS", "SLIPWAY_RUN_DIR", "SLIPWAY_RESUME", "SLIPWAY_STORE", "SLIPWAY_SPARES"),
}
RESUMABLE = (Word.FAILED, Word.LOST, Word.PEER, Word.UNHEALTHY)  # whose cause may be gone by the next start
SHOWN = 3  # times that the replicas differed, the newest
TERMINATION_LOG = Path("/dev/termination-log")  # Kubernetes' default terminationMessagePath


def conclude(verdict: Verdict, job: Job, run: Run | None, history: AttemptHistory, *, writes: bool = True) -> int:
    """Write the verdict to a file, print it, pass it to the pod, and return this node's exit code.

    `run` is None where there is none. Not `writes`: another node writes into the same folder; the verdict of a later attempt is
    not overwritten.
    """
    node_rank, known, store = job.plan.topology.node_rank, run.path if run else None, store_of(job)

    def lacks(what: str) -> str:
        runtime = job.host.shell if what == "package" else job.host.runtime  # another image has packages of its own
        return advise(what, runtime, find_here(job, fleeting=False).image or job.host.usual_image)

    def helps(outcome: Outcome) -> str:
        missing = re.search(r"No such file or directory: '([^']+)'", outcome.cause.text)
        # Of another node's disks and containers nobody here knows what they have.
        if missing and outcome.node_rank == node_rank and not Path(missing[1]).exists():
            looked = "" if missing[1].startswith("/") else f"it was looked for at {Path(missing[1]).absolute()}. "
            if told := looked + unseen_file(job.host, missing[1]):
                return told.removesuffix(". ")
        return name_store(what_to_do(outcome, lacks, known), store)

    run = run if writes else None
    if run and run.is_newest(history.number):
        with suppress(OSError):
            earlier = run.attempts_before(history.tries[0].number)
            differences = [difference._asdict() for difference in run.differences()]
            write_json(run.path / OUTCOME_FILE, outcome_json(verdict, node_rank, history, earlier, differences, helps))
    if not job.plan.workload.keeps:
        return verdict.code(node_rank)
    if run and job.plan.topology.rank == 0 and (line := ledger_line(history.ledger)):
        say(f"time: {line}")
        for difference in run.differences()[-SHOWN:]:
            say(difference.sentence)
    for line in block(
        verdict, history, job.plan.topology.process_rank, lambda outcome: typed_outside(helps(outcome), job)
    ):
        say(line)
    with suppress(OSError):  # a disk that is away by now makes no bad end of a good one
        say_results(verdict, job, run)
        if run and job.plan.topology.rank == 0 and trained_nothing(verdict, job, history):
            reached = reached_already(history.tries[-1].after, job.plan.arguments)
            say(f"nothing was trained, because {reached}. {begin_anew(job, run.path)}")
    tell_pod(verdict.code(node_rank), block(verdict)[0], verdict, helps)
    return verdict.code(node_rank)


def trained_nothing(verdict: Verdict, job: Job, history: AttemptHistory) -> bool:
    """Whether one of our workloads was resumed after its last step: the end of a training leaves a newer snapshot."""
    workload, steps = job.plan.workload, {step for tried in history.tries for step in (tried.before, tried.after)}
    return (
        verdict.word == Word.FINISHED
        and workload.builtin
        and workload.resumes
        and len(steps) == 1
        and None not in steps
    )


def reached_already(step: int | None, arguments: Sequence[str]) -> str:
    """Why there was nothing to train from the snapshot of this `step`: a run that was killed may be further than is asked for."""
    asked = re.match(r"(?:.*\s)?--steps[ =](\d+)", " ".join(arguments))  # the last one counts
    if not asked or int(asked[1]) > (step or 0):
        return f"this run is at step {step} already, and no step beyond that is asked for"
    than = "all" if int(asked[1]) == step else "more than"
    return f"this run is at step {step} already, which is {than} the {asked[1]} steps asked for"


def typed_outside(advice: str, job: Job) -> str:
    """Advice with its commands as they are typed where this node was started, with the shortest paths."""
    here = find_here(job, bool(fleeting_results(job.host, results_folder(job.sources))))
    if here.loses_results:
        advice = without_run(advice)

    def typed(command: re.Match[str]) -> str:
        words = (short_path(Path(word)) if word.startswith("/") else word for word in shlex.split(command[1]))
        return as_typed(shlex.join(words), here)

    return re.sub(r"`(slipway [^`]+)`", typed, advice)


def begin_anew(job: Job, path: Path) -> str:
    """What begins a new run where that in `path` is finished, as a sentence."""
    free = next(filter(is_free, (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))))
    words = advise("another run", job.host.shell, shlex.quote(short_path(free)))
    project = find_here(job, fleeting=False).project
    return f"Give more steps, or start a new run {words.replace('docker compose up', f'{project}docker compose up')}."


def in_place(text: str, host: Host) -> str:
    """Text with its commands as they are typed from outside while this launcher runs."""
    container, pod = host.container[:12] or "CONTAINER", host.fqdn.partition(".")[0]
    inside = runtime_of(host.runtime).inside.format(container=container, pod=pod) if host.image else ""
    return re.sub(r"`(?=slipway )", f"`{inside}", text)


def tell_pod(code: int, message: str, verdict: Verdict | None = None, helps: Advise = lambda outcome: "") -> None:
    """Write the termination message of a pod, in place: it is a mounted file."""
    with suppress(OSError):
        if TERMINATION_LOG.is_file():
            TERMINATION_LOG.write_bytes(termination_message(code, message, verdict, helps))


def say_results(verdict: Verdict, job: Job, run: Run | None) -> None:
    """Show how the loss went, where results are, what to type next, and whether they outlive the container. Raises OSError."""
    fleeting = fleeting_results(job.host, results_folder(job.sources)) if run else ""
    there = ""
    if run and job.plan.topology.rank == 0 and verdict.word in (Word.FINISHED, Word.STOPPED, Word.CANCELLED):
        if job.plan.workload.builtin:
            show_losses(run)
        there = alone_there(job, run.path, fleeting)
        outside = seen_outside(job.host, run.path)
        say(f"results are in {short_path(run.path)}{there or f' ({outside})' * bool(outside)}")
        show_next(job, run, bool(fleeting), stopped=verdict.word != Word.FINISHED)
    elif run and job.plan.topology.rank == 0 and not fleeting and verdict.word in RESUMABLE:
        show_rescue(job, run)
    if fleeting and not there:
        say(fleeting)


def alone_there(job: Job, path: Path, fleeting: str) -> str:
    """What to say behind the path of results that end with their container; empty where they outlive it."""
    if not find_here(job, bool(fleeting)).loses_results:
        return ""
    if not runtime_of(job.host.runtime).is_engine:
        return " until this container or pod is removed"
    if job.host.mounts.get(mount_point(path, job.host.mounts) or Path("/")) == "tmpfs":
        return " in memory, until this container or the machine ends"
    copy = f"docker cp {job.host.container[:12] or 'CONTAINER'}:{shlex.quote(str(path))} ."
    return f" of this container alone: gone now if it was started with --rm, else to be copied by {copy}"


def show_next(job: Job, run: Run, fleeting: bool, *, stopped: bool) -> None:
    """Say what to type next, where there is something to go on from."""
    step, here = run.newest_step, find_here(job, bool(fleeting))
    fleeting = fleeting or here.loses_results
    if step is None and job.plan.workload.resumes:
        return
    error = sys.stderr.fileno()
    # Lines of a log are searched and copied, so they are not folded there.
    columns = columns_of(error) if os.isatty(error) else sys.maxsize
    if shown := stopped and not job.plan.workload.builtin and step is not None and not fleeting:
        show_resume(job, run, here, columns)
    commands = next_commands(job.plan.workload, fleeting, stopped=stopped)
    if stopped and here.nodes > 1 and here.form.alone and not here.form.together:  # one command is one node
        if fleeting:
            container = job.host.container[:12] or "CONTAINER"
            say(
                f"to resume, start the containers of all nodes again, unless --rm removed them: docker start {container}"
            )
            return
        if job.plan.workload.builtin:
            say(
                f"to resume, type the same command on each node, with --run-dir {shlex.quote(short_path(run.path))} --resume auto"
            )
        commands = tuple(command for command in commands if "--resume auto" not in command)
    for command in commands:
        filled = name_store(fill_in(command, short_path(run.path), step or 0, job.plan.arguments), store_of(job))
        filled = as_typed(filled, here)
        if stopped and "--resume auto" in command and here.nodes > 1 and here.form.together:
            filled = all_nodes_again(job, here)
        write_own(fold_command("slipway:   next: ", printable(filled), columns))
    if commands or shown:
        explain_commands(job, here, fleeting)


def explain_commands(job: Job, here: Invocation, fleeting: bool) -> None:
    """Say what the commands above could not know or repeat."""
    if here.mounts and runtime_of(here.runtime).is_engine and (left := _other_variables(job)):
        say(f"  These commands do not repeat other variables of -e: {listed(left, 10)}. Add those that the job needs")
    if not fleeting and (unknown := here.unknown_folders):
        told = ", and ".join(f"$PWD/{printable(name)} is the folder mounted at {target}" for name, target in unknown)
        paths = "Its path is" if len(unknown) == 1 else "Their paths are"
        say(f"  In these commands, {told}. {paths} not known here, so type the commands in the folder that contains it")
    if here.lacks_image:
        otherwise = advise("image's name", job.host.runtime)
        say(f"  Replace {here.placeholder} with your image's name, or {otherwise}.")


def all_nodes_again(job: Job, here: Invocation) -> str:
    """What starts all nodes of a stopped run again, which goes on; what it trains may have stood before the last such command."""
    claim = job.sources.variable("WORKLOAD")
    workload = f"WORKLOAD={shlex.quote(claim.value)} " if claim else ""
    return f"{workload}{here.project}{here.form.together}"


def show_rescue(job: Job, run: Run) -> None:
    """Say how a user's program that failed resumes from what it had saved; a workload of ours has restarted by itself."""
    step, error, here = run.newest_step, sys.stderr.fileno(), find_here(job, fleeting=False)
    if job.plan.workload.builtin or step is None:
        return
    alone = "" if job.restarts else "; with --max-restarts N it restarts by itself"
    say(f"the newest snapshot is that of step {step}. To resume from it{alone}:")
    show_resume(job, run, here, columns_of(error) if os.isatty(error) else sys.maxsize)
    explain_commands(job, here, fleeting=False)


def show_resume(job: Job, run: Run, here: Invocation, columns: int) -> None:
    """Say how a user's program goes on: the launcher's options stand before it, or it gets them."""
    options, program = f"--run-dir {shlex.quote(short_path(run.path))} --resume auto", words_of(job.plan.workload)
    if job.plan.topology.nodes == 1 and not job.plan.topology.process and here.form.alone:
        command = name_store(
            f"slipway run {options} {shlex.join((*program, *redact_words(job.plan.arguments)))}", store_of(job)
        )
        write_own(fold_command("slipway:   next: ", printable(as_typed(command, here, trains=True)), columns))
        return
    unless = "unless this job requeues itself, " if here.form.requeues else ""
    say(
        f"to resume, {unless}type the same command on each node, with these options before the program: "
        f"slipway run {options} {shlex.join(program)} …"
    )


def store_of(job: Job) -> str:
    """The address of the store that has copies of the job's run; empty without one."""
    return str(job.sources.parsed("SLIPWAY_STORE") or "") if job.plan.workload.keeps else ""


def find_here(job: Job, fleeting: bool) -> Invocation:
    """Where this run is, for the commands to try next; `fleeting`: it ends with its container or pod."""
    topology, host = job.plan.topology, job.host
    claim, service = job.sources.variable("IMAGE"), job.environ.get("COMPOSE_SERVICE", "")
    runtime = host.runtime
    if host.image is None and not runtime_of(host.runtime).starts_checkouts:
        runtime = HOST.name
    point = mount_point(results_folder(job.sources), host.mounts)
    results = CHECKPOINTS if fleeting or point in (None, Path("/")) else point
    folders = FORMS[runtime].folders

    def mounted(place: str) -> str:
        """The folder that is mounted there."""
        named = job.environ.get(folders.get(place, ""), "")
        return named if named.startswith("/") else mounted_from(Path(place))

    paths = [*_paths_in(job.plan.arguments)]
    if not job.plan.workload.builtin:  # the program, and what it reads beside itself
        paths += [Path.cwd(), *_paths_in(words_of(job.plan.workload))]
    named = {mount_point(path, host.mounts) for path in paths} - {None, Path("/")}
    places = [place for place in folders if Path(place) in host.mounts]
    places += sorted({str(place) for place in named} - {*places})
    workdir = Path.cwd() if host.image else Path(WORKSPACE)
    return Invocation(
        runtime,
        program=typed_program() if host.image is None else "",
        image=claim.value if claim else job.environ.get("PYXIS_CONTAINER_IMAGE", ""),
        usual=host.usual_image,
        gpus=len(topology.gpus) if topology.device == "cuda" else 0,
        nodes=topology.nodes,
        user=os.getuid(),
        results=str(results),
        source="" if fleeting else mounted(str(results)),
        others=tuple(
            (source, place + ":ro" * is_read_only(Path(place)))
            for place in places
            if place != str(results) and (source := mounted(place))
        ),
        workdir=str(workdir) if workdir != Path(WORKSPACE) else "",
        service=service,
        project=compose_project(job.environ) if service else "",
        options=(
            *_typed_options(job),
            *_kept_processes(topology.values["NPROC_PER_NODE"].claim, runtime_of(host.shell)),
        ),
        environ=tuple(_told_settings(job)),
    )


def _told_settings(job: Job) -> Iterator[str]:
    """The settings of the environment that another command of the same kind needs."""
    given = {
        setting.name: claim.value
        for setting in SETTINGS
        if setting.name not in NOT_REPEATED
        and (claim := job.sources.claim(setting.name)) in job.sources.from_environment(*setting.aliases, setting.name)
    }
    secrets = secret_values(given)
    yield from (name if name in secrets else f"{name}={value}" for name, value in given.items())


# What the image, the engine and a shell set (images/slipway/Dockerfile).
NOT_GIVEN = re.compile(
    r"(SLIPWAY_|NVIDIA_|COMPOSE_|LC_).*|PATH|HOME|HOSTNAME|LANG|PWD|OLDPWD|SHLVL|_|TERM|USER|LOGNAME|LD_LIBRARY_PATH|IMAGE|container"
)


def _other_variables(job: Job) -> list[str]:
    """The variables of -e that are no settings, as far as it is known what the image itself sets: in Slipway's own."""
    if (job.host.image or "-own").endswith("-own"):
        return []
    known = {name for setting in SETTINGS for name in (setting.name, *setting.aliases)}
    return sorted(name for name in job.environ if name not in known | {"WORKLOAD"} and not NOT_GIVEN.fullmatch(name))


def _paths_in(arguments: Sequence[str]) -> Iterator[Path]:
    """The files and folders that a workload's arguments name, such as --export DIR and --dataset file:PATH."""
    for before, word in zip(("", *arguments), arguments, strict=False):
        text = re.sub(r"^(--[\w-]+=)?([a-z]+:)?", "", word)
        if "/" in text or before == "--export" or Path(text).exists():
            yield Path(text).absolute()


def _kept_processes(claim: Claim, runtime: Runtime) -> list[str]:
    """The number of processes that a command has to repeat: what was typed, and in a container also what its -e said."""
    kept = (claim.is_typed and runtime.by_hand) or (runtime.is_engine and not claim.is_default)
    return ["--nproc-per-node", claim.value] * kept


def _typed_options(job: Job) -> Iterator[str]:
    """The launcher's options that another command of the same kind needs, as they were typed; no secrets."""
    given = {
        setting: claim
        for setting in SETTINGS
        if setting.name not in NOT_REPEATED and (claim := job.sources.option(setting))
    }
    secrets = secret_values({setting.name: claim.value for setting, claim in given.items()})
    for setting, claim in given.items():
        if claim.is_typed and setting.name not in secrets:
            yield from [setting.option] if setting.flag else [setting.option, claim.value]


def typed_program() -> str:
    """What one types for this `slipway`: its name where a shell finds it, else its path."""
    ours = Path(sys.executable).with_name("slipway")
    if not ours.is_file():
        return f"{shlex.quote(sys.executable)} -m slipway"
    found = shutil.which("slipway")
    return "slipway" if found and Path(found).samefile(ours) else shlex.quote(short_path(ours))


def show_losses(run: RunDirectory) -> None:
    """Draw the losses of a run that has enough of them."""
    with suppress(OSError):
        if lines := draw_curve(losses_of(run), columns_of(sys.stderr.fileno())):
            write_own("\n".join(lines))


def losses_of(run: RunDirectory) -> list[tuple[int, float]]:
    """The losses that a run wrote down, by step. Raises OSError."""
    losses = ((values["step"], values.get("loss")) for values in run.metrics_by_step())
    return [(step, loss) for step, loss in losses if isinstance(loss, float) and math.isfinite(loss)]


ROWS, COLUMNS = 5, 60  # of the picture, at most, without its scale
SCALE = 9  # columns
LEAST, LEAST_COLUMNS = 4, 30  # points, fewer are no curve; columns, fewer have no room for the steps


def draw_curve(points: Sequence[tuple[int, float]], width: int) -> list[str]:
    """A picture of losses by step, at most `width` columns wide, each row with its loss; empty if there is nothing to see."""
    columns = min(COLUMNS, width - SCALE - 1)
    steps, losses = [step for step, _ in points], [loss for _, loss in points]
    if len(points) < LEAST or columns < LEAST_COLUMNS or max(losses) == min(losses) or steps[-1] <= steps[0]:
        return []
    low, high = min(losses), max(losses)
    rows = [round((loss - low) / (high - low) * (ROWS - 1)) for loss in _spread(points, columns)]
    picture = [[" "] * columns for _ in range(ROWS)]
    for column, row in enumerate(rows):
        before = rows[column - 1] if column else row
        _join(picture, column, before, row)
    scale = [high - (high - low) * number / (ROWS - 1) for number in range(ROWS)]
    lines = [f"{value:7.3f} ┤{''.join(row).rstrip()}" for value, row in zip(scale, reversed(picture), strict=True)]
    first, last = f"step {steps[0]}", f"step {steps[-1]}"
    return [*lines, f"{'loss':>7}  {first:<{columns - len(last)}}{last}"]


def _spread(points: Sequence[tuple[int, float]], columns: int) -> list[float]:
    """The loss in each column: between two points the line that joins them."""
    losses, place = [], 0
    first, last = points[0][0], points[-1][0]
    for column in range(columns):
        step = first + (last - first) * column / (columns - 1)
        while place < len(points) - 2 and points[place + 1][0] <= step:
            place += 1
        (left, before), (right, after) = points[place], points[place + 1]
        share = min(1.0, (step - left) / max(right - left, 1))
        losses.append(before + (after - before) * share)
    return losses


def _join(picture: list[list[str]], column: int, before: int, row: int) -> None:
    """Lead the line from the row where it was to the row where it is."""
    if before == row:
        picture[row][column] = "─"
        return
    falls = row < before
    picture[before][column] = "╮" if falls else "╯"
    picture[row][column] = "╰" if falls else "╭"
    for between in range(min(before, row) + 1, max(before, row)):
        picture[between][column] = "│"
