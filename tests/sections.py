"""The sections of `make test`, as data: what runs each, what it needs of the machine, and which of them run side by side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Section:
    """A part of the tests: tests/NAME, or what `goal` of the Makefile runs.

    `needs` are names of needs.NEEDS without which nothing of it runs; tests that need an engine find the `image` built; `at_once` tests run side by side, `spread` as xdist
    is told: waiting keeps no processor busy. `core`: which of its tests are the core, those `marked`, `all` or `none`.
    """

    name: str
    what: str
    needs: tuple[str, ...] = ()
    image: bool = False
    goal: str = ""
    core: str = "marked"
    at_once: int = 1
    spread: tuple[str, ...] = ("--dist", "worksteal")

    def command(
        self, python: str, arguments: list[str], full: bool, results: Path, cache: Path, again: bool = False
    ) -> list[str]:
        """The words that run it; pytest writes its results as JUnit's XML. `arguments` of pytest's pick for themselves.

        `again`: only what failed the last time, by the same `cache`, one after the other.
        """
        if self.goal:
            return ["make", "--no-print-directory", self.goal, "ARGS="]  # pytest's are no business of it
        words = [python, "-m", "pytest", f"tests/{self.name}", f"--junitxml={results}", "-o", f"cache_dir={cache}"]
        if again:
            words += ["--last-failed", "--last-failed-no-failures", "none"]
        elif self.at_once > 1:
            words += ["--numprocesses", str(self.at_once), *self.spread]
        if self.core == "marked" and not full and not arguments:
            words += ["-m", "core"]
        return words + arguments


SECTIONS = {
    section.name: section
    for section in (
        Section("build", "the image is built", ("engine",), goal="image", core="all"),
        Section("lint", "style and types", goal="lint", core="all"),
        Section("unit", "the launcher's parts, without PyTorch", core="all", at_once=2),
        Section("muster", "how nodes find each other", core="all", at_once=6),
        Section("launch", "real jobs: signals, failures, several launchers", at_once=2),
        Section("train", "real training on the CPU", at_once=2),
        Section("faults", "jobs that are harmed, and what they end with", image=True, at_once=3),
        Section("docs", "what the pages say, and their shell blocks", at_once=2),
        Section("image", "containers of the image", ("engine",), image=True, at_once=2),
        Section("bench-smoke", "every row of `make bench`, once", goal="bench-smoke", core="none"),
        Section("gpu", "what needs a GPU; without one, what of it a CPU can rehearse", core="none"),
        # Whole files, each with clusters of its own.
        Section("slurm", "jobs on a real Slurm", ("slurm",), image=True, at_once=2, spread=("--dist", "loadfile", "--no-loadscope-reorder")),
        Section("compose", "the compose files, brought up", ("engine",), image=True),
        Section("release", "what a release does", ("engine",), image=True, at_once=2),
        Section("machine", "the README's commands on a machine that has nothing", ("engine", "mmdebstrap"), core="none"),
        Section("k8s", "the manifests, and whole jobs of them", ("kubectl",), image=True, at_once=2),
    )
}  # fmt: skip

# Turn by turn. The rows of one turn run beside each other: what waits beside what computes.
TURNS = (
    (("build",), ("lint", "unit", "muster")),
    (("launch", "train", "faults", "docs", "image", "bench-smoke", "gpu"),),
    (("slurm", "release"), ("machine", "compose", "k8s")),
)


def section_of(path: Path) -> Section | None:
    """The section that a file of tests belongs to, None outside of all."""
    parts = path.relative_to(ROOT).parts if path.is_relative_to(ROOT) else ()
    return SECTIONS.get(parts[1]) if len(parts) > 2 and parts[0] == "tests" else None
