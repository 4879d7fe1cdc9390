"""Pages of the console: Jinja templates in the reader's language; and their texts: whole ones, with parts to fill in,
and those that other modules compose.

English texts stand in the templates and modules. For each other language `locale/` has a gettext catalogue of them.
There `composed` marks the templates of what queues, sources and reports put together, by which it is recognised.

`{jobs:# job|# jobs}` in a text stands for a number with its noun: the first form for 1, the second for all others,
with the number in place of `#`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from string import Formatter
from typing import Any, Final

from babel.messages.catalog import Catalog
from babel.messages.pofile import read_po
from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import ChoiceLoader, Environment, PackageLoader, PrefixLoader, StrictUndefined

from berth import __version__
from berth.console.formats import decimal, gpu_time, moment, span
from berth.console.roles import Viewer


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


LANGUAGES = {"en": "English", "ko": "한국어"}
"""Each language of the texts, in its own words."""
_NUMBER: Final = r"[+-]?[\d,]+(?:\.\d+)?"
_AMOUNT: Final = rf"{_NUMBER}(?: ?[KMGT](?:iB)?)?"
_SPAN: Final = r"(?:\d+-)?[\d:]+"
_PARTS: Final = {
    **dict.fromkeys(("number", "count", "ahead", "waiting", "index", "part", "pid"), _NUMBER),
    **dict.fromkeys(("free", "all", "wanted", "memory"), _AMOUNT),
    **dict.fromkeys(("since", "time"), _SPAN),
    **dict.fromkeys(("id", "job", "policy"), r"[^\s;]+"),
    "state": r"[^:;]+?",
    "lacks": r"waits for (?:CPUs|memory): .+",
    "moment": r"[\d-]+ [\d:]+",
    "nodes": rf"{_NUMBER} (?:.+? )?nodes?",
}
"""What each part of a template that is no text of its own may be; other parts may be any text."""


class _Number:
    """A number that a text may write with its noun."""

    def __init__(self, value: float) -> None:
        self._value = value

    def __format__(self, forms: str) -> str:
        value = self._value
        text = f"{value:,}" if isinstance(value, int) else decimal(value).removesuffix(".0")
        if not forms:
            return text
        one, _, many = forms.partition("|")
        return (one if text == "1" else many).replace("#", text)


def filled(text: str, **parts: object) -> str:
    """A text with its parts; numbers get commas, and their nouns the right form."""
    numbers = {name: _Number(part) for name, part in parts.items() if isinstance(part, (int, float))}
    return text.format(**{**parts, **numbers})


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of one language, as templates have them by the name `t`."""

    language: str

    def __call__(self, text: str, **parts: object) -> str:
        """A text of the pages with its parts; a test holds that none is missing."""
        found = text if self.language == "en" else _texts(self.language).get(text, text)
        return filled(found, **parts) if parts else found

    def sentence(self, text: str) -> str:
        """A sentence that another part of berth has composed; as it is if no template fits."""
        if self.language == "en" or not text:
            return text
        if text in _texts(self.language):
            return _texts(self.language)[text]
        for pattern, other in _patterns(self.language):
            if found := pattern.fullmatch(text):
                return other.format(
                    **{name: self._part(name, part) for name, part in found.groupdict().items()}
                )
        return text

    def _part(self, name: str, part: str) -> str:
        """A part of a sentence. What a GPU lacks is a list, each of which is a sentence of its own. Names stay."""
        if name in ("pool", "names"):
            return part
        each = part.split("; ") if name == "lacking" else [part]
        return "; ".join(map(self.sentence, each))


def composed_pairs(language: str) -> list[tuple[str, str]]:
    """The templates with their translations, for scripts; none in English.

    Without lengths of time and the like: these fit any sentence that ends so, unless their parts are numbers.
    """
    if language == "en":
        return []
    return [pair for pair in _composed(language) if not pair[0].startswith("{number} ")]


@cache
def _patterns(language: str) -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((_pattern(text), other) for text, other in _composed(language))


def _pattern(text: str) -> re.Pattern[str]:
    """What a template has made."""
    words = [
        re.escape(plain) + (f"(?P<{name}>{_PARTS.get(name, '.+?')})" if name else "")
        for plain, name, _, _ in Formatter().parse(text)
    ]
    return re.compile("".join(words), re.DOTALL)


@cache
def _catalogue(language: str) -> Catalog:
    catalogue = files("berth.console").joinpath("locale", language, "LC_MESSAGES", "console.po")
    with catalogue.open("rb") as file:
        return read_po(file)


@cache
def _texts(language: str) -> dict[str, str]:
    return {str(message.id): str(message.string) for message in _catalogue(language) if message.id}


def _composed(language: str) -> list[tuple[str, str]]:
    found = (message for message in _catalogue(language) if "composed" in message.auto_comments)
    return [(str(message.id), str(message.string)) for message in found]
