"""`dqn`: the thesis's algorithm 1 on its images, by either sign of its equation 2.

Oh 2019, section IV.2, figure 6. In each iteration N trajectories about each of some sets of jobs give the empirical
discounted returns v, the network the predictions q, and the weights move by α·∇log π(s, a)·(q − v). As printed that
is prediction minus outcome, which makes actions that turn out better than predicted less likely; `mended` takes
outcome minus prediction. Where the thesis is silent: the predictions are a second output of the network, drawn to v by
least squares; actions are drawn from π rather than taken by the largest q, since a policy's gradient needs trajectories
of that policy; Adam takes the steps. All trajectories have L steps: one that is through begins again with the same
set, and of what is not through at the end nothing is learned, so that every v is of a whole trajectory. Letters: E
trajectories side by side, L steps, C actions, H steps of the horizon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from berth.learning.environment import Environment, Observation, State
from berth.learning.jobsets import JobSets
from berth.learning.learner import Figures
from berth.network.ranks import to_rank
from berth_papers.baselines.images import ImageModel

NEVER = -1e30


@dataclass(frozen=True, slots=True)
class PaperSettings:
    """How `dqn` learns."""

    trajectories: int = 8
    """N: trajectories for each set of jobs."""
    sets: int = 4
    """Sets of jobs in an iteration."""
    length: int = 512
    """Steps of each trajectory in an iteration."""
    hidden: int = 32
    learning_rate: float = 3e-3
    discount: float = 0.99
    """γ, of one step of the horizon's time."""
    return_scale: float = 0.05
    mended: bool = True
    """Outcome minus prediction; False: prediction minus outcome, as printed."""


class ImageNetwork(NamedTuple):
    """One hidden layer over the images of the cluster, of every virtual job slot, and the backlog."""

    cluster: Array  # float32 (H·4, hidden)
    virtual: Array  # float32 (C, H·4, hidden)
    backlog: Array  # float32 (2, hidden)
    bias: Array  # float32 (hidden,)
    action: Array  # float32 (hidden, C)
    prediction: Array  # float32 (hidden,)
    level: Array  # float32 ()
    offset: Array  # float32 (C,)


class ImageState(NamedTuple):
    """Everything that changes."""

    network: ImageNetwork
    optimiser: optax.OptState
    key: Array


class _Step(NamedTuple):
    seen: Observation
    action: Array
    reward: Array
    steps: Array
    over: Array
    episode_return: Array


