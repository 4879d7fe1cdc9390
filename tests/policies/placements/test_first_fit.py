"""First fit remembers where each type of request does not fit: held against looking at every node each time."""

from __future__ import annotations

import random

import pytest

from berth.cluster import Cluster
from berth.model import Job, Node, Share, placement_of
from berth.policies.placements.first_fit import FirstFit

KINDS = (
    {"gpus": 1},
    {"gpus": 2},
    {"gpus": 4},
    {"gpus": 1, "share": Share(300)},
    {"gpus": 1, "cpu_milli": 3000},
    {"gpus": 0, "cpu_milli": 2000},
)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 130])
def test_it_takes_the_first_node_that_fits_whatever_came_and_went(count: int) -> None:
    """On clusters of one word of nodes and of several, more given back in between than there are nodes."""
    draw = random.Random(count)
    cluster = Cluster(
        [Node(f"n{at}", gpus=draw.choice((1, 2, 4)), cpu_milli=8000, mem_mib=9000) for at in range(count)]
    )
    first_fit, running = FirstFit(), list[str]()
    full = 0
    for number in range(12 * count + 40):
        job = Job(f"j{number}", 0, 1, **draw.choice(KINDS))  # type: ignore[arg-type]
        fitting = cluster.fitting_nodes(job).tolist()
        slots = first_fit(job, cluster)
        assert (slots[0].node if slots else None) == (fitting[0] if fitting else None)
        if slots:
            cluster.place(placement_of(job, slots), now_ms=0)
            running.append(job.id)
        else:
            full += 1
        for _ in range(draw.choice((0, 0, 0, 1, 5, 2 * count) if full else (0,))):
            if running:
                cluster.release(running.pop(draw.randrange(len(running))), now_ms=0)
    assert full
