"""RANK=auto on loopback: who is node 0, and what it answers to the others."""

import asyncio
import dataclasses
import socket
from collections.abc import Callable
from pathlib import Path

from stage import Launcher, make_info

from slipway.launch.rendezvous.claim import Claimant, Claimed
from slipway.launch.rendezvous.config import Network, RendezvousConfig
from slipway.launch.rendezvous.messages import Ask
from slipway.launch.rendezvous.rendezvous import Rendezvous
from slipway.launch.resolve.connectivity import listen

MAIN, OTHER = "127.0.0.1", "127.0.0.5"


def claim(
    port: int,
    folder: Path,
    *,
    leads_to: tuple[str, ...] = (MAIN,),
    own: tuple[str, ...] = (MAIN,),
    job: str = "mine",
    stopped: Callable[[], bool] = lambda: False,
) -> Claimed | None:
    """What a launcher finds out on a machine that has the addresses `own`, if MASTER_ADDR `leads_to` some."""

    async def resolve(name: str) -> tuple[str, ...]:
        return leads_to

    network = Network(
        resolve=resolve, listen=lambda port, loopback: listen(port, loopback=own[0]), own_names=lambda: ("me", *own)
    )
    config = RendezvousConfig(
        node_rank=-1, nodes=3, address="node0", port=port, timeout=20.0, folder=folder, say=lambda line: None, job=job
    )  # fmt: skip
    claimant = Claimant(dataclasses.replace(config, network=network), Ask("me", job))
    return asyncio.run(claimant.claim(make_info(0, 3), stopped))


def node_0(launcher: Callable[..., Launcher]) -> Rendezvous:
    """Node 0 of the job, on OTHER."""
    return launcher(0, 3, address=OTHER, more={"job": "mine"}).open()


def test_a_launcher_that_reaches_itself_where_master_addr_leads_to_is_node_0_and_keeps_the_port(
    port: int, tmp_path: Path
) -> None:
    claimed = claim(port, tmp_path)
    assert claimed
    rank, listening = claimed
    assert rank == 0
    assert listening
    with listening:
        assert listening.getsockname() == (MAIN, port)
        socket.create_connection((MAIN, port), 5).close()


def test_a_launcher_whose_port_is_taken_on_its_machine_asks_for_a_rank(
    launcher: Callable[..., Launcher], port: int, tmp_path: Path
) -> None:
    """As a second container on the network of one host does."""
    with node_0(launcher):
        assert claim(port, tmp_path, leads_to=(OTHER,), own=(OTHER,)) == (1, None)


def test_an_address_of_this_machine_that_leads_to_another_launcher_is_no_proof(
    launcher: Callable[..., Launcher], port: int, tmp_path: Path
) -> None:
    """As a ClusterIP under IPVS does, which every host has."""
    with node_0(launcher):
        assert claim(port, tmp_path, leads_to=(OTHER,), own=(MAIN, OTHER)) == (1, None)


def test_a_name_that_leads_to_another_launcher_as_well_is_no_proof(
    launcher: Callable[..., Launcher], port: int, tmp_path: Path
) -> None:
    """As that of a headless Service before all pods but node 0's are left out of it."""
    with node_0(launcher):
        assert claim(port, tmp_path, leads_to=(MAIN, OTHER)) == (1, None)


def test_a_launcher_that_is_asked_to_stop_gives_the_port_back(port: int, tmp_path: Path) -> None:
    assert claim(port, tmp_path, leads_to=(OTHER,), stopped=lambda: True) is None
    listen(port).close()
