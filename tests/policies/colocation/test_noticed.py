"""What a co-locating policy is made of matters: each part that is taken away is noticed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from berth.cluster import Cluster
from berth.engine import simulate
from berth.interference import make_interference, make_speeds
from berth.knowledge import Oracle
from berth.learning.jobsets import thesis_sets, thesis_task
from berth.learning.rollouts import Rollouts
from berth.model import EventKind, Node
from berth.network.forecast_network import INPUTS, OF_QUEUE, scores
from berth.policies import Setting
from berth.policies.colocation.learned import Learned, model_named
from berth.profiles import THESIS_GPU, workload_jobs

ONE = Cluster([Node("gpu", gpus=1, gpu_model=THESIS_GPU)])
MODES = ("time-sliced", "mps")


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("part", [slice(0, OF_QUEUE), slice(OF_QUEUE, INPUTS)], ids=["queue", "forecast"])
def test_the_network_that_ships_heeds_what_it_is_shown(mode: str, part: slice) -> None:
    task = thesis_task()
    rollouts = Rollouts(task, make_speeds(mode))
    worlds = rollouts.begin(thesis_sets(task, "all", 300, 60, jobs=12))
    seen, network = rollouts.inputs(worlds, worlds.allowed), model_named(f"learned-{mode}").network

    def chosen(given):
        return np.where(worlds.allowed, scores(network, given, np), -np.inf).argmax(axis=1)

    blind = seen.copy()
    blind[..., part] = 0
    choice = worlds.allowed.sum(axis=1) > 1
    assert (chosen(seen) != chosen(blind))[choice].mean() > 0.05


def total_s(policy, mode: str, workload: str, seeds: range, jobs: int = 30) -> float:
    """Seconds until all is done, the sum over some sets; `policy` is a name, or makes one of what it may know."""
    total_ms, interference = 0, make_interference(mode)
    for seed in seeds:
        waiting = workload_jobs(workload, jobs, seed)
        chosen = (
            policy if isinstance(policy, str) else policy(Setting(0, knowledge=Oracle(waiting, interference)))
        )
        events = simulate(waiting, ONE, chosen, interference=interference)
        total_ms += max(event.time_ms for event in events if event.kind == EventKind.FINISH)
    return total_ms / 1000


def test_a_network_that_says_the_opposite_makes_another_schedule() -> None:
    model = model_named("learned-time-sliced")
    turned = model.network._replace(last=-model.network.last)
    usual, opposite = (
        total_s(
            lambda setting, network=network: Learned(setting, model=replace(model, network=network)),
            "time-sliced", "random", range(1), 12,
        )
        for network in (model.network, turned)
    )  # fmt: skip
    assert usual < opposite


@pytest.mark.slow
def test_under_time_slicing_the_network_adds_to_the_rules() -> None:
    mine = total_s("learned?plans=0", "time-sliced", "GPUmemory_light", range(100, 103))
    assert mine < 0.98 * min(
        total_s(rule, "time-sliced", "GPUmemory_light", range(100, 103)) for rule in ("greedy", "rule")
    )
