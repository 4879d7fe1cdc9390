"""Sentences of docs, README and help are short enough to be read once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from berth.policies import describe, names

ROOT = Path(__file__).parents[2]
MOST_WORDS = 38
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])


def paragraphs(page: str) -> Iterator[str]:
    """The paragraphs, list items and cells of a page of Markdown, without code and addresses."""
    page = re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL)
    page = re.sub(r"^( *)(`{3,}|~{3,}).*?^\1\2`*$", "", page, flags=re.DOTALL | re.MULTILINE)
    page = re.sub(r"^ {4}.*$", "", page, flags=re.MULTILINE)
    page = re.sub(r"\]\([^)]*\)", "]", page)
    page = re.sub(r"`[^`]*`", "CODE", page)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*+>#|:]|\d+\.)\s)|\n(?=\s*\|)", page):
        yield from block.split("|") if block.lstrip().startswith("|") else [block]


def long_sentences(text: str) -> list[str]:
    """The sentences of a paragraph with more words than that."""
    plain = " ".join(text.split())
    sentences = re.split(r"(?<=[.!?])[)*”\"]*\s+(?=[A-Z0-9`*\[(“])", plain)
    return [each for each in sentences if len(re.findall(r"\S*\w\S*", each)) > MOST_WORDS]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_sentence_of_a_page_is_long(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [each for block in paragraphs(text) for each in long_sentences(block)] == []


def test_no_sentence_of_a_policys_summary_is_long() -> None:
    assert [each for name in names() for each in long_sentences(describe(name))] == []


def test_a_long_sentence_is_found_and_code_is_none() -> None:
    long = "Word " + "word " * MOST_WORDS + "end."
    assert long_sentences(f"Short. {long} Short.") == [long]
    assert list(paragraphs("```\n" + long + "\n```\n")) == ["\n"]
