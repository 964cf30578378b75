"""The command line as a whole: what is documented, examples, what a shell completes, words that are mistyped, colours, --debug."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete
from stand_ins import Slipway

from slipway.cli import cli
from slipway.cli.launching import RDZV, TORCHRUN
from slipway.inspect import status
from slipway.launch.attempt.stops import Stops
from slipway.launch.resolve.plan import DEBUG
from slipway.launch.resolve.settings import BY_NAME
from slipway.launch.run_directory.run_lock import RunLock
from slipway.options import WORKLOADS as KINDS
from slipway.options.command import click_command
from slipway.render.words import PLACES

PAGE = (Path(__file__).parents[3] / "docs/cli.md").read_text(encoding="utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")}
PROGRAMS = Path(sys.executable).parent


def below(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """A command and all below it, by the words that one types."""
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found
            yield from below(f"{name} {inner}", found)


COMMANDS = [
    *below("slipway", cli.slipway),
    *((f"slipway {name}", click_command(kind)) for name, kind in KINDS.items()),
]
each = pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])


def options_of(command: click.Command, *, hidden: bool = False) -> list[click.Option]:
    return [option for option in command.params if isinstance(option, click.Option) and option.hidden == hidden]


@each
def test_the_page_that_test_reference_compares_has_every_option_and_default(name: str, command: click.Command) -> None:
    section = SECTIONS[name]
    for option in options_of(command):
        spelled = [*option.opts, *option.secondary_opts]
        assert [word for word in spelled if not re.search(rf"(?<![\w-]){word}(?![\w-])", section)] == []
        default = option.get_default(click.Context(command))
        if isinstance(default, int | float | str) and default is not False:
            assert option.show_default or "default" in (option.help or ""), option.name


@each
def test_only_what_is_refused_is_hidden(name: str, command: click.Command) -> None:
    refused = set()
    if command.name in ("run", "plan", "check", "prove") or name.startswith("slipway render "):
        refused |= {*RDZV, *(word for names in TORCHRUN for word in names)}
    if name.startswith("slipway render "):
        refused |= {BY_NAME[place].option for place in (*PLACES, "WORLD_SIZE")} | {"--standalone"}
    assert {word for option in options_of(command, hidden=True) for word in option.opts} == refused


def test_the_same_is_called_the_same_everywhere() -> None:
    names: dict[str, set[str]] = {}
    for _, command in COMMANDS:
        for option in options_of(command):
            if option.name in ("as_json", "runs", "step"):
                names.setdefault(option.name, set()).add(option.opts[0])
    assert names == {"as_json": {"--json"}, "runs": {"--runs"}, "step": {"--step"}}


def understood(words: list[str]) -> None:
    """Parse words as a command does, without doing anything. Raises what the command line would tell."""
    command: click.Command | None = cli.slipway
    context = click.Context(cli.slipway, info_name="slipway", **cli.slipway.context_settings)
    while isinstance(command, click.Group):
        name, command, words = command.resolve_command(context, words)
        assert command
        if not isinstance(command, click.Group):
            command.make_context(name, words, parent=context)
        context = click.Context(command, info_name=name, parent=context)


@each
def test_help_ends_with_examples_that_are_understood(slipway: Slipway, name: str, command: click.Command) -> None:
    assert command.help
    assert [option.name for option in options_of(command) if not option.help] == []
    Path("tokens").mkdir()
    Path("tokens/manifest.json").touch()
    epilog = command.epilog or ""
    examples = re.findall("(?m)^Example: (.*)$", epilog)
    assert epilog.splitlines()[-1] == f"Example: {examples[-1]}"
    assert f"{name} " in f"{examples[0]} "
    assert [example for example in examples if len(example) > 98] == [], "wraps, and cannot be copied"
    for typed in (words for example in examples for words in re.findall(r"\bslipway ([^|>&)]+)", example)):
        words = cli.with_run(shlex.split(typed))
        if words[0] in ("run", "plan", "render"):
            answer = slipway(*words) if words[0] == "render" else slipway("plan", *words[1:])
            assert (answer.code, answer.err) == (0, "")
        else:
            understood(words)


@pytest.mark.parametrize("workload", KINDS)
def test_a_workload_takes_the_short_form_of_help_too(slipway: Slipway, workload: str) -> None:
    assert slipway(workload, "-h") == slipway(workload, "--help")


def offered(*words: str, typed: str = "") -> list[str]:
    """What a shell offers in place of `typed`, but for files and folders."""
    shell = BashComplete(cli.slipway, {}, "slipway", "_SLIPWAY_COMPLETE")
    return [item.value for item in shell.get_completions(list(words), typed) if item.type == "plain"]


@pytest.mark.parametrize(
    ("words", "typed", "offers"),
    [
        ([], "gp", ["gpt"]),
        ([], "re", ["render", "report"]),
        ([], "--v", ["--version"]),
        (["run"], "lin", ["linear"]),
        (["run", "--nproc-per-node", "2"], "lin", ["linear"]),
        (["run"], "--nn", ["--nnodes"]),
        (["run", "--backend"], "n", ["nccl"]),
        (["gpt", "--resume"], "", ["auto", "none"]),
        (["gpt"], "--pre", ["--precision", "--preset"]),
        (["gpt"], "--nproc", ["--nproc-per-node"]),
        (["gpt", "--preset"], "t", ["tiny"]),
        (["gpt"], "--preset=t", ["tiny"]),
        (["gpt", "--preset", "tiny", "--steps", "5"], "--head", ["--heads"]),
        (["run", "--backend", "gloo", "linear"], "--launch", ["--launcher"]),
        (["plan", "linear"], "--js", ["--json"]),
        (["render"], "s", ["slurm"]),
        (["render", "k8s", "--with"], "t", ["tensorboard"]),
        (["render", "slurm", "gpt"], "--part", ["--partition"]),
        (["data", "prepare"], "--tok", ["--tokenizer"]),
        (["completion"], "z", ["zsh"]),
        (["train.py"], "--nn", []),
        (["train.py"], "", []),
        (["run", "-m", "pkg"], "--nn", []),
    ],
)
def test_the_tab_key_offers_what_may_follow(words: list[str], typed: str, offers: list[str]) -> None:
    assert sorted(offered(*words, typed=typed)) == offers


def test_commands_and_workloads_may_stand_first() -> None:
    context = click.Context(cli.slipway)
    assert {*cli.slipway.list_commands(context), *KINDS} == set(offered())


@pytest.mark.parametrize("command", ["status", "stop", "logs", "report", "sample", "eval", "export"])
def test_runs_are_offered_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("runs/gpt-2", "runs/gpt-1", "runs/linear-1", "runs/none", "other/gpt-3"):
        Path(folder).mkdir(parents=True)
        if folder != "runs/none":
            Path(folder, "run.json").write_text("{}")
    assert offered(command) == ["gpt-1", "gpt-2", "linear-1"]
    assert offered(command, typed="g") == ["gpt-1", "gpt-2"]
    assert offered(command, "--runs", "other") == ["gpt-3"]
    Path(".env").write_text("SLIPWAY_RUNS=other\n")
    assert offered(command) == ["gpt-3"]
    Path(".env").write_text("SLIPWAY_RUNS: what is this")
    assert offered(command) == []


def typed_in_bash(*words: str, folder: Path) -> list[str]:
    """What bash offers for the last of these words, with the script in place."""
    script = 'eval "$(slipway completion bash)"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _slipway_completion slipway'
    environ = {"PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
    command = ["bash", "-c", f'{script} 2>/dev/null; printf "%s\\n" "${{COMPREPLY[@]}}"', "bash", "slipway", *words]
    done = subprocess.run(command, env=environ, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.split()


def test_bash_completes_for_real(tmp_path: Path) -> None:
    (tmp_path / "runs/gpt-1").mkdir(parents=True)
    (tmp_path / "runs/gpt-1/run.json").write_text("{}")
    assert typed_in_bash("gpt", "--pres", folder=tmp_path) == ["--preset"]
    assert typed_in_bash("status", "", folder=tmp_path) == ["gpt-1"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(slipway: Slipway, shell: str) -> None:
    answer = slipway("completion", shell)
    assert answer.code == 0
    assert f"_SLIPWAY_COMPLETE={shell}_complete" in answer.out
    assert answer.out == slipway("completion", SHELL=f"/usr/bin/{shell}").out
    assert "bash_complete" in slipway("completion", SHELL="/bin/dash").out


def test_importing_the_package_loads_nothing_else() -> None:
    """A script imports it in its first line, and gets torch when it asks for `resume`."""
    code = "import sys; before = {*sys.modules}; import slipway; print(*{*sys.modules} - before)"
    assert (
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "slipway\n"
    )


@pytest.mark.parametrize("start", ["slipway.cli.main()", "runpy.run_module('slipway', run_name='__main__')"])
def test_a_launcher_collects_garbage_once_everything_is_imported(start: str) -> None:
    code = f"import gc, runpy, slipway.cli, slipway.cli.cli; slipway.cli.cli.main = lambda: print(gc.isenabled(), gc.get_freeze_count() > 0); {start}"
    said = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True).stdout
    assert said == "True True\n"


def test_a_start_loads_nothing_for_completion() -> None:
    code = "import slipway.cli.cli, sys; sys.exit('click.shell_completion' in sys.modules or 'slipway.cli.reports' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_plan_loads_neither_libraries_nor_modules_that_it_does_not_use(tmp_path: Path) -> None:
    heavy = """
        asyncio torch numpy ssl subprocess logging difflib slipway.options.dataset slipway.protocol.replicas
        slipway.launch.run_directory.node_directory slipway.launch.verdict.ledger
    """
    code = f"""import sys; sys.argv[1:] = ["plan", "linear"]; from slipway.cli.cli import main
