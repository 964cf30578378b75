"""What a container takes away or withholds is told in one sentence with the flag to add, and only where it matters."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from stand_ins import Slipway, make_devices, make_host, make_sources, resolve

from slipway.cli import arguments
from slipway.launch.resolve import container_checks, host
from slipway.launch.resolve.container_checks import (
    default_runs,
    fleeting_file,
    fleeting_results,
    other_image,
    require_writable,
    seen_outside,
    unmounted,
    unseen,
    unseen_file,
    warnings,
)
from slipway.launch.resolve.host import HOST_TMPFS, Host, mount_point, mounted_from, read_mounts
from slipway.launch.resolve.topology import resolve_topology
from slipway.protocol.errors import CONFIGURATION, LaunchError

ROOT, CHECKPOINTS = Path("/"), Path("/checkpoints")
OVERLAY = {ROOT: "overlay", Path("/proc"): "proc", Path("/tmp"): "tmpfs"}
VOLUME = {**OVERLAY, CHECKPOINTS: "ext4"}


def in_image(runtime: str = "docker", mounts: dict[Path, str] | None = None, **more: object) -> Host:
    """A host that is Slipway's image; a plain `docker run` unless said otherwise."""
    changes = {"image": "0.1.0-abc", "runtime": runtime, "mounts": mounts or OVERLAY, "scratch": Path("/tmp/slipway-7")}
    return make_host()._replace(**{**changes, **more})  # type: ignore[arg-type]


def said(
    host: Host, builtin: bool = True, processes: str = "2", folder: Path = CHECKPOINTS, **environ: str
) -> list[str]:
    topology = resolve_topology(make_sources({"NPROC_PER_NODE": processes, **environ}), make_devices(), host)
    return list(warnings(host, topology, folder, builtin))


MOUNTINFO = r"""22 1 0:20 / / rw,relatime - overlay overlay rw,lowerdir=/a
23 22 0:21 / /proc rw,nosuid,nodev,noexec - proc proc rw
24 22 8:1 /srv/my\040runs /check\040points rw,relatime master:1 - ext4 /dev/sda1 rw
25 22 8:1 /var/lib/kubelet/pods/8f0e/volumes/kubernetes.io~empty-dir/data /data rw,relatime - ext4 /dev/sda1 rw
26 22 8:1 /var/lib/kubelet/pods/8f0e/volumes/kubernetes.io~csi/pvc-1/mount /kept rw,relatime - ext4 /dev/sda1 rw
27 22 0:40 / /own rw,nosuid,nodev,noexec - tmpfs tmpfs rw
28 22 0:41 /runs /bound rw - tmpfs tmpfs rw,size=65536k
"""


def test_mounts_are_read_with_their_types_and_odd_names(tmp_path: Path) -> None:
    file = tmp_path / "mountinfo"
    file.write_text(MOUNTINFO)
    mounts = read_mounts(file)
    volumes = {Path("/check points"): "ext4", Path("/data"): "emptyDir", Path("/kept"): "ext4"}
    in_memory = {Path("/own"): "tmpfs", Path("/bound"): HOST_TMPFS}
    assert mounts == {ROOT: "overlay", Path("/proc"): "proc", **volumes, **in_memory}
    assert mount_point(Path("/check points/gpt-1"), mounts) == Path("/check points")
    assert mount_point(Path("/checkpoints"), mounts) == ROOT
    assert read_mounts(tmp_path / "absent") == {}
    assert ROOT in read_mounts()


@pytest.mark.parametrize(
    ("runtime", "flag"),
    [
        ("docker", '-v "$PWD/runs:/checkpoints" to docker run'),
        ("slurm", '--container-mounts="$PWD/runs:/checkpoints" to srun'),
        ("kubernetes", "mount a PersistentVolumeClaim at /checkpoints"),
    ],
)
def test_results_on_the_containers_own_disk_are_warned_of_with_the_flag_to_add(runtime: str, flag: str) -> None:
    (line,) = said(in_image(runtime), processes="1")
    assert line.startswith(
        "warning: /checkpoints is not a mounted volume; results are lost when the container is removed."
    )
    assert flag in line


