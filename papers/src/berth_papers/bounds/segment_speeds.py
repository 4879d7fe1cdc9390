"""The speeds that no tenant exceeds in a segment, whichever of its rows it and its neighbours are in.

Letters: R rows, S segments, n configurations, K tenants at most.

The proof, for tenants in rows r₁ … r_K, merged into segments A₁ … A_K. Let ℓ(A) be the least that any row of A uses
of each resource.

- `time_sliced`, `unhindered` and the link (`pcie_shared`) never answer less if a tenant uses less, and in whole
  numbers: sums fall, what switching costs falls with them, the even part rises, and rounding keeps order. So the
  speeds at ℓ(A₁) … ℓ(A_K) are not below those at r₁ … r_K. A model of the user's own must be of this kind.
- Under `Contention` the same holds of what is left of the card and of how a neighbour presses, but not of how a
  row's own use makes it feel that. So the stress between two segments is the least that any row of the one feels
  beside any row of the other, which is not above that between the rows that meet; stress adds up, and with stress
  that is too small no tenant is too slow. Of a model that names applications, no two stress each other less than the
  least that it says of any two by name.
- Under `Mig` a segment has the largest slice that the least needs of the others leave (`Mig.at_most`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from berth.arrays import IntArray
from berth.interference import Speeds
from berth.interference.contention import STRESS_ONE, Contention
from berth.interference.mig import Mig
from berth.interference.speeds import slowest

Int32Array = NDArray[np.int32]
AT_ONCE = 50_000
"""Configurations that are asked about at the same time, for the memory that it takes."""


def segment_speeds(
    rows: Int32Array,  # (R, 4)
    segment: IntArray,  # (R,): whose row it is
    tenants: IntArray,  # (n, K): segments; S for an empty place
    speeds: Speeds,
    capacity_mem_mib: int,
) -> IntArray:  # (n, K)
    """Speeds per mille of each configuration that no rows of its segments exceed; 0 for an empty place."""
    least = _grouped(rows, segment, int(segment.max()) + 1)
    if isinstance(speeds, Contention):
        answer = _by_stress(rows, segment, least, speeds)
    else:
        bounding = speeds.at_most if isinstance(speeds, Mig) else speeds
        answer = _at_least_use(least, bounding, capacity_mem_mib)
    found = np.zeros(tenants.shape, dtype=np.int64)
    for begin in range(0, len(tenants), AT_ONCE):
        part = tenants[begin : begin + AT_ONCE]
        found[begin : begin + len(part)] = answer(part)
    return found


def _at_least_use(
    least: Int32Array, speeds: Callable[..., Any], capacity_mem_mib: int
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
    different, of_row = np.unique(rows, axis=0, return_inverse=True)
    between = model.stress_between(different, different)  # of each two rows
    if model.names:
        between = np.minimum(between, model.named.min())
    stress = np.zeros((many + 1, many + 1), dtype=np.int64)
    own = [np.unique(of_row.reshape(-1)[segment == one]) for one in range(many)]
    felt = np.stack([between[mine].min(axis=0) for mine in own])  # (S, rows)
    for other in range(many):
        stress[:many, other] = felt[:, own[other]].min(axis=1)
    padded = np.concatenate([least, np.zeros((1, 4), np.int32)])

    def answer(tenants: IntArray) -> Int32Array:
        present = tenants < many
        size = tenants.shape[1]
        others = present[:, None, :] & ~np.eye(size, dtype=np.bool_)
        total = np.where(others, stress[tenants[:, :, None], tenants[:, None, :]], 0).sum(axis=2)
        shared = 1000 * STRESS_ONE // (STRESS_ONE + total)
        found: Int32Array = slowest(np.minimum(shared, model.left(padded[tenants], present)), present)
        return found

    return answer


def _grouped(rows: Int32Array, group: IntArray, groups: int) -> Int32Array:
    """(groups, 4): the least of each resource that any row of a group uses."""
    least = np.full((groups, rows.shape[1]), np.iinfo(np.int32).max, dtype=np.int32)
    np.minimum.at(least, group, rows)
    return least
