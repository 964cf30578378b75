"""What is done to which job and when, from the seed alone: the same seed and number give the same plan. Pure."""

import random
from dataclasses import dataclass

SIGNALS = ("SIGKILL", "SIGKILL", "SIGSTOP", "SIGTERM", "SIGINT", "SIGUSR1")
WORKLOADS = ("linear", "gpt")
STARTS = 12  # of one node; a job that needs more never ends
FOR_GOOD = 0.3  # of what could be undone


@dataclass(frozen=True)
class Harm:
    """One harm: a signal to a process, or what an engine does to a container.

    `after` are seconds from the harm before it or the job's start, or, with `training`, from when training is under way
    again. `lasts` are seconds until SIGCONT, unpause or reconnect; None is for good.
    """

    node: int
    act: str
    target: str
    training: bool
    after: float
    lasts: float | None = None

    @property
    def kind(self) -> str:
        """What the summary counts it as."""
        return f"{self.act} {self.target.rstrip(' 01')}"

    def __str__(self) -> str:
        """As the table shows it, with its node."""
        undone = {"SIGSTOP": " for {:.1f} s", "pause": " for {:.1f} s", "cut": " for {:.1f} s"}.get(self.act, "")
        lasting = undone.format(self.lasts) if self.lasts else undone and " for good"
        return f"{self.act} {self.target} of node {self.node}{lasting}"


@dataclass(frozen=True)
class Again:
    """How a node that ended is started again: after so many seconds, with an empty disk where another node has the snapshots."""

    pause: float
    empty: bool


@dataclass(frozen=True)
class Plan:
    """One job and all that happens to it."""

    seed: int
    number: int
    nodes: int
    workload: str
    harms: tuple[Harm, ...]
    again: tuple[Again, ...]  # one for each start but the first, whichever node it is of

    @property
    def name(self) -> str:
        return f"{self.seed}/{self.number}"


def make_plan(seed: int, number: int, engine: bool) -> Plan:
    """The plan of a job. With an `engine` the nodes of a job of two are containers, and are harmed as such, too."""
    dice = random.Random(f"{seed}/{number}")
    nodes, workload = dice.choice((1, 2)), dice.choice(WORKLOADS)
    harms = tuple(make_harm(dice, nodes, engine and nodes > 1) for _ in range(dice.randint(1, 4)))
    again = tuple(Again(dice.uniform(0.2, 4), dice.random() < 0.5) for _ in range(nodes * STARTS))
    return Plan(seed, number, nodes, workload, harms, again)


def make_harm(dice: random.Random, nodes: int, contained: bool) -> Harm:
    """A harm to any process of any node, or to its container."""
    node, training = dice.randrange(nodes), dice.random() < 0.7
    targets = ["launcher", "reaper", "torchrun", "standby", "worker 0", "worker 1" if nodes == 1 else "worker 0"]
    act, target = dice.choice(SIGNALS), dice.choice([*targets, "tini"] if contained else targets)
    if contained and dice.random() < 0.4:
        act, target = dice.choice(("kill", "stop", "pause", "cut")), "container"
    after = dice.uniform(0, 3) if training else dice.uniform(0, 10)
    # A frozen reaper does nothing for a launcher that is killed meanwhile: nobody can promise anything then.
    good = dice.random() < FOR_GOOD and target != "reaper"
    lasts = dice.uniform(0.3, 9)
    return Harm(node, act, target, training, after, lasts if act in ("SIGSTOP", "pause", "cut") and not good else None)
