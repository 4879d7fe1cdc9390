"""`rollouts`: the network learns to start what rollouts say is best, in the moments that it comes to itself.

Approximate policy iteration by classification (Lagoudakis and Parr, "Reinforcement learning as classification",
ICML 2003) with the moments of DAgger (Ross, Gordon and Bagnell, "A reduction of imitation learning and structured
prediction to no-regret online learning", AISTATS 2011). What an action costs is exact (`berth.learning.rollouts`), so
that nothing has to be found out by chance; the network learns what can be seen of it without knowing the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
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
from berth.network.features import Features, Scene, features, joint, most_tenants
from berth.network.scores import Network, Sizes, new_network, scores

__all__ = ["RolloutLearner", "RolloutSettings", "RolloutState"]

TOGETHER = 128
"""So many moments go through the features at once."""
ROWS, WIDTHS, PLACES = (16, 256), (12, 1 << SEEN), (5, SEATS)
"""Moments, combinations of each and seats that the network is compiled for: the next larger ones are used."""
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
    followed_from: int = 60
    """From this iteration on what a start is worth is found by following the network itself as well, whose continuation
    is better than any habit's once it has learned something."""
    followed: int = 4
    """So many of what the network would do best, and two others, are followed then, and learned from alone."""
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
        self._score = [jax.jit(partial(_scored, one, task.step_ms), static_argnums=3) for one in speeds]

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
        model = self.models[number]
        every, offered, total_ms = self._played(model, sets, habits, None if taught else network, draw)
        follows = iteration >= settings.followed_from
        seen = self._judged(model, every, offered, habits, network if follows else None, draw)
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
        return np.stack([self.decided_ms(model, model.begin(sets), network) for model in self.models])

    def _played(
        self,
        model: Rollouts,
        sets: JobSets,
        habits: FloatArray,
        network: Network | None,
        draw: np.random.Generator,
    ) -> tuple[Worlds, NDArray[np.bool_], IntArray]:
        """The moments of some sets under way, what is offered in each, and each set's total time, in ms.

        Without a network the best by habits is done.
        """
        settings, worlds = self.settings, model.begin(sets)
        moments: list[Worlds] = []
        offers: list[NDArray[np.bool_]] = []
        while not worlds.over.all():
            action, rows, here, offered = self._asked(model, worlds)
            if len(rows):
                moments.append(here)
                offers.append(offered)
                masks, there = _listed(here.allowed)
                if network is None:
                    seed = int(draw.integers(1 << 30))
                    worth_s = model.worth_s(here, habits, settings.ahead, settings.draws, seed)
                    score = -np.take_along_axis(worth_s, masks, axis=1)
                else:
                    score = self._scores(model, network, here, masks)
                strays = (draw.random(len(rows)) < settings.stray)[:, None]
                score = np.where(there, np.where(strays, draw.random(there.shape), score), -np.inf)
                action[rows] = _best(masks, score)
            worlds = model.advance(worlds, action)
        return Worlds.joined(moments), np.concatenate(offers), worlds.now_ms

    def _judged(
        self,
        model: Rollouts,
        worlds: Worlds,
        offered: NDArray[np.bool_],
        habits: FloatArray,
        network: Network | None,
        draw: np.random.Generator,
    ) -> Seen:
        """What some of what is offered (W, C) costs: by habits, and by the network where there is one."""
        settings, seed = self.settings, int(draw.integers(1 << 30))
        worth_s = model.worth_s(worlds, habits, settings.ahead, settings.draws, seed)
        worst_s = np.max(worth_s, axis=1, where=worlds.allowed, initial=0.0)[:, None] + settings.refused_s
        worth_s = np.where(offered & ~worlds.allowed, worst_s, worth_s)
        turn = np.where(offered, draw.random(offered.shape), 2.0)  # any of them, but first the best by habits
        np.put_along_axis(turn, worth_s.argmin(axis=1)[:, None], -1.0, axis=1)
        choices = settings.choices
        if network is not None:
            masks, there = _listed(worlds.allowed)
            score = np.where(there, self._scores(model, network, worlds, masks), -np.inf)
            best = np.argsort(-score, axis=1, kind="stable")[:, : settings.followed]
            np.put_along_axis(turn, np.take_along_axis(masks, best, axis=1), -2.0, axis=1)
            choices = settings.followed + 2
        masks = np.argsort(turn, axis=1)[:, :choices]
        there = np.take_along_axis(offered, masks, axis=1)
        if network is not None:
            real = there & np.take_along_axis(worlds.allowed, masks, axis=1)
            self._follow(model, network, worlds, masks, real, worth_s, seed)
        shown = self._features(model, worlds, np.where(there, masks, masks[:, :1]))
        worth = np.where(there, np.take_along_axis(worth_s, masks, axis=1), 0).astype(np.float32)
        return Seen(shown, there, worth)

    def _follow(
        self,
        model: Rollouts,
        network: Network,
        worlds: Worlds,
        masks: IntArray,
        real: NDArray[np.bool_],
        worth_s: FloatArray,
        seed: int,
    ) -> None:
        """Lower what these combinations (W, C') of each world cost (W, C) where the network itself goes on better."""
        settings = self.settings
        world, at = np.nonzero(real)
        action = masks[world, at]
        total = np.zeros(len(world))
        for drawn in model.drawn(worlds, settings.ahead, settings.draws, seed):
            after = model.advance(drawn.take(world), action)
            total += self.decided_ms(model, after, network) / (1000 * settings.draws)
        worth_s[world, action] = np.minimum(worth_s[world, action], total)

    def decided_ms(self, model: Rollouts, worlds: Worlds, network: Network) -> IntArray:
        """When all is done in each world, in ms, if the network decides from here on: (W,)."""
        network = jax.tree.map(np.asarray, network)
        while not worlds.over.all():
            action, rows, here, _ = self._asked(model, worlds)
            if len(rows):
                masks, there = _listed(here.allowed)
                score = np.where(there, self._scores(model, network, here, masks), -np.inf)
                action[rows] = _best(masks, score)
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

    def _scores(self, model: Rollouts, network: Network, worlds: Worlds, masks: IntArray) -> FloatArray:
        """What the network says of combinations (W, C') of each world."""
        scene = model.scene(worlds, self.catalogue)
        score = self._score[self.models.index(model)]
        found = np.zeros(masks.shape)
        width = next(width for width in WIDTHS if width >= masks.shape[1])
        padded = np.pad(masks, ((0, 0), (0, width - masks.shape[1])), mode="edge")
        for begin in range(0, len(masks), ROWS[-1]):
            rows = np.arange(begin, min(len(masks), begin + ROWS[-1]))
            filled = np.resize(rows, next(many for many in ROWS if many >= len(rows)))
            part = _rows_of(scene, filled)
            most = most_tenants(part, combinations(SEEN)[padded[filled]])
            seats = next(places for places in PLACES if places >= most)
            answer = score(network, part[:-1], padded[filled], seats)
            found[rows] = np.asarray(answer)[: len(rows), : masks.shape[1]]
        return found

    def _features(self, model: Rollouts, worlds: Worlds, masks: IntArray) -> Features:
        scene = model.scene(worlds, self.catalogue)
        parts = []
        for begin in range(0, len(masks), TOGETHER):
            rows = np.arange(begin, min(len(masks), begin + TOGETHER))
            part, members = _rows_of(scene, rows), combinations(SEEN)[masks[rows]]
            seats = most_tenants(part, members)
            parts.append(features(part, members, joint(part, members, model.speeds, seats, np), np))
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


def _listed(allowed: NDArray[np.bool_]) -> tuple[IntArray, NDArray[np.bool_]]:
    """The combinations that are allowed (W, C), in order, (W, C'), and where there are fewer the first again."""
    width = int(allowed.sum(axis=1).max())
    masks = np.argsort(~allowed, axis=1, kind="stable")[:, :width]
    there = np.take_along_axis(allowed, masks, axis=1)
    return np.where(there, masks, masks[:, :1]), there


def _best(masks: IntArray, score: FloatArray) -> IntArray:
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
