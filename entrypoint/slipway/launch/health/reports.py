"""The reports of all nodes, put together from what their processes exchanged. Pure; what came from others is made safe."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slipway import __version__
from slipway.launch.health.finding import COLOURS, SKIPPED, Finding, NodeReport, ok, warning
from slipway.launch.muster.card import Card
from slipway.launch.muster.codec import plain
from slipway.launch.muster.compare import draw_table, find_differences
from slipway.launch.resolve.catalog import CHECK
from slipway.protocol.errors import CONFIGURATION, FINISHED, UNHEALTHY

OTHERS, EXCHANGE = "other nodes", "all-reduce"  # rows
TEXT = 4000  # characters of a text of another node that are shown


def assemble(own: NodeReport, found: Mapping[str, Any], trouble: Finding | None) -> tuple[NodeReport, ...]:
    """All nodes' reports with what the exchange showed, from the content of `nodes.json`; `trouble` goes to our own. Pure."""
    nodes = [node for node in found.get("nodes", []) if isinstance(node, dict)]
    if not nodes:
        findings = (*own.findings, *([trouble] if trouble else []))
        return (dataclasses.replace(own, findings=findings),)
    exchange = found.get("exchange") or {}
    reports = []
    for index, node in enumerate(nodes):
        report = read_report(node)
        rows = [judge_exchange(exchange, index)] if exchange else []
        if report.node_rank == own.node_rank:
            rows = [*compare_nodes(nodes), *rows, *([trouble] if trouble else [])]
        reports.append(dataclasses.replace(report, findings=(*report.findings, *rows)))
    return tuple(sorted(reports, key=lambda report: report.node_rank))


def read_report(node: Mapping[str, Any]) -> NodeReport:
    """A node's report from what its launcher wrote; its texts are made safe to print."""
    rows = [row for row in node.get("findings", []) if isinstance(row, dict)]
    return NodeReport(
        int(node["node_rank"]), plain(str(node.get("host")), 253), tuple(_read_finding(row) for row in rows)
    )


def _read_finding(row: Mapping[str, Any]) -> Finding:
    what, found, advice = (_plain(str(row.get(name, ""))) for name in ("what", "found", "advice"))
    level = row.get("level") if row.get("level") in COLOURS else SKIPPED
    code = row.get("code") if row.get("code") in (UNHEALTHY, CONFIGURATION) else FINISHED
    return Finding(what, str(level), found, advice, int(code or FINISHED))


def _plain(text: str) -> str:
    return "\n".join(plain(line) for line in text[:TEXT].splitlines())


def judge_exchange(exchange: Mapping[str, Any], index: int) -> Finding:
    """The row of the all-reduce for one node, by its place among all."""
    links, slow = exchange.get("links") or [], exchange.get("slow") or {}
    link = f"; {links[index]} to and from its neighbour" if index < len(links) and links[index] else ""
    found = f"{exchange.get('text')}{link}"
    if slow.get("node") == index:
        return warning(EXCHANGE, f"{found}\nslower than the rest: {slow.get('text')}", _advise(str(slow.get("text"))))
    return ok(EXCHANGE, found)


def _advise(seen: str) -> str:
    """What to look at, from what a rank was slow at: Straggler.text in slipway.train.measure.straggler."""
    if "for its own work" in seen:
        return "look at what else runs on that node, and at its clocks"
    return "look at its network card"


def compare_nodes(nodes: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """That all are here and fit together, which the muster saw to, and in what they should be alike but are not."""
    yield ok(OTHERS, f"all {len(nodes)} are here, run the same versions, and each reaches its neighbour")
    clock = float(nodes[0]["clock"])
    cards = {int(node["node_rank"]): _card(node) for node in nodes}
    offsets = {int(node["node_rank"]): float(node["clock"]) - clock for node in nodes}
    differences = find_differences(cards, offsets, allow_uneven=True)
    if differences:
        table = draw_table(differences, {rank: card.host for rank, card in cards.items()})
        yield warning("differences", "\n".join(("the nodes are not alike:", *table)))


def _card(node: Mapping[str, Any]) -> Card:
    """What the muster compares, as far as it may differ."""
    return Card(
        node_rank=int(node["node_rank"]),
        nodes="",
        host=plain(str(node.get("host"))),
        workload=CHECK.name,
        arguments=(),
        processes=0,
        backend="",
        version=__version__,
        run="",
        gpus=tuple(plain(str(name)) for name in node.get("gpus", [])),
        driver=plain(str(node.get("driver"))) or None,
    )
