"""M/M/c: waits are those of queueing theory within 1 %."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest

from berth.cluster import Cluster
from berth.engine import simulate
from berth.model import EventKind, Job, Node

WORK_MS = 100_000


def erlang_wait_s(servers: int, load: float, work: float) -> float:
    """Mean wait of M/M/c after Erlang (1917): C(c, a)·work / (c − a), a = c·load the offered traffic."""
    traffic = servers * load
    terms = sum(traffic**k / math.factorial(k) for k in range(servers))
    full = traffic**servers / math.factorial(servers) / (1 - load)
    return full / (terms + full) * work / (servers - traffic)


def arrivals(jobs: int, servers: int, load: float, seed: int) -> Iterator[Job]:
    """Exponential gaps and run times, 100 s in the mean."""
    draw = random.Random(seed)
    now_ms = 0.0
    for number in range(jobs):
        now_ms += draw.expovariate(servers * load / WORK_MS)
        yield Job(f"{number}", int(now_ms), int(draw.expovariate(1 / WORK_MS)))


@pytest.mark.slow
@pytest.mark.parametrize(("servers", "load"), [(2, 0.5), (4, 0.6)])
def test_waits_are_those_of_erlang_within_one_per_cent(servers: int, load: float) -> None:
    cluster = Cluster([Node("a", servers)])
    waited_ms = 0
    for event in simulate(arrivals(400_000, servers, load, seed=7), cluster, "fifo+first-fit"):
        if event.kind is EventKind.START:
            waited_ms += event.time_ms - event.job.submit_ms
    assert waited_ms / 400_000 == pytest.approx(erlang_wait_s(servers, load, WORK_MS), rel=0.01)
