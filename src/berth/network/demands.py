"""What a policy believes that a job needs, and the limits for the needs of several jobs together."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from berth.errors import SettingError

Demand = Literal["series", "peak", "mean"]
DEMANDS: tuple[Demand, ...] = get_args(Demand)
"""A job's use at each moment, or its largest or its mean use all the time."""
Limits = Literal["card", "memory"]
"""What demands stay within: all four resources of the card, or its memory alone."""


def checked_limits(name: str) -> Limits:
    """The limits of that name; SettingError where there are none."""
    for known in get_args(Limits):
        if name == known:
            return known  # type: ignore[no-any-return]
    raise SettingError(f"within is '{name}'; expected {' or '.join(get_args(Limits))}")


def demanded(usage: NDArray[Any], demand: Demand) -> NDArray[Any]:
    """Return use (rows, 4) as it is, or with the peak or the mean of all rows in each row."""
    if demand == "series":
        return usage
    level = usage.max(axis=0) if demand == "peak" else usage.mean(axis=0)
    if np.issubdtype(usage.dtype, np.integer):
        level = np.rint(level)
    return np.broadcast_to(level.astype(usage.dtype), usage.shape)
