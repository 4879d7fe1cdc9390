"""The network of `learned` as the chooser of a co-locating policy. Letters as in `berth.network.forecast_network`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice

import numpy as np

from berth.arrays import BoolArray, FloatArray, IntArray
from berth.model import GpuModel, Job, Profile
from berth.network.forecast_network import ForecastNetwork, score_offers, scratch_for, uses_of
from berth.policies.colocation.forecast import Forecasts
from berth.policies.colocation.scene import Scene
from berth.profiles import series

LONGEST_LINE = 100
"""Waiting jobs that the network sees, the first of the queue; plans are made only if no more wait."""


class ForecastScores:
    """What a network says of every combination of every offer, in one pass over the forecasts."""

    def __init__(
        self, network: ForecastNetwork, profiles: Mapping[str, Profile], work_us: Callable[[Job], int]
    ) -> None:
        self.network = network
        self.profiles = profiles
        self.work_us = work_us
        self._scratch = scratch_for(network)
        self._uses: dict[tuple[GpuModel | None, tuple[str, ...]], FloatArray] = {}
        self._waiting: tuple[Forecasts | None, IntArray] = None, np.zeros((0, 2), np.int64)

    def __call__(self, scene: Scene, allowed: BoolArray) -> FloatArray:
        """Scores (O, C), the larger the better, −∞ where it is not allowed (O, C)."""
        found = np.where(allowed, 0.0, -np.inf)
        rows = allowed.sum(axis=1) > 1
        if not rows.any():
            return found
        forecasts = scene.forecasts
        places = forecasts.left_us.shape[1]
        score_offers(
            self.network,
            self._scratch,
            self._uses_of(scene),
            self.waiting(scene),
            forecasts.application,
            forecasts.left_us,
            forecasts.tenants,
            forecasts.window,
            forecasts.ends_ms,
            allowed & rows[:, None],
            np.zeros((places, 3), np.int64),
            np.zeros((places, 2), np.int64),
            found,
        )
        return found

    def waiting(self, scene: Scene) -> IntArray:
        """Application and work in µs of the jobs that wait, (J, 2), but for those without a profile."""
        if self._waiting[0] is not scene.forecasts:
            places = {name: at for at, name in enumerate(scene.forecasts.names)}
            known = (job for job in islice(scene.queue, LONGEST_LINE) if job.application in places)
            jobs = [(places[job.application], self.work_us(job)) for job in known]
            self._waiting = scene.forecasts, np.array(jobs, np.int64).reshape(-1, 2)
        return self._waiting[1]

    def _uses_of(self, scene: Scene) -> FloatArray:
        names, gpu = scene.forecasts.names, scene.gpu
        found = self._uses.get((gpu, names))
        if found is None:
            card = gpu or GpuModel("")
            found = uses_of([series(self.profiles[name], card) for name in names], card.mem_mib)
            self._uses[gpu, names] = found
        return found
