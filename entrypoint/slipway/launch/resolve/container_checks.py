"""What a container takes away at its end or withholds, one sentence for each with the advice that mends it. Pure but
for questions about the folder of the results and the working directory."""

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from slipway.launch.resolve.advice import advise
from slipway.launch.resolve.connectivity import is_loopback
from slipway.launch.resolve.host import (
    CHECKPOINTS,
    EMPTY_DIR,
    HOST_TMPFS,
    Host,
    can_write,
    existing,
    is_read_only,
    mount_point,
    mounted_from,
    owner_of,
    room_of,
)
from slipway.launch.resolve.runtimes import runtime_of
from slipway.launch.resolve.sources import Sources
from slipway.launch.resolve.topology import Topology
from slipway.protocol.errors import LaunchError
from slipway.protocol.variants import NAMES

# A socket's path has at most 107 bytes (unix(7)); Python's multiprocessing adds /pymp-xxxxxxxx/listener-xxxxxxxx.
LONGEST_TMPDIR = 107 - len("/pymp-xxxxxxxx/listener-xxxxxxxx")
PUBLISHED = re.compile(rf"slipway[:_-](\d+\.\d+\.\d+\w*-(?:{'|'.join(NAMES)}))(?:\.sqsh|@.*)?$")
FULL = 256 << 20  # bytes free; logs and two snapshots of a small model are more
SMALL_SHM = 512 << 20  # bytes; docker gives 64 MB, and a data loader's worker wants a batch there, NCCL 10 MB per peer


def default_runs(host: Host, checkpoints: Path = CHECKPOINTS) -> str:
    """The folder for results where the user names none: in the image a folder of its own, on a read-only root without
    a volume one among the temporary files."""
    if host.image is None:
        return "runs"
    mounted = mount_point(checkpoints, host.mounts) == checkpoints
    return str(checkpoints if mounted or can_write(checkpoints) else host.scratch / "runs")


def results_folder(sources: Sources) -> Path:
    """The folder whose disk has the results: that of the run where it is named, else that of all runs."""
    return Path(sources.value("SLIPWAY_RUN_DIR") or sources.value("SLIPWAY_RUNS")).absolute()


def fleeting_results(host: Host, folder: Path) -> str:
    """The warning that the results end with the container; empty where they outlive it."""
    if host.image is None:
        return ""
    point = mount_point(folder, host.mounts)
    # In a pod a folder within a tmpfs is a subPath of an emptyDir in memory.
    memory = ("tmpfs", HOST_TMPFS) if runtime_of(host.runtime).has_services else ("tmpfs",)
    if point is None or (point != Path("/") and host.mounts[point] not in (*memory, EMPTY_DIR)):
        return ""
    target = CHECKPOINTS if folder.is_relative_to(host.scratch) else folder
    what = "not a mounted volume; results are lost when the container is removed"
    if host.mounts[point] in memory:  # the container's own, or one of the host that is mounted as a whole
        what = "on a tmpfs, in memory; results are lost when the container or the machine ends"
    if host.mounts[point] == EMPTY_DIR:
        what = "an emptyDir; results are lost when the pod is removed"
    return f"warning: {folder} is {what}. To keep them, {advise('results', host.runtime, str(target))}."


def fleeting_file(host: Host, path: Path) -> str:
    """The same of a file or folder that a user named, and that is in a folder of the image."""
    folder = path.absolute().parent
    if not fleeting_results(host, folder):
        return ""
    add = advise("files", host.runtime, str(folder))
    return f"warning: {path} is in this container alone, and is lost with it. To keep it, {add}."


def seen_outside(host: Host, path: Path) -> str:
    """Where a file that a user named is outside of the container; empty where that is not known, or is the same place."""
    absolute = path.absolute()
    point = mount_point(absolute, host.mounts)
    source = mounted_from(point) if host.image and point and point != Path("/") else ""
    place = Path(source) / absolute.relative_to(point) if point and source.startswith("/") else absolute
    return f"outside of this container that is {place}" if place != absolute else ""


