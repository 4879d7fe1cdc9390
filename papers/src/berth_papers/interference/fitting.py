"""Fits a contention model to measured pairs, and says how good it is on pairs that it has not seen.

A Gaussian process learns the speed of one application beside another (Rasmussen and Williams, *Gaussian Processes for
Machine Learning*, MIT Press, 2006, chapter 2). Applications resemble each other by their use, by being settings of one
model, and most of all by being the same. So a fit also learns what the use of an application does not tell. Its answers
for each two measured applications become the tables of a `Contention`: one that falls with the neighbour's use, and one
for applications known by name, which falls with it among the settings of each model.
Letters: O observations (two a pair), C centres.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from berth.arrays import BoolArray
from berth.errors import SettingError
from berth.interference.contention import (
    MOST_CENTRES,
    MOST_STRESS,
    STEPS,
    STRESS_ONE,
    Contention,
    cells_of,
)
from berth.interference.speeds import GPU, KnowsApplications, Speeds
from berth_papers.interference.measurements import Measurements

REACH = (0.4, 0.3, 1.8)
"""How far an application's use resembles another's: of GPU and cores as a fraction, memory in doublings."""
SAME_MODEL, SAME = 0.5, 0.5
"""What settings of one model, and one application, have in common beyond their use, where equal use has 1."""
NOISE = 0.4
"""Variance of one measured speed, on the same scale."""
SLOWEST, FASTEST = 0.05, 1.1
"""Measured speeds are cut to this: an application that was measured too slow alone seems faster beside another."""
SOLVED = 1e-9
"""The squared residual, as a part of the first, at which the process is solved."""
ROUNDS = 60
"""Of the projection on tables that fall with the neighbour's use; after ten the error changes by less than 0.0001."""
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
    """Predict both speeds of every pair from the applications' usage, and the names that the model knows; compare."""
    usage = measured.usage[measured.pairs]  # (P, 2, 4)
    there = np.ones(usage.shape[:2], dtype=np.bool_)
    if isinstance(model, KnowsApplications) and model.names:
        centre = np.array([model.names.get(name, -1) for name in measured.applications])
        speeds = model.among(usage, there, centre[measured.pairs])
    else:
        speeds = model(usage, there, 0)
    return Quality(float(np.abs(speeds / 1000 - measured.speeds).mean()), len(measured))


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


def fit(measured: Measurements, mode: str = "mps") -> Contention:
    """The contention model of these measurements, which were made under this mode.

    Only applications that stand in pairs become centres. Raises SettingError for more than a model can hold.
    """
    centres, speeds = pair_speeds(measured)
    place = {tuple(cell): at for at, cell in enumerate(centres.tolist())}
    names: dict[str, int] = {}
    models = np.empty(len(centres), dtype=object)
    cells = map(tuple, cells_of(measured.usage).tolist())
    for name, model, cell in zip(measured.applications, measured.models, cells, strict=True):
        if cell in place:
            names[name], models[place[cell]] = place[cell], model
    below = (centres[:, None] <= centres[None]).all(axis=-1) & ~np.eye(len(centres), dtype=bool)
    stress, named = (
        np.minimum(np.rint(STRESS_ONE * (1 / np.clip(1 - slowed, SLOWEST, 1) - 1)), MOST_STRESS).astype(
            np.int32
        )
        for slowed in (_rising(1 - speeds, below), _rising(1 - speeds, below & (models[:, None] == models)))
    )
    use_milli = 1000 if mode == "time-sliced" else effective_use_milli(measured)
    return Contention(mode, use_milli, centres, stress, names, named)


