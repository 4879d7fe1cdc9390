"""A network that plays queues: what it sees of worlds, what it says of their combinations, and what comes of it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from berth.arrays import FloatArray, IntArray
from berth.interference import Speeds
from berth.learning.queue_kernels import NONE, SEATS, SEEN
from berth.learning.rollouts import Rollouts, Worlds
from berth.network.capacity import within
from berth.network.catalogue import Demand
from berth.network.combinations import combinations
from berth.network.features import Features, Scene, features, joint, most_tenants
from berth.network.scores import Network, scores

__all__ = ["Player", "best_of_listed", "listed"]

TOGETHER = 128
"""So many moments go through the features at once."""
ROWS, WIDTHS, PLACES = (16, 256), (12, 1 << SEEN), (5, SEATS)
"""Moments, combinations of each and seats that the network is compiled for: the next larger ones are used."""


class Player:
    """Networks' decisions under one model of interference, shown one demand of each job."""

    def __init__(self, model: Rollouts, demand: Demand = "series") -> None:
        self.model = model
        self.demand = demand
        self.catalogue = model.task.catalogue(demand)
        self._score = jax.jit(partial(_scored, model.speeds, model.task.step_ms), static_argnums=3)

    def decided_ms(self, worlds: Worlds, network: Network) -> IntArray:
        """When all is done in each world, in ms, if the network decides from here on: (W,)."""
        network = jax.tree.map(np.asarray, network)
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
        scene = self.model.scene(worlds, self.catalogue)
        found = np.zeros(masks.shape)
        width = next(width for width in WIDTHS if width >= masks.shape[1])
        padded = np.pad(masks, ((0, 0), (0, width - masks.shape[1])), mode="edge")
        for begin in range(0, len(masks), ROWS[-1]):
            rows = np.arange(begin, min(len(masks), begin + ROWS[-1]))
            filled = np.resize(rows, next(many for many in ROWS if many >= len(rows)))
            part = _rows_of(scene, filled)
            most = most_tenants(part, combinations(SEEN)[padded[filled]])
            seats = next(places for places in PLACES if places >= most)
            answer = self._score(network, part[:-1], padded[filled], seats)
            found[rows] = np.asarray(answer)[: len(rows), : masks.shape[1]]
        return found

    def features(self, worlds: Worlds, masks: IntArray) -> Features:
        """What the network sees of combinations (W, C') of each world."""
        scene = self.model.scene(worlds, self.catalogue)
        parts = []
        for begin in range(0, len(masks), TOGETHER):
            rows = np.arange(begin, min(len(masks), begin + TOGETHER))
            part, members = _rows_of(scene, rows), combinations(SEEN)[masks[rows]]
            seats = most_tenants(part, members)
            parts.append(features(part, members, joint(part, members, self.model.speeds, seats, np), np))
        return Features(*(np.concatenate(part) for part in zip(*parts, strict=True)))


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


def _scored(
    speeds: Speeds, step_ms: int, network: Network, scene: tuple[Array, ...], masks: Array, seats: int
) -> Array:
    """Scores of combinations, (W, C'); compiled."""
    parts: list[Any] = [*scene, step_ms]
    seen = Scene(*parts)
    members = jnp.asarray(combinations(SEEN))[masks]
    return jnp.asarray(
        scores(network, features(seen, members, joint(seen, members, speeds, seats, jnp), jnp), jnp)
    )
