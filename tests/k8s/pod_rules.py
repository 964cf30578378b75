"""What must be true of what a pod runs: its words, settings, volumes, and the time that it has to end."""

import re
from collections.abc import Iterator
from typing import Any

import click
from templates import DOWNLOAD, TENSORBOARD, TRAINING, Document, Pods

from slipway.cli.arguments import check_arguments
from slipway.cli.cli import slipway
from slipway.cli.data import data
from slipway.cli.launching import launcher_options, take_options
from slipway.launch.resolve.catalog import WORKLOADS, is_program, unknown_name
from slipway.launch.resolve.schedulers import SCHEDULERS
from slipway.launch.resolve.settings import BY_NAME
from slipway.protocol.errors import LaunchError

MARGIN = 10  # s between the launcher's grace and the pod's
SHARED_MEMORY = {"medium": "Memory", "sizeLimit": "1Gi"}
WRITTEN = {  # the folders that the image writes to
    TRAINING: {"/dev/shm", "/tmp", "/checkpoints", "/data"},
    DOWNLOAD: {"/tmp", "/data"},
    TENSORBOARD: {"/tmp"},
}
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
REFERENCE = re.compile(r"\$(\$|\([^)]*\))")  # what the kubelet replaces in args and env
TAGGED = re.compile(r"[^@]*:(?!latest$)\w[\w.-]*|.+@sha256:[0-9a-f]{64}")
# Who else says where a pod's place in the job is. The number of nodes is told by nobody, so NNODES may be set.
PLACES = {"MASTER_ADDR", "NODE_RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"} | {
    name
    for scheduler in SCHEDULERS
    for name in (*scheduler.marks, *(name for names in scheduler.table.values() for name in names))
}
TOKENS = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}


def unescaped(text: str) -> str:
    """What the kubelet makes of a text without references: $$ is one dollar."""
    return text.replace("$$", "$")


def parse_run(words: list[str]) -> dict[str, Any]:
    """What `slipway run` reads in its words: the launcher's options. Raises LaunchError, click.UsageError."""
    with slipway.commands["run"].make_context("slipway run", list(words)) as context:
        options, (first, *rest) = context.params, context.params["words"] or ["gpt"]
    if first in WORKLOADS:
        late, rest = take_options(rest, launcher_options())
        check_arguments(first, rest)
        return {**options, **late}
    if not is_program(first):
        raise unknown_name(first)
    return options


def read_options(pods: Pods) -> dict[str, Any]:
    """The options of the pods' command; nothing where it cannot be read."""
    args = [unescaped(word) for word in pods.main.get("args", ())]
    try:
        return parse_run(args[1:]) if args[:1] == ["run"] else {}
    except (LaunchError, click.ClickException):
        return {}


def words_are_understood(pods: Pods) -> Iterator[str]:
    args = [unescaped(word) for word in pods.main.get("args", ())]
    try:
        if pods.role == TRAINING:
            if args[:1] != ["run"]:
                raise click.UsageError(f"{args[:1]} is not run")
            parse_run(args[1:])
        elif pods.role == DOWNLOAD:
            if args[:2] != ["data", "fetch"]:
                raise click.UsageError(f"{args[:2]} is not data fetch")
            data.commands["fetch"].make_context("slipway data fetch", args[2:]).close()
        elif args[:1] != ["tensorboard"]:
            raise click.UsageError(f"{args[:1]} is not tensorboard")
    except LaunchError as error:
        yield f"args {args}: {error}"
    except click.ClickException as error:
        yield f"args {args}: {error.format_message()}"


def gpus_are_required(pods: Pods) -> Iterator[str]:
    """A pod that was given GPUs trains on them or not at all; one without does not ask for them."""
    if pods.role == TRAINING:
        given = "nvidia.com/gpu" in pods.main.get("resources", {}).get("limits", {})
        asked = pods.env.get("NPROC_PER_NODE") == "gpu" or pods.env.get("SLIPWAY_BACKEND") == "nccl"
        if given != asked:
            yield f"it has {'' if given else 'no '}GPUs, and would {'train without them' if given else 'not start'}"


def entrypoint_is_kept(pods: Pods) -> Iterator[str]:
    for container in pods.containers:
        name = container.get("name")
        if "command" in container:
            yield f"{name}: command replaces the image's entry point"
        if re.search(r"(^| )(\S*/)?(ba|da)?sh -\w*c( |$)", " ".join(container.get("args", ()))):
            yield f"{name}: a shell stands before the program"
        texts = [*container.get("args", ()), *(entry.get("value", "") for entry in container.get("env", ()))]
        for reference in (match[0] for text in texts for match in REFERENCE.finditer(text) if match[0] != "$$"):
            yield f"{name}: the kubelet replaces {reference}; write ${reference}"
        if not TAGGED.fullmatch(container.get("image", "")):
            yield f"{name}: image {container.get('image')!r} needs a tag, which is not latest"
        if "lifecycle" in container:
            yield f"{name}: hooks are not needed"
        if pods.role == TRAINING:
            yield from (f"{name}: a {probe} would end training" for probe in PROBES if probe in container)


