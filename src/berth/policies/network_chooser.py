"""A trained network as the chooser of a co-locating policy, in plain NumPy.

Letters as in `berth.network`: O offers, K tenants, M waiting jobs that are seen, C combinations, H steps.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from berth.interference import Speeds
from berth.kernels import IntArray
from berth.model import GpuModel, Profile
from berth.network.catalogue import Catalogue, left_cells, make_catalogue
from berth.network.combinations import combinations
from berth.network.features import Scene as Seen
from berth.network.features import features, joint
from berth.network.model_file import Model
from berth.network.scores import scores
from berth.policies.colocating import Scene
from berth.policies.forecast import Forecasts
from berth.profiles import series

__all__ = ["NetworkScores", "best_of"]

CAPACITY_MILLI = 1000


class NetworkScores:
    """What a model says of every combination of every offer."""

    def __init__(self, model: Model, profiles: Mapping[str, Profile], speeds: Speeds) -> None:
        self.model = model
        self.profiles = profiles
        self.speeds = speeds
        self._catalogues: dict[GpuModel | None, tuple[dict[str, int], Catalogue]] = {}

    def __call__(self, scene: Scene) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Scores (O, C), the larger the better, and which combinations the places of the network hold (O, C)."""
        seen = self.seen(scene)
        members = combinations(seen.waiting_left_ms.shape[-1])
        found = joint(seen, members, self.speeds, np)
        given = features(seen, members, found, np)
        places = given.present.sum(axis=-1) <= max(self.model.slots, 1)
        return scores(self.model.network, given, np).astype(np.float64), places

    def within(self, scene: Scene) -> NDArray[np.bool_]:
        """Where for each resource and each step the demands together stay within the card (Oh 2019, IV.2): (O, C)."""
        seen = self.seen(scene)
        members = combinations(seen.waiting_left_ms.shape[-1])
        mem_mib = int(np.max(seen.mem_mib)) or np.iinfo(np.int32).max
        capacity = np.array([CAPACITY_MILLI, mem_mib, CAPACITY_MILLI, CAPACITY_MILLI])
        there = seen.running.sum(axis=1)[:, None]  # (O, 1, H, 4)
        started = np.tensordot(members.astype(np.int64), seen.waiting, axes=(1, 1)).swapaxes(0, 1)
        real = np.all(~members | (seen.waiting_left_ms[:, None, :] > 0), axis=-1)
        tenants = (seen.running_left_ms > 0).sum(axis=1)[:, None] + members.sum(axis=1)
        inside = np.all(there + started <= capacity, axis=(-1, -2))
        return np.asarray(inside & real & (tenants <= max(self.model.slots, 1)))

    def seen(self, scene: Scene) -> Seen:
        """The same moment as the network sees it."""
        offers = scene.forecasts.offers
        asked = {one.application for offer in offers for one in (*offer.tenants, *offer.window)}
        index, catalogue = self._catalogue(scene.gpu, asked)
        most = max(1, max(len(offer.tenants) for offer in offers))
        window = max(1, max(len(offer.window) for offer in offers))
        jobs: IntArray = np.zeros((len(offers), most + window, 3), dtype=np.int64)
        for at, offer in enumerate(offers):
            for place, one in enumerate(offer.tenants):
                jobs[at, place] = (
                    index[one.application],
                    (one.work_us - one.left_us) // 1000,
                    -(-one.left_us // 1000),
                )
            for place, one in enumerate(offer.window):
                jobs[at, most + place] = index[one.application], 0, -(-one.left_us // 1000)
        model = self.model
        cells = left_cells(
            catalogue, jobs[..., 0], jobs[..., 1], jobs[..., 2], model.step_ms, model.horizon, np
        )
        left_ms = np.minimum(jobs[..., 2], 2**30).astype(np.int32)
        seen_ms = left_ms[:, most:].sum(axis=1)
        return Seen(
            cells[:, :most], left_ms[:, :most], cells[:, most:], left_ms[:, most:],
            np.maximum(scene.backlog_jobs - (left_ms[:, most:] > 0).sum(axis=1), 0).astype(np.int32),
            np.clip(scene.backlog_ms - seen_ms, 0, 2**31 - 1).astype(np.int32),
            np.full(len(offers), scene.gpu.mem_mib if scene.gpu and scene.gpu.mem_mib else 2**30, np.int32),
            model.step_ms,
        )  # fmt: skip

    def _catalogue(self, gpu: GpuModel | None, asked: set[str]) -> tuple[dict[str, int], Catalogue]:
        known = self._catalogues.get(gpu)
        if known is None or not asked <= known[0].keys():
            names = sorted(asked | (known[0].keys() if known else set()))
            scaled = [series(self.profiles[name], gpu or GpuModel("")) for name in names]
            catalogue = make_catalogue(
                [one.usage.astype(np.int64) for one in scaled],
                [one.interval_ms for one in scaled],
                self.model.step_ms,
                self.model.demand,
            )
            known = self._catalogues[gpu] = {name: at for at, name in enumerate(names)}, catalogue
        return known


def best_of(score: NDArray[np.float64], allowed: NDArray[np.bool_], forecasts: Forecasts) -> IntArray:
    """(O,): the best allowed combination; a GPU on which nobody runs starts somebody wherever it may."""
    allowed = allowed.copy()
    idle = np.array([not offer.tenants for offer in forecasts.offers])
    allowed[:, 0] |= True
    allowed[idle & allowed[:, 1:].any(axis=1), 0] = False
    best: IntArray = np.where(allowed, score, -np.inf).argmax(axis=1).astype(np.int64)
    return best
