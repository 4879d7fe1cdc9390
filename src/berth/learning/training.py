"""Training: iterations of a learner, what they were worth now and then, checkpoints in between.

The best network of those that were measured is what comes of it, on sets of jobs that were not trained on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from berth.errors import ModelError, SettingError
from berth.learning.checkpoint import Checkpoint, checked_notes, read_checkpoint, write_checkpoint
from berth.learning.learner import Figures, Learner

CHECKPOINT = "checkpoint.npz"
"""The name of the file in the folder of checkpoints."""

Best = tuple[Any, Any, Any]
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
    keep_every: int = 10
    """Iterations between two checkpoints."""
    budget_s: float | None = None
    """Stop after this time; the result then depends on how fast the machine is."""

    def __post_init__(self) -> None:
        whole = min(self.iterations, self.measure_every, self.keep_every)
        if whole < 1 or (self.budget_s is not None and self.budget_s <= 0):
            raise SettingError(
                f"{self.iterations} iterations, measured every {self.measure_every}, kept every {self.keep_every},"
                f" in {self.budget_s} s; expected more than 0 of each"
            )


class Point(NamedTuple):
    """One iteration on the training curve."""

    iteration: int
    decisions: int
    """So far, over all environments."""
    seconds: float
    """Since the beginning, those of earlier runs included."""
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
    """What the network was worth that it began with; None where the checkpoint gone on from does not tell."""


def train(
    learner: Learner,
    measure: Callable[[Any], float],
    settings: TrainingSettings,
    *,
    training: Mapping[str, Any] | None = None,
    folder: Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Trained:
    """Train until the iterations, or the time, are over.

    `measure` tells what a network is worth, the less the better; the last network is always asked. With a `folder` the
    training is kept there, and `resume` goes on from what is; the result is the same as without the interruption, also
    of fewer iterations first, unless seconds say when to stop. `training` says in plain values what is trained: a
    checkpoint of anything else is refused. Making the learner's first state again, to go on from what is kept, does not
    count as training.
    """
    begun = time.monotonic()
    curve: list[Point] = []
    first: float | None = None
    described = {"learner": learner.name, "seed": settings.seed, **(training or {})}
    described["measure_every"] = settings.measure_every
    path = None if folder is None else folder / CHECKPOINT
    if path is not None and path.exists():
        if not resume:
            raise SettingError(
                f"{path} is there already; go on from it with --resume, or name another folder"
            )
        curve = _curve_of(path, notes := checked_notes(path, described))
        first = notes.get("begun")
    elif path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)

    def stage(text: str) -> None:
        if progress is not None:
            progress(len(curve), settings.iterations, text)

    stage("the first network is made and compiled, which takes a while")
    state = learner.begin(settings.seed)
    best: Best = (learner.network(state), jnp.float32(jnp.inf), jnp.int32(0))
    if path is not None and curve:
        state, best = read_checkpoint(path, described, (state, best)).state
        begun = time.monotonic()
    before = curve[-1].seconds if curve else 0.0
    iterate = jax.jit(learner.iterate) if learner.compiled else learner.iterate
    if not curve:
        stage("the first network is measured")
        first = measure(learner.network(state))
        best = _better(best, learner.network(state), first, 0)
    stage("an iteration is compiled" if learner.compiled else "the first iteration")
    while len(curve) < settings.iterations:
        state, figures = iterate(state)
        iteration = len(curve) + 1
        seconds = before + time.monotonic() - begun
        measured = None
        if iteration % settings.measure_every == 0:
            measured = measure(learner.network(state))
            best = _better(best, learner.network(state), measured, iteration)
        curve.append(_point(curve, figures, seconds, measured))
        over = settings.budget_s is not None and seconds >= settings.budget_s
        last = over or iteration == settings.iterations
        if path is not None and (last or iteration % settings.keep_every == 0):
            notes = {"curve": [list(point) for point in curve], "begun": first}
            write_checkpoint(path, described, Checkpoint((state, best), notes))
        if progress is not None:
            progress(iteration, settings.iterations, _return_text(curve))
        if over:
            break
    if (
        curve and curve[-1].measured is None
    ):  # after what is kept: one that goes on from there does not measure here
        measured = measure(learner.network(state))
        best = _better(best, learner.network(state), measured, len(curve))
        curve[-1] = curve[-1]._replace(measured=measured)
    network = jax.tree.map(np.asarray, best[0])
    return Trained(network, float(best[1]), int(best[2]), tuple(curve), first)


def _curve_of(path: Path, notes: Mapping[str, Any]) -> list[Point]:
    """The curve that a checkpoint has kept."""
    try:
        return [Point(*entry) for entry in notes["curve"]]
    except (KeyError, TypeError) as error:
        raise ModelError(
            f"{path}: its curve is not that of a training ({error!r}); begin anew elsewhere"
        ) from error


def _better(best: Best, network: Any, worth: float, iteration: int) -> Best:
    """The better of the two, the earlier of equals."""
    return (network, jnp.float32(worth), jnp.int32(iteration)) if worth < float(best[1]) else best


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
