"""`rollouts`: the network learns to start what rollouts say is best, in the moments that it comes to itself.

Approximate policy iteration by classification (Lagoudakis and Parr, "Reinforcement learning as classification",
ICML 2003) with the moments of DAgger (Ross, Gordon and Bagnell, "A reduction of imitation learning and structured
prediction to no-regret online learning", AISTATS 2011). What an action costs is exact (`berth.learning.rollouts`), so
that nothing has to be found out by chance; the network learns what can be seen of it without knowing the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from berth.arrays import FloatArray, IntArray
from berth.errors import SettingError
from berth.learning.domains import Domain
from berth.learning.jobsets import JobSets
from berth.learning.learner import Figures
from berth.learning.player import Player, best_of_listed, listed
from berth.learning.rollouts import Worlds, heuristic
from berth.network.catalogue import Demand
from berth.network.features import Features
from berth.network.scores import Network, Sizes, new_network, scores

NEVER = -1e30
HEURISTICS = np.stack([heuristic((1, 1.0)), heuristic((0, 1.0))])


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """How `rollouts` learns."""

    sets: int = 20
    """Sets of jobs that are played in an iteration."""
    taught: int = 2
    """Iterations of each domain in which the best is done; after them, what the network says."""
    stray: float = 0.12
    """How often anything else that is allowed is done."""
    ahead: int = 10
    """Jobs behind those that are seen which a rollout places as well."""
    draws: int = 2
    """Orders of these jobs that are tried."""
    followed_from: int = 60
    """From this iteration on what a start is worth is found by following the network itself as well, whose continuation
    is better than any heuristic's once it has learned something."""
    followed: int = 4
    """Of what the network would do, this many of the best and two others are followed then, and learned from alone."""
    choices: int = 16
    """Combinations of a moment that are learned from: the best one and others."""
    passes: int = 4
    batch: int = 128
    learning_rate: float = 1.5e-3
    fading: int = 60
    """Iterations over which the learning rate falls evenly to a twentieth."""
    unit_s: float = 10.0
    """A lost second costs one divided by this."""
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
        domains: Sequence[Domain],
        settings: RolloutSettings | None = None,
        *,
        start: Network | None = None,
        demand: Demand = "series",
    ) -> None:
        self.start = start
        self.settings = settings or RolloutSettings()
        self.players = [Player(one, demand) for one in domains]
        steps = (
            -(-self.settings.sets * 60 // self.settings.batch) * self.settings.passes * self.settings.fading
        )
        rate = optax.linear_schedule(self.settings.learning_rate, self.settings.learning_rate / 20, steps)
        self.optimiser = optax.adam(rate)
        self._update = jax.jit(self._updated)

    def begin(self, seed: int) -> RolloutState:
        """The network to start with, else one that knows nothing."""
        network = jax.tree.map(jnp.asarray, self.start or new_network(seed, self.settings.sizes))
        return RolloutState(network, self.optimiser.init(network), jnp.int32(seed), jnp.int32(0))

    def network(self, state: RolloutState) -> Network:
        """The network as it is."""
        return state.network

    def iterate(self, state: RolloutState) -> tuple[RolloutState, Figures]:
        """Play some sets of one of the domains, and learn what would have been best at each moment."""
        settings, iteration = self.settings, int(state.iteration)
        draw = np.random.default_rng([int(state.seed), iteration])
        number = iteration % len(self.players)
        player = self.players[number]
        all_sets = player.domain.sets
        rows = draw.choice(len(all_sets.work_ms), min(settings.sets, len(all_sets.work_ms)), replace=False)
        sets = JobSets(all_sets.application[rows], all_sets.work_ms[rows])
        network = jax.tree.map(np.asarray, state.network)
        taught = iteration < settings.taught * len(self.players)
        every, offered, total_ms = self._played(player, sets, None if taught else network, draw)
        follows = iteration >= settings.followed_from
        seen = self._judged(player, every, offered, network if follows else None, draw)
        network, optimiser, losses = state.network, state.optimiser, []
        moments = len(seen.there)
        batch = min(settings.batch, moments)
        for _ in range(settings.passes):
            order = draw.permutation(moments)
            for begin in range(0, moments - batch + 1, batch):
                some = jax.tree.map(lambda x, at=order[begin : begin + batch]: x[at], seen)
                network, optimiser, loss = self._update(network, optimiser, some)
                losses.append(float(loss))
        saved = (sets.work_ms.sum(axis=1) - total_ms) / player.model.task.step_ms
        after = RolloutState(network, optimiser, state.seed, state.iteration + 1)
        figures = float(np.mean(saved)), float(np.mean(losses)), float(moments)
        return after, Figures(*map(jnp.float32, figures))

    def worth(self, network: Network) -> float:
        """Mean over the domains' validation sets of total time, over that of all jobs one after the other."""
        network = jax.tree.map(np.asarray, network)
        return float(np.mean([_worth(one, one.decided_ms(_begun(one), network)) for one in self.players]))

    def _played(
        self,
        player: Player,
        sets: JobSets,
        network: Network | None,
        draw: np.random.Generator,
    ) -> tuple[Worlds, NDArray[np.bool_], IntArray]:
        """The moments of some sets under way, what is offered in each, and each set's total time, in ms.

        Without a network the best by heuristics is done.
        """
        settings, model = self.settings, player.model
        worlds = model.begin(sets)
        moments: list[Worlds] = []
        offers: list[NDArray[np.bool_]] = []
        while not worlds.over.all():
            action, rows, here, offered = player.asked(worlds)
            if len(rows):
                moments.append(here)
                offers.append(offered)
                masks, there = listed(here.allowed)
                if network is None:
                    seed = int(draw.integers(1 << 30))
                    worth_s = model.worth_s(here, HEURISTICS, settings.ahead, settings.draws, seed)
                    score = -np.take_along_axis(worth_s, masks, axis=1)
                else:
                    score = player.scores(network, here, masks)
                strays = (draw.random(len(rows)) < settings.stray)[:, None]
                score = np.where(there, np.where(strays, draw.random(there.shape), score), -np.inf)
                action[rows] = best_of_listed(masks, score)
            worlds = model.advance(worlds, action)
        if not moments:
            raise SettingError(
                "in none of these sets of jobs is there a choice: no two of them fit beside one another; there is"
                " nothing to learn"
            )
        return Worlds.joined(moments), np.concatenate(offers), worlds.now_ms

    def _judged(
        self,
        player: Player,
        worlds: Worlds,
        offered: NDArray[np.bool_],
        network: Network | None,
        draw: np.random.Generator,
    ) -> Seen:
        """What some of what is offered (W, C) costs: by heuristics, and by the network where there is one."""
        settings, model, seed = self.settings, player.model, int(draw.integers(1 << 30))
        worth_s = model.worth_s(worlds, HEURISTICS, settings.ahead, settings.draws, seed)
        worst_s = np.max(worth_s, axis=1, where=worlds.allowed, initial=0.0)[:, None] + settings.refused_s
        worth_s = np.where(offered & ~worlds.allowed, worst_s, worth_s)
        turn = np.where(
            offered, draw.random(offered.shape), 2.0
        )  # any of them, but first the best by heuristics
        np.put_along_axis(turn, worth_s.argmin(axis=1)[:, None], -1.0, axis=1)
        choices = settings.choices
        if network is not None:
            masks, there = listed(worlds.allowed)
            score = np.where(there, player.scores(network, worlds, masks), -np.inf)
            best = np.argsort(-score, axis=1, kind="stable")[:, : settings.followed]
            np.put_along_axis(turn, np.take_along_axis(masks, best, axis=1), -2.0, axis=1)
            choices = settings.followed + 2
        masks = np.argsort(turn, axis=1)[:, :choices]
        there = np.take_along_axis(offered, masks, axis=1)
        if network is not None:
            real = there & np.take_along_axis(worlds.allowed, masks, axis=1)
            self._follow(player, network, worlds, masks, real, worth_s, seed)
        shown = player.features(worlds, np.where(there, masks, masks[:, :1]))
        worth = np.where(there, np.take_along_axis(worth_s, masks, axis=1), 0).astype(np.float32)
        return Seen(shown, there, worth)

    def _follow(
        self,
        player: Player,
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
        for drawn in player.model.drawn(worlds, settings.ahead, settings.draws, seed):
            after = player.model.advance(drawn.take(world), action)
            total += player.decided_ms(after, network) / (1000 * settings.draws)
        worth_s[world, action] = np.minimum(worth_s[world, action], total)

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


def _begun(player: Player) -> Worlds:
    return player.model.begin(player.domain.validation)


def _worth(player: Player, total_ms: IntArray) -> float:
    return float(np.mean(total_ms / player.domain.validation.work_ms.sum(axis=1)))
