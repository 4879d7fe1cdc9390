"""Pages of the console: Jinja templates in the reader's language."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import ChoiceLoader, Environment, PackageLoader, PrefixLoader, StrictUndefined

from berth import __version__
from berth.console.roles import Viewer
from berth.console.words import moment, span

__all__ = ["LANGUAGES", "language_of", "page", "texts_of", "translated"]

LANGUAGES = {"en": "English", "ko": "한국어"}
"""Each language of the texts, in its own words."""


def page(request: Request, template: str, viewer: Viewer, **values: Any) -> HTMLResponse:
    """A template as a page; `t("…")` in it is the text in the reader's language."""
    language = language_of(request)
    text = (
        _environment()
        .get_template(template)
        .render(
            viewer=viewer,
            version=__version__,
            settings=request.app.state.settings,
            language=language,
            languages=LANGUAGES,
            path=request.url.path,
            t=texts_of(request),
            **values,
        )
    )
    return HTMLResponse(text)


def texts_of(request: Request) -> Callable[..., str]:
    """`t("…", part=…)` as templates have it, for sentences that are put together outside of them."""
    language = language_of(request)

    def t(text: str, **parts: object) -> str:
        return translated(text, language).format(**parts) if parts else translated(text, language)

    return t


def language_of(request: Request) -> str:
    """The language of the cookie, else the first of the browser's that there is, else English."""
    chosen = request.cookies.get("berth-language", "")
    if chosen in LANGUAGES:
        return chosen
    for part in request.headers.get("Accept-Language", "").split(","):
        if (short := part.split(";")[0].strip().lower().split("-")[0]) in LANGUAGES:
            return short
    return "en"


def translated(text: str, language: str) -> str:
    """A text of the pages in another language; a test holds that none is missing."""
    return text if language == "en" else _texts(language).get(text, text)


@cache
def _texts(language: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(
        files("berth.console").joinpath(f"texts_{language}.json").read_text(encoding="utf-8")
    )
    return found


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=ChoiceLoader(
            [PackageLoader("berth.console"), PrefixLoader({"report": PackageLoader("berth.report")})]
        ),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"span": span, "moment": moment}
    environment.filters["n"] = lambda number: f"{number:,}"
    return environment
