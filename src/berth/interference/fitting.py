"""Fits the contention model to measured pairs, and says how good it is on pairs that it has not seen.

Least absolute errors by Adam, NumPy alone, a second or two: first the law, from all pairs; then the corrections of
each cell on top of the law, which stays. Corrections are drawn to 0 and to those of the same model's other settings.
So that they mean something next to an application that nobody has measured, the fit counts every pair also as if
only one of the two were known (`HALF_KNOWN`). Letters: O observations (two a pair), C cells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from berth.interference.contention import FACTOR_ONE, LOG_ONE, OFFSET, RANK, Contention, Law, cell_of
from berth.interference.measurements import Measurements
from berth.interference.speeds import CORES, GPU, Speeds

__all__ = ["Quality", "evaluate", "fit", "folds_of_applications", "folds_of_pairs"]

HALF_KNOWN = 0.1
"""Weight of a pair as if only one of the two had been measured, against one of the pair as it is."""
TO_ZERO = 1e-3
"""How strongly sensitivity, pressure, affinity and force of a cell are drawn to 0."""
TO_MODEL = 3e-3
"""How strongly they are drawn to the mean of the same model's cells; ten times that for the factor."""
FACTOR_TO_ZERO = 1e-2
"""How strongly the logarithm of the factor is drawn to 0, by its absolute value."""
LAW_STEPS, CELL_STEPS = 700, 1_500
RATE = 0.02
"""Of Adam, over the first half of the steps; from there down to 0."""

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Parameters = dict[str, FloatArray]


@dataclass(frozen=True, slots=True)
class Quality:
    """How far predicted speeds are from measured ones, as fractions of the speed alone."""

    mae: float
    """Mean absolute error against the speeds as published, measured alone included (`reading_milli`)."""
    mae_speed: float
    """The same of the speeds themselves, which are never above alone."""
    pairs: int


def evaluate(model: Speeds, measured: Measurements) -> Quality:
    """Predict both speeds of every pair from the applications' usage alone, and compare."""
    usage = measured.usage[measured.pairs]  # (P, 2, 4)
    speeds = model(usage, np.ones(usage.shape[:2], dtype=np.bool_), 0) / 1000
    read = model.reading_milli(usage) / 1000 if isinstance(model, Contention) else 1.0
    return Quality(
        float(np.abs(speeds * read - measured.speeds).mean()),
        float(np.abs(speeds - measured.speeds).mean()),
        len(measured),
    )


def folds_of_pairs(measured: Measurements, seed: int, folds: int = 5) -> list[tuple[IntArray, IntArray]]:
    """(train, test) of each fold: the pairs dealt out at random."""
    order = np.random.default_rng(seed).permutation(len(measured))
    return [(np.setdiff1d(order, order[fold::folds]), order[fold::folds]) for fold in range(folds)]


def folds_of_applications(
    measured: Measurements, seed: int, folds: int = 5
) -> list[tuple[IntArray, IntArray]]:
    """(train, test) of each fold: models held out in all their settings; every pair with one of them is a test."""
    models = np.array(measured.models)
    names = np.unique(models)
    order = np.random.default_rng(seed).permutation(len(names))
    made = []
    for fold in range(folds):
        held = np.isin(models, names[order[fold::folds]])
        test = held[measured.pairs].any(axis=1)
        made.append((np.flatnonzero(~test), np.flatnonzero(test)))
    return made


def fit(measured: Measurements, seed: int = 0) -> Contention:
    """The contention model of these measurements. Only applications that stand in pairs get a cell."""
    of_pair = measured.pairs
    me = np.concatenate([of_pair[:, 0], of_pair[:, 1]])  # (O,)
    other = np.concatenate([of_pair[:, 1], of_pair[:, 0]])
    speed = np.concatenate([measured.speeds[:, 0], measured.speeds[:, 1]])
    busy = np.log2(measured.usage[:, GPU] / 1000 + OFFSET)[me]
    work = np.log2(measured.usage[:, CORES] / 1000 + OFFSET)[other]
    law = _law(busy, work, speed)
    cells, cell_of_seen = np.unique(cell_of(measured.usage)[np.unique(me)], return_inverse=True)
    cell = np.zeros(len(measured.applications), dtype=np.int64)
    cell[np.unique(me)] = cell_of_seen
    model_of_cell = np.zeros(len(cells), dtype=np.int64)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(measured.models))}
    for application in np.unique(me):
        model_of_cell[cell[application]] = numbers[measured.models[application]]
    base = law.level + law.own * busy + law.theirs * work
    found = _corrections(base, cell[me], cell[other], speed, model_of_cell, seed)
    columns = (
        *(found["sensitivity"][:, None] * LOG_ONE, found["pressure"][:, None] * LOG_ONE),
        *(found["affinity"] * FACTOR_ONE, found["force"] * FACTOR_ONE),
        1000 * np.exp(found["factor"][:, None]),
    )
    coefficients = np.rint(np.concatenate(columns, axis=1)).astype(np.int32)
    return Contention(law, cells.astype(np.int32), coefficients)


