"""Random numbers for compiled searches: streams that are a number each, so that threads do not meet."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from berth.arrays import compiled

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
S11, S27, S30, S31 = (np.uint64(bits) for bits in (11, 27, 30, 31))
UNIT = 1.0 / 9007199254740992.0  # 2⁻⁵³


def seeded(*numbers: int) -> NDArray[np.uint64]:
    """(1,): the state of a stream of random numbers of its own for these numbers."""
    state = 0
    for number in numbers:
        state = (state * 6364136223846793005 + number + 1442695040888963407) % 2**64
        state ^= state >> 29
    return np.array([state], dtype=np.uint64)


@compiled
def uniform(state: NDArray[np.uint64]) -> float:
    """The next number from 0 up to 1: splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    state[0] += GOLDEN
    z = state[0]
    z = (z ^ (z >> S30)) * MIX_1
    z = (z ^ (z >> S27)) * MIX_2
    z = z ^ (z >> S31)
    return np.float64(z >> S11) * UNIT


@compiled
def below(state: NDArray[np.uint64], bound: int) -> int:
    """The next whole number from 0 up to `bound`."""
    return int(uniform(state) * bound)
