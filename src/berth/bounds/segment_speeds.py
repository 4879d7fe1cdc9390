"""The speeds that nobody exceeds in a segment, whichever of its rows he and his neighbours are in.

Letters: R rows, S segments, n configurations, K tenants at most.

The proof, for tenants in rows r₁ … r_K, merged into segments A₁ … A_K. Let ℓ(A) be the least that any row of A uses
of each resource.

- `time_sliced`, `unhindered` and the link (`pcie_shared`) never answer less where somebody uses less, and in whole
  numbers: sums fall, what switching costs falls with them, the even part rises, and rounding keeps order. So the
  speeds at ℓ(A₁) … ℓ(A_K) are not below those at r₁ … r_K. A model of the user's own must be of this kind.
- `Contention` is not: its corrections belong to cells, and a row that uses less may lie in another one. Its speeds
  go by stress, which two tenants settle between themselves, and by a cost of sharing. Among rows of the same place
  (the same cell, or none) the corrections are constant and stress never falls with use. So the stress between two
  segments is not below the least of that between their *corners*, one for each place of their rows, with the least
  use of the rows there; the cost is not above the largest of the corners'. With stress that is too small and a cost
  that is too large, nobody is too slow. Where no row lies in a cell, each segment has one corner, its ℓ(A).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from berth.arrays import IntArray
from berth.interference import Speeds
from berth.interference.contention import STRESS_ONE, Contention
from berth.interference.speeds import GPU, pcie_shared, slowest

__all__ = ["segment_speeds"]

Int32Array = NDArray[np.int32]
AT_ONCE = 50_000
"""Configurations that are asked about at the same time, for the memory that it takes."""


def segment_speeds(
    rows: Int32Array,  # (R, 4)
    segment: IntArray,  # (R,): whose row it is
    tenants: IntArray,  # (n, K): segments; S where there is nobody
    speeds: Speeds,
    capacity_mem_mib: int,
) -> IntArray:  # (n, K)
    """Speeds per mille of each configuration that no rows of its segments exceed; 0 where there is nobody."""
    least = _grouped(rows, segment, int(segment.max()) + 1)
    if isinstance(speeds, Contention):
        answer = _by_stress(rows, segment, least, speeds)
    else:
        answer = _at_least_use(least, speeds, capacity_mem_mib)
    found = np.zeros(tenants.shape, dtype=np.int64)
    for begin in range(0, len(tenants), AT_ONCE):
        part = tenants[begin : begin + AT_ONCE]
        found[begin : begin + len(part)] = answer(part)
    return found


def _at_least_use(
    least: Int32Array, speeds: Speeds, capacity_mem_mib: int
) -> Callable[[IntArray], Int32Array]:
    padded = np.concatenate([least, np.zeros((1, 4), np.int32)])

    def answer(tenants: IntArray) -> Int32Array:
        found: Int32Array = np.asarray(speeds(padded[tenants], tenants < len(least), capacity_mem_mib))
        return found

    return answer


def _by_stress(
    rows: Int32Array, segment: IntArray, least: Int32Array, model: Contention
) -> Callable[[IntArray], Int32Array]:
    many = len(least)
    places = model.place_of(rows).astype(np.int64)
    keys, corner = np.unique(segment * (len(model.cells) + 1) + places, return_inverse=True)
    usage = _grouped(rows, corner.reshape(-1), len(keys))
    owner, place = np.divmod(keys, len(model.cells) + 1)  # ascending by segment
    first = np.searchsorted(owner, np.arange(many))
    stress = np.zeros((many + 1, many + 1), dtype=np.int64)
    for one in range(many):
        mine = owner == one
        between = model.stress_between(usage[mine], place[mine], usage, place).min(axis=0)
        stress[one, :many] = np.minimum.reduceat(between, first)
    busy = np.append(least[:, GPU] > 0, False)
    cost = np.append(np.maximum.reduceat(model.cost_milli(place), first), 1000).astype(np.int64)
    padded = np.concatenate([least, np.zeros((1, 4), np.int32)])

    def answer(tenants: IntArray) -> Int32Array:
        present = tenants < many
        size = tenants.shape[1]
        others = present[:, None, :] & ~np.eye(size, dtype=np.bool_)
        total = np.where(others, stress[tenants[:, :, None], tenants[:, None, :]], 0).sum(axis=2)
        meets = busy[tenants] & (others & busy[tenants][:, None, :]).any(axis=2)
        shared = np.where(meets, cost[tenants], 1000) * STRESS_ONE // (STRESS_ONE + total)
        found: Int32Array = slowest(np.minimum(shared, pcie_shared(padded[tenants], present)), present)
        return found

    return answer


def _grouped(rows: Int32Array, group: IntArray, groups: int) -> Int32Array:
    """(groups, 4): the least of each resource that any row of a group uses."""
    least = np.full((groups, rows.shape[1]), np.iinfo(np.int32).max, dtype=np.int32)
    np.minimum.at(least, group, rows)
    return least
