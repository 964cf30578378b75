"""`slipway report`: one page that holds everything, needs nothing, and believes nothing it reads."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from training_jobs import Run

from slipway.cli.reports import report_runs
from slipway.protocol.errors import CONFIGURATION, LaunchError
from slipway.train.observe.sinks import Charts

Start = Callable[..., Run]
GPT = (
    "--layers", 1, "--heads", 1, "--embed", 16, "--context", 16, "--batch-size", 4, "--warmup", 0, "--steps", 10,
    "--eval-samples", 9, "--log-every", 2, "--eval-every", 5, "--sample-tokens", 12,
)  # fmt: skip
EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)>&\"'"
VOID = {"meta", "input", "img", "link", "br"}


class Page(HTMLParser):
    """What a browser would find: elements with attributes, the text of each table's cells, whether tags are balanced."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.text = path.read_text()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.sections: dict[str, list[list[str]]] = {}
        self.section, self.cells, self.styles = "", [""], ""
        self.feed(self.text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.tags.append((tag, values))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "section":
            self.section = values.get("id") or values["class"]
        if tag == "tr":
            self.sections.setdefault(self.section, []).append([])
        if tag in ("th", "td"):
            self.sections[self.section][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self.open or "th" in self.open:
            self.sections[self.section][-1][-1] += f"|{data.strip()}" if self.open[-1] == "small" else data

    @property
    def titles(self) -> list[str]:
        """The charts' titles."""
        return re.findall(r'class="title plot_title"[^>]*>([^<]*)<', self.text)

    def rows(self, section: str) -> dict[str, list[str]]:
        """The rows of a section's table by their first cells."""
        return {row[0]: row[1:] for row in self.sections[section]}


def write(*words: object) -> Result:
    return CliRunner().invoke(report_runs, [str(word) for word in words])


def page_of(*words: object, at: Path) -> Page:
    result = write(*words, "--out", at)
    assert result.exit_code == 0, result.exception
    return Page(at)


def launched(run: Run, attempts: Sequence[tuple[str, str]] = (("finished", "20 steps"),), **more: object) -> None:
    """Add what the launcher would have written into the run directory."""
    tries = [
        {
            "number": number,
            "outcome": {
                "node_rank": 0, "host": "gpu07", "word": word, "rank": 3, "evidence": evidence, "time": 1.7e9 + number,
            },
            "after": 10 * number,
        }
        for number, (word, evidence) in enumerate(attempts, 1)
    ]  # fmt: skip
    record = {"workload": "gpt", "arguments": ["--lr", "1"], "started": 1.7e9, "attempt": len(tries), "nodes": 2}
    (run.folder / "run.json").write_text(json.dumps(record | {"processes_per_node": 4, "version": "1.2"} | more))
    last = tries[-1]["outcome"]
    verdict = {"word": last["word"], "code": 0, "first": last, "attempt": len(tries), "attempts": tries}  # type: ignore[index]
    seconds = {"training": 75.0, "starting": 25.0}
    verdict["ledger"] = {"seconds": seconds, "attempts": len(tries), "until": 1.7e9, "waited": {"3": 6.1, "5": 0.2}}
    differences = [{"time": 1.7e9, "step": 4, "nodes": ["node 1 (gpu08)"], "text": f"rank 7 differs in {EVIL}"}]
    (run.folder / "replicas.json").write_text(json.dumps({"differences": differences}))
    (run.folder / "outcome.json").write_text(json.dumps(verdict))


@pytest.mark.core
def test_a_page_about_a_run_shows_every_metric_and_how_it_ended(train: Start) -> None:
    run = train("gpt", *GPT)
    launched(run, [("peer", "lost node 1"), ("finished", "10 steps")])
    result = write(run.folder)
    assert result.exit_code == 0, result.exception
    page = Page(run.folder / "report.html")
    names = {name for line in run.metrics for name in line} - {"time", "step"}
    assert {"loss", "lr", "grad_norm", "tokens_per_second", "memory_peak_gib", "val_loss", "bits_per_byte"} <= names
    assert set(page.titles) == names
    assert page.titles[:2] == ["loss", "val_loss"]
    about = page.rows("overview")
    assert about["topology"] == ["2 nodes × 4 = 8 processes"]
    assert (about["state"], about["verdict"], about["attempts"]) == (["finished"], ["10 steps"], ["2"])
    assert about["where"] == ["node 0 (gpu07), rank 3"]
    assert about["lost time"] == ["waiting for rank 3: 6.1 %"]
    assert about["replicas"][0].startswith(
        "the replicas differed at step 4, 2023-11-14 22:13:20 UTC, node 1 (gpu08): rank 7 differs"
    )
    tries = page.sections["attempts"][1:]
    assert [row[0] for row in tries] == ["1", "2"]
    assert [row[2] for row in tries] == ["a peer was lost, or workers hung: lost node 1", "finished: 10 steps"]
    bars = [
        (values["x"], values["width"])
        for tag, values in page.tags
        if tag == "rect" and "x" in values and "fill" in values.get("style", "")
    ]
    assert bars == [("0.00", "250.00"), ("250.00", "750.00")]
    assert "<title>training: 75.0 s, 75.0%</title>" in page.text
    assert page.rows("results")["val_loss"] == [f"{run.metrics[-1]['val_loss']:.6g}"]
    assert page.rows("settings")["layers"] == ["1|command line"]
    assert page.rows("settings")["batch-size"] == ["4|command line"]
    assert "seed" not in page.rows("settings"), "it has its default"
    assert "No curves" not in page.text
    assert {"tokens/s, median", "tokens/s, best"} <= set(page.rows("throughput"))
    assert "def " in page.text[page.text.index('class="samples"') :]
    assert f"10: {run.metrics[-1]['val_loss']:.4g}" in page.text  # under the pointer


def test_several_runs_are_laid_over_each_other_and_their_differences_marked(train: Start, tmp_path: Path) -> None:
    options = ("--dataset-size", 128, "--steps", 8, "--log-every", 2)
    runs = [train("linear", *options, "--lr", lr, folder=f"lr-{lr}") for lr in (0.1, 0.5)]
    page = page_of(*(run.folder for run in runs), at=tmp_path / "both.html")
    assert page.sections["overview"][0] == ["", "lr-0.1", "lr-0.5"]
    loss = page.text[page.text.index(">loss</text>") - 9000 :]
    assert loss.index("color-0") < loss.index("color-1")
    assert {f"lr-{lr}\n2: " in page.text for lr in (0.1, 0.5)} == {True}
    marked = re.findall(r'<tr class="differs"><th>([\w-]+)</th>', page.text)
    assert marked == ["lr"]
    assert page.rows("settings")["lr"] == ["0.1|command line", "0.5|command line"]
    boxes = [values["id"] for tag, values in page.tags if tag == "input"]
    assert boxes == ["show-0", "show-1"]
    assert all(f"#{box}:not(:checked)) .runs .color-{number}" in page.text for number, box in enumerate(boxes))


def test_a_run_without_curves_says_why_and_what_it_ran_on_is_shown(tmp_path: Path) -> None:
    about = {"workload": "gpt", "device": "8 × NVIDIA H100", "torch": "2.10.0+cu128", "image": "0.1.0-cuda12-abc"}
    for name, points in (("short", 1), ("none", 0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps(about))
        lines = [json.dumps({"time": 1, "step": step, "loss": 2.5}) + "\n" for step in range(points)]
        (tmp_path / name / "metrics.jsonl").write_text("".join(lines))
    page = page_of(tmp_path / "short", tmp_path / "none", at=tmp_path / "page.html")
    assert "short: No curves: each metric was recorded only once. For a curve, type --log-every" in page.text
    assert "none: No curves: no metrics were recorded." in page.text
    assert {name: page.rows("overview")[name][0] for name in ("device", "torch", "image")}.items() <= about.items()


def test_the_page_refers_to_nothing_outside_itself(train: Start, tmp_path: Path) -> None:
    run = train("gpt", *GPT)
    charts = Charts(run.folder / "tensorboard", 10)
    charts.write_picture(11, "mistakes", torch.zeros(3, 8, 8, dtype=torch.uint8))
    charts.close()
    page = page_of(run.folder, at=tmp_path / "page.html")
    without_names = re.sub(r' xmlns(:\w+)?="[^"]*"', "", page.text)
    assert re.findall(r"https?:|//[a-z]+\.|@import|url\(", without_names) == []
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "link", "iframe", "object", "embed", "base", "form"}
    references = [values[name] for _, values in page.tags for name in ("src", "href", "xlink:href") if name in values]
    assert [reference[:26] for reference in references] == ["data:image/png;base64,iVBO"]
    assert [
        values["content"] for tag, values in page.tags if values.get("http-equiv") == "Content-Security-Policy"
    ] == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]


def test_nothing_that_a_run_says_becomes_markup(train: Start, tmp_path: Path) -> None:
    run = train("linear", "--dataset-size", 128, "--steps", 8, "--log-every", 2, folder=f"<b>{EVIL.replace('/', '')}")
    launched(run, [("failed", EVIL)], workload=EVIL, arguments=[EVIL], version=EVIL)
    options = json.loads((run.folder / "options.json").read_text())
    options |= {EVIL: EVIL, "lr": EVIL, "sources": {"lr": EVIL, EVIL: EVIL}}
    (run.folder / "options.json").write_text(json.dumps(options))
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps({"time": 1, "step": step, EVIL: step}) + "\n" for step in (9, 10))
    point = {"bytes": 8, "latency_us": {"mean": 1, "min": 1, "max": 1}, "algorithm_gb_per_second": 1}
    found = {"results": [point | {"collective": EVIL, "bus_gb_per_second": 1}], "skipped": {EVIL: EVIL}}
    (run.folder / "allreduce.json").write_text(json.dumps(found | {"slowest": {"rank": EVIL}, "backend": EVIL}))
    charts = Charts(run.folder / "tensorboard", 8)
    charts.write_text(9, "sample", f"</pre>{EVIL}")
    charts.close()
    page = page_of(run.folder, at=tmp_path / "page.html")
    assert not {"script", "b"} & {tag for tag, _ in page.tags}
    assert [values for tag, values in page.tags if tag == "img" or "onerror" in values] == []
    assert page.rows("settings")[EVIL] == [f"{EVIL}|{EVIL}"]
    assert EVIL in page.rows("overview")["arguments"][0].replace("'\"'\"'", "'")
    assert page.text.count("&lt;script&gt;") > 12


