"""A report: its chapters as values, drawn into one self-contained HTML file that is written whole or not at all."""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.io.json import to_json_plotly
from plotly.offline import get_plotlyjs

from berth.files import write_whole
from berth.statistics.comparison import Row
from berth.version import __version__


@dataclass(frozen=True, slots=True, eq=False)
class Chapter:
    """A section of a page: tables and figures, each left out where it is empty."""

    title: str
    hint: str = ""
    """How to read it."""
    figures: Sequence[tuple[str, go.Figure]] = ()
    """What each shows, for those who do not see it, and the figure."""
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    """The table under the headings; its first column names the row."""
    policies: Sequence[str] = ()
    """The policies that it tells of."""
    seeds: Sequence[int] = ()
    names: Sequence[str] = ()
    """What each figure is called on the page, as no other there; by default by its number."""
    small: bool = False
    """Whether the figures stand beside one another."""
    standings: Sequence[Row] = ()
    """A table of metrics down and `policies` across, the best of each marked."""
    first: Sequence[str] = ()
    """The metrics of it that are shown at once; the rest is folded away. Without any, all are shown."""
    definitions: Sequence[tuple[str, str]] = ()
    """Words, and what each means."""
    row_names: int = 1
    """How many of the first columns name a row."""
    words: bool = False
    """Whether most cells of the table are texts, which stand on the left."""


def made_at(moment: datetime | None = None) -> str:
    """A moment, now by default, as pages say when they were made."""
    return f"{moment or datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a page says."""

    title: str
    command: str
    """The command line, or whatever else makes the same runs again."""
    trace: str
    """What was replayed, in words: its name, how many jobs, how much time, what was changed."""
    cluster: str
    """The cluster in words: how many nodes, how many GPUs of which models."""
    created: str = field(default_factory=made_at)
    """When it was made, as it is to be read."""
    version: str = __version__
    """berth's version."""
    chapters: Sequence[Chapter] = ()
    """In the order of the page."""
    answers: Sequence[str] = ()
    """What was found, in sentences: the first thing on the page."""
    picture: str = ""
    """An SVG that the page opens with, made by berth itself."""
    lead: str = ""
    """One sentence under the picture."""


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


def sections_of(chapters: Sequence[Chapter]) -> tuple[tuple[Chapter, tuple[Plot, ...]], ...]:
    """Each chapter with its figures, ready to draw."""
    return tuple((chapter, _plots_of(chapter, number)) for number, chapter in enumerate(chapters))


def _plots_of(chapter: Chapter, number: int) -> tuple[Plot, ...]:
    names = chapter.names or [f"chapter-{number}-{at}" for at in range(len(chapter.figures))]
    return tuple(
        plot_of(name, label, figure) for name, (label, figure) in zip(names, chapter.figures, strict=True)
    )


def plot_of(name: str, label: str, figure: go.Figure) -> Plot:
    """A figure as a page shows it, whatever texts are in it."""
    # The title becomes a heading of the page, which wraps on a narrow screen as a title in a plot does not.
    title = figure.layout.title.text
    above, height = figure.layout.margin.t - 32, figure.layout.height - 32
    figure.update_layout(title={"text": ""}, margin={"t": above}, height=height)
    return Plot(name, title, label, as_json(figure), int(height))


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


def render(report: Report) -> str:
    """The whole page as text."""
    return _page(
        "report.html",
        report=report,
        picture=Markup(report.picture),
        policies=tuple(dict.fromkeys(policy for chapter in report.chapters for policy in chapter.policies)),
        seeds=sorted({seed for chapter in report.chapters for seed in chapter.seeds}),
        sections=sections_of(report.chapters),
    )


def write(report: Report, path: Path) -> None:
    """Render to a file, which is either there whole or not at all."""
    _write(render(report), path)


def write_page(template: str, path: Path, **values: Any) -> None:
    """Render another of berth's templates with these values, and write it whole."""
    _write(_page(template, **values), path)


def write_picture(figure: go.Figure, out: Path, answers: Sequence[str] = ()) -> None:
    """Write a page with one figure, under its title and these sentences."""
    _write(render_picture(figure, answers), out)


def render_picture(figure: go.Figure, answers: Sequence[str] = ()) -> str:
    """The same page as text."""
    title = unescape(figure.layout.title.text or "berth")  # in figures names are escaped
    figure.update_layout(title={"text": ""})
    plots = (plot_of("picture", title, figure),)
    return _page("picture.html", title=title, answers=answers, plots=plots)


def _page(template: str, **values: object) -> str:
    environment = _environment()
    sources = {name: environment.get_template(f"{name}.js").render() for name in ("unpack", "draw")}
    return environment.get_template(template).render(
        **values,
        # No data can be in these: they are berth's and Plotly's own files.
        packed_plotly=_packed_plotly(),
        style=Markup(environment.get_template("report.css").render()),
        **{name: Markup(script) for name, script in sources.items()},
        # The browser runs the scripts with these sums and no other, and opens no connection.
        script_sums=" ".join(f"'sha256-{_sum(script)}'" for script in (get_plotlyjs(), *sources.values())),
    )


@cache
def _packed_plotly() -> str:
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 6, mtime=0)).decode()


def _write(page: str, path: Path) -> None:
    write_whole(path, page)


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("berth.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _sum(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