@pytest.mark.parametrize(
    ("host", "folder"),
    [
        (in_image(mounts=VOLUME), CHECKPOINTS),
        (in_image(mounts=VOLUME), CHECKPOINTS / "gpt-1"),
        (in_image(mounts={**OVERLAY, Path("/mine"): "nfs4"}), Path("/mine/runs")),
        (in_image(mounts={**OVERLAY, CHECKPOINTS: HOST_TMPFS}), CHECKPOINTS),
        (in_image(mounts={CHECKPOINTS: "ext4"}), Path("/elsewhere")),  # nothing is known of the root
        (make_host()._replace(mounts=OVERLAY, runtime="docker"), Path("/somewhere")),
    ],
)
def test_results_that_outlive_the_container_are_not_warned_of(host: Host, folder: Path) -> None:
    assert fleeting_results(host, folder) == ""


def test_results_that_go_with_a_pod_are_warned_of() -> None:
    line = fleeting_results(in_image("kubernetes", {**OVERLAY, CHECKPOINTS: "emptyDir"}), CHECKPOINTS)
    assert line.startswith("warning: /checkpoints is an emptyDir; results are lost when the pod is removed.")
    part = fleeting_results(in_image("kubernetes", {**OVERLAY, CHECKPOINTS: HOST_TMPFS}), CHECKPOINTS)
    assert part.startswith("warning: /checkpoints is on a tmpfs, in memory;"), "a subPath of an emptyDir in memory"
    assert "PersistentVolumeClaim" in line


def test_results_in_memory_are_warned_of_and_a_folder_of_the_users_own_is_named() -> None:
    assert '-v "$PWD/runs:/mine"' in fleeting_results(in_image(), Path("/mine"))
    spare = Path("/tmp/slipway-7/runs")
    warning = fleeting_results(in_image(), spare)
    assert warning.startswith(
        f"warning: {spare} is on a tmpfs, in memory; results are lost when the container or the machine"
    )
    assert '-v "$PWD/runs:/checkpoints"' in warning


def test_of_a_read_only_folder_for_results_the_error_alone_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    host = in_image(mounts={**OVERLAY, CHECKPOINTS: "tmpfs"})
    assert len(said(host, processes="1")) == 1
    monkeypatch.setattr(container_checks, "is_read_only", lambda folder: True)
    assert said(host, processes="1") == []


def test_the_folder_for_runs_is_the_images_own_or_on_a_read_only_root_a_spare_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert default_runs(make_host(), tmp_path) == "runs"
    assert default_runs(in_image(), tmp_path) == str(tmp_path)
    monkeypatch.setattr(container_checks, "can_write", lambda folder: False)
    assert default_runs(in_image(), CHECKPOINTS) == "/tmp/slipway-7/runs"
    assert default_runs(in_image(mounts=VOLUME), CHECKPOINTS) == "/checkpoints", "a volume was meant: an error follows"


@pytest.mark.parametrize(
    ("mounts", "read_only", "says"),
    [
        (OVERLAY, False, 'mkdir -p runs, and add --user "$(id -u):0" -v "$PWD/runs:/checkpoints" to docker run'),
        (VOLUME, True, "mount it without :ro"),
    ],
)
def test_results_that_cannot_be_written_are_an_error_with_the_flag(
    monkeypatch: pytest.MonkeyPatch, mounts: dict[Path, str], read_only: bool, says: str
) -> None:
    require_writable(in_image(mounts=mounts), Path("/tmp"))
    monkeypatch.setattr(container_checks, "can_write", lambda folder: False)
    monkeypatch.setattr(container_checks, "is_read_only", lambda folder: read_only)
    with pytest.raises(LaunchError) as caught:
        require_writable(in_image(mounts=mounts), CHECKPOINTS)
    assert says in str(caught.value)
    assert caught.value.code == CONFIGURATION
    require_writable(make_host(), CHECKPOINTS)  # a checkout says it when the folder is made


