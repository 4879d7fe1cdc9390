"""A Report into HTML, and HTML into a file."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from berth.files import whole_file
from berth.report.report import Report
from berth.report.sections import policies_of, sections_of, seeds_of

__all__ = ["render", "write", "write_page"]


def render(report: Report) -> str:
    """The whole page as text."""
    return _page(
        "report.html",
        report=report,
        policies=policies_of(report),
        seeds=seeds_of(report),
        sections=sections_of(report),
    )


def write(report: Report, path: Path) -> None:
    """Render to a file, which is either there whole or not at all."""
    _write(render(report), path)


def write_page(template: str, path: Path, **values: object) -> None:
    """Render another template of berth's with these values, likewise."""
    _write(_page(template, **values), path)


def _page(template: str, **values: object) -> str:
    environment = _environment()
    plotly = get_plotlyjs()
    draw = environment.get_template("draw.js").render()
    choose = environment.get_template("filter.js").render()
    return environment.get_template(template).render(
        **values,
        # No data can be in these four: they are berth's and Plotly's own files.
        style=Markup(environment.get_template("report.css").render()),
        plotly=Markup(plotly),
        draw=Markup(draw),
        filter=Markup(choose),
        # The browser runs the scripts with these sums and no other, and opens no connection.
        script_sums=" ".join(f"'sha256-{_sum(script)}'" for script in (plotly, draw, choose)),
    )


def _write(page: str, path: Path) -> None:
    with whole_file(path) as aside:
        aside.write_text(page, encoding="utf-8", newline="\n")


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
