"""The commands to try after a run, as they are typed outside of what ran it: one form for each runtime. Pure.

A container, a pod and a task of Slurm are gone by then, so what is typed starts another, with the same volumes.
"""

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from slipway.launch.resolve.catalog import WORKLOADS, Workload
from slipway.launch.resolve.host import USUAL_IMAGE
from slipway.launch.resolve.runtimes import COMPOSE, DOCKER, HOST, KUBERNETES, SLURM

IMAGE_USER = 1000  # images/slipway/Dockerfile
NOT_AGAIN = ("--steps", "--epochs", "--export")  # how long it was; where it exported to nothing is overwritten
NEEDS_GPUS = ("check", "selftest")  # beside the workloads
CLAIM = "slipway-checkpoints"  # k8s/claims.yaml
COMPOSE_FOLDERS = ("/checkpoints", "/data")  # compose/compose.yaml
WORKSPACE = "/workspace"  # where the folder of the submission is
SQUASHED = "/shared/images/slipway.sqsh"  # to be replaced
# What k8s/base has, without which namespaces that enforce Pod Security `restricted` refuse a pod.
CONFINED_POD = {
    "automountServiceAccountToken": False,
    "enableServiceLinks": False,
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
}
CONFINED = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
_WORD = re.compile(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""")


@dataclass(frozen=True)
class Invocation:
    """Where a run was, as far as commands need it.

    `runtime` is host, docker, compose, kubernetes or slurm; outside of the image `image` is empty and `program` what is typed for
    `slipway`. `results` is the folder of the container that keeps them.
    """

    runtime: str
    program: str = "slipway"
    image: str = ""
    usual: str = USUAL_IMAGE  # as the Makefile names it, where nobody says what it is called
    gpus: int = 0  # of this node
    nodes: int = 1
    user: int = IMAGE_USER
    results: str = "/checkpoints"
    # What is mounted there: a volume of docker's, /FOLDER, or ./NAME where only its name is known; empty where it ends with the
    # container.
    source: str = "./runs"
    others: tuple[tuple[str, str], ...] = ()  # what else is mounted: the folder, and where in the container (:ro)
    workdir: str = ""  # of the container, if it is not the image's own
    service: str = "train"  # of a compose file
    project: str = ""  # the variables with which docker compose finds that file and its volumes; see `compose_project`
    # The launcher's options that were typed; --nproc-per-node also where -e gave it and a new command would lack it.
    options: tuple[str, ...] = ()
    environ: tuple[str, ...] = ()  # further settings that -e gave, as NAME=VALUE, or as NAME of a secret

    @property
    def form(self) -> "CommandForm":
        """How a command is typed there."""
        return FORMS[self.runtime]

    @property
    def mounts(self) -> bool:
        """Whether a command has to mount the folder of results."""
        return self.form.mounts and not self.program

    @property
    def loses_results(self) -> bool:
        """Whether the container takes its results along when it ends."""
        return not self.program and not self.source

    @property
    def unknown_folders(self) -> list[tuple[str, str]]:
        """The mounted folders of which only the name is known, each with its place in the container."""
        mounted = [(self.source, self.results), *self.others] if self.mounts else []
        return [
            (source.removeprefix("./"), target.removesuffix(":ro"))
            for source, target in mounted
            if source.startswith("./")
        ]

    @property
    def lacks_image(self) -> bool:
        """Whether a command has to name the image, and nobody said how it is called."""
        return self.form.names_image and not self.image and not self.program

    @property
    def placeholder(self) -> str:
        """The name to replace where nobody said how the image is called."""
        return self.form.placeholder or self.usual


class CommandForm(NamedTuple):
    """How a command is typed for one runtime: `mounts`: with the folder of results; `names_image`: with the image's name.

    `placeholder` stands for an image's name that nobody said, if not the usual name. `folders`: what may be mounted, each with
    the variable of the batch file that names it. `requeues`: a job that was stopped may start again by itself. `alone`: one
    command starts a job on one node again, whatever it trains. `together`: the command that starts all nodes of a job again.
    """

    typed: Callable[[str, bool, Invocation], str]
    mounts: bool = False
    names_image: bool = True
    placeholder: str = ""
    folders: Mapping[str, str] = MappingProxyType({})
    requeues: bool = False
    alone: bool = False
    together: str = ""


def next_commands(workload: Workload, fleeting: bool, *, stopped: bool = False) -> tuple[str, ...]:
    """Three commands to try after a run of `workload`, none of which needs the run where that is about to vanish.

    The first one after a run that was stopped goes on with it.
    """
    if not workload.next:
        return ()
    if fleeting:
        others = [command for command in workload.next if "{run}" not in command]
        return (f"slipway {workload.name}", *others, f"slipway plan {workload.name}", "slipway --help")[:3]
    if not stopped or not workload.resumes:
        return workload.next
    others = [command for command in workload.next if "--resume" not in command]
    return (f"slipway {workload.name} --run-dir {{run}} --resume auto{{same}}", *others)[:3]


def fill_in(command: str, run: str, step: int, arguments: Sequence[str]) -> str:
    """A command to try next, with {run}, the run's arguments as {same}, and as {longer} for twice as many steps.

    A run goes on with the arguments that it was started with; without them it would be another model, or other data.
    """
    kept, words = [], list(arguments)
    while words:
        word = words.pop(0)
        if word in NOT_AGAIN:
            words[:1] = []  # its value
        elif word.partition("=")[0] not in NOT_AGAIN:
            kept.append(word)
    longer = [*kept, "--steps", str(2 * step)]
    same, twice = (f" {shlex.join(words)}" if words else "" for words in (arguments, longer))
    return command.format(run=shlex.quote(run), same=same, longer=twice)


def name_store(text: str, store: str) -> str:
    """A command or advice that resumes a run, with the store that has a copy of it, if one has."""
    return text.replace("--resume auto", f"--resume auto --store {shlex.quote(store)}") if store else text


def as_typed(command: str, here: Invocation, *, trains: bool = False) -> str:
    """A command, which begins with `slipway`, as one types it where the run was started. `trains`: it is one of a user's program,
    which needs what the run had, too.
    """
    words = command.removeprefix("slipway ")
    first = words.split()[0]
    trains = trains or first in WORKLOADS
    if not trains and first not in NEEDS_GPUS:
        here = replace(here, gpus=0)
    if here.options and "--resume auto" in words:  # a job that resumes is the same one
        typed = shlex.join(here.options)
        words = (
            f"{words} {typed}" if first in WORKLOADS else words.replace("--resume auto", f"--resume auto {typed}", 1)
        )
    return here.form.typed(words, trains, here)


def without_run(advice: str) -> str:
    """Advice for a run that has ended with its container: what a rank printed is above, and no command reads it any more."""
    return re.sub(r"(type )?`slipway logs [^`]+`", "see the output above", advice)


def compose_project(environ: Mapping[str, str]) -> str:
    """What to type before `docker compose` to find a container's project again: variables that the shell had, not .env.

    The compose files put into `environ` how they are called (COMPOSE_FILES), and what compose read (COMPOSE_TYPED_…).
    """
    files, needed = (environ.get(name, "") for name in ("COMPOSE_TYPED_FILE", "COMPOSE_FILES"))
    if not all(any(file.endswith(part) for file in files.split(":")) for part in needed.split(":")):
        files = needed  # compose was started with --file
    values = {
        "COMPOSE_FILE": (files, "compose.yaml"),
        "COMPOSE_PROJECT_NAME": (environ.get("COMPOSE_TYPED_PROJECT", ""), "slipway"),
        "IMAGE": (environ.get("COMPOSE_TYPED_IMAGE", ""), USUAL_IMAGE),
    }
    return "".join(
        f"{name}={shlex.quote(value)} "
        for name, (value, usual) in values.items()
        if value and value != (environ.get(name) or usual)  # of .env, which Compose reads again
    )


def _in_docker(words: str, trains: bool, here: Invocation) -> str:
    """Where the last container took its results along, a training gets a folder; Docker would make that as root."""
    gpus = " --gpus all" if here.gpus else ""
    user = "" if here.user == IMAGE_USER else f" --user {here.user}:0"
    room = " --shm-size 1g --stop-timeout 120" if trains or here.gpus else ""
    image = shlex.quote(here.image or here.usual)
    given = (*([f"IMAGE={here.image}"] if here.image else ()), *here.environ) if trains else ()
    told = "".join(f" -e {shlex.quote(each)}" for each in given)
    before, source = "", here.source
    if trains and not source:
        before, user, source = "mkdir -p runs && ", ' --user "$(id -u):0"', "./runs"
    mounts = [(source, here.results)] if source else []
    mounts += here.others if trains else ()  # a data set may be there
    volumes = "".join(f" -v {quote_mount(*mount)}" for mount in mounts)
    volumes += f" -w {shlex.quote(here.workdir)}" if trains and here.workdir else ""
    return f"{before}docker run --rm{gpus}{user}{room}{told}{volumes} {image} {words}"


def quote_mount(source: str, target: str) -> str:
    """What -v of docker run and --container-mounts take, quoted for a shell; ./NAME is in the folder in which it is typed."""
    mount = re.sub(r'([$`"\\])', r"\\\1", f"{source}:{target}")
    return f'"$PWD/{mount.removeprefix("./")}"' if source.startswith("./") else f'"{mount}"'


def _in_compose(words: str, trains: bool, here: Invocation) -> str:
    """The project's own volumes are there. Its settings as well, which go on with the newest run and count its nodes."""
    fresh = " --resume none" if trains and "--resume" not in words else ""
    alone = " --standalone" if trains and here.nodes > 1 else ""
    user = "" if here.user == IMAGE_USER else f" --user {here.user}:0"
    volumes = [mount for mount in here.others if trains and mount[1].removesuffix(":ro") not in COMPOSE_FOLDERS]
    given = user + "".join(f" -v {quote_mount(*mount)}" for mount in volumes)
    return f"{here.project}docker compose run --rm{given} {here.service} {words}{fresh}{alone}"


def _in_slurm(words: str, trains: bool, here: Invocation) -> str:
    """The batch file may be anywhere; `srun` is where somebody types."""
    nodes = f" --nodes={here.nodes} --ntasks-per-node=1" if trains else ""
    nodes += f" --gpus-per-node={here.gpus}" if here.gpus else ""
    if here.program:
        return f"srun{nodes} {here.program} {words}" if nodes else f"{here.program} {words}"
    mounts = list(here.others)
    before = "mkdir -p runs && " if trains and not here.source else ""
    if here.source or trains:
        mounts.insert(0, (here.source or "./runs", here.results))
    quoted = ",".join(quote_mount(*mount)[1:-1] for mount in mounts)
    options = [f"--container-image={shlex.quote(here.image or here.placeholder)}"]
    options += [f'--container-mounts="{quoted}"'] if mounts else []
    options += [f"--container-workdir={WORKSPACE}" for _, target in mounts if target.removesuffix(":ro") == WORKSPACE]
    options += ["--no-container-mount-home", "--no-container-entrypoint"]
    return f"{before}srun{nodes} {' '.join(options)} /opt/slipway/bin/slipway {words}"


def _in_kubernetes(words: str, trains: bool, here: Invocation) -> str:
    """A Job for a training; a pod beside it, on the same claim, for what reads."""
    image = shlex.quote(here.image or here.usual)
    if trains:
        name, _, arguments = words.partition(" ")
        gpus = f" --gpus {here.gpus} --nodes {here.nodes} --image {image} --name slipway-next --with pvc"
        return f"{here.program or 'slipway'} render k8s{gpus} {name} {arguments}".rstrip() + " | kubectl apply -f -"
    places = {"results": here.results, "tmp": "/tmp"}  # noqa: S108  # a volume: the root file system is read-only
    container = {
        "name": "slipway-next", "image": here.image or here.usual, "args": shlex.split(words), "securityContext": CONFINED,
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in places.items()],
    }  # fmt: skip
    volumes = [{"name": "results", "persistentVolumeClaim": {"claimName": CLAIM}}, {"name": "tmp", "emptyDir": {}}]
    if here.gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": here.gpus}}
    pod = shlex.quote(json.dumps({"spec": {**CONFINED_POD, "containers": [container], "volumes": volumes}}))
    return f"kubectl run slipway-next --rm --attach --restart=Never --image={image} --overrides={pod}"


