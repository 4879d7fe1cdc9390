"""`rollouts`: the network learns to start what rollouts say is best, in the moments that it comes to itself.

Approximate policy iteration by classification (Lagoudakis and Parr, "Reinforcement learning as classification",
ICML 2003) with the moments of DAgger (Ross, Gordon and Bagnell, "A reduction of imitation learning and structured
prediction to no-regret online learning", AISTATS 2011). What an action costs is exact (`berth.learning.rollouts`), so
that nothing has to be found out by chance; the network learns what can be seen of it without knowing the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from berth.interference import Speeds
from berth.kernels import FloatArray, IntArray
from berth.learning.jobsets import JobSets, Task
from berth.learning.learner import Figures
from berth.learning.queue_kernels import NONE, SEATS, SEEN, TRAITS
from berth.learning.rollouts import Rollouts, Worlds, habit
from berth.network.capacity import within
from berth.network.catalogue import Demand
from berth.network.combinations import combinations
from berth.network.features import Features, Scene, features, joint
from berth.network.scores import Network, Sizes, new_network, scores

__all__ = ["RolloutLearner", "RolloutSettings", "RolloutState"]

TOGETHER = 128
"""So many moments go through the features at once."""
NEVER = -1e30


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """How `rollouts` learns."""

    sets: int = 20
    """Sets of jobs that are played in an iteration."""
    taught: int = 2
    """In so many iterations of each model of interference the best is done; then what the network says."""
    stray: float = 0.12
    """How often anything else that is allowed is done."""
    ahead: int = 10
    """Jobs behind those that are seen which a rollout places as well."""
    draws: int = 2
    """Orders of these jobs that are tried."""
    choices: int = 16
    """Combinations of a moment that are learned from: the best one and others."""
    habits: int = 2
    """Habits that are looked for, besides the two that everybody has."""
    tries: int = 400
    """So many changes of each are tried, on `tuned_on` sets."""
    tuned_on: int = 25
    passes: int = 4
    batch: int = 128
    learning_rate: float = 1.5e-3
    fading: int = 60
    """The learning rate falls evenly to a twentieth over so many iterations."""
    unit_s: float = 10.0
    """A second that is lost costs one over so many."""
    softness_s: float = 4.0
    """The network is also to prefer what is nearly as good, about as much."""
    soft: float = 0.2
    """Weight of that."""
    refused_s: float = 30.0
    """What a demand of peak or mean offers though memory would run out, or all would end later than in turn, is taught
    as so much worse than the worst of the others."""
    sizes: Sizes = field(default_factory=Sizes)


class RolloutState(NamedTuple):
    """Everything that changes."""

    network: Network
    optimiser: optax.OptState
    habits: Array  # float32 (I, B, 2, F): of each model of interference
    seed: Array  # int32 ()
    iteration: Array  # int32 ()


class Seen(NamedTuple):
    """Moments to learn from."""

    features: Features
    there: Any  # bool (N, choices)
    worth_s: Any  # float32 (N, choices)


class RolloutLearner:
    """The learner; see `Learner`. Its iterations run on the processor and are not compiled as a whole."""

    name = "rollouts"
    compiled = False

    def __init__(
        self,
        task: Task,
        speeds: Sequence[Speeds],
        sets: JobSets,
        settings: RolloutSettings | None = None,
        *,
        start: Network | None = None,
        demand: Demand = "series",
    ) -> None:
        self.start = start
        self.demand = demand
        self.settings = settings or RolloutSettings()
        self.sets = sets
        self.models = [Rollouts(task, one) for one in speeds]
        self.catalogue = task.catalogue(demand)
        steps = (
            -(-self.settings.sets * 60 // self.settings.batch) * self.settings.passes * self.settings.fading
        )
        rate = optax.linear_schedule(self.settings.learning_rate, self.settings.learning_rate / 20, steps)
        self.optimiser = optax.adam(rate)
        self._update = jax.jit(self._updated)

    def begin(self, seed: int) -> RolloutState:
        """The network to start with, else one that knows nothing; and habits that suit the sets."""
        network = jax.tree.map(jnp.asarray, self.start or new_network(seed, self.settings.sizes))
        habits = jnp.stack([jnp.asarray(self._tuned(model, seed), jnp.float32) for model in self.models])
        return RolloutState(network, self.optimiser.init(network), habits, jnp.int32(seed), jnp.int32(0))

    def network(self, state: RolloutState) -> Network:
        """The network as it is."""
        return state.network

    def iterate(self, state: RolloutState) -> tuple[RolloutState, Figures]:
        """Play some sets under one of the models, and learn what would have been best at each moment."""
        settings, iteration = self.settings, int(state.iteration)
        draw = np.random.default_rng([int(state.seed), iteration])
        number = iteration % len(self.models)
        habits = np.asarray(state.habits[number], np.float64)
        rows = draw.choice(len(self.sets.work_ms), min(settings.sets, len(self.sets.work_ms)), replace=False)
        sets = JobSets(self.sets.application[rows], self.sets.work_ms[rows])
        network = jax.tree.map(np.asarray, state.network)
        taught = iteration < settings.taught * len(self.models)
        seen, total_ms = self._played(self.models[number], sets, habits, None if taught else network, draw)
        network, optimiser, losses = state.network, state.optimiser, []
        moments = len(seen.there)
        batch = min(settings.batch, moments)
        for _ in range(settings.passes):
            order = draw.permutation(moments)
            for begin in range(0, moments - batch + 1, batch):
                some = jax.tree.map(lambda x, at=order[begin : begin + batch]: x[at], seen)
                network, optimiser, loss = self._update(network, optimiser, some)
                losses.append(float(loss))
        saved = (sets.work_ms.sum(axis=1) - total_ms) / self.models[number].task.step_ms
        after = RolloutState(network, optimiser, state.habits, state.seed, state.iteration + 1)
        figures = float(np.mean(saved)), float(np.mean(losses)), float(moments)
        return after, Figures(*map(jnp.float32, figures))

    def total_ms(self, network: Network, sets: JobSets) -> IntArray:
        """Total time of each set under each of the I models of interference if the network decides, (I, N)."""
        return np.stack([self._decided(model, sets, network) for model in self.models])

    def _played(
        self,
        model: Rollouts,
        sets: JobSets,
        habits: FloatArray,
        network: Network | None,
        draw: np.random.Generator,
    ) -> tuple[Seen, IntArray]:
        """Each moment of some sets under way; without a network the best is done."""
        worlds, found = model.begin(sets), []
        while not worlds.over.all():
            action, rows, here, offered = self._asked(model, worlds)
            if not len(rows):
                worlds = model.advance(worlds, action)
                continue
            may = here.allowed
            worth_s = model.worth_s(
                here, habits, self.settings.ahead, self.settings.draws, int(draw.integers(1 << 30))
            )
            worst_s = np.max(worth_s, axis=1, where=may, initial=0.0)[:, None] + self.settings.refused_s
            worth_s = np.where(offered & ~may, worst_s, worth_s)
            scene = model.scene(here, self.catalogue)
            turn = np.where(offered, draw.random(offered.shape), 2.0)
            best = worth_s.argmin(axis=1)
            turn[np.arange(len(rows)), best] = -1
            masks = np.argsort(turn, axis=1)[:, : self.settings.choices]
            there, can = (np.take_along_axis(which, masks, axis=1) for which in (offered, may))
            shown = self._features(model, scene, np.where(there, masks, masks[:, :1]))
            found.append(Seen(shown, there, np.take_along_axis(worth_s, masks, axis=1)))
            score = np.where(can, -np.take_along_axis(worth_s, masks, axis=1), -np.inf)
            if network is not None:
                score = np.where(can, scores(network, shown, np), -np.inf)
            strays = (draw.random(len(rows)) < self.settings.stray)[:, None]
            score = np.where(strays & can, draw.random(there.shape), score)
            action[rows] = np.take_along_axis(masks, score.argmax(axis=1)[:, None], axis=1)[:, 0]
            worlds = model.advance(worlds, action)
        joined: Seen = jax.tree.map(lambda *parts: np.concatenate(parts), *found)
        worth = np.where(joined.there, joined.worth_s, 0).astype(np.float32)
        return joined._replace(worth_s=worth), worlds.now_ms

    def _decided(self, model: Rollouts, sets: JobSets, network: Network) -> IntArray:
        network = jax.tree.map(np.asarray, network)
        worlds = model.begin(sets)
        while not worlds.over.all():
            action, rows, here, _ = self._asked(model, worlds)
            if len(rows):
                width = int(here.allowed.sum(axis=1).max())
                masks = np.argsort(~here.allowed, axis=1, kind="stable")[:, :width]
                there = np.take_along_axis(here.allowed, masks, axis=1)
                scene = model.scene(here, self.catalogue)
                shown = self._features(model, scene, np.where(there, masks, masks[:, :1]))
                best = np.where(there, scores(network, shown, np), -np.inf).argmax(axis=1)
                action[rows] = masks[np.arange(len(rows)), best]
            worlds = model.advance(worlds, action)
        return worlds.now_ms

    def _asked(self, model: Rollouts, worlds: Worlds) -> tuple[IntArray, IntArray, Worlds, NDArray[np.bool_]]:
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
        offered = within(model.scene(here, self.catalogue), members) & ~again  # of equal jobs the first
        offered[:, 0] = here.allowed[:, 0]
        may = offered & here.allowed
        action[rows] = may.argmax(axis=1)
        chooses = offered.sum(axis=1) > 1
        here = replace(here, allowed=may).take(np.flatnonzero(chooses))
        return action, rows[chooses], here, offered[chooses]

    def _features(self, model: Rollouts, scene: Scene, masks: IntArray) -> Features:
        parts = []
        for begin in range(0, len(masks), TOGETHER):
            some = slice(begin, begin + TOGETHER)
            values: list[Any] = [value[some] if isinstance(value, np.ndarray) else value for value in scene]
            part = Scene(*values)
            members = combinations(SEEN)[masks[some]]
            parts.append(features(part, members, joint(part, members, model.speeds, SEATS, np), np))
        return Features(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _updated(
        self, network: Network, optimiser: optax.OptState, seen: Seen
    ) -> tuple[Network, optax.OptState, Array]:
        loss, gradient = jax.value_and_grad(self._loss)(network, seen)
        change, optimiser = self.optimiser.update(gradient, optimiser, network)
        return optax.apply_updates(network, change), optimiser, loss

    def _loss(self, network: Network, seen: Seen) -> Array:
        """What the network's choice loses on average, and how far it is from preferring what is nearly as good."""
        settings = self.settings
        logs = jax.nn.log_softmax(jnp.where(seen.there, scores(network, seen.features, jnp), NEVER))
        least = jnp.min(jnp.where(seen.there, seen.worth_s, jnp.inf), axis=-1, keepdims=True)
        lost = jnp.where(seen.there, seen.worth_s - least, 0.0)
        wanted = jax.nn.softmax(jnp.where(seen.there, -lost / settings.softness_s, NEVER))
        nearly = -jnp.sum(wanted * jnp.where(seen.there, logs, 0.0), axis=-1)
        return jnp.mean(jnp.sum(jnp.exp(logs) * lost, axis=-1) / settings.unit_s + settings.soft * nearly)

    def _tuned(self, model: Rollouts, seed: int) -> FloatArray:
        """The two habits that everybody has (mean speeds; joint progress), and others that do better on some sets.

        Each of these is changed at random, and the change kept where the least over all habits becomes less.
        """
        draw = np.random.default_rng([seed, 1])
        rows = draw.choice(
            len(self.sets.work_ms), min(self.settings.tuned_on, len(self.sets.work_ms)), replace=False
        )
        sets = JobSets(self.sets.application[rows], self.sets.work_ms[rows])
        alone_ms = sets.work_ms.sum(axis=1)
        habits = [habit((1, 1.0)), habit((0, 1.0))]
        least = np.min([model.habit_ms(one, sets) / alone_ms for one in habits], axis=0)
        for _ in range(self.settings.habits):
            chosen, size = habits[0], 0.5
            worth = np.minimum(least, model.habit_ms(chosen, sets) / alone_ms)
            for _ in range(self.settings.tries):
                tried = chosen + draw.normal(0, size, (2, TRAITS)) * (draw.random((2, TRAITS)) < 0.3)
                found = np.minimum(least, model.habit_ms(tried, sets) / alone_ms)
                better = found.mean() < worth.mean()
                size = min(size * 1.3, 1.0) if better else max(size * 0.985, 0.05)
                chosen, worth = (tried, found) if better else (chosen, worth)
            habits.append(chosen)
            least = worth
        return np.stack(habits)
