"""Every text of the console is there in every language, and none that nobody uses any more."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

import pytest
from jinja2 import Environment, nodes

import berth.console
from berth.console.pages import LANGUAGES
from berth.console.roles import Role

CONSOLE = Path(berth.console.__file__).parent
OTHERS = sorted(LANGUAGES.keys() - {"en"})
ASKED_BY_NAME = frozenset({*Role, "seconds", "minutes", "hours", "days"})
"""Texts that templates ask for by a variable: roles, and the units of `berth.statistics.readable_unit`."""


def in_templates() -> Iterator[str]:
    """The texts of `t("…")` in all templates."""
    environment = Environment()
    for path in CONSOLE.rglob("*.html"):
        for call in environment.parse(path.read_text(encoding="utf-8")).find_all(nodes.Call):
            named = isinstance(call.node, nodes.Name) and call.node.name == "t"
            if named and call.args and isinstance(call.args[0], nodes.Const):
                yield call.args[0].value


def constants() -> Iterator[str]:
    """All texts that templates have anywhere, such as in lists that `t` is asked with."""
    environment = Environment()
    for path in CONSOLE.rglob("*.html"):
        for each in environment.parse(path.read_text(encoding="utf-8")).find_all(nodes.Const):
            if isinstance(each.value, str):
                yield each.value
    for path in CONSOLE.rglob("*.py"):
        for found in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(found, ast.Constant) and isinstance(found.value, str):
                yield found.value


def in_sources() -> Iterator[str]:
    """The texts of `t("…")` and `translated("…", …)` in all modules."""
    for path in CONSOLE.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.args):
                continue
            first = call.args[0]
            if call.func.id in ("t", "translated") and isinstance(first, ast.Constant):
                yield str(first.value)


def texts(language: str) -> dict[str, str]:
    found: dict[str, str] = json.loads((CONSOLE / f"texts_{language}.json").read_text(encoding="utf-8"))
    return found


def parts(text: str) -> set[str | None]:
    """The names in braces, which are filled in."""
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


@pytest.mark.parametrize("language", OTHERS)
def test_every_text_is_there_in_every_language(language: str) -> None:
    asked = {*in_templates(), *in_sources(), *ASKED_BY_NAME}
    assert len(asked) > 50
    assert sorted(asked - texts(language).keys()) == []


@pytest.mark.parametrize("language", OTHERS)
def test_no_text_is_left_over(language: str) -> None:
    assert sorted(texts(language).keys() - {*constants(), *ASKED_BY_NAME}) == []


@pytest.mark.parametrize("language", OTHERS)
def test_a_translation_has_the_same_parts_to_fill_in(language: str) -> None:
    assert [text for text, other in texts(language).items() if parts(text) != parts(other)] == []


@pytest.mark.parametrize("language", OTHERS)
def test_no_translation_is_empty_and_no_text_is_twice(language: str) -> None:
    pairs = json.loads(
        (CONSOLE / f"texts_{language}.json").read_text(encoding="utf-8"), object_pairs_hook=list
    )
    assert len({text for text, _ in pairs}) == len(pairs)
    assert [text for text, other in pairs if not other.strip()] == []


def test_hints_of_all_pages_are_of_one_template() -> None:
    found = {path.name: path.read_text(encoding="utf-8") for path in CONSOLE.rglob("*.html")}
    assert [name for name, text in found.items() if "data-hint" in text] == ["hints.html"]
    assert {
        text.split("t(")[-1] for page in found.values() for text in page.splitlines() if "hints.hint(" in text
    } == {'"Got it")) }}'}
