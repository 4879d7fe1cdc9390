"""How long a job will wait: learned from those that waited before, judged in the order of time.

A question is a job at the moment of asking, described by what is known then and nothing later. The model
(gradient-boosted trees of LightGBM) answers with quantiles of the wait; how wide the interval has to be is
measured on questions later than those that it learned from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from berth.errors import HistoryError, MissingExtraError, SettingError

__all__ = ["Answer", "Evaluation", "Questions", "WaitModel", "evaluate", "train"]

Floats = NDArray[np.float64]

ROUNDS: Final = 80
COVERAGE: Final = 0.8
RECENT_S: Final = 3 * 86_400
"""Clusters change from day to day, so the interval is as wide as the last days called for."""
FEWEST_RECENT: Final = 1000
"""Where the last days have fewer, what was measured in training makes them up to so many."""
FEWEST: Final = 200
"""So many waits that have ended are the least to learn from."""
_SETTINGS: Final = {
    "learning_rate": 0.1,
    "num_leaves": 15,
    "min_data_in_leaf": 100,
    "feature_fraction": 0.4,
    "bagging_fraction": 0.5,
    "bagging_freq": 1,
    "lambda_l2": 10.0,
    "verbose": -1,
    "num_threads": 2,
    "deterministic": True,
    "force_row_wise": True,
}


@dataclass(frozen=True, slots=True, eq=False)
class Questions:
    """Jobs (N) at the moments of asking, in order of time, by their features (F)."""

    names: tuple[str, ...]
    values: Floats  # (N, F)
    """NaN where a feature is not known."""
    asked_s: Floats  # (N,)
    wait_s: Floats  # (N,)
    """From the moment of asking to the start; NaN where it has not started."""

    def __len__(self) -> int:
        return len(self.asked_s)

    def at(self, chosen: NDArray[Any]) -> Questions:
        """Some of them."""
        return Questions(self.names, self.values[chosen], self.asked_s[chosen], self.wait_s[chosen])

    def known_before(self, moment_s: float) -> NDArray[np.bool_]:
        """Which of their waits had ended before a moment."""
        return np.asarray(self.asked_s + self.wait_s < moment_s)


@dataclass(frozen=True, slots=True)
class Answer:
    """What is expected of one job's wait."""

    median_s: float
    low_s: float
    high_s: float
    """In 80 of 100 cases the wait lies from `low_s` to `high_s`."""
    drivers: tuple[tuple[str, float], ...]
    """The features that moved this answer most, and by which factor against a typical job."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How a model did on the last fifth by time, having learned from waits that had ended before it."""

    mse_log10: float
    """Mean squared error of log10(1 + seconds)."""
    baseline_mse_log10: float
    """The same of a constant, the mean of what the model learned from."""
    coverage_80: float
    median_abs_error_s: float
    trained: int
    tested: int
    calibration: tuple[tuple[float, float], ...]
    """For quantiles from 0.1 to 0.9, the share of waits that were at most the predicted quantile."""

    def to_dict(self) -> dict[str, object]:
        """What `--json` prints."""
        return {
            "mse_log10": self.mse_log10,
            "baseline_mse_log10": self.baseline_mse_log10,
            "coverage_80": self.coverage_80,
            "median_abs_error_s": self.median_abs_error_s,
            "trained": self.trained,
            "tested": self.tested,
            "calibration": [list(pair) for pair in self.calibration],
        }


def logged(wait_s: Floats) -> Floats:
    """log10(1 + seconds), in which waits are told apart by their order of magnitude."""
    return np.log10(1 + wait_s)