def require_writable(host: Host, folder: Path) -> None:
    """Raise LaunchError where the image's results cannot be written to `folder`, with the flag to add or to leave out."""
    if host.image is None or can_write(folder):
        return
    point = mount_point(folder, host.mounts)
    if point is None or point == Path("/"):
        raise LaunchError(
            f"{folder} cannot be written in this container: {advise('results', host.runtime, str(folder))}."
        )
    if is_read_only(folder):
        remedy = advise("results in a read-only mount", host.runtime, str(point))
        raise LaunchError(f"{point} is mounted read-only, and the results go there; {remedy}.")
    place = existing(folder)
    if owner_of(place) == os.getuid():
        mode = f"{place.stat().st_mode & 0o7777:03o}"
        raise LaunchError(
            f"{place} belongs to user {os.getuid()}, who runs this, and its mode {mode} does not let its owner write. "
            f"{_let_owner_write(host, point, place)}"
        )
    owner = owner_of(point)
    raise LaunchError(
        f"{point} is mounted and belongs to {'root' if owner == 0 else f'user {owner}'}, so user {os.getuid()} cannot write "
        f"there. {_make_writable(host, point, owner)}"
    )


def _let_owner_write(host: Host, point: Path, place: Path) -> str:
    """What to type so that results can be written to a `place` at a mount point whose mode alone forbids it."""
    source = mounted_from(point)
    if not source or not runtime_of(host.runtime).by_hand:
        return f"Type where this folder can be changed: chmod u+rwx {shlex.quote(str(place))}"
    if not source.startswith(("/", "./")):
        return _make_writable(host, point, os.getuid())
    return (
        f"Type on the host: chmod u+rwx {shlex.quote(os.path.normpath(Path(source) / os.path.relpath(place, point)))}"
    )


def _make_writable(host: Host, point: Path, owner: int) -> str:
    """What to type so that results can be written to a mounted folder of another user."""
    if not runtime_of(host.runtime).by_hand:
        return f"Let it be that user's (chown {os.getuid()} DIR), or {advise('owner', host.runtime)}."
    source = mounted_from(point)
    if source and not source.startswith(("/", "./")):
        return (
            f"Let group 0, which every user of the image has, write to the volume. Type: docker run --rm --user 0 "
            f"-v {shlex.quote(f'{source}:{point}')} {host.usual_image} sh -c "
            + shlex.quote(f"chgrp -R 0 {shlex.quote(str(point))} && chmod -R ug+rwX {shlex.quote(str(point))}")
        )
    if owner:
        return f"Start as its owner: {advise('owner', host.runtime)}.".replace('"$(id -u):0"', f"{owner}:0")
    folder = shlex.quote(source.removeprefix("./"))
    there = "" if source.startswith("/") else " in the folder that contains it"
    return (
        f"Docker creates missing folders as root. If the folder is empty, type{there}: rmdir {folder} && mkdir {folder}; "
        f'otherwise: sudo chown -R "$(id -u)" {folder}. And {advise("owner", host.runtime)}.'
    )


def unmounted(host: Host, folder: Path) -> str:
    """What to add where files are missing in a `folder` of the image that nobody mounted; empty where that is not the cause."""
    if host.image is None or mount_point(folder, host.mounts) != Path("/"):
        return ""
    return f" Nothing is mounted at {folder}, where your files would be: {advise('files', host.runtime, str(folder))}."


def unseen(host: Host, typed: str) -> str:
    """What to type for a path of the machine that the image does not see: its path here, or what to mount; empty where that is
    not the cause, or nothing was typed."""
    path = Path(os.path.normpath(Path.cwd() / typed))
    absolute = Path(typed).is_absolute()
    if not typed:
        return ""
    if not absolute and path.is_relative_to(Path.cwd()):
        return unmounted(host, Path.cwd())
    if host.image is None or mount_point(path, host.mounts) != Path("/"):
        return ""
    tails = (Path(*path.parts[start:]) for start in range(2, len(path.parts)))
    if absolute and (here := next((Path.cwd() / tail for tail in tails if (Path.cwd() / tail).exists()), None)):
        return f" In this container it is {here}."
    from slipway.launch.resolve.next_lines import quote_mount  # an error alone needs it

    own = path if path.parent.exists() else path.parent  # a folder of the image is not to be covered
    folder, source = str(own), str(own) if absolute else f"./{os.path.relpath(own)}"
    add = advise("files", host.runtime, folder).replace(f'"$PWD:{folder}"', quote_mount(source, folder))
    return f" A container sees only those files of its machine that are mounted: {add}."


def unseen_file(host: Host, name: str) -> str:
    """What helps where a script did not find the file `name`, as a sentence; empty where the container is not the reason."""
    path = Path(os.path.normpath(Path.cwd() / name))
    if path.exists() or path.is_relative_to(host.scratch.parent):
        return ""
    return unseen(host, name).strip()


