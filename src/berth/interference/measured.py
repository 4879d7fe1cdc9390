"""Speeds as they were measured of training jobs that share a GPU: the contention model fitted to published pairs.

The pairs are Lucid's (see `measurements`); what ships is the fit's coefficients, `measured.json`, and none of the
data. How good it is, and how to fit your own: docs/interference.md.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from berth.interference.contention import Contention

__all__ = ["measured"]

FILE = "measured.json"


@cache
def measured() -> Contention:
    """The model that ships, called as `Speeds` are; always the same object."""
    return Contention.from_json((files("berth.interference") / FILE).read_text(encoding="utf-8"), FILE)
