"""The family of images: each variant's file, its lock, its tags and what may be pushed fit together; which variant is meant."""

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from slipway.protocol.variants import VARIANTS

ROOT = Path(__file__).parents[3]
NAMES = sorted(file.stem for file in (ROOT / "images/slipway").glob("*.conf"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def read_settings(variant: str) -> dict[str, str]:
    """The settings of a variant."""
    text = (ROOT / f"images/slipway/{variant}.conf").read_text()
    return dict(re.findall(r'^([A-Z_]+)="?([^"\n#]*?)"?(?: +#.*)?$', text, re.MULTILINE))


def run(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the checkout without an engine; keywords are all its environment."""
    environ = {"PATH": os.environ["PATH"], "DOCKER_HOST": "unix:///nonexistent", **environ}
    return subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=environ, check=False)


def meant(**environ: str) -> subprocess.CompletedProcess[str]:
    """Which variant is meant, the version of its torch, and what its image is called here."""
    return run("bash", "-euo", "pipefail", "-c", 'source images/variant.sh; echo "$variant $TORCH $image"', **environ)


@pytest.mark.parametrize(
    ("environ", "variant", "image"),
    [
        ({}, "cuda12", "slipway:dev"),
        ({"VARIANT": "", "IMAGE": ""}, "cuda12", "slipway:dev"),
        ({"VARIANT": "cuda12"}, "cuda12", "slipway:dev"),
        ({"VARIANT": "cpu"}, "cpu", "slipway:dev-cpu"),
        ({"VARIANT": "cpu", "IMAGE": "mine:1"}, "cpu", "mine:1"),
        ({"IMAGE": "slipway:dev-cpu"}, "cpu", "slipway:dev-cpu"),
        ({"IMAGE": "registry:5000/a/slipway:1.2-cpu-torch2.10"}, "cpu", "registry:5000/a/slipway:1.2-cpu-torch2.10"),
        ({"IMAGE": "slipway:1.2-cuda12", "VARIANT": "cuda12"}, "cuda12", "slipway:1.2-cuda12"),
        ({"IMAGE": f"slipway:cpu@sha256:{'0' * 64}"}, "cpu", f"slipway:cpu@sha256:{'0' * 64}"),
        ({"IMAGE": f"slipway@sha256:{'0' * 64}"}, "cuda12", f"slipway@sha256:{'0' * 64}"),
        ({"IMAGE": "slipway-cpu"}, "cuda12", "slipway-cpu"),
        ({"IMAGE": "registry:5000/cpu"}, "cuda12", "registry:5000/cpu"),
        ({"IMAGE": "slipway:mycpu"}, "cuda12", "slipway:mycpu"),
    ],
)
def test_the_variant_is_the_one_that_was_named_or_that_the_tag_of_the_image_names(
    environ: dict[str, str], variant: str, image: str
) -> None:
    assert meant(**environ).stdout.split() == [variant, read_settings(variant)["TORCH"], image]


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"VARIANT": "cuda11"}, f"VARIANT=cuda11, but the images are {' '.join(NAMES)}. Type: make image VARIANT=cuda12"),
        ({"VARIANT": "../slipway/cpu"}, "VARIANT=../slipway/cpu, but the images are"),
        ({"VARIANT": "CPU"}, "VARIANT=CPU, but the images are"),
        ({"VARIANT": "cuda12", "IMAGE": "slipway:dev-cpu"}, "VARIANT=cuda12, but IMAGE=slipway:dev-cpu is the name of a cpu image"),
        ({"VARIANT": "cpu", "IMAGE": "a/slipway:1.2-cuda12"}, "is the name of a cuda12 image. Leave one of them out."),
    ],
)  # fmt: skip
def test_a_variant_that_does_not_exist_or_contradicts_the_image_is_refused(environ: dict[str, str], says: str) -> None:
    for script in ("images/build.sh", "images/run.sh", "images/release/tags.sh", "images/release/push.sh"):
        done = run(script, **environ)
        assert (done.returncode, done.stdout) == (78, "")
        assert says in done.stderr


ON_ARM = {
    "SUITE": "trixie",
    "PYTHON_VERSION": "3.13",
    "LOCK": "locks/requirements.lock",
    "TORCH": "2.10.0+cpu",
    "STAND_IN": "",
}


@pytest.mark.parametrize("architecture", ["arm64", "aarch64"])
def test_on_arm64_the_image_without_cuda_is_no_stand_in(architecture: str) -> None:
    shown = " ".join(f'"${name}"' for name in ("image", *ON_ARM))
    script = f"source images/variant.sh; printf '%s\\n' {shown}"
    done = run("bash", "-euo", "pipefail", "-c", script, VARIANT="cpu", ARCHITECTURE=architecture)
    assert done.stdout.split("\n") == ["slipway:dev-cpu", *ON_ARM.values(), ""], done.stderr
    lock = (ROOT / ON_ARM["LOCK"]).read_text()
    assert re.search(r"^torch==2\.10\.0 ; [^\\]*sys_platform == 'linux' ", lock, re.MULTILINE)
    nvidia = re.findall(r"^(?:nvidia-(?!ml-py)\S+|cuda-\S+|triton)==.*", lock, re.MULTILINE)
    assert nvidia
    assert [line for line in nvidia if "platform_machine == 'x86_64'" not in line] == []


def test_an_image_is_not_built_for_an_architecture_that_it_does_not_have() -> None:
    done = run("images/build.sh", ARCHITECTURE="arm64")
    assert (done.returncode, done.stdout) == (78, "")
    assert (
        "the image cuda12 is for amd64, and this machine is arm64. Type: make image VARIANT=cuda13 (with GPUs) or"
        in done.stderr
    )


def stand_in(folder: Path, name: str, script: str) -> None:
    """A program of this name that runs a script, and writes down in `name.words` what it was started with."""
    program = folder / name
    program.write_text(f'#!/bin/bash\necho "$@" >>"{program}.words"\n{script}\n')
    program.chmod(0o755)


def test_a_base_that_could_not_be_made_is_not_imported(tmp_path: Path) -> None:
    stand_in(tmp_path, "mmdebstrap", "echo 'E: no mirror answers' >&2; exit 1")
    stand_in(tmp_path, "docker", "exit 0")
    done = run("images/base.sh", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 1, done.stderr
    assert "E: no mirror answers" in done.stderr
    assert not (tmp_path / "docker.words").exists()


@pytest.mark.parametrize("architecture", ["", "arm64"])
def test_a_base_for_another_architecture_is_made_and_labelled_so(tmp_path: Path, architecture: str) -> None:
    stand_in(tmp_path, "mmdebstrap", "exit 0")
    stand_in(tmp_path, "docker", "echo 75000000")
    stand_in(tmp_path, "arch-test", "exit 0")
    done = run(
        "images/base.sh", "base:test", "bookworm", PATH=f"{tmp_path}:{os.environ['PATH']}", ARCHITECTURE=architecture
    )
    assert done.returncode == 0, done.stderr
    asked = "--architectures=arm64" in (tmp_path / "mmdebstrap.words").read_text()
    labelled = "--platform linux/arm64" in (tmp_path / "docker.words").read_text()
    assert (asked, labelled) == (bool(architecture), bool(architecture))


def test_without_qemu_a_base_for_another_architecture_is_refused_with_what_to_install(tmp_path: Path) -> None:
    stand_in(tmp_path, "mmdebstrap", "exit 0")
    stand_in(tmp_path, "arch-test", "exit 1")
    done = run("images/base.sh", PATH=f"{tmp_path}:{os.environ['PATH']}", ARCHITECTURE="arm64")
    assert done.returncode == 78
    assert "On Debian: apt-get install arch-test qemu-user-static" in done.stderr
    assert not (tmp_path / "mmdebstrap.words").exists()


def test_on_debian_what_makes_the_base_is_installed_like_an_engine(tmp_path: Path) -> None:
    for program in Path("/usr/bin").iterdir():
        if program.name not in ("mmdebstrap", "apt-get", "sudo", "docker", "env"):
            (tmp_path / program.name).symlink_to(program)
    stand_in(tmp_path, "env", 'shift; exec "$@"')
    stand_in(tmp_path, "sudo", 'shift; exec "$@"')
    stand_in(tmp_path, "docker", "exit 0")
    stand_in(tmp_path, "apt-get", f"[[ $1 != install ]] || ln -s /bin/true {tmp_path}/mmdebstrap")
    done = run("/bin/bash", "images/base.sh", PATH=str(tmp_path))
    if "ID=debian\n" not in Path("/etc/os-release").read_text():
        assert (done.returncode, "make image BASE=its-name" in done.stderr) == (78, True)
        return
    assert done.returncode == 0, done.stderr
    assert "base: installing from Debian's packages: mmdebstrap" in done.stderr
    assert "mmdebstrap" in (tmp_path / "apt-get.words").read_text()


def test_the_reason_why_a_base_cannot_be_pulled_is_docker_s_own(tmp_path: Path) -> None:
    refused = "Error response from daemon: toomanyrequests: You have reached your pull rate limit."
    stand_in(
        tmp_path, "docker", f"case $1 in version) echo amd64 ;; pull) echo '{refused}' >&2; exit 1 ;; *) exit 1 ;; esac"
    )
    stand_in(tmp_path, "mmdebstrap", "exit 1")
    done = run("images/build.sh", PATH=f"{tmp_path}:{os.environ['PATH']}", ARCHITECTURE="amd64")
    assert done.returncode == 1
    assert f"image: docker pull debian:trixie-slim: {refused}\n" in done.stderr


def test_a_long_step_of_the_build_is_named_while_it_runs() -> None:
    steps = "source <(sed -n '/^show_steps/,/^}/p' images/build.sh); say() { echo \"image: $*\" >&2; }; show_steps"
    command = ["bash", "-euo", "pipefail", "-c", steps]
    environ = {"PATH": os.environ["PATH"], "PAUSE": "0.05", "EVERY": "0"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environ, text=True, stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as shell:
        assert shell.stdin
        assert shell.stderr
        begun = "#9 [packages 4/4] RUN --mount=type=cache,target=/wheels --mount=type=secret,id=ca   /build/install.sh && /build/trim.sh"
        shell.stdin.write(f"{begun}\n")
        shell.stdin.flush()
        assert re.fullmatch(
            r"image:   … after \d+ s: RUN /build/install.sh && /build/trim.sh\n", shell.stderr.readline()
        )
        said = shell.communicate("#9 DONE 330.1s\n")[1].splitlines()
    assert said[-1] == "image:   330.1s  [packages 4/4] RUN /build/install.sh && /build/trim.sh"
    assert shell.returncode == 0


def test_a_user_who_may_not_use_the_engine_is_told_so(tmp_path: Path) -> None:
    stand_in(
        tmp_path, "docker", "echo 'permission denied while trying to connect to the Docker daemon socket' >&2; exit 1"
    )
    done = run("images/engine.sh", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 78
    assert "the Docker Engine runs, but" in done.stderr
    assert "Type: sudo usermod --append --groups docker" in done.stderr


def test_the_release_workflow_installs_what_weighs_an_image() -> None:
    steps = (ROOT / ".github/workflows/release.yaml").read_text()
    assert re.search(r"apt-get install .* zstd ", steps, re.MULTILINE), (
        "images/release/report.py packs layers with zstd"
    )


def test_a_release_publishes_every_variant_that_is_no_stand_in_for_each_of_its_architectures() -> None:
    done = run("images/release/published.sh", IMAGE="slipway:dev-cpu", VARIANT="cpu", ARCHITECTURE="arm64")
    published = {
        name: json.loads(value) for name, _, value in (line.partition("=") for line in done.stdout.splitlines())
    }
    images = [(row["variant"], row["architecture"], row["image"], row["runner"]) for row in published.pop("images")]
    assert images == [
        ("cuda12", "amd64", "slipway:dev", "ubuntu-24.04"),
        ("cuda13", "amd64", "slipway:dev-cuda13", "ubuntu-24.04"),
        ("cuda13", "arm64", "slipway:dev-cuda13", "ubuntu-24.04-arm"),
    ]
    assert published == {"variants": ["cuda12", "cuda13"]}
    assert done.stderr == f"published: cpu is left out: {read_settings('cpu')['STAND_IN']}\n"


@pytest.mark.parametrize("variant", NAMES)
def test_each_variant_has_the_same_settings(variant: str) -> None:
    assert read_settings(variant).keys() == read_settings("cuda12").keys()


@pytest.mark.parametrize("variant", NAMES)
def test_the_lock_has_the_torch_of_the_label_with_a_checksum(variant: str) -> None:
    settings = read_settings(variant)
    lock = (ROOT / settings["LOCK"]).read_text()
    found = re.search(r"^torch==(\S+) .*\n +--hash=sha256:[0-9a-f]{64}", lock, re.MULTILINE)
    assert found
    public, _, build = settings["TORCH"].partition("+")
    assert found[1] in (public, f"{public}+{build}")
    assert f"torch=={found[1]}" in PROJECT["optional-dependencies"][variant]
    assert f"!{settings['LOCK']}" in (ROOT / ".dockerignore").read_text()
    has_cuda = bool(re.search("^nvidia-nccl", lock, re.MULTILINE))
    assert (bool(settings["DRIVER"]), bool(settings["CAPABILITY"])) == (has_cuda, has_cuda)


@pytest.mark.parametrize("variant", NAMES)
def test_the_lock_has_what_the_workloads_import(variant: str) -> None:
    settings, extras = read_settings(variant), PROJECT["optional-dependencies"]
    locked = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / settings["LOCK"]).read_text(), re.MULTILINE))
    listed = (*PROJECT["dependencies"], *extras["train"], *extras["store"], "torchvision")
    wanted = {re.split("[<>=]", line)[0] for line in listed}
    assert wanted - locked == ({"torchvision"} if settings["STAND_IN"] else set())


def test_packages_for_workloads_leave_the_users_pytorch_as_it_is() -> None:
    """The newest torchvision asks for the newest torch, whose CUDA may be another one than the driver's."""
    wanted = {re.split("[<>=]", line)[0] for line in PROJECT["optional-dependencies"]["train"]}
    assert "torch" in wanted
    assert "torchvision" not in wanted


@pytest.mark.parametrize("variant", NAMES)
def test_other_packages_have_the_versions_of_the_checkout(variant: str) -> None:
    def versions(lock: Path) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for name, version in re.findall(r"^([a-z0-9-]+)==([^\s;]+)", lock.read_text(), re.MULTILINE):
            found.setdefault(name, set()).add(version)
        return found

    ours, theirs = versions(ROOT / "locks/requirements.lock"), versions(ROOT / read_settings(variant)["LOCK"])
    own = re.compile(r"torch|torchvision|triton|setuptools|nvidia-(?!ml-py).*|cuda-.*")
    assert [name for name in theirs if not own.fullmatch(name) and not theirs[name] <= ours.get(name, set())] == []


def test_the_driver_and_the_gpus_of_a_variant_are_those_of_the_table() -> None:
    for variant in VARIANTS:
        if variant.name in NAMES:
            settings = read_settings(variant.name)
            lowest = settings["CAPABILITY"].partition("-")[0]
            assert settings["DRIVER"] == variant.driver
            assert lowest == ".".join(map(str, variant.code["x86_64"]))


TORCH = "torch2.10"


@pytest.mark.parametrize(
    ("environ", "tags"),
    [
        ({"VERSION": "1.2.3"}, f"1.2.3-cuda12-{TORCH} 1.2.3-cuda12 1.2-cuda12 cuda12"),
        ({"VERSION": "1.2.3", "RELEASE": "v1.2.3"}, f"1.2.3-cuda12-{TORCH} 1.2.3-cuda12 1.2-cuda12 cuda12"),
        ({"VERSION": "1.2.3", "REBUILD": "20260110"}, f"1.2.3-cuda12-{TORCH}-20260110 1.2.3-cuda12 1.2-cuda12 cuda12"),
        ({"VERSION": "1.2.3rc1"}, f"1.2.3rc1-cuda12-{TORCH}"),
        ({"VERSION": "1.3.0.dev0"}, f"1.3.0.dev0-cuda12-{TORCH}"),
        ({"VERSION": "1.2.3", "VARIANT": "cpu"}, "1.2.3-cpu-torch2.13 1.2.3-cpu 1.2-cpu cpu"),
        ({"VERSION": "1.2.3", "IMAGE": "slipway:dev-cpu"}, "1.2.3-cpu-torch2.13 1.2.3-cpu 1.2-cpu cpu"),
    ],
)
def test_each_tag_names_the_variant_the_first_is_exact_and_only_releases_move_others(
    environ: dict[str, str], tags: str
) -> None:
    done = run("images/release/tags.sh", **environ)
    assert (done.returncode, done.stdout.split()) == (0, tags.split())


def test_the_table_of_tags_is_that_of_the_tags_that_are_pushed() -> None:
    readme = (ROOT / "images/README.md").read_text()
    table = set(re.findall(r"^\| `([^`]+)` \|", readme.partition("## Tags")[2].partition("##")[0], re.MULTILINE))
    published = (run("images/release/tags.sh", VERSION="1.2.3", **more) for more in ({}, {"REBUILD": "20260110"}))
    tags = {tag for done in published for tag in done.stdout.split()}
    assert table == {*tags, "1.2.3-cuda12-torch2.10-amd64"}, "the last is a part, of `make push-platform`"


def test_no_tag_is_latest_and_each_is_the_name_of_its_variant() -> None:
    for variant in NAMES:
        tags = run("images/release/tags.sh", VERSION="1.2.3", VARIANT=variant).stdout.split()
        assert tags
        assert [tag for tag in tags if variant not in tag.split("-")] == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("tags.sh VERSION=1.2.3 RELEASE=v1.2.4", "v1.2.4 is not v1.2.3"),
        ("push.sh COMPRESSION=lz4", "COMPRESSION=lz4 is unknown. Allowed: gzip, zstd"),
        ("push.sh VARIANT=cpu", "nothing is pushed: torch 2.13.0+cpu"),
        ("push.sh IMAGE=slipway:dev-cpu", "nothing is pushed: torch 2.13.0+cpu"),
    ],
)
def test_what_must_not_be_published_is_refused(words: str, says: str) -> None:
    script, *assignments = words.split()
    environ = dict(word.split("=") for word in assignments)
    done = run(f"images/release/{script}", REPOSITORY="registry.example/slipway", **environ)
    assert (done.returncode, done.stdout) == (78, "")
    assert says in done.stderr


def test_the_lock_of_the_checkout_is_not_written_as_that_of_one_image() -> None:
    before = (ROOT / "locks/requirements.lock").read_bytes()
    done = run("images/lock.sh")
    assert (done.returncode, done.stdout) == (78, "")
    assert "Type: make lock;" in done.stderr
    assert (ROOT / "locks/requirements.lock").read_bytes() == before
