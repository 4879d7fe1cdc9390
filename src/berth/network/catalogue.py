"""Applications' resource use as one table, and what is left of a job cut into the steps of the horizon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.errors import SettingError
from berth.network.ranks import to_rank

Integers = NDArray[np.signedinteger[Any]]
NEVER_MS = 2**30
"""Twelve days: work that no job of a catalogue has."""

MEMORY = 1
"""The column of GPU memory; the others are GPU, GPU cores and PCIe, per mille."""


class Catalogue(NamedTuple):
    """The use of A applications, in R rows at most; arrays of NumPy or JAX."""

    usage: Any  # int32 (A, R, 4): gpu_milli, mem_mib, cores_milli, pcie_milli; the last row goes on
    rows: Any  # int32 (A,): how many of them there are
    interval_ms: Any  # int32 (A,): of one row
    change_ms: Any  # int32 (A, R): work done when a row of other numbers begins, NEVER_MS where none does
    cells: (
        Any  # int32 (A, R, 4): of one step of the horizon from each row on: memory's largest, else the mean
    )
    between: Any  # int32 (A, R): memory's largest in one step from the middle of each row on, which is one row more
    rest: Any  # int32 (A, R): the largest memory from each row to the end
    stride: Any  # int32 (A,): rows in a step of the horizon, rounded up


def horizon_step_ms(longest_ms: int, horizon: int) -> int:
    """The step with which the horizon covers the longest run, in whole seconds."""
    return max(1000, -(-longest_ms // (1000 * horizon)) * 1000)


def make_catalogue(usages: Sequence[Integers], intervals_ms: Sequence[int], step_ms: int) -> Catalogue:
    """The table of these applications for a horizon in steps of `step_ms`; each of `usages` is (rows, 4)."""
    if not usages or len(usages) != len(intervals_ms) or min(len(usage) for usage in usages) < 1:
        raise SettingError(
            "a catalogue is made of at least one application, each with one row of use or more"
        )
    longest = max(len(usage) for usage in usages)
    table = np.zeros((len(usages), longest, 4), np.int32)
    cells = np.zeros_like(table)
    between, rest = np.zeros((2, len(usages), longest), np.int32)
    stride = np.array([-(-step_ms // interval) for interval in intervals_ms], np.int32)
    for at, usage in enumerate(usages):
        table[at] = _to_length(np.asarray(usage), longest)
        # Behind the end of the series its last row goes on, as it does for a job with more work than that.
        width = int(stride[at])
        follow = _to_length(np.asarray(usage), longest + width)
        windows = np.lib.stride_tricks.sliding_window_view(follow, width + 1, axis=0)
        cells[at] = windows[..., :width].mean(axis=-1).round()
        cells[at, :, MEMORY] = windows[:, MEMORY, :width].max(axis=-1)
        between[at] = windows[:, MEMORY].max(axis=-1)
        rest[at] = np.maximum.accumulate(follow[longest - 1 :: -1, MEMORY])[::-1]
    rows = np.array([len(usage) for usage in usages], np.int32)
    intervals = np.array(intervals_ms, np.int32)
    return Catalogue(table, rows, intervals, _changes(table, intervals), cells, between, rest, stride)


def left_cells(
    catalogue: Catalogue, application: Any, done_ms: Any, left_ms: Any, step_ms: int, horizon: int, xp: Any
) -> Any:
    """What jobs still need, alone, in each step of the horizon from now: int32 (..., H, 4), 0 where they are over.

    `application` is the row of the catalogue, `done_ms` the work that is done and `left_ms` what is left, (...).
    The last step shows the largest memory from there to the end, so that nothing hides behind the horizon.
    """
    first = xp.minimum(done_ms // catalogue.interval_ms[application], catalogue.rows[application] - 1)
    step = to_rank(xp.arange(horizon, dtype=xp.int32), first.ndim + 1)
    row = first[..., None] + step * catalogue.stride[application][..., None]
    row = xp.minimum(row, catalogue.rows[application][..., None] - 1)
    cells = catalogue.cells[application[..., None], row]
    begins = done_ms == first * catalogue.interval_ms[application]
    mem_mib = xp.where(begins[..., None], cells[..., MEMORY], catalogue.between[application[..., None], row])
    last = catalogue.rest[application, row[..., -1]]
    mem_mib = xp.where(step == horizon - 1, last[..., None], mem_mib)
    cells = xp.where(xp.arange(4) == MEMORY, mem_mib[..., None], cells)
    return xp.where((step * step_ms < left_ms[..., None])[..., None], cells, 0)


def _changes(table: Integers, interval_ms: Integers) -> Integers:
    """When each row's numbers change next, as work done: (A, R)."""
    change_ms = np.full(table.shape[:2], NEVER_MS, np.int32)
    for row in range(table.shape[1] - 2, -1, -1):
        differs = np.any(table[:, row] != table[:, row + 1], axis=-1)
        change_ms[:, row] = np.where(differs, (row + 1) * interval_ms, change_ms[:, row + 1])
    return change_ms


def _to_length(usage: Integers, length: int) -> Integers:
    return np.concatenate([usage, np.repeat(usage[-1:], max(0, length - len(usage)), axis=0)])[:length]
