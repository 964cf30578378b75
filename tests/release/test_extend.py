"""images/extend/Dockerfile: one more package on top of Slipway's image."""

import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import IMAGE, ROOT, output, run

DOCKERFILE = ROOT / "images/extend/Dockerfile"
CA = Path("/etc/ssl/certs/ca-certificates.crt")
# As strict as it gets, and a user whom the image does not know.
STRICT = [
    "--user",
    "12345:0",
    "--read-only",
    "--tmpfs",
    "/tmp:exec,mode=1777",
    "--cap-drop",
    "ALL",
    "--network",
    "none",
]
# Every package with a checksum over its files up to a megabyte: code, not NVIDIA's libraries.
INSTALLED = """
import hashlib
from importlib.metadata import distributions
for package in distributions():
    content = hashlib.sha256()
    for path in sorted(file.locate() for file in package.files if file.suffix != ".pyc"):
        content.update(path.read_bytes() if path.is_file() and path.stat().st_size < 1e6 else b"")
    print(package.name, package.version, content.hexdigest())
"""


@pytest.fixture(scope="module")
def extended() -> Iterator[str]:
    """The image that the Dockerfile makes."""
    name = f"slipway-test-{secrets.token_hex(4)}"
    secret = ["--secret", f"id=ca,src={CA}"] if CA.exists() else []
    build = ["docker", "buildx", "build", "--load", "--tag", name, "--build-arg", f"SLIPWAY={IMAGE}"]
    output(*build, *secret, ROOT / "images/extend")
    yield name
    run("docker", "image", "rm", "--force", name)


def test_the_package_is_there_for_any_user_on_a_read_only_root(extended: str) -> None:
    version = re.search(r"einops==(\S+)", DOCKERFILE.read_text())
    assert version
    program = "import einops, torch; print(einops.__version__, tuple(einops.rearrange(torch.zeros(2, 3), 'a b -> b a').shape))"
    assert output("docker", "run", "--rm", *STRICT, extended, "python", "-c", program) == f"{version[1]} (3, 2)"


def test_it_still_trains(extended: str) -> None:
    done = run(
        "docker",
        "run",
        "--rm",
        *STRICT,
        "--shm-size",
        "1g",
        "--volume",
        "/checkpoints",
        extended,
        "linear",
        "--steps",
        "4",
    )
    assert done.returncode == 0, done.stderr
    assert "finished" in done.stderr


def test_nothing_else_has_changed(extended: str) -> None:
    installed = [
        set(output("docker", "run", "--rm", "--entrypoint", "python", image, "-c", INSTALLED).splitlines())
        for image in (IMAGE, extended)
    ]
    assert [line.split()[0] for line in installed[0] ^ installed[1]] == ["einops"]
    # The certificates that pip was given are in no layer.
    keep = "sha256sum /etc/ssl/certs/ca-certificates.crt; ls -A /run/secrets /etc/pip.conf 2>&1"
    kept = [
        output("docker", "run", "--rm", "--entrypoint", "bash", image, "-c", f"{keep}; true")
        for image in (IMAGE, extended)
    ]
    assert kept[0] == kept[1]


def test_it_runs_as_the_image_does(extended: str) -> None:
    what = "{{.Config.User}} {{.Config.Entrypoint}} {{.Config.Cmd}} {{.Config.WorkingDir}} {{.Config.Env}}"
    told = [output("docker", "image", "inspect", "--format", what, image) for image in (IMAGE, extended)]
    assert told[0] == told[1]


def test_a_package_that_wants_another_torch_ends_the_build(tmp_path: Path) -> None:
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text(DOCKERFILE.read_text().replace("einops==", "torch==2.9.1 einops=="))
    secret = ["--secret", f"id=ca,src={CA}"] if CA.exists() else []
    done = run("docker", "buildx", "build", *secret, "--build-arg", f"SLIPWAY={IMAGE}", tmp_path)
    assert done.returncode
    assert "(constraint) torch==2.10.0" in done.stderr
