"""Random draws that are the same on every machine: whole arrays of them, from a seed and a purpose.

Only PCG64's raw stream is used, which NumPy guarantees, and additions, multiplications, divisions and
comparisons, which IEEE 754 does: no logarithm or power of a mathematical library, whose last digit differs
between processors. Each purpose has a stream of its own, so that a change to one quantity leaves the others
as they were.
"""

from __future__ import annotations

import csv
import zlib
from collections.abc import Sequence
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_LOG_2 = 0.6931471805599453
_LOG_TERMS = 18


def numbers_of(table: str) -> dict[str, list[float]]:
    """The columns of a CSV table in this folder, all numbers, by name."""
    with files("berth.traces.synthetic").joinpath(table).open(encoding="utf-8") as stream:
        header, *rows = csv.reader(stream)
    return {name: [float(row[at]) for row in rows] for at, name in enumerate(header)}


def uniform(seed: int, purpose: str, number: int) -> Floats:
    """Numbers (N,) in [0, 1)."""
    stream = np.random.PCG64(np.random.SeedSequence([seed, zlib.crc32(purpose.encode())]))
    bits: NDArray[np.uint64] = stream.random_raw(number) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def chosen(drawn: Floats, weights: Sequence[float]) -> NDArray[np.intp]:
    """For each drawn number (N,) the index of a weight (W,), each as often as it weighs."""
    heaped = np.cumsum(np.asarray(weights, np.float64))
    found: NDArray[np.intp] = np.searchsorted(heaped, drawn * heaped[-1], side="right")
    return np.minimum(found, len(heaped) - 1)


def quantile(drawn: Floats, at: Sequence[float], values: Sequence[float]) -> Floats:
    """The quantiles (N,) at the drawn numbers, straight between the knots `at` (K,), from 0 to 1, with
    `values` (K,)."""
    knots, heights = np.asarray(at, np.float64), np.asarray(values, np.float64)
    right = np.clip(np.searchsorted(knots, drawn, side="right"), 1, len(knots) - 1)
    part = (drawn - knots[right - 1]) / (knots[right] - knots[right - 1])
    return heights[right - 1] + part * (heights[right] - heights[right - 1])


def exponential(drawn: Floats) -> Floats:
    """Exponential variates (N,) of mean 1: the inverse of the distribution at the drawn numbers."""
    fraction, exponent = np.frexp(1.0 - drawn)
    ratio = (fraction - 1.0) / (fraction + 1.0)
    square = ratio * ratio
    series = np.zeros_like(ratio)
    for power in range(2 * _LOG_TERMS - 1, 0, -2):  # log m = 2 (z + z³/3 + z⁵/5 + …), z = (m − 1) / (m + 1)
        series = series * square + 1.0 / power
    return -(2.0 * ratio * series + exponent * _LOG_2)


def arrivals(drawn: Floats, span_ms: float, hourly: Sequence[float] = (1.0,) * 24) -> NDArray[np.int64]:
    """Sorted arrival times (N,) of a Poisson process over this span, given that there are N of them.

    `hourly` weighs the hours of the day against each other; the span begins at midnight.
    """
    days = max(1, -int(-span_ms // 86_400_000))
    weights = np.tile(np.asarray(hourly, np.float64), days)
    edges_ms = np.minimum(np.arange(len(weights) + 1) * 3_600_000.0, span_ms)
    mass = np.concatenate(([0.0], np.cumsum(weights * np.diff(edges_ms))))
    keep = np.concatenate(([True], np.diff(mass) > 0))
    return np.sort(quantile(drawn, mass[keep] / mass[-1], edges_ms[keep]).astype(np.int64))


def span_ms(work_ms: NDArray[np.int64], milli: NDArray[np.int64], gpus: int, load: float) -> float:
    """How long arrivals must last for jobs of this work (N,) and GPU share (N,) to ask this load of a number of
    GPUs."""
    return max(1.0, float(np.sum(work_ms * milli)) / (gpus * 1000 * load))
