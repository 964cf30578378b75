"""JSON that is read back becomes a frozen dataclass or a NamedTuple, whose annotations say what is allowed. Nothing is executed.

Fields are of type str, int, float, bool, a StrEnum, `Any` (taken as it is), `X | None`, `tuple[X, ...]`, `tuple[X, Y]`,
`Mapping[K, X]` (K: str, int or a StrEnum) or another such class; `Annotated[X, Between(low, high)]` is a number within limits.
Text becomes one line that is safe to print.
"""

import dataclasses
import functools
import math
import types
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from slipway.protocol.files import whole_number
from slipway.protocol.printable import one_line

T = TypeVar("T")


class MalformedError(Exception):
    """A value is not what its annotation allows; the text names the field."""


class Between(NamedTuple):
    """The limits of a number, which are allowed themselves."""

    low: float
    high: float


def decode(kind: type[T], value: object, name: str = "") -> T:
    """Return the `kind` that an object of JSON describes; `name` is what messages call it. Raises MalformedError."""
    return Decoder(lenient=False).read(kind, value, name)


def decode_known(kind: type[T], value: object, required: Iterable[str] = ()) -> T | None:
    """Return what an object of a file describes as far as it makes sense: files get damaged.

    A field that makes no sense keeps its default; such entries of lists and mappings are left out. None where a field without a
    default, or one that is `required`, is missing or makes no sense.
    """
    try:
        return Decoder(lenient=True, required=frozenset(required)).read(kind, value, "")
    except MalformedError:
        return None


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
    hints = get_type_hints(kind, include_extras=True)
    if not dataclasses.is_dataclass(kind):
        return {name: (hint, name not in kind._field_defaults) for name, hint in hints.items()}
    return {
        field.name: (hints[field.name], field.default is field.default_factory is dataclasses.MISSING)
        for field in dataclasses.fields(kind)
    }


class Decoder(NamedTuple):
    """Reads one value. `lenient`: what makes no sense is left out where that is possible, except fields that are `required`."""

    lenient: bool
    required: frozenset[str] = frozenset()

    def read(self, kind: type[T], value: object, name: str) -> T:
        """An object as a `kind`. Raises MalformedError."""
        if not isinstance(value, dict):
            raise MalformedError(f"{name} is not an object")
        given = {}
        for field, (hint, is_required) in _fields(kind).items():  # type: ignore[arg-type]  # classes are hashable
            try:
                if field in value:
                    given[field] = self.read_value(hint, value[field], f"{name}.{field}")
                elif is_required or field in self.required:
                    raise MalformedError(f"{name}.{field} is missing")
            except MalformedError:
                if not self.lenient or is_required or field in self.required:
                    raise
        try:
            return kind(**given)
        except ValueError as error:
            raise MalformedError(f"{name}: {error}") from None

    def read_value(self, kind: Any, value: Any, name: str) -> Any:
        """A value as its annotation says. Raises MalformedError."""
        if kind is Any:
            return value
        if dataclasses.is_dataclass(kind) or hasattr(kind, "_field_defaults"):
            return Decoder(self.lenient).read(kind, value, name)
        origin, inner = get_origin(kind), get_args(kind)
        if origin in (Union, types.UnionType):
            return None if value is None else self.read_value(inner[0], value, name)
        if origin is tuple:
            return self._read_list(inner, value, name)
        if origin is Mapping:
            return self._read_mapping(inner, value, name)
        if origin is Annotated:
            number, limits = self.read_value(inner[0], value, name), inner[1]
            if not limits.low <= number <= limits.high:
                raise MalformedError(f"{name} is out of range")
            return number
        return read_plain(kind, value, name)

    def _read_list(self, kinds: tuple[Any, ...], value: Any, name: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise MalformedError(f"{name} is not a list")
        if kinds[-1] is not ...:
            if len(value) != len(kinds):
                raise MalformedError(f"{name} does not have {len(kinds)} values")
            return tuple(self.read_value(kind, item, name) for kind, item in zip(kinds, value, strict=True))
        found = []
        for item in value:
            try:
                found.append(self.read_value(kinds[0], item, name))
            except MalformedError:
                if not self.lenient:
                    raise
        return tuple(found)

    def _read_mapping(self, kinds: tuple[Any, Any], value: Any, name: str) -> dict[Any, Any]:
        """Keys of a StrEnum that it does not have are left out, as are fields that a class does not have."""
        if not isinstance(value, dict):
            raise MalformedError(f"{name} is not an object")
        found = {}
        for text, item in value.items():
            key = read_key(kinds[0], text)
            if key is None and issubclass(kinds[0], StrEnum):
                continue
            try:
                if key is None:
                    raise MalformedError(f"{name} has a key that is not of type {kinds[0].__name__}")
                found[key] = self.read_value(kinds[1], item, name)
            except MalformedError:
                if not self.lenient:
                    raise
        return found


def read_key(kind: Any, text: str) -> Any:
    """The key of a mapping; None where it makes no sense."""
    if issubclass(kind, StrEnum):
        return next((member for member in kind if member == text), None)
    return whole_number(text) if kind is int else one_line(text)


def read_plain(kind: Any, value: Any, name: str) -> Any:
    """A text, a number, a bool or a member of a StrEnum. Raises MalformedError."""
    if issubclass(kind, StrEnum):
        value = next((member for member in kind if member == value), None)
    if kind is float and type(value) is int and abs(value) < 2**53:
        value = float(value)
    if type(value) is not kind:
        raise MalformedError(f"{name} is not of type {kind.__name__}")
    if (kind is float and not math.isfinite(value)) or (kind is int and abs(value) >= 2**53):
        raise MalformedError(f"{name} is out of range")
    return one_line(value) if kind is str else value