def unseen_arguments(host: Host, arguments: Sequence[str]) -> Iterator[str]:
    """What to say of paths among a script's arguments that the image does not see. Names within the working directory may be
    anything, such as a repo of the Hub.
    """
    for word in arguments:
        typed = re.sub(r"^[\w.-]+=", "", word)
        if re.fullmatch(r"(\.\.)?/[^:*?|]+", typed) and (told := unseen_file(host, typed)):
            yield f"note: the script is given {typed}, which is not in this container. {told}"


def warnings(host: Host, topology: Topology, folder: Path, builtin: bool) -> Iterator[str]:
    """What to say before a start. `folder` takes the results, `builtin` says that the workload is one of ours."""
    if topology.process and topology.process.local_rank:
        return  # its neighbour says it
    if not is_read_only(folder) and (
        fleeting := fleeting_results(host, folder)
    ):  # else it is an error, which says more
        yield fleeting
    if (room := room_of(folder)) is not None and room < FULL:
        yield (
            f"warning: only {room / 1e6:,.1f} MB are free at {folder}, and a snapshot that does not fit ends the job: free some "
            "space, or choose another disk with --runs or --run-dir."
        )
    address = topology.master_addr
    may_lead = topology.rank == 0 or topology.is_open
    if topology.nodes > 1 and may_lead and runtime_of(host.runtime).is_engine and is_loopback(address):
        yield (
            f"note: MASTER_ADDR={address} is this container, so only launchers in it can reach node 0, and with --network host "
            "those of this machine. For others give all nodes the name or address of node 0's container or machine"
        )
    if host.shm is not None and host.shm < SMALL_SHM and (topology.processes_per_node > 1 or not builtin):
        yield (
            f"warning: /dev/shm holds {host.shm >> 20} MB, too little for data-loader workers and for NCCL between the GPUs "
            f"of a machine; {advise('shared memory', host.runtime)}."
        )
    if host.noexec:
        yield from _noexec(host, topology)
    temporary = host.scratch.parent
    if len(os.fsencode(temporary)) > LONGEST_TMPDIR:
        yield (
            f"warning: no socket fits into {temporary}, the folder for temporary files: multiprocessing and data-loader workers "
            f"fail (AF_UNIX path too long) or wait for ever. Set TMPDIR to a path of at most {LONGEST_TMPDIR} bytes, as /tmp."
        )
    if not topology.process and topology.processes_per_node > host.affinity < host.cores:
        widen = runtime_of(host.runtime).widen(topology.processes_per_node)
        yield (
            f"warning: {topology.processes_per_node} processes share {host.affinity} of {host.cores} cores, the only ones "
            f"that this launcher may run on; {widen}."
        )
    if not builtin:
        yield from _read_only_work(host)


def other_image(host: Host, named: str) -> str:
    """The warning that this container is not made from the image that IMAGE names; empty if it may be.

    Only the tags of published images say what is in them: 1.2.3-cuda12, as a tag or at the end of a file's name.
    """
    found = PUBLISHED.search(named)
    if host.image is None or not found or host.image == found[1] or host.image.startswith(f"{found[1]}-"):
        return ""
    return (
        f"warning: IMAGE={named} names version {found[1]} of Slipway, and this container has {host.image}."
        f"{runtime_of(host.runtime).other_image}"
    )


def _read_only_work(host: Host) -> Iterator[str]:
    """Many scripts write where they were started; one that does not is none the worse."""
    with suppress(FileNotFoundError):  # deleted meanwhile
        folder = Path.cwd()
        if can_write(folder):
            return
        point = mount_point(folder, host.mounts)
        remedy = advise("working directory", host.runtime, str(folder))
        if point is not None and point != Path("/"):
            lacking = "files in a read-only mount" if is_read_only(folder) else "owner"
            remedy = advise(lacking, host.runtime, str(point))
        yield (
            f"warning: the working directory {folder} cannot be written by user {os.getuid()}; where the script writes "
            f"there, {remedy}."
        )


def _noexec(host: Host, topology: Topology) -> Iterator[str]:
    """On a host of one's own that is hardening, and only matters where compiled code has no other place."""
    place = Path(topology.mended.get("TRITON_CACHE_DIR", "/"))
    elsewhere = not place.is_relative_to(host.scratch)
    if elsewhere and runtime_of(host.runtime).own_tmp:
        return
    then = "compiled code is kept elsewhere" if elsewhere else "code compiled by torch.compile cannot be loaded"
    yield f"warning: {host.scratch.parent} is mounted noexec: {then}; {advise('temporary files', host.runtime)}."
