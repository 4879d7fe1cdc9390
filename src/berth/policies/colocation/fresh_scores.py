"""Scores of combinations of jobs that have done nothing yet, for many GPUs at once.

A pass that fills idle GPUs meets the same few applications together again and again. The network's first layer is a
sum: one part depends only on the jobs that run together, the other on the jobs that are left waiting. The first part
is kept, and the second is added each time. `NetworkScores` gives the same scores for any combination, more slowly; a
test holds both equal. Letters as in `berth.network`; N combinations of all offers, W outputs of the first layer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.arrays import IntArray, compiled
from berth.interference import Speeds
from berth.interference.known_speeds import MOST
from berth.network.catalogue import NEVER_MS
from berth.network.features import (
    BACKLOG_JOBS,
    BACKLOG_LEFT,
    JOBS,
    SEEN_JOBS,
    STAY,
    features,
)
from berth.network.scores import Network, begun, embedded, finished, others_weight
from berth.policies.colocation.scene import Scene
from berth.policies.colocation.seen_jobs import JobsSeen, placed

Floats = NDArray[np.float32]
BITS = 6
"""Of a kind of job in the number of a combination, in which those of `MOST` jobs have room."""
KINDS = 1 << BITS
MOST_TENANTS = 7
"""Tenants of a GPU that the number of a combination can tell from the jobs that start."""
MOST_KEPT = 1 << 16
"""Combinations that are kept, at most."""
ONCE = 1024
"""Combinations that are looked at together for the first time."""
TOGETHER = 4096
"""Combinations that go through the rest of the network at once: what is in between stays in the processor's cache."""


class _Cache(NamedTuple):
    """What is kept of one card. A kind is an application and the work that is left of it; 0 is an empty place."""

    names: tuple[str, ...]
    kinds: dict[int, int]
    """The number of each kind, by application and work."""
    what: IntArray  # (KINDS, 2): application and work left, ms
    others: Floats  # (KINDS, W): what each adds if it is the only job that waits on
    rows: dict[int, int]
    """Where each combination is kept, by its number."""
    own: list[Floats]  # (1, W) each: the first layer if no other job waits


class FreshScores:
    """The network's scores where neither tenants nor waiting jobs have done anything."""

    def __init__(self, network: Network, jobs: JobsSeen, speeds: Speeds) -> None:
        self.network = network
        self.jobs = jobs
        self.speeds = speeds
        self._caches: dict[object, _Cache] = {}

    def offers(self, scene: Scene) -> NDArray[np.bool_]:
        """(O,): which offers are of such jobs alone."""
        forecasts = scene.forecasts
        fresh = (forecasts.work_us - forecasts.left_us) // 1000 == 0
        few = (forecasts.tenants <= MOST_TENANTS) & (forecasts.left_us.shape[1] <= MOST)
        return np.asarray(fresh.all(axis=1) & few)

    def __call__(self, scene: Scene, offer: IntArray, combination: IntArray) -> NDArray[np.float64] | None:
        """Scores (N,) of combinations of `offers`; None if they are of too many kinds."""
        most, application, _, left_ms = placed(scene.forecasts)
        cache = self._of(scene)
        asked = np.zeros((len(left_ms), 1), np.bool_)
        asked[offer] = True
        number = self._numbered(scene, cache, application * NEVER_MS + left_ms, (left_ms > 0) & asked)
        if number is None:
            return None
        running, waiting = np.sort(number[:, :most], axis=1), number[:, most:]
        code = np.empty(len(offer), np.int64)
        _codes(running, waiting, np.argsort(waiting, axis=1, kind="stable"), offer, combination, code)
        each, place = np.unique(code, return_inverse=True)
        if len(cache.rows) + len(each) > MOST_KEPT:
            cache.rows.clear()
            cache.own.clear()
        if new := [at for at in each.tolist() if at not in cache.rows]:
            self._learn(scene, cache, new)
        own = np.concatenate([cache.own[cache.rows[at]] for at in each.tolist()])
        _, weight = others_weight(self.network)
        backlog_jobs, backlog_ms = self.jobs.backlog(scene, left_ms[:, most:])
        horizon_ms = self.jobs.model.horizon * self.jobs.model.step_ms
        behind = (backlog_jobs / JOBS)[:, None] * weight[BACKLOG_JOBS]
        behind += (backlog_ms / (JOBS * horizon_ms))[:, None] * weight[BACKLOG_LEFT]
        behind = behind.astype(np.float32)
        found = np.empty(len(offer))
        stay = np.asarray(weight[STAY] / SEEN_JOBS)
        for begin in range(0, len(offer), TOGETHER):
            some = slice(begin, begin + TOGETHER)
            first = np.empty((len(offer[some]), own.shape[1]), np.float32)
            _first_layer(
                own, place[some], cache.others, stay, behind, waiting, offer[some], combination[some], first
            )
            found[some] = finished(self.network, first, np)
        return found

    def _of(self, scene: Scene) -> _Cache:
        """What is kept of this card's applications."""
        cache = self._caches.get(scene.gpu)
        if cache is None or cache.names != scene.forecasts.names:
            width = self.network.combination[0].weight.shape[1]
            cache = self._caches[scene.gpu] = _Cache(
                scene.forecasts.names,
                {},
                np.zeros((KINDS, 2), np.int64),
                np.zeros((KINDS, width), np.float32),
                {},
                [],
            )
        return cache

    def _numbered(
        self, scene: Scene, cache: _Cache, kind: IntArray, there: NDArray[np.bool_]
    ) -> IntArray | None:
        """The number of each job's kind, 0 where there is no job; None if there are too many kinds."""
        each, place = np.unique(np.where(there, kind, -1), return_inverse=True)
        new = [one for one in each.tolist() if one >= 0 and one not in cache.kinds]
        if len(cache.kinds) + len(new) >= KINDS:
            for part in (cache.kinds, cache.rows, cache.own):
                part.clear()
            new = [one for one in each.tolist() if one >= 0]
            if len(new) >= KINDS:
                return None
        if new:
            first = len(cache.kinds) + 1
            cache.kinds.update({one: first + at for at, one in enumerate(new)})
            cache.what[first : first + len(new)] = np.array([divmod(one, NEVER_MS) for one in new])
            some = cache.what[first : first + len(new)]
            seen = self.jobs.shown(
                scene.gpu, cache.names, 0, some[:, :1], np.zeros((len(new), 1), np.int64), some[:, 1:]
            )
            members = np.ones((len(new), 1, 1), np.bool_)
            job = features(seen, members, self.speeds).job
            weight, _ = others_weight(self.network)
            cache.others[first : first + len(new)] = (embedded(self.network, job, np) @ weight)[:, 0]
        numbers = np.array([cache.kinds.get(one, 0) for one in each.tolist()], dtype=np.int64)
        return np.asarray(numbers[place.reshape(kind.shape)])

    def _learn(self, scene: Scene, cache: _Cache, codes: list[int]) -> None:
        """Keep the first layer of combinations, each as if no other job waited."""
        for begin in range(0, len(codes), ONCE):
            some = codes[begin : begin + ONCE]
            members = [_members(code) for code in some]
            most = max(len(running) for running, _ in members)
            window = max(1, max(len(starts) for _, starts in members))
            number = np.zeros((len(some), most + window), np.int64)
            for at, (running, starts) in enumerate(members):
                number[at, : len(running)] = running
                number[at, most : most + len(starts)] = starts
            what = cache.what[number]
            seen = self.jobs.shown(
                scene.gpu, cache.names, most, what[..., 0], np.zeros(number.shape, np.int64), what[..., 1]
            )
            together = number[:, None, most:] > 0
            first = begun(self.network, features(seen, together, self.speeds), np)
            cache.rows.update({code: len(cache.own) + at for at, code in enumerate(some)})
            cache.own.extend(first)


