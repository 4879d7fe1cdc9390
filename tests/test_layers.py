"""The modules of berth import each other in one direction."""

from __future__ import annotations

import sys
from pathlib import Path

BENCH = Path(__file__).parents[1] / "bench"


def test_no_modules_import_each_other_in_a_circle() -> None:
    sys.path.insert(0, str(BENCH))
    try:
        from source import circles
    finally:
        sys.path.remove(str(BENCH))
    assert circles(BENCH.parent / "src") == []
