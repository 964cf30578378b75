"""How long a node waits for an image: the size, the pull, and the time until the first training step, for each way to pack it.

    sudo .venv/bin/python bench/image_pull.py [--image slipway:dev-cpu] [--mbit 1000] [--stargz containerd-stargz-grpc]

A registry runs in a network namespace of its own, which the kernel lets send at most `--mbit`. A containerd of this script pulls
the image, and then a container trains `gpt` on two CPU processes until it reports its first step. The rows of Slurm are the same
image as a .sqsh file on this machine's disk: unpacked as enroot does it, or mounted with squashfuse. Prints the table of
images/README.md. With `--stargz`, which names the snapshotter's program, there is a row for eStargz, of which only the files that
are read are fetched.

Needs root, a Docker Engine that has the image, and from Debian: containerd docker-registry iproute2 skopeo squashfs-tools
squashfuse. For eStargz also stargz-snapshotter, which has ctr-remote; Debian 12 lacks the snapshotter's program itself.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from image_reads import JOBS, STEP

NAMESPACE, HERE, THERE, PORT = "slipway-pull", "10.213.7.1", "10.213.7.2", 5000
ROOT = Path(__file__).resolve().parent.parent
REGISTRY = shutil.which("docker-registry") or ROOT / ".venv/bin/docker-registry"  # `make test-tools` puts it there
TRAIN = ["/opt/slipway/bin/entrypoint", *JOBS["gpt"]]
OF_MACHINE = ("proc", "dev")
MOUNTED = (*OF_MACHINE, "workspace", "data", "checkpoints", "tmp")
PACKINGS = {
    "gzip": ("--dest-compress-format", "gzip"),
    "zstd": ("--format", "oci", "--dest-compress-format", "zstd"),
}


def run(*command: str | Path, **options: object) -> str:
    """What a command printed. SystemExit where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return str(done.stdout)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder on a disk, not in memory, until the block ends."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def service(*command: str | Path, log: Path) -> Iterator[None]:
    """A program that runs until the block ends."""
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            yield
        finally:
            process.terminate()


@contextmanager
def throttled_registry(folder: Path, port: int, mbit: int) -> Iterator[str]:
    """The address of an empty registry that sends at most `mbit` megabits per second.

    Each has a `port` of its own: skopeo remembers which layers a registry has, and would not pack them again.
    """
    settings = folder / "registry.yaml"
    settings.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {folder / 'blobs'}}}}}\nhttp: {{addr: '{THERE}:{port}'}}\n"
    )
    inside = ("ip", "netns", "exec", NAMESPACE)
    run("ip", "netns", "add", NAMESPACE)
    try:
        run("ip", "link", "add", "slipway-pull0", "type", "veth", "peer", "name", "eth0", "netns", NAMESPACE)
        run("ip", "address", "add", f"{HERE}/30", "dev", "slipway-pull0")
        run("ip", "link", "set", "slipway-pull0", "up")
        run(*inside, "ip", "address", "add", f"{THERE}/30", "dev", "eth0")
        run(*inside, "ip", "link", "set", "eth0", "up")
        run(
            *inside,
            "tc",
            "qdisc",
            "add",
            "dev",
            "eth0",
            "root",
            "tbf",
            "rate",
            f"{mbit}mbit",
            "burst",
            "1mb",
            "latency",
            "50ms",
        )
        with service(*inside, REGISTRY, "serve", settings, log=folder / "registry.log"):
            for _ in range(100):
                with suppress(OSError):
                    urllib.request.urlopen(f"http://{THERE}:{port}/v2/", timeout=5).close()
                    break
                time.sleep(0.1)
            else:
                raise SystemExit((folder / "registry.log").read_text())
            yield f"{THERE}:{port}/slipway"
    finally:
        run("ip", "netns", "delete", NAMESPACE)


@contextmanager
def own_containerd(folder: Path, stargz: str) -> Iterator[Path]:
    """The socket of a containerd that keeps what it pulls below `folder`; it knows the snapshotter `stargz` if that is named."""
    state, settings, proxy = folder / "state", folder / "containerd.toml", folder / "stargz.sock"
    plugin = f'[proxy_plugins.stargz]\ntype = "snapshot"\naddress = "{proxy}"\n' if stargz else ""
    settings.write_text(f'version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n{plugin}')
    with ExitStack() as stack:
        if stargz:
            (folder / "stargz.toml").write_text(
                f'[[resolver.host."{THERE}:{PORT}".mirrors]]\nhost = "{THERE}:{PORT}"\ninsecure = true\n'
            )
            words = ("--address", proxy, "--root", folder / "stargz", "--config", folder / "stargz.toml")
            stack.enter_context(service(stargz, *words, log=folder / "stargz.log"))
        address = state / "containerd.sock"
        words = ("--config", settings, "--root", folder / "root", "--state", state, "--address", address)
        stack.enter_context(service("containerd", *words, log=folder / "containerd.log"))
        for _ in range(100):
            if address.exists():
                break
            time.sleep(0.1)
        yield address


