"""How a learner begins: as the predicted joint progress would choose, which is what `greedy` goes by.

It is no secret teacher: everything that it knows is among the network's own features. What is learned afterwards is
what the network adds to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from jax import Array

from berth.learning.collecting import begin_world, collect
from berth.learning.decisions import NEVER, Decisions, Moment, best_allowed
from berth.network.scores import Network, scores

__all__ = ["Imitation", "imitated"]


@dataclass(frozen=True, slots=True)
class Imitation:
    """How long it is imitated."""

    length: int = 100
    """Decisions of each environment that are looked at; 0: the network begins as it was drawn."""
    environments: int = 16
    batches: int = 300
    batch: int = 256
    learning_rate: float = 2e-3
    stray: float = 0.15
    """How often something else that is allowed is done, so that other moments are seen too."""
    sharpness: float = 0.02
    """Scores are to differ by so much for a difference of one per mille in joint progress."""


def imitated(decisions: Decisions, network: Network, settings: Imitation, key: Array) -> Network:
    """The network after it has learned to prefer what joint progress prefers, about as much as that does."""
    if settings.length == 0:
        return network
    optimiser = optax.adam(settings.learning_rate)

    def policy(moment: Moment, draw: Array) -> tuple[Array, Array]:
        other = jax.random.uniform(draw, moment.allowed.shape)
        strays = jax.random.bernoulli(jax.random.fold_in(draw, 1), settings.stray)
        action = best_allowed(jnp.where(strays, other, moment.together_milli), moment.allowed)
        return action, moment.together_milli

    def loss(network: Network, moment: Moment) -> Array:
        logs = jax.nn.log_softmax(jnp.where(moment.allowed, scores(network, moment.features, jnp), NEVER))
        wanted = jnp.where(moment.allowed, moment.together_milli * settings.sharpness, NEVER)
        return -jnp.mean(jnp.sum(jax.nn.softmax(wanted) * jnp.where(moment.allowed, logs, 0.0), axis=-1))

    @jax.jit
    def learn(network: Network, key: Array) -> Network:
        play, key = jax.random.split(key)
        world = begin_world(decisions, settings.environments, play)
        _, taken = collect(decisions, world, policy, settings.length)
        seen = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), taken.moment)

        def batch(carry, draw):  # type: ignore[no-untyped-def]
            network, state = carry
            rows = jax.random.randint(draw, (settings.batch,), 0, settings.length * settings.environments)
            gradient = jax.grad(loss)(network, jax.tree.map(lambda x: x[rows], seen))
            change, state = optimiser.update(gradient, state, network)
            return (optax.apply_updates(network, change), state), None

        carry = (network, optimiser.init(network))
        after: Network = jax.lax.scan(batch, carry, jax.random.split(key, settings.batches))[0][0]
        return after

    begun: Network = learn(network, key)
    return begun
