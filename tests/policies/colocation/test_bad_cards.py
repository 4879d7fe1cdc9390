"""A card whose memory is less than what runs on it already, and knowledge without a single profile."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from berth.cluster import Cluster
from berth.engine import simulate
from berth.interference import make_interference
from berth.knowledge import History, Knowledge, Noise, Noisy, Oracle
from berth.model import EventKind, Job, Node, Reason, Share
from berth.policies import Setting, make_policy
from berth.profiles import THESIS_GPU, run_time_ms, thesis_profiles, workload_jobs
from berth.scheduler import Scheduler
from tests.live_loop import LiveLoop, Nodes

PROFILES = thesis_profiles()
MODEL = make_interference("mps")
KINDS = ("oracle", "noisy", "nothing")


def known(kind: str) -> Knowledge:
    if kind == "noisy":
        return Noisy(Oracle((), MODEL), Noise(memory=0.1))
    return History(speeds=Oracle((), MODEL).speeds) if kind == "nothing" else Oracle((), MODEL)


@pytest.mark.parametrize(
    ("policy", "kind"),
    [
        *product(("greedy",), KINDS),
        *(pytest.param("learned", kind, marks=pytest.mark.slow) for kind in KINDS),
        pytest.param("deeprm-max", "noisy", marks=pytest.mark.slow),
        *((other, "noisy") for other in ("tetris-sharing", "sjf-expected+greedy")),
    ],
)
def test_a_card_that_shrinks_below_what_runs_there_loses_no_job(policy: str, kind: str) -> None:
    knowledge = known(kind)
    loop = LiveLoop(
        Scheduler(
            Cluster([Node("n", 1, THESIS_GPU)]),
            make_policy(policy, Setting(0, knowledge=knowledge)),
            knowledge,
        ),
        lambda job: run_time_ms(PROFILES[job.application]),
    )
    names = ("vgg16", "googlenet", "alexnet", "GROMACS")
    jobs = [
        (at * 1000, Job(f"j{at}", at * 1000, None, application=names[at % 4], share=Share(1000, 0)))
        for at in range(12)
    ]
    small = Node("n", 1, replace(THESIS_GPU, mem_mib=2_000))
    loop.run([*jobs, (30_000, Nodes((small,))), (90_000, Nodes((Node("n", 1, THESIS_GPU),)))])
    assert sorted(loop.ends) == sorted(job.id for _, job in jobs)


@pytest.mark.parametrize("policy", ["greedy", "learned", "tetris-sharing"])
def test_under_mig_nobody_is_started_who_has_no_slice(policy: str) -> None:
    jobs = workload_jobs("GPUmemory_light", 15, 3)
    model = make_interference("mig")
    events = list(simulate(jobs, Cluster([Node("n", 1, THESIS_GPU)]), policy, interference=model))
    assert sum(event.kind is EventKind.FINISH for event in events) == len(jobs)
    assert not [event for event in events if event.reason is Reason.OUT_OF_MEMORY]
    assert events[-1].time_ms < sum(job.work_ms or 0 for job in jobs)