class ImageLearner:
    """The learner; its network is of images and of one number of slots, so that no policy but itself decides by it."""

    name = "dqn"
    compiled = True

    def __init__(
        self, environment: Environment, sets: JobSets, settings: PaperSettings | None = None
    ) -> None:
        self.environment = environment
        self.sets = JobSets(*map(jnp.asarray, sets))
        self.settings = settings or PaperSettings()
        self.optimiser = optax.adam(self.settings.learning_rate)

    def begin(self, seed: int) -> ImageState:
        """An untrained network."""
        settings = self.settings
        key, draw = jax.random.split(jax.random.key(seed))
        first, second, third = jax.random.split(draw, 3)
        pixels, actions, hidden = self.environment.task.horizon * 4, self.environment.actions, settings.hidden
        inputs = pixels * (1 + actions)
        network = ImageNetwork(
            jax.random.normal(first, (pixels, hidden)) * (2 / inputs) ** 0.5,
            jax.random.normal(second, (actions, pixels, hidden)) * (2 / inputs) ** 0.5,
            jnp.zeros((2, hidden)),
            jnp.zeros(hidden),
            jax.random.normal(third, (hidden, actions)) * 0.01,
            jnp.zeros(hidden),
            jnp.zeros(()),
            jnp.zeros(actions),
        )
        return ImageState(network, self.optimiser.init(network), key)

    def network(self, state: ImageState) -> ImageNetwork:
        """The network as it is now."""
        return state.network

    def iterate(self, state: ImageState) -> tuple[ImageState, Figures]:
        """Play N trajectories about each of the sets, then move the weights once."""
        settings, environment = self.settings, self.environment
        key, choice, play = jax.random.split(state.key, 3)
        begun = self._fresh(choice)
        count = settings.sets * settings.trajectories

        def move(carry, draw):  # type: ignore[no-untyped-def]
            states, earned = carry
            seen = jax.vmap(environment.observe)(states)
            score, _ = self.outputs(state.network, seen)
            action = jax.random.categorical(draw, jnp.where(seen.mask, score, NEVER))
            after, reward = jax.vmap(environment.step)(states, action, seen.mask)
            over = jax.vmap(environment.over)(after)
            steps = (after.now_ms - states.now_ms) / environment.task.step_ms
            earned = earned + reward
            step = _Step(seen, action, reward, steps, over, jnp.where(over, earned, jnp.nan))
            states = jax.tree.map(
                lambda new, old: jnp.where(over.reshape(-1, *[1] * (old.ndim - 1)), new, old), begun, after
            )
            return (states, jnp.where(over, 0.0, earned)), step

        carry = (begun, jnp.zeros(count))
        _, taken = jax.lax.scan(move, carry, jax.random.split(play, settings.length))
        outcome, whole = self._outcomes(taken)
        loss, gradient = jax.value_and_grad(self._loss)(state.network, taken, outcome, whole)
        change, optimiser = self.optimiser.update(gradient, state.optimiser, state.network)
        network = optax.apply_updates(state.network, change)
        figures = Figures(jnp.nanmean(taken.episode_return), loss, jnp.float32(settings.length * count))
        return ImageState(network, optimiser, key), figures

    def outputs(self, network: ImageNetwork, seen: Observation) -> tuple[Array, Array]:
        """Scores of the actions (…, C) and the predicted return (…); a softmax of the scores is π.

        The image of a virtual slot is the sum of its members' images, so that its weights may be added up over the
        slots that each job is in: the same function, at a cost that does not grow with 2^M.
        """
        environment = self.environment
        scale = 1 / environment.capacity.astype(jnp.float32)
        shape = seen.cluster.shape[:-2]
        cluster = (seen.cluster * to_rank(scale, seen.cluster.ndim)).reshape(*shape, -1)
        jobs = (seen.jobs * to_rank(scale, seen.jobs.ndim)).reshape(*shape, -1)  # (..., M·H·4)
        slots = environment.settings.slots
        members = environment.members.astype(jnp.float32)
        weight = jnp.tensordot(members.T, network.virtual, axes=1)  # (M, H·4, hidden)
        hidden = cluster @ network.cluster + jobs @ weight.reshape(slots * weight.shape[1], -1)
        hidden = hidden + seen.backlog.astype(jnp.float32) @ network.backlog * 0.01
        hidden = hidden + to_rank(network.bias, hidden.ndim)
        hidden = jnp.maximum(hidden, 0)
        offset = to_rank(network.offset, hidden.ndim)
        return hidden @ network.action + offset, hidden @ network.prediction + network.level

    def model(
        self,
        network: ImageNetwork,
        step_ms: int,
        interference: tuple[str, ...],
        figures: Mapping[str, float],
        command: str,
    ) -> ImageModel:
        """What the policy `dqn` decides by: weights of each job slot, those of its virtual slots added up."""
        members = np.asarray(self.environment.members, np.float32)
        jobs = np.tensordot(members.T, np.asarray(network.virtual), axes=1)
        parts = (network.cluster, jobs, network.backlog, network.bias, network.action, network.offset)
        cluster, jobs, backlog, bias, action, offset = (np.asarray(part, np.float64) for part in parts)
        return ImageModel(
            cluster, jobs, backlog, bias, action, offset, step_ms, interference, "dqn", figures, command
        )

    def played(self, network: ImageNetwork, sets: JobSets) -> tuple[Array, Array]:
        """Total time and failures of each set when the likeliest action is taken: int32 (I, N), under each model."""
        environment = self.environment

        def move(state: State) -> State:
            seen = environment.observe(state)
            score, _ = self.outputs(network, seen)
            action = jnp.argmax(jnp.where(seen.mask, score, NEVER))
            return environment.step(state, action, seen.mask)[0]

        models = len(environment.models)
        reset = jax.vmap(jax.vmap(environment.reset, (0, None)), (None, 0))
        states = reset(JobSets(*map(jnp.asarray, sets)), jnp.arange(models))
        states = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), states)
        # A policy that holds where it could start goes on for ever only if no job runs, which the mask forbids.
        done = jax.lax.while_loop(
            lambda now: ~jnp.all(jax.vmap(environment.over)(now)), jax.vmap(move), states
        )
        return done.now_ms.reshape(models, -1), jnp.sum(done.failures, axis=-1).reshape(models, -1)

    def _fresh(self, key: Array) -> State:
        """N trajectories about each of some sets, all of a set under the same model of interference; both drawn."""
        settings = self.settings
        sets, models = jax.random.split(key)
        at = jax.random.randint(sets, (settings.sets,), 0, self.sets.application.shape[0])
        model = jax.random.randint(models, (settings.sets,), 0, len(self.environment.models))
        at, model = (jnp.repeat(one, settings.trajectories) for one in (at, model))
        return jax.vmap(self.environment.reset)(JobSets(*(part[at] for part in self.sets)), model)

    def _outcomes(self, taken: _Step) -> tuple[Array, Array]:
        """The empirical discounted returns v, and whether the trajectory came to its end: (L, E) both."""
        settings = self.settings
        discount = jnp.where(taken.over, 0.0, settings.discount**taken.steps)

        def back(follows: tuple[Array, Array], now: tuple[Array, Array, Array]):  # type: ignore[no-untyped-def]
            reward, keeps, over = now
            here = (reward * settings.return_scale + keeps * follows[0], follows[1] | over)
            return here, here

        count = taken.over.shape[1]
        last = (jnp.zeros(count), jnp.zeros(count, bool))
        found: tuple[Array, Array] = jax.lax.scan(
            back, last, (taken.reward, discount, taken.over), reverse=True
        )[1]
        return found

    def _loss(self, network: ImageNetwork, taken: _Step, outcome: Array, whole: Array) -> Array:
        score, prediction = self.outputs(network, taken.seen)
        logs = jax.nn.log_softmax(jnp.where(taken.seen.mask, score, NEVER))
        log = jnp.take_along_axis(logs, taken.action[..., None], -1)[..., 0]
        better = jax.lax.stop_gradient(outcome - prediction)
        sign = 1.0 if self.settings.mended else -1.0
        weight = whole / jnp.maximum(jnp.sum(whole), 1)
        return -sign * jnp.sum(weight * log * better) + 0.5 * jnp.sum(
            weight * jnp.square(prediction - outcome)
        )
