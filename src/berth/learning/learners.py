"""The learners by name: how each is made, what it is shown of a job, and which model of its ships."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from berth.errors import SettingError
from berth.learning.domains import Domain
from berth.learning.environment import Environment, Settings
from berth.learning.learner import Learner
from berth.learning.paper import Paper, PaperSettings
from berth.learning.queue_kernels import SEEN
from berth.learning.rewards import Reward
from berth.learning.rollout_learner import RolloutLearner, RolloutSettings
from berth.learning.rollouts import habit
from berth.learning.rule_learner import RuleLearner
from berth.network.catalogue import Demand
from berth.network.scores import Network

__all__ = ["LEARNERS", "Given", "Making", "Way"]


class Given(NamedTuple):
    """What a learner is made of."""

    domains: Sequence[Domain]
    """All of the given task, but for `learned` and both deeprm."""
    slots: int
    """Waiting jobs that are seen, M."""
    shown: Demand
    reward: Reward | None
    """None for what the learner has."""
    start: Network | None
    settings: RolloutSettings | None
    """How a learner by rollouts learns; None for its own way."""


class Making(NamedTuple):
    """A learner, and what networks are worth: total time over that of all jobs in turn, on the validation sets."""

    learner: Learner
    worth: Callable[[Any], float]
    """If a network decides."""
    greedy: Callable[[], float] | None
    """If `greedy` does; None for learners that are not shown what it goes by."""


def _of_images(given: Given, *, mended: bool) -> Making:
    reward = {} if given.reward is None else {"reward": given.reward}
    first = given.domains[0]
    speeds = [one.speeds for one in given.domains]
    environment = Environment(first.task, *speeds, settings=Settings(given.slots), **reward)
    learner = Paper(environment, first.sets, PaperSettings(mended=mended))
    total_ms = jax.jit(lambda network: learner.played(network, first.validation)[0])
    alone_ms = first.validation.work_ms.sum(axis=1)
    return Making(learner, lambda network: float(np.mean(np.asarray(total_ms(network)) / alone_ms)), None)


def _of_rule(given: Given) -> Making:
    learner = RuleLearner(given.domains)
    return Making(learner, learner.worth, lambda: learner.worth(habit((0, 1.0))))


def _of_rollouts(given: Given) -> Making:
    if given.slots != SEEN:
        raise SettingError(
            f"a network that is taught by rollouts sees {SEEN} waiting jobs; expected --slots {SEEN} and not"
            f" {given.slots}; dqn sees more, or fewer"
        )
    if given.reward is not None:
        raise SettingError(
            "a network that is taught by rollouts goes by total time alone; expected no reward, or the learner dqn"
        )
    learner = RolloutLearner(given.domains, given.settings, start=given.start, demand=given.shown)
    return Making(learner, learner.worth, learner.greedy if given.shown == "series" else None)


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
    "rule": Way(_of_rule, "series", "rule"),
    "dqn": Way(partial(_of_images, mended=True), "series", "dqn"),
    "dqn-as-printed": Way(partial(_of_images, mended=False), "series", None),
}
"""The first three are taught by rollouts; `rule` is no network; the last two are the thesis's own method."""
