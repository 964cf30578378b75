"""The README's two commands on a machine that has nothing: Debian 12 in a container without privileges, and no engine in it.

As in a code space, a dev container and most runners. Both users take the same .venv, made of the wheels that are here already.
"""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sections import SECTIONS

ROOT = Path(__file__).parents[2]
PACKAGES = "make,git,python3-venv,ca-certificates"  # as the README has it
HOME, CHECKOUT = "/home/me", "/home/me/slipway"
NOBODY = "1234:1234"  # without an entry in /etc/passwd
SHORT = "--steps 40 --eval-samples 32 --sample-tokens 20"
# Of each section a little: what it needs of a machine shows in that. Root runs the whole core.
PICKED = (
    "test_host or test_caches or test_namespaces or test_processes or listener_takes_both_families "
    "or two_launchers_train_linear_together or any_user_id_trains_a_script or gpt_learns or the_table_names_every_folder "
    "or memory_limit or truncated_snapshot"
)
RUN = ("lint", "unit", "rendezvous", "launch", "train", "docs")
SKIPPED = {
    "image": "make engine",
    "compose": "make engine",
    "release": "make engine",
    "slurm": "make test-tools",
    "k8s": "make test-tools",
}
In = Callable[..., str]


def run(*words: str | Path, **more: object) -> str:
    """What a command prints; fails where it fails."""
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **more)  # type: ignore[call-overload]
    text = str(done.stdout.decode(errors="replace"))
    assert done.returncode == 0, f"{words} ended with {done.returncode}:\n{text[-6000:]}"
    return text


@pytest.fixture(scope="module")
def wheels() -> Path:
    """The wheels that .venv was made of, and where its Python is another than Debian 12's, those for that one."""
    folder = (ROOT / ".venv/wheels").resolve()
    if sys.version_info[:2] != (3, 11):
        for lock in ("locks/requirements.lock", "locks/requirements-dev.lock"):
            words = (
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--python-version",
                "3.11",
                "--only-binary",
                ":all:",
            )
            run(*words, "--require-hashes", "--requirement", lock, "--dest", folder)
    return folder


@pytest.fixture(scope="module")
def machine(wheels: Path) -> Iterator[In]:
    """Runs a line of shell on that machine, in a checkout of these very files, as a `user`; returns what it printed."""
    name = f"slipway-plain-{secrets.token_hex(4)}"
    run(ROOT / "images/base.sh", name, "bookworm", PACKAGES)
    offline = ("--env", "PIP_NO_INDEX=1", "--env", "PIP_FIND_LINKS=/wheels")
    run(
        "docker",
        "run",
        "--detach",
        "--name",
        name,
        "--volume",
        f"{wheels}:/wheels:ro",
        *offline,
        name,
        "sleep",
        "infinity",
    )

    def inside(line: str, user: str = "0:0") -> str:
        run("docker", "exec", name, "chown", "-R", user, HOME)
        return run(
            "docker", "exec", "--user", user, "--env", f"HOME={HOME}", "--workdir", CHECKOUT, name, "bash", "-c", line
        )

    try:
        run("docker", "exec", name, "mkdir", "-p", f"{HOME}/.cache/slipway", CHECKOUT)
        run("docker", "exec", name, "ln", "-s", "/wheels", f"{HOME}/.cache/slipway/wheels")
        kept = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").encode()
        packed = subprocess.run(
            ["tar", "-c", "--null", "-T", "-", "--ignore-failed-read"],
            cwd=ROOT,
            input=kept,
            capture_output=True,
            check=True,
        )
        run(
            "docker",
            "exec",
            "--interactive",
            "--workdir",
            CHECKOUT,
            name,
            "tar",
            "-x",
            "--no-same-owner",
            input=packed.stdout,
        )
        run("docker", "exec", "--workdir", CHECKOUT, name, "bash", "-c", "git init --quiet && git add --all")
        yield inside
    finally:
        subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=False)
        subprocess.run(["docker", "image", "rm", "--force", name], capture_output=True, check=False)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("user", "arguments"), [(NOBODY, f'-k "{PICKED}"'), ("0:0", "")], ids=["nobody", "root"])
def test_both_commands_do_all_that_can_be_done_there_and_say_what_is_missing(
    machine: In, user: str, arguments: str
) -> None:
    trained = machine(f"make run ARGS='{SHORT}'", user)
    assert "no Docker Engine answers, so this trains in .venv" in trained
    assert trained.count("next: ") == 3, trained
    printed = machine(f"make test ARGS='{arguments}'", user)
    table = printed.rpartition("\nsection  ")[2]
    ends = {row[1]: row[2] for row in re.finditer(r"^(\S+) +(passed|FAILED|skipped) ", table, re.MULTILINE)}
    assert {name: ends[name] for name in RUN} == dict.fromkeys(RUN, "passed"), table
    for section, typed in SKIPPED.items():
        later = not arguments and SECTIONS[section].since != "core"
        assert re.search(
            rf"^{section} +skipped .*: {'TIER=pull make test' if later else typed}$", table, re.MULTILINE
        ), table
    assert re.search(r"^rendezvous +needs network namespaces; .*\(\d+ tests\)$", table, re.MULTILINE), table
    assert re.search(r"^\d{2,} passed, 0 failed, \d+ skipped$", table, re.MULTILINE), table
