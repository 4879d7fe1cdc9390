"""`learned`: the network learns what rollouts say each start costs, in the moments that it comes to itself.

Approximate policy iteration by classification with costs (Lagoudakis and Parr, "Reinforcement learning as
classification", ICML 2003), in the moments of DAgger (Ross, Gordon and Bagnell, "A reduction of imitation learning and
structured prediction to no-regret online learning", AISTATS 2011). At first rules go on after a start; then the network
itself does as well, so that each teacher is better than the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from berth.arrays import BoolArray, FloatArray, IntArray
from berth.errors import SettingError
from berth.interference import mode_of
from berth.learning.domains import Domain
from berth.learning.jobsets import JobSets
from berth.learning.learner import Figures
from berth.learning.queue_kernels import NONE
from berth.learning.rollouts import NETWORK_ALONE, Rollouts, Worlds, as_heuristic, heuristic
from berth.network.forecast_network import INPUTS, ForecastNetwork, new_network, scores
from berth.policies.colocation.rules import shipped_weights

NEVER = -1e30


@dataclass(frozen=True, slots=True)
class ForecastSettings:
    """How the network learns."""

    sets: int = 6
    """Sets of jobs that are played in an iteration, in one of the domains."""
    taught: int = 1
    """Iterations of each domain in which the best by rules is done; after them, what the network says."""
    stray: float = 0.12
    """How often anything else that is allowed is done."""
    judged: float = 0.5
    """The part of the moments in which every start is followed to its end."""
    choices: int = 16
    """Combinations of a moment that are learned from: the best one and others."""
    kept: int = 6000
    """Moments that are learned from, the newest."""
    updates: int = 250
    """Steps of the optimiser in an iteration."""
    batch: int = 256
    learning_rate: float = 2e-3
    averaged: float = 0.004
    """How much of the mean network each step renews."""
    fading: int = 72
    """Iterations over which the learning rate falls to a thirtieth."""
    unit: float = 0.08
    """What is lost counts in this part of the mean work of a job, so that worlds of long and short jobs weigh alike."""
    most: float = 10.0
    """Of these units at most: a start that is much worse than the best is not chosen anyway."""
    softness: float = 0.4
    """The network is also to prefer what is nearly as good, about as much."""
    soft: float = 0.2
    """Weight of that."""


class ForecastState(NamedTuple):
    """Everything that changes; N moments, K choices."""

    learned: ForecastNetwork
    """As the optimiser has it."""
    network: ForecastNetwork
    """The mean of the latest, which plays: steadier than any of them."""
    optimiser: optax.OptState
    inputs: Array  # float32 (N, K, INPUTS)
    lost: Array  # float32 (N, K): units more than after the best; infinite where there is no choice
    moments: Array  # int32 (): how many there were so far
    seed: Array  # int32 ()
    iteration: Array  # int32 ()


class Player:
    """A network that plays queues in one domain, by what is believed there."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self.model = Rollouts(domain.task, domain.speeds)
        belief = domain.belief
        self.seen = self.model if belief is None else Rollouts(belief.task, belief.speeds)
        rule = as_heuristic(shipped_weights(mode_of(domain.speeds)))
        self.rules = [heuristic((1, 1.0)), heuristic((0, 1.0)), rule]

    def offered(self, worlds: Worlds) -> BoolArray:
        """(W, C): what the network chooses among; of what is not allowed it learns that it is not to be chosen."""
        return worlds.allowed

    def inputs(self, worlds: Worlds, offered: BoolArray) -> NDArray[np.float32]:
        """What the network sees of what is offered, (W, C, INPUTS)."""
        belief = self.domain.belief
        if belief is None:
            return self.model.inputs(worlds, offered)
        tenants, queue = worlds.tenants.copy(), worlds.queue.copy()
        queue[..., 1] = queue[..., 1] * belief.run[queue[..., 0]]
        expected_us = (tenants[..., 2] * belief.run[tenants[..., 0]]).astype(np.int64)
        # What a job has done is known, and one that runs is not over.
        left_us = np.maximum(expected_us - (tenants[..., 2] - tenants[..., 1]), 1_000_000)
        tenants[..., 1] = np.where(tenants[..., 1] > 0, np.minimum(left_us, expected_us), 0)
        tenants[..., 2] = expected_us
        return self.seen.inputs(replace(worlds, tenants=tenants, queue=queue), offered)

    def decided_ms(self, sets: JobSets, network: ForecastNetwork) -> IntArray:
        """Total time of each set, (N,), if the network decides."""
        if self.domain.belief is None:
            self.model.network = network
            return self.model.heuristic_ms(NETWORK_ALONE, sets)
        worlds = self.model.begin(sets)
        while not worlds.over.all():
            rows = np.flatnonzero(~worlds.over)
            here, action = worlds.take(rows), np.full(len(worlds.head), NONE, np.int64)
            may = self.offered(here) & here.allowed
            action[rows] = best_of(scores(network, self.inputs(here, may), np), may)
            worlds = self.model.advance(worlds, action)
        return worlds.now_ms

    def teachers(self, network: ForecastNetwork) -> list[FloatArray]:
        """What goes on after a start, once the network plays: itself, and the rules that add to it."""
        self.model.network = network
        return [NETWORK_ALONE, self.rules[0], self.rules[2]]

    def worth_s(self, worlds: Worlds, rules: Sequence[FloatArray]) -> FloatArray:
        """What each start that is offered costs, in seconds until all is done, (W, C); infinite for the others."""
        return self.model.worth_s(worlds, rules)


