"""The learners by name: how each is made, what it is shown of a job, and which model of its ships."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from berth.errors import SettingError
from berth.interference import Speeds
from berth.learning.environment import Environment, Settings
from berth.learning.jobsets import JobSets, Task
from berth.learning.learner import Learner
from berth.learning.paper import Paper, PaperSettings
from berth.learning.queue_kernels import SEEN
from berth.learning.rewards import Reward
from berth.learning.rollout_learner import RolloutLearner
from berth.learning.rollouts import habit
from berth.network.catalogue import Demand
from berth.network.scores import Network

__all__ = ["LEARNERS", "Given", "Making", "Way"]


class Given(NamedTuple):
    """What a learner is made of."""

    task: Task
    speeds: list[Speeds]
    """Models of interference."""
    slots: int
    """Waiting jobs that are seen, M."""
    sets: JobSets
    """To learn from."""
    shown: Demand
    reward: Reward | None
    """None for what the learner has."""
    start: Network | None


class Making(NamedTuple):
    """A learner, and how long sets of jobs take: (I, N) ms, under each of the I models of interference."""

    learner: Learner
    total_ms: Callable[[Any, JobSets], Any]
    """If a network decides."""
    greedy_ms: Callable[[JobSets], Any] | None
    """If `greedy` does; None for learners that are not shown what it goes by."""


def _of_images(given: Given, *, mended: bool) -> Making:
    reward = {} if given.reward is None else {"reward": given.reward}
    environment = Environment(given.task, *given.speeds, settings=Settings(given.slots), **reward)
    learner = Paper(environment, given.sets, PaperSettings(mended=mended))
    return Making(learner, jax.jit(lambda network, sets: learner.played(network, sets)[0]), None)


def _of_rollouts(given: Given) -> Making:
    if given.slots != SEEN:
        raise SettingError(
            f"a network that is taught by rollouts sees {SEEN} waiting jobs; expected --slots {SEEN} and not"
            f" {given.slots}; dqn-paper sees more, or fewer"
        )
    if given.reward is not None:
        raise SettingError(
            "a network that is taught by rollouts goes by total time alone; expected no reward, or dqn-paper"
        )
    learner = RolloutLearner(given.task, given.speeds, given.sets, start=given.start, demand=given.shown)

    def greedy_ms(sets: JobSets) -> Any:
        return np.stack([one.model.habit_ms(habit((0, 1.0)), sets) for one in learner.players])

    return Making(learner, learner.total_ms, greedy_ms if given.shown == "series" else None)


class Way(NamedTuple):
    """How a learner is made, what it is shown of a job, and under which name a model of its ships."""

    made_by: Callable[[Given], Making]
    shown: Demand
    ships_as: str | None
    """None where no policy decides by its network, which is of images."""


LEARNERS: dict[str, Way] = {
    "learned": Way(_of_rollouts, "series", "learned"),
    "deeprm-max": Way(_of_rollouts, "peak", "deeprm-max"),
    "deeprm-mean": Way(_of_rollouts, "mean", "deeprm-mean"),
    "dqn-paper": Way(partial(_of_images, mended=True), "series", None),
    "dqn-paper-as-printed": Way(partial(_of_images, mended=False), "series", None),
}
"""The first three are taught by rollouts; the last two are the thesis's own method."""
