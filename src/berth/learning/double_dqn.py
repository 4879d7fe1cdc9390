"""`double-dqn`: Q-learning with a slow second network and replay, over the combinations that are allowed.

Van Hasselt, Guez and Silver, "Deep Reinforcement Learning with Double Q-learning", AAAI 2016, on returns of several
decisions (Hessel et al., "Rainbow", AAAI 2018). Time discounts, not the number of decisions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from berth.learning.collecting import Taken, World, begin_world, collect, mean_return
from berth.learning.decisions import Decisions, Moment, best_allowed
from berth.learning.imitation import Imitation, imitated
from berth.learning.learner import Figures
from berth.network.scores import Network, Sizes, new_network, scores

__all__ = ["DoubleDqn", "DoubleDqnSettings", "DoubleDqnState"]


@dataclass(frozen=True, slots=True)
class DoubleDqnSettings:
    """How `double-dqn` learns."""

    environments: int = 32
    length: int = 16
    """Decisions of each environment in an iteration."""
    memory: int = 256
    """So many decisions of each environment are remembered; a multiple of `length`."""
    ahead: int = 8
    """Rewards of so many decisions are added up before the network says what follows."""
    updates: int = 12
    """Batches learned from in an iteration."""
    batch: int = 256
    learning_rate: float = 5e-4
    half_steps: float = 100.0
    """A reward so many steps of the horizon away counts half."""
    slow: float = 0.01
    """How far the second network follows the first with each batch."""
    explore_first: float = 0.2
    explore_last: float = 0.02
    """How often any allowed action is taken, at first and after `exploring` iterations."""
    exploring: int = 200
    largest_gradient: float = 5.0
    reward_scale: float = 0.05
    sizes: Sizes = field(default_factory=Sizes)
    imitation: Imitation = field(default_factory=Imitation)
    """How it begins."""


class DoubleDqnState(NamedTuple):
    """Everything that changes."""

    fast: Network
    slow: Network
    optimiser: optax.OptState
    world: World
    memory: Taken  # (memory, E, …): a ring
    key: Array
    iteration: Array  # int32 ()


class DoubleDqn:
    """The learner; see `Learner`."""

    name = "double-dqn"
    compiled = True

    def __init__(
        self, decisions: Decisions, settings: DoubleDqnSettings | None = None, *, start: Network | None = None
    ) -> None:
        self.decisions = decisions
        self.settings = settings or DoubleDqnSettings()
        self.start = start
        self.optimiser = optax.chain(
            optax.clip_by_global_norm(self.settings.largest_gradient),
            optax.adam(self.settings.learning_rate),
        )

    def begin(self, seed: int) -> DoubleDqnState:
        """The network to start with, else one that does as `greedy` does, and an empty memory."""
        settings = self.settings
        key, draw, copy = jax.random.split(jax.random.key(seed), 3)
        world = begin_world(self.decisions, settings.environments, draw)
        if self.start is None:
            network = jax.tree.map(jnp.asarray, new_network(seed, settings.sizes))
            network = imitated(self.decisions, network, settings.imitation, copy)
        else:
            network = jax.tree.map(jnp.asarray, self.start)
        _, shape = jax.eval_shape(lambda world: self._played(network, world, jnp.float32(1.0)), world)
        memory = jax.tree.map(lambda x: jnp.zeros((settings.memory, *x.shape[1:]), x.dtype), shape)
        return DoubleDqnState(
            network, network, self.optimiser.init(network), world, memory, key, jnp.int32(0)
        )

    def network(self, state: DoubleDqnState) -> Network:
        """The network whose scores are Q."""
        return state.fast

    def iterate(self, state: DoubleDqnState) -> tuple[DoubleDqnState, Figures]:
        """Play, remember, and learn from what is remembered."""
        settings = self.settings
        part = jnp.minimum(state.iteration / settings.exploring, 1.0)
        explore = settings.explore_first + (settings.explore_last - settings.explore_first) * part
        world, taken = self._played(state.fast, state.world, explore)
        place = state.iteration * settings.length % settings.memory
        memory = jax.tree.map(
            lambda ring, new: jax.lax.dynamic_update_slice_in_dim(ring, new, place, 0), state.memory, taken
        )
        filled = jnp.minimum((state.iteration + 1) * settings.length, settings.memory)
        oldest = jnp.where(filled == settings.memory, place + settings.length, 0)

        def learn(carry, draw):  # type: ignore[no-untyped-def]
            fast, slow, optimiser = carry
            at, who = jax.random.split(draw)
            age = jax.random.randint(at, (settings.batch,), 0, filled - settings.ahead)
            lane = jax.random.randint(who, (settings.batch,), 0, settings.environments)
            loss, gradient = jax.value_and_grad(self._loss)(fast, slow, memory, oldest + age, lane)
            change, optimiser = self.optimiser.update(gradient, optimiser, fast)
            fast = optax.apply_updates(fast, change)
            slow = jax.tree.map(lambda old, new: old + settings.slow * (new - old), slow, fast)
            return (fast, slow, optimiser), loss

        key, draw = jax.random.split(state.key)
        (fast, slow, optimiser), losses = jax.lax.scan(
            learn, (state.fast, state.slow, state.optimiser), jax.random.split(draw, settings.updates)
        )
        after = DoubleDqnState(fast, slow, optimiser, world, memory, key, state.iteration + 1)
        number = jnp.float32(settings.environments * settings.length)
        return after, Figures(mean_return(taken), jnp.mean(losses), number)

    def _played(self, network: Network, world: World, explore: Array) -> tuple[World, Taken]:
        def policy(moment: Moment, key: Array) -> tuple[Array, Array]:
            score = scores(network, moment.features, jnp)
            other = jax.random.uniform(key, score.shape)
            strays = jax.random.bernoulli(jax.random.fold_in(key, 1), explore)
            return best_allowed(jnp.where(strays, other, score), moment.allowed), score

        return collect(self.decisions, world, policy, self.settings.length)

    def _loss(self, fast: Network, slow: Network, memory: Taken, first: Array, lane: Array) -> Array:
        """The error of Q against the rewards of some decisions and what the second network says of the moment then."""
        settings = self.settings
        rows = (first[:, None] + jnp.arange(settings.ahead)[None]) % settings.memory  # (B, ahead)
        reward, steps, over = (
            part[rows, lane[:, None]] for part in (memory.reward, memory.steps, memory.over)
        )
        discount = jnp.where(over, 0.0, 0.5 ** (steps / settings.half_steps))
        reached = jnp.cumprod(discount, axis=-1)
        before = jnp.concatenate([jnp.ones_like(reached[:, :1]), reached[:, :-1]], axis=-1)
        then = (first + settings.ahead) % settings.memory
        moment = jax.tree.map(lambda x: x[then, lane], memory.moment)
        choice = best_allowed(scores(fast, moment.features, jnp), moment.allowed)
        follows = jnp.take_along_axis(scores(slow, moment.features, jnp), choice[:, None], -1)[:, 0]
        target = jnp.sum(reward * before, axis=-1) * settings.reward_scale + reached[:, -1] * follows
        seen = jax.tree.map(lambda x: x[first % settings.memory, lane], memory.moment.features)
        action = memory.action[first % settings.memory, lane]
        found = jnp.take_along_axis(scores(fast, seen, jnp), action[:, None], -1)[:, 0]
        return jnp.mean(optax.huber_loss(found, jax.lax.stop_gradient(target)))