def packed_size(name: str) -> int:
    """The bytes of an image's layers in the registry."""
    manifest = json.loads(run("skopeo", "inspect", "--raw", "--tls-verify=false", f"docker://{name}"))
    return sum(layer["size"] for layer in manifest["layers"])


def time_to_first_step(*command: str | Path) -> float:
    """Seconds until a job reports its first step. It is killed then. SystemExit where it ends before."""
    begun, said = time.monotonic(), []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        assert process.stdout
        for line in process.stdout:
            said.append(line)
            if STEP.search(line):
                taken = time.monotonic() - begun
                os.killpg(process.pid, 15)
                return taken
    raise SystemExit(f"{' '.join(map(str, command))} ended without a step:\n{''.join(said)}")


def time_pull(ctr: tuple[str | Path, ...], name: str, lazily: bool) -> tuple[float, float]:
    """Seconds of pulling an image, unpacked, and until a container of it reports its first step; both are removed again."""
    snapshotter = ("--snapshotter", "stargz" if lazily else "overlayfs")
    begun = time.monotonic()
    if lazily:
        run("ctr-remote", *ctr[1:], "images", "rpull", "--plain-http", name)
    else:
        run(*ctr, "images", "pull", "--plain-http", *snapshotter, name)
    pulled = time.monotonic() - begun
    step = time_to_first_step(*ctr, "run", "--rm", *snapshotter, "--net-host", name, "first-step", *TRAIN)
    with suppress(SystemExit):
        run(*ctr, "tasks", "kill", "--signal", "KILL", "first-step")
    while run(*ctr, "containers", "list", "--quiet"):
        time.sleep(0.2)
    run(*ctr, "images", "rm", "--sync", name)
    return pulled, step


def squashed_rows(image: str, folder: Path) -> Iterator[tuple[str, int, float, float]]:
    """The rows of Slurm: how the file is used, its bytes, seconds of making the files readable, and until the first step."""
    file, root = folder / "image.sqsh", folder / "squashed"
    run(ROOT / "slurm/import.sh", f"dockerd://{image}", file, env={**os.environ, "TMPDIR": str(folder)})
    start = ("chroot", root, "env", "--chdir=/workspace", "PATH=/opt/slipway/bin:/usr/bin:/bin", *TRAIN)
    for how, command in {
        "`.sqsh`, unpacked": ("unsquashfs", "-quiet", "-no-progress", "-dest", root, file),
        "`.sqsh`, squashfuse": ("squashfuse", "-o", "allow_other", file, root),
    }.items():
        run("sync")
        Path("/proc/sys/vm/drop_caches").write_text("3")
        mounted = command[0] == "squashfuse"
        if mounted:
            root.mkdir()
        begun = time.monotonic()
        run(*command)
        readable = time.monotonic() - begun
        mounts = [root] if mounted else []
        try:
            for place in MOUNTED:
                words = ("--bind", f"/{place}") if place in OF_MACHINE else ("-t", "tmpfs", "tmpfs")
                run("mount", *words, root / place)
                mounts.append(root / place)
            yield how, file.stat().st_size, readable, time_to_first_step(*start)
        finally:
            for mount in reversed(mounts):
                run("umount", "--lazy", mount)
            shutil.rmtree(root)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", default="slipway:dev", metavar="NAME")
    parser.add_argument("--mbit", default=1000, type=int, metavar="N", help="what the registry sends per second (1000)")
    parser.add_argument("--stargz", default="", metavar="PROGRAM", help="containerd-stargz-grpc, for a row of eStargz")
    options = parser.parse_args()
    print(
        f"| {options.image} | MB | pull, {options.mbit} Mbit/s | then the first step | in all |\n| --- | --- | --- | --- | --- |"
    )

    def show(how: str, size: int, pulled: float, step: float) -> None:
        print(f"| {how} | {size / 1e6:,.0f} | {pulled:.0f} s | {step:.0f} s | {pulled + step:.0f} s |", flush=True)

    for place, (packing, words) in enumerate(PACKINGS.items()):
        with temporary_folder() as folder, own_containerd(folder, options.stargz) as address:
            ctr = ("ctr", "--address", address, "--namespace", NAMESPACE)
            with throttled_registry(folder, PORT + place, options.mbit) as repository:
                name = f"{repository}:{packing}"
                push = ("skopeo", "--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false", *words)
                run(*push, f"docker-daemon:{options.image}", f"docker://{name}")
                show(packing, packed_size(name), *time_pull(ctr, name, lazily=False))
                if options.stargz and packing == "gzip":
                    lazy = f"{repository}:estargz"
                    run(*ctr, "images", "pull", "--plain-http", name)
                    run("ctr-remote", *ctr[1:], "images", "convert", "--estargz", "--oci", name, lazy)
                    run(*ctr, "images", "push", "--plain-http", lazy)
                    run(*ctr, "images", "rm", "--sync", name, lazy)
                    show("eStargz", packed_size(lazy), *time_pull(ctr, lazy, lazily=True))
    with temporary_folder() as folder:
        for row in squashed_rows(options.image, folder):
            show(*row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
