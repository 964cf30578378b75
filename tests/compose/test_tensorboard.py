"""TensorBoard as compose starts it, looked at in a browser."""

from __future__ import annotations

import json
import re
import urllib.request

import pytest
from compose_projects import ROOT, Project
from needs import CHROMIUM
from playwright.sync_api import Page, expect, sync_playwright
from waiting import wait_until

ARGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)


def test_it_can_change_nothing(trained: Project) -> None:
    for folder, message in (("/checkpoints", "Read-only file system"), ("/workspace", "Read-only file system")):
        assert message in trained("exec", "-T", "tensorboard", "touch", f"{folder}/mine", code=1)


def test_it_says_where_to_look_and_listens_to_this_machine_only(trained: Project) -> None:
    (bound,) = trained.container("tensorboard")["NetworkSettings"]["Ports"].values()
    assert [address["HostIp"] for address in bound] == ["127.0.0.1"]
    trained.wait_for_text("tensorboard", f"at http://localhost:{bound[0]['HostPort']}/")


@pytest.mark.needs("browser")
def test_its_scalars_page_draws_the_loss(trained: Project) -> None:
    (bound,) = trained.container("tensorboard")["NetworkSettings"]["Ports"].values()
    address, run = f"http://127.0.0.1:{bound[0]['HostPort']}", trained.copy_out("train")
    points = (run / "metrics.jsonl").read_text().count('"loss"')
    # It reads the files every few seconds, and the page asks it once.
    scalars = f"{address}/data/plugin/scalars/scalars?tag=train%2Floss&run={run.name}%2Ftensorboard"
    wait_until(lambda: count_points(scalars) == points, f"{points} points in {scalars}", every=0.2)
    artefacts = ROOT / ".tmp/artefacts"
    artefacts.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS.split())
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        try:
            page.goto(f"{address}/#scalars&tagFilter=%5Etrain%2Floss%24")
            look_at_the_loss(page, points)
        finally:
            page.screenshot(path=artefacts / "tensorboard-scalars.png")
            browser.close()


def count_points(scalars: str) -> int:
    """How many points TensorBoard knows of a chart, 0 where it does not know the chart yet."""
    try:
        with urllib.request.urlopen(scalars, timeout=10) as answer:
            return len(json.load(answer))
    except OSError:
        return 0


def look_at_the_loss(page: Page, points: int) -> None:
    """The chart is there, and its line, once it is in its place, has all points, goes from the left to the right and falls."""
    line = page.locator("tf-scalar-card", has_text="train/loss").locator("path.line").first
    expect(line).to_be_visible(timeout=60_000)
    point = r"-?[\d.]+,-?[\d.]+"
    expect(line).to_have_attribute("d", re.compile(f"^M{point}(L{point}){{{points - 1}}}$"), timeout=30_000)

    def drawn() -> list[tuple[float, ...]]:
        return [tuple(map(float, xy.split(","))) for xy in re.findall(point, line.get_attribute("d") or "")]

    wait_until(lambda: falls(drawn()), lambda: f"a line that falls: {drawn()}")


def falls(line: list[tuple[float, ...]]) -> bool:
    """Whether it goes from the left to the right and falls: an SVG counts from the top, so its numbers rise."""
    return len(line) > 1 and line == sorted(line) and line[-1][1] > line[0][1]
