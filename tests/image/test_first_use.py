"""What the documentation, a run's `next:` lines and the launcher's advice say to type works for an ordinary user on first use.

"First use": an empty folder of a user who is neither root nor 1000, the image's own, and may talk to the engine (person.py).
"""

from __future__ import annotations

import re
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from containers import IMAGE, docker, fresh_name
from next_lines import next_commands
from person import Person

sys.path.append(str(Path(__file__).parents[1] / "docs"))

from blocks import PAGES, ROOT, join_lines, read_blocks

QUICK = "linear --steps 2"


def shortened(command: str) -> str:
    """A command that trains, with a few steps only."""
    command = re.sub(r" linear(?: --steps \d+)?", " linear --steps 2", command)
    return re.sub(r" gpt$", " gpt --steps 2 --eval-samples 16 --sample-tokens 0", command)


def single_nodes() -> list[str]:
    """The documented blocks that start one container each, on one machine and without a GPU."""
    blocks = [block.text for page in PAGES for block in read_blocks(page)]
    return [
        block
        for block in blocks
        if "docker run" in block
        and not re.search(r"--gpus|/dev/infiniband|WORLD_SIZE|docker network|render k8s", block)
    ]


@pytest.mark.parametrize("block", single_nodes(), ids=lambda block: shlex.quote(block.split("\n")[1][:50]))
def test_a_documented_block_works(person: Person, block: str) -> None:
    shown = person.types(block.replace("slipway:dev linear", f"slipway:dev {QUICK}"))
    assert "finished on 1 node" in shown


@pytest.mark.pull
def test_the_readmes_first_docker_run_works_but_for_its_gpus_and_its_second_node(person: Person) -> None:
    text = (ROOT / "README.md").read_text()
    block = re.search(r"```sh\n# needs: a GPU\n(.*?)```", text, re.DOTALL)
    assert block
    lines = [
        re.sub(r"--gpus all|--network host|-e (?:RANK|WORLD_SIZE|MASTER_ADDR)=\S+", "", line)
        for line in join_lines(block[1])
    ]
    shown = person.types("\n".join(lines).replace(" gpt ", f" {QUICK} "))
    assert "finished on 1 node" in shown
    assert {path.stat().st_uid for path in (person.folder / "runs").rglob("*")} == {person.folder.stat().st_uid}


@pytest.mark.timeout(600)
def test_what_a_run_says_to_type_next_works_with_and_without_a_folder_for_its_results(person: Person) -> None:
    shown = person.types(f"docker run --rm --shm-size 1g slipway:dev {QUICK}")
    again = next_commands(shown.splitlines())[0]
    assert again.startswith("mkdir -p runs && ")
    kept = person.types(f"{again} --steps 2")
    assert len(list((person.folder / "runs").iterdir())) == 1
    for command in next_commands(kept.splitlines()):
        person.types(shortened(command))


@pytest.mark.timeout(600)
def test_what_to_type_next_names_the_folder_that_was_mounted_wherever_it_is_typed(person: Person) -> None:
    start = f'docker run --rm --shm-size 1g --user "$(id -u):0" -v "$PWD/my results:/checkpoints" slipway:dev {QUICK}'
    kept = person.types(f"mkdir -p 'elsewhere/my results' && cd elsewhere && {start}")
    report = next_commands(kept.splitlines())[0]
    assert f'"{person.folder}/elsewhere/my results:/checkpoints"' in report
    person.types(report)
    assert not (person.folder / "my results").exists()


@pytest.mark.pull
def test_a_script_that_was_not_mounted_starts_after_the_advice(person: Person) -> None:
    (person.folder / "train.py").write_text("print('mine')")
    shown = person.types("docker run --rm slipway:dev train.py", code=78)
    advised = re.search(r"add (-v \S+) to docker run", shown)
    assert advised
    assert "mine" in person.types(f"docker run --rm {advised[1]} slipway:dev train.py")


@pytest.mark.timeout(600)
def test_after_the_advice_it_works(person: Person, undo: ExitStack) -> None:
    """A folder that Docker created as root, and a volume that another container made."""
    run = f'docker run --rm --shm-size 1g -v "$PWD/runs:/checkpoints" slipway:dev {QUICK}'
    shown = person.types(run, code=78)
    runs = person.folder / "runs"
    advised = re.search(f"type: (rmdir {runs} && mkdir {runs});", shown)
    user = re.search(r"And add (--user \S+ \S+|--user \S+) to docker run", shown)
    assert advised
    assert user
    person.types(f"{advised[1]}\n{run.replace('--rm', f'--rm {user[1]}')}")

    volume = fresh_name()
    undo.callback(docker, "volume", "rm", volume)
    docker(
        "run", "--rm", "--user", "0", "--entrypoint", "touch", "-v", f"{volume}:/of-root", IMAGE, "/of-root/x"
    )  # root's, as of any image
    run = f"docker run --rm --shm-size 1g -v {volume}:/checkpoints slipway:dev {QUICK}"
    advised = re.search(r"Type: (docker run .*)", person.types(run, code=78))
    assert advised
    person.types(advised[1])
    person.types(run)
    kept = person.types(run.replace("--rm", '--rm --user "$(id -u):0"'))
    report, *others = next_commands(kept.splitlines())
    assert all(f'"{volume}:/checkpoints"' in command for command in (report, *others))
    person.types(report)
