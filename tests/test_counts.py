"""Numbers of things in words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import berth
from berth.counts import counted


@pytest.mark.parametrize(
    ("number", "words", "text"),
    [
        (0, ("job",), "0 jobs"),
        (1, ("job",), "1 job"),
        (2000, ("job",), "2,000 jobs"),
        (2.5, ("CPU",), "2.5 CPUs"),
        (1.0, ("CPU",), "1 CPU"),
        (1, ("policy", "policies"), "1 policy"),
        (2, ("policy", "policies"), "2 policies"),
    ],
)
def test_a_noun_fits_its_number(number: float, words: tuple[str, ...], text: str) -> None:
    assert counted(number, *words) == text


def test_no_other_place_chooses_between_one_and_many_by_an_s() -> None:
    chosen = re.compile(r"""['"]s['"] if|else ['"]s['"]|['"]['"] if [\w.() ]+ == 1""")
    folder = Path(berth.__file__).parent
    found = [str(path) for path in folder.rglob("*.py") if chosen.search(path.read_text(encoding="utf-8"))]
    assert found == []