@pytest.mark.parametrize(
    ("runtime", "says", "silent"),
    [
        ("docker", "mount it without :ro", "emptyDir"),
        ("kubernetes", "mount an emptyDir or a PersistentVolumeClaim at /checkpoints", ":ro"),
        ("slurm", "leave :ro out of --container-mounts", "emptyDir"),
    ],
)
def test_a_read_only_mount_for_results_is_refused_in_the_words_of_the_runtime(
    monkeypatch: pytest.MonkeyPatch, runtime: str, says: str, silent: str
) -> None:
    monkeypatch.setattr(container_checks, "can_write", lambda folder: False)
    monkeypatch.setattr(container_checks, "is_read_only", lambda folder: True)
    with pytest.raises(LaunchError) as caught:
        require_writable(in_image(runtime, VOLUME), CHECKPOINTS)
    assert says in str(caught.value)
    assert silent not in str(caught.value)


@pytest.mark.parametrize(
    ("runtime", "source", "owner", "says"),
    [
        ("docker", "/a/runs", 0, 'type: rmdir /a/runs && mkdir /a/runs; otherwise: sudo chown -R "$(id -u)" /a/runs. And add --user "$(id -u):0"'),
        ("host", "./out", 0, "type in the folder that contains it: rmdir out && mkdir out;"),
        ("docker", "./my runs", 0, "rmdir 'my runs' && mkdir 'my runs'; otherwise: sudo chown -R \"$(id -u)\" 'my runs'."),
        ("docker", "/srv/my runs", 0, "empty, type: rmdir '/srv/my runs' && mkdir '/srv/my runs'; otherwise"),
        ("docker", "/srv/$x", 0, "type: rmdir '/srv/$x' && mkdir '/srv/$x'"),
        ("docker", "./runs", 4711, "belongs to user 4711, so user 7 cannot write there. Start as its owner: add --user 4711:0"),
        ("docker", "results", 0, "docker run --rm --user 0 -v results:/checkpoints slipway:dev sh -c 'chgrp -R 0 /checkpoints && "),
        ("docker", "results", 4711, "chmod -R ug+rwX /checkpoints'"),
        ("docker", "", 4711, "Start as its owner"),  # a volume without a name
        ("kubernetes", "./x", 0, "fsGroup"),
        ("slurm", "./x", 4711, "submit the job as that user"),
    ],
)  # fmt: skip
def test_a_mounted_folder_of_another_user_is_an_error_with_what_to_type(
    monkeypatch: pytest.MonkeyPatch, runtime: str, source: str, owner: int, says: str
) -> None:
    monkeypatch.setattr(container_checks, "can_write", lambda folder: False)
    monkeypatch.setattr(container_checks, "is_read_only", lambda folder: False)
    monkeypatch.setattr(container_checks, "owner_of", lambda folder: owner)
    monkeypatch.setattr(container_checks, "mounted_from", lambda point: source)
    monkeypatch.setattr("os.getuid", lambda: 7)
    with pytest.raises(LaunchError) as caught:
        require_writable(in_image(runtime, VOLUME), CHECKPOINTS)
    assert says in str(caught.value)
    assert caught.value.code == CONFIGURATION


@pytest.mark.parametrize("mode", [0o555, 0o070])
def test_a_mounted_folder_of_ones_own_whose_mode_forbids_writing_is_told_the_mode(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: int
) -> None:
    monkeypatch.setattr(container_checks, "can_write", lambda folder: False)  # to root a mode forbids nothing
    monkeypatch.setattr(container_checks, "mounted_from", lambda point: "/srv/my runs")
    (tmp_path / "deeper").mkdir()
    for folder, typed in ((tmp_path, "'/srv/my runs'"), (tmp_path / "deeper", "'/srv/my runs/deeper'")):
        folder.chmod(mode)
        with pytest.raises(LaunchError) as caught:
            require_writable(in_image(mounts={**OVERLAY, tmp_path: "ext4"}), folder)
        folder.chmod(0o755)
        assert f"its mode {mode:03o} does not let its owner write. Type on the host: chmod u+rwx {typed}" in str(
            caught.value
        )
        assert "--user" not in str(caught.value)
    for runtime, source, typed in (
        ("docker", "results", f"sh -c 'chgrp -R 0 {tmp_path} && chmod -R ug+rwX {tmp_path}'"),
        ("kubernetes", "./x", f"Type where this folder can be changed: chmod u+rwx {tmp_path}"),
    ):
        monkeypatch.setattr(container_checks, "mounted_from", lambda point, source=source: source)
        with pytest.raises(LaunchError, match=re.escape(typed)):
            require_writable(in_image(runtime, {**OVERLAY, tmp_path: "ext4"}), tmp_path)


