"""Pages of the console: Jinja templates in the reader's language."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import ChoiceLoader, Environment, PackageLoader, PrefixLoader, StrictUndefined

from berth import __version__
from berth.console.formats import gpu_time, moment, span
from berth.console.roles import Viewer
from berth.console.texts import LANGUAGES, Texts, composed_pairs


def page(request: Request, template: str, viewer: Viewer, **values: Any) -> HTMLResponse:
    """A template as a page; `t("…")` in it is the text in the reader's language."""
    language = language_of(request)
    t = texts_of(request)
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
            t=t,
            composed=composed_pairs(language),
            span=lambda ms: span(ms / 1000, t),
            gpu_time=lambda gpu_hours: gpu_time(gpu_hours, t),
            **values,
        )
    )
    return HTMLResponse(text)


def texts_of(request: Request) -> Texts:
    """`t("…", part=…)` as templates have it, for sentences that are put together outside of them."""
    return Texts(language_of(request))


def language_of(request: Request) -> str:
    """The language of the cookie, else the first of the browser's that there is, else English."""
    chosen = request.cookies.get("berth-language", "")
    if chosen in LANGUAGES:
        return chosen
    for part in request.headers.get("Accept-Language", "").split(","):
        if (short := part.split(";")[0].strip().lower().split("-")[0]) in LANGUAGES:
            return short
    return "en"


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
    environment.globals["moment"] = moment
    return environment
