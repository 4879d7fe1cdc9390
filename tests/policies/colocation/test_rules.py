"""Opponents of `learned` without a network, and the thesis's own method: what each goes by, and no job is lost."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from berth.cluster import Cluster
from berth.engine import simulate
from berth.errors import ModelError, SettingError
from berth.interference import make_interference, make_speeds
from berth.learning.queue_kernels import _traits as traits_that_are_tuned
from berth.learning.queue_kernels import room_for
from berth.model import EventKind, Node
from berth.policies import make_policy
from berth.policies.colocation.forecast import Candidate, Forecaster, Offer
from berth.policies.colocation.rules import TRAITS, traits
from berth.profiles import THESIS_GPU, thesis_profiles, workload_jobs
from tests.every_policy import some

OPPONENTS = ("random-sharing", "rule", "pair-packer", "rollouts", "dqn", "tetris-sharing?within=memory")
OPPONENTS += ("deeprm-max?within=memory", "deeprm-mean?within=memory")


@pytest.mark.parametrize("knowledge", ["oracle", "noisy?run=0.1&memory=0.03&pair=0.1"])
def test_rollouts_go_on_where_a_job_stands_still_for_want_of_a_slice(knowledge: str) -> None:
    jobs = workload_jobs("random", 6, 0)
    cluster = Cluster([Node("gpu", gpus=2, gpu_model=THESIS_GPU)])
    events = simulate(jobs, cluster, "rollouts", interference=make_interference("mig"), knowledge=knowledge)
    assert sum(event.kind == EventKind.FINISH for event in events) == len(jobs)


@pytest.mark.parametrize("policy", some(OPPONENTS))
@pytest.mark.parametrize("knowledge", ["oracle", "noisy?run=0.1&memory=0.03&pair=0.1"])
def test_an_opponent_ends_every_job_and_is_the_same_for_a_seed(policy: str, knowledge: str) -> None:
    jobs = workload_jobs("random", 7, 3)
    cluster = Cluster([Node("gpu", gpus=1, gpu_model=THESIS_GPU)])
    runs = [
        list(
            simulate(
                jobs, cluster, policy, interference=make_interference("mps"), knowledge=knowledge, seed=5
            )
        )
        for _ in range(2)
    ]
    assert sum(event.kind == EventKind.FINISH for event in runs[0]) == len(jobs)
    assert [(one.time_ms, one.kind, one.job.id) for one in runs[0]] == [
        (one.time_ms, one.kind, one.job.id) for one in runs[1]
    ]


def test_a_rule_goes_by_the_traits_that_it_was_tuned_by() -> None:
    profiles = thesis_profiles()
    names = list(profiles)[:4]
    length = {name: len(profiles[name].usage) * profiles[name].interval_ms * 1000 for name in names}
    tenant = Candidate(names[0], length[names[0]] // 2, length[names[0]], 1000)
    waiting = tuple(Candidate(name, length[name], length[name]) for name in names[1:])
    forecasts = Forecaster(profiles, make_speeds("mps")).forecasts([Offer((tenant,), waiting)], THESIS_GPU)
    found = traits(forecasts)[0]
    compared = 0
    for mask in range(8):
        if not forecasts.fits[0, mask]:
            continue
        seats = [0, *(1 + at for at in range(3) if mask >> at & 1)]
        mine, ends = room_for(3).then, room_for(3).ends_ms
        for seat, at in enumerate(seats):
            mine[seat] = 0, forecasts.left_us[0, at], forecasts.work_us[0, at]
            ends[seat] = forecasts.ends_ms[0, mask, at]
        theirs = np.zeros(TRAITS)
        traits_that_are_tuned(mine, 1, len(seats), ends, int(forecasts.total_ms[0, mask]), theirs)
        np.testing.assert_allclose(found[mask], theirs, rtol=1e-12)
        compared += 1
    assert compared > 1


def test_weights_and_settings_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rule.json"
    path.write_text(json.dumps({"weights": [[1.0] * 7] * 2}))
    with pytest.raises(ModelError, match=r"weights of shape \(2, 7\); expected 2 × 8"):
        make_policy(f"rule?weights={path}")
    path.write_text("{}")
    with pytest.raises(ModelError, match="not the weights of a rule"):
        make_policy(f"rule?weights={path}")
    with pytest.raises(ModelError, match="no weights 'none'"):
        make_policy("rule?weights=none")
    with pytest.raises(SettingError, match="expected 0 ≤ light ≤ heavy ≤ 1"):
        make_policy("pair-packer?light=0.8&heavy=0.2")
    with pytest.raises(SettingError, match="within is 'cores'; expected card or memory"):
        make_policy("tetris-sharing?within=cores")
