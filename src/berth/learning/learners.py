"""The learners by name: how each is made, what it is shown of a job, and which model of its ships."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax

from berth.errors import SettingError
from berth.interference import Speeds
from berth.learning.decisions import Decisions
from berth.learning.double_dqn import DoubleDqn
from berth.learning.environment import Environment, Settings
from berth.learning.jobsets import JobSets, Task
from berth.learning.learner import Learner
from berth.learning.paper import Paper, PaperSettings
from berth.learning.ppo import Ppo
from berth.learning.queue_kernels import SEEN
from berth.learning.rewards import Reward, saved
from berth.learning.rollout_learner import RolloutLearner
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


def _decisions(given: Given) -> Decisions:
    step_ms = given.task.step_ms
    settings = Settings(given.slots, demand=given.shown, tick_ms=3 * step_ms, lead_ms=step_ms * 9 // 10)
    environment = Environment(given.task, *given.speeds, settings=settings, reward=given.reward or saved)
    return Decisions(environment, given.sets, within=given.shown != "series")


def _greedy_ms(given: Given) -> Callable[[JobSets], Any] | None:
    if given.shown != "series":
        return None
    return jax.jit(lambda sets: _decisions(given).greedy_ms(sets)[0])


def _of_decisions(given: Given, *, kind: type[Ppo] | type[DoubleDqn]) -> Making:
    decisions = _decisions(given)
    total_ms = jax.jit(lambda network, sets: decisions.total_ms(network, sets)[0])
    return Making(kind(decisions, start=given.start), total_ms, _greedy_ms(given))


def _of_rollouts(given: Given) -> Making:
    if given.slots != SEEN:
        raise SettingError(
            f"who is taught by rollouts sees {SEEN} waiting jobs; expected --slots {SEEN} and not {given.slots};"
            " ppo and double-dqn see more, or fewer"
        )
    if given.reward is not None:
        raise SettingError(
            "who is taught by rollouts goes by total time alone; expected no reward, or ppo, double-dqn or dqn-paper"
        )
    learner = RolloutLearner(given.task, given.speeds, given.sets, start=given.start, demand=given.shown)
    return Making(learner, learner.total_ms, _greedy_ms(given))


class Way(NamedTuple):
    """How a learner is made, what it is shown of a job, and under which name a model of its ships."""

    made_by: Callable[[Given], Making]
    shown: Demand
    ships_as: str | None
    """None where no policy decides by its network, which is of images."""


_ppo, _double_dqn = (partial(_of_decisions, kind=kind) for kind in (Ppo, DoubleDqn))
LEARNERS: dict[str, Way] = {
    "learned": Way(_of_rollouts, "series", "learned"),
    "ppo": Way(_ppo, "series", "learned"),
    "rollouts": Way(_of_rollouts, "series", "learned"),
    "double-dqn": Way(_double_dqn, "series", "learned"),
    "deeprm-max": Way(_of_rollouts, "peak", "deeprm-max"),
    "deeprm-mean": Way(_of_rollouts, "mean", "deeprm-mean"),
    "dqn-paper": Way(partial(_of_images, mended=True), "series", None),
    "dqn-paper-as-printed": Way(partial(_of_images, mended=False), "series", None),
}
"""`learned` is `rollouts`, the best at an equal budget (`bench/learners.py`); both deeprm are taught by it too."""
