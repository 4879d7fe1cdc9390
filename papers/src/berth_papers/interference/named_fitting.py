"""Fits how sensitive jobs are and how much they press to pairs that were measured by name, as Gavel published them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from berth.errors import ProfileError
from berth.interference.named import LOG_ONE

LEVELS = np.arange(-8 * LOG_ONE, 5 * LOG_ONE + 1, 16)
"""What sensitivity and pressure may be."""
ROUNDS = 20

Observation = tuple[str, str, float]
"""An application, its neighbour, and its speed with it as a fraction of its speed alone."""


def read_named(path: Path) -> dict[str, list[Observation]]:
    """The observations of each card, from the columns `gpu, job, other, solo_steps_per_s, shared_steps_per_s`.

    Pairs that made no step together are left out: they did not fit the card, which is not a matter of speed.
    Raises ProfileError naming line and column.
    """
    found: dict[str, list[Observation]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        for row in reader:
            try:
                alone, shared = float(row["solo_steps_per_s"]), float(row["shared_steps_per_s"])
                observation = (row["job"], row["other"], shared / alone)
                card = row["gpu"].upper()
            except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
                raise ProfileError(
                    f"{path}, line {reader.line_num}: {error}; expected gpu, job, other, solo_steps_per_s above 0 and"
                    " shared_steps_per_s"
                ) from error
            if shared > 0:
                found.setdefault(card, []).append(observation)
    return found


def fit_named(observations: Sequence[Observation]) -> dict[str, tuple[int, int]]:
    """Sensitivity and pressure of each application on one card: least squares of the logarithms of stress, then
    least absolute error of the speeds, each by turns."""
    names = sorted({name for mine, theirs, _ in observations for name in (mine, theirs)})
    index = {name: number for number, name in enumerate(names)}
    mine = np.array([index[one] for one, _, _ in observations])
    theirs = np.array([index[other] for _, other, _ in observations])
    speed = np.array([value for _, _, value in observations])
    logs = LOG_ONE * np.log2(np.clip(1 / np.clip(speed, 1e-3, 1) - 1, 2.0**-8, 2.0**5))
    sensitivity, pressure = np.zeros(len(names)), np.zeros(len(names))
    turns = ((sensitivity, mine, pressure, theirs), (pressure, theirs, sensitivity, mine))
    for _ in range(ROUNDS):
        for own, chosen, other, facing in turns:
            seen = np.bincount(chosen, minlength=len(names))
            own[:] = np.bincount(chosen, logs - other[facing], len(names)) / np.maximum(seen, 1)
    for _ in range(ROUNDS):
        for own, chosen, other, facing in turns:
            for number in range(len(names)):
                rows = chosen == number
                if rows.any():
                    tried = np.append(LEVELS, own[number])
                    stress = np.exp2((tried[:, None] + other[facing][rows]) / LOG_ONE)
                    own[number] = tried[np.abs(1 / (1 + stress) - speed[rows]).sum(axis=1).argmin()]
    return {name: (round(sensitivity[number]), round(pressure[number])) for name, number in index.items()}
