"""The thesis's rule of what may start: no resource is ever asked for beyond the card's capacity, as demands are said.

For learners and policies that are shown a single demand of each job and know nothing of its series. Letters as in the
package.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from berth.errors import SettingError
from berth.network.features import Scene

Limits = Literal["card", "memory"]
"""What demands stay within: all four resources of the card, or its memory alone."""

WHOLE_MILLI = 1000


def checked_limits(name: str) -> Limits:
    """The limits of that name; SettingError where there are none."""
    for known in get_args(Limits):
        if name == known:
            return known  # type: ignore[no-any-return]
    raise SettingError(f"within is '{name}'; expected {' or '.join(get_args(Limits))}")


def within(scene: Scene, members: NDArray[np.bool_], limits: Limits = "card") -> NDArray[np.bool_]:
    """Where for each resource and each step the demands together stay within the card (Oh 2019, IV.2): (W, C).

    The scene is of W moments on cards of one size, in NumPy; `members` is (C, M). A combination of slots of which one
    holds no job is not within.
    """
    mem_mib = int(np.max(scene.mem_mib)) or np.iinfo(np.int32).max
    capacity = np.array([WHOLE_MILLI, mem_mib, WHOLE_MILLI, WHOLE_MILLI])
    if limits == "memory":
        capacity[[0, 2, 3]] = np.iinfo(np.int32).max
    there = scene.running.sum(axis=1)[:, None]  # (W, 1, H, 4)
    started = np.tensordot(members.astype(np.int64), scene.waiting, axes=(1, 1)).swapaxes(0, 1)
    real = np.all(~members | (scene.waiting_left_ms[:, None, :] > 0), axis=-1)
    return np.asarray(np.all(there + started <= capacity, axis=(-1, -2)) & real)
