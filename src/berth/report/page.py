"""A Report into HTML, and HTML into a file."""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Sequence
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly import graph_objects as go
from plotly.offline import get_plotlyjs

from berth.files import whole_file
from berth.report.report import Report
from berth.report.sections import as_json, plot_of, sections_of


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
    """Render another template of berth's with these values, likewise."""
    _write(_page(template, **values), path)


def render_picture(figure: go.Figure, answers: Sequence[str] = ()) -> str:
    """A page with one figure, under its title and these sentences."""
    title = unescape(figure.layout.title.text or "berth")  # in figures names are escaped
    figure.update_layout(title={"text": ""})
    plots = (plot_of("picture", title, figure),)
    return _picture(figure, wanted="", title=title, answers=answers, plots=plots)


def render_for_image(figure: go.Figure, kind: str) -> str:
    """A page that leaves a figure's image (png or svg) as a data URL in `#image`."""
    return _picture(figure, ("hand_over",), wanted=kind, title="berth", data=as_json(figure))


def _picture(figure: go.Figure, then: tuple[str, ...] = (), **values: object) -> str:
    shaders = any(trace.type == "parcoords" for trace in figure.data)
    return _page("picture.html", then, compiles_shaders=shaders, **values)


def _page(template: str, then: tuple[str, ...] = (), **values: object) -> str:
    environment = _environment()
    sources = {name: environment.get_template(f"{name}.js").render() for name in ("unpack", "draw", *then)}
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
    with whole_file(path) as temporary:
        temporary.write_text(page, encoding="utf-8", newline="\n")


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
