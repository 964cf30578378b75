"""The part of a page that shows what each second of a run went into: a bar, and its parts in words."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from slipway.train.measure.plots import COLOURS
from slipway.train.report.run import Record

WIDTH, HEIGHT = 1000, 46


def draw_time(run: Record) -> str:
    """An SVG element: all seconds of a run side by side, in the order of the ledger."""
    whole, at, bars = sum(run.ending.seconds.values()), 0.0, []
    for (kind, time, share), seconds, colour in zip(
        spending(run), run.ending.seconds.values(), colours(), strict=False
    ):
        width = WIDTH * seconds / whole
        title = f"<title>{escape(f'{kind}: {time}, {share}')}</title>"
        bars.append(f'<rect x="{at:.2f}" width="{width:.2f}" height="{HEIGHT}" style="{colour}">{title}</rect>')
        at += width
    head = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" aria-label="time"'
    return f'{head} height="{HEIGHT}">{"".join(bars)}</svg>'


def colours() -> Iterator[str]:
    """A fill for each part, paler ones once all are used up."""
    for opacity in (1, 0.55, 0.3):
        for number, colour in enumerate(COLOURS):
            yield f"fill: var(--c{number}, {colour}); fill-opacity: {opacity}"


def spending(run: Record) -> list[tuple[str, str, str]]:
    """Each part in words: what it was, how long it took, and its share."""
    whole = sum(run.ending.seconds.values())
    return [(kind, f"{seconds:,.1f} s", f"{seconds / whole:.1%}") for kind, seconds in run.ending.seconds.items()]


def legend(run: Record) -> list[tuple[str, str, str, str]]:
    """The same with the fill of each."""
    return [(fill, *row) for fill, row in zip(colours(), spending(run), strict=False)]
