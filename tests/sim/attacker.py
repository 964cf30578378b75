"""Somebody in the simulated network who does not know the token of a job, and wants to take part in it, lead it or end it.

It hears every message. It connects with messages of its own and with those that it heard, and for a while the job's name leads to
it on some machines: there it pretends to be node 0, or relays connections to node 0 and changes what passes.
"""

from __future__ import annotations

import asyncio
import random
import sys
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path
from typing import Any

from virtual_launcher import Order
from virtual_network import SEEN_AS
from virtual_time import HERE, Process
from world import World

from slipway.launch.rendezvous import messages as wire
from slipway.launch.rendezvous.authentication import Session, key_of
from slipway.launch.rendezvous.client import UNPROVEN_SECONDS
from slipway.launch.rendezvous.codec import decode, encode
from slipway.launch.rendezvous.link import SEALED_BYTES
from slipway.launch.verdict.restarts import Ending
from slipway.launch.verdict.verdict import judge
from slipway.protocol.decoding import MalformedError

# simulate.py is a process of its own.
sys.path += [str(Path(__file__).parents[1] / "unit")]

from participants import make_info, make_outcome

PORT = 29500
GUESSES = ("", "guess", "0" * 32)
HEARD = 10  # messages from one process to another that are kept
PATIENCE = 5.0  # seconds for an answer


