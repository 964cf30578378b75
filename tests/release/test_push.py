"""Pushing to a registry, and naming a base by its digest, with a registry of Debian's on this machine."""

import json
import subprocess
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from commands import IMAGE, make, output, run


@pytest.mark.pull
@pytest.mark.needs("registry")
def test_all_tags_name_the_image_by_one_digest(small: str, registry: str) -> None:
    repository = f"{registry}/owner/slipway"
    pushed = make("push", IMAGE=small, REPOSITORY=repository, VERSION="1.2.3")
    name, _, digest = pushed.partition("@")
    assert name == repository
    with urllib.request.urlopen(f"http://{registry}/v2/owner/slipway/tags/list", timeout=30) as answer:
        tags = json.load(answer)["tags"]
    assert sorted(tags) == sorted(make("tags", VERSION="1.2.3").splitlines())
    for tag in tags:
        assert digest in output("docker", "buildx", "imagetools", "inspect", f"{repository}:{tag}")
    assert repository not in output("docker", "image", "ls"), "no tag of the registry stays behind on the engine"


@pytest.mark.needs("registry")
def test_a_published_version_is_never_pushed_over(small: str, registry: str) -> None:
    repository = f"{registry}/owner/slipway"
    make("push", IMAGE=small, REPOSITORY=repository, VERSION="1.2.3")
    again = run("images/release/push.sh", IMAGE=small, REPOSITORY=repository, VERSION="1.2.3")
    assert again.returncode == 78
    assert "1.2.3-cuda12-torch2.10 is there already" in again.stderr
    rebuilt = make("push", IMAGE=small, REPOSITORY=repository, VERSION="1.2.3", REBUILD="20260110")
    assert rebuilt.startswith(f"{repository}@sha256:")


def test_a_registry_that_does_not_answer_is_named() -> None:
    done = run("images/release/push.sh", REPOSITORY="127.0.0.1:9/owner/slipway")
    assert done.returncode == 78
    assert "127.0.0.1:9/owner/slipway does not say" in done.stderr


def test_without_a_repository_it_says_what_to_type() -> None:
    done = run("images/release/push.sh")
    assert done.returncode == 78
    assert "make push REPOSITORY=" in done.stderr


def read_manifest(name: str) -> dict:
    """What a registry has under a name."""
    return json.loads(output("docker", "buildx", "imagetools", "inspect", "--raw", name))


@pytest.mark.pull
@pytest.mark.needs("registry")
def test_parts_of_all_architectures_become_one_image_under_the_tags(
    build_small: Callable[..., str], registry: str
) -> None:
    repository = f"{registry}/owner/slipway"
    release = {"VARIANT": "cuda13", "REPOSITORY": repository, "VERSION": "1.2.3"}
    tags = make("tags", VARIANT="cuda13", VERSION="1.2.3").splitlines()
    for architecture in ("amd64", "arm64"):
        early = run("images/release/push.sh", "join", **release)
        assert (early.returncode, early.stdout) == (78, "")
        assert (
            f"{repository} has no {tags[0]}-{architecture}. On a machine with this architecture, type: make image"
            in early.stderr
        )
        part = build_small("cuda13", architecture)
        assert make("push-platform", IMAGE=part, **release).startswith(f"{repository}@sha256:")
    joined = make("push-joined", **release)
    with urllib.request.urlopen(f"http://{registry}/v2/owner/slipway/tags/list", timeout=30) as answer:
        there = json.load(answer)["tags"]
    assert sorted(there) == sorted([*tags, f"{tags[0]}-amd64", f"{tags[0]}-arm64"])
    for name in (joined, *(f"{repository}:{tag}" for tag in tags)):
        parts = read_manifest(name)["manifests"]
        assert [part["platform"]["architecture"] for part in parts] == ["amd64", "arm64"]
    for what in ("platform", "join"):
        again = run("images/release/push.sh", what, IMAGE=part, **release)
        assert (again.returncode, again.stdout) == (78, "")
        assert f"{tags[0]} is there already" in again.stderr