def settings_are_known(pods: Pods) -> Iterator[str]:
    names = [entry["name"] for entry in pods.main.get("env", ())]
    yield from (f"{name} is set twice" for name in sorted({name for name in names if names.count(name) > 1}))
    settings = {name: setting for setting in BY_NAME.values() for name in (setting.name, *setting.aliases)}
    for name, value in pods.env.items():
        if name in PLACES - {"NNODES"} or name.startswith(("PET_", "TORCHELASTIC_")):
            yield f"{name} is set, and the scheduler says it"
        if name.startswith("SLIPWAY_") and name not in settings:
            yield f"{name} is no setting"
        if name in settings and value is not None:
            try:
                settings[name].parse(unescaped(value))
            except ValueError as error:
                yield f"{name}={value}: {error}"
    if pods.role == TRAINING:
        options = read_options(pods)
        yield from (
            f"args say {name}" for name in ("RANK", "MASTER_ADDR", "WORLD_SIZE", "standalone") if options.get(name)
        )
        everywhere = {entry["name"] for container in pods.containers for entry in container.get("env", ())}
        yield from (f"{name} is set, and training needs no token" for name in sorted(TOKENS & everywhere))
        if pods.env.get("HF_HUB_OFFLINE") != "1":
            yield "HF_HUB_OFFLINE=1 is missing: training would wait for a Hub that it cannot reach"


def there_is_time_to_save(pods: Pods) -> Iterator[str]:
    if pods.role == TRAINING:
        setting = BY_NAME["SLIPWAY_GRACE_SECONDS"]
        grace = read_options(pods).get(setting.name) or pods.env.get(setting.name) or setting.default
        if pods.spec.get("terminationGracePeriodSeconds") != (needed := int(grace) + MARGIN):
            yield f"terminationGracePeriodSeconds is {pods.spec.get('terminationGracePeriodSeconds')}, not {needed}"
        if pods.main.get("terminationMessagePolicy") != "FallbackToLogsOnError":
            yield "terminationMessagePolicy is not FallbackToLogsOnError"


def volumes_are_mounted(pods: Pods) -> Iterator[str]:
    volumes = {volume.get("name"): volume for volume in pods.spec.get("volumes", ())}
    mounts = [mount for container in pods.containers for mount in container.get("volumeMounts", ())]
    mounted = {mount.get("name") for mount in mounts}
    yield from (f"there is no volume {name}" for name in sorted(mounted - set(volumes)))
    yield from (f"volume {name} is mounted nowhere" for name in sorted(set(volumes) - mounted))
    own = {mount.get("mountPath"): mount for mount in pods.main.get("volumeMounts", ())}
    written = {path for path, mount in own.items() if not mount.get("readOnly")}
    yield from (f"nothing can be written to {path}" for path in sorted(WRITTEN.get(pods.role, set()) - written))
    yield from _shared_memory(volumes.get(own.get("/dev/shm", {}).get("name"), {}), pods.role)
    if pods.role == TENSORBOARD and not own.get("/checkpoints", {}).get("readOnly"):
        yield "TensorBoard may write to /checkpoints"


def disks_are_not_limited(pods: Pods) -> Iterator[str]:
    """Who writes more than a disk's limit is evicted with 1 s to end, counted. /dev/shm cannot grow beyond its size."""
    for volume in pods.spec.get("volumes", ()):
        place = volume.get("emptyDir") or {}
        if "sizeLimit" in place and place.get("medium") != "Memory":
            yield f"volume {volume.get('name')} has a sizeLimit, beyond which its pod is evicted"
    for container in pods.containers:
        if "ephemeral-storage" in container.get("resources", {}).get("limits", {}):
            yield f"{container.get('name')} has a limit of ephemeral-storage, beyond which its pod is evicted"


def _shared_memory(volume: Document, role: str) -> Iterator[str]:
    if role == TRAINING and volume.get("emptyDir") != SHARED_MEMORY:
        yield f"/dev/shm is {volume.get('emptyDir')}, not {SHARED_MEMORY}"


POD_RULES = (
    words_are_understood,
    gpus_are_required,
    entrypoint_is_kept,
    settings_are_known,
    there_is_time_to_save,
    volumes_are_mounted,
    disks_are_not_limited,
)
