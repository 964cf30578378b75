"""What an image is called: as people type it, as Docker and Kubernetes take it, and as pyxis and enroot need it. Pure."""

import re

from slipway.protocol.errors import LaunchError
from slipway.protocol.variants import NAMES

DOCKER_HUB = "registry-1.docker.io"  # where enroot looks for an image without a registry (enroot's src/docker.sh)
ENGINE = "dockerd://"  # enroot's word for the Docker Engine of the node
SQUASHED = ".sqsh"
# What may stand in a name (github.com/distribution/reference, regexp.go).
_PART = r"[a-z0-9]+(?:(?:[.]|_{1,2}|-+)[a-z0-9]+)*"
_HOST = r"[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]+)?"
# The parts of enroot's import.md, and Docker's digest. A registry is followed by # there, and by / where Docker is asked.
_REFERENCE = re.compile(
    r"(?:(?P<registry>[^\s#/]+)(?P<mark>[#/]))?"
    rf"(?P<path>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
    r"(?P<digest>@sha256:[0-9a-f]{64})?"
)


def pinned(image: str) -> str:
    """An image's name with a tag that stays, or a digest. Raises LaunchError (78) for what may change, and for what is none."""
    match = _REFERENCE.fullmatch(image)
    registry = match["registry"] if match else None
    known = registry is None or re.fullmatch(_HOST if _is_registry(registry) else _PART, registry)
    if not match or match["mark"] == "#" or not known:
        raise LaunchError(
            f"--image {image} is not the name of an image. Type NAME:TAG or REGISTRY/NAME:TAG, names in small letters; a digest "
            "(@sha256:…) may follow or replace the tag."
        )
    if not match["digest"]:
        _require_version(image, match["tag"])
    return image


def name_for_enroot(image: str) -> str:
    """Return how `srun --container-image` has to be told this image. Raises LaunchError (78) where that is not certain.

    Allowed are the absolute path of a .sqsh file, REGISTRY#NAME:TAG, Docker's REGISTRY/NAME:TAG, where a digest may follow or
    replace the tag, and dockerd://NAME:TAG.
    """
    if image.endswith(SQUASHED) or image.startswith(("/", ".")):
        return _path(image)
    engine = image.startswith(ENGINE)
    match = _REFERENCE.fullmatch(image.removeprefix(ENGINE).removeprefix("docker://"))
    if not match:
        raise LaunchError(f"--image {image} is not the name of an image. {_FORMS}")
    registry, mark, path, tag, digest = match.group("registry", "mark", "path", "tag", "digest")
    if engine and digest:
        raise LaunchError(f"--image {image}: enroot takes no digest from a Docker Engine. Type {ENGINE}NAME:TAG.")
    if not digest:
        _require_version(image, tag)
    if engine:
        return image
    # enroot 4 knows Docker's @sha256:…, enroot 3 does not. Both take what stands behind a colon for what to ask the registry
    # for, and a registry takes a digest there, too (docker.sh). The digest decides, as it does for Docker.
    tag = digest.removeprefix("@") if digest else tag
    if mark == "#":
        return f"{registry}#{path}:{tag}"
    if registry in ("docker.io", "index.docker.io"):
        return f"{DOCKER_HUB}#{path}:{tag}"
    if registry and _is_registry(registry):
        return f"{registry}#{path}:{tag}"
    here = "" if digest else f"--image {ENGINE}{image} for the Docker Engine of each node, "
    raise LaunchError(
        f"--image {image} names no registry. Type --image docker.io/{image} for Docker Hub, {here}or the absolute path of a "
        f"{SQUASHED} file (slurm/import.sh makes it)."
    )


def variant_of(image: str) -> str:
    """The variant that the name of an image says: a word of its tag, or of the name of a .sqsh file. Empty where it says none.

    slipway:1.2.3-cpu is cpu, /shared/slipway-1.2.3-cuda12.sqsh is cuda12.
    """
    name = image.partition("@sha256:")[0].rpartition("/")[2]
    tag = name.removesuffix(SQUASHED) if name.endswith(SQUASHED) else name.partition(":")[2].rpartition(":")[2]
    return next((word for word in re.split("[-+]", tag) if word in NAMES), "")


def _require_version(image: str, tag: str | None) -> None:
    """Raise LaunchError where a name may mean another image tomorrow."""
    if not tag:
        raise LaunchError(
            f"--image {image} has no tag, so it can mean another image every day. Type --image {image}:TAG."
        )
    if tag == "latest":
        raise LaunchError(
            f"--image {image}: latest can be another image every day, even for a job that is restarted. Name a version."
        )
    if tag in NAMES:
        raise LaunchError(
            f"--image {image}: {tag} is the image of the newest release, so it can be another one next week, even for a job "
            f"that is restarted. Name a version, as in 1.2.3-{tag}."
        )


def _is_registry(first: str) -> bool:
    """Whether the first part of a name is a registry, by Docker's own rule, and not the first part of the path."""
    return bool(re.search(r"[.:]", first)) or first == "localhost"


_FORMS = (
    f"Type REGISTRY/NAME:TAG or REGISTRY#NAME:TAG, with @sha256:… after or instead of the tag, {ENGINE}NAME:TAG, or the "
    f"absolute path of a {SQUASHED} file."
)


def _path(image: str) -> str:
    if not image.endswith(SQUASHED):
        raise LaunchError(
            f"--image {image} is not a {SQUASHED} file. Make one: slurm/import.sh dockerd://IMAGE:TAG FILE{SQUASHED}"
        )
    if not image.startswith("/"):
        raise LaunchError(f"--image {image}: the nodes need its absolute path, as they see it.")
    return image
