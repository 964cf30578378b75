"""The reports of all nodes, put together from what their launchers and their processes exchanged. Pure."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slipway.launch.health.finding import NodeReport, ok, warning
from slipway.launch.muster.card import Finding
from slipway.launch.muster.compare import draw_table, find_differences
from slipway.launch.muster.messages import Peer

OTHERS, EXCHANGE = "other nodes", "all-reduce"  # rows


def assemble(
    own: NodeReport, peers: Sequence[Peer], exchange: Mapping[str, Any], trouble: Finding | None
) -> tuple[NodeReport, ...]:
    """All nodes' reports, by node rank, with what the exchange showed; `trouble` goes to our own.

    `peers` are the launchers that met, this one among them, and `exchange` is the content of `check.json`: empty where the
    processes did not get that far.
    """
    reports = []
    for index, peer in enumerate(sorted(peers, key=lambda peer: peer.card.node_rank)):
        rows = [judge_exchange(exchange, index)] if exchange else []
        if peer.card.node_rank != own.node_rank:
            reports.append(NodeReport(peer.card.node_rank, peer.card.host, (*peer.card.findings, *rows)))
        else:
            own = dataclasses.replace(own, findings=(*own.findings, *compare_nodes(peers), *rows))
    if trouble:
        own = dataclasses.replace(own, findings=(*own.findings, trouble))
    return tuple(sorted((*reports, own), key=lambda report: report.node_rank))


def judge_exchange(exchange: Mapping[str, Any], index: int) -> Finding:
    """The row of the all-reduce for one node, by its place among all."""
    links, slow = exchange.get("links") or [], exchange.get("slow") or {}
    link = f"; {links[index]} to and from its neighbour" if index < len(links) and links[index] else ""
    found = f"{exchange.get('text')}{link}"
    if slow.get("node") == index:
        # What to look at follows from what a rank was slow at: Straggler.text in slipway.train.measure.straggler.
        own_work = "for its own work" in str(slow.get("text"))
        advice = "look at what else runs on that node, and at its clocks" if own_work else "look at its network card"
        return warning(EXCHANGE, f"{found}\nslower than the rest: {slow.get('text')}", advice)
    return ok(EXCHANGE, found)


def compare_nodes(peers: Sequence[Peer]) -> Iterator[Finding]:
    """That all are here and fit together, which the muster saw to, and in what they should be alike but are not."""
    yield ok(OTHERS, f"all {len(peers)} are here, run the same versions, and each reaches its neighbour")
    cards = {peer.card.node_rank: peer.card for peer in peers}
    offsets = {peer.card.node_rank: peer.offset for peer in peers}
    differences = find_differences(cards, offsets, allow_uneven=True)
    if differences:
        table = draw_table(differences, {rank: card.host for rank, card in cards.items()})
        yield warning("differences", "\n".join(("the nodes are not alike:", *table)))
