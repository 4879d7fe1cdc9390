"""`whole-gpus` under every scheme: a job that asks for a part of a GPU is one that asks for the whole."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from berth.cluster import Cluster
from berth.engine import simulate
from berth.knowledge import User
from berth.model import WHOLE_GPU, Event, Job, Node, Outage, Share, gang_of
from berth.policies import Setting, make_policy
from berth.policies.protocol import GivesMore, Reserving
from tests.every_policy import some

NODES = [Node("a", 2, cpu_milli=16_000, mem_mib=64_000), Node("b", 4, cpu_milli=32_000, mem_mib=64_000)]
SCHEMES = (
    "fifo", "sjf-requested", "fair-share", "least-attained-service", "easy+fifo", "easy+priority", "easy+sjf-requested",
    "passing+fifo", "preempt+priority", "limits?user_running=4+easy+fifo",
)  # fmt: skip
SHARES = (WHOLE_GPU, Share(500, 4000), Share(250, 1000))


def workload(seed: int) -> list[Job]:
    """Jobs of parts, of whole GPUs and of none, alone and as gangs of which tasks start later."""
    draw = random.Random(seed)
    jobs: list[Job] = []
    for at in range(40):
        job = Job(
            f"j{at}", at * draw.randrange(4000), draw.randrange(1000, 90_000), f"u{at % 3}", cpu_milli=1000,
            time_limit_ms=draw.choice((None, 90_000, 120_000)), priority=draw.randrange(3), keeps_work=bool(at % 2),
        )  # fmt: skip
        if draw.random() < 0.2:
            tasks = [replace(job, id=f"{job.id}.{task}", share=draw.choice(SHARES)) for task in range(3)]
            jobs.append(gang_of(tasks, draw.choice((1, 2, 3))))
        else:
            gpus = draw.choice((0, 1, 1, 1, 2, 3))
            jobs.append(replace(job, gpus=gpus, share=draw.choice(SHARES) if gpus < 2 else WHOLE_GPU))
    return sorted(jobs, key=lambda job: job.submit_ms)


def whole(job: Job) -> Job:
    if job.tasks:
        return gang_of([whole(task) for task in job.tasks], job.min_tasks, job.gang)
    return replace(job, share=WHOLE_GPU) if job.gpus else job


def seen(jobs: list[Job], policy: str) -> list[tuple[object, ...]]:
    """What happened, with the share that a run was given."""
    made = make_policy(policy, Setting(knowledge=User()))
    outages = (Outage(0, 30_000, 45_000),)
    events: list[Event] = list(simulate(jobs, Cluster(NODES), made, knowledge=User(), outages=outages))
    return [
        (each.time_ms, each.kind, each.job.id, each.attempt, each.slots, each.share if each.slots else None)
        for each in events
    ]


@pytest.mark.parametrize("scheme", some(SCHEMES))
def test_parts_are_placed_as_jobs_that_ask_for_whole_gpus(scheme: str) -> None:
    for seed in range(4):
        jobs = workload(seed)
        given = seen(jobs, f"{scheme}+whole-gpus")
        assert given == seen([whole(job) for job in jobs], f"{scheme}+best-fit")
        assert given != seen(jobs, f"{scheme}+best-fit")


def test_a_policy_says_what_it_gives_and_when_its_reservations_begin() -> None:
    policy = make_policy("easy+fifo+whole-gpus")
    assert isinstance(policy, GivesMore)
    assert isinstance(policy, Reserving)
    half = Job("a", 0, 1000, share=Share(500, 4000))
    assert policy.given(half) == replace(half, share=WHOLE_GPU)
