"""How many examples hypothesis draws: all of them where CI is set, as in `.ci/run`; a quarter in `make test`."""

from __future__ import annotations

import os

ALL = bool(os.environ.get("CI"))


def examples(number: int) -> int:
    """The examples that a property with this number of them is tried on here."""
    return number if ALL else max(3, number // 4)
