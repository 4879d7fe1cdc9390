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

from berth.errors import SettingError
from berth.files import whole_file
from berth.report.report import Report, plot_of, sections_of


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


def check_picture(out: Path) -> None:
    """Raise SettingError for a file that is not to hold a page."""
    if out.suffix.lower() != ".html":
        raise SettingError(f"{out}: a picture's file ends in .html")


def write_picture(figure: go.Figure, out: Path, answers: Sequence[str] = ()) -> None:
    """Write a page with one figure, under its title and these sentences. Raises what `check_picture` raises."""
    check_picture(out)
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
