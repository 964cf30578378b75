"""The wire format of the rendezvous: one JSON object per line, at most 64 KiB, each with the protocol's version and its type.

What arrives is checked field by field against the dataclass of its type; nothing is ever executed or unpickled. asyncio is not
imported here: `slipway logs` and launchers without a network use this, too.
"""

import json
from typing import Any

from slipway.launch.hangs.stack_dump import StackDump
from slipway.launch.rendezvous.messages import KINDS, Stuck
from slipway.protocol.decoding import MalformedError
from slipway.protocol.decoding import decode as decode_object
from slipway.protocol.printable import one_line

PROTOCOL = 3
LINE_BYTES = 65_536


class OtherProtocolError(MalformedError):
    """A message of another version of this protocol."""


def encode(message: Any) -> bytes:
    """A message as one line; ValueError where it would exceed LINE_BYTES."""
    fields = {"rendezvous": PROTOCOL, "type": type(message).__name__.lower(), **vars(message)}
    line = json.dumps(fields, separators=(",", ":"), default=vars).encode() + b"\n"
    if len(line) > LINE_BYTES:
        raise ValueError(f"a {fields['type']} message of {len(line)} bytes exceeds the limit of {LINE_BYTES}")
    return line


def stack_dump_line(dump: StackDump, *, first: bool) -> bytes:
    """The message of where a rank is, with as much of its stack as fits into a line."""
    while True:
        try:
            return encode(Stuck(dump, first))
        except ValueError:
            dump = dump.shorter()


def decode(line: bytes) -> Any:
    """The message in a line. Raises MalformedError, whatever the bytes are."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        raise MalformedError("not a line of JSON") from None
    if not isinstance(fields, dict) or "rendezvous" not in fields:
        raise MalformedError("not a message of Slipway")
    if fields["rendezvous"] != PROTOCOL:
        other = one_line(fields["rendezvous"])[:20]
        raise OtherProtocolError(f"another version's launcher: protocol {other} there, {PROTOCOL} here")
    name = fields.get("type")
    if not isinstance(name, str) or name not in KINDS:
        raise MalformedError("a message of an unknown type")
    return decode_object(KINDS[name], fields, name)
