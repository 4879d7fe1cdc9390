"""The queue of this moment as questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from berth.history.importing.pending import Queued
from berth.history.store.folder import open_history
from berth.waiting.conformal import days_of
from berth.waiting.model import WaitModel
from berth.waiting.questions import live_features


@dataclass(frozen=True, slots=True, eq=False)
class Now:
    """Jobs (N) as questions of this moment."""

    values: NDArray[np.float64]  # (N, F)
    offset: float
    """By how much an interval is moved outwards now, in log10 of the wait."""
    days: int
    """On how many days jobs were submitted whose waits the history knows."""


def questions_now(history: Path, model: WaitModel, jobs: Sequence[Queued], now_ms: int) -> Now:
    """These jobs, in their order, asked now."""
    with open_history(history, must_exist=True).database() as database:
        features, asked_s, wait_s, places = live_features(database, jobs, now_ms, model.categories or None)
    values = model.values_of(features)
    at = np.flatnonzero(places >= 0)
    order = at[np.argsort(places[at])]
    days = days_of(asked_s[(places < 0) & np.isfinite(wait_s)])
    return Now(values[order], model.offset_at(now_ms / 1000, values, asked_s, wait_s), days)
