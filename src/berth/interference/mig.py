"""Speeds where a GPU is cut up by its hardware (Multi-Instance GPU), and each tenant has a slice of its own.

    time = 1 − c + c / x(slice)          speed = 1 / time

`c` is the part of its time alone in which a tenant is held up by the card, taken to be its use of the cores; `x` is
what a slice can do, fitted to MISO's measurements on an A100 (`mig_fitting`). No job slows another: a neighbour only
takes slices. Each tenant has at least the smallest slice that holds its memory; beyond that all have the largest
size that all can have.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from berth.interference.speeds import (
    CORES,
    MEM,
    blamed,
    what_is_left,
)

COMPUTE = (1, 2, 3, 4, 7)
"""Sevenths of the card's compute in each size of slice."""
MEMORY = (1, 2, 4, 4, 8)
"""Eighths of its memory, and of the bandwidth of that."""
WORK_MILLI = (107, 250, 470, 530, 1000)
"""What each size can do, per mille of the card, as `python bench/interference.py` fits it."""


@dataclass(frozen=True, slots=True)
class Mig:
    """A card that is cut up anew whenever a job comes or goes; called as `Speeds` are."""

    work_milli: tuple[int, ...] = WORK_MILLI
    """What each size of slice can do, per mille of the card."""
    mode = "mig"

    def __call__(self, usage: Any, present: Any, capacity_mem_mib: Any, *, xp: Any = np) -> Any:
        """Speeds per mille: see `Speeds` for the shapes. 0 for all where no slices hold the memory of all."""
        needs = self._needs(usage, present, capacity_mem_mib, xp)
        sizes = xp.zeros_like(needs)
        fits = xp.zeros(present.shape[:-1], dtype=bool)
        for level in range(len(COMPUTE)):  # ascending: the largest that fits stays
            tried = xp.maximum(needs, level)
            room = self._fits(tried, present, xp)
            sizes = xp.where(room[..., None], tried, sizes)
            fits = fits | room
        speeds = self._speeds(usage, sizes, xp)
        link = what_is_left(usage[..., 3], present, xp=xp)
        return xp.where(present & fits[..., None], xp.minimum(speeds, link), 0).astype(xp.int32)

    def at_most(self, usage: Any, present: Any, capacity_mem_mib: Any) -> Any:
        """Speeds that no job exceeds if it and its neighbours use no less than this: for bounds, NumPy only.

        Each has the largest slice that its neighbours' least ones leave.
        """
        needs = self._needs(usage, present, capacity_mem_mib, np)
        sizes = np.zeros_like(needs)
        for at in range(present.shape[-1]):
            for level in range(len(COMPUTE)):
                tried = needs.copy()
                tried[..., at] = level
                sizes[..., at] = np.where(self._fits(tried, present, np), level, sizes[..., at])
        return np.where(present, np.maximum(self._speeds(usage, sizes, np), 1), 0).astype(np.int32)

    def effective_milli(self, usage: Any) -> Any:
        """What each row takes of the card when it is alone: (..., 4) to (...), per mille of what the card has."""
        return usage[..., CORES]

    def crossed(
        self, usage_now: Any, usage_before: Any, present: Any, capacity_mem_mib: Any, *, xp: Any = np
    ) -> Any:
        """Which tenant runs out of memory now, as `speeds.crossed` tells it of a card that is not cut up."""
        full = ~self._fits(self._needs(usage_now, present, capacity_mem_mib, xp), present, xp)
        return blamed(full, usage_now, usage_before, present, xp=xp)

    def _needs(self, usage: Any, present: Any, capacity_mem_mib: Any, xp: Any) -> Any:
        """Number of the smallest size that holds each one's memory; one beyond the last where none does."""
        capacity = xp.asarray(capacity_mem_mib)
        capacity = capacity.reshape(capacity.shape + (1,) * (present.ndim - capacity.ndim))
        needs = xp.zeros(present.shape, dtype=xp.int32)
        for part in (1, 2, 4, 8):
            too_small = (usage[..., MEM] > capacity * part // 8) & (capacity > 0)
            needs = xp.where(too_small, {1: 1, 2: 2, 4: 4, 8: 5}[part], needs)
        return xp.where(present, needs, 0)

    def _fits(self, sizes: Any, present: Any, xp: Any) -> Any:
        """(..., K) to (...): whether slices of these sizes lie on one card together; any that sum up do."""
        compute = xp.asarray(np.array([*COMPUTE, 99], np.int32))[sizes]
        memory = xp.asarray(np.array([*MEMORY, 99], np.int32))[sizes]
        sums = [xp.sum(xp.where(present, part, 0), axis=-1, dtype=xp.int32) for part in (compute, memory)]
        return (sums[0] <= COMPUTE[-1]) & (sums[1] <= MEMORY[-1])

    def _speeds(self, usage: Any, sizes: Any, xp: Any) -> Any:
        cores = xp.clip(usage[..., CORES], 0, 1000)
        work = xp.asarray(np.array([*self.work_milli, 1], np.int32))[sizes]
        return xp.int32(1_000_000) // (1000 - cores + 1000 * cores // work)


@cache
def mig() -> Mig:
    """The model that ships; always the same object."""
    return Mig()
