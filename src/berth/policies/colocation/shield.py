"""What is never started, whatever a chooser says: combinations that would end later together than in turn."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from berth.policies.colocation.forecast import Forecasts

__all__ = ["shielded"]


def shielded(forecasts: Forecasts) -> NDArray[np.bool_]:
    """(O, C): which combinations would not end later together than one after the other."""
    total_ms = forecasts.total_ms
    return np.asarray(total_ms <= total_ms[:, :1] + forecasts.alone_ms())
