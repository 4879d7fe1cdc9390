"""What a refused request is answered: what was wanted, what came, where, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from fastapi import HTTPException, Request
from fastapi.dependencies.models import Dependant

from berth.console.identity import Who

DOCUMENT: Final = "/api/v1/openapi.json"
MOST_TEXT: Final = 40
_PLACES: Final = {
    "query": "the address",
    "path": "the path",
    "header": "the headers",
    "cookie": "the cookies",
}
_WANTED: Final = (
    (re.compile(", unable to .*"), ""),
    (re.compile("^Value should have (at most \\d+) items after validation, not"), r"\1 characters, not"),
    (re.compile("^Input should be (?=greater|less)"), "a value "),
    (re.compile("^Input should be a valid dictionary or object .*"), "an object"),
    (re.compile("^Input should be a valid integer"), "a whole number"),
    (re.compile("^Input should be a valid string"), "a text"),
    (re.compile("^Input should be a valid boolean"), "true or false"),
    (re.compile("^Input should be a valid "), "a "),
    (re.compile("^Input should be "), ""),
    (re.compile("^(?:String|List) should have "), ""),
    (re.compile("^Value error, "), "a valid value: "),
)
"""How pydantic says what it wanted, and what stands after `expected` instead."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request was refused: what was wanted, what came, where."""

    detail: str


IN_WORDS: Final[dict[int | str, dict[str, Any]]] = {
    code: {"model": Refusal, "description": words}
    for code, words in {
        400: "A value makes no sense here.",
        401: "No valid token.",
        403: "The role does not allow it.",
        404: "There is nothing of this name.",
        422: "A value has the wrong type, or is missing.",
        429: "Too many requests.",
    }.items()
}
"""The refusals of every route, for the OpenAPI document."""


def only_known(request: Request, _who: Who) -> None:
    """Refuse a request with a parameter that its route does not have: 422 with those that it has.

    A filter that is misspelt would otherwise be answered with everything.
    """
    known = list(dict.fromkeys(_parameters(request.scope["route"].dependant)))
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        reasons = "; ".join(_unknown(name, known) for name in dict.fromkeys(unknown))
        there = f"there are {', '.join(known)}" if known else "there are none"
        raise HTTPException(422, f"{reasons}; {there}")


def _parameters(dependant: Dependant) -> Iterator[str]:
    """The names that a route and what it depends on take from the address."""
    yield from (each.alias for each in dependant.query_params)
    for other in dependant.dependencies:
        yield from _parameters(other)


def _unknown(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1)
    meant = f" (did you mean '{near[0]}'?)" if near else ""
    return f"{_came(name)} in the address is no parameter of this request{meant}"


def words_of(errors: Sequence[Any]) -> str:
    """What FastAPI found wrong with a request, in one sentence."""
    found: dict[str, list[str]] = {}
    for error in errors:
        what, wanted = _reason(error)
        found.setdefault(what, []).append(wanted)
    reasons = "; ".join(f"{what} {' or '.join(dict.fromkeys(wanted))}" for what, wanted in found.items())
    return f"{reasons}; {DOCUMENT} describes each request"


def _reason(error: Any) -> tuple[str, str]:
    """Which value is wrong, with what came, and what was wanted of it."""
    place, *path = error["loc"]
    if error["type"] == "json_invalid":
        return "the body", f"is not JSON ({error['ctx']['error']} at character {path[0]})"
    where = _PLACES.get(place, "the body")
    name = "".join(f"[{part}]" if isinstance(part, int) else part for part in path[:1])
    name += "".join(f"[{part}]" for part in path[1:] if isinstance(part, int))
    what = f"'{name}' in {where}" if name else where
    if error["type"] == "missing":
        return what, "is missing"
    if error["type"] == "extra_forbidden":
        return what, "is unknown; leave it out"
    if isinstance(error["input"], bytes):
        return "the body", "is not sent as JSON; send the header Content-Type: application/json"
    wanted = str(error["msg"])
    for pattern, words in _WANTED:
        wanted = pattern.sub(words, wanted)
    return f"{what} is {_came(error['input'])}; expected", f"{wanted[:1].lower()}{wanted[1:]}"


def _came(value: Any) -> str:
    """What came, short and without what no JSON can hold."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value[:MOST_TEXT] if isinstance(value, (str, bytes)) else value)
    return text if len(text) <= 3 * MOST_TEXT else f"{text[: 3 * MOST_TEXT]}…"
