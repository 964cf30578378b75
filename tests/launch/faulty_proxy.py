"""A proxy in front of a server of objects that fails as stores do: it answers itself, loses answers, cuts them short, and is slow."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum

XML = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'
SLOW = 256  # bytes that go at once


class Way(StrEnum):
    """How a request fails."""

    ANSWER = "answered by the proxy"
    LOST = "its effect takes place, and the answer is an error"
    RESET = "the connection is reset before the request has an effect"
    RESET_AFTER = "the connection is reset after the request had its effect"
    CUT = "half of the answer comes"
    TRICKLE = "the answer comes slowly"
    STALE = "a listing is the one before"


@dataclass(frozen=True)
class Fault:
    """A way in which a share of the requests fails, with what is answered. `only` are the methods that fail."""

    way: Way
    status: int = 500
    code: str = "InternalError"
    share: float = 1.0
    only: tuple[str, ...] = ("GET", "PUT", "HEAD", "DELETE", "POST")


@dataclass
class FaultyProxy:
    """Passes requests to the server at a port, and fails as `fault` says, at random with a seed."""

    server: int
    seed: int
    fault: Fault | None = None
    failed: int = 0
    port: int = 0
    _lists: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, after which the connection is closed."""
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            method, target, _ = head.partition(b"\r\n")[0].decode().split(" ")
            body = await reader.readexactly(int(_header(head, b"content-length") or 0))
            await self._answer(writer, method, target, head, body)
        with suppress(ConnectionError):
            writer.close()
            await writer.wait_closed()

    async def _answer(self, writer: asyncio.StreamWriter, method: str, target: str, head: bytes, body: bytes) -> None:
        fault = self.fault
        if fault and (method not in fault.only or self._dice.random() >= fault.share):
            fault = None
        self.failed += fault is not None
        if fault and fault.way == Way.RESET:
            _reset(writer)
            return
        if fault and fault.way == Way.ANSWER:
            writer.write(_error(fault, method))
            return
        before = self._lists.get(target)
        answer = await self._ask(head, body)
        if "list-type=" in target or "comp=list" in target:  # of S3, of Azure
            self._lists[target] = answer
        if fault and fault.way == Way.RESET_AFTER:
            _reset(writer)
        elif fault and fault.way == Way.LOST:
            writer.write(_error(fault, method))
        elif fault and fault.way == Way.CUT:
            begin = answer.index(b"\r\n\r\n") + 4
            writer.write(answer[: begin + (len(answer) - begin) // 2])
        elif fault and fault.way == Way.TRICKLE:
            for place in range(0, len(answer), SLOW):
                writer.write(answer[place : place + SLOW])
                await writer.drain()
                await asyncio.sleep(0)
        else:
            writer.write(before if fault and before else answer)
        await writer.drain()

    async def _ask(self, head: bytes, body: bytes) -> bytes:
        """The server's whole answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server)
        first, _, rest = head.partition(b"\r\n")
        lines = [line for line in rest.split(b"\r\n") if line and not line.lower().startswith(b"connection:")]
        writer.write(b"\r\n".join([first, *lines, b"Connection: close", b"", b""]) + body)
        await writer.drain()
        answer = await reader.read()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        return answer


def _header(head: bytes, name: bytes) -> bytes:
    found = [line.partition(b":")[2].strip() for line in head.split(b"\r\n") if line.lower().startswith(name + b":")]
    return found[0] if found else b""


def _error(fault: Fault, method: str) -> bytes:
    body = XML.format(code=fault.code).encode()
    head = f"HTTP/1.1 {fault.status} {fault.code}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + (b"" if method == "HEAD" else body)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection with RST."""
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@contextmanager
def serve_faults(server: int, seed: int) -> Iterator[FaultyProxy]:
    """A proxy in a thread of its own."""
    proxy, loop = FaultyProxy(server, seed), asyncio.new_event_loop()
    listening = loop.run_until_complete(asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=1 << 20))
    proxy.port = listening.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(_end(listening), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


async def _end(listening: asyncio.Server) -> None:
    """End the server, and whatever it is just doing."""
    listening.close()
    others: list[asyncio.Task[object]] = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
