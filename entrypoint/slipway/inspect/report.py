"""The page of `slipway report`: everything read about the runs, laid out and written."""

from __future__ import annotations

import base64
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from html import escape
from pathlib import Path

from slipway import __version__
from slipway.inspect import report_tables
from slipway.inspect.report_run import Record
from slipway.inspect.report_tables import measurements, plots, remarks
from slipway.protocol.durable import replace_file
from slipway.train.measure.plots import COLOURS, PLOT_CSS, SERIES, Axis, Curve, comparison_rows, draw

GENERATOR = "slipway report"


class NotOursError(Exception):
    """There is a file where the page belongs, and it is not one of our pages."""


def make_page(runs: Sequence[Record]) -> str:
    """The page about `runs` (at least one), as HTML that refers to nothing outside itself."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    runs = tell_apart(runs)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    measured = [run for run in runs if measurements(run)]
    return environment.from_string(TEMPLATE).render(
        runs=runs,
        generator=f"{GENERATOR} {__version__}",
        written=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        style=Markup(STYLE + PLOT_CSS + switches(len(runs))),  # noqa: S704  # ours
        colours=[f"var(--c{number}, {colour})" for number, colour in enumerate(COLOURS)],
        overview=report_tables.overview(runs),
        curves=[Markup(picture) for picture in curves(runs)],  # noqa: S704  # made by an XML library, which escapes
        results=report_tables.last_values(runs),
        throughput=report_tables.throughput(runs),
        comparison=comparison_rows,
        measured=measured,
        bandwidth=[Markup(picture) for picture in plots(runs)],  # noqa: S704  # likewise
        remarks=remarks,
        rows=lambda run: [row.cells for row in measurements(run)],
        attempts=lambda run: [astuple(tried) for tried in run.ending.tries],
        spent=lambda run: Markup(draw_time(run)),  # noqa: S704  # escaped there
        legend=legend,
        settings=report_tables.settings(runs),
        data=lambda picture: f"data:image/png;base64,{base64.b64encode(picture).decode()}",
    )


def tell_apart(runs: Sequence[Record]) -> list[Record]:
    """The runs, those of the same name with the name of their folder in front."""
    count = Counter(run.name for run in runs)
    return [replace(run, name=f"{run.path.parent.name}/{run.name}") if count[run.name] > 1 else run for run in runs]


STEP = Axis("step", "{:,.0f}".format)
VALUE = Axis("", lambda value: f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}")


def curves(runs: Sequence[Record]) -> list[str]:
    """A chart for each metric that has a course, with a curve for each run that has it."""
    pictures = []
    for name in report_tables.metric_names(runs):
        found = [
            Curve(run.name, run.metrics.curves[name], number)
            for number, run in enumerate(runs)
            if name in run.metrics.curves
        ]
        if any(len(curve.points) > 1 for curve in found):
            pictures.append(draw(name, found, STEP, VALUE))
    return pictures


def switches(count: int) -> str:
    """The style that hides a run's curves where its box is not ticked; a page without scripts has to say it so."""
    return "\n".join(
        f"body:has(#show-{number}:not(:checked)) .runs .color-{number} {{ display: none }}"
        for number in range(min(count, SERIES))
    )


def write_page(path: Path, page: str) -> None:
    """Write the page, in one go, over an older one if there is any. Raises OSError, and NotOursError for another file."""
    if path.exists() and f'content="{GENERATOR}' not in path.read_text(errors="replace")[:1000]:
        raise NotOursError(f"{path} is not a page of `{GENERATOR}`, and is not overwritten.")
    replace_file(path, page)


WIDTH, HEIGHT = 1000, 46  # of the bar


def draw_time(run: Record) -> str:
    """What each second of a run went into: a bar as an SVG element, in the order of the ledger."""
    whole, at, bars = sum(run.ending.seconds.values()), 0.0, []
    for (kind, spent, share), seconds, colour in zip(
        spending(run), run.ending.seconds.values(), colours(), strict=False
    ):
        width = WIDTH * seconds / whole
        title = f"<title>{escape(f'{kind}: {spent}, {share}')}</title>"
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
    """Each part of the bar in words: what it was, how long it took, and its share."""
    whole = sum(run.ending.seconds.values())
    return [(kind, f"{seconds:,.1f} s", f"{seconds / whole:.1%}") for kind, seconds in run.ending.seconds.items()]


