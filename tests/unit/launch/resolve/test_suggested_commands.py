"""Every command that a run suggests, typed into a shell in the setting in which it was printed: what a shell makes of it is a
command that Slipway takes, in the image, in the project and with the volumes that the run had.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
import yaml
from next_lines import next_commands
from stand_ins import make_devices, make_host, make_sources, plan_for

from slipway.cli.arguments import check_arguments
from slipway.cli.cli import slipway as commands
from slipway.cli.launching import launcher_options, take_options
from slipway.launch import closing
from slipway.launch.resolve.catalog import WORKLOADS
from slipway.launch.resolve.job_spec import Job
from slipway.launch.resolve.next_lines import as_typed
from slipway.launch.verdict.block import ADVICE, ADVICE_BY_WORD
from slipway.protocol.causes import Sign

ROOT = Path(__file__).parents[4]
CPU = "compose/compose.yaml:compose/cpu.yaml"
BATCH = {"RUNS": "/shared/runs", "IMAGE": "/shared/slipway.sqsh", "SLURM_SUBMIT_DIR": "/home/me/project"}


@dataclass(frozen=True)
class Setting:
    """Where a run was: what it knew of that, and what the shell has in which its commands are typed."""

    name: str
    runtime: str = "docker"
    environ: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[str, ...] = ()
    gpus: int = 0
    files: str = ""  # what COMPOSE_FILE has to be for a command, where .env does not have it
    image: str = "slipway:dev"
    project: str = ""

    @property
    def fleeting(self) -> bool:
        """Whether the run is gone."""
        return self.runtime != "host" and "/checkpoints" not in self.mounts


def compose(name: str, files: str, typed: str = "", dotenv: str = "", **more: str) -> Setting:
    """What the compose files put into a container; test_the_compose_files_say_so compares it."""
    said = {"COMPOSE_FILES": files, "COMPOSE_TYPED_FILE": typed or dotenv, "COMPOSE_FILE": dotenv}
    said |= {"COMPOSE_TYPED_PROJECT": more.get("project", "slipway"), "COMPOSE_TYPED_IMAGE": more.get("image", "")}
    service = "node0" if "two-nodes" in files else "train"
    return Setting(
        name,
        "compose",
        environ={**said, "COMPOSE_SERVICE": service, "NPROC_PER_NODE": "1"},
        mounts=("/checkpoints", "/data"),
        gpus=2 * (files == "compose/compose.yaml"),
        files="" if dotenv == (typed or files) else typed or files,
        image=more.get("image", ""),
        project=more.get("project", ""),
    )


SETTINGS = [
    Setting("host", "host"),
    Setting("docker without a volume"),
    Setting("docker with a volume", mounts=("/checkpoints",)),
    Setting("docker with GPUs and data", mounts=("/checkpoints", "/data", "/workspace"), gpus=2, environ={"IMAGE": "a/b:2"}, image="a/b:2"),
    compose("compose with GPUs", "compose/compose.yaml", dotenv="compose/compose.yaml"),
    compose("compose without GPUs", CPU, typed=CPU, dotenv="compose/compose.yaml"),
    compose("compose by --file", CPU, dotenv="compose/compose.yaml"),
    compose("compose without .env", "compose/compose.yaml", typed="compose/compose.yaml"),
    compose("compose with a file of one's own", CPU, typed=f"{CPU}:my own.yaml"),
    compose("two nodes", "compose/two-nodes.yaml", typed="compose/two-nodes.yaml"),
    compose("a project of one's own", CPU, dotenv=CPU, project="mine", image="slipway:dev-cpu"),
    Setting("pyxis", "slurm", BATCH, ("/checkpoints", "/workspace"), 4, image="/shared/slipway.sqsh"),
    Setting("pyxis without a volume", "slurm", {"IMAGE": "/shared/slipway.sqsh"}, image="/shared/slipway.sqsh"),
]  # fmt: skip
STAND_IN = 'function {} {{ printf "%s\\n" "{}" "COMPOSE_FILE=$COMPOSE_FILE" "IMAGE=$IMAGE" "COMPOSE_PROJECT_NAME=$COMPOSE_PROJECT_NAME" "$@" ---; }}\n'


def words_of(lines: list[str]) -> Iterator[tuple[list[str], dict[str, str]]]:
    """The words that a shell makes of commands, with the variables that they set."""
    text = "".join(STAND_IN.format(name, name) for name in ("docker", "srun", "slipway", "mkdir", "kubectl"))
    done = subprocess.run(["bash", "-ec", text + "\n".join(lines)], capture_output=True, text=True, check=True, env={})
    for typed in done.stdout.split("\n---\n")[:-1]:
        program, *rest = typed.split("\n")
        yield [program, *rest[3:]], dict(one.split("=", 1) for one in rest[:3])


def taken_apart(words: list[str], values: str) -> tuple[dict[str, list[str]], list[str]]:
    """The options before the first word that is none; `values`: those that a value follows."""
    options: dict[str, list[str]] = {}
    while words[0].startswith("-"):
        name, equals, value = words.pop(0).partition("=")
        options.setdefault(name, []).append(value if equals else words.pop(0) if name in values.split() else "")
    return options, words


def require_command(words: list[str], places: list[str], setting: Setting) -> None:
    """Fail unless Slipway takes these words, and what they name lies in one of `places` of the container."""
    name, *rest = words
    if name in WORKLOADS and "--help" not in rest:
        check_arguments(name, take_options(rest, launcher_options())[1])
    elif "--help" not in words:
        context = click.Context(commands, **commands.context_settings)  # a command keeps the names of its first --help
        command = commands.get_command(context, name)
        assert command, name
        command.make_context(name, list(rest), parent=context)
    for word in rest:
        if word.startswith("/") and setting.runtime != "host":
            assert any(Path(word).is_relative_to(place) for place in places), f"{word} is not in {places}: {words}"


def require_possible(words: list[str], environ: dict[str, str], setting: Setting) -> None:
    """Fail unless what was typed can work there."""
    program, *rest = words
    if program == "mkdir":
        return None
    if program == "slipway":
        return require_command(rest, [], setting)
    if setting.files or "COMPOSE_SERVICE" in setting.environ:
        assert environ == {
            "COMPOSE_FILE": setting.files,
            "IMAGE": setting.image,
            "COMPOSE_PROJECT_NAME": setting.project,
        }
        service = setting.environ["COMPOSE_SERVICE"]
        assert rest[:4] == ["compose", "run", "--rm", service]
        for file in (name for name in setting.files.split(":") if "my own" not in name and name):
            assert service in yaml.load((ROOT / file).read_text(), Loose)["services"]
        return require_command(rest[4:], ["/checkpoints", "/data"], setting)
    if program == "docker":
        assert rest.pop(0) == "run"
        options, (image, *inner) = taken_apart(rest, "--gpus --user --shm-size --stop-timeout -e -v -w")
        assert options.keys() <= {"--rm", "--gpus", "--user", "--shm-size", "--stop-timeout", "-e", "-v"}
        places = [mount.split(":")[-1] for mount in options.get("-v", [])]
    else:
        options, (slipway, *inner) = taken_apart(rest, "")
        image, places = (
            options["--container-image"][0],
            [mount.split(":")[-1] for mount in options.get("--container-mounts", [""])[0].split(",")],
        )
        assert slipway == "/opt/slipway/bin/slipway"
    assert image == setting.image
    asks = "--gpus" in options or "--gpus-per-node" in options
    assert asks == bool(setting.gpus and inner[0] in (*WORKLOADS, "check", "selftest"))
    return require_command(inner, places, setting)


class Loose(yaml.SafeLoader):
    """Compose's own tags mean nothing here."""


