"""The models that ship: whole, small, for what they say, and better than a network that has learned nothing."""

from __future__ import annotations

import pickle

import pytest

from berth.cluster import Cluster
from berth.engine import simulate
from berth.interference import make_interference, make_speeds
from berth.knowledge import Noise, Noisy, Oracle
from berth.model import EventKind, Node
from berth.policies import Setting, make_policy
from berth.policies.colocation.learned import Learned, model_named, shipped_for
from berth.profiles import THESIS_GPU, workload_jobs

ONE = Cluster([Node("gpu", gpus=1, gpu_model=THESIS_GPU)])


@pytest.mark.parametrize(
    ("name", "demand"),
    [
        ("learned-time-sliced", "series"),
        ("learned-mps", "series"),
    ],
)
def test_a_model_ships_that_was_trained_for_its_policy(name: str, demand: str) -> None:
    model = model_named(name)
    assert model.demand == demand
    assert model.learner == "rollouts"
    assert set(model.interference) <= {"mps", "time-sliced"}
    tuning, _, former = model.command.partition(", from ")
    assert tuning == "python bench/learning.py tune"
    assert former.startswith(
        f"berth train --learner learned --interference {model.interference[0]} --family 8"
    )
    assert model.figures["total_time_to_one_after_the_other"] < 1


def test_learned_takes_the_model_that_was_trained_for_the_speeds_that_it_meets() -> None:
    assert shipped_for("learned", make_speeds("time-sliced")) == "learned-time-sliced"
    assert shipped_for("learned", make_speeds("mps")) == "learned-mps"
    assert shipped_for("learned", make_speeds("none")) == "learned-mps"
    wrong = Noisy(
        Oracle((), make_interference("time-sliced")), Noise(0.1, 0.03, 0.1)
    ).speeds  # still of that mode
    assert shipped_for("learned", wrong) == "learned-time-sliced"
    sent = pickle.loads(pickle.dumps(make_speeds("mps")))  # as a process of a sweep has it
    assert shipped_for("learned", sent) == "learned-mps"


def test_a_model_that_was_trained_for_another_mode_is_used_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    setting = Setting(0, knowledge=Oracle((), make_interference("mig")))
    made = make_policy("learned?model=learned-time-sliced", setting)
    assert isinstance(made, Learned)
    assert "trained for time-sliced, and here GPUs are shared by mig" in caplog.text
    caplog.clear()
    right = Setting(0, knowledge=Noisy(Oracle((), make_interference("time-sliced")), Noise(pair=0.1)))
    assert make_policy("learned?model=learned-time-sliced", right)
    assert make_policy("learned?model=untrained", setting)
    assert not caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("interference", ["mps", "time-sliced"])
def test_what_was_learned_is_worth_something_on_sets_that_were_not_trained_on(interference: str) -> None:
    model = make_interference(interference)
    totals = {}
    for policy in ("learned?plans=0", "learned?model=untrained"):
        totals[policy] = sum(
            max(
                event.time_ms
                for event in simulate(workload_jobs("GPU_light", 15, seed), ONE, policy, interference=model)
                if event.kind == EventKind.FINISH
            )
            for seed in range(3)
        )
    assert totals["learned?plans=0"] < totals["learned?model=untrained"]
