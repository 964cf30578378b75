"""A newcomer's first hour, on a terminal of 80 columns and 24 rows: what he types, what he sees, what he pastes from it."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from emulator import Emulator
from next_lines import next_commands
from ports import take_ports
from terminals import Terminal

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / ".venv/bin"
COLUMNS = 80
# `make run`, but for its 1000 steps; as many lines are shown, and without an engine it trains in .venv.
SHORT = "--steps 20 --log-every 1 --eval-every 10 --save-every 10 --eval-samples 64"
WITHOUT_ENGINE = {"DOCKER_HOST": "unix:///nonexistent"}
Open = Callable[..., Terminal]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Open]:
    """Opens a terminal in a folder, by default the test's own, with a program in it that is killed at the end."""
    opened: list[Terminal] = []

    def start(
        *command: str, folder: Path = tmp_path, size: tuple[int, int] = (24, COLUMNS), **variables: str
    ) -> Terminal:
        opened.append(Terminal(folder, *command, size=size, **variables))
        return opened[-1]

    yield start
    for each in opened:
        each.process.kill()
        each.process.wait()


def type_in(command: str, folder: Path) -> str:
    """What a shell in `folder` answers to a pasted command; it must be well."""
    words = ["bash", "-euo", "pipefail", "-c", command]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLIPWAY_")} | {
        "PYTHONWARNINGS": "ignore"
    }
    done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.pull
@pytest.mark.timeout(1200)  # three trainings and more, on a machine that does other things
def test_make_run_is_calm_and_everything_that_it_tells_to_type_works(terminal: Open) -> None:
    shown = terminal("make", "--no-print-directory", "run", f"ARGS={SHORT}", folder=ROOT, **WITHOUT_ENGINE)
    assert shown.end() == 0, shown.text
    screen = Emulator(COLUMNS).show(shown.text)
    run = re.search(r"results are in (runs/\S+)", shown.text)
    assert run, shown.text
    try:
        assert screen.wrapped == [], "no line is longer than the screen"
        assert len(screen.lines) < 40, "\n".join(screen.rows)
        assert not any(re.search(r"\d% \|", row) for row in screen.rows), "of the bar nothing is left"
        losses = [row for row in screen.rows if re.search(r"step \d+/20  loss", row)]
        assert 4 <= len(losses) <= 6, "a few of the step lines stay on the screen"
        log = (ROOT / run[1] / "node-0/logs/rank-0.log").read_text()
        assert len(re.findall(r"step \d+/20  loss", log)) == 20, "and the log has all of them"
        assert "slipway: no GPU visible (no NVIDIA driver), training on CPU" in screen.rows
        assert re.search(r"nats per byte.* bits per byte", " ".join(screen.rows))
        metrics = [json.loads(line) for line in (ROOT / run[1] / "metrics.jsonl").read_text().splitlines()]
        assert metrics[-1]["step"] == 20
        assert metrics[-1]["val_loss"] < 5.55, "as if all bytes were equally likely"
        record = json.loads((ROOT / run[1] / "run.json").read_text())
        assert (record["workload"], record["nodes"], record["processes_per_node"]) == ("gpt", 1, 2)
        sample = screen.rows.index("[0:0] a sample of what it writes:")
        assert screen.rows[sample + 1].startswith("[0:0]   def ")
        assert sum("┤" in row for row in screen.rows) == 5, "the curve"
        commands = next_commands(screen.rows)
        assert [re.sub(r"\\\n", "", command).split()[1] for command in commands] == ["report", "sample", "gpt"]
        report, sample_again, longer = commands
        type_in(report, ROOT)
        assert (ROOT / run[1] / "report.html").is_file()
        assert type_in(sample_again, ROOT).startswith("def ")
        assert "step 40/40" in type_in(longer, ROOT)
    finally:
        shutil.rmtree(ROOT / run[1])


@pytest.mark.parametrize("columns", [60, 120])
def test_a_bar_stays_in_its_row_whatever_the_width(terminal: Open, columns: int) -> None:
    words = ("-m", "slipway", "linear", "--steps", "200", "--log-every", "20")
    shown = terminal(str(PROGRAMS / "python"), *words, size=(24, columns))
    assert shown.end() == 0, shown.text
    assert len(re.findall(r"\d+% \|", shown.text)) > 1, "a bar was drawn"
    screen = Emulator(columns).show(shown.text)
    assert screen.wrapped == []
    assert len(screen.lines) < 40, "\n".join(screen.rows)


def test_of_two_nodes_each_has_a_calm_terminal(terminal: Open) -> None:
    words = (str(PROGRAMS / "python"), "-m", "slipway", "linear", "--steps", "100", "--nproc-per-node", "1")
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(take_ports(2))}
    nodes = [terminal(*words, **place, RANK=str(rank)) for rank in (0, 1)]
    for node in nodes:
        assert node.end() == 0, node.text
        screen = Emulator(COLUMNS).show(node.text)
        assert screen.wrapped == []
        assert len(screen.lines) < 40, "\n".join(screen.rows)
    assert "% |" in nodes[0].text
    assert "next: " not in nodes[1].text


MISTAKES = [
    ("gpt --batch-size 15", "--batch-size 15 counts all processes, and is not a multiple of 2 processes × --accumulate 1."),
    ("gpt --precision fp16", "--precision fp16 needs a GPU; on a CPU type --precision bf16 or --precision fp32."),
    ("gpt --dataset file:empty.txt", "empty.txt is empty; there is no text in it."),
    ("gpt --resume nothing", "--resume nothing: there is no such run or snapshot."),
    ("gpt --resume bare", "--resume bare is neither a snapshot nor a run directory with one."),
]  # fmt: skip


@pytest.mark.parametrize(("words", "said"), MISTAKES)
def test_a_mistake_that_the_launcher_can_know_is_said_once_before_torch_starts(
    terminal: Open, tmp_path: Path, words: str, said: str
) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "bare").mkdir()
    shown = terminal(str(PROGRAMS / "python"), "-m", "slipway", *words.split(), NPROC_PER_NODE="2")
    assert shown.end() == 78, shown.text
    assert " ".join(shown.text.split()).count(said) == 1  # it is wrapped to the terminal's width
    assert ".py" not in shown.text
    assert "where" not in shown.text
    assert not (tmp_path / "runs").exists(), "nothing was started"


def test_a_mistake_on_two_nodes_is_nobodys_lost_peer(terminal: Open) -> None:
    words = (str(PROGRAMS / "python"), "-m", "slipway", "linear", "--batch-size", "3", "--nproc-per-node", "1")
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(take_ports(2))}
    for node in [terminal(*words, **place, RANK=str(rank)) for rank in (0, 1)]:
        assert node.end() == 78, node.text
        assert node.text.count("× --accumulate 1. Type --batch-size 2 or 4.") == 1
        assert "went away" not in node.text