@pytest.mark.parametrize(
    ("host", "folder", "says"),
    [
        (in_image(), Path("/workspace"), ' Nothing is mounted at /workspace, where your files would be: add -v "$PWD:/workspace" to'),
        (in_image("slurm"), Path("/workspace"), '--container-mounts="$PWD:/workspace" to srun'),
        (in_image("kubernetes"), Path("/workspace"), "mount a volume"),
        (in_image(mounts={**OVERLAY, Path("/workspace"): "ext4"}), Path("/workspace"), ""),
        (in_image(mounts={**OVERLAY, Path("/mine"): "ext4"}), Path("/mine/deeper"), ""),
        (make_host(), Path("/workspace"), ""),
    ],
)  # fmt: skip
def test_files_that_are_missing_in_the_image_were_not_mounted(host: Host, folder: Path, says: str) -> None:
    said = unmounted(host, folder)
    assert says in said
    assert bool(says) == bool(said)


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("train.py", True),
        ("run deeper/train.py", True),
        ("gpt --dataset file:my.txt", True),
        ("vision --dataset folder:pictures", True),
        ("lniear", False),
        ("/elsewhere/train.py", False),
        ("gpt --lr no", False),
    ],
)
def test_missing_files_of_the_working_directory_are_said_to_be_unmounted(
    slipway: Slipway, monkeypatch: pytest.MonkeyPatch, words: str, asked: bool
) -> None:
    monkeypatch.setattr(arguments, "read_host", lambda environ: in_image(mounts={ROOT: "overlay"}))
    assert ("Nothing is mounted at" in slipway(*words.split()).err) is asked


@pytest.mark.parametrize(
    ("runtime", "path", "says"),
    [
        ("docker", "/home/me/it/train.py", ' sees only those files of its machine that are mounted: add -v "/home/me/it:/home/me/it" to docker'),
        ("docker", "/home/a $b/c.py", '-v "/home/a \\$b:/home/a \\$b"'),
        ("docker", "/usr/train.py", '-v "/usr/train.py:/usr/train.py"'),  # a folder of the image's own
        ("docker", "/home/me/it/src/mine.py", " In this container it is {here}/src/mine.py."),
        ("docker", "/home/me/mine.py", " In this container it is {here}/mine.py."),
        ("docker", "/mnt/disk/train.py", ""),  # which is mounted, so it is mistyped
        ("slurm", "/home/me/it/train.py", '--container-mounts="/home/me/it:/home/me/it" to srun'),
        ("kubernetes", "/home/me/it/train.py", "mount a volume with them at /home/me/it"),
    ],
)  # fmt: skip
def test_a_path_of_the_machine_is_translated_for_the_container(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, slipway: Slipway, runtime: str, path: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for mine in (tmp_path / "mine.py", tmp_path / "src/mine.py"):
        mine.parent.mkdir(exist_ok=True)
        mine.touch()
    host, says = in_image(runtime, {ROOT: "overlay", Path("/mnt/disk"): "ext4"}), says.format(here=tmp_path)
    assert says in (said := unseen(host, path))
    assert bool(says) == bool(said)
    monkeypatch.setattr(arguments, "read_host", lambda environ: host)
    for words in (
        ["run", path],
        ["gpt", "--dataset", f"file:{path}"],
        ["gpt", "--config", path],
        ["vision", "--dataset", f"folder:{path}"],
    ):
        answer = slipway(*words)
        assert answer.code in (2, 78)
        assert says in answer.err


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("--data ../data/train", 'add -v "$PWD/../data:{above}/data" to docker run'),
        ("--data=/datasets/me/c4", '-v "/datasets/me:/datasets/me" to docker run'),
        ("data.path=/usr/c4", '-v "/usr/c4:/usr/c4" to docker run'),
        ("--data /home/me/project/mine.txt", "In this container it is {here}/mine.txt."),
        ("--data mine.txt --lr 0.1 --model openai/gpt2 --s3 s3://bucket/x /usr ..", ""),
        ("--out /scratch/of-mine /mnt/disk/new", ""),  # the script may make these
    ],
)
def test_a_scripts_arguments_that_the_container_does_not_see_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, slipway: Slipway, typed: str, says: str
) -> None:
    here = tmp_path / "work"
    here.mkdir()
    monkeypatch.chdir(here)
    for name in ("mine.txt", "train.py"):
        Path(name).touch()
    mounts = {ROOT: "overlay", here: "ext4", Path("/mnt/disk"): "ext4"}
    monkeypatch.setattr(
        arguments, "read_host", lambda environ: in_image(mounts=mounts, scratch=Path("/scratch/slipway-7"))
    )
    said = [
        line for line in slipway("plan", "train.py", *typed.split()).out.splitlines() if "in this container." in line
    ]
    assert len(said) == bool(says), said
    if says:
        assert says.format(here=here, above=tmp_path) in said[0]


