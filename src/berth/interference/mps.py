"""Speeds as they were measured of training jobs whose kernels overlap on one GPU: the contention model that ships.

The pairs are Lucid's (see `measurements`); what ships is the fit's coefficients, `mps.json`, and none of the data.
How good it is, what it assumes, and how to fit your own: docs/interference.md.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from berth.interference.contention import Contention

FILE = "mps.json"


@cache
def mps() -> Contention:
    """The model that ships, called as `Speeds` are; always the same object."""
    return Contention.from_json((files("berth.interference") / FILE).read_text(encoding="utf-8"), FILE)
