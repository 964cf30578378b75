"""Do the nodes fit together? From their cards to a table of differences. Pure.

What must agree and does not ends the job with 78 before torchrun starts; what should agree is a warning.
"""

import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile

from slipway.launch.muster.card import Card
from slipway.launch.rank_ranges import rank_ranges

CLOCK_SECONDS = 2.0  # a larger clock offset makes logs and snapshot times of several nodes hard to read together
WIDTH = 72  # characters of a value in the table
ROWS = 40  # lines of a table; a job of thousands of nodes may differ in thousands of ways


@dataclass(frozen=True)
class Rule:
    """One thing to compare: its name in the table, whether it must agree, how to read it from a card, what to do.

    What is `optional` counts only between those that have it.
    """

    name: str
    must: bool
    read: Callable[[Card], str]
    advice: str = ""
    optional: bool = False

    def agree(self, one: Card, other: Card) -> bool:
        """Whether two cards have the same, or one of them nothing that counts."""
        here, there = self.read(one), self.read(other)
        return here == there or (self.optional and not (here and there))


@dataclass(frozen=True)
class Difference:
    """One thing in which nodes differ: each value with the node ranks that have it, by their lowest rank."""

    name: str
    must: bool
    values: tuple[tuple[str, tuple[int, ...]], ...]
    advice: str = ""


def gpu_models(card: Card) -> str:
    """`8 × NVIDIA H100` or `no GPU`; several models are listed."""
    kinds = sorted(set(card.gpus))
    return ", ".join(f"{card.gpus.count(kind)} × {kind}" for kind in kinds) or "no GPU"


def read_optional(name: str) -> Callable[[Card], str]:
    """Read a field that may be None, which the table shows as `none`."""
    return lambda card: "none" if (value := getattr(card, name)) is None else str(value)


PROCESSES, SNAPSHOT = "processes per node", "newest snapshot"
RULES = (
    Rule("WORLD_SIZE (nodes)", True, lambda card: card.nodes, "WORLD_SIZE counts nodes and is the same on all of them"),
    Rule("workload", True, lambda card: card.workload),
    Rule("arguments", True, lambda card: shlex.join(card.arguments)),
    Rule(
        PROCESSES,
        True,
        lambda card: str(card.processes),
        "give every node the same number, or --allow-uneven to run with the smallest on all",
    ),
    Rule("backend", True, lambda card: card.backend),
    Rule("slipway", True, lambda card: card.version, "start the same image on all nodes"),
    Rule("torch", True, read_optional("torch"), "start the same image on all nodes"),
    Rule("NCCL", True, read_optional("nccl"), "start the same image on all nodes"),
    Rule("embedded data", True, read_optional("data"), "start the same image on all nodes"),
    Rule("image", True, read_optional("image"), "start the same image on all nodes"),
    # Two jobs that meet by mistake; a path may be another one on each node.
    Rule(
        "--run-dir (a name)",
        True,
        lambda card: "" if card.run_dir.startswith("/") else card.run_dir,
        "give all nodes of a job the same run directory, and each job a MASTER_ADDR of its own",
        optional=True,
    ),
    Rule(
        "--run-dir (a path)",
        False,
        lambda card: card.run_dir.rpartition("/")[2] if card.run_dir.startswith("/") else "",
        optional=True,
    ),
    Rule("driver", False, read_optional("driver")),
    Rule("GPUs", False, gpu_models),
    Rule(SNAPSHOT, False, read_optional("snapshot")),
)


def fits(card: Card, reference: Card, allow_uneven: bool) -> bool:
    """Whether all that must agree does, between two cards, and the node has no problem of its own."""
    return not card.problem and all(rule.agree(card, reference) for rule in _rules(allow_uneven) if rule.must)


def find_differences(
    cards: Mapping[int, Card], offsets: Mapping[int, float], allow_uneven: bool
) -> tuple[Difference, ...]:
    """All differences between the cards (by node rank); `offsets` are clocks in seconds ahead of node 0's."""
    found = []
    goes_on = any(card.tries for card in cards.values())  # then a newcomer gets its snapshot from the others
    for rule in _rules(allow_uneven):
        if goes_on and rule.name == SNAPSHOT:
            continue
        nodes = defaultdict(list)
        for node_rank in sorted(cards):
            nodes[rule.read(cards[node_rank])].append(node_rank)
        if len(nodes) - (rule.optional and "" in nodes) > 1:
            values = tuple((value, tuple(ranks)) for value, ranks in nodes.items())
            found.append(Difference(rule.name, rule.must, values, rule.advice))
    astray = [rank for rank in sorted(offsets) if abs(offsets[rank]) > CLOCK_SECONDS]
    strays = tuple((f"{offsets[rank]:+.1f} s", (rank,)) for rank in astray)
    if strays:
        found.append(Difference("clock (against node 0)", False, strays, "let NTP or chrony set the clocks"))
    return tuple(found)


def draw_table(differences: Iterable[Difference], hosts: Mapping[int, str]) -> tuple[str, ...]:
    """Lines of `what | value | nodes`, bounded in width and number."""
    lines = [_row("what", "value", "nodes")]
    for difference in differences:
        name = difference.name
        for value, ranks in zip(_shown([value for value, _ in difference.values]), difference.values, strict=True):
            lines.append(_row(name, value, _nodes(ranks[1], hosts)))
            name = ""
        if difference.advice:
            lines.append(_row("", f"({difference.advice})", ""))
    if len(lines) > ROWS:
        lines[ROWS:] = [f"  … and {len(lines) - ROWS} lines more"]
    return tuple(lines)


def _rules(allow_uneven: bool) -> tuple[Rule, ...]:
    return tuple(replace(rule, must=False) if rule.name == PROCESSES and allow_uneven else rule for rule in RULES)


def _shown(values: list[str]) -> list[str]:
    """Values short enough for the table, with what they have in common at the start cut off where they are too long."""
    if max(len(value) for value in values) <= WIDTH:
        return [value or "none" for value in values]
    common = len(list(takewhile(lambda chars: len(set(chars)) == 1, zip(*values, strict=False))))
    start = max(0, common - 12)
    cut = [("…" if start else "") + value[start:] for value in values]
    return [value if len(value) <= WIDTH else value[: WIDTH - 1] + "…" for value in cut]


def _nodes(ranks: tuple[int, ...], hosts: Mapping[int, str]) -> str:
    names = ", ".join(hosts[rank] for rank in ranks[:3])
    return f"{rank_ranges(ranks)} ({names}{', …' if len(ranks) > 3 else ''})"


def _row(name: str, value: str, nodes: str) -> str:
    return f"  {name:<22}  {value:<28}  {nodes}".rstrip()