def test_damaged_files_cost_what_is_damaged_and_nothing_else(train: Start, tmp_path: Path) -> None:
    run = train("linear", "--dataset-size", 128, "--steps", 8, "--log-every", 2)
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    torn = [
        '{"time": 1, "st',
        "null",
        "[]",
        '{"step": "two", "time": 3}',
        "\x00\x00",
        '{"time": NaN, "step": 2, "loss": 1}',
        '{"time": 9, "step": 2, "loss": NaN}',
        f'{{"time": 9, "step": 2, "loss": 1{"0" * 400}}}',
    ]
    (run.folder / "metrics.jsonl").write_text("\n".join([lines[0], *torn, *lines[1:], lines[-1][:20]]))
    for name in ("run.json", "outcome.json", "options.json", "allreduce.json", "comparison.json"):
        (run.folder / name).write_text(
            '{"results": [3, {"bytes": "x"}], "first": {"time": "x"}, "attempts": [7, {"outcome": 3}],'
        )
    for file in (run.folder / "tensorboard").iterdir():
        file.write_bytes(b"\x01" * 100)
    page = page_of(run.folder, at=tmp_path / "page.html")
    assert page.rows("overview")["damaged lines"] == ["7"]
    assert "loss" in page.titles
    for name in ("run.json", "outcome.json", "options.json", "allreduce.json", "comparison.json"):
        text = (run.folder / name).read_text()
        (run.folder / name).write_text(f'{text[:-1]}, "word": "failed", "sources": 3, "weights": [[1]]}}')
    assert page_of(run.folder, at=tmp_path / "page.html").rows("overview")["state"] == ["the workload failed"]


