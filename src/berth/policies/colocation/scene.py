"""What a chooser of combinations is shown, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from berth.arrays import BoolArray, FloatArray, IntArray
from berth.cluster import Running
from berth.model import GpuModel, GpuSlot, Job
from berth.policies.colocation.forecast import Candidate, Forecasts

LEAST = -1e300
"""Of a score, so that what is allowed comes before what is not."""


class Waits(NamedTuple):
    """What waiting for an empty GPU costs."""

    empty_ms: IntArray  # (O, M)
    """After how long there is one for each job that is offered, those before it in the queue served first."""
    behind: float
    """Other waiting jobs for each GPU: each waits longer by the time for which a GPU is in use."""


class Scene(NamedTuple):
    """GPUs of one model that are offered jobs at one moment, and what else waits."""

    forecasts: Forecasts
    gpu: GpuModel | None
    backlog_jobs: int
    """Jobs that wait, those that are offered included."""
    backlog_ms: int
    """Their run time alone, together."""
    queue: Iterable[Job]
    """All that wait, in their order."""
    waits: Callable[[], Waits | None] = lambda: None
    """What waiting would cost; None where it does not matter."""


class Offered(NamedTuple):
    """A GPU that is offered jobs."""

    slot: GpuSlot
    tenants: tuple[Running, ...]
    window: list[Job]
    candidates: tuple[Candidate, ...]
    """The window's jobs as forecasts see them."""
    short: bool
    """Whether its node or the GPU itself has too little left for all of the window, which others may give back."""
    places: Sequence[int]
    """Where in the queue the window's jobs are, 0 first."""


class Chooser(Protocol):
    """Says which combination each GPU starts."""

    def __call__(self, scene: Scene) -> IntArray:
        """(O,): a combination of each offer that `forecasts.fits`, 0 for none. A pure function."""


def holding(scene: Scene) -> IntArray:
    """(O,): no GPU starts anything; for policies that choose otherwise."""
    return np.zeros(len(scene.forecasts.offers), np.int64)


def best_of(score: FloatArray, allowed: BoolArray, forecasts: Forecasts) -> IntArray:
    """(O,): the best allowed combination; an idle GPU starts a job wherever it may."""
    allowed = allowed.copy()
    allowed[:, 0] |= True
    allowed[(forecasts.tenants == 0) & allowed[:, 1:].any(axis=1), 0] = False
    best: IntArray = np.where(allowed, np.maximum(score, LEAST), -np.inf).argmax(axis=1).astype(np.int64)
    return best
