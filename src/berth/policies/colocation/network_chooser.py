"""A trained network as the chooser of a co-locating policy, in plain NumPy.

Letters as in `berth.network`: O offers, K tenants, M waiting jobs that are seen, C combinations, H steps.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from berth.arrays import IntArray
from berth.errors import ModelError
from berth.interference import Speeds
from berth.model import Profile
from berth.network.capacity import Limits, within
from berth.network.combinations import combinations
from berth.network.features import Scene as Seen
from berth.network.features import features
from berth.network.model_file import Model
from berth.network.scores import Network, scores
from berth.policies.colocation.forecast import Forecasts
from berth.policies.colocation.scene import Scene
from berth.policies.colocation.seen_jobs import JobsSeen

LEAST = -1e300
TOGETHER = 128
"""Offers that go through the network at once: what is in between stays in the processor's cache."""


class NetworkScores:
    """What a model says of every combination of every offer."""

    def __init__(self, model: Model, profiles: Mapping[str, Profile], speeds: Speeds) -> None:
        if not isinstance(model.network, Network):
            raise ModelError(f"the model of {model.learner} goes by forecasts; expected one of jobs' demands")
        self.model, self.network = model, model.network
        self.jobs = JobsSeen(model, profiles)
        self.speeds = speeds

    def __call__(self, scene: Scene, allowed: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Scores (O, C), the larger the better, −∞ where it is not allowed (O, C).

        Only where there is a choice, and only what is allowed, is looked at: offers with about as many such
        combinations go through the network together.
        """
        found = np.where(allowed, 0.0, -np.inf)
        counts = allowed.sum(axis=1)
        order = np.flatnonzero(counts > 1)
        if not len(order):
            return found
        table = combinations(max(1, int(scene.forecasts.window.max())))
        order = order[np.argsort(counts[order], kind="stable")]
        seen = self.jobs.of(scene, order)
        # (O', C'): the allowed combinations of each offer, the last one again where there are fewer.
        rank = np.minimum(np.arange(int(counts[order[-1]])), counts[order][:, None] - 1)
        chosen = np.take_along_axis(np.argsort(~allowed[order], axis=1, kind="stable"), rank, axis=1)
        for begin in range(0, len(order), TOGETHER):
            rows = order[begin : begin + TOGETHER]
            picked = chosen[begin : begin + TOGETHER, : int(counts[rows[-1]])]
            part = _rows_of(seen, slice(begin, begin + TOGETHER)) if len(order) > TOGETHER else seen
            given = features(part, table[picked], self.speeds)  # of members (O', C', M)
            found[rows[:, None], picked] = scores(self.network, given, np)
        return found

    def within(self, scene: Scene, limits: Limits = "card") -> NDArray[np.bool_]:
        """Where for each resource and each step the demands together stay within the card (Oh 2019, IV.2): (O, C)."""
        seen = self.jobs.of(scene)
        return within(seen, combinations(seen.waiting_left_ms.shape[-1]), limits)


def _rows_of(seen: Seen, rows: slice) -> Seen:
    return Seen._make(value[rows] if isinstance(value, np.ndarray) else value for value in seen)


def best_of(score: NDArray[np.float64], allowed: NDArray[np.bool_], forecasts: Forecasts) -> IntArray:
    """(O,): the best allowed combination; an idle GPU starts a job wherever it may."""
    allowed = allowed.copy()
    allowed[:, 0] |= True
    allowed[(forecasts.tenants == 0) & allowed[:, 1:].any(axis=1), 0] = False
    best: IntArray = np.where(allowed, np.maximum(score, LEAST), -np.inf).argmax(axis=1).astype(np.int64)
    return best
