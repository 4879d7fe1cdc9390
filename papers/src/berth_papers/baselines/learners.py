"""How the thesis's baselines are trained: both deeprm by rollouts, `dqn` by its own method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import jax
import numpy as np

from berth.arrays import BoolArray, FloatArray
from berth.interference import Speeds
from berth.learning.domains import Belief, Domain
from berth.learning.environment import Environment, Settings
from berth.learning.forecast_learner import ForecastSettings, Player
from berth.learning.learner import LearnerInputs, LearnerSpec, MadeLearner, TrainedFile
from berth.learning.learners import rollout_file, taught_by_rollouts
from berth.learning.queue_kernels import SEEN
from berth.learning.rollouts import Worlds
from berth.network.combinations import combinations
from berth.network.demands import Demand, demanded
from berth.network.forecast_network import ForecastNetwork
from berth.network.model_file import Model
from berth.policies.colocation.learned import model_named, shipped_for
from berth.profiles import Series
from berth_papers.baselines.deeprm import MODELS
from berth_papers.baselines.image_learner import ImageLearner, PaperSettings
from berth_papers.baselines.images import image_model_bytes

FEW_SETS = ForecastSettings(sets=2, fading=12)
"""Both deeprm choose among few combinations: a minute of training on small iterations is enough for them."""
REFUSED_S = 30.0
"""What a demand offers though memory would run out, or all would end later than in turn, costs this much more than the
worst of the others."""


class DemandPlayer(Player):
    """A network that is told one demand of each job, and chooses among what these demands allow."""

    def __init__(self, domain: Domain, demand: Demand) -> None:
        series = tuple(Series(one.interval_ms, demanded(one.usage, demand)) for one in domain.task.series)
        belief = Belief(replace(domain.task, series=series), domain.speeds, np.ones(len(series)))
        super().__init__(replace(domain, belief=belief))
        self.needs = np.array([one.usage[0] for one in series])  # (A, 4)
        self.capacity = np.array([1000, domain.task.gpu.mem_mib, 1000, 1000])

    def offered(self, worlds: Worlds) -> BoolArray:
        """(W, C): where each resource's demands together stay within the card; of equal jobs the first."""
        members, waiting = combinations(SEEN), worlds.waiting
        waits, runs = waiting[..., 1] > 0, worlds.tenants[..., 1] > 0
        tenants = self.needs[worlds.tenants[..., 0]].sum(axis=1, where=runs[..., None])
        wanted = np.where(waits[..., None], self.needs[waiting[..., 0]], 0)
        within = (tenants[:, None] + members.astype(np.int64) @ wanted <= self.capacity).all(axis=-1)
        alike = (waiting[:, :, None] == waiting[:, None]).all(axis=-1) & np.tri(SEEN, k=-1, dtype=np.bool_)
        again = (members[:, :, None] & ~members[:, None] & alike[:, None]).any(axis=(-1, -2))
        offered = within & ~again & ~(members & ~waits[:, None]).any(axis=-1)
        offered[:, 0] = worlds.allowed[:, 0]
        return np.asarray(offered)

    def teachers(self, network: ForecastNetwork) -> list[FloatArray]:
        """The rules: a network of demands cannot go on by what really happens."""
        return self.rules

    def worth_s(self, worlds: Worlds, rules: Sequence[FloatArray]) -> FloatArray:
        """As it comes, and `REFUSED_S` more than the worst for what is offered and not allowed."""
        worth, offered = super().worth_s(worlds, rules), self.offered(worlds)
        worst = worth.max(axis=1, where=worlds.allowed, initial=0.0)[:, None]
        return np.where(offered, np.where(worlds.allowed, worth, worst + REFUSED_S), np.inf)


def _of_demand(inputs: LearnerInputs) -> MadeLearner:
    return taught_by_rollouts(inputs, partial(DemandPlayer, demand=inputs.shown), FEW_SETS)


def _of_images(inputs: LearnerInputs, *, mended: bool) -> MadeLearner:
    first = inputs.domains[0]
    speeds = [one.speeds for one in inputs.domains]
    environment = Environment(first.task, *speeds, settings=Settings(inputs.slots))
    learner = ImageLearner(environment, first.sets, PaperSettings(mended=mended))
    total_ms = jax.jit(lambda network: learner.played(network, first.validation)[0])
    alone_ms = first.validation.work_ms.sum(axis=1)
    return MadeLearner(
        learner, lambda network: float(np.mean(np.asarray(total_ms(network)) / alone_ms)), None
    )


def _image_file(trained: TrainedFile) -> bytes:
    learner = trained.learner
    assert isinstance(learner, ImageLearner)
    model = learner.model(
        trained.network, trained.step_ms, trained.interference, trained.figures, trained.command
    )
    return image_model_bytes(model)


def _shipped(name: str, speeds: Speeds) -> Model:
    return model_named(shipped_for(name, speeds, MODELS), package=MODELS)


DEEPRM_MAX = LearnerSpec(_of_demand, "peak", rollout_file, partial(_shipped, "deeprm-max"))
DEEPRM_MEAN = LearnerSpec(_of_demand, "mean", rollout_file, partial(_shipped, "deeprm-mean"))
DQN = LearnerSpec(partial(_of_images, mended=True), file=_image_file)
DQN_AS_PRINTED = LearnerSpec(partial(_of_images, mended=False))
"""`dqn` is the thesis's algorithm 1 with equation 2 mended; no policy decides by it as printed."""
