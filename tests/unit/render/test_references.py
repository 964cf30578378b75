"""What an image is called by people, by Docker and Kubernetes, and by enroot."""

import pytest

from slipway.protocol.errors import LaunchError
from slipway.protocol.variants import NAMES
from slipway.render.references import name_for_enroot, pinned, variant_of

DIGEST = f"@sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("/shared/images/slipway 1.sqsh", "/shared/images/slipway 1.sqsh"),
        ("dockerd://slipway:dev", "dockerd://slipway:dev"),
        ("dockerd://localhost:5000/team/slipway:1", "dockerd://localhost:5000/team/slipway:1"),
        ("registry.example#team/slipway:1", "registry.example#team/slipway:1"),
        ("$oauthtoken@nvcr.io#nvidia/pytorch:24.01-py3", "$oauthtoken@nvcr.io#nvidia/pytorch:24.01-py3"),
        ("registry.example/team/slipway:1", "registry.example#team/slipway:1"),
        ("docker://registry.example/team/slipway:1", "registry.example#team/slipway:1"),
        ("registry:5000/slipway:1", "registry:5000#slipway:1"),
        ("localhost/slipway:1", "localhost#slipway:1"),
        ("docker.io/team/slipway:1", "registry-1.docker.io#team/slipway:1"),
        (f"registry.example/team/slipway{DIGEST}", f"registry.example#team/slipway:{DIGEST[1:]}"),
        (f"registry.example#team/slipway:1{DIGEST}", f"registry.example#team/slipway:{DIGEST[1:]}"),
        (f"registry:5000/slipway:latest{DIGEST}", f"registry:5000#slipway:{DIGEST[1:]}"),
        (f"docker.io/team/slipway{DIGEST}", f"registry-1.docker.io#team/slipway:{DIGEST[1:]}"),
    ],
)
def test_an_image_gets_the_name_that_enroot_needs(image: str, name: str) -> None:
    assert name_for_enroot(image) == name


@pytest.mark.parametrize(
    ("image", "says"),
    [
        ("registry.example/team/slipway", "registry.example/team/slipway:TAG"),
        ("registry:5000/slipway", "has no tag"),
        ("registry.example#team/slipway", "has no tag"),
        ("dockerd://slipway", "dockerd://slipway:TAG"),
        ("registry.example/team/slipway:latest", "Name a version"),
        ("dockerd://slipway:latest", "Name a version"),
        ("slipway:dev", "dockerd://slipway:dev"),
        ("team/slipway:1", "docker.io/team/slipway:1"),
        (f"slipway{DIGEST}", "docker.io/slipway@sha256"),
        (f"dockerd://slipway{DIGEST}", "no digest from a Docker Engine"),
        ("registry.example/slipway@sha256:0123", "not the name of an image"),
        ("images/slipway.sqsh", "absolute path"),
        ("./slipway.sqsh", "absolute path"),
        ("/shared/slipway.tar.zst", "slurm/import.sh"),
        ("registry.example/team/slipway:1 x", "not the name of an image"),
        ("registry.example/team/slipway:1\n#SBATCH", "not the name of an image"),
        ("Registry/Team:1:2", "not the name of an image"),
    ],
)
def test_an_image_that_is_not_certain_is_refused_with_what_to_type(image: str, says: str) -> None:
    with pytest.raises(LaunchError) as refused:
        name_for_enroot(image)
    assert refused.value.code == 78
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "image",
    [
        "slipway:dev",
        "team/slipway:1",
        "my_team/sub/slipway-cuda12:0.2.1",
        "registry.example/team/slipway:1",
        "registry:5000/slipway:1",
        "localhost/slipway:1",
        "127.0.0.1:5000/slipway:1",
        "Registry.Example/team/slipway:V1_a.b-c",
        "a__b/c--d:1",
        f"slipway{DIGEST}",
        f"registry.example/team/slipway:1{DIGEST}",
        f"slipway:latest{DIGEST}",
        f"slipway:{'1' * 128}",
    ],
)
def test_an_image_with_a_tag_or_a_digest_is_taken_as_it_is(image: str) -> None:
    assert pinned(image) == image


@pytest.mark.parametrize(
    ("image", "says"),
    [
        ("slipway", "Type --image slipway:TAG"),
        ("registry:5000/slipway", "has no tag"),
        ("registry.example/team/slipway:latest", "Name a version"),
        ("", "not the name of an image"),
        ("Slipway:1", "not the name of an image"),
        ("team/Slipway:1", "not the name of an image"),
        ("Team/slipway:1", "not the name of an image"),
        ("team//slipway:1", "not the name of an image"),
        ("team/slipway/:1", "not the name of an image"),
        ("a..b:1", "not the name of an image"),
        ("a___b:1", "not the name of an image"),
        ("_a:1", "not the name of an image"),
        ("my_registry:5000/slipway:1", "not the name of an image"),
        ("registry:port/slipway:1", "not the name of an image"),
        ("slipway:", "not the name of an image"),
        ("slipway:1:2", "not the name of an image"),
        ("slipway:-1", "not the name of an image"),
        (f"slipway:{'1' * 129}", "not the name of an image"),
        ("slipway:1\n", "not the name of an image"),
        ("slipway:1 x", "not the name of an image"),
        ("slipway:größe", "not the name of an image"),
        ("slipway@sha256:0123", "not the name of an image"),
        ("registry.example#team/slipway:1", "not the name of an image"),
        ("dockerd://slipway:1", "not the name of an image"),
        ("https://registry.example/slipway:1", "not the name of an image"),
        ("./slipway.tar", "not the name of an image"),
        ("/shared/slipway.sqsh", "not the name of an image"),
    ],
)
def test_an_image_that_docker_would_not_take_or_that_changes_is_refused(image: str, says: str) -> None:
    with pytest.raises(LaunchError) as refused:
        pinned(image)
    assert refused.value.code == 78
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("image", "variant"),
    [
        ("slipway:dev", ""),
        ("slipway:dev-cpu", "cpu"),
        ("slipway:1.2.3-cuda12-torch2.10", "cuda12"),
        ("registry:5000/team/slipway:1.2-cuda13", "cuda13"),
        (f"registry.example/slipway:1.2.3-cpu{DIGEST}", "cpu"),
        (f"registry.example/slipway{DIGEST}", ""),
        ("registry.example#team/slipway:1.2.3-cpu", "cpu"),
        ("registry:5000#team/slipway:1.2.3-cpu", "cpu"),
        ("dockerd://slipway:dev-cpu", "cpu"),
        ("/shared/cpu/slipway.sqsh", ""),
        ("/shared/images/slipway-1.2.3-cpu.sqsh", "cpu"),
        ("/shared/images/team+slipway+1.2.3-cpu.sqsh", "cpu"),
        ("team/cpu-slipway:1.2.3", ""),
        ("cpu:1", ""),
        ("slipway:1.2.3-mycpu", ""),
        ("cpu", ""),
    ],
)
def test_the_variant_is_a_word_of_the_tag(image: str, variant: str) -> None:
    assert variant_of(image) == variant


@pytest.mark.parametrize("variant", NAMES)
def test_a_tag_that_moves_with_each_release_is_refused(variant: str) -> None:
    for refuses, image in ((pinned, f"a/slipway:{variant}"), (name_for_enroot, f"registry.example/slipway:{variant}")):
        with pytest.raises(LaunchError) as refused:
            refuses(image)
        assert refused.value.code == 78
        assert f"Name a version, as in 1.2.3-{variant}." in str(refused.value)
    assert pinned(f"slipway:{variant}{DIGEST}")
    assert pinned(f"slipway:1.2.3-{variant}")
