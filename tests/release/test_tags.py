"""Under which tags a version is published, and which git tag is."""

import pytest
from commands import ROOT, make, output, run

pytestmark = pytest.mark.pull

TORCH = "torch2.10.0-cu128"


@pytest.mark.parametrize(
    ("settings", "tags"),
    [
        ({"VERSION": "1.2.3"}, [f"1.2.3-{TORCH}", f"1.2-{TORCH}", "latest"]),
        ({"VERSION": "1.2.3", "RELEASE": "v1.2.3"}, [f"1.2.3-{TORCH}", f"1.2-{TORCH}", "latest"]),
        ({"VERSION": "1.2.3", "REBUILD": "20260110"}, [f"1.2.3-{TORCH}-20260110", f"1.2-{TORCH}", "latest"]),
        ({"VERSION": "1.2.3rc1"}, [f"1.2.3rc1-{TORCH}"]),
        ({"VERSION": "1.3.0.dev0"}, [f"1.3.0.dev0-{TORCH}"]),
    ],
)
def test_the_first_tag_is_exact_and_only_releases_move_tags(settings: dict[str, str], tags: list[str]) -> None:
    assert make("tags", **settings).splitlines() == tags


def test_a_git_tag_that_is_not_the_version_publishes_nothing() -> None:
    done = run("images/release/tags.sh", VERSION="1.2.3", RELEASE="v1.2.4")
    assert done.returncode == 78
    assert "v1.2.4 is not v1.2.3" in done.stderr
    assert not done.stdout


def test_the_torch_of_the_tags_is_that_of_the_lock() -> None:
    lock = (ROOT / "locks/requirements.lock").read_text()
    assert f"torch=={TORCH.removeprefix('torch').partition('-')[0]} " in lock


@pytest.mark.parametrize(
    ("tags", "pushed", "published"),
    [
        (["v0.9.0", "v0.10.0", "v0.11.0rc1", "other"], "refs/heads/main", "v0.10.0"),
        (["v0.9.0", "v0.10.0"], "refs/tags/v0.9.0", "v0.9.0"),
        (["v0.1.0rc1"], "", ""),
    ],
)
def test_a_pushed_tag_is_published_or_else_the_newest_release(
    tmp_path, tags: list[str], pushed: str, published: str
) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    output(*git, "init", "--quiet")
    output(*git, "commit", "--quiet", "--allow-empty", "--message=x")
    for tag in tags:
        output(*git, "tag", tag)
    script = ROOT / "images/release/ref.sh"
    assert output("env", "--chdir", tmp_path, script, GITHUB_REF=pushed) == published
