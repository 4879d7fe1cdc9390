"""How long a job will wait: learned from those that waited before, judged in the order of time.

A question is a job at the moment of asking, described by what is known then and nothing later. The model
(gradient-boosted trees of LightGBM) answers with quantiles of the wait; how wide the interval has to be is
measured on questions later than those that it learned from.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from berth.errors import HistoryError, MissingExtraError, SettingError
from berth.files import write_whole
from berth.waiting.conformal import DAY_S, held_between, rolling_interval
from berth.waiting.questions import Categories

Floats = NDArray[np.float64]

VERSION: Final = 3
"""Of a model's file."""
ROUNDS: Final = 80
COVERAGE: Final = 0.8
HELD_WITHIN: Final = 0.04
"""An interval keeps its promise where the share that it held is no further from COVERAGE."""
DAYS_TO_PROMISE: Final = 48
"""Days of known waits from which COVERAGE is promised: Graham's last fifth began with them. 37 days held 75.4 %."""
NO_BETTER: Final = 0.98
"""A model whose error is more than this part of a constant's is no better."""
_FAR: Final = 100.0
"""More than any logarithm of a wait."""
_NORMAL: Final = NormalDist()
_TENTH: Final = -_NORMAL.inv_cdf(0.1)
"""How many standard deviations the outer tenth begins from the middle."""
FEWEST: Final = 200
"""The least number of ended waits to learn from."""
MOST_REFITS: Final = 4
"""Days of a judgement on which the trees learn anew: each time takes seconds on a hundred thousand questions, and each
import is judged."""
FEW_ROWS: Final = 20_000
"""A second thread costs more than it gives where there are fewer."""
_SETTINGS: Final = {
    "learning_rate": 0.1,
    "num_leaves": 15,
    "min_data_in_leaf": 100,
    "feature_fraction": 0.4,
    "bagging_fraction": 0.5,
    "bagging_freq": 1,
    "lambda_l2": 10.0,
    "verbose": -1,
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
    categories: Categories = field(default_factory=dict)
    """What the codes of texts among the features stand for."""

    def __len__(self) -> int:
        return len(self.asked_s)

    def at(self, chosen: NDArray[Any]) -> Questions:
        """Some of them."""
        return Questions(
            self.names, self.values[chosen], self.asked_s[chosen], self.wait_s[chosen], self.categories
        )

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
class Judgement:
    """What the last fifth says of a model."""

    doubts: tuple[str, ...] = ()
    """Why its answers are worth less than they look."""
    held: tuple[float, float] | None = None
    """The range of the share of waits that its interval holds; None if there are too few jobs or days to tell."""
    last_month: tuple[int, int] | None = None
    """How many waits of the last 30 days of the last fifth its interval held, and of how many; None: not judged."""


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
    held_between: tuple[float, float] | None = None
    """The range of the share of waits that the interval holds, at 95 %, as days differ; None for too few days."""
    last_month: tuple[int, int] | None = None
    """How many waits of its last 30 days the interval held, and of how many."""

    def to_dict(self) -> dict[str, object]:
        """What `--json` prints."""
        return asdict(self)


def logged(wait_s: Floats) -> Floats:
    """log10(1 + seconds), in which waits are told apart by their order of magnitude."""
    return np.log10(1 + wait_s)


class WaitModel:
    """Trees for the mean, the median and the two ends of the interval of log10(1 + seconds)."""

    def __init__(
        self,
        names: Sequence[str],
        texts: Mapping[str, str],
        outside: Floats,
        categories: Categories | None = None,
        learned_s: float = -math.inf,
        judgement: Judgement = Judgement(),
    ) -> None:
        self.names = tuple(names)
        self.categories = dict(categories or {})
        self.learned_s = learned_s
        """The last start that it learned from, in s since 1970: waits that ended later are new to it."""
        self.judgement = judgement
        self._texts = dict(texts)
        self._trees: dict[str, Any] = {}
        self.outside = outside
        """How far outside the interval waits lay that were not learned from, in log10, in order of time."""
        self.offset = float(np.quantile(outside, COVERAGE))
        """By how much the interval of an answer is moved outwards at both ends."""

    def values_of(self, features: Mapping[str, Floats]) -> Floats:
        """Questions by the name of their features, as rows (N, F); HistoryError where it learned from others."""
        if set(features) != set(self.names):
            differing = ", ".join(sorted(set(features) ^ set(self.names)))
            raise HistoryError(
                f"the model of waiting times learned from other features ({differing}); make one anew with "
                "`berth predict-wait train`"
            )
        return np.column_stack([features[name] for name in self.names])

    def predict(self, values: Floats, what: str) -> Floats:
        """`mean`, `low`, `median` or `high` of log10(1 + seconds) for each row (N, F), before it is moved."""
        if what not in self._trees:
            self._trees[what] = _lightgbm().Booster(model_str=self._texts[what])
        return np.asarray(self._trees[what].predict(values, num_threads=_threads(values)), np.float64)

    def offset_at(self, now_s: float, values: Floats, asked_s: Floats, wait_s: Floats) -> float:
        """By how much an interval that is asked for now is moved outwards, in log10 of the wait.

        It follows the rule that `evaluate` judges: from questions (N, F), in order of time, that the model has not
        learned from. Of one that still waits `wait_s` (N,) is infinite.
        """
        fresh = (asked_s + wait_s > self.learned_s) & (asked_s < now_s)
        if not fresh.any():
            return self.offset
        found = [self.predict(values[fresh], what) for what in ("low", "median", "high")]
        # One more question, now, whose ends are where only the rule moves them.
        far = np.array([-_FAR]), np.zeros(1), np.array([_FAR])
        low, median, high = (np.append(each, end) for each, end in zip(found, far, strict=True))
        asked, waits = np.append(asked_s[fresh], now_s), np.append(wait_s[fresh], np.inf)
        _, upper = rolling_interval(asked, waits, (low, median, high), self.outside, COVERAGE)
        return float(upper[-1]) - _FAR

    def promised(self, days: int) -> tuple[float, float] | None:
        """The share of intervals that hold, as a range, if waits of this number of days are known; None if unknown."""
        return (COVERAGE, COVERAGE) if days >= DAYS_TO_PROMISE else self.judgement.held

    def answer(self, values: Floats, offset: float | None = None) -> Answer:
        """The answer to one question (F,), its interval moved outwards by this much, or by what training measured."""
        row = values.reshape(1, -1)
        moved = self.offset if offset is None else offset
        low, median, high = (float(self.predict(row, what)[0]) for what in ("low", "median", "high"))
        low, high = min(low - moved, median), max(high + moved, median)
        parts = np.asarray(self._trees["median"].predict(row, pred_contrib=True, num_threads=1))[0, :-1]
        order = np.argsort(-np.abs(parts), kind="stable")[:5]
        drivers = tuple((self.names[at], float(10 ** parts[at])) for at in order if parts[at])
        seconds = [max(10**each - 1, 0.0) for each in (median, low, high)]
        return Answer(seconds[0], seconds[1], seconds[2], drivers)

    def answer_waiting(self, values: Floats, waited_s: float, offset: float | None = None) -> Answer:
        """How much longer a job will wait that has waited for this time, from its question at submission (F,).

        The answer for its whole wait is taken for two halves of normal distributions of log10(1 + s) that meet at the
        median; of these only what is longer than the time that has passed is left.
        """
        whole = self.answer(values, offset)
        low, middle, high = (math.log10(1 + each) for each in (whole.low_s, whole.median_s, whole.high_s))
        below, above = (max(middle - low, 0.01) / _TENTH, max(high - middle, 0.01) / _TENTH)
        passed = math.log10(1 + max(waited_s, 0.0))
        gone = _NORMAL.cdf((passed - middle) / (below if passed < middle else above))

        def left(share: float) -> float:
            level = min(gone + share * (1 - gone), 1 - 1e-9)
            score = _NORMAL.inv_cdf(level)
            return max(float(10 ** (middle + score * (below if score < 0 else above)) - 1) - waited_s, 0.0)

        return Answer(left(0.5), left(0.1), left(0.9), whole.drivers)

    def save(self, path: Path) -> None:
        """Write it to a file."""
        content = {
            "version": VERSION,
            "names": self.names,
            "trees": self._texts,
            "outside": self.outside.tolist(),
            "categories": {name: list(words) for name, words in self.categories.items()},
            "learned_s": self.learned_s,
            "judgement": asdict(self.judgement),
        }
        write_whole(path, json.dumps(content))

    @classmethod
    def load(cls, path: Path) -> WaitModel:
        """Read it again; HistoryError where there is none, or one of another version."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["version"] != VERSION:
                raise HistoryError(
                    f"{path} holds a model of version {content['version']}, not {VERSION}; make one anew with "
                    "`berth predict-wait train`"
                )
            held, month = content["judgement"]["held"], content["judgement"].get("last_month")
            return cls(
                content["names"],
                content["trees"],
                np.asarray(content["outside"], np.float64),
                {name: tuple(words) for name, words in content["categories"].items()},
                float(content["learned_s"]),
                Judgement(
                    tuple(content["judgement"]["doubts"]),
                    None if held is None else (held[0], held[1]),
                    None if month is None else (month[0], month[1]),
                ),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
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
    learned_s = float((ended.asked_s + ended.wait_s).max())
    return WaitModel(ended.names, texts, outside, ended.categories, learned_s)


def judge(questions: Questions, seed: int = 0) -> Judgement:
    """Judge a model of these questions on their last fifth."""
    try:
        judged = evaluate(questions, seed)
    except SettingError as error:
        return Judgement((str(error),))
    found = []
    if judged.mse_log10 > NO_BETTER * judged.baseline_mse_log10:
        found.append(
            "on the last fifth of the history the model is no better than a constant (mean squared error of "
            f"log10(1 + s): {judged.mse_log10:.3f}, a constant {judged.baseline_mse_log10:.3f})"
        )
    if abs(judged.coverage_80 - COVERAGE) > HELD_WITHIN:
        found.append(
            f"on the last fifth of the history the 80 % interval held {judged.coverage_80 * 100:.0f} % of the waits"
        )
    return Judgement(tuple(found), judged.held_between, judged.last_month)


def _fifths(questions: Questions) -> tuple[Questions, Questions]:
    """What a model that is judged learns from, the first four fifths as far as known by then, and the rest."""
    first = len(questions) * 4 // 5
    early = np.arange(len(questions)) < first
    learned = questions.at(early & questions.known_before(float(questions.asked_s[first])))
    return learned, questions.at(~early & ~np.isnan(questions.wait_s))


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


def _fit(values: Floats, target: Floats, what: str, seed: int) -> str:
    lightgbm = _lightgbm()
    alpha = {"low": 0.1, "median": 0.5, "high": 0.9}.get(what)
    aim: dict[str, Any] = {"objective": "l2"} if alpha is None else {"objective": "quantile", "alpha": alpha}
    settings = {**_SETTINGS, **aim, "seed": seed, "num_threads": _threads(values)}
    trees = lightgbm.train(settings, lightgbm.Dataset(values, target), ROUNDS)
    return str(trees.model_to_string())


def evaluate(questions: Questions, seed: int = 0) -> Evaluation:
    """Train on the first four fifths by time, of which only waits that had ended count, and test on the last.

    The trees learn anew on the days of the test, as they do at each import, or on MOST_REFITS of them if there are
    more.
    The width of the interval follows, day by day, what had become known by then (`berth.waiting.conformal`). How it
    does was chosen on the third and the fourth fifth of a table, and never on the last.
    """
    if len(questions) < 2 * FEWEST:
        raise SettingError(
            f"{len(questions)} jobs are too few to judge the model by; {2 * FEWEST} are the least"
        )
    learned, tested = _fifths(questions)
    if len(learned) < FEWEST or not len(tested):
        raise SettingError(
            f"the model cannot be judged: when the last fifth of the jobs began to be submitted, {len(learned)} of the"
            f" earlier waits had ended ({FEWEST} are the least), and {len(tested)} of the last fifth have ended by now"
        )
    return judged_on(questions, learned, tested, seed)


def judged_on(
    questions: Questions, learned: Questions, tested: Questions, seed: int = 0, *, refits: int | None = None
) -> Evaluation:
    """How a model does on the questions tested, that first learned from the questions learned.

    On each of `refits` days at most it learns anew, from all waits that had ended when the first question of that day
    was asked; 0: never.
    """
    target = logged(tested.wait_s)
    mean, low, median, high, outside = _refitted(
        questions, learned, tested, seed, MOST_REFITS if refits is None else refits
    )
    low, high = rolling_interval(tested.asked_s, tested.wait_s, (low, median, high), outside, COVERAGE)
    held = (low <= target) & (target <= high)
    lately = tested.asked_s > tested.asked_s[-1] - 30 * DAY_S
    return Evaluation(
        mse_log10=float(np.mean((mean - target) ** 2)),
        baseline_mse_log10=float(np.mean((logged(learned.wait_s).mean() - target) ** 2)),
        coverage_80=float(np.mean(held)),
        median_abs_error_s=float(np.median(np.abs(10**median - 1 - tested.wait_s))),
        trained=len(learned),
        tested=len(tested),
        calibration=tuple(
            (share, float(np.mean(target <= ends)))
            for share, ends in ((0.1, low), (0.5, median), (0.9, high))
        ),
        held_between=held_between(tested.asked_s, held),
        last_month=(int(held[lately].sum()), int(lately.sum())),
    )


def _refitted(
    questions: Questions, learned: Questions, tested: Questions, seed: int, refits: int
) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Mean, low, median and high (N,) of the questions tested, and how far outside training's own later waits lay."""
    first_asked = tested.asked_s[np.unique(tested.asked_s // DAY_S, return_index=True)[1]]
    chosen = np.unique(np.linspace(0, len(first_asked), max(refits, 1), endpoint=False).astype(int))
    bounds = [*first_asked[chosen], np.inf]
    found = np.empty((4, len(tested)))
    outside = _outside(learned, seed)
    for begin, end in pairwise(bounds):
        there = (tested.asked_s >= begin) & (tested.asked_s < end)
        if not there.any():
            continue
        known = learned if begin == bounds[0] else questions.at(questions.known_before(float(begin)))
        values, waits = tested.values[there], logged(known.wait_s)
        for at, what in enumerate(("mean", "low", "median", "high")):
            model = WaitModel(known.names, {what: _fit(known.values, waits, what, seed)}, np.zeros(1))
            found[at, there] = model.predict(values, what)
    mean, low, median, high = found
    return mean, low, median, high, outside


def _threads(values: Floats) -> int:
    return 1 if len(values) < FEW_ROWS else 2


def _lightgbm() -> Any:
    try:
        import lightgbm
    except ImportError as error:
        raise MissingExtraError("berth predict-wait", "account") from error
    return lightgbm