try: main()
finally: print("loaded:", *{{*sys.modules}} & {set(heavy.split())})"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.splitlines()[-1] == "loaded:"


@pytest.mark.parametrize(
    ("words", "code", "near"),
    [
        (["statsu"], 78, "status"),
        (["run", "gtp"], 78, "gpt"),
        (["plan", "gtp"], 78, "gpt"),
        (["render", "slurm", "gtp"], 78, "gpt"),
        (["data", "prepar"], 2, "slipway data prepare"),
        (["render", "slrum"], 2, "slipway render slurm"),
        (["check", "--lcal"], 2, "--local"),
        (["run", "--nnode", "2", "linear"], 2, "--nnodes"),
        (["plan", "--nproc-per-nodes", "2", "linear"], 2, "--nproc-per-node"),
        (["plan", "--jsn", "linear"], 2, "--json"),
        (["linear", "--epoch", "3"], 2, "--epochs"),
        (["plan", "linear", "--batchsize", "3"], 2, "--batch-size"),
        (["linear", "--nnode", "2"], 2, "--nnodes"),
        (["render", "k8s", "--que", "a"], 2, "--queue"),
        (["plan", "--backend", "ncl", "gpt"], 78, "nccl"),
        (["plan", "gpt", "--nproc-per-node", "Auto"], 78, "auto"),
        (["plan", "gpt", "--max-restarts", "atuo"], 78, "auto"),
    ],
)
def test_what_is_mistyped_is_answered_with_what_is_nearest(
    slipway: Slipway, words: list[str], code: int, near: str
) -> None:
    answer = slipway(*words)
    assert answer.code == code
    assert re.search(rf"(Did you mean (one of: .*)?'?|: it is ){near}", answer.err), answer.err