def test_a_restart_takes_pictures_back_without_a_word_of_tensorboard(
    train: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = train("linear", "--dataset-size", 128, "--steps", 8, "--log-every", 2)
    for step, after in ((10, 8), (6, 5)):
        charts = Charts(run.folder / "tensorboard", after)
        charts.write_picture(step, f"at-{step}", torch.zeros(3, 8, 8, dtype=torch.uint8))
        charts.close()
    page = page_of(run.folder, at=tmp_path / "page.html")
    assert ("at-6" in page.text, "at-10" in page.text) == (True, False)
    assert "out of order" not in caplog.text
    logging.getLogger("tensorboard").warning("Detected out of order event.step")
    assert "out of order" in caplog.text, "it is quiet for the reading alone"


def test_collectives_are_shown_with_plots_and_table(train: Start, tmp_path: Path) -> None:
    runs = [train("allreduce", folder=name) for name in ("one", "two")]
    for number, run in enumerate(runs, 1):
        values = json.loads((run.folder / "allreduce.json").read_text())
        values["results"] = [
            {
                "collective": name, "bytes": 1024 * 4**power,
                "latency_us": {"mean": 20 * 2**power, "min": 10, "max": 9000},
                "algorithm_gb_per_second": 1.5 * number, "bus_gb_per_second": 1.25,
            }
            for name in ("all-reduce", "broadcast") for power in range(4)
        ]  # fmt: skip
        values["slowest"] = {"rank": 1, "host": "gpu08", "text": "12 ms for its own work"}
        (run.folder / "allreduce.json").write_text(json.dumps(values))
    alone = page_of(runs[0].folder, at=tmp_path / "alone.html")
    assert alone.titles == ["bus bandwidth", "latency"]
    assert alone.sections["allreduce"][1] == ["all-reduce", "1 KiB", "20 µs", "10 µs", "9 ms", "1.5 GB/s", "1.25 GB/s"]
    assert "Slowest rank: 1 (gpu08): 12 ms for its own work" in alone.text
    both = page_of(*(run.folder for run in runs), at=tmp_path / "both.html")
    assert both.titles == [
        f"{name}: {what}" for name in ("all-reduce", "broadcast") for what in ("bus bandwidth", "latency")
    ]
    assert "two\n16 KiB: 80 µs" in both.text


def test_the_comparison_of_linear_is_shown(train: Start, tmp_path: Path) -> None:
    run = train("linear", "--dataset-size", 128, "--steps", 8, "--compare")
    page = page_of(run.folder, at=tmp_path / "page.html")
    rows = page.rows("comparison")
    assert rows["weight"] == ["1 process", "1 process, no DDP", "difference"]
    assert "layer.weight[0]" in rows
    assert (
        rows["largest difference"][2] == f"{json.loads((run.folder / 'comparison.json').read_text())['difference']:.1e}"
    )


def test_a_folder_that_is_no_run_is_refused_and_the_missing_is_named(tmp_path: Path) -> None:
    for words, says in (
        ([tmp_path], "is not a run: it contains none of run.json, options.json, metrics.jsonl"),
        ([tmp_path / "absent", "--runs", tmp_path], "There is no run"),
    ):
        error = write(*words).exception
        assert isinstance(error, LaunchError)
        assert error.code == CONFIGURATION
        assert says in str(error)
    assert list(tmp_path.iterdir()) == []


def test_only_a_page_of_ours_is_overwritten(train: Start, tmp_path: Path) -> None:
    run = train("linear", "--dataset-size", 128, "--steps", 8)
    mine = tmp_path / "mine.html"
    mine.write_text("<p>my own notes")
    error = write(run.folder, "--out", mine).exception
    assert isinstance(error, LaunchError)
    assert "is not overwritten" in str(error)
    assert mine.read_text() == "<p>my own notes"
    first = page_of(run.folder, at=tmp_path / "page.html").text
    assert page_of(run.folder, at=tmp_path / "page.html").text.split("<footer>")[0] == first.split("<footer>")[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.html", "page.html", "run"]


def test_a_page_is_made_without_torch(train: Start) -> None:
    run = train("gpt", *GPT)
    code = "import sys; from slipway.cli.reports import report_runs; report_runs([sys.argv[1]], standalone_mode=False); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, run.folder], check=True)
    assert Page(run.folder / "report.html").titles


def test_runs_of_the_same_name_are_told_apart(train: Start, tmp_path: Path) -> None:
    runs = [train("linear", "--dataset-size", 64, "--steps", 2, folder=f"{place}/run") for place in ("here", "there")]
    page = page_of(*(run.folder for run in runs), at=tmp_path / "page.html")
    assert page.sections["overview"][0] == ["", "here/run", "there/run"]
