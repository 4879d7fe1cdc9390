"""The reservation of a first job is found by kernels, and for gangs in plain Python: both are held equal here."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from berth.cluster import Cluster
from berth.cluster.shadow import Shadow
from berth.model import GpuSlot, Job, Node, Placement, Share
from berth.policies.schemes.expected_ends import ExpectedEnds
from berth.policies.schemes.head_reservation import Reservation, Workspace

SHAPES = ((1, 1), (1, 1), (2, 1), (2, 2), (4, 2), (3, 0), (0, 1), (4, 1))
"""GPUs and nodes of a job."""
SHARES = (Share(), Share(500, 1000), Share(250, 4000), Share(250))


class InPython(Reservation):
    """A reservation that is found for every job as it is for a gang."""

    def _find(self, ends: ExpectedEnds, now_ms: int) -> None:
        self._find_for_gang(ends, now_ms)

    def spares(self, job: Job, slots: tuple[GpuSlot, ...]) -> bool:
        return not len(self._slots) or self._spares_with_gang(job, slots)

    def take(self, job: Job, slots: tuple[GpuSlot, ...]) -> None:
        Shadow(self._work.cluster, self.room).start(job, slots, job.share)


class Both(NamedTuple):
    compiled: Reservation
    plain: Reservation

    def agree(self) -> bool:
        return (self.compiled.time_ms, self.compiled.room.tolist()) == (
            self.plain.time_ms,
            self.plain.room.tolist(),
        )


def drawn(draw: random.Random, name: str) -> Job:
    gpus, nodes = draw.choice(SHAPES)
    return Job(
        name, 0, draw.randrange(1, 1000), gpus=gpus, nodes=nodes, share=draw.choice(SHARES) if gpus == 1 else Share(),
        cpu_milli=draw.randrange(6000), mem_mib=draw.randrange(9000),
    )  # fmt: skip


def slots_for(cluster: Cluster, job: Job) -> tuple[GpuSlot, ...] | None:
    return cluster.slots_for(job, cluster.fitting_nodes(job))


def full_cluster(draw: random.Random) -> Cluster:
    """Three nodes on which jobs run that end at different times."""
    cluster = Cluster(
        [Node(f"n{at}", draw.choice((1, 2, 4)), cpu_milli=16_000, mem_mib=32_000) for at in range(3)]
    )
    for number in range(12):
        job = drawn(draw, f"r{number}")
        slots = slots_for(cluster, job)
        if slots is not None:
            cluster.place(Placement(job, slots, job.share))
    return cluster


@pytest.mark.parametrize("part", range(4))
def test_kernels_and_python_find_the_same_reservation_and_spare_it_alike(part: int) -> None:
    reserved = asked = 0
    for seed in range(100 * part, 100 * part + 100):
        draw = random.Random(seed)
        cluster = full_cluster(draw)
        head = drawn(draw, "head")
        if slots_for(cluster, head) is not None:
            continue
        ends = ExpectedEnds(cluster, lambda job: None)
        ends.note_new()
        both = Both(*(kind(Workspace(cluster), head, ends, 5) for kind in (Reservation, InPython)))
        reserved += 1
        assert both.agree(), seed
        for number in range(4):
            job = drawn(draw, f"o{number}")
            slots = slots_for(cluster, job)
            if slots is None:
                continue
            asked += 1
            spares = both.compiled.spares(job, slots)
            assert both.plain.spares(job, slots) == spares, seed
            assert not spares or job.gpus * job.share.milli <= both.compiled.spare_milli, seed
            assert both.agree(), seed
            if spares:
                both.compiled.take(job, slots)
                both.plain.take(job, slots)
                assert both.agree(), seed
    assert reserved > 30
    assert asked > 20
