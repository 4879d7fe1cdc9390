"""`ppo`: proximal policy optimisation over the combinations that are allowed.

Schulman, Wolski, Dhariwal, Radford and Klimov, "Proximal Policy Optimization Algorithms", 2017, with generalised
advantages (Schulman et al., ICLR 2016) and the mask of Huang and Ontañón, "A closer look at invalid action masking in
policy gradient algorithms", FLAIRS 2022. Time discounts, not the number of decisions: many are taken at one moment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from berth.learning.collecting import Taken, World, begin_world, collect, mean_return
from berth.learning.decisions import NEVER, Decisions, Moment
from berth.learning.imitation import Imitation, imitated
from berth.learning.learner import Figures
from berth.network.features import Features
from berth.network.scores import Network, Sizes, new_network, scores

__all__ = ["Ppo", "PpoSettings", "PpoState"]


@dataclass(frozen=True, slots=True)
class PpoSettings:
    """How `ppo` learns."""

    environments: int = 32
    length: int = 64
    """Decisions of each environment in an iteration."""
    passes: int = 3
    """How often each decision is learned from."""
    parts: int = 4
    """Into so many parts each pass is divided."""
    learning_rate: float = 1e-3
    fading: int = 200
    """The learning rate falls evenly to a tenth over so many iterations."""
    half_steps: float = 100.0
    """A reward so many steps of the horizon away counts half."""
    trace: float = 0.97
    """λ: how far advantages look along what happened rather than to the critic."""
    clip: float = 0.2
    entropy: float = 0.003
    critic: float = 0.5
    largest_gradient: float = 0.5
    reward_scale: float = 0.05
    average: float = 0.95
    """What comes out is the mean of the actors, those of the last iterations above all: so much of it stays with
    each. One actor alone is as good or bad as its last episodes."""
    sizes: Sizes = field(default_factory=Sizes)
    imitation: Imitation = field(default_factory=Imitation)
    """How it begins."""


class PpoState(NamedTuple):
    """Everything that changes."""

    actor: Network
    average: Network
    critic: Network
    optimiser: optax.OptState
    world: World
    key: Array
    iteration: Array  # int32 ()


class Ppo:
    """The learner; see `Learner`."""

    name = "ppo"
    compiled = True

    def __init__(
        self, decisions: Decisions, settings: PpoSettings | None = None, *, start: Network | None = None
    ) -> None:
        self.decisions = decisions
        self.settings = settings or PpoSettings()
        self.start = start
        rate = optax.linear_schedule(
            self.settings.learning_rate,
            self.settings.learning_rate / 10,
            self.settings.fading * self.settings.passes * self.settings.parts,
        )
        self.optimiser = optax.chain(
            optax.clip_by_global_norm(self.settings.largest_gradient), optax.adam(rate, eps=1e-5)
        )

    def begin(self, seed: int) -> PpoState:
        """Two networks; the first is the one to start with, else has learned to do as `greedy` does."""
        settings = self.settings
        key, draw, copy = jax.random.split(jax.random.key(seed), 3)
        world = begin_world(self.decisions, settings.environments, draw)
        critic = jax.tree.map(jnp.asarray, new_network(seed + 1, settings.sizes))
        if self.start is None:
            actor = jax.tree.map(jnp.asarray, new_network(seed, settings.sizes))
            actor = imitated(self.decisions, actor, settings.imitation, copy)
        else:
            actor = jax.tree.map(jnp.asarray, self.start)
        return PpoState(actor, actor, critic, self.optimiser.init((actor, critic)), world, key, jnp.int32(0))

    def network(self, state: PpoState) -> Network:
        """The mean actor: the likelier an action, the higher its score."""
        return state.average

    def iterate(self, state: PpoState) -> tuple[PpoState, Figures]:
        """Play with the actor, then better both networks."""
        settings = self.settings

        def policy(moment: Moment, key: Array) -> tuple[Array, Array]:
            score = jnp.where(moment.allowed, scores(state.actor, moment.features, jnp), NEVER)
            return jax.random.categorical(key, score), score

        world, taken = collect(self.decisions, state.world, policy, settings.length)
        value = _values(state.critic, taken.moment.features)
        last = _values(state.critic, world.moments.features)
        advantage = self._advantages(taken, value, last)
        batch = (
            taken.moment.features,
            taken.moment.allowed,
            taken.action,
            _chosen(taken.score, taken.action),
        )
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (*batch, advantage, advantage + value))
        number = settings.environments * settings.length

        def part(carry, rows):  # type: ignore[no-untyped-def]
            networks, optimiser = carry
            some = jax.tree.map(lambda x: x[rows], flat)
            loss, gradient = jax.value_and_grad(self._loss)(networks, *some)
            change, optimiser = self.optimiser.update(gradient, optimiser, networks)
            return (optax.apply_updates(networks, change), optimiser), loss

        key, draw = jax.random.split(state.key)
        order = jnp.concatenate(
            [jax.random.permutation(one, number) for one in jax.random.split(draw, settings.passes)]
        ).reshape(settings.passes * settings.parts, -1)
        (networks, optimiser), losses = jax.lax.scan(
            part, ((state.actor, state.critic), state.optimiser), order
        )
        # At first it is the mean of all, so that it does not keep the one that began.
        stays = jnp.minimum(settings.average, (state.iteration + 1) / (state.iteration + 2))
        average = jax.tree.map(lambda old, new: stays * old + (1 - stays) * new, state.average, networks[0])
        after = PpoState(networks[0], average, networks[1], optimiser, world, key, state.iteration + 1)
        return after, Figures(mean_return(taken), jnp.mean(losses), jnp.float32(number))

    def _advantages(self, taken: Taken, value: Array, last: Array) -> Array:
        """Generalised advantages, (L, E)."""
        discount = jnp.where(taken.over, 0.0, 0.5 ** (taken.steps / self.settings.half_steps))
        follows = jnp.concatenate([value[1:], last[None]])
        surprise = taken.reward * self.settings.reward_scale + discount * follows - value

        def back(later: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
            here = now[0] + now[1] * self.settings.trace * later
            return here, here

        return jax.lax.scan(back, jnp.zeros_like(last), (surprise, discount), reverse=True)[1]

    def _loss(
        self,
        networks: tuple[Network, Network],
        seen: Features,
        allowed: Array,
        action: Array,
        before: Array,
        advantage: Array,
        outcome: Array,
    ) -> Array:
        settings = self.settings
        logs = jax.nn.log_softmax(jnp.where(allowed, scores(networks[0], seen, jnp), NEVER))
        ratio = jnp.exp(jnp.take_along_axis(logs, action[:, None], -1)[:, 0] - before)
        # Where only one action is allowed nothing is to be learned of how to choose.
        choice = jnp.sum(allowed, axis=-1) > 1
        weight = choice / jnp.maximum(jnp.sum(choice), 1)
        mean = jnp.sum(weight * advantage)
        spread = jnp.sqrt(jnp.sum(weight * (advantage - mean) ** 2))
        gain = (advantage - mean) / (spread + 1e-6)
        clipped = jnp.clip(ratio, 1 - settings.clip, 1 + settings.clip)
        actor = -jnp.sum(weight * jnp.minimum(ratio * gain, clipped * gain))
        entropy = -jnp.sum(weight * jnp.sum(jnp.where(allowed, jnp.exp(logs) * logs, 0.0), axis=-1))
        critic = jnp.mean(jnp.square(_values(networks[1], seen) - outcome))
        return actor - settings.entropy * entropy + settings.critic * critic


def _values(critic: Network, seen: Features) -> Array:
    """What is still to be earned: the critic's score of holding, which starts nobody, (...)."""
    holding = seen._replace(present=seen.present[..., :1, :], combination=seen.combination[..., :1, :])
    value: Array = scores(critic, holding, jnp)[..., 0]
    return value


def _chosen(score: Array, action: Array) -> Array:
    """The logarithm of the probability with which each action was taken."""
    return jnp.take_along_axis(jax.nn.log_softmax(score), action[..., None], -1)[..., 0]
