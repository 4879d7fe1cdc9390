"""Fits a contention model to measured pairs, and says how good it is on pairs that it has not seen.

Boosted trees (LightGBM, Ke et al., NeurIPS 2017) that fall with the neighbour's use learn the speed of one
application beside another from what both use; what ships is their answer for each two measured applications, as the
table of a `Contention`. The trees see how fast an application is beside its neighbours on average as well, as what
stands for all that its use does not tell of it. Letters: O observations (two a pair), C centres.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from berth.errors import MissingExtraError, SettingError
from berth.interference.contention import (
    MOST_CENTRES,
    MOST_STRESS,
    STEPS,
    STRESS_ONE,
    Contention,
    cells_of,
)
from berth.interference.speeds import GPU, Speeds
from berth_papers.interference.measurements import Measurements

TREES = 200
PARAMETERS = {
    "objective": "huber",
    "alpha": 0.05,
    "num_leaves": 31,
    "learning_rate": 0.1,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbose": -1,
}
"""Of the trees: absolute errors above 0.05 count linearly, below that by their square."""
LEAF = 5
"""Observations that a leaf of a tree has at least; fewer where there are fewer than a hundred."""
SLOWEST = 0.05
"""No speed below this is learned of a pair."""
PRIOR = 0.9
"""An application counts as if it had been measured once more, at this speed."""
WITHIN = 0.99
"""The share of the measured pairs with no more than the whole card in effective use together."""

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Quality:
    """How far predicted speeds are from measured ones."""

    mae: float
    """Mean absolute error, as a fraction of the speed alone."""
    pairs: int


def evaluate(model: Speeds, measured: Measurements) -> Quality:
    """Predict both speeds of every pair from the applications' usage alone, and compare."""
    usage = measured.usage[measured.pairs]  # (P, 2, 4)
    speeds = model(usage, np.ones(usage.shape[:2], dtype=np.bool_), 0) / 1000
    return Quality(float(np.abs(speeds - measured.speeds).mean()), len(measured))


def folds_of_pairs(measured: Measurements, seed: int, folds: int = 5) -> list[tuple[IntArray, IntArray]]:
    """(train, test) of each fold: the pairs dealt out at random."""
    order = np.random.default_rng(seed).permutation(len(measured))
    return [(np.setdiff1d(order, order[fold::folds]), order[fold::folds]) for fold in range(folds)]


def folds_of_applications(
    measured: Measurements, seed: int, folds: int = 5
) -> list[tuple[IntArray, IntArray]]:
    """(train, test) of each fold: applications held out; every pair with one of them is a test."""
    return _held_out(measured, np.array(measured.applications), seed, folds)


def folds_of_models(measured: Measurements, seed: int, folds: int = 5) -> list[tuple[IntArray, IntArray]]:
    """The same with models held out in all their settings (data set, batch size, precision)."""
    return _held_out(measured, np.array(measured.models), seed, folds)


def fit(measured: Measurements, seed: int = 0, mode: str = "mps") -> Contention:
    """The contention model of these measurements, which were made under this mode.

    Only applications that stand in pairs become centres. Raises MissingExtraError without LightGBM, and SettingError
    for more applications than a model can hold.
    """
    try:
        import lightgbm
    except ImportError as error:
        raise MissingExtraError("fitting a model of interference", "account") from error
    me = np.concatenate([measured.pairs[:, 0], measured.pairs[:, 1]])  # (O,)
    speed = np.concatenate([measured.speeds[:, 0], measured.speeds[:, 1]])
    centres, centre_of = np.unique(cells_of(measured.usage)[me], axis=0, return_inverse=True)
    mine = centre_of.reshape(-1)
    theirs = mine[
        (np.arange(len(me)) + len(measured)) % len(me)
    ]  # the other half has the pairs turned around
    count = len(centres)
    if count > MOST_CENTRES:
        raise SettingError(f"{count} different applications; expected at most {MOST_CENTRES}")
    seen = np.bincount(mine, minlength=count)
    on_average = (PRIOR + np.bincount(mine, np.minimum(speed, 1), count)) / (1 + seen)
    middle = (centres + 0.5) * np.array(STEPS)

    def features(one: IntArray, other: IntArray) -> FloatArray:
        neighbour, own = middle[other], middle[one]
        products = neighbour[:, :2] * own[:, :1]
        return np.concatenate([neighbour, products, own, on_average[one, None]], axis=1)

    falls = [-1] * 5 + [0] * 4
    leaf = min(LEAF, max(1, len(speed) // 20))
    trees = lightgbm.train(
        {
            **PARAMETERS,
            "monotone_constraints": falls,
            "min_data_in_leaf": leaf,
            "min_data_in_bin": min(3, leaf),
            "seed": seed,
        },
        lightgbm.Dataset(features(mine, theirs), speed),
        TREES,
    )
    one, other = (grid.reshape(-1) for grid in np.indices((count, count)))
    predicted = np.clip(np.asarray(trees.predict(features(one, other))), SLOWEST, 1)
    stress = np.minimum(np.rint(STRESS_ONE * (1 / predicted - 1)), MOST_STRESS).reshape(count, count)
    use_milli = 1000 if mode == "time-sliced" else effective_use_milli(measured)
    return Contention(mode, use_milli, centres.astype(np.int32), stress.astype(np.int32))


def effective_use_milli(measured: Measurements) -> int:
    """What a GPU that is busy all of the time by one application is really used, per mille of what it has.

    NVML counts the time in which some kernel ran, however little of the card it took. Utilisation times speed, added
    up over a pair, is therefore above 100 % in many pairs. What `WITHIN` of them stay below is what the card has.
    """
    usage = measured.usage[measured.pairs][..., GPU] / 1000  # (P, 2)
    together = (usage * np.minimum(measured.speeds, 1)).sum(axis=1)
    return int(1000 / max(1.0, float(np.quantile(together, WITHIN))))


def _held_out(
    measured: Measurements, names: NDArray[np.str_], seed: int, folds: int
) -> list[tuple[IntArray, IntArray]]:
    different = np.unique(names)
    order = np.random.default_rng(seed).permutation(len(different))
    made = []
    for fold in range(folds):
        held = np.isin(names, different[order[fold::folds]])
        test = held[measured.pairs].any(axis=1)
        made.append((np.flatnonzero(~test), np.flatnonzero(test)))
    return made