@pytest.mark.parametrize(
    ("source", "file", "says"),
    [
        (
            "/home/me/runs",
            "/checkpoints/a/report.html",
            "outside of this container that is /home/me/runs/a/report.html",
        ),
        ("/checkpoints", "/checkpoints/a/report.html", ""),  # as pyxis often mounts
        ("a-volume", "/checkpoints/a/report.html", ""),
        ("/home/me/runs", "/tmp/report.html", ""),
    ],
)
def test_what_was_written_is_shown_as_the_machine_sees_it(
    monkeypatch: pytest.MonkeyPatch, source: str, file: str, says: str
) -> None:
    monkeypatch.setattr(container_checks, "mounted_from", lambda point: source)
    assert seen_outside(in_image(mounts={ROOT: "overlay", CHECKPOINTS: "ext4"}), Path(file)) == says
    assert seen_outside(in_image(mounts={CHECKPOINTS: "ext4"}, image=None), Path(file)) == ""


@pytest.mark.parametrize(
    ("mounts", "name", "says"),
    [
        (
            {ROOT: "overlay"},
            "data/x.pt",
            'Nothing is mounted at {here}, where your files would be: add -v "$PWD:{here}"',
        ),
        ({ROOT: "overlay"}, "/datasets/c4", "A container sees only those files of its machine that are mounted"),
        ({ROOT: "overlay"}, "there.pt", ""),
        ({ROOT: "overlay"}, "/scratch/mine.pt", ""),  # what the script should have made
        ({ROOT: "overlay", Path("{here}"): "ext4"}, "data/x.pt", ""),
    ],
)
def test_a_file_that_a_script_did_not_find_may_not_be_mounted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mounts: dict[Path, str], name: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.pt").touch()
    known = {Path(str(point).format(here=tmp_path)): kind for point, kind in mounts.items()}
    told = unseen_file(in_image(mounts=known, scratch=Path("/scratch/slipway-7")), name)
    assert told.startswith(says.format(here=tmp_path)) if says else told == ""


def test_data_beside_the_working_directory_are_said_to_be_unmounted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, slipway: Slipway
) -> None:
    monkeypatch.chdir(tmp_path)
    host = in_image(mounts={ROOT: "overlay", tmp_path: "ext4"})
    monkeypatch.setattr(arguments, "read_host", lambda environ: host)
    for words in ("gpt --dataset file:../data/c4.txt", "../data/train.py"):
        assert f'add -v "$PWD/../data:{tmp_path.parent}/data" to docker run' in slipway(*words.split()).err


@pytest.mark.parametrize(("free", "told"), [(5_000_000, True), (10**9, False), (None, False)])
def test_a_disk_that_is_almost_full_is_named_before_the_start(
    monkeypatch: pytest.MonkeyPatch, free: int | None, told: bool
) -> None:
    monkeypatch.setattr(container_checks, "room_of", lambda folder: free)
    lines = [line for line in warnings(make_host(), resolve({}), Path("runs"), True) if "are free at runs" in line]
    assert bool(lines) is told
    assert not told or lines[0].startswith("warning: only 5.0 MB are free at runs, and a snapshot that does not fit")


