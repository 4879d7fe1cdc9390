"""The sections of a page: tables, plots, and how to read them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import unescape
from typing import Any

from markupsafe import Markup
from plotly import graph_objects as go
from plotly.io.json import to_json_plotly

from berth.report.report import Chapter, Report
from berth.statistics.table import Row


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a figure as the page itself draws it, before Plotly is there and where it never is."""

    name: str
    begin: float
    """Where it begins, as a part of the width that there is room for; 0 but for intervals."""
    end: float
    text: str
    colour: str
    dot: float | None = None
    """The mean of which it is the interval, as a part of the width."""


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure on the page."""

    name: str
    title: str
    label: str
    """What it shows, for those who do not see it."""
    json: Markup
    """Safe inside a script element."""
    height_px: int
    bars: tuple[Bar, ...] = ()
    """All that it shows, if that is horizontal bars or intervals."""
    above_px: int = 0
    below_px: int = 0
    """Its margins above and below the bars."""


@dataclass(frozen=True, slots=True)
class Section:
    """Some plots under one heading, and how to read them."""

    title: str
    hint: str
    plots: tuple[Plot, ...]
    headings: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    words: bool = False
    """Whether most cells of the table are texts, which stand on the left."""
    small: bool = False
    """Whether the plots stand beside one another."""
    policies: tuple[str, ...] = ()
    """The columns of `standings`."""
    standings: tuple[Row, ...] = ()
    first: tuple[str, ...] = ()
    definitions: tuple[tuple[str, str], ...] = ()


def sections_of(report: Report) -> tuple[Section, ...]:
    """The chapters of a report, their figures ready to draw."""
    return tuple(_section(chapter, number) for number, chapter in enumerate(report.chapters))


def policies_of(report: Report) -> tuple[str, ...]:
    """The policies of all chapters, in the order in which the report first names them."""
    return tuple(dict.fromkeys(policy for chapter in report.chapters for policy in chapter.policies))


def seeds_of(report: Report) -> tuple[int, ...]:
    """The seeds of all chapters, ascending."""
    return tuple(sorted({seed for chapter in report.chapters for seed in chapter.seeds}))


def _section(chapter: Chapter, number: int) -> Section:
    names = chapter.names or [f"chapter-{number}-{at}" for at in range(len(chapter.figures))]
    return Section(
        chapter.title,
        chapter.hint,
        tuple(
            plot_of(name, label, figure) for name, (label, figure) in zip(names, chapter.figures, strict=True)
        ),
        tuple(chapter.headings),
        tuple(tuple(row) for row in chapter.rows),
        small=chapter.small,
        policies=tuple(chapter.policies),
        standings=tuple(chapter.standings),
        first=tuple(chapter.first),
        definitions=tuple(chapter.definitions),
    )


def plot_of(name: str, label: str, figure: go.Figure) -> Plot:
    """A figure as a page shows it, whatever texts are in it."""
    # The title becomes a heading of the page, which wraps on a narrow screen as a title in a plot does not.
    title = figure.layout.title.text
    above = figure.layout.margin.t - 32
    figure.update_layout(title={"text": ""}, margin={"t": above}, height=figure.layout.height - 32)
    layout = figure.layout
    return Plot(
        name,
        title,
        label,
        as_json(figure),
        int(layout.height),
        _bars_of(figure) or _intervals_of(figure),
        int(layout.margin.t),
        int(layout.margin.b),
    )


def _bars_of(figure: go.Figure) -> tuple[Bar, ...]:
    """The bars of a figure that has nothing but one set of horizontal bars with names."""
    trace = figure.data[0] if len(figure.data) == 1 else None
    if trace is None or trace.type != "bar" or trace.orientation != "h" or not figure.layout.yaxis.ticktext:
        return ()
    if trace.base is not None:
        return ()  # spans, not lengths from zero
    axis = figure.layout.xaxis.range
    longest = float(axis[1] if axis else max(trace.x)) or 1.0
    colours = trace.marker.color
    return tuple(
        # Plotly reads markup, so that names are escaped in figures; a page escapes them itself.
        Bar(unescape(name), 0.0, value / longest, text, colours if isinstance(colours, str) else colours[at])
        for at, (name, value, text) in enumerate(
            zip(figure.layout.yaxis.ticktext, trace.x, trace.text, strict=True)
        )
    )


def _intervals_of(figure: go.Figure) -> tuple[Bar, ...]:
    """The dots of a figure that has nothing but one for each name, with their intervals."""
    if not figure.data or not all(
        trace.type == "scatter"
        and trace.mode == "markers"
        and len(trace.x) == 1
        and isinstance(trace.y[0], str)
        for trace in figure.data
    ):
        return ()
    means = [float(trace.x[0]) for trace in figure.data]
    halves = [float((trace.error_x.array or (0.0,))[0]) for trace in figure.data]
    if not all(map(math.isfinite, (*means, *halves))):
        return ()
    longest = max(mean + half for mean, half in zip(means, halves, strict=True)) or 1.0
    return tuple(
        Bar(
            unescape(trace.y[0]),
            max(mean - half, 0.0) / longest,
            (mean + half) / longest,
            f"{mean:,.4g}",
            trace.marker.color,
            mean / longest,
        )
        for trace, mean, half in zip(figure.data, means, halves, strict=True)
    )


def as_json(figure: go.Figure) -> Markup:
    """A figure as JSON that can stand in a script element."""
    text: str = to_json_plotly(_without_repeats(figure.to_dict()))
    # In JSON these stand only inside strings; escaped so, nothing in the data can end the script element.
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _without_repeats(content: dict[str, Any]) -> dict[str, Any]:
    """The same figure with texts that an earlier trace has too named by that trace; `draw.js` puts them back.

    The names of a thousand nodes, once for each policy, would be most of the page.
    """
    texts: dict[int, list[Any]] = {}
    for at, trace in enumerate(content["data"]):
        text = trace.get("text")
        if isinstance(text, list):
            earlier = next((known for known, other in texts.items() if other == text), None)
            if earlier is None:
                texts[at] = text
            else:
                trace["text"] = {"of": earlier}
    return content