class WaitModel:
    """Trees for the mean, the median and the two ends of the interval of log10(1 + seconds)."""

    def __init__(self, names: Sequence[str], texts: Mapping[str, str], outside: Floats) -> None:
        self.names = tuple(names)
        self._texts = dict(texts)
        self._trees: dict[str, Any] = {}
        self.outside = outside
        """How far outside the interval waits lay that were not learned from, in log10, in order of time."""
        self.offset = float(np.quantile(outside, COVERAGE))
        """By how much the interval of an answer is moved outwards at both ends."""

    def predict(self, values: Floats, what: str) -> Floats:
        """`mean`, `low`, `median` or `high` of log10(1 + seconds) for each row (N, F), before it is moved."""
        if what not in self._trees:
            self._trees[what] = _lightgbm().Booster(model_str=self._texts[what])
        return np.asarray(self._trees[what].predict(values), np.float64)

    def answer(self, values: Floats) -> Answer:
        """The answer to one question (F,)."""
        row = values.reshape(1, -1)
        low, median, high = (float(self.predict(row, what)[0]) for what in ("low", "median", "high"))
        low, high = min(low - self.offset, median), max(high + self.offset, median)
        parts = np.asarray(self._trees["median"].predict(row, pred_contrib=True))[0, :-1]
        order = np.argsort(-np.abs(parts), kind="stable")[:5]
        drivers = tuple((self.names[at], float(10 ** parts[at])) for at in order if parts[at])
        seconds = [max(10**each - 1, 0.0) for each in (median, low, high)]
        return Answer(seconds[0], seconds[1], seconds[2], drivers)

    def contributions(self, values: Floats) -> Floats:
        """By how much each feature moves the median of each row (N, F), in log10 of the wait (SHAP values)."""
        self.predict(values[:1], "median")
        return np.asarray(self._trees["median"].predict(values, pred_contrib=True), np.float64)[:, :-1]

    def save(self, path: Path) -> None:
        """Write it to a file."""
        content = {"version": 1, "names": self.names, "trees": self._texts, "outside": self.outside.tolist()}
        aside = path.with_name(path.name + ".part")
        aside.write_text(json.dumps(content), encoding="utf-8")
        aside.replace(path)

    @classmethod
    def load(cls, path: Path) -> WaitModel:
        """Read it again; HistoryError where there is none."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return cls(content["names"], content["trees"], np.asarray(content["outside"], np.float64))
        except (OSError, ValueError, KeyError) as error:
            raise HistoryError(
                f"{path} holds no trained model; make one with `berth predict-wait train`"
            ) from error


def train(questions: Questions, seed: int = 0) -> WaitModel:
    """Learn from questions whose waits have ended; SettingError where they are too few."""
    ended = questions.at(~np.isnan(questions.wait_s))
    if len(ended) < FEWEST:
        raise SettingError(
            f"{len(ended)} waits that have ended are too few to learn from; {FEWEST} are the least"
        )
    outside = _outside(ended, seed)
    target = logged(ended.wait_s)
    texts = {what: _fit(ended.values, target, what, seed) for what in ("mean", "low", "median", "high")}
    return WaitModel(ended.names, texts, outside)


def _outside(ended: Questions, seed: int) -> Floats:
    """How far outside their interval later waits lay (negative: inside), in log10, in order of time.

    The ends are learned from the first nine tenths by time and measured on the last (conformalized quantile
    regression: Romano, Patterson and Candès, NeurIPS 2019).
    """
    cut = float(ended.asked_s[len(ended) * 9 // 10])
    early, late = ended.at(ended.known_before(cut)), ended.at(ended.asked_s >= cut)
    if len(early) < FEWEST // 2 or not len(late):
        return np.zeros(1)
    ends = {what: _fit(early.values, logged(early.wait_s), what, seed) for what in ("low", "high")}
    model = WaitModel(ended.names, ends, np.zeros(1))
    target = logged(late.wait_s)
    return np.maximum(model.predict(late.values, "low") - target, target - model.predict(late.values, "high"))


def _offsets(questions: Questions, low: Floats, high: Floats, before: Floats) -> Floats:
    """By how much the interval of each question (N,) is moved outwards, from what was known when it was asked.

    That is how far outside the waits of the last days lay. Of a wait that had not ended yet only the time that
    had passed is used. `low` and `high` are the ends before they are moved; `before` is what training measured.
    """
    target = logged(questions.wait_s)
    outside = np.maximum(low - target, target - high)
    offsets = np.empty(len(questions))
    days = questions.asked_s // 86_400
    for day in np.unique(days):
        today = days == day
        now = float(questions.asked_s[today][0])
        recent = (questions.asked_s < now) & (questions.asked_s >= now - RECENT_S)
        passed = logged(np.maximum(now - questions.asked_s[recent], 0.0)) - high[recent]
        known = np.where(questions.known_before(now)[recent], outside[recent], passed)
        lacking = max(FEWEST_RECENT - len(known), 0)
        pool = np.concatenate((known, before[-lacking:])) if lacking else known
        offsets[today] = np.quantile(pool, COVERAGE)
    return offsets


def _fit(values: Floats, target: Floats, what: str, seed: int) -> str:
    lightgbm = _lightgbm()
    alpha = {"low": 0.1, "median": 0.5, "high": 0.9}.get(what)
    aim: dict[str, Any] = {"objective": "l2"} if alpha is None else {"objective": "quantile", "alpha": alpha}
    trees = lightgbm.train({**_SETTINGS, **aim, "seed": seed}, lightgbm.Dataset(values, target), ROUNDS)
    return str(trees.model_to_string())


def evaluate(questions: Questions, seed: int = 0) -> Evaluation:
    """Train on the first four fifths by time, of which only waits that had ended count, and test on the last.

    The trees learn once, before the first question of the test. The width of the interval follows, day by day,
    what had become known by then, as it does for whoever trains every day.
    """
    if len(questions) < 2 * FEWEST:
        raise SettingError(
            f"{len(questions)} jobs are too few to judge a prediction by; {2 * FEWEST} are the least"
        )
    first = len(questions) * 4 // 5
    early = np.arange(len(questions)) < first
    learned = questions.at(early & questions.known_before(float(questions.asked_s[first])))
    tested = questions.at(~early & ~np.isnan(questions.wait_s))
    model = train(learned, seed)
    target = logged(tested.wait_s)
    mean, median = model.predict(tested.values, "mean"), model.predict(tested.values, "median")
    low, high = model.predict(tested.values, "low"), model.predict(tested.values, "high")
    offsets = _offsets(tested, low, high, model.outside)
    low, high = np.minimum(low - offsets, median), np.maximum(high + offsets, median)
    return Evaluation(
        mse_log10=float(np.mean((mean - target) ** 2)),
        baseline_mse_log10=float(np.mean((logged(learned.wait_s).mean() - target) ** 2)),
        coverage_80=float(np.mean((low <= target) & (target <= high))),
        median_abs_error_s=float(np.median(np.abs(10**median - 1 - tested.wait_s))),
        trained=len(learned),
        tested=len(tested),
        calibration=tuple(
            (share, float(np.mean(target <= ends)))
            for share, ends in ((0.1, low), (0.5, median), (0.9, high))
        ),
    )


def _lightgbm() -> Any:
    try:
        import lightgbm
    except ImportError as error:
        raise MissingExtraError("berth predict-wait", "account") from error
    return lightgbm
