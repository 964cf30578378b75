"""One connection that carries the messages of the rendezvous, and how to open it."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Any

from slipway.launch.rendezvous.authentication import NONCE_BYTES, SEAL_BYTES, ForgedError, Session
from slipway.launch.rendezvous.codec import LINE_BYTES, decode, encode
from slipway.launch.rendezvous.connection_errors import RelayedError, SilentError
from slipway.launch.rendezvous.messages import Greeting, Proof, Refused
from slipway.protocol.decoding import MalformedError
from slipway.protocol.errors import CONFIGURATION

DIAL_SECONDS = 5.0  # to resolve a name, and to connect
CLOSE_SECONDS = 2.0  # until what is queued was sent, and the peer has closed its side
BACKLOG_BYTES = 1 << 20  # what may wait for a peer that does not read; with more it is cut off, to bound the memory
SEALED_BYTES = LINE_BYTES + SEAL_BYTES  # of a line on the wire


class Link:
    """A connection with messages instead of bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Wrap a stream pair; the reader's limit bounds the memory an unread line can take."""
        self._reader = reader
        self._writer = writer
        self._ended = False
        self._session: Session | None = None  # until both sides have sent a nonce

    async def authenticate(
        self, key: bytes, random: Random, *, listens: bool, addresses: Callable[[], Collection[str]] = tuple
    ) -> None:
        """Exchange nonces; from then on each message is sealed. The side that `listens` proves first that it knows the `key`.
        `addresses` are this machine's: rules such as Docker's may give a connection to itself another one of them.

        It returns on that side before the other one has proved itself, which happens with that one's first message.
        ForgedError: the listening side does not know the key. RelayedError: it sees another address than this side connects from.
        Without a key nobody can prove either. MalformedError and OSError as `receive`.
        """
        own = random.randbytes(NONCE_BYTES).hex()
        self.send(Greeting(own))
        greeting = await self.receive()
        if not isinstance(greeting, Greeting):
            raise MalformedError("not a greeting")
        if listens:
            self._session = Session(key, listener=own, connector=greeting.nonce, listens=True)
            self.send(Proof(self.peer))
            return
        self._session = Session(key, listener=greeting.nonce, connector=own, listens=False)
        try:
            proof = await self.receive()
        except ForgedError as error:
            self._session = None  # nothing is proved to a listener that proves nothing
            self.send(Refused(CONFIGURATION, str(error)))
            raise
        if not isinstance(proof, Proof):
            raise MalformedError("not a proof")
        own_address = self._address("sockname")
        if key and proof.seen != own_address and not {proof.seen, self.peer} <= {*addresses()}:
            relayed = RelayedError(f"a connection from {own_address} arrives as one from {proof.seen}")
            self.send(Refused(CONFIGURATION, str(relayed)))
            raise relayed

    @property
    def peer(self) -> str:
        """The address at the other end."""
        return self._address("peername")

    def _address(self, end: str) -> str:
        """The address of one end, without the notation for IPv4 in IPv6 and the name of an interface of this machine."""
        name = self._writer.get_extra_info(end)
        return str(name[0]).removeprefix("::ffff:").partition("%")[0] if name else "an unknown address"

    def send(self, message: Any) -> None:
        """Queue a message. A peer that lets a megabyte pile up unread is cut off."""
        self.send_line(encode(message))

    def send_line(self, line: bytes) -> None:
        """The same for a message that is encoded already."""
        if self._ended or self._writer.is_closing():
            return
        self._writer.write(self._session.seal(line) if self._session else line)
        if self._writer.transport.get_write_buffer_size() > BACKLOG_BYTES:
            self.cut()

    async def drain(self) -> None:
        """Wait until the peer has read nearly all that was queued. OSError where the connection ended."""
        await self._writer.drain()

    async def receive(self, seconds: float | None = None) -> Any:
        """The next message. OSError if the connection ended; MalformedError if it holds anything else (ForgedError: something
        that the other side has not sent).

        SilentError where none comes for so many seconds.
        """
        try:
            async with asyncio.timeout(seconds):
                line = await self._reader.readuntil(b"\n")
            return decode(self._session.open(line) if self._session else line)
        except TimeoutError:
            if seconds is None:
                raise  # the system's own
            raise SilentError(f"no heartbeat for {seconds:.0f} s") from None
        except asyncio.IncompleteReadError as end:
            if end.partial:
                raise MalformedError("the connection ended in the middle of a message") from None
            raise ConnectionResetError("the connection was closed") from None
        except asyncio.LimitOverrunError:
            raise MalformedError(f"more than {LINE_BYTES} bytes in one line") from None

    def end(self) -> None:
        """Send what is queued, and nothing after it; what the peer sends is still received."""
        self._ended = True
        with contextlib.suppress(OSError):  # the connection ended before
            self._writer.write_eof()

    async def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Send what is queued, then close; after `seconds` cut it off."""
        self._writer.close()
        try:
            async with asyncio.timeout(seconds):
                await self._writer.wait_closed()
        except OSError:
            self.cut()

    def cut(self) -> None:
        """Close at once."""
        self._writer.transport.abort()


async def send_all(lines: Sequence[bytes], link: Link) -> None:
    """Send many messages, no faster than they are read."""
    with contextlib.suppress(OSError):
        for line in lines:
            link.send_line(line)
            await link.drain()


async def connect(addresses: Sequence[str], port: int) -> Link:
    """Connect to the first of some addresses that takes a connection. OSError has what failed at the last one."""
    error: OSError = OSError("no address")
    for address in addresses[:4]:
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                return Link(*await asyncio.open_connection(address, port, limit=SEALED_BYTES))
        except OSError as failure:
            error = failure
    raise error


async def resolve(address: str) -> tuple[str, ...]:
    """The addresses that a name leads to, the system's first choice first. Raises socket.gaierror."""
    try:
        async with asyncio.timeout(DIAL_SECONDS):
            found = await _ask(address)
    except TimeoutError:  # the resolver itself gives up only after all its tries, half a minute and more
        raise socket.gaierror(socket.EAI_AGAIN, f"no answer within {DIAL_SECONDS:.0f} s") from None
    return tuple(str(target[0]) for *_, target in found)


async def _ask(address: str) -> list[Any]:
    """getaddrinfo in a daemon thread: asyncio's own threads would keep a launcher from ending while DNS hangs."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[Any]] = loop.create_future()

    def settle(found: list[Any] | OSError) -> None:
        if answer.done():
            return
        if isinstance(found, OSError):
            answer.set_exception(found)
        else:
            answer.set_result(found)

    def ask() -> None:
        try:
            found: list[Any] | OSError = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
        except OSError as error:
            found = error
        except UnicodeError:
            found = socket.gaierror(socket.EAI_NONAME, "not a valid name")
        with contextlib.suppress(RuntimeError):  # the loop ended while DNS was thinking
            loop.call_soon_threadsafe(settle, found)

    threading.Thread(target=ask, daemon=True, name="resolve").start()
    return await answer
