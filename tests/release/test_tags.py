"""Which git tag is published, and under which tags of the image (tests/unit/repository/test_images.py has all of them)."""

import pytest
from commands import ROOT, make, output

pytestmark = pytest.mark.pull


def test_make_prints_the_tags_of_a_variant() -> None:
    assert make("tags", VERSION="1.2.3", VARIANT="cuda12").splitlines()[0] == "1.2.3-cuda12-torch2.10"


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