class ForecastLearner:
    """The learner; see `Learner`. Its iterations run on the processor and are not compiled as a whole."""

    name = "rollouts"
    compiled = False

    def __init__(
        self,
        domains: Sequence[Domain],
        settings: ForecastSettings | None = None,
        *,
        start: ForecastNetwork | None = None,
        player: Callable[[Domain], Player] = Player,
    ) -> None:
        self.start = start
        self.settings = mine = settings or ForecastSettings()
        self.players = [player(one) for one in domains]
        rate = optax.cosine_decay_schedule(mine.learning_rate, mine.updates * mine.fading, 1 / 30)
        self.optimiser = optax.adam(rate)
        self._update = jax.jit(self._updated)

    def begin(self, seed: int) -> ForecastState:
        """The network to start with, else one that knows nothing."""
        mine = self.settings
        network = jax.tree.map(lambda one: jnp.asarray(one, jnp.float32), self.start or new_network(seed))
        inputs = jnp.zeros((mine.kept, mine.choices, INPUTS), jnp.float32)
        lost = jnp.full((mine.kept, mine.choices), jnp.inf, jnp.float32)
        zero = jnp.int32(0)
        return ForecastState(
            network, network, self.optimiser.init(network), inputs, lost, zero, jnp.int32(seed), zero
        )

    def network(self, state: ForecastState) -> ForecastNetwork:
        """The network as it is."""
        return state.network

    def iterate(self, state: ForecastState) -> tuple[ForecastState, Figures]:
        """Play some sets of one of the domains, and learn what each start would have cost."""
        mine, iteration = self.settings, int(state.iteration)
        draw = np.random.default_rng([int(state.seed), iteration])
        player = self.players[iteration % len(self.players)]
        sets = drawn_sets(player.domain.sets, mine.sets, draw)
        taught = self.start is None and iteration < mine.taught * len(self.players)
        network = None if taught else _plain(state.network)
        inputs, lost, total_ms = self._played(player, sets, network, draw)
        held = np.array(state.inputs), np.array(state.lost)
        places = (int(state.moments) + np.arange(len(lost))) % mine.kept
        held[0][places], held[1][places] = inputs, lost
        moments = int(state.moments) + len(lost)
        learned, mean, optimiser, losses = state.learned, state.network, state.optimiser, []
        for _ in range(mine.updates):
            some = draw.integers(0, min(moments, mine.kept), mine.batch)
            learned, mean, optimiser, loss = self._update(
                learned, mean, optimiser, held[0][some], held[1][some]
            )
            losses.append(float(loss))
        saved = (sets.work_ms.sum(axis=1) - total_ms) / player.model.task.step_ms
        after = ForecastState(
            *(
                learned,
                mean,
                optimiser,
                *map(jnp.asarray, held),
                jnp.int32(moments),
                state.seed,
                state.iteration + 1,
            )
        )
        figures = float(np.mean(saved)), float(np.mean(losses)), float(len(lost))
        return after, Figures(*map(jnp.float32, figures))

    def worth(self, network: ForecastNetwork) -> float:
        """Mean over the domains' validation sets of total time, over that of all jobs one after the other."""
        network = _plain(network)
        return float(
            np.mean([_worth(one, one.decided_ms(one.domain.validation, network)) for one in self.players])
        )

    def greedy(self) -> float:
        """The same where best joint progress decides."""
        progress = heuristic((0, 1.0))
        return float(
            np.mean(
                [_worth(one, one.model.heuristic_ms(progress, one.domain.validation)) for one in self.players]
            )
        )

    def _played(
        self, player: Player, sets: JobSets, network: ForecastNetwork | None, draw: np.random.Generator
    ) -> tuple[NDArray[np.float32], FloatArray, IntArray]:
        """What is seen of moments (N, K, INPUTS) and lost by each choice in them (N, K), and the sets' total time.

        Without a network the best by rules is done.
        """
        mine, model = self.settings, player.model
        rules = player.rules if network is None else player.teachers(network)
        seen: list[NDArray[np.float32]] = []
        lost: list[FloatArray] = []
        worlds = model.begin(sets)
        while not worlds.over.all():
            rows = np.flatnonzero(~worlds.over)
            here, action = worlds.take(rows), np.full(len(worlds.head), NONE, np.int64)
            offered = player.offered(here)
            inputs, worth_s = player.inputs(here, offered), np.full(offered.shape, np.inf)
            judged = np.flatnonzero((network is None) | (draw.random(len(rows)) < mine.judged))
            if len(judged):
                worth_s[judged] = player.worth_s(here.take(judged), rules)
                kept_inputs, kept_s = _choices(inputs[judged], worth_s[judged], mine.choices, draw)
                seen.append(kept_inputs)
                lost.append(kept_s)
            value = -worth_s if network is None else scores(network, inputs, np)
            strays = (draw.random(len(rows)) < mine.stray)[:, None]
            value = np.where(strays, draw.random(value.shape), value)
            action[rows] = best_of(value, offered & here.allowed)
            worlds = model.advance(worlds, action)
        if not seen:
            raise SettingError(
                "in none of these sets of jobs is there a choice: no two of them fit beside one another; there is"
                " nothing to learn"
            )
        unit_s = mine.unit * float(sets.work_ms.mean()) / 1000
        return np.concatenate(seen), np.concatenate(lost) / unit_s, worlds.now_ms

    def _updated(
        self,
        network: ForecastNetwork,
        mean: ForecastNetwork,
        optimiser: optax.OptState,
        inputs: Array,
        lost: Array,
    ) -> tuple[ForecastNetwork, ForecastNetwork, optax.OptState, Array]:
        loss, gradient = jax.value_and_grad(self._loss)(network, inputs, lost)
        change, optimiser = self.optimiser.update(gradient, optimiser, network)
        network = optax.apply_updates(network, change)
        mean = optax.incremental_update(network, mean, self.settings.averaged)
        return network, mean, optimiser, loss

    def _loss(self, network: ForecastNetwork, inputs: Array, lost: Array) -> Array:
        """What the network's choice loses on average, and how far it is from preferring what is nearly as good."""
        mine, there = self.settings, jnp.isfinite(lost)
        lost = jnp.where(there, jnp.minimum(lost, mine.most), 0.0)
        logs = jax.nn.log_softmax(jnp.where(there, scores(network, inputs, jnp), NEVER))
        wanted = jax.nn.softmax(jnp.where(there, -lost / mine.softness, NEVER))
        nearly = -jnp.sum(wanted * jnp.where(there, logs, 0.0), axis=-1)
        return jnp.mean(jnp.sum(jnp.exp(logs) * lost, axis=-1) + mine.soft * nearly)