def legend(run: Record) -> list[tuple[str, str, str, str]]:
    """The same with the fill of each."""
    return [(fill, *row) for fill, row in zip(colours(), spending(run), strict=False)]


# The page's form: its style, light or dark as the reader's screen, and a jinja2 template, in which every value is escaped.
STYLE = """
:root { color-scheme: light dark; --text: #1c2126; --soft: #5b6570; --back: #fff; --card: #f6f8fa; --faint: #dde2e7;
  --mark: #fff3c4; --good: #1a7f37; --bad: #cf222e }
@media (prefers-color-scheme: dark) { :root { --text: #e3e8ed; --soft: #98a3ae; --back: #14181c; --card: #1d2329;
  --faint: #343c45; --mark: #4a3f14; --good: #57c26e; --bad: #ff7b72; --c0: #58a6e0; --c1: #f0883e; --c2: #3fc795;
  --c3: #e29ac0; --c4: #e8b84a; --c5: #7cc7f2; --c6: #b39ddb; --c7: #a8a8a8 } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1.5rem; max-width: 1240px; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.15rem; margin: 2.2rem 0 .7rem }
h3 { font-size: 1rem; margin: 1.2rem 0 .4rem }
p { margin: .3rem 0 } .soft, small { color: var(--soft) } small { display: block; font-size: .78rem }
.good { color: var(--good) } .bad { color: var(--bad) }
.chips { display: flex; flex-wrap: wrap; gap: .5rem; margin: 1rem 0 }
.chip { display: flex; align-items: center; gap: .45rem; padding: .3rem .7rem; border: 1px solid var(--faint);
  border-radius: 2rem; background: var(--card); overflow-wrap: anywhere }
.dot { flex: none; width: .8rem; height: .8rem; border-radius: 50% }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 420px), 1fr)); gap: 1rem }
.card { background: var(--card); border: 1px solid var(--faint); border-radius: .6rem; padding: .6rem; min-width: 0 }
.card svg { display: block; width: 100% }
.wide { overflow-x: auto; border: 1px solid var(--faint); border-radius: .6rem }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { text-align: left; vertical-align: top; white-space: pre-wrap; padding: .35rem .7rem; border-bottom: 1px solid var(--faint);
  overflow-wrap: anywhere; min-width: 6.5rem }
thead th { background: var(--card); font-weight: 600 } tbody th { font-weight: 500; white-space: nowrap }
tr:last-child > * { border-bottom: 0 } tr.differs > * { background: var(--mark) }
pre { margin: 0; padding: .8rem; white-space: pre-wrap; overflow-wrap: anywhere; font: 13px/1.45 ui-monospace, monospace }
img { max-width: 100%; image-rendering: pixelated; min-width: min(100%, 256px) }
footer { margin-top: 2.5rem; color: var(--soft); font-size: .85rem }
@media print { .card, .wide { break-inside: avoid } }
"""

