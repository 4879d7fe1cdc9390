"""`rule`: sixteen weights of a linear rule, found by a random search on the sets that networks are trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from berth.arrays import FloatArray
from berth.learning.domains import Domain
from berth.learning.jobsets import JobSets
from berth.learning.learner import Figures
from berth.learning.rollouts import Rollouts, as_heuristic, heuristic
from berth.policies.colocation.rules import TRAITS

TUNED_ON = 25
"""Sets of each domain."""
LARGEST, LEAST = 1.0, 0.05
"""Of a change."""


class RuleState(NamedTuple):
    """Everything that changes."""

    weights: Array  # float32 (2, F): with a full queue, and with an empty one
    worth: Array  # float32 ()
    size: Array  # float32 (): of the next change
    seed: Array  # int32 ()
    iteration: Array  # int32 ()


class RuleLearner:
    """The learner; see `Learner`. Each iteration tries one change of some weights and keeps it where it is better."""

    name = "rule"
    compiled = False

    def __init__(self, domains: Sequence[Domain]) -> None:
        self.domains = [(Rollouts(one.task, one.speeds), one) for one in domains]

    def begin(self, seed: int) -> RuleState:
        """The better of joint progress and the sum of speeds."""
        firsts = [heuristic((at, 1.0))[:, :TRAITS] for at in (0, 1)]
        worths = [self._trained(one, seed) for one in firsts]
        best = int(np.argmin(worths))
        size = jnp.float32(0.5)
        return RuleState(
            jnp.float32(firsts[best]), jnp.float32(worths[best]), size, jnp.int32(seed), jnp.int32(0)
        )

    def iterate(self, state: RuleState) -> tuple[RuleState, Figures]:
        """Try one change."""
        seed, iteration = int(state.seed), int(state.iteration)
        draw, size = np.random.default_rng([seed, iteration]), float(state.size)
        changes = draw.normal(0, size, (2, TRAITS)) * (draw.random((2, TRAITS)) < 0.3)
        tried = np.asarray(state.weights, np.float64) + changes
        worth = self._trained(tried, seed)
        better = worth < float(state.worth)
        size = min(size * 1.3, LARGEST) if better else max(size * 0.985, LEAST)
        weights, worth = (tried, worth) if better else (state.weights, float(state.worth))
        after = RuleState(
            jnp.float32(weights), jnp.float32(worth), jnp.float32(size), state.seed, state.iteration + 1
        )
        return after, Figures(jnp.float32(-worth), jnp.float32(worth), jnp.float32(0))

    def network(self, state: RuleState) -> Any:
        """The weights."""
        return state.weights

    def worth(self, weights: Any) -> float:
        """Mean over the domains' validation sets of total time, over that of all jobs one after the other."""
        chosen = np.asarray(weights, np.float64)
        return float(np.mean([_worth(model, chosen, one.validation) for model, one in self.domains]))

    def _trained(self, weights: FloatArray, seed: int) -> float:
        found = []
        for at, (model, one) in enumerate(self.domains):
            draw, count = np.random.default_rng([seed, at, 1]), len(one.sets.work_ms)
            rows = draw.choice(count, min(TUNED_ON, count), replace=False)
            found.append(_worth(model, weights, JobSets(one.sets.application[rows], one.sets.work_ms[rows])))
        return float(np.mean(found))


def _worth(model: Rollouts, weights: FloatArray, sets: JobSets) -> float:
    return float(np.mean(model.heuristic_ms(as_heuristic(weights), sets) / sets.work_ms.sum(axis=1)))
