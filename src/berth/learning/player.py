"""A network that plays queues in one domain: what it sees, what it says of combinations, and what comes of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from berth.arrays import FloatArray, IntArray
from berth.learning.domains import Domain
from berth.learning.queue_kernels import NONE, SEEN
from berth.learning.rollouts import Rollouts, Worlds
from berth.network.capacity import within
from berth.network.catalogue import Demand
from berth.network.combinations import combinations
from berth.network.features import Features, Scene, features
from berth.network.scores import Network, scores

TOGETHER = 128
"""Moments that go through the features at once."""


class Player:
    """Networks' decisions in one domain, shown one demand of each job."""

    def __init__(self, domain: Domain, demand: Demand = "series") -> None:
        self.domain = domain
        self.model = Rollouts(domain.task, domain.speeds)
        self.demand = demand
        self.catalogue = domain.task.catalogue(demand)

    def decided_ms(self, worlds: Worlds, network: Network) -> IntArray:
        """When all is done in each world, in ms, if the network decides from here on: (W,)."""
        while not worlds.over.all():
            action, rows, here, _ = self.asked(worlds)
            if len(rows):
                masks, there = listed(here.allowed)
                score = np.where(there, self.scores(network, here, masks), -np.inf)
                action[rows] = best_of_listed(masks, score)
            worlds = self.model.advance(worlds, action)
        return worlds.now_ms

    def asked(self, worlds: Worlds) -> tuple[IntArray, IntArray, Worlds, NDArray[np.bool_]]:
        """What is done in each world, (W,), NONE where it is over; and the worlds in which the network chooses: which
        they are, with what may be done in them, and what is offered there (…, C).

        With one demand of each job that is offered which these demands allow, though more may come of it than they say.
        """
        action = np.full(len(worlds.head), NONE, np.int64)
        rows = np.flatnonzero(~worlds.over)
        here = worlds.take(rows)
        if self.demand == "series":
            return action, rows, here, here.allowed
        members, waiting = combinations(SEEN), here.waiting
        alike = (waiting[:, :, None] == waiting[:, None]).all(axis=-1) & np.tri(SEEN, k=-1, dtype=np.bool_)
        again = (members[:, :, None] & ~members[:, None] & alike[:, None]).any(axis=(-1, -2))
        offered = within(self.model.scene(here, self.catalogue), members) & ~again  # of equal jobs the first
        offered[:, 0] = here.allowed[:, 0]
        may = offered & here.allowed
        action[rows] = may.argmax(axis=1)
        chooses = offered.sum(axis=1) > 1
        here = replace(here, allowed=may).take(np.flatnonzero(chooses))
        return action, rows[chooses], here, offered[chooses]

    def scores(self, network: Network, worlds: Worlds, masks: IntArray) -> FloatArray:
        """What the network says of combinations (W, C') of each world."""
        return np.concatenate([scores(network, seen, np) for seen in self._features_of(worlds, masks)])

    def features(self, worlds: Worlds, masks: IntArray) -> Features:
        """What the network sees of combinations (W, C') of each world."""
        return Features(
            *(np.concatenate(part) for part in zip(*self._features_of(worlds, masks), strict=True))
        )

    def _features_of(self, worlds: Worlds, masks: IntArray) -> Iterator[Features]:
        """The same for some of the worlds at a time."""
        scene = self.model.scene(worlds, self.catalogue)
        for begin in range(0, len(masks), TOGETHER):
            rows = np.arange(begin, min(len(masks), begin + TOGETHER))
            part, members = _rows_of(scene, rows), combinations(SEEN)[masks[rows]]
            yield features(part, members, self.domain.speeds)


def listed(allowed: NDArray[np.bool_]) -> tuple[IntArray, NDArray[np.bool_]]:
    """The combinations that are allowed (W, C), in order, (W, C'), and where there are fewer the first again."""
    width = int(allowed.sum(axis=1).max())
    masks = np.argsort(~allowed, axis=1, kind="stable")[:, :width]
    there = np.take_along_axis(allowed, masks, axis=1)
    return np.where(there, masks, masks[:, :1]), there


def best_of_listed(masks: IntArray, score: FloatArray) -> IntArray:
    """(W,): the combinations (W, C') of the best scores."""
    found: IntArray = masks[np.arange(len(masks)), score.argmax(axis=1)]
    return found


def _rows_of(scene: Scene, rows: IntArray) -> Scene:
    return Scene._make(value[rows] if isinstance(value, np.ndarray) else value for value in scene)
