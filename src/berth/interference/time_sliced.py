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

from berth.interference.speeds import GPU, pcie_shared, slowest

SWITCH_MILLI = 560
"""What switching costs, per mille of the time during which a second process has kernels to run as well."""
WAIT_MILLI = 250
"""How much of another's turn is waited for, on average, by a kernel that finds the card taken, per mille."""


def time_sliced(
    usage: Any, present: Any, capacity_mem_mib: Any, *, xp: Any = np, switch_milli: int = SWITCH_MILLI
) -> Any:
    """Speeds per mille of tenants whose kernels take turns: see `Speeds` for the shapes."""
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
