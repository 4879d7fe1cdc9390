"""How values spread: mean and percentiles, cumulative distributions, and intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from berth.errors import SettingError

CDF_POINTS = 500


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean and percentiles of some values, in the values' unit; NaN where there are no values."""

    count: int
    mean: float
    median: float
    p90: float
    p99: float
    maximum: float


@dataclass(frozen=True, slots=True, eq=False)
class Cdf:
    """An empirical cumulative distribution, thinned to P points, each of them exact."""

    values: NDArray[np.float64]  # (P,)
    """Strictly increasing, in the unit of what was counted; the first and the last are the extremes."""
    shares: NDArray[np.float64]  # (P,)
    """The fraction of all values that are at most the value beside it; the last is 1."""
    count: int
    """How many values there were before thinning."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds and its 95 % confidence interval."""

    mean: float
    low: float
    """NaN where there are fewer than two values: one run does not tell how far runs differ."""
    high: float
    count: int


def distribution(values: ArrayLike) -> Distribution:
    """Mean, median and high percentiles; percentiles between two values are interpolated linearly."""
    array = np.asarray(values, np.float64)
    if not array.size:
        return Distribution(0, math.nan, math.nan, math.nan, math.nan, math.nan)
    median, p90, p99 = np.quantile(array, (0.5, 0.9, 0.99)).tolist()
    return Distribution(array.size, float(array.mean()), median, p90, p99, float(array.max()))


def cdf(values: ArrayLike, points: int = CDF_POINTS) -> Cdf:
    """Count what share of the values is at most each value, and keep at most `points` of these pairs.

    Half of the points kept are even in share; the others crowd towards both ends, where a rare long wait
    would otherwise be lost: the smallest and the largest few values are always among them.
    """
    distinct, counts = np.unique(np.asarray(values, np.float64), return_counts=True)
    return cdf_of_counts(distinct, counts, points)


def cdf_of_counts(distinct: NDArray[np.float64], counts: NDArray[np.int64], points: int = CDF_POINTS) -> Cdf:
    """The same of values (D,), strictly increasing, and how often each occurs (D,)."""
    if points < 2:
        raise SettingError(f"a distribution needs at least 2 points, not {points}")
    total = int(counts.sum())
    shares = np.cumsum(counts) / max(total, 1)
    if len(distinct) > points:
        keep = _spread_out(len(distinct), shares, points)
        distinct, shares = distinct[keep], shares[keep]
    return Cdf(distinct, shares, total)


def _spread_out(count: int, shares: NDArray[np.float64], points: int) -> NDArray[np.int64]:
    even = np.searchsorted(shares, np.linspace(0, 1, max(points // 2, 1)))
    tail = np.unique(np.geomspace(1, count, max((points - len(even)) // 2 - 1, 1)).astype(np.int64)) - 1
    keep = np.unique(np.concatenate(([0, count - 1], np.minimum(even, count - 1), tail, count - 1 - tail)))
    return keep if len(keep) <= points else np.array([0, count - 1])


def confidence_interval_95(values: Sequence[float] | NDArray[np.float64]) -> Interval:
    """The mean of one value a seed, and the interval that holds the true mean in 95 of 100 experiments.

    By Student's t with n − 1 degrees of freedom, which assumes that runs differ about normally.
    """
    array = np.asarray(values, np.float64)
    count = int(array.size)
    if not count:
        return Interval(math.nan, math.nan, math.nan, 0)
    mean = float(array.mean())
    if count == 1:
        return Interval(mean, math.nan, math.nan, 1)
    half = student_t_quantile(0.975, count - 1) * float(array.std(ddof=1)) / math.sqrt(count)
    return Interval(mean, mean - half, mean + half, count)


def paired_difference_95(
    first: Sequence[float] | NDArray[np.float64], second: Sequence[float] | NDArray[np.float64]
) -> Interval:
    """The mean of `first` − `second` over the same seeds, with its 95 % interval.

    It is narrower than what the two intervals apart suggest where a seed makes both runs hard or both easy.
    Where it does not hold 0, the two differ.
    """
    one, other = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if one.shape != other.shape:
        raise SettingError(f"pairs need the same seeds on both sides, not {one.size} and {other.size} values")
    return confidence_interval_95(one - other)


def student_t_quantile(probability: float, degrees: int) -> float:
    """The value that Student's t with these degrees of freedom stays below with this probability.

    The distribution function of whole degrees is a finite sum (Abramowitz and Stegun, Handbook of
    Mathematical Functions, 1964, equations 26.7.3 and 26.7.4), which is inverted by bisection.
    """
    if not 0 < probability < 1 or degrees < 1:
        raise SettingError(
            f"a quantile needs a probability between 0 and 1 and at least 1 degree of freedom, "
            f"not {probability} and {degrees}"
        )
    if probability < 0.5:
        return -student_t_quantile(1 - probability, degrees)
    low, high = 0.0, 1.0
    while _student_t_below(high, degrees) < probability:
        low, high = high, 2 * high
    while (middle := (low + high) / 2) not in (low, high):
        if _student_t_below(middle, degrees) < probability:
            low = middle
        else:
            high = middle
    return middle


def _student_t_below(t: float, degrees: int) -> float:
    angle = math.atan(t / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = 0.0
    for factor in range(2 if odd else 1, degrees, 2):
        total += term
        term *= cosine * cosine * factor / (factor + 1)
    within = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return (1 + within) / 2
