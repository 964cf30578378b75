"""Numbers that an option takes. What is none, or lies out of range, is answered with what is allowed and what to type."""

from __future__ import annotations

import re
from typing import Any

import click


class Whole(click.IntRange):
    """A whole number within bounds, both of which are allowed."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number. Raises click.BadParameter."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            raise click.BadParameter(_answer(self, value, "a whole number", param), ctx, param) from None


class Real(click.FloatRange):
    """Any number within bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number. Raises click.BadParameter."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            raise click.BadParameter(_answer(self, value, "a number", param), ctx, param) from None


def _answer(kind: Whole | Real, value: object, wanted: str, param: click.Parameter | None) -> str:
    bounds = "" if kind.min is None else f" above {kind.min:g}" if kind.min_open else f" of {kind.min:g} or more"
    if kind.max is not None:
        low = "" if kind.min is None else f" from {kind.min}"
        bounds = f"{low} to below {kind.max:g}" if kind.max_open else f"{low} to {kind.max}"
    return f"{value!r} is not {wanted}{bounds}.{example(param)}"


def example(param: click.Parameter | None) -> str:
    """A sentence with what to type for an option: its default, the first of them where presets differ, or its least value."""
    if not isinstance(param, click.Option):
        return ""
    if param.is_flag:
        return f" Type {' or '.join([*param.opts, *param.secondary_opts])}"
    if isinstance(param.type, click.Choice):
        return f" Type for example {param.opts[0]} {param.type.choices[0]}"
    if not isinstance(param.type, Whole | Real):
        return f" Type {param.opts[0]} {param.metavar or param.type.name.upper()}"
    told = param.default if isinstance(param.default, int | float) else param.show_default
    shown = re.search(r"\d[\d.e-]*", str(told))
    return f" Type for example {param.opts[0]} {shown[0].rstrip('.') if shown else param.type.min or 1}"
