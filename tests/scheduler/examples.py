"""Schedulers, jobs and policies that tests of the scheduler share."""

from __future__ import annotations

from collections.abc import Iterator

from berth.cluster import Cluster, Queue
from berth.knowledge import User
from berth.model import GpuSlot, Job, Node, Placement, Share
from berth.policies import Decision, Setting, make_policy
from berth.scheduler import Scheduler

ONE_GPU = [Node("a", 1, None, 8000, 8000)]
WHERE = (GpuSlot(0, 0),)
WHOLE = Share(1000, 0)


def live(name: str, **more: object) -> Job:
    return Job(name, 0, None, **more)  # type: ignore[arg-type]


def scheduler(policy: object = "fifo+first-fit", nodes: list[Node] = ONE_GPU, **more: object) -> Scheduler:
    knowledge = User()
    made = make_policy(policy, Setting(knowledge=knowledge)) if isinstance(policy, str) else policy
    return Scheduler(Cluster(nodes), made, knowledge, **more)  # type: ignore[arg-type]


def started(one: Scheduler, now_ms: int = 0) -> list[str]:
    return [outcome.job.id for outcome in one.decide(now_ms) if isinstance(outcome, Placement)]


class Says:
    """A policy that yields what it was told to."""

    def __init__(self, *decisions: object) -> None:
        self.decisions = decisions

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        yield from self.decisions  # type: ignore[misc]
