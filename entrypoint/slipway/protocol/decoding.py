"""JSON that is read back becomes a frozen dataclass or a NamedTuple, whose annotations say what is allowed. Nothing is executed.

Fields are of type str, int, float, bool, a StrEnum, `X | None`, `tuple[X, ...]` or another such class. Text becomes one line that
is safe to print.
"""

import dataclasses
import functools
import math
import types
from enum import StrEnum
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from slipway.protocol.printable import one_line

T = TypeVar("T")


class MalformedError(Exception):
    """A value is not what its annotation allows; the text names the field."""


def decode(kind: type[T], value: object, name: str = "") -> T:
    """Return the `kind` that an object of JSON describes; `name` is what messages call it. Raises MalformedError."""
    if not isinstance(value, dict):
        raise MalformedError(f"{name} is not an object")
    given = {}
    for field, (hint, is_required) in _fields(kind).items():  # type: ignore[arg-type]  # classes are hashable
        if field in value:
            given[field] = _decode_value(hint, value[field], f"{name}.{field}")
        elif is_required:
            raise MalformedError(f"{name}.{field} is missing")
    try:
        return kind(**given)
    except ValueError as error:
        raise MalformedError(f"{name}: {error}") from None


def decode_rows(kind: type[T], rows: object) -> list[T]:
    """Return what the objects of a list describe. Those that make no sense are left out, as is a list that is none."""
    found = []
    for row in rows if isinstance(rows, list) else ():
        try:
            found.append(decode(kind, row))
        except MalformedError:
            continue
    return found


@functools.cache
def _fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    """The fields of a class: the type of each, and whether it has no default."""
    hints = get_type_hints(kind)
    if dataclasses.is_dataclass(kind):
        return {
            field.name: (hints[field.name], field.default is dataclasses.MISSING) for field in dataclasses.fields(kind)
        }
    return {name: (hint, name not in kind._field_defaults) for name, hint in hints.items()}


def _decode_value(kind: Any, value: Any, name: str) -> Any:
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_field_defaults"):
        return decode(kind, value, name)
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