def pair_speeds(measured: Measurements) -> tuple[NDArray[np.int32], FloatArray]:  # (C, 3), (C, C)
    """The centres, and the expected speed of each beside each, as a fraction of its speed alone.

    Nothing keeps these speeds from rising with the neighbour's use, or above 1. Raises SettingError as `fit` does.
    """
    me = np.concatenate([measured.pairs[:, 0], measured.pairs[:, 1]])  # (O,)
    speed = np.concatenate([measured.speeds[:, 0], measured.speeds[:, 1]])
    cells = cells_of(measured.usage)[me]
    centres, first, mine = np.unique(cells, axis=0, return_index=True, return_inverse=True)
    count = len(centres)
    if count > MOST_CENTRES:
        raise SettingError(f"{count} different applications; expected at most {MOST_CENTRES}")
    # The second half of the observations has the pairs turned around.
    at = mine.reshape(-1) * count + np.roll(mine.reshape(-1), len(measured))
    seen = np.bincount(at, minlength=count * count).reshape(count, count)
    total = np.bincount(at, np.clip(speed, SLOWEST, FASTEST), count * count).reshape(count, count)
    middle = float(np.median(np.minimum(speed, 1)))
    alike = _alike(centres, np.array(measured.models)[me[first]])
    return centres, middle + _expected(total - seen * middle, seen, alike)


def effective_use_milli(measured: Measurements) -> int:
    """What a GPU that is busy all of the time by one application is really used, per mille of what it has.

    NVML counts the time in which some kernel ran, however little of the card it took. Utilisation times speed, added
    up over a pair, is therefore above 100 % in many pairs. What `WITHIN` of them stay below is what the card has.
    """
    usage = measured.usage[measured.pairs][..., GPU] / 1000  # (P, 2)
    together = (usage * np.minimum(measured.speeds, 1)).sum(axis=1)
    return int(1000 / max(1.0, float(np.quantile(together, WITHIN))))


def _alike(centres: NDArray[np.int32], models: NDArray[np.str_]) -> FloatArray:  # (C, C)
    """How much each two centres are expected to have in common."""
    middle = (centres + 0.5) * np.array(STEPS)
    use = np.column_stack([middle[:, :2] / 1000, np.log2(middle[:, 2])]) / np.array(REACH)
    far = ((use[:, None] - use[None]) ** 2).sum(axis=-1)
    same_model = models[:, None] == models[None]
    found: FloatArray = np.exp(-far / 2) + SAME_MODEL * same_model + SAME * np.eye(len(centres))
    return found


def _expected(total: FloatArray, seen: IntArray, alike: FloatArray) -> FloatArray:
    """What the process expects of each pair: (C, C), from the sum and the number of its observations.

    Two pairs have in common what their first applications have, what their second ones have, and the product of
    both. The normal equations are solved by conjugate gradients, in which this is a product of three small matrices.
    """
    met = seen > 0
    doubt = np.where(met, NOISE / np.maximum(seen, 1), 0)

    def shared(weight: FloatArray) -> FloatArray:
        ones = (alike @ weight.sum(axis=1))[:, None] + (alike @ weight.sum(axis=0))[None]
        both: FloatArray = ones + alike @ weight @ alike
        return both

    weight = np.zeros(total.shape)
    left = np.where(met, total / np.maximum(seen, 1), 0)
    step, size = left, float((left**2).sum())
    enough = SOLVED * size
    while size > enough:
        turned = np.where(met, shared(step), 0) + doubt * step
        length = size / float((step * turned).sum())
        weight, left = weight + length * step, left - length * turned
        size, before = float((left**2).sum()), size
        step = left + size / before * step
    return shared(weight)


def _rising(slowed: FloatArray, below: BoolArray) -> FloatArray:
    """The closest table in which each neighbour slows no less than those below it: (C, C) and (C, C) to (C, C).

    Projects on one pair of neighbours after the other (Boyle and Dykstra, *A Method for Finding Projections onto the
    Intersection of Convex Sets in Hilbert Spaces*, 1986).
    """
    next_below = below & ~(below.astype(np.float64) @ below > 0)
    found, pairs = slowed.copy(), np.argwhere(next_below)
    owed = np.zeros((len(pairs), len(slowed)))
    for _ in range(ROUNDS):
        for number, (less, more) in enumerate(pairs):
            asked = owed[number] + (found[:, less] - found[:, more]) / 2
            moved = np.maximum(asked, 0)
            found[:, less] += owed[number] - moved
            found[:, more] += moved - owed[number]
            owed[number] = moved
    return found


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