def best_of(value: FloatArray, allowed: BoolArray) -> IntArray:
    """(W,): the combination of the largest value of those that are allowed."""
    return np.asarray(np.where(allowed, value, -np.inf).argmax(axis=1), np.int64)


def drawn_sets(sets: JobSets, count: int, draw: np.random.Generator) -> JobSets:
    """Some of the sets, each in another order and with run times a tenth longer or shorter."""
    rows = draw.choice(len(sets.work_ms), min(count, len(sets.work_ms)), replace=False)
    order = draw.permuted(np.tile(np.arange(sets.work_ms.shape[1]), (len(rows), 1)), axis=1)
    application, work_ms = (np.take_along_axis(one[rows], order, axis=1) for one in sets)
    work_ms = work_ms * np.exp(draw.normal(0, 0.1, work_ms.shape))
    return JobSets(application, np.maximum(work_ms, 1000).astype(np.int32))


def _choices(
    inputs: NDArray[np.float32], worth_s: FloatArray, count: int, draw: np.random.Generator
) -> tuple[NDArray[np.float32], FloatArray]:
    """Of each moment the best start and others, drawn: what is seen of them and what they lose."""
    turn = np.where(np.isfinite(worth_s), draw.random(worth_s.shape), 2.0)
    np.put_along_axis(turn, worth_s.argmin(axis=1)[:, None], -1.0, axis=1)
    masks = np.argsort(turn, axis=1)[:, :count]
    worth_s = np.take_along_axis(worth_s, masks, axis=1)
    return np.take_along_axis(inputs, masks[..., None], axis=1), worth_s - worth_s[:, :1]


def _plain(network: ForecastNetwork) -> ForecastNetwork:
    return ForecastNetwork(*(np.asarray(one, np.float64) for one in network))


def _worth(player: Player, total_ms: IntArray) -> float:
    return float(np.mean(total_ms / player.domain.validation.work_ms.sum(axis=1)))
