"""What the image is made of: its labels, its size, and what changes when the code does."""

import hashlib
import json
import platform
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from containers import IMAGE, PATIENCE, WELL, Containers, docker, fresh_name

ROOT = Path(__file__).parents[2]
# Under pyxis an image's ENV beats the job's, and PYTORCH_VERSION makes an enroot hook inject values per task.
JOBS_OWN = re.compile(r"MASTER_|RANK$|WORLD_SIZE$|LOCAL_|NCCL_|OMP_|PYTORCH_VERSION$|NPROC_PER_NODE$|PET_")
LABELS = {
    "cuda12": {
        "slipway.torch": "2.10.0+cu128",
        "slipway.minimum-driver": "525.60.13",
        "slipway.compute-capability": "7.0-12.0",
    },
    "cuda13": {
        "slipway.torch": "2.14.1+cu130",
        "slipway.minimum-driver": "580",
        "slipway.compute-capability": "7.5-12.0",
    },
    "cpu": {
        "slipway.torch": "2.10.0+cpu" if platform.machine() == "aarch64" else "2.13.0+cpu",
        "slipway.minimum-driver": "",
        "slipway.compute-capability": "",
    },
}
MOST = {"cuda12": 6.8e9, "cuda13": 5.1e9, "cpu": 1.3e9}  # bytes on disk
MARKER = "changed-source"
EMPTY_LAYER = f"sha256:{hashlib.sha256(bytes(1024)).hexdigest()}"  # a tar without files


def inspect(image: str) -> dict:
    """What `docker image inspect` tells."""
    return json.loads(docker("image", "inspect", image))[0]


@pytest.mark.core
def test_the_environment_leaves_to_the_job_what_is_the_jobs() -> None:
    names = [entry.partition("=")[0] for entry in inspect(IMAGE)["Config"]["Env"]]
    assert names
    assert not [name for name in names if JOBS_OWN.match(name)]


@pytest.mark.pull
def test_no_program_in_the_image_changes_to_another_user() -> None:
    found = docker("run", "--rm", "--user", "0", IMAGE, "find", "/", "-xdev", "-type", "f", "-perm", "/6000")
    assert found.strip() == ""


@pytest.mark.parametrize(("user", "name"), [("4711", "uid-4711"), ("4711:4711", "uid-4711"), ("1000", "slipway")])
@pytest.mark.parametrize(
    "start", [(), ("--entrypoint", "/usr/bin/env")], ids=["run", "exec"]
)  # exec goes past the entry point
def test_the_prompt_of_a_shell_has_a_name_for_any_user(start: tuple[str, ...], user: str, name: str) -> None:
    said = docker("run", "--rm", "--user", user, *start, IMAGE, "bash", "-ic", 'echo "${PS1@P}"')
    assert said.startswith(f"{name}@")


@pytest.mark.usefixtures("cuda")
def test_a_driver_that_gke_mounts_is_found(container: Containers, tmp_path: Path) -> None:
    """It lies in /usr/local/nvidia/lib64, where no ldconfig has been. Any library will do: NVML's functions are looked for in it."""
    driver = tmp_path / "driver"
    driver.mkdir()
    driver.chmod(0o755)
    (driver / "libnvidia-ml.so.1").symlink_to("/lib/x86_64-linux-gnu/libc.so.6")
    job = container(f"{WELL} --volume {driver}:/usr/local/nvidia/lib64:ro IMG plan", code=77)
    assert "GPUs cannot be used: NVML answers: Function Not Found" in job.text


@pytest.mark.usefixtures("cuda")
def test_where_a_device_file_is_nobody_trains_on_the_cpu_unasked(container: Containers) -> None:
    given = f"{WELL} --device /dev/null:/dev/nvidia0"
    assert "/dev/nvidia0 is there, but no NVIDIA driver" in container(f"{given} IMG plan", code=77).text
    assert "CPU process" in container(f"{given} --env CUDA_VISIBLE_DEVICES= IMG plan").text


@pytest.mark.core
def test_it_starts_the_launcher_under_tini_as_a_user_without_rights() -> None:
    config = inspect(IMAGE)["Config"]
    assert config["Entrypoint"] == ["/opt/slipway/bin/entrypoint"]
    assert config["Cmd"] == ["run"]
    assert config["User"] == "1000:0"
    assert config["WorkingDir"] == "/workspace"
    assert not config.get("ExposedPorts"), "the rendezvous port is never published"


@pytest.mark.core
def test_its_labels_say_what_it_is_and_what_it_needs() -> None:
    labels = inspect(IMAGE)["Config"]["Labels"]
    assert LABELS[labels["slipway.variant"]].items() <= labels.items()
    assert labels["org.opencontainers.image.title"] == "Slipway"
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    for name in ("description", "version", "revision", "created", "base.name"):
        assert labels[f"org.opencontainers.image.{name}"], name
    # Empty if the checkout was not cloned by https.
    source, documentation = (labels[f"org.opencontainers.image.{name}"] for name in ("source", "documentation"))
    assert documentation == (f"{source}#readme" if source else "")
    assert "@" not in source


