"""Training: iterations of a learner, and the measured value of some of its networks.

The best network of those that were measured is what comes of it, on sets of jobs that were not trained on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from berth.errors import SettingError
from berth.learning.learner import Figures, Learner

Best = tuple[Any, float, int]
"""A network, what it was worth, and after which iteration."""

Progress = Callable[[float, float, str], None]
"""Called with what is done, of how much, and the current return, or what goes on, in words."""


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """How long to train, and how often to look."""

    iterations: int = 200
    seed: int = 0
    measure_every: int = 20
    """Iterations between two measurements on other sets of jobs."""
    budget_s: float | None = None
    """Stop after this time; the result then depends on how fast the machine is."""

    def __post_init__(self) -> None:
        if min(self.iterations, self.measure_every) < 1 or (self.budget_s is not None and self.budget_s <= 0):
            raise SettingError(
                f"{self.iterations} iterations, measured every {self.measure_every}, in {self.budget_s} s; expected"
                " more than 0 of each"
            )


class Point(NamedTuple):
    """One iteration on the training curve."""

    iteration: int
    decisions: int
    """So far, over all environments."""
    seconds: float
    """Since the beginning."""
    episode_return: float | None
    """Mean over the episodes that ended in it; None where none did."""
    measured: float | None
    """What `measure` gave; None where it was not asked."""


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """What came of a training."""

    network: Any
    """The best network that was measured."""
    measured: float
    """What it was worth, the less the better."""
    iteration: int
    """After which iteration it was."""
    curve: tuple[Point, ...] = field(default=())
    begun: float | None = None
    """The value of the network before training; None if it was not measured."""


def train(
    learner: Learner,
    measure: Callable[[Any], float],
    settings: TrainingSettings,
    *,
    progress: Progress | None = None,
) -> Trained:
    """Train until the iterations, or the time, are over.

    `measure` tells what a network is worth, the less the better; the last network is always asked.
    """
    curve: list[Point] = []

    def stage(text: str) -> None:
        if progress is not None:
            progress(len(curve), settings.iterations, text)

    stage("the first network is made and compiled, which takes a while")
    begun, state = time.monotonic(), learner.begin(settings.seed)
    iterate = jax.jit(learner.iterate) if learner.compiled else learner.iterate
    stage("the first network is measured")
    first = measure(learner.network(state))
    best: Best = learner.network(state), first, 0
    stage("an iteration is compiled" if learner.compiled else "the first iteration")
    for iteration in range(1, settings.iterations + 1):
        state, figures = iterate(state)
        seconds = time.monotonic() - begun
        over = settings.budget_s is not None and seconds >= settings.budget_s
        measured = None
        if over or iteration == settings.iterations or iteration % settings.measure_every == 0:
            measured = measure(learner.network(state))
            if measured < best[1]:  # the earlier of equals
                best = learner.network(state), measured, iteration
        curve.append(_point(curve, figures, seconds, measured))
        if progress is not None:
            progress(iteration, settings.iterations, _return_text(curve))
        if over:
            break
    network = jax.tree.map(np.asarray, best[0])
    return Trained(network, best[1], best[2], tuple(curve), first)


def _point(curve: list[Point], figures: Figures, seconds: float, measured: float | None) -> Point:
    earned = float(figures.episode_return)
    decisions = int(figures.decisions) + (curve[-1].decisions if curve else 0)
    return Point(len(curve) + 1, decisions, seconds, None if np.isnan(earned) else earned, measured)


def _return_text(curve: list[Point]) -> str:
    """The current return in words."""
    earned = next(
        (point.episode_return for point in reversed(curve) if point.episode_return is not None), None
    )
    return "no episode has ended yet" if earned is None else f"return {earned:.1f}"
