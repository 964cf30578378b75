"""The sections of `make test` and the tiers, as data: what runs each section, what it needs of the machine, what runs side by side.

The tiers, each of which includes the ones before it:

    core      `make test`          what a newcomer runs, anywhere, without root
    pull      `.ci/run`            what CI runs for a change
    nightly   `make test-nightly`  everything

A test has at most one mark of these: `core` or `pull`. One without a mark belongs to the nightly tier.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TIERS = ("core", "pull", "nightly")
# What pytest selects in each tier, from the marks.
EXPRESSIONS = {"core": "core", "pull": "core or pull", "nightly": ""}


@dataclass(frozen=True)
class Section:
    """A part of the tests: tests/NAME, or what `goal` of the Makefile runs.

    `needs` are names of needs.NEEDS without which nothing of it runs; tests that need an engine find the `image` built;
    `at_once` tests run side by side, `spread` is how xdist distributes them: a waiting test keeps no processor busy.
    `marked`: the marks of its tests select what a tier runs; otherwise all of it runs. `since`: the first tier it is part of.
    """

    name: str
    what: str
    needs: tuple[str, ...] = ()
    image: bool = False
    goal: str = ""
    marked: bool = True
    since: str = "core"
    at_once: int = 1
    spread: tuple[str, ...] = ("--dist", "worksteal")

    def belongs_to(self, tier: str) -> bool:
        """Whether anything of it runs in this tier."""
        return TIERS.index(self.since) <= TIERS.index(tier)

    def command(self, python: str, arguments: list[str], tier: str, folder: Path) -> list[str]:
        """The words that run it; pytest writes its results as JUnit's XML to `folder`/NAME.xml, and the tests' own files beside it.

        `arguments` of pytest select instead of the tier.
        """
        if self.goal:
            # Neither pytest's arguments nor the share of this run concern the programs that it starts.
            return ["make", "--no-print-directory", self.goal, "ARGS=", "PART="]
        words = [python, "-m", "pytest", f"tests/{self.name}", f"--junitxml={folder / self.name}.xml", "--durations=10"]
        # In pytest's usual place, sections that run side by side remove each other's old folders, and fail of it at their end.
        words.append(f"--basetemp={folder / self.name}")
        if self.at_once > 1:
            words += ["--numprocesses", str(self.at_once), *self.spread]
        if self.marked and not arguments and EXPRESSIONS[tier]:
            words += ["-m", EXPRESSIONS[tier]]
        return words + arguments


SECTIONS = {
    section.name: section
    for section in (
        Section("build", "the image is built", ("engine",), goal="image"),
        Section("lint", "style and types", goal="lint"),
        Section("unit", "the launcher's parts, without PyTorch", marked=False, at_once=2),
        Section("rendezvous", "how nodes find each other", marked=False, at_once=6),
        Section("sim", "the launchers' protocol, with a virtual clock and network", marked=False, at_once=2),
        Section("launch", "real jobs: signals, failures, several launchers", at_once=2),
        Section("train", "real training on the CPU", at_once=2),
        Section("faults", "jobs that are harmed, and what they end with", image=True, at_once=3),
        Section("docs", "what the pages say, and their shell blocks", at_once=2),
        Section("image", "containers of the image", ("engine",), image=True, at_once=2),
        Section("bench-smoke", "every row of `make bench`, once", goal="bench-smoke", since="nightly"),
        Section("gpu", "what needs a GPU; without one, what of it a CPU can rehearse", since="nightly"),
        # Whole files, each with clusters of its own.
        Section("slurm", "jobs on a real Slurm", ("slurm",), image=True, since="pull", at_once=2, spread=("--dist", "loadfile", "--no-loadscope-reorder")),
        Section("compose", "the compose files, brought up", ("engine",), image=True),
        Section("release", "what a release does", ("engine",), image=True, since="pull", at_once=2),
        Section("machine", "the README's commands on a machine that has nothing", ("engine", "mmdebstrap"), since="nightly"),
        Section("k8s", "the manifests, and whole jobs of them", ("kubectl",), image=True, at_once=2),
        Section("under-load", "the core beside programs that keep every core busy", ("stress-ng",), goal="test-under-load", since="nightly"),
        Section("mutants", "changes of the launcher that a test must notice", goal="mutants", since="nightly"),
        Section("chaos", "jobs that are harmed at random", goal="chaos", since="nightly"),
    )
}  # fmt: skip

# Turn by turn. The rows of one turn run beside each other: what needs the image, and mostly waits, beside what computes.
TURNS = (
    (
        ("build", "faults", "image", "slurm", "compose", "release", "k8s"),
        ("lint", "unit", "rendezvous", "sim", "launch", "train", "docs"),
    ),
    (("bench-smoke", "gpu"),),
    (("machine",),),
    (("under-load", "mutants", "chaos"),),
)
# What a change of documentation alone runs, and what runs besides where a page in one of these folders changed.
OF_DOCUMENTS = ("lint", "unit", "docs")
READERS = {"compose": ("build", "compose"), "images": ("build", "release"), "k8s": ("build", "k8s")}


def section_of(path: Path) -> Section | None:
    """The section that a file of tests belongs to, None outside of all."""
    parts = path.relative_to(ROOT).parts if path.is_relative_to(ROOT) else ()
    return SECTIONS.get(parts[1]) if len(parts) > 2 and parts[0] == "tests" else None
