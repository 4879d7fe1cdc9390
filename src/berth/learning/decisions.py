"""The environment as the learners of `learned` see it: moments at which something may be decided, and their features.

Between two decisions a hold goes on to the next end of a job, to a tick, or to when somebody is about to end, however
often the use of a tenant changes meanwhile; when nobody waits it goes on to the end. Letters: E environments side by
side, C actions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from berth.learning.environment import Environment, State
from berth.learning.jobsets import JobSets
from berth.network.features import Features, features, joint
from berth.network.scores import Network, scores

__all__ = ["Decisions", "Moment", "best_allowed"]

NEVER = -1e30


class Moment(NamedTuple):
    """A state at which a learner decides."""

    features: Features
    allowed: Array  # bool (C,)
    together_milli: Array  # float32 (C,): the predicted joint progress, what `greedy` goes by


@dataclass(frozen=True, eq=False)
class Decisions:
    """Pure functions over one environment and the job sets to draw from; all are for one environment, not for E."""

    environment: Environment
    sets: JobSets
    """Arrays (N, J): an episode is about one of them."""
    within: bool = False
    """Whether no resource may ever be asked for beyond its capacity (Oh 2019, section IV.2), rather than memory
    alone: for a learner that is shown a single demand of each job and knows nothing of its series."""

    def see(self, state: State) -> Moment:
        """What there is to decide.

        A start is allowed where memory suffices to the end, whatever becomes of the speeds; holding, where somebody
        runs or nobody could start.
        """
        environment = self.environment
        scene = environment.scene(state)
        seats = environment.settings.places
        found = joint(scene, environment.members, environment.speeds_of(state), seats, jnp)
        fits = found.fits & environment.startable(state)
        if self.within:
            fits = environment.mask(state)
        allowed = fits.at[0].set(jnp.any(state.tenant >= 0) | ~jnp.any(fits[1:]))
        return Moment(features(scene, environment.members, found, jnp), allowed, found.together_milli)

    def act(self, state: State, action: Array, allowed: Array) -> tuple[State, Array]:
        """What comes of it by the next moment, and the reward in between."""
        environment = self.environment
        begun = state.now_ms
        after, reward = environment.step_masked(state, action, allowed)
        nothing = jnp.zeros_like(allowed)

        def goes_on(carry: tuple[State, Array, Array]) -> Array:
            return ~carry[2]

        def hold(carry: tuple[State, Array, Array]) -> tuple[State, Array, Array]:
            now, earned, _ = carry
            then, more = environment.step_masked(now, jnp.int32(0), nothing)
            return then, earned + more, self._decides(now, then)

        started = (action > 0) & allowed[action]
        stops = started | self._decides(state, after) | ((begun == after.now_ms) & environment.over(after))
        after, reward, _ = jax.lax.while_loop(goes_on, hold, (after, reward, stops))
        return after, reward

    def fresh(self, key: Array) -> State:
        """The beginning of an episode about one of the sets under one of the models, both drawn evenly."""
        at = jax.random.randint(key, (), 0, self.sets.application.shape[0])
        model = jax.random.randint(jax.random.fold_in(key, 1), (), 0, len(self.environment.models))
        return self.environment.reset(JobSets(*(jnp.asarray(part)[at] for part in self.sets)), model)

    def renewed(self, state: State, key: Array) -> State:
        """The same state, or a new episode where it is over."""
        over = self.environment.over(state)
        renewed: State = jax.tree.map(lambda new, old: jnp.where(over, new, old), self.fresh(key), state)
        return renewed

    def total_ms(self, network: Network, sets: JobSets) -> tuple[Array, Array]:
        """Total time of each set, and how often a job ran out of memory, when the best score decides.

        int32 (I, N), under each of the I models of interference.
        """

        def decide(moment: Moment) -> Array:
            return best_allowed(scores(network, moment.features, jnp), moment.allowed)

        return self.played(decide, sets)

    def greedy_ms(self, sets: JobSets) -> tuple[Array, Array]:
        """The same for whoever takes the best predicted joint progress."""
        return self.played(lambda moment: best_allowed(moment.together_milli, moment.allowed), sets)

    def played(self, decide: Callable[[Moment], Array], sets: JobSets) -> tuple[Array, Array]:
        """Total time and failures of each set under any function of a moment, (I, N)."""

        def move(state: State) -> State:
            moment = self.see(state)
            return self.act(state, decide(moment), moment.allowed)[0]

        jobs = JobSets(*map(jnp.asarray, sets))
        models = len(self.environment.models)
        reset = jax.vmap(jax.vmap(self.environment.reset, (0, None)), (None, 0))
        states = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), reset(jobs, jnp.arange(models)))
        done = jax.lax.while_loop(
            lambda found: ~jnp.all(jax.vmap(self.environment.over)(found)), jax.vmap(move), states
        )
        return done.now_ms.reshape(models, -1), jnp.sum(done.failures, axis=-1).reshape(models, -1)

    def _decides(self, before: State, after: State) -> Array:
        """Whether something may be decided now."""
        environment = self.environment
        ended = jnp.sum(after.end_ms >= 0) + jnp.sum(after.failures)
        ended_before = jnp.sum(before.end_ms >= 0) + jnp.sum(before.failures)
        tick = after.now_ms % environment.tick_ms == 0
        lead = jnp.any(
            _near(after, environment.settings.lead_ms) & ~_near(before, environment.settings.lead_ms)
        )
        somebody = jnp.any(after.slot >= 0)
        return environment.over(after) | (somebody & (tick | lead | (ended > ended_before)))


def best_allowed(score: Array, allowed: Array) -> Array:
    """The allowed action with the best score, the first of equals."""
    return jnp.argmax(jnp.where(allowed, score, NEVER), axis=-1)


def _near(state: State, lead_ms: int) -> Array:
    """Which tenants are about to end: bool (K,)."""
    below = (state.left_ms < lead_ms) | ((state.left_ms == lead_ms) & (state.left_us == 0))
    return (state.tenant >= 0) & below