def _law(busy: FloatArray, work: FloatArray, speed: FloatArray) -> Law:
    def gradient(at: Parameters) -> Parameters:
        predicted, by_log = _predicted(at["level"][0] + at["slopes"][0] * busy + at["slopes"][1] * work)
        push = np.sign(predicted - speed) / len(speed) * by_log
        slopes = np.array([(push * busy).sum(), (push * work).sum()]) + 2e-3 * (at["slopes"] - 0.7)
        return {"level": np.array([push.sum()]), "slopes": slopes}

    start = {"level": np.array([-0.7]), "slopes": np.array([0.5, 0.5])}
    found = _adam(gradient, start, LAW_STEPS)
    own, theirs = np.maximum(found["slopes"], 0)
    return Law(float(found["level"][0]), float(own), float(theirs))


def _corrections(
    base: FloatArray, mine: IntArray, theirs: IntArray, speed: FloatArray, model: IntArray, seed: int
) -> Parameters:
    """Of each cell: sensitivity, pressure (C,), affinity, force (C, R) and the logarithm of its factor (C,)."""
    cells = len(model)
    draw = np.random.default_rng(seed)
    start = {
        "sensitivity": np.zeros(cells),
        "pressure": np.zeros(cells),
        "affinity": 0.3 * draw.normal(size=(model.max() + 1, RANK))[model],
        "force": 0.3 * draw.normal(size=(model.max() + 1, RANK))[model],
        "factor": np.zeros(cells),
    }

    def gradient(at: Parameters) -> Parameters:
        made = {name: np.zeros_like(value) for name, value in at.items()}
        affinity, force = at["affinity"][mine], at["force"][theirs]
        for weight, i_known, j_known in ((1.0, 1, 1), (HALF_KNOWN, 1, 0), (HALF_KNOWN, 0, 1)):
            logs = base + i_known * at["sensitivity"][mine] + j_known * at["pressure"][theirs]
            if i_known and j_known:
                logs = logs + (affinity * force).sum(axis=1)
            factor = np.exp(i_known * at["factor"][mine])
            speeds, by_log = _predicted(logs)
            pull = weight * np.sign(factor * speeds - speed) / len(speed)
            push = pull * factor * by_log
            if i_known:
                made["sensitivity"] += np.bincount(mine, push, cells)
                made["factor"] += np.bincount(mine, pull * factor * speeds, cells)
            if j_known:
                made["pressure"] += np.bincount(theirs, push, cells)
            if i_known and j_known:
                for rank in range(RANK):
                    made["affinity"][:, rank] += np.bincount(mine, push * force[:, rank], cells)
                    made["force"][:, rank] += np.bincount(theirs, push * affinity[:, rank], cells)
        for name, value in at.items():
            away = value - _mean_of_model(value, model)
            if name == "factor":
                made[name] += (FACTOR_TO_ZERO * np.sign(value) + 20 * TO_MODEL * away) / cells
            else:
                made[name] += 2 * (TO_ZERO * value + TO_MODEL * away) / cells
        return made

    return _adam(gradient, start, CELL_STEPS)


def _predicted(logs: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Speed, and how the speed changes with the logarithm of the stress."""
    stress = np.exp2(np.clip(logs, -16, 4))
    speeds = 1 / (1 + stress)
    return speeds, -np.log(2) * stress * speeds**2


def _mean_of_model(value: FloatArray, model: IntArray) -> FloatArray:
    """(C,) or (C, R) to the same: the mean over the cells of the same model."""
    same = model[:, None] == model  # (C, C)
    mean: FloatArray = (same / same.sum(axis=1, keepdims=True)) @ value
    return mean


def _adam(gradient: Callable[[Parameters], Parameters], at: Parameters, steps: int) -> Parameters:
    """Minimise, with Kingma and Ba's Adam (2015) without bias correction."""
    mean = {name: np.zeros_like(value) for name, value in at.items()}
    square = {name: np.zeros_like(value) for name, value in at.items()}
    for step in range(steps):
        made = gradient(at)
        rate = RATE * min(1.0, 2 * (1 - step / steps))
        for name in at:
            mean[name] = 0.9 * mean[name] + 0.1 * made[name]
            square[name] = 0.99 * square[name] + 0.01 * made[name] ** 2
            at[name] = at[name] - rate * mean[name] / (np.sqrt(square[name]) + 1e-8)
    return at
