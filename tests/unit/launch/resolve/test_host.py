"""What images lack for arbitrary user ids is made good, and nothing that a user set is touched."""

import errno
import os
import pwd
import socket
import tempfile
from pathlib import Path

import pytest

from slipway.launch.resolve import host
from slipway.launch.resolve.host import clone3_errno, mounted_from, own_container, read_host, read_mounts
from slipway.protocol.errors import CONFIGURATION, LaunchError


def test_a_user_without_a_name_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", lambda uid: "somebody")
    assert "USER" not in read_host({}).mended
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert read_host({}).mended["USER"] == read_host({}).mended["LOGNAME"] == f"uid-{os.getuid()}"
    assert "USER" not in read_host({"USER": "me"}).mended


def test_a_free_port_is_free() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", read_host({}).free_port))


def test_the_image_names_itself_in_the_environment() -> None:
    assert read_host({}).image is None
    assert read_host({"SLIPWAY_IMAGE": ""}).image is None
    assert read_host({"SLIPWAY_IMAGE": "0.1.0-abc"}).image == "0.1.0-abc"


@pytest.mark.parametrize(
    ("image", "usual"),
    [
        ("", "slipway:dev"),
        ("0.1.0-abc", "slipway:dev"),
        ("0.1.0.dev0-cuda12-abc-dirty", "slipway:dev"),
        ("0.1.0.dev0-cpu-abc-dirty", "slipway:dev-cpu"),
        ("0.1.0-cuda13-abc", "slipway:dev-cuda13"),
        ("0.1.0-cpu0", "slipway:dev"),
    ],
)
def test_what_to_type_names_the_image_of_the_variant_that_this_is(image: str, usual: str) -> None:
    assert read_host({"SLIPWAY_IMAGE": image}).usual_image == usual


def test_without_any_folder_for_temporary_files_the_flag_to_add_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    monkeypatch.setattr(host, "detect_runtime", lambda environ: "docker")
    with pytest.raises(LaunchError, match="--tmpfs /tmp:exec,mode=1777") as caught:
        read_host({})
    assert caught.value.code == CONFIGURATION


def test_a_writable_home_is_seen(tmp_path: Path) -> None:
    assert "HOME" not in read_host({"HOME": str(tmp_path)}).mended
    assert "HOME" in read_host({"HOME": str(tmp_path / "absent")}).mended
    assert "HOME" in read_host({}).mended


def test_the_full_name_is_asked_only_where_it_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "lm-2")
    monkeypatch.setattr(socket, "getfqdn", lambda *_: "lm-2.lm.default.svc")
    assert read_host({}).fqdn == "lm-2"
    assert read_host({"JOB_COMPLETION_INDEX": "2"}).fqdn == "lm-2.lm.default.svc"


@pytest.mark.parametrize(
    "line", ["", "36", "36 35 98:0 /", "36 35 98:0 / / rw", "36 35 98:0 / / rw - ", " - ext4", "- - -"]
)
def test_lines_of_mounts_that_are_none_are_passed_over(tmp_path: Path, line: str) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"{line}\n40 35 98:0 /runs /checkpoints rw - ext4 /dev/sda rw\n{line}\n")
    assert read_mounts(mounts) == {Path("/checkpoints"): "ext4"}
    assert mounted_from(Path("/checkpoints"), mounts) == "./runs"


ID = "e1c35fcc3c95207a4f70e92e5b0caf270bca293ee8d8dc859ec38da9334e23c2"


@pytest.mark.parametrize(
    ("source", "point", "container"),
    [
        (f"/var/lib/docker/containers/{ID}/hostname", "/etc/hostname", ID),
        (f"/docker/containers/{ID}/resolv.conf", "/etc/resolv.conf", ID),  # its data have a disk of their own
        (f"/containers/overlay-containers/{ID}/userdata/hosts", "/etc/hosts", ID),  # Podman, without root
        (f"/var/lib/containerd/io.containerd.grpc.v1.cri/sandboxes/{ID}/hostname", "/etc/hostname", ID),  # a pod
        (
            f"/var/lib/docker/containers/{ID}/mounts/shm",
            f"/var/lib/docker/containers/{ID}/mounts/shm",
            "",
        ),  # on the host
        ("/etc/hosts", "/etc/hosts", ""),
        ("/", "/", ""),
    ],
)
def test_a_container_is_known_by_its_id(tmp_path: Path, source: str, point: str, container: str) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"36\n101 84 254:0 {source} {point} rw,relatime - ext4 /dev/vda rw\n")
    assert own_container(mounts) == container
    assert own_container(tmp_path / "absent") == ""


@pytest.mark.parametrize(("parent", "container"), [(1, ID), (7, "")])
def test_what_is_typed_in_a_container_is_not_its_command(
    monkeypatch: pytest.MonkeyPatch, parent: int, container: str
) -> None:
    monkeypatch.setattr("slipway.launch.resolve.host.own_container", lambda: ID)
    monkeypatch.setattr(os, "getppid", lambda: parent)
    assert read_host({}).container == container


@pytest.mark.parametrize(
    ("number", "runtime", "refused"),
    [
        (errno.EPERM, "docker", True),
        (errno.EPERM, "kubernetes", True),
        (errno.EPERM, "host", False),
        (errno.ENOSYS, "docker", False),
        (errno.EINVAL, "docker", False),
    ],
)
def test_an_engine_that_lets_no_thread_start_is_named(
    monkeypatch: pytest.MonkeyPatch, number: int, runtime: str, refused: bool
) -> None:
    monkeypatch.setattr("slipway.launch.resolve.host.clone3_errno", lambda: number)
    monkeypatch.setattr("slipway.launch.resolve.host.detect_runtime", lambda environ: runtime)
    if not refused:
        assert read_host({}).runtime == runtime
        return
    with pytest.raises(LaunchError, match=r"Docker Engine before 20\.10\.10 .*seccomp=unconfined") as caught:
        read_host({})
    assert caught.value.code == CONFIGURATION


def test_the_kernel_is_asked_for_clone3() -> None:
    assert clone3_errno() in (errno.EINVAL, errno.ENOSYS, errno.EFAULT)