Loose.add_constructor("!reset", lambda loader, node: None)


def job_in(setting: Setting, workload: str, *arguments: str) -> Job:
    """A job of that setting."""
    host = make_host()._replace(
        runtime=setting.runtime,
        image=None if setting.runtime == "host" else "0.1.0",
        mounts={Path(place): "ext4" for place in setting.mounts} | {Path("/"): "overlay"},
    )
    sources, devices = make_sources({"SLIPWAY_RUNS": "/checkpoints", **setting.environ}), make_devices(setting.gpus)
    plan = plan_for((workload, *arguments), dict(setting.environ), devices=devices)
    return Job(plan, sources, devices, setting.environ, None, host)


@pytest.fixture(params=SETTINGS, ids=lambda setting: setting.name)
def setting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Setting:
    monkeypatch.setattr("os.getuid", lambda: 1000)
    monkeypatch.setattr(closing, "typed_program", lambda: "slipway")
    monkeypatch.setattr(closing, "mounted_from", lambda place: f"/home/me{place}")
    monkeypatch.setattr(closing, "fleeting_results", lambda host, folder: "gone" * request.param.fleeting)
    monkeypatch.setattr("os.getcwd", lambda: "/workspace")
    return request.param


@pytest.mark.parametrize("stopped", [False, True])
def test_what_a_run_suggests_next(setting: Setting, stopped: bool, capfd: pytest.CaptureFixture[str]) -> None:
    for name in WORKLOADS:
        run = SimpleNamespace(path=Path("/checkpoints/a run"), newest_step=40)
        closing.show_next(job_in(setting, name), run, setting.fleeting, stopped=stopped)  # type: ignore[arg-type]
    lines = next_commands(capfd.readouterr().err.splitlines())
    assert len(lines) >= 2 * len(WORKLOADS)
    for words, environ in words_of(lines):
        require_possible(words, environ, setting)