def test_the_room_for_a_folder_that_is_to_be_made_is_known(tmp_path: Path) -> None:
    assert (host.room_of(tmp_path / "not/yet") or 0) > 0


VOLUMES = (
    "27 22 8:1 /var/lib/docker/volumes/results/_data /named rw - ext4 /dev/sda1 rw\n"
    f"28 22 8:1 /volumes/{'0a' * 32}/_data /unnamed rw - ext4 /dev/sda1 rw\n"
    "29 22 8:1 /home/me/.local/share/containers/storage/volumes/results/_data /podman rw - ext4 /dev/sda1 rw\n"
    "30 22 8:2 /me/out /other rw - ext4 /dev/sdb1 rw\n"
)
HOSTS = "31 22 8:1 {}/containers/0a/hosts /etc/hosts rw - ext4 /dev/sda1 rw\n"
DOCKER = HOSTS.format("/var/lib/docker")


@pytest.mark.parametrize(
    ("point", "hosts", "source"),
    [
        ("/check points", DOCKER, "/srv/my runs"),
        ("/check points", "", "./my runs"),
        (
            "/check points",
            HOSTS.format("/docker"),
            "./my runs",
        ),  # Docker's data are elsewhere: so may be this file system
        ("/check points", HOSTS.format("/srv/var/lib/docker"), "/my runs"),  # subvolume "srv" is the host's root
        ("/check points", HOSTS.format("/sr/var/lib/docker"), "./my runs"),  # another subvolume
        ("/check points", HOSTS.format("/home/me/.local/share/docker"), "./my runs"),
        ("/other", DOCKER, "./out"),  # another disk, mounted anywhere
        ("/kept", "", "./mount"),
        ("/", DOCKER, "./runs"),  # of the root's source nothing is known
        ("/nowhere", DOCKER, "./runs"),
        ("/named", DOCKER, "results"),
        ("/unnamed", DOCKER, ""),
        ("/podman", "", "results"),
    ],
)
def test_where_a_mounted_folder_comes_from(tmp_path: Path, point: str, hosts: str, source: str) -> None:
    file = tmp_path / "mountinfo"
    file.write_text(MOUNTINFO + VOLUMES + hosts)
    assert mounted_from(Path(point), file) == source
    assert mounted_from(Path(point), tmp_path / "absent") == "./runs"


@pytest.mark.parametrize(
    ("runtime", "flag"),
    [
        ("docker", "add --shm-size 1g to docker run"),
        ("kubernetes", "emptyDir with medium: Memory at /dev/shm"),
        ("host", "remount,size=1g /dev/shm"),
    ],
)
def test_a_small_dev_shm_is_warned_of_with_the_flag_to_add(runtime: str, flag: str) -> None:
    (line,) = said(in_image(runtime, VOLUME, shm=64 << 20))
    assert "/dev/shm holds 64 MB" in line
    assert flag in line


@pytest.mark.parametrize(
    ("shm", "processes", "builtin", "lines"),
    [
        (64 << 20, "1", True, 0),
        (64 << 20, "1", False, 1),  # a user's script may have data loaders
        (64 << 20, "2", True, 1),
        (512 << 20, "2", False, 0),
        (None, "2", False, 0),
    ],
)
def test_it_is_warned_of_only_where_it_can_matter(shm: int | None, processes: str, builtin: bool, lines: int) -> None:
    assert len(said(in_image(mounts=VOLUME, shm=shm), builtin, processes)) == lines


