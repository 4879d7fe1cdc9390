"""Speeds where the kernels of different processes take turns on the GPU, and each change of turn costs something.

That is what a GPU does with processes that do not share a context (no MPS): at any moment the kernels of one
process run. Two things slow a tenant then:

- **The card is full.** Its time, less what switching takes, is shared out evenly; one that asks for less than its part
  keeps what it asks for (max–min fairness, as round robin gives it).
- **The card is taken.** A tenant that wants the GPU for a part of the time finds another's kernel on it for a part of
  *that*, and waits out its turn, even on a card that is not full.

`SWITCH_MILLI` is calibrated, not measured: see docs/interference.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from berth.arrays import BoolArray, IntArray, compiled
from berth.interference.speeds import (
    GPU,
    PCIE,
    as_sets,
    pcie_shared,
    slowest,
)

SWITCH_MILLI = 560
"""What switching costs, per mille of the time during which a second process has kernels to run as well."""
WAIT_MILLI = 250
"""How much of another's turn is waited for, on average, by a kernel that finds the card taken, per mille."""


def time_sliced(
    usage: Any, present: Any, capacity_mem_mib: Any, *, xp: Any = np, switch_milli: int = SWITCH_MILLI
) -> Any:
    """Speeds per mille of tenants whose kernels take turns: see `Speeds` for the shapes."""
    if xp is not np:
        return plain(usage, present, xp=xp, switch_milli=switch_milli)
    rows, there, shape = as_sets(usage, present)
    found = np.empty(there.shape, np.int32)
    speeds_in_turns(rows, there, switch_milli, np.empty(shape[-1], np.int64), found)
    return found.reshape(shape)


def plain(usage: Any, present: Any, *, xp: Any, switch_milli: int = SWITCH_MILLI) -> Any:
    """`time_sliced` in NumPy or JAX; with NumPy `speeds_in_turns` is asked, which a test holds equal."""
    wanted = xp.where(present, xp.clip(usage[..., GPU], 0, 1000), 0).astype(xp.int32)
    total = xp.sum(wanted, axis=-1, keepdims=True, dtype=xp.int32)
    overlap = total - xp.max(wanted, axis=-1, keepdims=True)  # of the others, when the busiest runs
    capacity = xp.int32(1_000_000) // (1000 + switch_milli * overlap // 1000)
    level = _level(wanted, total, capacity, xp)
    fair = 1000 * xp.minimum(wanted, level) // xp.maximum(wanted, 1)
    taken = xp.minimum(total - wanted, 1000)
    waits = xp.int32(1_000_000) // (1000 + wanted * taken // 1000 * WAIT_MILLI // 1000)
    speeds = xp.minimum(xp.where(wanted > 0, fair, 1000), waits)
    shared = xp.minimum(xp.where(overlap > 0, speeds, 1000), pcie_shared(usage, present, xp=xp))
    return slowest(shared, present, xp=xp)


def _level(wanted: Any, total: Any, capacity: Any, xp: Any) -> Any:
    """The largest even part, per mille, that the card can give to all that want as much: (..., 1).

    With an even part p, all jobs together take the minimum over k of this sum: what the k jobs with the least demand
    want, and p for each of the others. So the card bears p if one of these sums is within its capacity.
    """
    least = xp.sort(wanted, axis=-1)
    before = xp.cumsum(least, axis=-1, dtype=xp.int32) - least
    others = xp.arange(wanted.shape[-1], 0, -1, dtype=xp.int32).reshape(*(1,) * (wanted.ndim - 1), -1)
    level = xp.max((capacity - before) // others, axis=-1, keepdims=True)
    return xp.where(total <= capacity, 1000, xp.clip(level, 0, 1000))


@compiled
def speeds_in_turns(
    usage: NDArray[np.int32],  # (N, K, 4)
    present: BoolArray,  # (N, K)
    switch_milli: int,
    least: IntArray,  # (K,): to work in
    found: NDArray[np.int32],  # (N, K), out
) -> None:
    """`plain` of N sets."""
    tenants = present.shape[1]
    for at in range(present.shape[0]):
        total, most, pcie = 0, 0, 0
        for one in range(tenants):
            wanted = min(max(usage[at, one, GPU], 0), 1000) if present[at, one] else 0
            total += wanted
            most = max(most, wanted)
            pcie += usage[at, one, PCIE] if present[at, one] else 0
            to = one  # sort them, few as they are
            while to > 0 and least[to - 1] > wanted:
                least[to] = least[to - 1]
                to -= 1
            least[to] = wanted
        overlap = total - most
        capacity = 1_000_000 // (1000 + switch_milli * overlap // 1000)
        level, before = 1000, 0
        if total > capacity:
            level = 0
            for one in range(tenants):
                level = max(level, (capacity - before) // (tenants - one))
                before += least[one]
            level = min(level, 1000)
        pcie = 1_000_000 // max(pcie, 1000)
        for one in range(tenants):
            if not present[at, one]:
                found[at, one] = 0
                continue
            wanted = min(max(usage[at, one, GPU], 0), 1000)
            speed = pcie if usage[at, one, PCIE] > 0 else 1000
            if overlap > 0:
                fair = 1000 * min(wanted, level) // wanted if wanted > 0 else 1000
                waits = 1_000_000 // (1000 + wanted * min(total - wanted, 1000) // 1000 * WAIT_MILLI // 1000)
                speed = min(speed, min(fair, waits))
            found[at, one] = max(speed, 1)
