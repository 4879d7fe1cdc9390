"""The queue of this moment as questions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from berth.history.importing.pending import Queued
from berth.history.store.folder import open_history
from berth.waiting.model import WaitModel
from berth.waiting.questions import live_features

__all__ = ["values_now"]


def values_now(
    history: Path, model: WaitModel, jobs: Sequence[Queued], now_ms: int
) -> tuple[NDArray[np.float64], float]:
    """The questions of these jobs (N, F) in their order, and by how much an interval is moved outwards now."""
    with open_history(history, must_exist=True).database() as database:
        features, asked_s, wait_s, places = live_features(database, jobs, now_ms, model.categories or None)
    values = model.values_of(features)
    at = np.flatnonzero(places >= 0)
    order = at[np.argsort(places[at])]
    return values[order], model.offset_at(now_ms / 1000, values, asked_s, wait_s)