@pytest.mark.parametrize(
    ("runtime", "mounted", "read_only", "says"),
    [
        ("docker", False, False, 'add -v "$PWD:{}" to docker run, or -w /tmp'),
        ("docker", True, True, "mount {} without :ro"),
        ("docker", True, False, '--user "$(id -u):0" to docker run'),
        ("kubernetes", True, True, "SLIPWAY_RUN_DIR names, or mount an emptyDir"),  # a script out of a ConfigMap
        ("slurm", True, True, "leave :ro out of --container-mounts"),
        ("kubernetes", False, False, "workingDir"),
        ("host", False, False, "start it in a folder that can be written"),
    ],
)
def test_a_working_directory_that_a_script_cannot_write_to_is_warned_of_with_the_flag_to_add(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runtime: str, mounted: bool, read_only: bool, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    host = in_image(runtime, {**VOLUME, tmp_path: "ext4"} if mounted else {ROOT: "overlay", CHECKPOINTS: "ext4"})
    assert said(host, builtin=False) == []
    monkeypatch.setattr(container_checks, "can_write", lambda folder: folder != tmp_path)
    monkeypatch.setattr(container_checks, "is_read_only", lambda folder: read_only)
    (line,) = said(host, builtin=False)
    assert line.startswith(f"warning: the working directory {tmp_path} cannot be written by user {os.getuid()}")
    assert says.format(tmp_path) in line
    assert said(host, builtin=True) == [], "ours write to the run directory"


@pytest.mark.parametrize(
    ("runtime", "rank", "named"),
    [("docker", "0", True), ("docker", "auto", True), ("docker", "1", False), ("host", "0", False)],
)
def test_that_node_0_listens_for_its_container_alone_is_said(runtime: str, rank: str, named: bool) -> None:
    environ = {"WORLD_SIZE": "2", "RANK": rank, "MASTER_ADDR": "localhost", "SLIPWAY_TOKEN": "0123456789abcdef"}
    lines = said(in_image(runtime, VOLUME), **environ)
    assert any("MASTER_ADDR=localhost is this container" in line for line in lines) == named


def test_what_is_written_to_a_folder_of_the_image_is_said_to_be_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    line = fleeting_file(in_image(mounts={ROOT: "overlay"}), Path("my-model"))
    assert line.startswith("warning: my-model is in this container alone, and is lost with it. To keep it, add -v ")
    assert f'"$PWD:{tmp_path}"' in line
    assert not fleeting_file(in_image(mounts={ROOT: "overlay", tmp_path: "ext4"}), Path("my-model"))
    assert not fleeting_file(in_image("host", image=None), Path("my-model"))


CACHED = {"TRITON_CACHE_DIR": "/data/slipway-7/triton"}
LOST = {"TRITON_CACHE_DIR": "/tmp/slipway-7/triton"}


@pytest.mark.parametrize(
    ("runtime", "mended", "says"),
    [
        ("docker", CACHED, ["compiled code is kept elsewhere", "--tmpfs /tmp:exec,mode=1777"]),
        ("docker", LOST, ["cannot be loaded", "--tmpfs /tmp:exec,mode=1777"]),
        ("kubernetes", LOST, ["cannot be loaded", "an emptyDir at /tmp"]),
        ("host", LOST, ["cannot be loaded", "TMPDIR"]),
        ("host", CACHED, []),
        ("slurm", CACHED, []),
    ],
)
def test_a_noexec_tmp_is_warned_of_with_the_flag_to_add(runtime: str, mended: dict[str, str], says: list[str]) -> None:
    lines = said(in_image(runtime, VOLUME, noexec=True, mended=mended))
    assert len(lines) == bool(says)
    for words in says:
        assert words in lines[0]


def test_of_several_launchers_on_a_machine_one_says_it() -> None:
    place = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    assert said(in_image(), LOCAL_RANK="1", **place) == []
    assert len(said(in_image(), LOCAL_RANK="0", **{**place, "RANK": "0"})) == 1


def test_the_image_is_named_by_plan_and_by_the_version(slipway: Slipway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "read_mounts", lambda: OVERLAY)
    made = slipway("plan", "linear", SLIPWAY_IMAGE="0.1.0-abc", SLIPWAY_RUNS="runs")
    assert "in the image 0.1.0-abc" in made.out
    assert "warning:" in made.out
    assert '"image": "0.1.0-abc"' in slipway("plan", "--json", "linear", SLIPWAY_IMAGE="0.1.0-abc").out
    assert "(image 0.1.0-abc)" in slipway("--version", SLIPWAY_IMAGE="0.1.0-abc").out
    assert "image" not in slipway("plan", "linear").out + slipway("--version").out


def test_in_the_image_the_env_file_overrules_where_results_go(slipway: Slipway) -> None:
    Path(".env").write_text("SLIPWAY_RUNS=mine\n")
    made = slipway("plan", "linear", SLIPWAY_IMAGE="0.1.0-abc").out
    assert "mine" in next(line for line in made.splitlines() if line.startswith("SLIPWAY_RUNS "))


def test_names_that_docker_compose_reads_from_the_same_file_are_left_to_it(slipway: Slipway) -> None:
    Path(".env").write_text(
        "COMPOSE_FILE=compose/compose.yaml:compose/cpu.yaml\nCOMPOSE_PROFILES=tensorboard\nIMAGE=slipway:dev\n"
        "TENSORBOARD_PORT=6006\nNPROC_PER_NODE=1\n"
    )
    made = slipway("plan", "linear")
    assert made.code == 0
    assert made.err == ""
    assert "1 node × 1 CPU process " in made.out
    assert "COMPOSE_" not in made.out
    assert "in the image" not in made.out, "the file names an image to start, not the one we are in"


@pytest.mark.parametrize(
    ("affinity", "cores", "processes", "runtime", "said"),
    [
        (
            1,
            2,
            "2",
            "slurm",
            "2 processes share 1 of 2 cores, the only ones that this launcher may run on; add --cpus-per-task=2",
        ),
        (2, 64, "8", "docker", "8 processes share 2 of 64 cores, .*; give docker run a wider --cpuset-cpus"),
        (1, 8, "2", "host", "2 processes share 1 of 8 cores"),
        (2, 2, "4", "host", ""),
        (2, 64, "2", "slurm", ""),
    ],
)
def test_processes_that_share_a_part_of_the_cores_are_warned_of(
    affinity: int, cores: int, processes: str, runtime: str, said: str
) -> None:
    host = make_host()._replace(affinity=affinity, cores=cores, runtime=runtime)
    told = [
        line
        for line in warnings(host, resolve({}, {"NPROC_PER_NODE": processes}), Path("runs"), True)
        if "cores" in line
    ]
    assert bool(told) == bool(said)
    assert not said or re.search(said, told[0])


@pytest.mark.parametrize(("length", "warned"), [(74, False), (75, False), (76, True), (140, True)])
def test_a_folder_for_temporary_files_in_which_no_socket_fits_is_warned_of(length: int, warned: bool) -> None:
    folder = Path("/" + "t" * (length - 1))
    host = make_host()._replace(scratch=folder / "slipway-0")
    told = [line for line in warnings(host, resolve({}), Path("runs"), True) if "AF_UNIX" in line]
    assert bool(told) is warned
    assert not warned or f"{folder}" in told[0]


@pytest.mark.parametrize(
    ("image", "named", "version"),
    [
        ("1.2.3-cuda12-abc", "registry.example#owner/slipway:1.3.0-cuda12", "1.3.0-cuda12"),
        ("1.2.3-cuda12-abc", "/shared/images/slipway-1.2.3-cuda13.sqsh", "1.2.3-cuda13"),
        ("1.2.3-cuda12-abc", "registry.example/owner/slipway:1.2.4-cpu@sha256:0123", "1.2.4-cpu"),
        ("1.2.3-cuda12-abc", "registry.example/owner/slipway:1.2.3-cuda12", ""),
        ("1.2.3-cuda12-abc", "/shared/images/slipway-1.2.3-cuda12.sqsh", ""),
        # What somebody numbers as they like says nothing about the version of Slipway in it.
        ("1.2.3-cuda12-abc", "/shared/images/slipway-1.3.sqsh", ""),
        ("1.2.3-cuda12-abc", "registry.example/me/train:2.0.1-cuda12", ""),
        ("1.2.3-cuda12-abc", "dockerd://slipway:dev", ""),
        ("1.2.3-cuda12-abc", "", ""),
    ],
)
def test_a_container_of_another_image_than_the_named_one_is_told(image: str, named: str, version: str) -> None:
    told = other_image(in_image("slurm", image=image), named)
    assert bool(told) == bool(version)
    if version:
        assert f"IMAGE={named} names version {version} of Slipway, and this container has {image}." in told
        assert '--container-name="slipway-$SLURM_JOB_ID"' in told
        assert "container-name" not in other_image(in_image("docker", image=image), named)
    assert other_image(in_image("slurm", image=None), named) == ""