# What may be mounted, as the README and slurm/train.sbatch do it, and the variables that the latter exports.
BATCH_FOLDERS = MappingProxyType({"/checkpoints": "RUNS", WORKSPACE: "SLURM_SUBMIT_DIR", "/data": "DATA"})
FORMS: Mapping[str, CommandForm] = MappingProxyType(
    {
        HOST.name: CommandForm(lambda words, trains, here: f"{here.program} {words}", alone=True),
        DOCKER.name: CommandForm(_in_docker, mounts=True, folders={"/data": ""}, alone=True),
        COMPOSE.name: CommandForm(_in_compose, names_image=False, alone=True, together="docker compose up"),
        SLURM.name: CommandForm(_in_slurm, mounts=True, placeholder=SQUASHED, folders=BATCH_FOLDERS, requeues=True),
        KUBERNETES.name: CommandForm(_in_kubernetes),
    }
)


def fold_command(before: str, command: str, columns: int) -> str:
    """A command behind other text, in rows that a shell takes for one line: each but the last ends with a backslash."""
    if len(before) + len(command) <= columns:
        return before + command
    rows = [before + (words := _WORD.findall(command))[0]]
    for word in words[1:]:
        if len(rows[-1]) + len(word) + len("  \\") <= columns:
            rows[-1] += f" {word}"
        else:
            rows.append(f"      {word}")
    return " \\\n".join(rows)
