"""How the thesis's baselines are trained: both deeprm by rollouts, `dqn` by its own method."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np

from berth.interference import Speeds
from berth.learning.environment import Environment, Settings
from berth.learning.learner import LearnerInputs, LearnerSpec, MadeLearner, TrainedFile
from berth.learning.learners import rollout_file, taught_by_rollouts
from berth.network.model_file import Model
from berth.policies.colocation.learned import model_named, shipped_for
from berth_papers.baselines.deeprm import MODELS
from berth_papers.baselines.image_learner import ImageLearner, PaperSettings
from berth_papers.baselines.images import image_model_bytes

HORIZON = 20
"""Steps of the horizon of images (Oh 2019, section IV.2)."""


def _of_images(inputs: LearnerInputs, *, mended: bool) -> MadeLearner:
    reward = {} if inputs.reward is None else {"reward": inputs.reward}
    first = inputs.domains[0]
    speeds = [one.speeds for one in inputs.domains]
    environment = Environment(first.task, *speeds, settings=Settings(inputs.slots), **reward)
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


DEEPRM_MAX = LearnerSpec(taught_by_rollouts, "peak", rollout_file, partial(_shipped, "deeprm-max"))
DEEPRM_MEAN = LearnerSpec(taught_by_rollouts, "mean", rollout_file, partial(_shipped, "deeprm-mean"))
DQN = LearnerSpec(partial(_of_images, mended=True), file=_image_file, horizon=HORIZON)
DQN_AS_PRINTED = LearnerSpec(partial(_of_images, mended=False), horizon=HORIZON)
"""`dqn` is the thesis's algorithm 1 with equation 2 mended; no policy decides by it as printed."""
