"""A trained network as the chooser of a co-locating policy, in plain NumPy.

Letters as in `berth.network`: O offers, K tenants, M waiting jobs that are seen, C combinations, H steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.arrays import IntArray
from berth.interference import Speeds
from berth.model import GpuModel, Profile
from berth.network.capacity import Limits, within
from berth.network.catalogue import NEVER_MS, Catalogue, left_cells, make_catalogue, use_now
from berth.network.combinations import combinations
from berth.network.features import Joint, features, joint
from berth.network.features import Scene as Seen
from berth.network.images import ImageModel
from berth.network.model_file import Model
from berth.network.scores import scores
from berth.policies.colocation.forecast import Forecasts
from berth.policies.colocation.scene import Scene
from berth.profiles import series

__all__ = ["JobsSeen", "NetworkScores", "best_of"]

LEAST = -1e300
FEW = 8
"""Offers that are not worth being searched for jobs that are alike."""
ONCE = 2048
"""Combinations that are looked at together when each is looked at once."""
TOGETHER = 128
"""Offers that go through the network at once: what is in between stays in the processor's cache."""


class NetworkScores:
    """What a model says of every combination of every offer."""

    def __init__(self, model: Model, profiles: Mapping[str, Profile], speeds: Speeds) -> None:
        self.model = model
        self.jobs = JobsSeen(model, profiles)
        self.speeds = speeds

    def __call__(self, scene: Scene, allowed: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Scores (O, C), the larger the better, −∞ where it is not allowed (O, C).

        Only where there is a choice, and only what is allowed, is looked at: offers with about as many such
        combinations go through the network together.
        """
        table = combinations(max(1, int(scene.forecasts.window.max())))
        found = np.where(allowed, 0.0, -np.inf)
        counts = allowed.sum(axis=1)
        order = np.flatnonzero(counts > 1)
        if not len(order):
            return found
        order = order[np.argsort(counts[order], kind="stable")]
        seen = self.seen(scene)
        # (O', C'): the allowed combinations of each offer, the last one again where there are fewer.
        rank = np.minimum(np.arange(int(counts[order[-1]])), counts[order][:, None] - 1)
        chosen = np.take_along_axis(np.argsort(~allowed[order], axis=1, kind="stable"), rank, axis=1)
        size = table.sum(axis=1)
        seats = max(1, int((scene.forecasts.tenants[order][:, None] + size[chosen]).max()))
        once = self._once(scene, seen, order, table[chosen], seats) if len(order) > TOGETHER else None
        for begin in range(0, len(order), TOGETHER):
            rows = order[begin : begin + TOGETHER]
            picked = chosen[begin : begin + TOGETHER, : int(counts[rows[-1]])]
            part = _rows_of(seen, rows) if len(found) > 1 else seen
            members = table[picked]  # (O', C', M)
            together = self._joint(part, members, seats, once, begin)
            with np.errstate(
                invalid="ignore"
            ):  # NumPy's matmul warns of lanes beyond small arrays now and then
                given = features(part, members, together, np)
            found[rows[:, None], picked] = scores(self.model.network, given, np)
        return found

    def _joint(
        self, part: Seen, members: NDArray[np.bool_], seats: int, once: _Once | None, begin: int
    ) -> Joint:
        """What becomes of combinations (O', C', M), those that were computed once looked up."""
        if once is None:
            return joint(part, members, self.speeds, seats, np)
        place = once.place[begin : begin + len(members), : members.shape[1]]
        found = Joint._make(value[place] for value in once.joint)
        running, waiting = part.running_left_ms > 0, part.waiting_left_ms > 0
        there = np.broadcast_to(running[:, None], (*members.shape[:-1], running.shape[-1]))
        found = found._replace(present=np.concatenate([there, members & waiting[:, None]], axis=-1))
        if len(busy := np.flatnonzero(running.any(axis=-1))):
            own = joint(_rows_of(part, busy), members[busy], self.speeds, seats, np)
            for value, mine in zip(found, own, strict=True):
                value[busy] = mine
        return found

    def _once(
        self, scene: Scene, seen: Seen, rows: IntArray, members: NDArray[np.bool_], seats: int
    ) -> _Once | None:
        """`joint` of combinations (O', C', M), where GPUs are idle computed once for jobs of the same kinds in the
        same order; None where it is not worth it, or there are too many kinds to tell them apart by a number."""
        slots = members.shape[-1]
        jobs = scene.forecasts.application[rows, :slots] * NEVER_MS + seen.waiting_left_ms[rows]
        kinds, which = np.unique(jobs, return_inverse=True)
        idle = scene.forecasts.tenants[rows] == 0
        if not idle.any() or len(kinds) + 1 >= 1 << 62 // slots:
            return None
        number: IntArray = np.zeros(members.shape[:2], dtype=np.int64)
        which = which.reshape(jobs.shape) + 1
        for job in range(slots):
            number = np.where(members[..., job], number * (len(kinds) + 1) + which[:, job, None], number)
        number[~idle] = -1
        _, first, place = np.unique(number, return_index=True, return_inverse=True)
        offer, combination = np.unravel_index(first, number.shape)
        parts = []
        for begin in range(0, len(first), ONCE):
            some = slice(begin, begin + ONCE)
            part = _rows_of(seen, rows[offer[some]])
            one = members[offer[some], combination[some]][:, None]
            parts.append(joint(part, one, self.speeds, seats, np))
        once = Joint._make(np.concatenate(many)[:, 0] for many in zip(*parts, strict=True))
        return _Once(once, place.reshape(number.shape))

    def within(self, scene: Scene, limits: Limits = "card") -> NDArray[np.bool_]:
        """Where for each resource and each step the demands together stay within the card (Oh 2019, IV.2): (O, C)."""
        seen = self.seen(scene)
        return within(seen, combinations(seen.waiting_left_ms.shape[-1]), limits)

    def seen(self, scene: Scene) -> Seen:
        """The same moment as the network sees it."""
        return self.jobs.of(scene)


class JobsSeen:
    """Moments as a network is shown them: over its horizon, in its steps, by the demand that it goes by."""

    def __init__(self, model: Model | ImageModel, profiles: Mapping[str, Profile]) -> None:
        self.model = model
        self.profiles = profiles
        self._catalogues: dict[GpuModel | None, tuple[tuple[str, ...], Catalogue]] = {}

    def of(self, scene: Scene) -> Seen:
        """One moment."""
        forecasts = scene.forecasts
        catalogue = self._catalogue(scene.gpu, forecasts.names)
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
        model = self.model
        left_ms = np.minimum(-(-left_us // 1000), NEVER_MS - 1).astype(np.int32)
        horizon = model.step_ms, model.horizon
        if len(there) <= FEW:
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
        seen_ms = left_ms[:, most:].sum(axis=1)
        seen_jobs = (left_ms[:, most:] > 0).sum(axis=1)
        return Seen(
            cells[:, :most], now[:, :most], same_ms[:, :most], left_ms[:, :most],
            cells[:, most:], now[:, most:], same_ms[:, most:], left_ms[:, most:],
            np.maximum(scene.backlog_jobs - seen_jobs, 0).astype(np.int32),
            np.clip(scene.backlog_ms - seen_ms, 0, 2**31 - 1).astype(np.int32),
            np.full(
                len(there), scene.gpu.mem_mib if scene.gpu and scene.gpu.mem_mib else NEVER_MS, np.int32
            ),
            model.step_ms,
        )  # fmt: skip

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


class _Once(NamedTuple):
    """What was computed once of combinations that several offers have."""

    joint: Joint  # of n combinations
    place: IntArray  # (O', C'): which of them each is


def _rows_of(seen: Seen, rows: IntArray) -> Seen:
    return Seen._make(value[rows] if isinstance(value, np.ndarray) else value for value in seen)


def best_of(score: NDArray[np.float64], allowed: NDArray[np.bool_], forecasts: Forecasts) -> IntArray:
    """(O,): the best allowed combination; an idle GPU starts a job wherever it may."""
    allowed = allowed.copy()
    allowed[:, 0] |= True
    allowed[(forecasts.tenants == 0) & allowed[:, 1:].any(axis=1), 0] = False
    best: IntArray = np.where(allowed, np.maximum(score, LEAST), -np.inf).argmax(axis=1).astype(np.int64)
    return best
