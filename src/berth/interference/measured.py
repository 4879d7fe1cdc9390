"""Speeds as they were measured of training jobs that share a GPU: the contention model fitted to published pairs.

The pairs are Lucid's (see `measurements`); what ships is the fit's coefficients, `measured.json`, and none of the
data. How good it is, and how to fit your own: docs/interference.md.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from berth.interference.contention import Contention

__all__ = ["measured", "published"]

FILE = "measured.json"


@cache
def published() -> Contention:
    """The model that ships."""
    return Contention.from_json((files("berth.interference") / FILE).read_text(encoding="utf-8"), FILE)


def measured(usage: Any, present: Any, capacity_mem_mib: Any, *, xp: Any = np) -> Any:
    """Speeds per mille of tenants as the fitted model has them: see `Speeds` for the shapes."""
    return published()(usage, present, capacity_mem_mib, xp=xp)
