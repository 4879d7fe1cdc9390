"""A back-test of replays: learn on a history's first weeks, predict the next week's waits, and look how far that was.

A week is predicted from its jobs as they were submitted, replayed under the policy that ran, or under each candidate if
that is not known. By how much its replays were too long or too short in the weeks before, the prediction is corrected.
What was in the week before is a prediction too. The one is taken that was nearest to what happened until then, by the
mean share that the smaller of the two lacks: a replay that is often right and often wrong by far is not near. The 80 %
interval comes from the errors of its predictions before (split conformal prediction: Lei, G'Sell, Rinaldo, Tibshirani
and Wasserman, "Distribution-Free Predictive Inference for Regression", JASA 113(523), 2018). Each interval that misses
widens the next ones (Gibbs and Candès, "Adaptive Conformal Inference Under Distribution Shift", NeurIPS 2021). Nothing
of a week is used before the week is over but its jobs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from berth.counts import counted
from berth.errors import SettingError
from berth.experiments.weeks import FEWEST_JOBS, LEAST_WAIT_S, Waits, Week, error_pct, weeks_of

FIRST = 2
"""Weeks that are learned from before the first prediction."""
FEWEST_ERRORS = 4
"""Errors of predictions that an 80 % interval needs: with fewer, no rank of them holds 80 %."""
FEWEST_INTERVALS = 10
"""How many weeks with an interval it takes to judge how often it holds."""
COVERAGE = 0.8
"""The share of weeks that intervals are to hold."""
GAIN = 0.05
"""After an interval that missed, the next ones hold 0.8 times this more of the past errors, and after one that held 0.2
times this less (chosen in bench/results/simulate.md)."""
SHARES = (0.5, 0.97)
"""The least and the most that they hold."""
LEAST_HALF_WIDTH = 0.02
"""An interval is at least this much wider than its prediction, as a fraction: waits are told no more exactly."""
MEASURES = ("mean", "p90")
LAST_WEEK = "last week"
"""Stands for a policy where what was in the week before predicted better than any replay."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """One number of one week."""

    week: int
    jobs: int
    measure: str
    """`mean` or `p90`, of the waits."""
    policy: str
    """Whose replay the prediction is of, or LAST_WEEK."""
    real_s: float
    predicted_s: float
    low_s: float | None
    """The 80 % interval; None until there are enough errors."""
    high_s: float | None
    last_week_s: float
    """What really was in the week before."""

    @property
    def error_pct(self) -> float:
        """How far the prediction is from what was."""
        return abs(error_pct(self.predicted_s, self.real_s))

    @property
    def last_week_error_pct(self) -> float:
        """How far the week before is from it."""
        return abs(error_pct(self.last_week_s, self.real_s))

    @property
    def held(self) -> bool | None:
        """Whether the interval holds what was; None without an interval."""
        if self.low_s is None or self.high_s is None:
            return None
        return self.low_s <= self.real_s <= self.high_s


@dataclass(frozen=True, slots=True)
class Backtest:
    """All predictions, week by week."""

    predicted: tuple[Predicted, ...]

    def of(self, measure: str) -> list[Predicted]:
        """Those of one number."""
        return [each for each in self.predicted if each.measure == measure]

    def coverage_pct(self, measure: str) -> float | None:
        """In how many of the weeks with an interval it held; None if there is none."""
        held = [each.held for each in self.of(measure) if each.held is not None]
        return 100 * fmean(held) if held else None

    @property
    def caution(self) -> str:
        """How many weeks are lacking to judge the interval; empty if there are enough."""
        predicted = len(self.of(MEASURES[0]))
        lacking = FEWEST_ERRORS + FEWEST_INTERVALS - predicted
        if lacking <= 0:
            return ""
        return (
            f"Caution: {max(predicted - FEWEST_ERRORS, 0)} of {counted(predicted, 'predicted week')} had an interval;"
            f" judging it needs {counted(lacking, 'more week')}."
        )

    @property
    def sentences(self) -> tuple[str, ...]:
        """What was found."""
        return tuple(_sentences(self))


def backtest(real: Waits, replays: Mapping[str, Waits], first: int = FIRST) -> Backtest:
    """Predict each week but the first ones from those before it.

    `real` are the waits that were, `replays` those in a replay of the same jobs under each candidate. Raises
    SettingError where there are too few weeks.
    """
    weeks = weeks_of(real)
    if first < 1:
        raise SettingError(f"a back-test learns on 1 or more weeks first, not on {first}")
    if len(weeks) <= first:
        raise SettingError(
            f"a back-test learns on {counted(first, 'week')} and predicts the next, so it needs {first + 1} weeks of"
            f" {FEWEST_JOBS} jobs or more; there {'is' if len(weeks) == 1 else 'are'} {len(weeks)}"
        )
    weeks_by_policy = {
        name: {week.number: week for week in weeks_of(waits)} for name, waits in replays.items()
    }
    found: list[Predicted] = []
    for measure in MEASURES:
        logs = [_log(_of(week, measure)) for week in weeks]
        replayed = {
            name: [
                _log(_of(of_week[week.number], measure)) if week.number in of_week else _log(0)
                for week in weeks
            ]
            for name, of_week in weeks_by_policy.items()
        }
        found += _of_measure(measure, weeks, logs, replayed, first)
    return Backtest(tuple(found))


def _of_measure(
    measure: str,
    weeks: Sequence[Week],
    real: Sequence[float],
    replayed: Mapping[str, Sequence[float]],
    first: int,
) -> Iterator[Predicted]:
    """The predictions of one number; all of `real` and `replayed` are logarithms of seconds."""
    past: dict[str, list[float]] = {name: [] for name in (*replayed, LAST_WEEK)}
    share = COVERAGE
    for at in range(1, len(weeks)):
        predictions = {
            name: max(there[at] + median(real[k] - there[k] for k in range(at)), _log(0))
            for name, there in replayed.items()
        }
        predictions[LAST_WEEK] = real[at - 1]
        if at >= first:
            policy = min(predictions, key=lambda name: _so_far(past[name], replayed.get(name), real[:at]))
            predicted = predictions[policy]
            half = _half_width(past[policy][first - 1 :], share)
            week = weeks[at]
            found = Predicted(
                week.number, week.jobs, measure, policy, _of(week, measure), math.exp(predicted),
                None if half is None else _seconds(predicted - half),
                None if half is None else _seconds(predicted + half), _of(weeks[at - 1], measure),
            )  # fmt: skip
            yield found
            if found.held is not None:
                share += GAIN * (COVERAGE - found.held)
                share = min(max(share, SHARES[0]), SHARES[1])
        for name, log in predictions.items():
            past[name].append(abs(real[at] - log))


def _so_far(errors: Sequence[float], replayed: Sequence[float] | None, real: Sequence[float]) -> float:
    """How far a way of predicting was off, or the plain replay where nothing was predicted yet: the mean share, from 0
    to 1, by which the smaller of prediction and truth is less than the other."""
    if not errors and replayed is None:
        return math.inf
    apart = errors or [abs(each - there) for each, there in zip(real, replayed or (), strict=False)]
    return fmean(-math.expm1(-each) for each in apart)


def _half_width(errors: Sequence[float], share: float) -> float | None:
    """The error that a share of predictions do not exceed, by those before in the same way; in proportion more than
    their largest where they are too few."""
    count = len(errors)
    if count < FEWEST_ERRORS:
        return None
    rank = math.ceil(share * (count + 1) - 1e-9)
    error = sorted(errors)[min(rank, count) - 1] * max(rank / count, 1.0)
    return max(error, math.log1p(LEAST_HALF_WIDTH))


def _of(week: Week, measure: str) -> float:
    return week.mean_s if measure == "mean" else week.p90_s


def _log(seconds: float) -> float:
    return math.log(max(seconds, LEAST_WAIT_S))


def _seconds(log: float) -> float:
    """What a logarithm stands for: the shortest wait that is told apart stands for all below it."""
    seconds = math.exp(log)
    return 0.0 if seconds <= LEAST_WAIT_S else seconds


def _sentences(found: Backtest) -> Iterator[str]:
    words = {"mean": "mean wait", "p90": "90th percentile of waits"}
    for measure in MEASURES:
        there = found.of(measure)
        error = median(each.error_pct for each in there)
        naive = median(each.last_week_error_pct for each in there)
        held = [each.held for each in there if each.held is not None]
        interval = f"; the 80 % interval held in {sum(held)} of {len(held)}" if held else ""
        weeks = counted(len(there), "week")
        yield (
            f"In {weeks} the predicted {words[measure]} was off by {error:.0f} % (median), last week's value by"
            f" {naive:.0f} %{interval}."
        )
    if found.caution:
        yield found.caution