@pytest.mark.parametrize("words", [["sample", "absent"], ["eval", "absent"], ["export", "absent", "model"]])
def test_a_run_is_meant_by_path_or_name_also_where_its_model_is_used(slipway: Slipway, words: list[str]) -> None:
    answer = slipway(*words)
    assert answer.code == 78
    assert "There is no run absent, neither here nor in runs" in answer.err


def shown_on_a_terminal(*words: str, folder: Path, **environ: str) -> str:
    """What a command prints to a terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "slipway", *words]
    with subprocess.Popen(command, stdout=theirs, cwd=folder, env={"PATH": os.environ["PATH"], **environ}):
        os.close(theirs)
        text = b""
        try:
            while part := os.read(ours, 65_536):
                text += part
        except OSError:  # its end, on Linux
            pass
    os.close(ours)
    return text.decode()


def test_colours_are_for_terminals_whose_user_wants_them(tmp_path: Path, slipway: Slipway) -> None:
    logs = tmp_path / "runs/one/node-0/logs"
    logs.mkdir(parents=True)
    (logs / "rank-0.log").write_text("--- attempt 1, now ---\n2026-01-01T12:00:00.000Z hello\n")
    coloured = shown_on_a_terminal("logs", "runs/one", folder=tmp_path)
    assert "\x1b[" in coloured
    plain = shown_on_a_terminal("logs", "runs/one", folder=tmp_path, NO_COLOR="1")
    assert "\x1b[" not in plain
    assert plain.replace("\r", "") == re.sub(r"\x1b\[\d*m", "", coloured).replace("\r", "")
    assert "rank 0: hello" in plain
    assert "\x1b[" not in slipway("logs", "runs/one").out


def test_debug_gives_workers_what_the_user_did_not(slipway: Slipway) -> None:
    def env(*words: str, **environ: str) -> dict[str, str]:
        answer = slipway("plan", "--json", "linear", *words, **environ)
        given: dict[str, str] = json.loads(answer.out)["torchrun"]["env"]
        return {name: given[name] for name in DEBUG if name in given}

    assert env() == env(SLIPWAY_DEBUG="0") == {}
    assert env("--debug") == env(SLIPWAY_DEBUG="1") == DEBUG
    for name in DEBUG:
        assert env("--debug", **{name: "mine"}) == {other: DEBUG[other] for other in DEBUG if other != name}
    Path(".env").write_text("SLIPWAY_DEBUG=1\nNCCL_DEBUG=WARN\n")
    assert env() == DEBUG | {"NCCL_DEBUG": "WARN"}


def test_a_run_to_stop_whose_variable_is_not_set_is_not_the_newest(slipway: Slipway) -> None:
    newest = Path("runs/gpt-1")
    newest.mkdir(parents=True)
    (newest / "run.json").write_text('{"workload": "gpt", "started": 1}')
    told = "slipway: RUN is missing. Name the run to stop; `slipway runs` lists them.\n"
    for words in (["stop", ""], ["stop"]):
        answer = slipway(*words)
        assert (answer.code, answer.err) == (78, told)
    (newest / "node-0").mkdir()
    with Stops() as stops, RunLock(newest / "node-0/launcher.json", print, stops):
        assert "To stop the one that runs, type: slipway stop gpt-1" in slipway("stop").err


def test_a_container_without_a_volume_for_runs_is_told_what_to_mount(
    slipway: Slipway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "read_mounts", lambda: {Path("/"): "overlay"})
    assert "Nothing is mounted" not in slipway("logs").err
    answer = slipway("logs", "gpt-1", SLIPWAY_IMAGE="0.1.0")
    assert (
        answer.code,
        'Nothing is mounted at /checkpoints: add -v "$PWD/runs:/checkpoints" to docker run' in answer.err,
    ) == (
        78,
        True,
    )


def test_who_types_train_means_run(slipway: Slipway) -> None:
    assert "Did you mean run?" in slipway("train").err


@pytest.mark.parametrize("words", [[], ["data"], ["render"]])
def test_the_help_of_a_group_describes_each_command_in_a_whole_sentence(slipway: Slipway, words: list[str]) -> None:
    shown = slipway(*words, "--help").out
    listed = shown.partition("Commands:\n")[2].split("\n\n")[0]
    sentences = re.split(r"\n  (?=\S)", "\n" + listed)[1:]
    assert len(sentences) >= 2
    assert [one for one in sentences if not one.endswith(".") or one.endswith("...")] == []


@pytest.mark.parametrize("words", [["--help"], ["gpt", "--help"], ["data"], ["status", "-h"]])
def test_help_is_whole_without_docstrings(words: list[str]) -> None:
    def ask(**environ: str) -> str:
        command = [sys.executable, "-m", "slipway", *words]
        done = subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    assert ask(PYTHONOPTIMIZE="2") == ask()
