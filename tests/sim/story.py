"""What happens in a simulation, drawn from its seed: a job or two, and harm that befalls their nodes."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from attacker import Attacker
from rules import SLACK
from virtual_launcher import CLOUDS, WINDOW, Launcher, Order
from world import World

from slipway.launch.attempt.stops import Stop
from slipway.launch.rendezvous.coordinator import SUCCEED_SECONDS
from slipway.launch.resolve.topology import SPARE
from slipway.protocol.outcomes import Word

# Messages at which harm strikes, where it does not at a moment drawn at random.
MOMENTS = ("hello", "welcome", "probe", "probed", "start", "report", "report", "news", "ending")

SILENCE = 15.0  # seconds after which the others have noticed that a node is gone
# Seconds from the kill of a node to the attempt in which a spare node has its place, at most: 2 until the last launcher has noticed,
# SUCCEED_SECONDS where the launchers divide between two leaders, and 2 until they have found the one that stays.
REPLACED = 2 + SUCCEED_SECONDS + 2
LOOK = 5.0  # seconds between polls for an interruption notice (AWS; the other clouds are asked more often)


Story = Callable[[World], Coroutine[Any, Any, "list[Job]"]]


class Job:
    """A job and the scheduler that starts its launchers, and others in the place of those that are gone."""

    def __init__(self, world: World, order: Order) -> None:
        self.world, self.order, self.dice = world, order, world.dice
        self.current: dict[int, Launcher] = {}
        self._failures = 0  # of its workers, which a story has caused
        self.due, self.attempts = str(Word.FINISHED), 0  # how it is to end, and after how many attempts (0: any number)
        self.starts = True  # whether its nodes can reach each other
        world.log("order", str(order))
        self._disks = 0

    def start(self, rank: int, address: str | None = None, *, disk: Path | None = None) -> None:
        """Start the launcher of a node: on a new machine with an empty disk, unless they are given."""
        if self.order.shared:
            disk = self.world.folder / self.order.name
        if disk is None:
            self._disks += 1
            disk = self.world.folder / f"{self.order.name}-{rank}-{self._disks}"
        if rank in self.current:
            self.current[rank].replaced = True
        if address is None:
            address = self.world.new_machine(ahead=self.dice.choice((0.0, self.dice.uniform(-60, 60))))
        self.current[rank] = self.world.launch(self.order, rank, address, disk)

    async def start_all(self, *, late: float = 0.0) -> None:
        """Start all nodes within some seconds, the last one so many seconds `late` at most."""
        launchers = self.order.nodes + self.order.spares
        *most, last = self.dice.sample(range(launchers), launchers)
        for rank in (*most, last):
            await asyncio.sleep(self.dice.uniform(0, late if late and rank == last else 3))
            self.start(rank)

    def may_fail(self) -> bool:
        """Whether its workers may fail or hang once more. No third time: three attempts without a snapshot would end the job for
        want of progress (see `failing`).
        """
        self._failures += 1
        return self._failures <= 2

    async def trains(self) -> None:
        """Wait until the first attempt trains."""
        while not any(one.team and one.team.moved for one in self.current.values()):
            await asyncio.sleep(0.5)


def draw_order(name: str, dice: random.Random) -> Order:
    """A job."""
    nodes = dice.choice((2, 2, 3, 3, 4, 5))
    least = dice.choice((nodes, nodes, max(2, nodes - 2)))
    return Order(
        name,
        nodes,
        least,
        shared=dice.random() < 0.5,
        token="",
        steps=dice.randrange(20, 50),
        save_every=dice.randrange(2, 9),
    )


class Harm:
    """The kinds of harm, each a method that harms a node and mends what it can."""

    def __init__(self, job: Job, moments: tuple[str, ...] = MOMENTS) -> None:
        self._job, self._world, self._dice, self._moments = job, job.world, job.dice, moments

    async def strike(self) -> None:
        """Harm a node at a moment."""
        dice, job = self._dice, self._job
        if dice.random() < 0.4:
            kind = dice.choice(self._moments)
            struck = asyncio.ensure_future(self._world.message(kind, job.order.name))
            done, _ = await asyncio.wait([struck], timeout=60)
            if not done:
                return
            await asyncio.sleep(dice.choice((0.0, dice.uniform(0, 0.05), dice.uniform(0, 2))))
            chosen = [one for one in job.current.values() if one.process is struck.result()]
            launcher = dice.choice(chosen or list(job.current.values()))
        else:
            await asyncio.sleep(dice.uniform(0, 60))
            launcher = dice.choice([*job.current.values()]) if job.current else None  # type: ignore[assignment]
        if launcher is None or any(one.code is not None for one in job.current.values()):
            return
        kinds = [self.kill, self.power_cut, self.cut_off, self.freeze, self.replace_frozen, self.crash, self.hang]
        kinds += (
            [self.reset] if launcher.slot and 0 in job.current else []
        )  # a machine's connections to itself are safe
        if not launcher.process.alive or launcher.process.frozen:
            return
        await dice.choice(kinds)(launcher)

    async def kill(self, launcher: Launcher) -> None:
        """Kill the launcher; another one is started on the same machine, or on another with an empty disk."""
        self._world.rules.harmed(launcher, "killed", until=0.1)
        launcher.process.kill()
        await asyncio.sleep(self._dice.uniform(0, 8))
        self._restart(launcher)

    async def power_cut(self, launcher: Launcher) -> None:
        """Its machine loses power, for a while."""
        machine = self._world.network.machine(launcher.address)
        self._world.rules.harmed(launcher, "power cut", until=0.1)
        machine.powered = False
        launcher.process.kill()
        await asyncio.sleep(self._dice.uniform(1, 40))
        machine.powered = True
        self._restart(launcher)

    async def cut_off(self, launcher: Launcher) -> None:
        """Its machine has no network, for a while."""
        machine = self._world.network.machine(launcher.address)
        self._world.rules.harmed(launcher, "cut off", until=0.1)
        machine.connected = False
        await asyncio.sleep(self._dice.uniform(1, 40))
        machine.connected = True
        self._world.log(launcher.process.name, "MENDED: it has network again")

    async def reset(self, launcher: Launcher) -> None:
        """Its connection to node 0 is reset."""
        self._world.rules.harmed(launcher, "its connection is reset", until=0.1)
        self._world.network.reset(launcher.process, self._job.current[0].address)

    async def freeze(self, launcher: Launcher) -> None:
        """It is frozen, for a while."""
        self._world.rules.harmed(launcher, "frozen", until=0.1)
        launcher.process.freeze()
        await asyncio.sleep(self._dice.uniform(1, 40))
        self._thaw(launcher)

    async def replace_frozen(self, launcher: Launcher) -> None:
        """It is frozen, another launcher is started in its place elsewhere, and later it runs again."""
        order, least = launcher.order, 0.0
        if (
            launcher.slot == 0
        ):  # two nodes 0 that live lead two jobs, and no launcher could tell which is the right one:
            if order.least < order.nodes and not order.shared:
                return  # where so many are enough for each, only a common disk keeps them apart
            least = SILENCE  # until the others have noticed, they follow the old one
        self._world.rules.harmed(launcher, "frozen, and to be replaced", until=0.1)
        launcher.process.freeze()
        replaced = self._dice.uniform(0, 20)
        await asyncio.sleep(replaced)
        if self._job.current[launcher.slot] is launcher:
            self._job.start(launcher.slot)
        await asyncio.sleep(max(self._dice.uniform(0, 40), least - replaced))
        self._thaw(launcher)

    async def crash(self, launcher: Launcher) -> None:
        """Its workers fail."""
        if self._job.may_fail():
            launcher.crash = True

    async def hang(self, launcher: Launcher) -> None:
        """Its workers stand still."""
        hangs = any(one.hang for one in self._job.current.values())
        if launcher.team and not hangs and self._job.may_fail():
            launcher.hang = True
            self._world.log(launcher.process.name, "HARM: its workers hang")

    def _thaw(self, launcher: Launcher) -> None:
        if launcher.process.alive:
            thaw(launcher)

    def _restart(self, launcher: Launcher) -> None:
        if self._job.current[launcher.slot] is not launcher:
            return
        if self._dice.random() < 0.6:
            self._job.start(launcher.slot, launcher.address, disk=launcher.disk)
        else:
            self._job.start(launcher.slot)


async def harmed(world: World) -> list[Job]:
    """A job to which harm is done, up to three times."""
    job = Job(world, draw_order("trainer", world.dice))
    harms = [Harm(job).strike() for _ in range(world.dice.randrange(4))]
    await asyncio.gather(job.start_all(), *harms)
    return [job]


async def unranked(world: World) -> list[Job]:
    """A job whose launchers find out their ranks, some of them late. Harm is done to them, also while they ask, and a launcher of
    another job asks the same node 0.
    """
    dice = world.dice
    order = dataclasses.replace(draw_order("trainer", dice), auto=True, spares=dice.choice((0, 0, 1)))
    job = Job(world, dataclasses.replace(order, least=order.nodes) if order.spares else order)
    harms = [Harm(job, ("ask", "ask", "assigned", *MOMENTS)).strike() for _ in range(dice.randrange(4))]
    await asyncio.gather(job.start_all(late=dice.choice((0.0, 60.0))), go_astray(job), *harms)
    return [job]


async def go_astray(job: Job) -> None:
    """A launcher of another job asks node 0 of this one for a rank: it never gets any."""
    world = job.world
    await asyncio.sleep(world.dice.uniform(0, 60))
    if 0 not in job.current or any(one.done for one in job.current.values()):
        return
    order = dataclasses.replace(job.order, name="stray")
    world.network.names[order.name] = job.current[0].address
    world.launch(order, 1, world.new_machine(), world.folder / order.name)


async def misled(world: World) -> list[Job]:
    """Two jobs alike. The name of one leads to the other for a while, which lacks a node just then."""
    order = dataclasses.replace(draw_order("trainer", world.dice), restarts=50)
    job, other = Job(world, order), Job(world, dataclasses.replace(order, name="other"))
    await asyncio.gather(job.start_all(), other.start_all())
    await asyncio.gather(job.trains(), other.trains())
    rank = world.dice.randrange(order.nodes)
    right, world.network.names["trainer"] = world.network.names["trainer"], world.network.names["other"]
    world.log("trainer", "HARM: its name leads to the other job")
    reset = job.current[rank or 1]
    await asyncio.gather(
        Harm(job).reset(reset), Harm(other).kill(other.current[rank or 1]), asyncio.sleep(world.dice.uniform(2, 30))
    )
    world.network.names["trainer"] = right
    world.log("trainer", "MENDED: its name is right again")
    return [job, other]


async def stopped(world: World) -> list[Job]:
    """A node is asked to stop: an elastic job goes on without it, and takes another one in; any other job ends."""
    job = Job(world, draw_order("trainer", world.dice))
    elastic = job.order.least < job.order.nodes
    await job.start_all()
    await job.trains()
    await asyncio.sleep(world.dice.uniform(0, 15))
    launcher = job.current[world.dice.randrange(elastic, job.order.nodes)]
    ask_to_stop(launcher)
    if not elastic:
        job.due = Word.STOPPED
        return [job]
    await asyncio.sleep(world.dice.uniform(5, 20))
    if not launcher.done:
        world.rules.fail(f"{launcher.process.name} was asked to stop, and still runs")
    if launcher.code not in (0, 75):
        world.rules.fail(f"{launcher.process.name} was asked to stop, and ended with {launcher.code}")
    job.start(launcher.rank)
    return [job]


async def failing(world: World) -> list[Job]:
    """The workers of a node fail in each attempt: without progress until the budget of restarts is used up, else for ever."""
    dice, advances = world.dice, world.dice.random() < 0.5
    order = dataclasses.replace(draw_order("trainer", dice), restarts=dice.randrange(1, 3), steps=45, save_every=3)
    job = Job(world, order if advances else dataclasses.replace(order, save_every=50))
    if not advances:
        job.due, job.attempts = (Word.FAILED, 2) if order.restarts == 1 else (Word.NO_PROGRESS, 3)
    await job.start_all()
    rank, made = dice.randrange(order.nodes), 0
    while not any(one.done for one in job.current.values()):
        await asyncio.sleep(1)
        launcher = job.current[rank]
        if (
            launcher.team
            and not launcher.crash
            and launcher.team.moved
            and launcher.team.step >= launcher.team.first + (8 if advances else 1)
        ):
            launcher.crash, made = True, made + 1
            await asyncio.sleep(3)
    if advances and made < 4:
        world.rules.fail(f"the workers failed {made} times only")
    return [job]


async def failing_together(world: World) -> list[Job]:
    """The workers of two nodes fail within a second or two. By its clock the node that failed second was first."""
    job = Job(world, draw_order("trainer", world.dice))
    first, second = world.dice.sample(range(job.order.nodes), 2)
    for rank in range(job.order.nodes):
        job.start(rank, world.new_machine(ahead={first: 30.0, second: -30.0}.get(rank, 0.0)))
    await job.trains()
    await asyncio.sleep(world.dice.uniform(0, 5))
    launcher = job.current[first]
    launcher.crash = True
    while launcher.crash:
        await asyncio.sleep(0.1)
    await asyncio.sleep(SLACK)
    job.current[second].crash = True
    return [job]


async def apart(world: World) -> list[Job]:
    """Two neighbours reach node 0 and not each other: while they train, while the neighbours are tested, or always."""
    dice = world.dice
    when, nodes = dice.choice(("while they train", "for a while", "always")), dice.randrange(3, 6)
    job = Job(world, dataclasses.replace(draw_order("trainer", dice), nodes=nodes, least=nodes))
    for rank in range(nodes):
        job.start(rank)
    one = dice.randrange(1, nodes - 1)
    pair = [job.current[one].address], [job.current[one + 1].address]
    if when == "while they train":
        await job.trains()
    world.part(*pair)
    job.starts, job.attempts = when != "always", 1
    if job.starts:
        await asyncio.sleep(dice.uniform(0, 12))
        world.mend(*pair)
    return [job]


async def latecomer(world: World) -> list[Job]:
    """The last node of an elastic job comes while the others test their neighbours, which takes long: two do not reach each other at first."""
    dice = world.dice
    nodes = dice.randrange(4, 6)
    job = Job(world, dataclasses.replace(draw_order("trainer", dice), nodes=nodes, least=nodes - 1))
    for rank in range(nodes - 1):
        job.start(rank)
    pair = [job.current[1].address], [job.current[2].address]
    world.part(*pair)
    await world.message("probe", job.order.name)
    job.start(nodes - 1)
    await asyncio.sleep(dice.uniform(0.2, 4))
    world.mend(*pair)
    job.attempts = 1
    return [job]


async def split(world: World) -> list[Job]:
    """An elastic job falls into two halves: that of node 0 resumes without the others, which wait until they find node 0 again."""
    job = Job(world, dataclasses.replace(draw_order("trainer", world.dice), nodes=4, least=2))
    await job.start_all()
    await job.trains()
    near, far = halve(job)
    await asyncio.sleep(world.dice.uniform(1, 60))
    world.mend(near, far)
    return [job]


def halve(job: Job) -> tuple[list[str], list[str]]:
    """Part node 0 and another node from the rest of a job of four nodes; the addresses of both halves."""
    ranks = [0, *job.dice.sample(range(1, 4), 3)]
    near, far = ([job.current[rank].address for rank in half] for half in (ranks[:2], ranks[2:]))
    for rank in ranks[2:]:
        job.world.rules.harmed(job.current[rank], "cut off from node 0", until=0.1)
    job.world.part(near, far)
    return near, far


async def two_leaders(world: World) -> list[Job]:
    """An elastic job falls into two halves, and somebody starts another node 0 in the half that has none."""
    job = Job(world, dataclasses.replace(draw_order("trainer", world.dice), nodes=4, least=2, shared=False, steps=45))
    await job.start_all()
    await job.trains()
    near, _ = halve(job)
    leader = world.new_machine()
    world.part(near, [leader])
    for address in near:
        world.network.machine(address).hosts[job.order.name] = near[0]  # what its half of the network knows
    job.start(0, leader)
    return [job]


async def told_to_go(world: World) -> list[Job]:
    """Nodes are told to go, node 0 perhaps among them, and the scheduler replaces them: the others wait for that."""
    dice = world.dice
    order = draw_order("trainer", dice)
    job = Job(world, dataclasses.replace(order, least=order.nodes, replaces=True))
    await job.start_all()
    await job.trains()
    await asyncio.sleep(dice.uniform(0, 10))
    gone = dice.sample(list(job.current.values()), dice.randrange(1, order.nodes))
    for launcher in gone:
        ask_to_stop(launcher)
        await asyncio.sleep(dice.choice((0.0, dice.uniform(0, 2))))
    for launcher in gone:
        while not launcher.done:
            await asyncio.sleep(0.5)
        if launcher.code not in (0, 75):
            world.rules.fail(f"{launcher.process.name} was asked to stop, and ended with {launcher.code}")
    for launcher in gone:
        if launcher.code == 75:
            await asyncio.sleep(dice.uniform(0, 8))
            job.start(launcher.rank)
    return [job]


async def reclaimed(world: World) -> list[Job]:
    """Clouds take machines back, with a notice each. An elastic job continues without those nodes, and takes others in; any other job
    waits for others in their place. No step is lost.
    """
    dice, job = world.dice, Job(world, draw_order("trainer", world.dice))
    order = job.order
    elastic = order.least < order.nodes
    world.rules.lossless.add(order.name)
    await job.start_all()
    await job.trains()
    most = order.nodes - (order.least if elastic else 1)
    ranks = dice.sample(range(int(elastic), order.nodes), dice.randrange(1, most + 1))
    await asyncio.gather(*(take_back(job, rank, replaced=not elastic or dice.random() < 0.5) for rank in ranks))
    return [job]


async def take_back(job: Job, rank: int, *, replaced: bool) -> None:
    """Announce at a moment that the machine of a node goes away; it is `replaced` by another one, or never."""
    world, dice = job.world, job.dice
    await asyncio.sleep(dice.choice((0.0, dice.uniform(0, 3), dice.uniform(0, 40))))
    launcher = job.current[rank]
    await leave(launcher, dice.uniform(30, 120))
    if launcher.code not in (0, 75):
        world.rules.fail(f"{launcher.process.name} was to leave, and ended with {launcher.code}")
    if launcher.code == 75 and not replaced:
        del job.current[rank]
    elif launcher.code == 75:
        await asyncio.sleep(dice.uniform(0, 20))
        job.start(rank)


async def leave(launcher: Launcher, left: float, *, at_once: bool = False) -> None:
    """A cloud announces that a machine goes away in so many seconds, which its launcher sees at its next look or `at_once`. Wait
    until the launcher has ended: it must, by then.
    """
    world, now, name = launcher.world, launcher.world.loop.time(), launcher.world.dice.choice([*CLOUDS])
    left = 30.0 if name == "gcp" else left  # which does not say how much it is
    if launcher.done:
        return
    world.log(launcher.process.name, f"NOTICE: its machine goes away in {left:.0f} s, says {name}")
    late = 0.0 if at_once else world.dice.uniform(0, LOOK)
    await asyncio.sleep(late)
    launcher.hear(name, left, late)
    if world.dice.random() < 0.3:  # as an agent of the cloud or of the scheduler does
        await asyncio.sleep(world.dice.uniform(0, 8))
        if not launcher.done:
            ask_to_stop(launcher)
    while not launcher.done:
        await asyncio.sleep(0.5)
        if launcher.clock.monotonic() > now + left:
            world.rules.fail(f"{launcher.process.name} still runs, and its machine goes away")


async def all_reclaimed(world: World) -> list[Job]:
    """So many machines are taken back at once that nobody is left to continue, or an elastic job loses node 0: all stop."""
    dice, job = world.dice, Job(world, draw_order("trainer", world.dice))
    order = job.order
    world.rules.lossless.add(order.name)
    await job.start_all()
    await job.trains()
    await asyncio.sleep(dice.uniform(0, 10))
    fewest = order.nodes if order.least == order.nodes else 1
    ranks = [0, *dice.sample(range(1, order.nodes), dice.randrange(fewest, order.nodes + 1) - 1)]
    job.due = Word.STOPPED
    await asyncio.gather(*(leave(job.current[rank], dice.uniform(30, 120), at_once=True) for rank in ranks))
    return [job]


async def never_replaced(world: World) -> list[Job]:
    """A job of a fixed size loses a machine, and nobody starts another one: the others wait, and end with 76."""
    dice = world.dice
    order = draw_order("trainer", dice)
    job = Job(world, dataclasses.replace(order, least=order.nodes))
    await job.start_all()
    await job.trains()
    await asyncio.sleep(dice.uniform(0, 10))
    gone = dice.choice(list(job.current.values()))
    await leave(gone, dice.uniform(30, 120))
    while not all(one.done for one in job.current.values()):
        await asyncio.sleep(1)
    codes = {one.code for one in job.current.values() if one is not gone}
    if (gone.code, codes) not in ((75, {76}), (0, {0})):  # it came too late
        world.rules.fail(f"{gone.process.name} ended with {gone.code}, and the others with {codes}")
    return []  # it came to no end that all agreed on


def draw_spared(dice: random.Random) -> Order:
    """A job with spare nodes."""
    order = draw_order("trainer", dice)
    return dataclasses.replace(order, least=order.nodes, spares=dice.choice((1, 1, 2)))


async def spared(world: World) -> list[Job]:
    """A job with spare nodes, to whose nodes harm is done, up to three times, spare ones and node 0 among them."""
    job = Job(world, draw_spared(world.dice))
    harms = [Harm(job).strike() for _ in range(world.dice.randrange(4))]
    await asyncio.gather(job.start_all(), *harms)
    return [job]


async def idle_spares(world: World) -> list[Job]:
    """Spare nodes join late, leave and are lost while the others train, who make one attempt."""
    dice, job = world.dice, Job(world, draw_spared(world.dice))
    for rank in range(job.order.nodes):
        job.start(rank)
    await job.trains()
    for _ in range(dice.randrange(1, 6)):
        rank = dice.randrange(job.order.nodes, job.order.nodes + job.order.spares)
        if rank in job.current and dice.random() < 0.7:
            await lose(job.current.pop(rank), dice)
        elif rank not in job.current:
            job.start(rank)
        await asyncio.sleep(dice.uniform(0, 8))
    job.attempts = 1
    return [job]


async def replaced(world: World) -> list[Job]:
    """A node is lost for good while a spare node waits: the next attempt begins before anybody would wait for the lost one."""
    dice, job = world.dice, Job(world, dataclasses.replace(draw_spared(world.dice), spares=1))
    await job.start_all()
    while not all(one.team and one.team.moved for rank, one in job.current.items() if rank < job.order.nodes):
        await asyncio.sleep(0.5)
    rank = dice.randrange(1, job.order.nodes)
    while world.rules.newest(job.current[job.order.nodes]) == 0:
        await asyncio.sleep(0.1)
    launcher = job.current.pop(rank)
    world.rules.harmed(launcher, "killed for good", until=0.1)
    launcher.process.kill()
    await asyncio.sleep(WINDOW - 1)
    left = job.current[0]
    if world.rules.newest(left) == 1 and not left.done:
        world.rules.fail(f"a spare node waited, and {left.process.name} still waits for {launcher.process.name}")
    return [job]


async def lose(launcher: Launcher, dice: random.Random) -> None:
    """A launcher is asked to leave, is killed, or is frozen and then killed."""
    if launcher.done:
        return
    how = dice.choice(("told", "killed", "frozen"))
    launcher.world.log(launcher.process.name, f"HARM: {how}")
    if how == "told":
        ask_to_stop(launcher)
        while not launcher.done:  # else the next one of this rank finds it taken
            await asyncio.sleep(0.5)
        return
    if how == "frozen":
        launcher.process.freeze()
        await asyncio.sleep(dice.uniform(0, 20))
    launcher.process.kill()


async def handed_over(world: World) -> list[Job]:
    """Nodes are lost for good or told to go, as many as there are spare nodes, at once or while one of these takes a place."""
    dice, job = world.dice, Job(world, draw_spared(world.dice))
    await job.start_all()
    await job.trains()
    await asyncio.sleep(dice.uniform(0, 10))
    for _ in range(dice.randint(1, job.order.spares)):
        ranks = [rank for rank, one in job.current.items() if rank and not one.done]
        launcher = job.current.pop(dice.choice(ranks))
        how = dice.choice(("told", "noticed", "killed", "killed"))
        if how == "told":
            ask_to_stop(launcher)
        elif how == "noticed":
            await leave(launcher, dice.uniform(30, 120))
        else:
            world.rules.harmed(launcher, "killed for good", until=0.1)
            launcher.process.kill()
        if dice.random() < 0.5:
            await asyncio.wait([asyncio.ensure_future(world.message(dice.choice(MOMENTS), job.order.name))], timeout=5)
    return [job]


def draw_headed(dice: random.Random) -> Order:
    """A job with fewer spare nodes than nodes, of which one can take the place of node 0."""
    order = draw_spared(dice)
    nodes = max(order.nodes, order.spares + 1)
    return dataclasses.replace(order, nodes=nodes, least=nodes)


async def train_with_spares(world: World, order: Order | None = None) -> Job:
    """A job of which all nodes train, and all spare nodes wait."""
    job = Job(world, order or draw_headed(world.dice))
    await job.start_all()
    there = job.current.values()
    while not (any(one.team and one.team.moved for one in there) and all(map(world.rules.newest, there))):
        await asyncio.sleep(0.1)
    await asyncio.sleep(world.dice.uniform(0.1, 10))
    return job


async def continues(job: Job, seconds: float) -> None:
    """Within so many seconds the job is over, or all of its launchers are in one attempt, as spare nodes or not."""
    rules, until = job.world.rules, job.world.loop.time() + seconds
    while not any(one.done for one in job.current.values()) and not rules.together(job.current.values()):
        if job.world.loop.time() > until:
            known = {rank: rules.newest(one) for rank, one in job.current.items()}
            rules.fail(f"after {seconds:.0f} s the launchers are not in one attempt: {known}")
        await asyncio.sleep(0.5)


async def headless(world: World) -> list[Job]:
    """Node 0 is lost for good, and others with it or while a spare node takes its place, but no more than there are spare nodes."""
    dice, job = world.dice, await train_with_spares(world)
    await lose_for_good(job, 0)
    for _ in range(dice.randrange(job.order.spares)):
        if dice.random() < 0.7:
            await asyncio.wait([asyncio.ensure_future(world.message(dice.choice(MOMENTS), job.order.name))], timeout=20)
        await lose_for_good(job, dice.choice([*job.current]))
    await continues(job, 120)
    return [job]


async def succeeded(world: World) -> list[Job]:
    """A spare node leads in the place of node 0, and another node is killed, perhaps that one: the next attempt begins before any
    launcher would give up leading.
    """
    order = dataclasses.replace(draw_headed(world.dice), nodes=3, least=3, spares=2, steps=150)
    job = await train_with_spares(world, order)
    await lose_for_good(job, 0)
    await continues(job, 60)
    await asyncio.sleep(world.dice.uniform(3, 8))
    kill_for_good(job, world.dice.choice([*job.current]))
    await continues(job, 9)
    return [job]


async def in_turn(world: World) -> list[Job]:
    """One node after another is killed while a spare node waits, the one that leads among them, and another launcher starts once
    the next attempt has begun, as the next spare node: none of the kills has to wait for a window or for a time-out. Each attempt
    leaves a newer snapshot: without progress, the next one would begin after a pause.
    """
    dice, order = world.dice, draw_headed(world.dice)
    job = await train_with_spares(world, dataclasses.replace(order, steps=200, save_every=2))
    for _ in range(dice.randrange(2, 7)):
        place = dice.choice((0, dice.randrange(order.nodes)))
        rank = next(rank for rank, one in job.current.items() if world.rules.place(one) == place)
        launcher = job.current.pop(rank)
        world.rules.harmed(launcher, "killed", until=0.1)
        launcher.process.kill()
        await continues(job, REPLACED)
        job.start(rank)
        await continues(job, 30)
        await asyncio.sleep(dice.uniform(6, 12))
    return [job]


def kill_for_good(job: Job, rank: int) -> None:
    """A launcher is killed, and no other one is started in its place so far."""
    launcher = job.current.pop(rank)
    job.world.rules.harmed(launcher, "killed for good", until=0.1)
    launcher.process.kill()


async def lose_for_good(job: Job, rank: int) -> None:
    """A launcher is killed, or its machine loses power or its network, and does not come back."""
    if any(one.done for one in job.current.values()):
        return
    launcher, how = job.current.pop(rank), job.dice.choice(("killed", "killed", "power cut", "cut off"))
    machine = job.world.network.machine(launcher.address)
    job.world.rules.harmed(launcher, f"{how} for good", until=0.1)
    machine.powered, machine.connected = how != "power cut", how != "cut off"
    if how != "cut off":
        launcher.process.kill()


async def hurried(world: World) -> list[Job]:
    """Node 0 is lost, and another one starts at once. Who ran beside it has a place in the next attempt, although spare nodes are there
    sooner; one of them has a rank that would run at the first start.
    """
    dice, order = world.dice, dataclasses.replace(draw_headed(world.dice), steps=100)
    job, late = Job(world, order), order.nodes - 1
    for rank in range(order.nodes + order.spares):
        if rank != late:
            job.start(rank)
    await job.trains()
    job.start(late)
    while not all(map(world.rules.newest, job.current.values())):
        await asyncio.sleep(0.1)
    await asyncio.sleep(dice.uniform(0, 10))
    kill_for_good(job, 0)
    killed = world.loop.time()
    ran = [one for one in job.current.values() if world.rules.place(one) != SPARE]
    await asyncio.sleep(dice.uniform(0, 2))
    job.start(0)
    await continues(job, 60)
    in_vain = (
        world.loop.time() > killed + SUCCEED_SECONDS
    )  # somebody waited for the others, some of whom found another leader
    for one in ran:
        if world.rules.place(one) == SPARE and not in_vain:
            world.rules.fail(f"{one.process.name} ran beside node 0, and has no place in the next attempt")
    return [job]


async def bereaved(world: World) -> list[Job]:
    """A spare node leads in the place of node 0 and loses another node, too. A new node 0 finds it: as many as an attempt needs, of whom
    only one that ran is missing, so that nobody waits for the window.
    """
    job = await train_with_spares(world, dataclasses.replace(draw_headed(world.dice), spares=1, steps=150))
    kill_for_good(job, 0)
    await continues(job, 60)
    await asyncio.sleep(world.dice.uniform(1, 8))
    kill_for_good(job, world.dice.choice([rank for rank, one in job.current.items() if not one.leads]))
    await asyncio.sleep(world.dice.uniform(SILENCE, 40))
    job.start(0)
    await continues(job, WINDOW - 2)
    return [job]


async def unheard(world: World) -> list[Job]:
    """Node 0 is lost, and the spare node that leads in its place is cut off at the moment in which it starts an attempt: nobody else
    hears of that one. Another node 0 starts, and then the spare node has network again.
    """
    dice, order = world.dice, dataclasses.replace(draw_headed(world.dice), steps=100)
    job = await train_with_spares(world, order)
    kill_for_good(job, 0)
    await world.message("start", job.order.name)
    leader = next(one for one in job.current.values() if one.leads)
    machine = world.network.machine(leader.address)
    world.rules.harmed(leader, "cut off", until=0.1)
    machine.connected = False
    await asyncio.sleep(dice.uniform(0, 20))
    job.start(0)
    await asyncio.sleep(dice.uniform(0, 40))
    machine.connected = True
    world.log(leader.process.name, "MENDED: it has network again")
    await continues(job, 120)
    return [job]


async def deposed(world: World) -> list[Job]:
    """Node 0 is frozen, cut off or killed, and a spare node leads in its place. It joins the others when it is back, or when another is started."""
    dice, job = world.dice, await train_with_spares(world)
    launcher = job.current[0]
    if launcher.done:
        return [job]
    machine, how = world.network.machine(launcher.address), dice.choice(("frozen", "cut off", "killed"))
    world.rules.harmed(launcher, f"{how} for a while", until=0.1)
    if how == "frozen":
        launcher.process.freeze()
    elif how == "cut off":
        machine.connected = False
    else:
        launcher.process.kill()
        del job.current[0]
    if dice.random() < 0.7:
        await asyncio.sleep(dice.uniform(0, 50))
    else:
        await asyncio.wait([asyncio.ensure_future(world.message(dice.choice(MOMENTS), job.order.name))], timeout=50)
    world.log(launcher.process.name, "MENDED: node 0 is back")
    if how == "frozen":
        launcher.process.thaw(world.loop)
        world.rules.thaws(launcher)
    elif how == "cut off":
        machine.connected = True
    else:
        job.start(0, *dice.choice(((), (launcher.address,))))
    await continues(job, 120)
    return [job]


async def stunned(world: World) -> list[Job]:
    """Node 0 is frozen as soon as a spare node has come, for about as long as makes a node a lost one. When it runs again it takes all
    others for lost, and the spare node, which heard it last, still follows it. The job continues with all of them.
    """
    dice, order = world.dice, dataclasses.replace(draw_headed(world.dice), steps=100)
    job = Job(world, order)
    for rank in range(order.nodes):
        job.start(rank)
    await job.trains()
    await asyncio.sleep(dice.uniform(0, 2))
    job.start(order.nodes)
    while not world.rules.newest(job.current[order.nodes]):
        await asyncio.sleep(0.01)
    launcher = job.current[0]
    world.rules.harmed(launcher, "frozen", until=0.1)
    launcher.process.freeze()
    await asyncio.sleep(dice.uniform(10.5, 12))
    thaw(launcher)
    await continues(job, 120)
    return [job]


async def overlooked(world: World) -> list[Job]:
    """A spare node leads in the place of node 0, which was cut off. The only launcher beside it is frozen, and the one that replaces
    it finds node 0, which is back: they are as many as an attempt needs, but the frozen one may run again beside the spare node.
    """
    dice, order = world.dice, dataclasses.replace(draw_headed(world.dice), nodes=2, least=2, spares=1, steps=100)
    job = await train_with_spares(world, order)
    head, leads = job.current[0], job.current[2]
    world.rules.harmed(head, "cut off", until=0.1)
    world.network.machine(head.address).connected = False
    while world.rules.place(leads) == SPARE:
        await asyncio.sleep(0.1)
    await asyncio.sleep(dice.uniform(0, 10))
    frozen = job.current.pop(1)
    world.rules.harmed(frozen, "frozen, and to be replaced", until=0.1)
    frozen.process.freeze()
    world.network.machine(head.address).connected = True
    world.log(head.process.name, "MENDED: it has network again")
    job.start(1)
    await asyncio.sleep(dice.uniform(0, 30))
    thaw(frozen)
    await continues(job, 120)
    return [job]


async def parted(world: World) -> list[Job]:
    """The network falls into two parts for a while: the larger one continues if it has enough launchers, and never both. Or node 0 is
    cut off from some launchers only.
    """
    dice, job = world.dice, await train_with_spares(world)
    if any(one.done for one in job.current.values()):
        return [job]
    ranks = dice.sample([*job.current], len(job.current))
    size = dice.randrange(1, len(ranks))
    parts = ranks[:size], ranks[size:]
    if dice.random() < 0.3:
        parts = [0], [rank for rank in parts[1] if rank]
    near, far = ([job.current[rank].address for rank in part] for part in parts)
    for launcher in job.current.values():
        world.rules.harmed(launcher, "cut off from others", until=0.1)
    world.part(near, far)
    await asyncio.sleep(dice.uniform(1, 80))
    world.mend(near, far)
    await continues(job, 120)
    return [job]


async def woken(world: World) -> list[Job]:
    """A node is frozen and replaced, and runs again beside all spare nodes, or beside node 0 and all spare nodes but one; these are cut
    off from the others. They are as many as an attempt needs, but of one rank there are two launchers.
    """
    dice, order = world.dice, draw_headed(world.dice)
    nodes = order.spares + 1
    job = Job(world, dataclasses.replace(order, nodes=nodes, least=nodes, steps=60))
    for rank in range(nodes + order.spares):  # the spare nodes come last
        job.start(rank)
        await asyncio.sleep(0.2)
    await job.trains()
    while not all(map(world.rules.newest, job.current.values())):
        await asyncio.sleep(0.1)
    frozen, replacement = job.current.pop(dice.randrange(nodes)), world.new_machine()
    world.rules.harmed(frozen, "frozen, and to be replaced", until=0.1)
    frozen.process.freeze()
    head = [0] if frozen.rank and dice.random() < 0.5 else []
    beside = [*head, *range(nodes + len(head), nodes + order.spares)]
    if head:
        job.start(frozen.rank, replacement)
        await asyncio.sleep(dice.uniform(6, 12))  # node 0 has welcomed it
    near = [frozen.address, *(job.current[rank].address for rank in beside)]
    far = [replacement, *(one.address for rank, one in job.current.items() if rank not in beside)]
    for one in job.current.values():
        world.rules.harmed(one, "cut off from others", until=0.1)
    world.part(near, far)
    if not head:
        await asyncio.sleep(0.0 if frozen.rank else SILENCE)  # until then the others follow node 0
        job.start(frozen.rank, replacement)
    await asyncio.sleep(SILENCE + dice.uniform(0, 30))
    thaw(frozen)
    await asyncio.sleep(dice.uniform(5, 40))
    world.mend(near, far)
    return [job]


def thaw(launcher: Launcher) -> None:
    """Let a frozen launcher run again."""
    world = launcher.world
    launcher.process.thaw(world.loop)
    world.rules.thaws(launcher)
    world.log(launcher.process.name, "MENDED: it runs again")


def ask_to_stop(launcher: Launcher) -> None:
    """Send SIGTERM to a launcher."""
    launcher.world.log(launcher.process.name, "SIGTERM")
    launcher.stops.came.append(Stop(launcher.clock.monotonic(), signal.SIGTERM, "SIGTERM"))


async def attacked(world: World) -> list[Job]:
    """A job with a token, with or without spare nodes. Somebody who does not know the token (attacker.py) changes nothing."""
    dice = world.dice
    order = dataclasses.replace(
        dice.choice((draw_order("trainer", dice), draw_spared(dice))), token="correct horse battery"
    )
    job, attacker = Job(world, order), Attacker(world, order)
    harms = [Harm(job).strike() for _ in range(dice.choice((0, 0, 1)))]
    for rank in dice.sample(range(order.nodes + order.spares), order.nodes + order.spares):
        await asyncio.sleep(dice.uniform(0, 10))
        job.start(rank)
    await asyncio.gather(*harms)
    job.attempts = 0 if harms else 1
    while not any(one.done for one in job.current.values()):
        await asyncio.sleep(1)
    attacker.end()
    return [job]


STORIES = (
    *(harmed,) * 14, *(misled,) * 2, *(stopped,) * 2, *(failing,) * 2, failing_together, apart, latecomer, split, told_to_go,
    *(reclaimed,) * 3, all_reclaimed, never_replaced,
)  # fmt: skip
UNRANKED = (unranked,)
WITH_SPARES = (
    *(spared,) * 3, in_turn, idle_spares, *(handed_over,) * 2, replaced, *(headless,) * 3, *(deposed,) * 3, *(parted,) * 2, woken, succeeded, unheard, hurried, bereaved, stunned, overlooked,
)  # fmt: skip


async def tell(world: World, *stories: Story) -> list[Job]:
    """One of the stories; its jobs, once all has happened that was to happen."""
    story = world.dice.choice(stories or STORIES)
    world.log("story", story.__name__)
    return await story(world)
