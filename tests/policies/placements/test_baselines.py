"""Round robin and Tetris, on clusters small enough to follow."""

import pytest

from berth.cluster import Cluster
from berth.model import GpuModel, GpuSlot, Job, Node, Placement, Share
from berth.policies import PLACEMENTS, Ordered, make_policy
from berth.policies.placements.by_score import BestFit, Tetris
from berth.policies.placements.first_fit import RoundRobin
from berth.policies.protocol import refuses_by_request
from berth.policies.schemes.strict import Giving

T4 = GpuModel("T4")


def place_all(place, cluster: Cluster, jobs: list[Job]) -> list[tuple[tuple[int, int], ...] | None]:
    chosen = []
    for job in jobs:
        slots = place(job, cluster)
        if slots:
            cluster.place(Placement(job, slots, job.share))
        chosen.append(slots and tuple(tuple(slot) for slot in slots))
    return chosen


@pytest.mark.slow
def test_round_robin_goes_from_gpu_to_gpu_and_begins_again() -> None:
    cluster = Cluster([Node("a", 2, T4), Node("b", 1, T4)])
    jobs = [Job(f"j{at}", 0, 1, share=Share(300)) for at in range(5)]
    assert place_all(RoundRobin(), cluster, jobs) == [((0, 0),), ((0, 1),), ((1, 0),), ((0, 0),), ((0, 1),)]


def test_round_robin_passes_over_what_does_not_fit_and_gives_up_after_one_round() -> None:
    cluster = Cluster([Node("a", 2, T4), Node("b", 1, T4), Node("c", 0)])
    jobs = [
        Job("x", 0, 1, share=Share(600)),
        Job("two", 0, 1, gpus=2),
        Job("y", 0, 1),
        Job("z", 0, 1),
        Job("w", 0, 1),
    ]
    assert place_all(RoundRobin(), cluster, jobs) == [((0, 0),), None, ((0, 1),), ((1, 0),), None]


def test_round_robin_takes_jobs_of_several_gpus_gangs_and_jobs_without() -> None:
    cluster = Cluster([Node("a", 2, T4), Node("b", 2, T4), Node("c", 2, T4)])
    jobs = [
        Job("one", 0, 1),
        Job("two", 0, 1, gpus=2),
        Job("gang", 0, 1, gpus=2, nodes=2),
        Job("cpu", 0, 1, gpus=0, cpu_milli=100),
    ]
    assert place_all(RoundRobin(), cluster, jobs) == [
        ((0, 0),),
        ((1, 0), (1, 1)),
        ((2, 0), (0, 1)),
        ((1, -1),),
    ]


def test_tetris_aligns_what_is_free_with_what_is_asked_for() -> None:
    # a has its GPUs free and little CPU, b the reverse.
    cluster = Cluster([Node("a", 4, T4, 64_000, 64_000), Node("b", 4, T4, 64_000, 64_000)])
    cpu = Job("cpu", 0, 1, gpus=0, cpu_milli=40_000)
    gpu = Job("gpu", 0, 1, gpus=3, cpu_milli=0)
    cluster.place(Placement(cpu, (GpuSlot(0, -1),), cpu.share))
    cluster.place(Placement(gpu, tuple(GpuSlot(1, at) for at in range(3)), gpu.share))
    hungry = Job("hungry", 0, 1, gpus=1, cpu_milli=1_000)
    thirsty = Job("thirsty", 0, 1, gpus=1, share=Share(100), cpu_milli=20_000)
    assert place_all(Tetris(), cluster, [hungry, thirsty]) == [((0, 0),), ((1, 3),)]


@pytest.mark.parametrize("name", PLACEMENTS)
def test_what_a_placement_of_berth_refuses_speaks_for_all_that_ask_for_the_same(name: str) -> None:
    policy = make_policy(f"fifo+{name}")
    inner = policy.inner if isinstance(policy, Giving) else policy
    assert isinstance(inner, Ordered)
    assert refuses_by_request(inner.place)


def test_a_call_of_one_s_own_does_not_inherit_that() -> None:
    class Picky(BestFit):
        def __call__(self, job: Job, cluster: Cluster) -> tuple[GpuSlot, ...] | None:
            return None if job.user == "bob" else super().__call__(job, cluster)

    class Renamed(BestFit):
        pass

    assert [refuses_by_request(place) for place in (Picky(), Renamed(), lambda job, cluster: None)] == [
        False,
        True,
        False,
    ]
