"""The wire format of the rendezvous: one JSON object per line, at most 64 KiB, each with the protocol's version and its type.

What arrives is checked field by field against the dataclass of its type; nothing is ever executed or unpickled. asyncio is not
imported here: `slipway logs` and launchers without a network use this, too.
"""

import dataclasses
import functools
import json
import math
import types
from enum import StrEnum
from typing import Any, get_args, get_origin

from slipway.launch.hangs.standing import Standing
from slipway.launch.rendezvous.messages import KINDS, Stands
from slipway.protocol.printable import one_line

PROTOCOL = 2
LINE_BYTES = 65_536


class MalformedError(Exception):
    """A line that is not a message of this protocol; the text says why."""


class OtherProtocolError(MalformedError):
    """A message of another version of this protocol."""


def encode(message: Any) -> bytes:
    """A message as one line; ValueError where it would exceed LINE_BYTES."""
    fields = {"rendezvous": PROTOCOL, "type": type(message).__name__.lower(), **vars(message)}
    line = json.dumps(fields, separators=(",", ":"), default=vars).encode() + b"\n"
    if len(line) > LINE_BYTES:
        raise ValueError(f"a {fields['type']} message of {len(line)} bytes exceeds the limit of {LINE_BYTES}")
    return line


def stands_line(standing: Standing, *, first: bool) -> bytes:
    """The message of where a rank is, with as much of its stack as fits into a line."""
    while True:
        try:
            return encode(Stands(standing, first))
        except ValueError:
            standing = standing.shorter()


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
    return _decode_value(KINDS[name], fields, name)


def _decode_value(kind: Any, value: Any, name: str) -> Any:
    """A value of the annotated type `kind` from what JSON held; MalformedError names the field."""
    if dataclasses.is_dataclass(kind):
        return _decode_fields(kind, value, name)
    if isinstance(kind, types.UnionType):
        return None if value is None else _decode_value(get_args(kind)[0], value, name)
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise MalformedError(f"{name} is not a list")
        return tuple(_decode_value(get_args(kind)[0], item, name) for item in value)
    if issubclass(kind, StrEnum):
        value = next((member for member in kind if member == value), None)
    if kind is float and type(value) is int and abs(value) < 2**53:
        value = float(value)
    if type(value) is not kind:
        raise MalformedError(f"{name} is not of type {kind.__name__}")
    if (kind is float and not math.isfinite(value)) or (kind is int and abs(value) >= 2**53):
        raise MalformedError(f"{name} is out of range")
    return one_line(value) if kind is str else value


@functools.cache
def _fields(kind: type) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kind)


def _decode_fields(kind: Any, value: Any, name: str) -> Any:
    if not isinstance(value, dict):
        raise MalformedError(f"{name} is not an object")
    given = {}
    for field in _fields(kind):
        if field.name in value:
            given[field.name] = _decode_value(field.type, value[field.name], f"{name}.{field.name}")
        elif field.default is dataclasses.MISSING:
            raise MalformedError(f"{name}.{field.name} is missing")
    try:
        return kind(**given)
    except ValueError as error:
        raise MalformedError(f"{name}: {error}") from None
