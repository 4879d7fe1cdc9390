import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.errors import SettingError
from berth.statistics import (
    Interval,
    cdf,
    confidence_interval_95,
    distribution,
    paired_difference_95,
    student_t_quantile,
)
from tests.examples import examples

VALUES = st.lists(st.floats(0, 1e9) | st.integers(0, 5).map(float), min_size=1, max_size=300)


@given(VALUES)
@settings(max_examples=examples(100), deadline=None)
def test_percentiles_are_those_of_numpy(values: list[float]) -> None:
    found = distribution(values)
    expected = [np.mean(values), *np.percentile(values, [50, 90, 99]), max(values)]
    assert [found.mean, found.median, found.p90, found.p99, found.maximum] == pytest.approx(expected)


@given(VALUES, st.integers(2, 40))
@settings(max_examples=examples(200), deadline=None)
def test_a_thinned_distribution_rises_to_1_and_every_point_is_exact(values: list[float], points: int) -> None:
    thin = cdf(values, points)
    assert len(thin.values) <= points
    assert np.all(np.diff(thin.values) > 0)
    assert np.all(np.diff(thin.shares) > 0)
    assert (thin.values[0], thin.values[-1], thin.shares[-1]) == (min(values), max(values), 1.0)
    for value, share in zip(thin.values, thin.shares, strict=True):
        assert share == pytest.approx(np.count_nonzero(np.array(values) <= value) / len(values))


def test_thinning_keeps_the_tails() -> None:
    values = np.arange(100_000.0)
    thin = cdf(values, 500)
    assert len(thin.values) > 400
    assert thin.values[:5].tolist() == [0, 1, 2, 3, 4]
    assert thin.values[-5:].tolist() == [99_995, 99_996, 99_997, 99_998, 99_999]
    assert np.diff(thin.shares).max() < 0.005


def test_nothing_has_an_empty_distribution() -> None:
    assert (cdf([]).values.size, cdf([]).count, distribution([]).count) == (0, 0, 0)
    assert math.isnan(distribution([]).median)


@pytest.mark.parametrize(
    ("probability", "degrees", "quantile"),
    [  # Abramowitz and Stegun, table 26.10, and Student's t in any statistics book
        (0.975, 1, 12.706204736),
        (0.975, 2, 4.302652730),
        (0.975, 3, 3.182446305),
        (0.975, 4, 2.776445105),
        (0.975, 9, 2.262157163),
        (0.975, 30, 2.042272456),
        (0.975, 99, 1.984216952),
        (0.975, 100, 1.983971519),
        (0.95, 5, 2.015048373),
        (0.025, 4, -2.776445105),
        (0.5, 7, 0.0),
    ],
)
def test_student_t_has_the_quantiles_of_the_tables(probability: float, degrees: int, quantile: float) -> None:
    assert student_t_quantile(probability, degrees) == pytest.approx(quantile, abs=1e-8)


def test_with_many_degrees_student_t_is_nearly_normal() -> None:
    assert student_t_quantile(0.975, 100_000) == pytest.approx(1.959964, abs=5e-5)


def test_95_of_100_intervals_cover_the_true_mean() -> None:
    samples = np.random.default_rng(7).normal(10, 3, (4000, 5))
    intervals = [confidence_interval_95(sample) for sample in samples]
    covered = sum(interval.low <= 10 <= interval.high for interval in intervals) / len(intervals)
    assert covered == pytest.approx(0.95, abs=0.01)


def test_an_interval_by_hand() -> None:
    # Mean 2, standard deviation 1, so 4.30265 / sqrt(3) on either side.
    found = confidence_interval_95([1.0, 2.0, 3.0])
    assert found == Interval(2.0, pytest.approx(-0.4841377), pytest.approx(4.4841377), 3)


def test_one_value_has_a_mean_and_no_interval() -> None:
    one = confidence_interval_95([4.0])
    assert (one.mean, one.count) == (4.0, 1)
    assert math.isnan(one.low)
    assert math.isnan(one.high)
    assert confidence_interval_95([]).count == 0


def test_a_paired_difference_sees_what_the_seeds_hide() -> None:
    seeds = np.array([10.0, 200.0, 3000.0, 40_000.0])
    difference = paired_difference_95(seeds + np.array([1.0, 1.1, 0.9, 1.0]), seeds)
    assert difference.mean == pytest.approx(1.0)
    assert 0.8 < difference.low < difference.high < 1.2


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(SettingError, match="same seeds on both sides, not 2 and 1 values"):
        paired_difference_95([1.0, 2.0], [1.0])
    with pytest.raises(SettingError, match="at least 2 points, not 1"):
        cdf([1.0], 1)
    with pytest.raises(SettingError, match="between 0 and 1"):
        student_t_quantile(1.0, 3)
