"""One simulated world: machines, jobs on them, and what befalls them; all of it drawn from one seed."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from rules import Rules
from virtual_launcher import Launcher, Order, Team
from virtual_network import NetworkLoop, VirtualNetwork
from virtual_time import Console, Process

LONGEST = 4_000.0  # seconds after which a job that still runs waits for ever
TYPE = re.compile(rb'"type":"([a-z]+)"')


class World:
    """What exists in a simulation, with its files in `folder`. `lines` is its log: seconds, who, what."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed, self.folder = seed, folder
        self.dice = random.Random(seed)
        self.loop = NetworkLoop()
        self.network = self.loop.network = VirtualNetwork(self.loop, seed, self._sent)
        self.launchers: list[Launcher] = []
        self.lines: list[tuple[float, str, str]] = []
        self.console = Console(self.log)
        self.rules = Rules(self)
        self._triggers: list[tuple[str, str, asyncio.Future[Process]]] = []
        self._teams: dict[str, Team] = {}
        self._addresses = 0

    def log(self, who: str, what: str) -> None:
        """Note an event."""
        self.lines.append((round(self.loop.time(), 6), who, what.replace(str(self.folder), "…")))

    def new_machine(self, ahead: float = 0.0) -> str:
        """The address of a machine that is new, whose wall clock is so many seconds ahead."""
        self._addresses += 1
        address = f"10.0.0.{self._addresses}"
        self.network.machine(address).ahead = ahead
        return address

    def part(self, ones: Sequence[str], others: Sequence[str]) -> None:
        """Let nothing pass between the machines of two groups."""
        self.network.apart |= pairs(ones, others)
        self.log("network", f"HARM: nothing passes between {', '.join(ones)} and {', '.join(others)}")

    def mend(self, ones: Sequence[str], others: Sequence[str]) -> None:
        """Let the machines of two groups reach each other again."""
        self.network.apart -= pairs(ones, others)
        self.log("network", f"MENDED: {', '.join(ones)} and {', '.join(others)} reach each other")

    def launch(self, order: Order, slot: int, address: str, disk: Path) -> Launcher:
        """Start the launcher of a node on a machine; node 0's address is what the job's name leads to."""
        if slot == 0:
            self.network.names[order.name] = address
        launcher = Launcher(self, order, slot, address, disk)
        self.launchers.append(launcher)
        self.log(launcher.process.name, f"starts on {address}")
        return launcher

    def team(self, key: str, order: Order, size: int) -> Team:
        """The workers of an attempt."""
        if key not in self._teams:
            self._teams[key] = Team(self, order, size)
        return self._teams[key]

    def _sent(self, sender: Process | None, receiver: Process | None, data: bytes) -> None:
        for kind in TYPE.findall(data):
            if kind == b"here" and sender and receiver:
                self.rules.visits(receiver.name, sender.name)
            self._trigger(kind.decode(), sender, receiver)

    def _trigger(self, kind: str, sender: Process | None, receiver: Process | None) -> None:
        """Wake who waits for a message of this type, with its sender or receiver."""
        for trigger in list(self._triggers):
            wanted, job, woken = trigger
            there = [one for one in (sender, receiver) if one and one.name.startswith(f"{job}/")]
            if kind == wanted and there and not woken.done():
                woken.set_result(there[-1])
                self._triggers.remove(trigger)

    async def message(self, kind: str, job: str) -> Process:
        """Wait until a message of a type is sent in a job; whoever it is sent to."""
        woken: asyncio.Future[Process] = self.loop.create_future()
        self._triggers.append((kind, job, woken))
        return await woken

    def play(self, story: Coroutine[Any, Any, None]) -> None:
        """Let a story happen, and wait until all launchers have ended. Raises what went wrong first."""
        with self.console.taken():
            asyncio.set_event_loop(self.loop)
            try:
                self.loop.run_until_complete(self._watch(story))
            finally:
                for launcher in self.launchers:
                    launcher.process.kill()
                asyncio.set_event_loop(None)
                self.network.end()
                self.loop.end()

    async def _watch(self, story: Coroutine[Any, Any, None]) -> None:
        told = asyncio.ensure_future(story)
        while not (told.done() and all(launcher.done for launcher in self.launchers)):
            await asyncio.sleep(1)
            if told.done():
                told.result()
            if self.loop.trouble:
                raise self.loop.trouble[0]
            if self.loop.time() > LONGEST:
                waiting = [launcher.process.name for launcher in self.launchers if not launcher.done]
                self.rules.fail(f"{', '.join(waiting)} still run")


def pairs(ones: Sequence[str], others: Sequence[str]) -> set[frozenset[str]]:
    """Each machine of one group with each of the other."""
    return {frozenset((one, other)) for one in ones for other in others}
