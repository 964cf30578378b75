"""What the README and compose/README.md show of Compose works on first use: pasted by an ordinary user into a fresh checkout."""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from compose_projects import CPU, ROOT, SHORT
from needs import IMAGE
from person import Person
from ports import take_port

sys.path.append(str(Path(__file__).parents[1] / "docs"))

from blocks import join_lines, read_blocks

QUICK = "linear --steps 2"
NO_GPU = "# on all GPUs"  # what a line says that needs one


@pytest.fixture
def checkout(person: Person) -> Iterator[Person]:
    """The person in a checkout with the compose files, and a project that is gone after the test."""
    for name in ("compose", ".env.example", "examples"):
        person.copies(ROOT / name, name)
    person.environ |= {
        "COMPOSE_PROJECT_NAME": f"slipway-test-{secrets.token_hex(4)}",
        "TENSORBOARD_PORT": str(take_port()),
    }
    yield person
    person.types("docker compose --profile tensorboard down --volumes --remove-orphans --timeout 0", COMPOSE_FILE=CPU)


def documented(page: str) -> list[str]:
    """The lines of the blocks of a page that need an engine and no GPU, without their comments."""
    lines = [line for block in read_blocks(ROOT / page) if block.needs == "docker" for line in join_lines(block.text)]
    return [
        line.partition("  #")[0].strip() for line in lines if line and not line.startswith("#") and NO_GPU not in line
    ]


@pytest.mark.pull
def test_the_readmes_lines_train_without_a_gpu(checkout: Person) -> None:
    shown = [checkout.types(line, WORKLOAD=QUICK) for line in documented("README.md")]
    assert len(shown) == 2
    assert "finished on 1 node: 2 steps" in shown[-1]


@pytest.mark.timeout(900)
def test_the_lines_of_its_own_page_work_one_after_the_other(checkout: Person) -> None:
    checkout.types("echo 'import sys; print(\"mine\", *sys.argv[1:])' >my_script.py")
    shown = {}
    for line in documented("compose/README.md"):
        if line == "make image":
            continue  # it is there
        more = {"WORKLOAD": SHORT} if "COMPOSE_FILE=" in line else {"COMPOSE_FILE": CPU}
        if "render compose" in line:
            # Its own `slipway` is the image's: that of a .venv may be out of a user's reach.
            line = line.replace("slipway render", f"docker run --rm {IMAGE} render")
            line = line.replace("--gpus 2 gpt --preset small", f"--gpus 0 --image {IMAGE} {QUICK}")
            more = {"COMPOSE_FILE": "compose.yaml"}
        if "gpt-…" in line:
            line = line.replace("gpt-…", re.search(r"/checkpoints/(gpt-[\d-]+)", "".join(shown.values()))[1])  # type: ignore[index]
        shown[line] = checkout.types(line, **more)
    said = "".join(shown.values())
    assert "finished on 1 node: 20 steps" in said
    assert "finished on 1 node: 2 steps" in said
    assert "mine --its-own --flags" in said
    assert (checkout.folder / "runs").is_dir()
    assert {path.stat().st_uid for path in checkout.folder.rglob("*")} == {checkout.folder.stat().st_uid}
