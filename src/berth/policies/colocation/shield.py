"""What is never started, whatever a chooser says: combinations that would end later together than in turn."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from berth.arrays import BoolArray, IntArray, compiled
from berth.policies.colocation.forecast import Forecasts

__all__ = ["shielded"]


def shielded(forecasts: Forecasts) -> NDArray[np.bool_]:
    """(O, C): which combinations would not end later together than one after the other."""
    found = np.empty(forecasts.fits.shape, np.bool_)
    _shielded(forecasts.ends_ms, forecasts.left_us, forecasts.tenants, found)
    return found


@compiled
def _shielded(
    ends_ms: IntArray,  # (O, C, K)
    left_us: IntArray,  # (O, K), 0 where there is no job
    tenants: IntArray,  # (O,)
    found: BoolArray,  # (O, C), out
) -> None:
    places = left_us.shape[1]
    for offer in range(found.shape[0]):
        without = 0
        for place in range(places):
            without = max(without, ends_ms[offer, 0, place])
        for combination in range(found.shape[1]):
            together, in_turn = 0, without
            for place in range(places):
                together = max(together, ends_ms[offer, combination, place])
                job = place - tenants[offer]
                if job >= 0 and combination >> job & 1:
                    in_turn += -(-left_us[offer, place] // 1000)
            found[offer, combination] = together <= in_turn
