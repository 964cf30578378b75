"""Pushing to a registry, and naming a base by its digest, with a registry of Debian's on this machine."""

import json
import subprocess
import urllib.request
from contextlib import ExitStack

import pytest
from commands import make, output, run


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
