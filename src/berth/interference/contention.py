"""A contention model with fitted coefficients: each neighbour adds its stress, and stress slows.

    speed_i = cost_i / (1 + Σ_j stress_ij)
    log2 stress_ij = sensitivity_i + pressure_j + Σ_r affinity_ir · force_jr

Sensitivity goes by how much of the time a tenant has kernels on the GPU, pressure by how hard its neighbour works
the card's cores and memory: that is the *law*, three numbers. Where applications have been measured, the *cell* of
the usage that they fall into has corrections of its own, and what sharing costs at all (`cost`, at most 1). Stress
is never negative and adds up, so that nobody is faster than alone or for a neighbour more, whatever was fitted.
Whole numbers all through: logarithms and powers are tables, made once. Letters as in `speeds`; C cells, R = 2.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.errors import SettingError
from berth.interference.speeds import CORES, GPU, MEM, pcie_shared, slowest

__all__ = ["GPU_STEP", "MEM_STEP", "RANK", "STRESS_ONE", "Contention", "Law", "cell_of"]

GPU_STEP = 20
"""Width of a cell in GPU and in cores, per mille."""
MEM_STEP = 256
"""Height of a cell in memory, MiB."""
RANK = 2
"""R: how many kinds of affinity there are."""
LOG_ONE = 256
"""One doubling in the logarithms."""
FACTOR_ONE = 64
"""1 in affinity and force; their product is brought to `LOG_ONE`."""
STRESS_ONE = 100_000
"""Stress at which the speed is one half."""
LEAST_LOG2, MOST_LOG2 = -10, 4
"""Stress below 2^−10 counts as that, and above 2^4 as that."""
OFFSET = 0.01
"""Is added to a fraction before its logarithm is taken, so that 0 has one."""
NO_CELL = -1
FORMAT, VERSION = "berth-contention", 1

Int32Array = NDArray[np.int32]


class Law(NamedTuple):
    """The three numbers of the law: log2 stress = level + own · log2(gpu + 0.01) + theirs · log2(cores + 0.01)."""

    level: float
    own: float
    theirs: float


def cell_of(usage: Any, *, xp: Any = np) -> Any:
    """The number of the cell that each row of usage falls into: int32 (..., 4) to (...)."""
    gpu = xp.clip(usage[..., GPU], 0, 1000) // GPU_STEP
    cores = xp.clip(usage[..., CORES], 0, 1000) // GPU_STEP
    mem = xp.clip(usage[..., MEM] // MEM_STEP, 0, 4095)
    return ((gpu * 51 + cores) * 4096 + mem).astype(xp.int32)


@dataclass(frozen=True, eq=False, repr=False)
class Contention:
    """A fitted model; called as `Speeds` are."""

    law: Law
    cells: Int32Array
    """(C,): numbers of the cells in which something was measured, ascending."""
    coefficients: Int32Array
    """(C, 3 + 2R): sensitivity and pressure (in 1/256 of a doubling), affinities, forces (in 1/64), and the factor
    (per mille) by which speeds measured there differ from what stress explains."""

    def __call__(self, usage: Any, present: Any, capacity_mem_mib: Any, *, xp: Any = np) -> Any:
        """Speeds per mille: see `Speeds` for the shapes."""
        found = xp.asarray(self._tables[3])[self.place_of(usage, xp=xp)]  # (..., K, 3 + 2R)
        gpu = xp.clip(usage[..., GPU], 0, 1000)
        stress = self._stress(usage, found, usage, found, xp)  # (..., K, K): of i under j
        busy = present & (gpu > 0)
        tenants = present.shape[-1]
        others = xp.broadcast_to(~xp.eye(tenants, dtype=bool), (*present.shape, tenants))
        meets = busy[..., :, None] & busy[..., None, :] & others  # (..., K, K)
        stress = xp.minimum(stress, (2**31 - 1 - STRESS_ONE) // tenants)  # the sum stays within 32 bits
        total = xp.sum(xp.where(meets, stress, 0), axis=-1, dtype=xp.int32)
        cost = xp.where(xp.any(meets, axis=-1), xp.minimum(found[..., -1], 1000), 1000)
        speeds = cost * xp.int32(STRESS_ONE) // (STRESS_ONE + total)
        return slowest(xp.minimum(speeds, pcie_shared(usage, present, xp=xp)), present, xp=xp)

    def stress_between(
        self, usage: Any, places: Any, neighbours: Any, places_of_neighbours: Any
    ) -> Int32Array:  # (A, 4), (A,), (B, 4), (B,) to (A, B)
        """How much each of the first is stressed by each of the second, corrected as at these places (`place_of`).

        In `STRESS_ONE`; none where either has nothing to do on the GPU. It never falls with the use of either while
        the places stay.
        """
        table = self._tables[3]
        stress = self._stress(usage, table[places], neighbours, table[places_of_neighbours], np)
        meets = (usage[:, GPU] > 0)[:, None] & (neighbours[:, GPU] > 0)
        found: Int32Array = np.where(meets, stress, 0).astype(np.int32)
        return found

    def cost_milli(self, places: Any) -> Int32Array:
        """The speed that is left where neighbours add no stress, at these places: at most 1000."""
        cost: Int32Array = np.minimum(self._tables[3][places][..., -1], 1000)
        return cost

    def _stress(self, usage: Any, found: Any, neighbours: Any, of_neighbours: Any, xp: Any) -> Any:
        """Stress of each under each neighbour (..., K, K), given what corrects them (..., K, 3 + 2R)."""
        own, theirs, powers, _ = self._tables
        sensitivity = xp.asarray(own)[xp.clip(usage[..., GPU], 0, 1000)] + found[..., 0]
        pressure = xp.asarray(theirs)[xp.clip(neighbours[..., CORES], 0, 1000)] + of_neighbours[..., 1]
        logs = sensitivity[..., :, None] + pressure[..., None, :]
        for rank in range(RANK):
            affinity, force = found[..., 2 + rank], of_neighbours[..., 2 + RANK + rank]
            logs = logs + affinity[..., :, None] * force[..., None, :] // (FACTOR_ONE**2 // LOG_ONE)
        return xp.asarray(powers)[
            xp.clip(logs, LEAST_LOG2 * LOG_ONE, MOST_LOG2 * LOG_ONE) - LEAST_LOG2 * LOG_ONE
        ]

    def reading_milli(self, usage: Any) -> Int32Array:
        """What a speed of 1000 is read as where speeds are divided by a measured speed alone: int32 (..., K).

        A published speed above alone says that the speed alone was measured too low; where that was so for all of
        an application's pairs this is above 1000. It is for comparing with measurements and never part of a speed.
        """
        table = self._tables[3]
        read: Int32Array = np.maximum(table[self.place_of(usage)][..., -1], 1000)
        return read

    def place_of(self, usage: Any, *, xp: Any = np) -> Any:
        """Which row of the coefficients corrects each row of usage: (..., 4) to (...); `len(cells)` outside all cells,
        where nothing is corrected."""
        cell = cell_of(usage, xp=xp)
        known, rows = self._places
        place = cell % len(known)
        return xp.where(xp.asarray(known)[place] == cell, xp.asarray(rows)[place], len(self.cells))

    def __repr__(self) -> str:
        digest = hashlib.sha256(self.to_json().encode()).hexdigest()[:16]
        return f"Contention({len(self.cells)} cells {digest})"

    @cached_property
    def _tables(self) -> tuple[Int32Array, Int32Array, Int32Array, Int32Array]:
        def logs(level: float, slope: float) -> Int32Array:
            values = [round(LOG_ONE * (level + slope * math.log2(x / 1000 + OFFSET))) for x in range(1001)]
            return np.array(values, dtype=np.int32)

        steps = range(LEAST_LOG2 * LOG_ONE, MOST_LOG2 * LOG_ONE + 1)
        powers = np.array([round(STRESS_ONE * 2 ** (step / LOG_ONE)) for step in steps], dtype=np.int32)
        nothing = np.zeros((1, 3 + 2 * RANK), dtype=np.int32)
        nothing[0, -1] = 1000
        table = np.concatenate([self.coefficients, nothing])
        return logs(self.law.level, self.law.own), logs(0.0, self.law.theirs), powers, table

    @cached_property
    def _places(self) -> tuple[Int32Array, Int32Array]:
        """A table in which each cell has the place of its number modulo the table's length to itself: the number of
        the cell at each place (`NO_CELL` where there is none) and its row among the coefficients."""
        size = max(1, len(self.cells))
        while len(np.unique(self.cells % size)) < len(self.cells):
            size += max(1, size // 50)
        known, rows = np.full(size, NO_CELL, dtype=np.int32), np.zeros(size, dtype=np.int32)
        known[self.cells % size] = self.cells
        rows[self.cells % size] = np.arange(len(self.cells))
        return known, rows

    def to_json(self) -> str:
        """The coefficients as text, a cell a line."""
        head = {"format": FORMAT, "version": VERSION, "law": [round(number, 6) for number in self.law]}
        cells = ",\n".join(
            json.dumps([int(cell), *row])
            for cell, row in zip(self.cells, self.coefficients.tolist(), strict=True)
        )
        return json.dumps(head)[:-1] + ', "cells": [\n' + cells + "\n]}\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> Contention:
        """Read what `to_json` wrote; SettingError, naming `where`, for anything else."""
        expected = f"expected a model written by `berth interference fit` ({FORMAT} {VERSION})"
        try:
            read = json.loads(text)
            if read["format"] != FORMAT or read["version"] != VERSION:
                raise SettingError(f"{where} is {read['format']} {read['version']}; {expected}")
            law = Law(*(float(number) for number in read["law"]))
            rows = np.array(read["cells"], dtype=np.int64).reshape(len(read["cells"]), 4 + 2 * RANK)
        except (ValueError, TypeError, KeyError) as error:
            raise SettingError(f"{where} cannot be read: {error}; {expected}") from error
        if not np.isfinite(law).all() or max(map(abs, law)) > 20 or np.abs(rows[:, 1:]).max(initial=0) > 8192:
            raise SettingError(f"{where} has coefficients beyond reason; {expected}")
        if law.own < 0 or law.theirs < 0 or (rows[:, -1] <= 0).any():
            raise SettingError(f"{where} has a law that falls with use, or a factor of 0 or less; {expected}")
        return cls(law, rows[:, 0].astype(np.int32), rows[:, 1:].astype(np.int32))
