"""How native/ is built: what includes what, and how it is formatted."""

from __future__ import annotations

import re
from graphlib import TopologicalSorter

from tests.partition.conftest import ROOT

NATIVE = ROOT / "native"
PARTS = {"region": ["region_files", "account", "members", "clock", "wish"]}
"""The files of a header that has several: what the processes share."""


def test_no_part_of_the_library_needs_one_that_needs_it() -> None:
    """A part is X.c and X.h together; what goes up (a fork, memory wanted back) is registered in parts.h."""
    sources = [*NATIVE.glob("*.c"), *NATIVE.glob("*.h")]
    needs: dict[str, set[str]] = {path.stem: set() for path in sources}
    for path in sources:
        included = re.findall(r'^#include "(\w+)\.h"', path.read_text(), re.MULTILINE)
        needs[path.stem] |= {name for name in included if name != path.stem}
    order = list(TopologicalSorter(needs).static_order())
    assert order.index("parts") < order.index("devices") < order.index("pool") < order.index("memory")


def test_a_part_declares_nothing_of_another_part() -> None:
    """No `extern` or prototype outside the header of its part, which would hide a circle from the test above."""
    for path in NATIVE.glob("*.c"):
        text = path.read_text()
        assert re.findall(r"^extern (?!const struct part)", text, re.MULTILINE) == [], path.name
    defined = {path.stem: functions(path.read_text(), r"\n\{") for path in NATIVE.glob("*.c")}
    for header in NATIVE.glob("*.h"):
        declared = functions(re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.DOTALL), r"[^;{]*;")
        own = set().union(*(defined.get(part, set()) for part in PARTS.get(header.stem, [header.stem])))
        assert declared - own == set(), header.name


def functions(text: str, end: str) -> set[str]:
    """The functions that a text names at a line's beginning, not `static`, with this behind their parameters."""
    begin = r"^(?!static|typedef|extern|_Static|HOOK|NEED|NVHOOK|NVNEED)\w[\w \*\n]*?\b"
    return set(re.findall(begin + r"([a-z]\w+)\((?:[^;{()]|\([^)]*\))*\)" + end, text, re.MULTILINE))
