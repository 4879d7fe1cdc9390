"""Conservative backfilling: nobody who waits is put off by a job that comes later."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from berth.cluster import Cluster, Queue
from berth.engine import simulate
from berth.knowledge import Oracle
from berth.model import EventKind, GpuModel, Job, Node, Placement, gang_of
from berth.policies import Ordered, make_policy
from berth.policies.schemes.conservative import Conservative
from tests.every_policy import some

K80, V100 = GpuModel("K80"), GpuModel("V100")


def starts(jobs: list[Job], nodes: list[Node], policy: object, **more: object) -> dict[str, int]:
    events = simulate(jobs, Cluster(nodes), policy, **more)  # type: ignore[arg-type]
    return {event.job.id: event.time_ms for event in events if event.kind is EventKind.START}


def test_the_second_that_waits_is_not_put_off_either() -> None:
    """EASY starts the last job, as it leaves the first one that waits its GPUs; the second then waits for it."""
    jobs = [
        Job("long", 0, 100, gpus=2),
        Job("first", 1, 100, gpus=3),
        Job("second", 2, 100, gpus=4),
        Job("last", 3, 500),
    ]
    nodes = [Node("n", 4)]
    assert starts(jobs, nodes, "easy+fifo+first-fit") == {"long": 0, "last": 3, "first": 100, "second": 503}
    assert starts(jobs, nodes, "conservative+fifo+first-fit") == {
        "long": 0, "first": 100, "second": 200, "last": 300,
    }  # fmt: skip


def test_a_job_that_ends_before_the_others_begin_fills_the_gap() -> None:
    jobs = [
        Job("long", 0, 100, gpus=2),
        Job("first", 1, 100, gpus=3),
        Job("short", 2, 98),
        Job("late", 3, 98),
    ]
    assert starts(jobs, [Node("n", 3)], "conservative+fifo+first-fit") == {
        "long": 0, "short": 2, "first": 100, "late": 200,
    }  # fmt: skip


class Watched:
    """Conservative, with the first reservation of each job that was told of."""

    def __init__(self) -> None:
        parts = make_policy("fifo+first-fit")
        assert isinstance(parts, Ordered)
        self.policy = Conservative(parts.order, parts.place, Oracle())
        self.first_ms: dict[str, int] = {}

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement]:
        yield from self.policy(queue, cluster, now_ms)
        for name, at_ms in self.policy.reserved_ms.items():
            self.first_ms.setdefault(name, at_ms)


@pytest.mark.parametrize("seed", some(range(10)))
def test_every_job_starts_no_later_than_it_was_first_reserved(seed: int) -> None:
    """Run times are known, as is what is to come of the queue: the plan of one moment is that of the next."""
    draw = random.Random(seed)
    jobs, now_ms = [], 0
    for at in range(40):
        now_ms += draw.randrange(30)
        gpus, nodes = draw.choice(((1, 1), (1, 1), (2, 1), (4, 1), (4, 2)))
        jobs.append(Job(f"j{at}", now_ms, draw.randrange(1, 300), gpus=gpus, nodes=nodes))
    watched = Watched()
    found = starts(jobs, [Node("a", 4), Node("b", 4)], watched)
    assert len(found) == len(jobs)
    assert watched.first_ms
    assert all(found[name] <= at_ms for name, at_ms in watched.first_ms.items())


def test_gangs_have_a_reservation_of_all_tasks_that_start_together() -> None:
    tasks = [Job("g0", 1, 100, gpus=1), Job("g1", 1, 50, gpus=2)]
    jobs = [Job("long", 0, 100, gpus=2), gang_of(tasks), Job("short", 2, 90), Job("late", 3, 200)]
    assert starts(jobs, [Node("n", 3)], "conservative+fifo+first-fit") == {
        "long": 0, "short": 2, "g0": 100, "g1": 100, "late": 150,
    }  # fmt: skip
