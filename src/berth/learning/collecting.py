"""Many environments side by side under one network: what was seen, done and earned, as arrays over time.

Letters: E environments, L decisions of each, C actions.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from berth.learning.decisions import Decisions, Moment
from berth.learning.environment import State

__all__ = ["Taken", "World", "begin_world", "collect", "mean_return"]


class World(NamedTuple):
    """Environments under way."""

    states: State  # of E
    moments: Moment  # of E: what they show
    earned: Array  # float32 (E,): the return of the episode so far
    key: Array


class Taken(NamedTuple):
    """One decision in each environment; stacked over time, (L, E, …)."""

    moment: Moment
    action: Array  # int32 (E,)
    score: Array  # float32 (E, C): what the network said
    reward: Array  # float32 (E,)
    steps: Array  # float32 (E,): time that went by, in steps of the horizon
    over: Array  # bool (E,): the episode ended with it
    episode_return: Array  # float32 (E,): of the episode that ended, not a number where none did


def begin_world(decisions: Decisions, environments: int, key: Array) -> World:
    """E environments at the beginning of an episode each."""
    key, draw = jax.random.split(key)
    states = jax.vmap(decisions.fresh)(jax.random.split(draw, environments))
    return World(states, jax.vmap(decisions.see)(states), jnp.zeros(environments), key)


def collect(decisions: Decisions, world: World, policy, length: int) -> tuple[World, Taken]:  # type: ignore[no-untyped-def]
    """Go on for `length` decisions; `policy(moment, key)` gives the action and the scores in one environment."""
    environment = decisions.environment

    def move(world: World, _: None) -> tuple[World, Taken]:
        environments = world.earned.shape[0]
        key, draw, renew = jax.random.split(world.key, 3)
        action, score = jax.vmap(policy)(world.moments, jax.random.split(draw, environments))
        after, reward = jax.vmap(decisions.act)(world.states, action, world.moments.allowed)
        over = jax.vmap(environment.over)(after)
        steps = (after.now_ms - world.states.now_ms) / environment.task.step_ms
        earned = world.earned + reward
        taken = Taken(world.moments, action, score, reward, steps, over, jnp.where(over, earned, jnp.nan))
        states = jax.vmap(decisions.renewed)(after, jax.random.split(renew, environments))
        return World(states, jax.vmap(decisions.see)(states), jnp.where(over, 0.0, earned), key), taken

    return jax.lax.scan(move, world, None, length=length)


def mean_return(taken: Taken) -> Array:
    """Mean return of the episodes that ended; not a number where none did."""
    return jnp.nanmean(taken.episode_return)
