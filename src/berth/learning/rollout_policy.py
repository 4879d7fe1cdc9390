"""`rollouts`: what each start is worth is found by following the queue to its end, and no network is asked.

The teacher of `learned` as a policy. It needs no JAX, but some milliseconds a decision.
"""

from __future__ import annotations

from itertools import islice

import numpy as np

from berth.arrays import BoolArray, IntArray
from berth.learning.jobsets import Task
from berth.learning.queue_kernels import SEATS, SEEN
from berth.learning.rollouts import Rollouts, Worlds, heuristic
from berth.model import GpuModel
from berth.policies.colocation.colocating import Colocating
from berth.policies.colocation.scene import Scene, best_of
from berth.policies.colocation.shield import shielded
from berth.policies.protocol import Setting
from berth.profiles import series

AHEAD = 10
"""Jobs behind those that are offered which a rollout places as well."""
HEURISTICS = heuristic((1, 1.0)), heuristic((0, 1.0))


class RolloutPolicy(Colocating):
    """Start the combination after which the queue would end soonest under the better of two simple heuristics.

    Bertsekas, Tsitsiklis and Wu, "Rollout algorithms for combinatorial optimization", Journal of Heuristics 3, 1997.
    It uses beliefs about the first fifteen waiting jobs, within the shield.
    """

    def __init__(self, setting: Setting | None = None) -> None:
        super().__init__(self._chosen, (setting or Setting()).knowledge, window=SEEN)
        self._models: dict[tuple[GpuModel | None, tuple[str, ...]], Rollouts] = {}

    def _profiles_changed(self) -> None:
        self._models = {}

    def _chosen(self, scene: Scene) -> IntArray:
        forecasts = scene.forecasts
        allowed = shielded(scene)
        rows = np.flatnonzero(allowed.sum(axis=1) > 1)
        score = np.where(allowed, 0.0, -np.inf)
        if len(rows):
            worlds = self._worlds(scene, rows, allowed[rows])
            worth_s = self._model(scene).worth_s(worlds, HEURISTICS)
            score[rows] = -worth_s[:, : score.shape[1]]
        return best_of(score, allowed, forecasts)

    def _worlds(self, scene: Scene, rows: IntArray, mine: BoolArray) -> Worlds:
        """The offers as rollouts see them: a GPU each, with its tenants, the jobs that it is offered, and others."""
        forecasts, offers = scene.forecasts, [scene.forecasts.offers[row] for row in rows]
        names = {name: at for at, name in enumerate(forecasts.names)}
        others = [
            (names[job.application], self.work_us(job))
            for job in islice(scene.queue, SEEN + AHEAD)
            if job.application in names
        ]
        lines = []
        tenants = np.zeros((len(offers), SEATS, 3), np.int64)
        for at, offer in enumerate(offers):
            for seat, one in enumerate(offer.tenants[:SEATS]):
                tenants[at, seat] = names[one.application], one.left_us, one.work_us
            line = [(names[one.application], one.work_us) for one in offer.window]
            behind = list(others)
            for one in line:
                if one in behind:
                    behind.remove(one)
            lines.append((line + behind)[: SEEN + AHEAD])
        length = max(map(len, lines))
        queue = np.zeros((len(offers), length, 2), np.int64)
        for at, line in enumerate(lines):
            queue[at, length - len(line) :] = line
        allowed = np.zeros((len(offers), 1 << SEEN), np.bool_)
        allowed[:, : mine.shape[1]] = mine
        head = np.array([length - len(line) for line in lines], np.int64)
        return Worlds(tenants, queue, head, np.zeros(len(offers), np.int64), allowed)

    def _model(self, scene: Scene) -> Rollouts:
        key = scene.gpu, scene.forecasts.names
        found = self._models.get(key)
        if found is None:
            gpu = scene.gpu or GpuModel("")
            scaled = tuple(series(self.known[name], gpu) for name in scene.forecasts.names)
            found = self._models[key] = Rollouts(
                Task(scene.forecasts.names, scaled, gpu, 1, 1), self.knowledge.speeds
            )
        return found
