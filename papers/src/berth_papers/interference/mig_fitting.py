"""Fits what each size of MIG slice can do, to iteration times of trainings on slices of one card.

The columns are those of MISO's measurements (Li et al., *MISO: Exploiting Multi-Instance GPU Capability on
Multi-Tenant GPU Clusters*, SoCC 2022): `model, batch, mig_slice, iteration_s_median`; others are ignored. Only
trainings that were measured on the whole card count. What is known of each is one number, how much the card holds it
up, which is found from its speed on a slice.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from berth.errors import ProfileError
from berth.interference.mig import COMPUTE, Mig

COLUMNS = ("model", "batch", "mig_slice", "iteration_s_median")
_STEPS_MILLI = (40, 20, 10, 5)
_LEVELS = np.linspace(0, 1, 101)


class OnSlices(NamedTuple):
    """A training, and its speed on each slice that it fits in as a fraction of that on the whole card."""

    model: str
    batch: str
    speeds: Mapping[int, float]
    """By sevenths of the card, ascending; the whole card is not among them."""


def read_slices(path: Path) -> list[OnSlices]:
    """The trainings of a file; ProfileError naming line and column for what is missing or makes no sense."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        for row in reader:
            try:
                model, batch, piece, seconds = (row[column] for column in COLUMNS)
                size, time_s = int(piece.partition("g.")[0]), float(seconds)
                if size not in COMPUTE or not 0 < time_s < np.inf:
                    raise ValueError(f"slice '{piece}', {seconds} s")
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise ProfileError(
                    f"{path}, line {reader.line_num}: {error}; expected {', '.join(COLUMNS)}, slices as 2g.10gb and"
                    " seconds above 0"
                ) from error
            found.setdefault((model, batch), {})[size] = time_s
    return [
        OnSlices(*name, {size: times[COMPUTE[-1]] / times[size] for size in sorted(times)[:-1]})
        for name, times in found.items()
        if COMPUTE[-1] in times and len(times) > 1
    ]


def speed_on(model: Mig, size: int, c: float) -> float:
    """The speed on a slice of a training that the card holds up for this part of its time."""
    work = model.work_milli[COMPUTE.index(size)] / 1000
    return 1 / (1 - c + c / work)


def held_up(model: Mig, size: int, speed: float) -> float:
    """For what part of its time the card holds a training up, from its speed on one slice."""
    work = model.work_milli[COMPUTE.index(size)] / 1000
    return float(np.clip((1 / min(speed, 1) - 1) / (1 / work - 1), 0, 1))


def fit_slices(trainings: Sequence[OnSlices]) -> Mig:
    """What each size can do, by least absolute errors; slices that lie on one card together have no more than all."""
    best = [142, 285, 470, 530]
    least = _loss(best, trainings)
    for step in _STEPS_MILLI:
        better = True
        while better:
            better = False
            for at in range(len(best)):
                for change in (-step, step):
                    tried = [*best[:at], best[at] + change, *best[at + 1 :]]
                    one, two, three, four = tried
                    if not (
                        0 < 7 * one <= 1000 and one < two and 3 * two + one <= 1000 and two < three <= four
                    ):
                        continue
                    if three + four <= 1000 and (loss := _loss(tried, trainings)) < least - 1e-9:
                        best, least, better = tried, loss, True
    return Mig((*best, 1000))


def _loss(work_milli: Sequence[int], trainings: Sequence[OnSlices]) -> float:
    total, count = 0.0, 0
    for training in trainings:
        work = np.array([work_milli[COMPUTE.index(size)] / 1000 for size in training.speeds])
        speeds = np.array(list(training.speeds.values()))
        predicted = 1 / (1 - _LEVELS + _LEVELS / work[:, None])
        total += float(np.abs(predicted - speeds[:, None]).sum(axis=0).min())
        count += len(speeds)
    return total / max(1, count)
