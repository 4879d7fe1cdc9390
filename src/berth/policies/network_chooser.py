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
from berth.network.catalogue import NEVER_MS, Catalogue, left_cells, make_catalogue, use_now
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
LEAST = -1e300
TOGETHER = 128
"""So many offers go through the network at once: what is in between stays in the processor's cache."""


class NetworkScores:
    """What a model says of every combination of every offer."""

    def __init__(self, model: Model, profiles: Mapping[str, Profile], speeds: Speeds) -> None:
        self.model = model
        self.profiles = profiles
        self.speeds = speeds
        self._catalogues: dict[GpuModel | None, tuple[dict[str, int], Catalogue]] = {}

    def __call__(self, scene: Scene, allowed: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Scores (O, C), the larger the better, −∞ where it is not allowed (O, C) or the network has no places for it.

        Only where there is a choice, and only what is allowed, is looked at: offers with about as many such
        combinations go through the network together.
        """
        table = combinations(max(1, max(len(offer.window) for offer in scene.forecasts.offers)))
        tenants = np.array([len(offer.tenants) for offer in scene.forecasts.offers])
        allowed = allowed & (tenants[:, None] + table.sum(axis=1) <= self.model.slots)
        found = np.where(allowed, 0.0, -np.inf)
        counts = allowed.sum(axis=1)
        order = np.argsort(counts, kind="stable")
        order = order[counts[order] > 1]
        if not len(order):
            return found
        seen = self.seen(scene)
        for begin in range(0, len(order), TOGETHER):
            rows = order[begin : begin + TOGETHER]
            width = int(counts[rows[-1]])
            # (O', width): the allowed combinations of each offer, the last one again where there are fewer.
            rank = np.minimum(np.arange(width), counts[rows][:, None] - 1)
            chosen = np.argsort(~allowed[rows], axis=1, kind="stable")[np.arange(len(rows))[:, None], rank]
            part = Seen(*(value[rows] if isinstance(value, np.ndarray) else value for value in seen))
            members = table[chosen]  # (O', width, M)
            together = joint(part, members, self.speeds, self.model.slots, np)
            given = features(part, members, together, np)
            found[rows[:, None], chosen] = scores(self.model.network, given, np)
        return found

    def within(self, scene: Scene) -> NDArray[np.bool_]:
        """Where for each resource and each step the demands together stay within the card (Oh 2019, IV.2): (O, C)."""
        seen = self.seen(scene)
        members = combinations(seen.waiting_left_ms.shape[-1])
        mem_mib = int(np.max(seen.mem_mib)) or np.iinfo(np.int32).max
        capacity = np.array([CAPACITY_MILLI, mem_mib, CAPACITY_MILLI, CAPACITY_MILLI])
        there = seen.running.sum(axis=1)[:, None]  # (O, 1, H, 4)
        started = np.tensordot(members.astype(np.int64), seen.waiting, axes=(1, 1)).swapaxes(0, 1)
        real = np.all(~members | (seen.waiting_left_ms[:, None, :] > 0), axis=-1)
        inside = np.all(there + started <= capacity, axis=(-1, -2))
        return np.asarray(inside & real)

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
        application, done_ms = jobs[..., 0], jobs[..., 1]
        left_ms = np.minimum(jobs[..., 2], NEVER_MS - 1).astype(np.int32)
        cells = left_cells(catalogue, application, done_ms, left_ms, model.step_ms, model.horizon, np)
        now, same_ms = use_now(catalogue, application, done_ms, left_ms, np)
        seen_ms = left_ms[:, most:].sum(axis=1)
        seen_jobs = (left_ms[:, most:] > 0).sum(axis=1)
        return Seen(
            cells[:, :most], now[:, :most], same_ms[:, :most], left_ms[:, :most],
            cells[:, most:], now[:, most:], same_ms[:, most:], left_ms[:, most:],
            np.maximum(scene.backlog_jobs - seen_jobs, 0).astype(np.int32),
            np.clip(scene.backlog_ms - seen_ms, 0, 2**31 - 1).astype(np.int32),
            np.full(
                len(offers), scene.gpu.mem_mib if scene.gpu and scene.gpu.mem_mib else NEVER_MS, np.int32
            ),
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
    best: IntArray = np.where(allowed, np.maximum(score, LEAST), -np.inf).argmax(axis=1).astype(np.int64)
    return best
