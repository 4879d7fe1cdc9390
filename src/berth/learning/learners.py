"""The learners by name: how each is made, what it is shown of a job, and what file a policy decides by."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points

from berth.errors import SettingError
from berth.learning.domains import Domain
from berth.learning.forecast_learner import ForecastLearner, ForecastSettings, Player
from berth.learning.learner import LearnerInputs, LearnerSpec, MadeLearner, TrainedFile
from berth.learning.queue_kernels import SEEN
from berth.learning.rollouts import heuristic
from berth.learning.rule_learner import RuleLearner
from berth.network.model_file import Model, model_bytes
from berth.policies.colocation.learned import model_named, shipped_for
from berth.policies.colocation.rules import rule_bytes


@cache
def learners() -> dict[str, LearnerSpec]:
    """Those of this package, and those that other packages declare as entry points of the group `berth.learners`."""
    return LEARNERS | {found.name: found.load() for found in entry_points(group="berth.learners")}


def taught_by_rollouts(
    inputs: LearnerInputs,
    player: Callable[[Domain], Player] = Player,
    settings: ForecastSettings | None = None,
) -> MadeLearner:
    """A learner of a network that is taught by following queues to their end; SettingError for what it does not
    heed."""
    if inputs.slots != SEEN:
        raise SettingError(
            f"a network that is taught by rollouts sees {SEEN} waiting jobs; expected --slots {SEEN} and not"
            f" {inputs.slots}"
        )
    learner = ForecastLearner(inputs.domains, settings, start=inputs.start, player=player)
    return MadeLearner(learner, learner.worth, learner.greedy)


def rollout_file(trained: TrainedFile) -> bytes:
    """The file of a network that was taught by rollouts."""
    model = Model(
        network=trained.network,
        learner=trained.learner.name,
        interference=trained.interference,
        workloads=trained.workloads,
        demand=trained.shown,
        figures=trained.figures,
        command=trained.command,
    )
    return model_bytes(model)


def _of_rule(inputs: LearnerInputs) -> MadeLearner:
    learner = RuleLearner(inputs.domains)
    return MadeLearner(learner, learner.worth, lambda: learner.worth(heuristic((0, 1.0))))


def _rule_file(trained: TrainedFile) -> bytes:
    return rule_bytes(trained.network, trained.command, trained.figures)


LEARNERS = {
    "learned": LearnerSpec(
        make=taught_by_rollouts,
        file=rollout_file,
        shipped=lambda speeds: model_named(shipped_for("learned", speeds)),
        families=True,
    ),
    "rule": LearnerSpec(make=_of_rule, file=_rule_file, families=True),
}
"""`learned` is taught by rollouts; `rule` is no network."""