@pytest.mark.needs("registry")
def test_an_image_for_one_architecture_is_published_in_the_same_way(small: str, registry: str) -> None:
    release = {"REPOSITORY": f"{registry}/owner/slipway", "VERSION": "1.2.3"}
    make("push-platform", IMAGE=small, **release)
    joined = make("push-joined", **release)
    output("docker", "pull", "--quiet", joined)
    for tag in make("tags", VERSION="1.2.3").splitlines():
        assert read_manifest(f"{release['REPOSITORY']}:{tag}") == read_manifest(joined)


@pytest.mark.needs("registry")
def test_a_part_is_of_an_architecture_for_which_its_variant_is_published(
    build_small: Callable[..., str], registry: str
) -> None:
    part = build_small("cuda12", "arm64")
    done = run("images/release/push.sh", "platform", IMAGE=part, REPOSITORY=f"{registry}/owner/slipway")
    assert (done.returncode, done.stdout) == (78, "")
    assert f"{part} is for arm64, and cuda12 is published for amd64" in done.stderr


@pytest.mark.needs("registry")
def test_the_launcher_is_pushed_for_both_architectures_and_never_over_itself(registry: str) -> None:
    release = {"REPOSITORY": f"{registry}/owner/slipway", "VERSION": "1.2.3", "BASE": base_of_the_image()}
    pushed = make("push-launcher", **release)
    for tag in ("1.2.3-launcher", "1.2-launcher", "launcher"):
        manifest = read_manifest(f"{release['REPOSITORY']}:{tag}")
        assert manifest == read_manifest(pushed)
        parts = [part["platform"]["architecture"] for part in manifest["manifests"]]
        assert parts == ["amd64", "arm64"]
    assert registry not in output("docker", "image", "ls"), "no tag of the registry stays behind on the engine"
    again = run("images/release/launcher.sh", **release)
    assert (again.returncode, again.stdout) == (78, "")
    assert "1.2.3-launcher is there already" in again.stderr


def base_of_the_image() -> str:
    """What the image under test was built on, which is at hand."""
    label = '{{index .Config.Labels "org.opencontainers.image.base.name"}}'
    return output("docker", "image", "inspect", "--format", label, IMAGE)


@pytest.mark.needs("registry", "skopeo")
def test_layers_are_packed_with_zstd_where_that_is_asked_for(small: str, registry: str, tmp_path: Path) -> None:
    repository, settings = f"{registry}/owner/slipway", tmp_path / ".config/containers/registries.conf"
    settings.parent.mkdir(parents=True)
    settings.write_text(f'[[registry]]\nlocation = "{registry}"\ninsecure = true\n')  # as Docker takes it by itself
    pushed = make("push", IMAGE=small, REPOSITORY=repository, VERSION="1.2.3", COMPRESSION="zstd", HOME=str(tmp_path))
    for tag in make("tags", VERSION="1.2.3").splitlines():
        manifest = read_manifest(f"{repository}:{tag}")
        assert manifest == read_manifest(pushed)
        assert {layer["mediaType"].rpartition("+")[2] for layer in manifest["layers"]} == {"zstd"}


@pytest.mark.needs("registry")
def test_the_base_is_named_by_the_digest_that_its_tag_has(small: str, registry: str, undo: ExitStack) -> None:
    base = f"{registry}/debian:trixie-slim"
    undo.callback(run, "docker", "image", "rm", "--force", base)
    output("docker", "tag", small, base)
    output("docker", "push", "--quiet", base)
    output("docker", "image", "rm", base)
    pinned = make("base-digest", BASE=base)
    assert pinned.startswith(f"{base}@sha256:")
    output("docker", "pull", "--quiet", pinned)


@pytest.mark.pull
def test_an_image_is_never_pushed_under_the_tags_of_another_variant(small: str, undo: ExitStack) -> None:
    other = f"{small}-other"
    undo.callback(run, "docker", "image", "rm", "--force", other)
    subprocess.run(
        ["docker", "buildx", "build", "--load", "--tag", other, "-"],
        input=f"FROM {small}\nLABEL slipway.variant=cpu\n",
        text=True,
        check=True,
        capture_output=True,
    )
    done = run("images/release/push.sh", IMAGE=other, REPOSITORY="127.0.0.1:9/owner/slipway")
    assert (done.returncode, done.stdout) == (78, "")
    assert f"{other} is 'cpu' by its label slipway.variant, and its tags would say cuda12" in done.stderr
