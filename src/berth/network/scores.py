"""The network: embeds each job, adds up the members of a combination, and scores it.

In the manner of deep sets (Zaheer et al., "Deep Sets", NeurIPS 2017): what it has learned holds for any number of
waiting jobs and any order of them, so that ten (1,023 combinations) cost little more than five.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from berth.network.features import COMBINATION_FEATURES, JOB_FEATURES, Features
from berth.network.ranks import to_rank


class Sizes(NamedTuple):
    """How wide the network's layers are."""

    job: tuple[int, ...] = (32, 16)
    combination: tuple[int, ...] = (64, 32)


class Layer(NamedTuple):
    """x ↦ x·weight + bias."""

    weight: Any  # float32 (inputs, outputs)
    bias: Any  # float32 (outputs,)


class Network(NamedTuple):
    """The weights of the network; arrays of NumPy or JAX."""

    job: tuple[Layer, ...]
    combination: tuple[Layer, ...]  # the last has one output, the score


def shapes_of(sizes: Sizes) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    """(inputs, outputs) of each layer for jobs, and of each layer for combinations."""
    job = (JOB_FEATURES, *sizes.job)
    pooled = 4 * sizes.job[-1] + COMBINATION_FEATURES
    combination = (pooled, *sizes.combination, 1)
    return tuple(pairwise(job)), tuple(pairwise(combination))


def new_network(seed: int, sizes: Sizes | None = None) -> Network:
    """An untrained network: weights drawn as He et al. 2015 propose, the score's small; the same for a seed."""
    draw = np.random.default_rng(seed)
    job, combination = shapes_of(sizes or Sizes())

    def layer(inputs: int, outputs: int, gain: float) -> Layer:
        weight = draw.normal(0.0, gain * np.sqrt(2.0 / inputs), (inputs, outputs)).astype(np.float32)
        return Layer(weight, np.zeros(outputs, np.float32))

    hidden = tuple(layer(*shape, 1.0) for shape in combination[:-1])
    return Network(tuple(layer(*shape, 1.0) for shape in job), (*hidden, layer(*combination[-1], 0.1)))


def scores(network: Network, seen: Features, xp: Any) -> Any:
    """The score of each combination, float32 (..., C): the larger, the better; whether it fits is not asked."""
    embeds = seen.job  # (..., T, E): what the network makes of each job
    for layer in network.job:
        embeds = xp.maximum(_applied(layer, embeds), 0)
    running = embeds.shape[-2] - seen.waiting.shape[-1]
    old, new = seen.present[..., :running], seen.present[..., running:]
    neighbours = old @ embeds[..., :running, :]
    members = new @ embeds[..., running:, :]
    largest = xp.max(new[..., None] * embeds[..., None, running:, :], axis=-2)
    left = seen.waiting[..., None, :] - new
    others = left @ embeds[..., running:, :] / xp.maximum(xp.sum(left, axis=-1, keepdims=True), 1)
    pooled = xp.concatenate([neighbours, members, largest, others, seen.combination], axis=-1)
    score = _applied(network.combination[0], pooled)
    for layer in network.combination[1:]:
        score = _applied(layer, xp.maximum(score, 0))
    return score[..., 0]


def _applied(layer: Layer, values: Any) -> Any:
    found = values @ layer.weight
    return found + to_rank(layer.bias, found.ndim)