TEMPLATE = """
{%- macro head(names) -%}
<thead><tr>{% for name in names %}<th>{{ name }}</th>{% endfor %}</tr></thead>
{%- endmacro -%}
{%- macro table(first, rows) -%}
<div class="wide"><table>{{ head([first] + runs|map(attribute="name")|list) }}<tbody>
{% for row in rows %}<tr{% if row.differs %} class="differs"{% endif %}><th>{{ row.label }}</th>
{%- for cell in row.cells %}<td>{{ cell }}{% if row.notes and row.notes[loop.index0] %}<small>{{ row.notes[loop.index0] }}</small>{% endif %}</td>
{%- endfor %}</tr>
{% endfor %}</tbody></table></div>
{%- endmacro -%}
{%- macro grid(names, rows) -%}
<div class="wide"><table>{{ head(names) }}<tbody>
{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
{%- endmacro -%}
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="{{ generator }}">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{{ runs|map(attribute="name")|join(", ") }}</title>
<style>{{ style }}</style>
</head>
<body>
<header>
<h1>{% if runs|length == 1 %}{{ runs[0].name }}{% else %}{{ runs|length }} runs{% endif %}</h1>
<div class="chips">
{% for run in runs %}<label class="chip">
{%- if runs|length > 1 %}<input type="checkbox" id="show-{{ loop.index0 }}" checked>{% endif -%}
<span class="dot" style="background: {{ colours[loop.index0 % colours|length] }}"></span>
<span>{{ run.name }}</span><span class="{{ 'good' if run.ending.good else 'bad' }}">{{ run.ending.state }}</span></label>
{% endfor %}</div>
</header>
<section id="overview">{{ table("", overview) }}</section>
{% if curves %}<section id="curves"><h2>Curves</h2><div class="grid runs">
{% for picture in curves %}<div class="card">{{ picture }}</div>
{% endfor %}</div></section>
{% endif %}
{%- if results %}<section id="results"><h2>Results</h2>
<p class="soft">The last value of each metric.</p>{{ table("metric", results) }}</section>
{% endif %}
{%- if throughput %}<section id="throughput"><h2>Throughput</h2>
<p class="soft">All processes together, between two reports.</p>{{ table("", throughput) }}</section>
{% endif %}
{%- for run in runs if run.comparison %}{% set found = comparison(run.comparison) %}{% if found[1] %}
<section class="comparison"><h2>With and without DDP{% if runs|length > 1 %}: {{ run.name }}{% endif %}</h2>
{{ grid(found[0], found[1]) }}</section>
{% endif %}{% endfor %}
{%- if measured %}<section id="allreduce"><h2>Collectives</h2>
<div class="grid{% if measured|length > 1 %} runs{% endif %}">
{% for picture in bandwidth %}<div class="card">{{ picture }}</div>
{% endfor %}</div>
{% for run in measured %}<h3>{{ run.name }}</h3>
{% for line in remarks(run) %}<p>{{ line }}</p>
{% endfor %}{{ grid(["collective", "size", "latency", "min", "max", "algorithm bandwidth", "bus bandwidth"], rows(run)) }}
{% endfor %}</section>
{% endif %}
{%- if settings %}<section id="settings"><h2>Settings</h2>
<p class="soft">Sources are shown below non-default values.
{%- if runs|length > 1 %} Settings in which the runs differ are marked.{% endif %}</p>
{{ table("option", settings) }}</section>
{% endif %}
{%- for run in runs if run.ending.seconds %}
<section class="time"><h2>Time{% if runs|length > 1 %}: {{ run.name }}{% endif %}</h2>
<p class="soft">What each second went into, queues and restarts among them.</p><div class="card">{{ spent(run) }}</div>
<div class="chips">{% for fill, kind, time, share in legend(run) %}<span class="chip"><svg class="dot"><rect width="100%" height="100%" style="{{ fill }}"/></svg>
<span>{{ kind }}</span><span class="soft">{{ time }}, {{ share }}</span></span>
{% endfor %}</div></section>
{% endfor %}
{%- for run in runs if run.ending.tries %}
<section class="attempts"><h2>Attempts{% if runs|length > 1 %}: {{ run.name }}{% endif %}</h2>
{{ grid(["attempt", "where", "how it ended", "when", "snapshot"], attempts(run)) }}</section>
{% endfor %}
{%- for run in runs if run.texts or run.pictures %}
<section class="samples"><h2>Samples{% if runs|length > 1 %}: {{ run.name }}{% endif %}</h2>
{% for name, text in run.texts.items() %}<h3>{{ name }}</h3><div class="card"><pre>{{ text }}</pre></div>
{% endfor %}{% for name, picture in run.pictures.items() %}<h3>{{ name }}</h3><div class="card"><img alt="{{ name }}" src="{{ data(picture) }}"></div>
{% endfor %}</section>
{% endfor %}
<footer>Written by {{ generator }} on {{ written }}. Nothing in this page comes from elsewhere; values show under the pointer.</footer>
</body>
</html>
"""