def test_a_stopped_run_of_two_nodes_in_compose_goes_on_with_both(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(closing, "mounted_from", lambda place: "results")
    run = SimpleNamespace(path=Path("/checkpoints/a run"), newest_step=40)
    setting = compose("two nodes", "compose/two-nodes.yaml", typed="compose/two-nodes.yaml")
    nodes = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "node0", "WORKLOAD": "gpt --steps 60"}
    job = job_in(replace(setting, environ={**setting.environ, **nodes}), "gpt", "--steps", "60")
    for stopped in (True, False):
        closing.show_next(job, run, False, stopped=stopped)  # type: ignore[arg-type]
        said = capfd.readouterr().err
        again = "next: WORKLOAD='gpt --steps 60' COMPOSE_FILE=compose/two-nodes.yaml docker compose up\n"
        assert (again in said) is stopped
        assert ("--standalone" in said) is not stopped, "with more steps it is another job"


def test_what_a_verdict_advises(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(closing, "as_typed", lambda *words: lines.append(as_typed(*words)) or lines[-1])
    logs = "`slipway logs '/checkpoints/a run' --rank 3`"
    advice = [*ADVICE.values(), *ADVICE_BY_WORD.values(), *(sign.advice for sign in Sign)]
    said = [closing.typed_outside(one.replace("{logs}", logs), job_in(setting, "gpt")) for one in advice]
    assert ("see the output above" in " ".join(said)) is setting.fleeting
    assert (" logs " in " ".join(said)) is not setting.fleeting
    assert len(lines) >= 2
    for words, environ in words_of(lines):
        require_possible(words, environ, setting)


def test_how_to_begin_anew_after_a_run_that_is_finished(setting: Setting, tmp_path: Path) -> None:
    (tmp_path / "gpt-2").mkdir()
    said = closing.begin_anew(job_in(setting, "gpt"), tmp_path / "gpt")
    assert f"{tmp_path}/gpt-3" in said, "a folder that is free"
    typed = re.search(r"with (SLIPWAY_RUN_DIR=.*docker compose up),", said)
    assert bool(typed) is (setting.runtime == "compose")
    for words, environ in words_of([typed[1]] if typed else []):
        assert words == ["docker", "compose", "up"]
        assert environ["COMPOSE_FILE"] == setting.files


@pytest.mark.parametrize("files", ["compose/compose.yaml", CPU, "compose/two-nodes.yaml"])
def test_the_compose_files_say_so(files: str) -> None:
    told: dict[str, str] = {}
    for file in ("compose/compose.yaml", *files.split(":")):
        told |= next(iter(yaml.load((ROOT / file).read_text(), Loose)["services"].values()))["environment"]
    typed = {
        "COMPOSE_FILE": "COMPOSE_TYPED_FILE",
        "COMPOSE_PROJECT_NAME": "COMPOSE_TYPED_PROJECT",
        "IMAGE": "COMPOSE_TYPED_IMAGE",
    }
    assert told["COMPOSE_FILES"] == files
    assert {name: told[name] for name in typed.values()} == {name: f"${{{of}:-}}" for of, name in typed.items()}
