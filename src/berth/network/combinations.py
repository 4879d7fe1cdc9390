"""The combinations of the waiting jobs that are seen: which jobs each of them starts."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from berth.errors import SettingError

MOST_SLOTS = 12
"""The most waiting jobs: 4,095 combinations."""


@cache
def combinations(slots: int) -> NDArray[np.bool_]:
    """Which slots are in each action, (2^slots, slots): row 0 holds and starts none, row c the slots of the bits of c.

    The virtual job slots of Oh 2019, section IV.2: for slots a, b, c they are a, b, ab, c, ac, bc, abc.
    """
    if not 1 <= slots <= MOST_SLOTS:
        raise SettingError(f"{slots} waiting jobs to combine; expected 1…{MOST_SLOTS}")
    member: NDArray[np.bool_] = (np.arange(2**slots)[:, None] >> np.arange(slots)) & 1 == 1
    member.setflags(write=False)
    return member
