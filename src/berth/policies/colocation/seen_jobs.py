"""Moments as a network is shown them.

Letters as in `berth.network`: O offers, K tenants, M waiting jobs that are seen.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from berth.arrays import IntArray
from berth.model import GpuModel, Profile
from berth.network.catalogue import NEVER_MS, Catalogue, left_cells, make_catalogue, use_now
from berth.network.features import Scene as Seen
from berth.network.model_file import TrainedModel
from berth.policies.colocation.forecast import Forecasts
from berth.policies.colocation.scene import Scene
from berth.profiles import series

FEW = 8
"""Offers that are not worth being searched for jobs that are alike."""


class JobsSeen:
    """Moments as a network is shown them: over its horizon, in its steps, by the demand that it goes by."""

    def __init__(self, model: TrainedModel, profiles: Mapping[str, Profile]) -> None:
        self.model = model
        self.profiles = profiles
        self._catalogues: dict[GpuModel | None, tuple[tuple[str, ...], Catalogue]] = {}

    def of(self, scene: Scene, rows: IntArray | None = None) -> Seen:
        """One moment; of all offers, or of these."""
        most, application, done_ms, left_ms = placed(scene.forecasts)
        if rows is not None:
            application, done_ms, left_ms = application[rows], done_ms[rows], left_ms[rows]
        seen = self.shown(scene.gpu, scene.forecasts.names, most, application, done_ms, left_ms)
        backlog_jobs, backlog_ms = self.backlog(scene, left_ms[:, most:])
        return seen._replace(
            backlog_jobs=backlog_jobs.astype(np.int32), backlog_ms=backlog_ms.astype(np.int32)
        )

    def backlog(self, scene: Scene, left_ms: IntArray) -> tuple[IntArray, IntArray]:
        """(O,) each: how many jobs wait that are not seen, and their work; `left_ms` (O, M) is of those that are."""
        jobs = np.maximum(scene.backlog_jobs - (left_ms > 0).sum(axis=1), 0)
        return jobs, np.clip(scene.backlog_ms - left_ms.sum(axis=1), 0, 2**31 - 1)

    def shown(
        self,
        gpu: GpuModel | None,
        names: tuple[str, ...],
        most: int,
        application: IntArray,
        done_ms: IntArray,
        left_ms: IntArray,
    ) -> Seen:
        """Jobs (O, K + M), of which the first `most` run and the others wait; no further jobs wait."""
        catalogue = self._catalogue(gpu, names)
        model = self.model
        left_ms = left_ms.astype(np.int32)
        window = left_ms.shape[1] - most
        horizon = model.step_ms, model.horizon
        if len(left_ms) <= FEW:
            cells = left_cells(catalogue, application, done_ms, left_ms, *horizon, np)
        else:  # those that wait have done nothing: many are the same to the network
            cells = np.empty((*left_ms.shape, model.horizon, 4), np.int32)
            tenants = application[:, :most], done_ms[:, :most], left_ms[:, :most]
            cells[:, :most] = left_cells(catalogue, *tenants, *horizon, np)
            kinds, which = np.unique(
                application[:, most:] * NEVER_MS + left_ms[:, most:], return_inverse=True
            )
            fresh = kinds // NEVER_MS, np.zeros_like(kinds), (kinds % NEVER_MS).astype(np.int32)
            cells[:, most:] = left_cells(catalogue, *fresh, *horizon, np)[which.reshape(-1, window)]
        now, same_ms = use_now(catalogue, application, done_ms, left_ms, np)
        nothing = np.zeros(len(left_ms), np.int32)
        return Seen(
            cells[:, :most],
            now[:, :most],
            same_ms[:, :most],
            left_ms[:, :most],
            cells[:, most:],
            now[:, most:],
            same_ms[:, most:],
            left_ms[:, most:],
            nothing,
            nothing,
            np.full(len(left_ms), gpu.mem_mib if gpu and gpu.mem_mib else NEVER_MS, np.int32),
            model.step_ms,
        )

    def _catalogue(self, gpu: GpuModel | None, names: tuple[str, ...]) -> Catalogue:
        known = self._catalogues.get(gpu)
        if known is None or known[0] != names:
            scaled = [series(self.profiles[name], gpu or GpuModel("")) for name in names]
            catalogue = make_catalogue(
                [one.usage.astype(np.int64) for one in scaled],
                [one.interval_ms for one in scaled],
                self.model.step_ms,
                self.model.demand,
            )
            known = self._catalogues[gpu] = names, catalogue
        return known[1]


def placed(forecasts: Forecasts) -> tuple[int, IntArray, IntArray, IntArray]:
    """The number K of places for tenants, the same for all offers and at least 1; and of the jobs, (O, K + M) each,
    the application, the work done and the work left, ms."""
    most, window = max(1, int(forecasts.tenants.max())), max(1, int(forecasts.window.max()))
    column = np.arange(most + window)
    runs = column < most
    # Tenants have the first `most` places here, even if there are fewer.
    place = np.where(runs, column, forecasts.tenants[:, None] + column - most)
    there = np.where(runs, column < forecasts.tenants[:, None], column - most < forecasts.window[:, None])
    place = np.minimum(place, forecasts.left_us.shape[1] - 1)
    application, left_us, work_us = (
        np.where(there, np.take_along_axis(value, place, axis=1), 0)
        for value in (forecasts.application, forecasts.left_us, forecasts.work_us)
    )
    done_ms = np.where(runs, (work_us - left_us) // 1000, 0)
    return most, application, done_ms, np.minimum(-(-left_us // 1000), NEVER_MS - 1)