def _members(code: int) -> tuple[list[int], list[int]]:
    """The kinds of a combination's tenants and of the jobs that start."""
    kinds: list[int] = []
    running = code >> BITS * MOST
    code &= (1 << BITS * MOST) - 1
    while code:
        kinds.insert(0, code & KINDS - 1)
        code >>= BITS
    return kinds[:running], kinds[running:]


@compiled
def _codes(
    running: IntArray,  # (O, K), kinds in ascending order
    waiting: IntArray,  # (O, M)
    order: IntArray,  # (O, M): the jobs that wait by their kinds
    offer: IntArray,  # (N,)
    combination: IntArray,  # (N,)
    found: IntArray,  # (N,), out
) -> None:
    """A number for each combination, the same for the same tenants and the same jobs that start."""
    for at in range(len(offer)):
        here = offer[at]
        many, code = 0, 0
        for place in range(running.shape[1]):
            if running[here, place]:
                code = code << BITS | running[here, place]
                many += 1
        for place in range(waiting.shape[1]):
            job = order[here, place]
            if combination[at] >> job & 1:
                code = code << BITS | waiting[here, job]
        found[at] = code | many << BITS * MOST


@compiled
def _first_layer(
    own: Floats,  # (n, W)
    row: IntArray,  # (N,)
    others: Floats,  # (KINDS, W)
    stay: Floats,  # (W,): what each job that waits on adds
    behind: Floats,  # (O, W): what those add that are not seen
    waiting: IntArray,  # (O, M)
    offer: IntArray,  # (N,)
    combination: IntArray,  # (N,)
    found: Floats,  # (N, W), out
) -> None:
    """The first layer of each combination with all that waits."""
    width = own.shape[1]
    for at in range(len(offer)):
        here = offer[at]
        left = 0
        for job in range(waiting.shape[1]):
            left += waiting[here, job] > 0 and not combination[at] >> job & 1
        for column in range(width):
            found[at, column] = own[row[at], column] + behind[here, column] + np.float32(left) * stay[column]
        part = np.float32(1) / np.float32(max(left, 1))
        for job in range(waiting.shape[1]):
            kind = waiting[here, job]
            if kind > 0 and not combination[at] >> job & 1:
                for column in range(width):
                    found[at, column] += part * others[kind, column]
