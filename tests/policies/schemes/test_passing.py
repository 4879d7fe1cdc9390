"""Passing over jobs that do not fit, held against trying each waiting job in turn."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest
from hypothesis import given, settings

from berth.cluster import Cluster, Queue
from berth.engine import simulate
from berth.model import EventKind, GpuSlot, Job, Node, Placement, gang_of, placement_of
from berth.policies import Order, Place, make_policy
from berth.policies.schemes.easy import Passing
from tests.examples import examples
from tests.policies.test_orders import workloads


def as_queued(queue: Queue) -> Iterator[Job]:
    """An order without a key."""
    return iter(list(queue))


class EachInTurn:
    """The same, as one would say it."""

    def __init__(self, order: Order, place: Place) -> None:
        self.order, self.place = order, place

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement]:
        for job in list(self.order(queue, cluster, now_ms)):
            slots = self.place(job, cluster)
            if slots is not None:
                yield Placement(job, slots, job.share)


@pytest.mark.parametrize("name", ["fifo+first-fit", "sjf+best-fit", "deadline-first+worst-fit"])
@settings(max_examples=examples(25))
@given(jobs=workloads())
def test_passing_starts_what_trying_each_waiting_job_in_turn_starts(name: str, jobs: list[Job]) -> None:
    nodes = [Node("a", gpus=2), Node("b", gpus=3)]
    passing = make_policy(f"passing+{name}")
    assert isinstance(passing, Passing)
    naive = EachInTurn(passing.order, passing.place)
    assert list(simulate(jobs, Cluster(nodes), passing)) == list(simulate(jobs, Cluster(nodes), naive))


def test_a_job_that_is_refused_is_not_offered_again_in_the_same_pass() -> None:
    queue, cluster = Queue(), Cluster([Node("a", 2)])
    job = Job("a", 0, 1)
    queue.add(job)
    offered = make_policy("passing+first-fit")(queue, cluster, 0)
    assert [placement.job for placement in islice(offered, 3)] == [job]


def test_jobs_that_limits_hide_meanwhile_are_left_out() -> None:
    jobs = [Job("a", 0, 10, user="u"), Job("b", 0, 10, user="u", gpus=2), Job("c", 0, 10, user="v", gpus=4)]
    events = simulate(jobs, Cluster([Node("x", 8)]), "limits?user_running=1+passing+first-fit")
    started = [(event.job.id, event.time_ms) for event in events if event.kind == "start"]
    assert started == [("a", 0), ("c", 0), ("b", 10)]


def test_a_large_job_is_passed_over_and_waits_for_small_ones() -> None:
    jobs = [Job("first", 0, 10), Job("large", 1, 10, gpus=2), Job("small", 2, 20), Job("last", 3, 5)]
    started = {
        name: [(event.job.id, event.time_ms) for event in simulate(jobs, Cluster([Node("a", 2)]), name)
               if event.kind == "start"]
        for name in ("first-fit", "passing+first-fit")
    }  # fmt: skip
    assert started == {
        "first-fit": [("first", 0), ("large", 10), ("small", 20), ("last", 20)],
        "passing+first-fit": [("first", 0), ("small", 2), ("last", 10), ("large", 22)],
    }


@pytest.mark.parametrize("order", ["fifo", "sjf", f"{__name__}:as_queued"])
def test_no_job_starts_before_the_further_tasks_of_a_gang_that_started(order: str) -> None:
    """The further task wants what no other job has asked for yet, so that it is a request type of its own."""
    tasks = [Job("g", 0, 10), Job("g.1", 0, 10, cpu_milli=1000)]
    jobs = [gang_of(tasks, 1), Job("other", 0, 20)]
    nodes = [Node("n", 2, cpu_milli=4000)]
    events = simulate(jobs, Cluster(nodes), f"passing+{order}+first-fit")
    starts = [(event.job.id, event.time_ms) for event in events if event.kind is EventKind.START]
    assert starts == [("g", 0), ("g.1", 0), ("other", 10)]


def test_a_type_that_was_closed_when_its_last_job_left_is_tried_again() -> None:
    """Jobs come and leave while a serial between two others keeps the kernels from being asked."""
    queue, cluster = Queue(), Cluster([Node("a", 2)])
    passing = make_policy("passing+first-fit")
    cluster.place(placement_of(Job("runs", 0, 10), (GpuSlot(0, 0),)))
    large, largest = Job("large", 1, 10, gpus=2), Job("largest", 1, 10, gpus=3)
    queue.add(large)
    queue.add(largest)
    assert list(passing(queue, cluster, 1)) == []
    queue.remove(large)
    cluster.release("runs")
    assert list(passing(queue, cluster, 2)) == []
    queue.insert(Job("largest too", 2, 10, gpus=4), ahead_of=largest)
    queue.insert(Job("and this", 2, 10, gpus=5), ahead_of=largest)
    queue.add(Job("large again", 3, 10, gpus=2))
    assert [decision.job.id for decision in islice(passing(queue, cluster, 3), 1)] == ["large again"]