@pytest.mark.core
def test_it_is_no_larger_on_disk_than_its_variant_may_be() -> None:
    assert inspect(IMAGE)["Size"] <= MOST[inspect(IMAGE)["Config"]["Labels"]["slipway.variant"]]


@dataclass(frozen=True)
class Rebuilt:
    """An image of the same tree with one changed source file and a secret in its `.env`."""

    image: str
    log: str
    canary: str


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rebuilt]:
    """Builds it in a copy of the tree, so that nobody's own `.env` is touched."""
    tree, image, canary = tmp_path_factory.mktemp("tree"), fresh_name(), secrets.token_hex(16)
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for name in (".dockerignore", "images/build.sh", "images/variant.sh", *allowed):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, tree / name)
    (tree / ".env").write_text(f"SLIPWAY_TOKEN={canary}\n")
    with (tree / "entrypoint/slipway/__init__.py").open("a") as source:
        source.write(f"# {MARKER}\n")
    labels = inspect(IMAGE)["Config"]["Labels"]
    base = labels["org.opencontainers.image.base.name"]
    done = subprocess.run(
        ["env", f"IMAGE={image}", f"BASE={base}", f"VARIANT={labels['slipway.variant']}", tree / "images/build.sh"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout
    yield Rebuilt(image, done.stdout, canary)
    docker("image", "rm", image)


def weights(image: str) -> dict[str, int]:
    """The layers of an image with their sizes in bytes, without empty ones (WORKDIR makes one)."""
    layers = [layer for layer in inspect(image)["RootFS"]["Layers"] if layer != EMPTY_LAYER]
    sizes = docker("history", "--human=false", "--format", "{{.Size}}", image).split()  # the newest first
    return dict(zip(layers, [int(size) for size in reversed(sizes) if size != "0"], strict=True))


def test_a_change_of_code_changes_at_most_8_megabytes(rebuilt: Rebuilt) -> None:
    before, after = weights(IMAGE), weights(rebuilt.image)
    changed = {layer: size for layer, size in after.items() if layer not in before}
    assert changed
    assert sum(changed.values()) <= 8e6, changed


def test_a_secret_in_the_env_file_of_the_tree_is_in_no_layer_no_history_and_no_log(rebuilt: Rebuilt) -> None:
    assert rebuilt.canary not in rebuilt.log
    assert rebuilt.canary not in docker("history", "--no-trunc", rebuilt.image) + json.dumps(inspect(rebuilt.image))
    # The changed source is found, so that whoever packs the layers (compressed, say) does not blind this search.
    search = f"docker save {rebuilt.image} | grep --only-matching --text -e {rebuilt.canary} -e {MARKER}"
    found = subprocess.run(["bash", "-c", search], capture_output=True, text=True, timeout=PATIENCE)
    assert set(found.stdout.split()) == {MARKER}, found.stderr


# As install.sh calls it, in a build of nothing else, which no cache answers.
OFFERED = f"""
ARG BASE
FROM ${{BASE}}
USER 0
COPY images/slipway/offered.py locks/requirements.lock /
RUN --mount=type=secret,id=wheels : {secrets.token_hex()} && mkdir /got && \\
    python /offered.py /requirements.lock /got </run/secrets/wheels && ls /got
"""


def test_wheels_that_make_setup_fetched_are_offered_to_the_build(
    container: Containers, tmp_path: Path, undo: ExitStack
) -> None:
    script = "import sys; print('cp%d%d' % sys.version_info[:2])"
    python = container(f'IMG python -c "{script}"').stdout.strip()
    parts = (
        "images/build.sh",
        "images/variant.sh",
        "images/slipway/offered.py",
        "images/slipway/cuda12.conf",
        ".dockerignore",
        "pyproject.toml",
    )
    for name in parts:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / name)
    (tmp_path / "images/slipway/Dockerfile").write_text(OFFERED)
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks/requirements.lock").write_text("a==1+cu12 \\\n    --hash=sha256:00\n")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    (tmp_path / ".venv/wheels").mkdir()
    wheels = [
        f"a-1+cu12-{tags}" for tags in ("py3-none-any", f"{python}-{python}-linux_x86_64", "cp312-cp312-linux_x86_64")
    ]
    for wheel in (*wheels, "a-2+cu12-py3-none-any", "b-1-py3-none-any"):
        (tmp_path / f".venv/wheels/{wheel}.whl").write_bytes(bytes(20_000_000))
    image = fresh_name()
    undo.callback(docker, "image", "rm", "--force", image)
    done = subprocess.run(
        ["env", f"IMAGE={image}", f"BASE={IMAGE}", "VARIANT=cuda12", tmp_path / "images/build.sh"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout
    said = (tmp_path / "build/image.log").read_text()
    assert "wheels: 0.04 GB were on this machine already" in said
    got = re.findall(r" (\S+)\.whl$", said, re.MULTILINE)
    assert sorted(set(got)) == [f"a-1+cu12-{python}-{python}-linux_x86_64", "a-1+cu12-py3-none-any"], said


def test_wheels_that_cannot_be_had_are_left_to_pip(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "images/slipway/offered.py", ROOT / "locks/requirements.lock", tmp_path]
    nobody = "http://127.0.0.1:9"
    done = subprocess.run(command, input=nobody, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "this machine's own cannot be had" in done.stdout