class Attacker:
    """One attacker on a machine of its own, until `end`."""

    def __init__(self, world: World, order: Order) -> None:
        self._world, self._order = world, order
        self._dice = random.Random(world.seed + 0.5)
        self._process = Process("attacker", world.new_machine())
        self._heard: dict[tuple[str, str], list[bytes]] = {}  # what one process has sent to another
        self._tasks: list[asyncio.Task[None]] = []
        self._sent, world.network.sent = world.network.sent, self._hear
        self._start(self._connect_again_and_again())
        self._start(self._mislead())

    def end(self) -> None:
        """It gives up."""
        self._process.kill()
        self._world.network.end_process(self._process)
        for task in self._tasks:
            task.cancel()

    def _start(self, work: Any) -> None:
        context = copy_context()
        context.run(HERE.set, self._process)
        self._tasks.append(asyncio.get_running_loop().create_task(work, context=context))

    def _hear(self, sender: Process | None, receiver: Process | None, data: bytes) -> None:
        if sender and receiver and self._process not in (sender, receiver):
            said = self._heard.setdefault((sender.name, receiver.name), [])
            said.extend([data] if len(said) < HEARD else [])
        self._sent(sender, receiver, data)

    async def _connect_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(self._dice.uniform(0.01, 1))
            doors = [
                (address, port)
                for address, machine in self._world.network.machines.items()
                for port in machine.listeners
                if address != self._process.address
            ]
            if not doors:
                continue
            address, port = self._dice.choice(doors)
            with suppress(OSError, MalformedError, TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    reader, writer = await asyncio.open_connection(address, port, limit=SEALED_BYTES)
                    try:
                        await self._dice.choice((self._introduce, self._introduce, self._replay))(reader, writer)
                    finally:
                        writer.transport.abort()

    async def _introduce(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Say hello, or that this launcher leads, with a token that is guessed, the listener's own nonce, or no seal at all."""
        dice, rank = self._dice, self._dice.randrange(self._order.nodes + self._order.spares)
        theirs = decode(await reader.readuntil(b"\n")).nonce
        own = dice.choice((theirs, dice.randbytes(16).hex()))
        writer.write(encode(wire.Greeting(own)))
        proof = await reader.readuntil(b"\n")
        info = make_info(rank, self._order.nodes, host="attacker", tries=3, attempt=7, nonce=dice.choice(("", "n")))
        hello = wire.Hello("attacker", 0.0, PORT, "k", info, door=PORT)
        line = encode(dice.choice((hello, hello, wire.Led(info, self._process.address, PORT))))
        session = Session(key_of(dice.choice(GUESSES)), listener=theirs, connector=own, listens=False)
        seal = dice.choice((session.seal(line), session.seal(line), line, proof.partition(b" ")[0] + b" " + line))
        writer.write(seal)
        await self._fail_if_admitted(reader)

    async def _replay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Repeat what one process has sent to another."""
        for data in self._dice.choice([*self._heard.values(), []]):
            writer.write(data)
        await self._fail_if_admitted(reader)

    async def _fail_if_admitted(self, reader: asyncio.StreamReader) -> None:
        """Nobody welcomes the attacker, whatever it has sent."""
        while True:
            line = await reader.readuntil(b"\n")
            if b'"type":"welcome"' in line or b'"type":"led"' in line:
                self._world.rules.fail(f"the attacker is answered {line[:200]!r}")

    async def _mislead(self) -> None:
        """Let the job's name lead here, on some machines, for less time than a launcher needs to give up on what it finds."""
        network, dice, name = self._world.network, self._dice, self._order.name
        listener = network.listen(self._process, PORT)
        await asyncio.start_server(self._answer, sock=listener, limit=SEALED_BYTES)
        while True:
            share, until = dice.random(), self._world.loop.time() + dice.uniform(0, UNPROVEN_SECONDS * 0.6)
            self._world.log("attacker", f"is {name} for {share:.0%} of the machines, until {until:.1f}")
            seen: set[str] = set()
            while self._world.loop.time() < until:
                for address in sorted(network.machines.keys() - seen - {self._process.address}):
                    if dice.random() < share:
                        network.machines[address].hosts[name] = self._process.address
                seen.update(network.machines)
                await asyncio.sleep(0.1)
            for machine in network.machines.values():
                machine.hosts.pop(name, None)
            await asyncio.sleep(dice.uniform(PATIENCE, 10))  # long enough for a launcher to find node 0

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        act = self._dice.choice((self._pretend, self._relay))
        with suppress(OSError, MalformedError, TimeoutError, asyncio.IncompleteReadError):
            await act(reader, writer)
        writer.transport.abort()

    async def _pretend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Be node 0: admit whoever comes, and say that the job has ended well."""
        own = self._dice.randbytes(16).hex()
        writer.write(encode(wire.Greeting(own)))
        theirs = decode(await reader.readuntil(b"\n")).nonce
        session = Session(key_of(self._dice.choice(GUESSES)), listener=own, connector=theirs, listens=True)
        info = make_info(1, self._order.nodes, host="attacker", nonce="n")
        seals = self._dice.random() < 0.8
        for message in (
            wire.Proof(writer.get_extra_info("peername")[0]),
            wire.Welcome(60, "attacker", 12),
            wire.Led(info, self._process.address, PORT),
            *self._endings(),
        ):
            line = encode(message)
            writer.write(session.seal(line) if seals else line)
        async with asyncio.timeout(PATIENCE):
            said = await reader.readuntil(b"\n")
        if b'"type":"refused"' not in said:
            self._world.rules.fail(f"a launcher tells the attacker {said[:200]!r}")

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what both sides say. What comes from this machine's own address passes unchanged; between the two machines, where
        node 0 sees the other one's address, something is changed before an attempt can start.
        """
        network = self._world.network
        if self._order.name not in network.names:
            return  # node 0 has not started yet
        between = self._dice.random() < 0.6
        SEEN_AS.set(writer.get_extra_info("peername")[0] if between else "")
        there, out = await asyncio.open_connection(network.names[self._order.name], PORT, limit=SEALED_BYTES)
        lines = self._dice.randrange(8) if between else 1000  # that pass unchanged, in each direction

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            before = b""
            for number in range(lines + 1):
                line = await source.readuntil(b"\n")
                if not between and any(b'"type":"%s"' % kind in line for kind in (b"hello", b"led", b"welcome")):
                    self._world.rules.fail(f"a launcher speaks through the attacker: {line[:200]!r}")
                if number == lines or (
                    between and any(b'"type":"%s"' % kind in line for kind in (b"probe", b"start", b"probed"))
                ):
                    break
                sink.write(line)
                before = line
            await self._dice.choice((self._swap, self._repeat, self._insert, self._change))(source, sink, before, line)
            await asyncio.sleep(PATIENCE)

        pumps = [asyncio.ensure_future(pump(reader, out)), asyncio.ensure_future(pump(there, writer))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in pumps:
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task
            out.transport.abort()

    async def _swap(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, before: bytes, line: bytes) -> None:
        async with asyncio.timeout(PATIENCE):
            sink.write(await source.readuntil(b"\n") + line)

    async def _repeat(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, before: bytes, line: bytes
    ) -> None:
        sink.write(before + line)

    async def _insert(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, before: bytes, line: bytes
    ) -> None:
        sink.write(encode(self._dice.choice(self._endings())) + line)

    async def _change(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, before: bytes, line: bytes
    ) -> None:
        seal, mark, text = line.rpartition(b" ")
        sink.write(seal + mark + text.replace(b"1", b"2", 1).replace(b"0", b"1", 1))

    def _endings(self) -> list[object]:
        """Messages with which a leader ends a job."""
        return [
            wire.End(78, ("the attacker says so",)),
            wire.Refused(78, "the attacker says so"),
            Ending(judge((make_outcome(0),))),
        ]
