"""What the pages say to type can be typed: commands, options, values, settings, make targets and files are there.

This holds for blocks that need a GPU or a cluster, too: nothing is started here, and torch is not needed. A block
that another test runs is left to it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping
from itertools import dropwhile, pairwise
from pathlib import Path

import click
import pytest
from blocks import PAGES, ROOT, read_blocks, read_commands

from slipway.cli.cli import slipway
from slipway.cli.launching import take_options
from slipway.launch.resolve.catalog import is_program, unknown_name
from slipway.launch.resolve.settings import BY_NAME, SETTINGS
from slipway.launch.resolve.sources import Sources
from slipway.options import WORKLOADS, parse
from slipway.protocol.errors import LaunchError
from slipway.protocol.mistake import ConfigurationError

pytestmark = pytest.mark.core

NAMES = {name for setting in SETTINGS for name in (setting.name, *setting.aliases)}
SERVICES = {
    name for file in (ROOT / "compose").glob("*.yaml") for name in re.findall(r"^  (\w+):", file.read_text(), re.M)
}
FOLDERS = tuple(f"{name}/" for name in ("bench", "compose", "docs", "entrypoint", "examples", "images", "k8s", "slurm"))
KEYWORDS = {"if", "then", "else", "elif", "do", "while", "until", "!", "{", "exec", "export"}
ASSIGNED = re.compile(r"(\w+)=(.*)", re.DOTALL)
IMAGE = re.compile(r"(?:\S+/)?slipway:[\w.-]+|IMAGE")
PROMPT = re.compile(r"^\$ (.+)$", re.MULTILINE)  # what a shown session typed


@pytest.fixture(autouse=True)
def anywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty folder and environment."""
    monkeypatch.chdir(tmp_path)
    for name in set(os.environ) - {"PATH", "HOME", "PYTEST_CURRENT_TEST"}:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if read_blocks(page) or PROMPT.search(page.read_text())],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_what_a_page_says_to_type_can_be_typed(page: Path) -> None:
    typed = [(block.line, block.text) for block in read_blocks(page) if not block.test]
    text = page.read_text()
    typed += [(text.count("\n", 0, found.start()) + 1, found[1]) for found in PROMPT.finditer(text)]
    assert [f"line {line}: {mistake}" for line, block in typed for mistake in mistakes(block)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_block_of_a_page_is_left_out(page: Path) -> None:
    blocks, text = read_blocks(page), page.read_text()
    assert len(blocks) == len(re.findall(r"^\s*```\s*(?:sh|bash|shell)\b", text, re.MULTILINE)), "write ```sh"
    elsewhere = {block.test for block in blocks if block.test}
    assert [test for test in elsewhere if page.name not in (ROOT / test).read_text()] == []


@pytest.mark.parametrize(
    ("typed", "mistake"),
    [
        ("slipway gpt 'no end", "unexpected EOF"),
        ("slipway trane gpt", "'trane'"),
        ("slipway run gtp", "'gtp'"),
        ("slipway data fetsh acme/text", "'fetsh'"),
        ("slipway gpt --stepps 20 | tee log", "--stepps"),
        ("slipway plan \\\n    --nproc-per-node 2 gpt --preset huge", "'huge'"),
        ("echo first; WORLD_SIZE=two slipway gpt > log 2>&1", "WORLD_SIZE=two"),
        ("slipway logs --tail 0  # the last", "--tail"),
        ("docker run --rm --network slipway -e RANK=-1 slipway:dev linear", "RANK=-1"),
        ("docker compose run --rm -v .:/workspace train samplee RUN", "'samplee'"),
        ("kubectl exec job/slipway -- slipway status --lokal gpt", "--lokal"),
        ("sbatch --nodes=2 slurm/train.sbatch gpt --presett tiny", "--presett"),
        ("srun --nodes=2 apptainer exec --nv image.sif /opt/slipway/bin/slipway run gpt --hang 3", "--hang"),
        ("slipway render k8s --image registry.example/team/slipway:latest gpt | kubectl apply -f -", "latest"),
        ("slurm/setupp.sh /shared", "there is no slurm/setupp.sh"),
        ("kubectl apply -k k8s/components", "there is no k8s/components/kustomization.yaml"),
        ("make imagee", "imagee"),
        ("make push REPO=registry.example/team/slipway", "REPO"),
        ("export SLIPWAY_RESTARTS=3", "SLIPWAY_RESTARTS"),
    ],
)
def test_a_mistake_is_found(typed: str, mistake: str) -> None:
    [found] = mistakes(typed)
    assert mistake in found


def mistakes(text: str) -> list[str]:
    """A sentence for each mistake in a piece of shell."""
    parsed = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    if parsed.returncode:
        return [parsed.stderr]
    commands = list(read_commands(text.replace("$PWD", str(Path.cwd()))))
    return [f"{shlex.join(words)}: {mistake}" for words in commands for mistake in mistakes_of_command(words)]


def mistakes_of_command(words: list[str]) -> Iterator[str]:
    environ = assigned(words)
    yield from (f"{name} is no setting" for name in environ if name.startswith("SLIPWAY_") and name not in NAMES)
    words = list(dropwhile(lambda word: word in KEYWORDS or ASSIGNED.fullmatch(word), words))
    for before, word in pairwise(["", *words]):
        file = f"{word}/kustomization.yaml" if before == "-k" else word
        if word.startswith(FOLDERS) and not (ROOT / file).exists():
            yield f"there is no {file}"
    if words[:1] == ["make"]:
        yield from mistakes_of_make(words[1:])
    try:
        if (given := words_of_slipway(words)) and given != ["$@"]:  # of a function, whose caller names the command
            call(given, environ)
    except click.exceptions.Exit:
        pass  # it was asked for help
    except (click.ClickException, LaunchError) as error:
        yield str(error)


def assigned(words: list[str]) -> dict[str, str]:
    return {found[1]: found[2] for word in words if (found := ASSIGNED.fullmatch(word))}


def mistakes_of_make(words: list[str]) -> Iterator[str]:
    """What `make` would say; and the variables that neither a recipe nor a script that it calls would read."""
    done = subprocess.run(["make", "--dry-run", "--always-make", *words], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        yield done.stderr
    scripts = [(ROOT / name).read_text() for name in set(re.findall(r"[\w/]+\.sh\b", done.stdout))]
    scripts += [
        (ROOT / name).read_text() for name in re.findall(r"^source (\S+\.sh)$", "\n".join(scripts), re.MULTILINE)
    ]
    for name, value in assigned(words).items():
        if value not in done.stdout and not re.search(rf"\$\{{?{name}\b", "".join(scripts)):
            yield f"nothing reads {name}"


def words_of_slipway(words: list[str]) -> list[str]:
    """What a command gives to slipway, which may stand behind srun or kubectl exec, in a container, or in a job's file."""
    match words:
        case ["docker", "compose", *rest] if "run" in rest:
            return behind(rest, SERVICES.__contains__)
        case ["docker", "run", *rest]:
            return behind(rest, lambda word: bool(IMAGE.fullmatch(word)))
        case ["docker", "network", *_]:
            return []
        case ["kubectl", *rest]:
            words = behind(rest, "--".__eq__)
        case ["sbatch", *rest]:
            job = behind(rest, lambda word: Path(word).name == "train.sbatch")
            return ["run", *job] if job else []
    return behind(words, lambda word: word == "slipway" or word.endswith("/bin/slipway"))


def behind(words: list[str], meant: Callable[[str], bool]) -> list[str]:
    return list(dropwhile(lambda word: not meant(word), words))[1:]


def call(words: list[str], environ: Mapping[str, str]) -> None:
    """Raise what the command line would raise, but for files that are not here. Nothing is started: `render` only prints."""
    command, context = understand(slipway, ["run", *words] if words[0] in WORKLOADS or is_program(words[0]) else words)
    given, program = context.params, context.params.get("words")
    if program and program[0] in WORKLOADS:
        late, rest = take_options(program[1:], [each for each in command.params if isinstance(each, click.Option)])
        given = given | late
        with contextlib.suppress(ConfigurationError):  # it names what is not there
            parse(WORKLOADS[program[0]], rest)
    elif program and not is_program(program[0]):
        raise unknown_name(program[0])
    options = {name: str(value) for name, value in given.items() if name in BY_NAME and value is not None}
    for setting in SETTINGS:
        Sources(options, environ, {}).parsed(setting.name)
    if words[0] == "render" and "$" not in "".join(words):
        with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())):
            command.invoke(context)


def understand(
    command: click.Command, words: list[str], above: click.Context | None = None
) -> tuple[click.Command, click.Context]:
    """The command that words name, within its groups, with its options as it read them."""
    if not isinstance(command, click.Group):
        return command, command.make_context(command.name, words, above)
    context = click.Context(command, above, command.name, **command.context_settings)
    _, below, rest = command.resolve_command(context, words)
    assert below
    return understand(below, rest, context)
