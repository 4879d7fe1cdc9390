"""The models of the baselines: each was trained for its policy and its speeds."""

from __future__ import annotations

import pytest

from berth.interference import make_interference, make_speeds
from berth.knowledge import Oracle
from berth.policies import Setting, make_policy
from berth.policies.colocation.learned import model_named, shipped_for
from berth_papers.baselines.deeprm import MODELS, DeepRmMax, DeepRmMean


@pytest.mark.parametrize("mode", ["mps", "time-sliced"])
@pytest.mark.parametrize(("name", "demand"), [("deeprm-max", "peak"), ("deeprm-mean", "mean")])
def test_a_model_ships_that_was_trained_for_its_policy(name: str, demand: str, mode: str) -> None:
    model = model_named(f"{name}-{mode}", package=MODELS)
    assert (model.demand, model.learner, model.interference) == (demand, "rollouts", (mode,))
    assert model.figures["total_time_to_one_after_the_other"] < 1
    assert model.command.startswith(f"berth train --learner {name} --interference {mode} ")


def test_dqn_takes_the_model_that_was_trained_for_the_speeds_that_it_meets() -> None:
    assert shipped_for("dqn", make_speeds("time-sliced"), MODELS) == "dqn-time-sliced"


@pytest.mark.parametrize("name", ["deeprm-max", "deeprm-mean"])
def test_deeprm_takes_the_model_that_was_trained_for_the_speeds_that_it_meets(name: str) -> None:
    met = {}
    for interference in ("mps", "time-sliced"):
        policy = make_policy(name, Setting(0, knowledge=Oracle((), make_interference(interference))))
        assert isinstance(policy, DeepRmMax | DeepRmMean)
        met[interference] = policy.model.interference
    assert met == {"mps": ("mps",), "time-sliced": ("time-sliced",)}
