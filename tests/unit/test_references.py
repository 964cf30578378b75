"""What an image is called by people, and by enroot."""

import pytest

from slipway.launch.errors import LaunchError
from slipway.references import name_for_enroot


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
        (f"registry.example/slipway@sha256:{'0' * 64}", "digest"),
        ("images/slipway.sqsh", "absolute path"),
        ("./slipway.sqsh", "absolute path"),
        ("/shared/slipway.tar.zst", "slurm/import.sh"),
        ("registry.example/team/slipway:1 x", "no name of an image"),
        ("registry.example/team/slipway:1\n#SBATCH", "no name of an image"),
        ("Registry/Team:1:2", "no name of an image"),
    ],
)
def test_an_image_that_is_not_certain_is_refused_with_what_to_type(image: str, says: str) -> None:
    with pytest.raises(LaunchError) as refused:
        name_for_enroot(image)
    assert refused.value.code == 78
    assert says in str(refused.value)
