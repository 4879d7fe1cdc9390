"""`learned` on one GPU: what it plans is done, and no rule that it followed would have ended sooner."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from berth.cluster import Cluster
from berth.engine import simulate
from berth.interference import make_interference, mode_of
from berth.knowledge import Noise, Noisy, Oracle
from berth.learning.jobsets import JobSets
from berth.learning.planned_policy import LearnedWithPlans
from berth.learning.rollouts import Rollouts, habit
from berth.model import EventKind, Node
from berth.policies import Setting, make_policy
from berth.policies.colocation.learned import LearnedSettings
from berth.policies.colocation.rules import shipped_weights
from berth.profiles import THESIS_GPU, workload_jobs

ONE = Cluster([Node("gpu", gpus=1, gpu_model=THESIS_GPU)])
INTERFERENCE = make_interference("time-sliced")


class Watched(LearnedWithPlans):
    """Notes what it plans."""

    def __init__(self, *given) -> None:
        super().__init__(*given)
        self.planned: list[list[tuple[int, int, int]]] = []
        self.models: list[Rollouts] = []

    def _best_steps(self, player, tenants, queue, tries):
        steps = super()._best_steps(player, tenants, queue, tries)
        self.planned.append(steps)
        self.models.append(player.model)
        return steps


def run(policy, jobs):
    return list(simulate(jobs, ONE, policy, interference=INTERFERENCE))


def end_ms(events) -> int:
    return max(event.time_ms for event in events if event.kind == EventKind.FINISH)


def starts(events) -> list[int]:
    return [event.time_ms for event in events if event.kind == EventKind.START]


@pytest.fixture(scope="module")
def known():
    """Eight jobs, all of which is known: the policy, and what came of it."""
    jobs = workload_jobs("GPUmemory_light", 8, 40_100)
    policy = Watched(Setting(0, knowledge=Oracle(jobs, INTERFERENCE)), LearnedSettings(plans=20))
    return jobs, policy, run(policy, jobs)


def test_what_is_planned_is_done_where_all_is_known(known) -> None:
    _, policy, events = known
    (steps,) = policy.planned  # one plan, from which the world never departs
    assert starts(events) == [when for when, mask, _ in steps for _ in range(mask.bit_count())]


def test_no_rule_that_was_followed_would_have_ended_sooner(known) -> None:
    jobs, policy, events = known
    names = policy.models[0].task.applications
    sets = JobSets(
        np.array([[names.index(job.application) for job in jobs]]), np.array([[job.work_ms for job in jobs]])
    )
    queue = np.stack([sets.application, sets.work_ms * 1000], axis=-1)[0].astype(np.int64)
    rules = np.stack([habit((0, 1.0)), habit((1, 1.0)), shipped_weights(mode_of(INTERFERENCE))])
    total_ms, _ = policy.models[0].plans(np.zeros((10, 3), np.int64), queue, rules)
    assert end_ms(events) <= total_ms.min()


def test_a_plan_that_did_not_come_true_is_made_anew() -> None:
    jobs = workload_jobs("GPUmemory_light", 6, 40_101)
    late = [replace(job, submit_ms=20_000 * (at > 3)) for at, job in enumerate(jobs)]
    policy = Watched(Setting(0, knowledge=Oracle(late, INTERFERENCE)), LearnedSettings(plans=5))
    events = run(policy, late)
    assert len(policy.planned) > 1
    assert len(starts(events)) == 6


def test_on_several_gpus_and_where_beliefs_are_in_doubt_the_network_decides() -> None:
    jobs = workload_jobs("random", 4, 40_103)
    two = Cluster([Node("gpu", gpus=2, gpu_model=THESIS_GPU)])
    policy = Watched(Setting(0, knowledge=Oracle(jobs, INTERFERENCE)))
    list(simulate(jobs, two, policy, interference=INTERFERENCE))
    assert policy.planned == []
    alone = Watched(Setting(0, knowledge=Oracle(jobs, INTERFERENCE)), LearnedSettings(plans=0))
    run(alone, jobs)
    assert alone.planned == []
    doubt = Noisy(Oracle(jobs, INTERFERENCE), Noise(run=0.1))
    unsure = Watched(Setting(0, knowledge=doubt))
    run(unsure, jobs)
    assert unsure.planned == []
    assert isinstance(make_policy("learned"), LearnedWithPlans)
