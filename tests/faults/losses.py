"""What goes wrong between nodes, as functions that return what does it: each starts a job, harms it, and returns it."""

from collections.abc import Callable

from containers import PATIENCE
from ipv6 import Ipv6Nodes
from nodes import TRAINING, Clock, Moment, Nodes
from scene import Scene

Loss = Callable[[Scene], Nodes]
FIRST_STEP = Moment(0, {"beat": ("first-step", 0, 2)})
SAVING = Moment(20, {"event": ("open", r"step-00000020\.writing/model", 1)})
EVALUATION = Moment(30, {"beat": ("evaluate", 30, 1)})
AGAIN = "waiting for nodes again"


def killed(rank: int, *moments: Moment, waiting: bool = False) -> Loss:
    """A node is killed at each of these moments, attempt after attempt; an empty container takes its place at once,
    with its name and another address.

    `waiting`: and before that while it waits for the other one.
    """

    def provoke(scene: Scene) -> Nodes:
        job = Nodes(scene)
        if waiting:
            early = job.start(rank)
            early.wait_for("waiting for nodes: ")
            job.lose(early)
        job.start(1 - rank)
        for moment in moments:
            victim = job.hold(rank, moment)
            scene.harm()
            job.lose(victim)
        job.start(rank)
        return job

    return provoke


def frozen(rank: int) -> Loss:
    """`docker pause` until the other node waits for it, then `docker unpause`."""

    def provoke(scene: Scene) -> Nodes:
        job = Nodes(scene)
        victim, other = job.hold_one(rank)
        scene.harm()
        victim.freeze()
        other.wait_for(AGAIN)
        assert other.stacks(), other.text
        victim.release()
        victim.thaw()
        return job

    return provoke


def frozen_and_replaced(rank: int) -> Loss:
    """Another container takes a frozen one's place, with its name, and then that comes back."""

    def provoke(scene: Scene) -> Nodes:
        job = Nodes(scene, SLIPWAY_RENDEZVOUS_TIMEOUT="20")
        victim, _ = job.hold_one(rank)
        victim.freeze()
        if rank == 0:
            victim.cut_off()  # else both would have the name
        replacement = job.hold(rank)
        scene.harm()
        victim.release()
        victim.thaw()
        victim.end(60)
        replacement.release()
        return job

    return provoke


def frozen_too_long(scene: Scene) -> Nodes:
    """Nobody takes a frozen node's place, and it comes back when the other has given up."""
    job = Nodes(scene)
    victim, other = job.hold_one(1)
    scene.harm()
    victim.freeze()
    other.end(PATIENCE)
    victim.release()
    victim.thaw()
    return job


def cut_off(scene: Scene) -> Nodes:
    """`docker network disconnect`, and no restarts are left."""
    job = Nodes(scene, "--max-restarts", "0")
    victim, _ = job.hold_one(1)
    scene.harm()
    victim.cut_off()
    return job


def cut_off_and_reconnected(scene: Scene) -> Nodes:
    """`docker network disconnect` of node 0 until both have noticed, then `docker network connect`."""
    job = Nodes(scene)
    victim, other = job.hold_one(0)
    scene.harm()
    victim.cut_off()
    for node in (victim, other):
        node.wait_for(AGAIN)
    assert all(node.stacks() for node in job.nodes), job.text
    victim.release()
    victim.reconnect()
    return job


def clocks_apart(scene: Scene) -> Nodes:
    """Node 1's clock is an hour ahead, and in mid-training falls back to an hour behind."""
    job = Nodes(scene)
    victim, _ = job.hold_one(1, Clock((3600, -3600)))
    scene.harm()
    victim.release()
    return job


def run_directory_deleted(scene: Scene) -> Nodes:
    """Node 0's run directory is deleted in mid-training, and then its rank dies; nothing is kept in memory."""
    job = Nodes(scene, "--memory-every", "0")
    victim, _ = job.hold_one(0)
    worker = victim.worker
    scene.harm()
    victim.delete_run()
    victim.kill_process(worker)
    return job


def ipv6_alone(scene: Scene) -> Nodes:
    """There is no IPv4."""
    job = Ipv6Nodes(scene)
    scene.harm()
    job.start(1)
    job.start(0)
    return job


def stopped(scene: Scene) -> Nodes:
    """`docker stop` of one node."""
    job = Nodes(scene)
    victim, _ = job.hold_one(1)
    scene.harm()
    victim.stop()
    victim.release()
    return job


def elastic(scene: Scene) -> Nodes:
    """Of one or two nodes one is killed, another comes while the first trains alone, is taken in, and is stopped."""
    job = Nodes(scene, WORLD_SIZE="1:2", SLIPWAY_WARM="0")  # workers that are forked read no sitecustomize.py
    lasting, victim = job.hold_one(0)
    job.lose(victim)
    lasting.hear("fault: hold", times=2)  # now alone
    newcomer = job.start(1, TRAINING)
    newcomer.wait_for("the job is running without this node")
    lasting.kill_worker()
    lasting.release()
    newcomer.wait_for("fault: hold")
    scene.harm()
    newcomer.stop()
    newcomer.release()
    return job
