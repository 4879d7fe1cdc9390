"""Where there are several GPUs a job shares one only if that costs less time than to wait for an empty one."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

from berth.cluster import Cluster, Queue
from berth.engine import simulate
from berth.interference import make_interference, make_speeds
from berth.knowledge import Oracle
from berth.knowledge.noisy import Noise, Noisy
from berth.model import EventKind, GpuSlot, Job, Node, Placement, Share
from berth.policies import Setting, make_policy
from berth.policies.colocation.forecast import Candidate, Forecaster, Offer
from berth.policies.colocation.open_gpus import OpenGpus
from berth.policies.colocation.scene import Offered, Scene, Waits
from berth.policies.colocation.shield import shielded
from berth.policies.colocation.waits import NEVER_MS, EmptyGpus
from berth.profiles import THESIS_GPU, run_time_ms, thesis_profiles, workload_jobs

PROFILES = thesis_profiles()
TRUTH = make_interference("time-sliced")
HEAVY = "QMCPACK"


def candidate(application: str, left: float = 1.0) -> Candidate:
    work_us = 1000 * run_time_ms(PROFILES[application])
    return Candidate(application, int(left * work_us), work_us, int((1 - left) * work_us / 1000))


def allowed(offer: Offer, waits: Waits | None) -> list[bool]:
    forecasts = Forecaster(PROFILES, make_speeds("time-sliced")).forecasts([offer], THESIS_GPU)
    return shielded(Scene(forecasts, THESIS_GPU, 1, 0, (), lambda: waits))[0].tolist()


def pair_that_shares() -> tuple[str, str]:
    """Two applications of which the second, started later, slows the first, and both end sooner than in turn."""
    for one in PROFILES:
        for other in PROFILES:
            offer = Offer((candidate(one, 0.9),), (candidate(other),))
            forecasts = Forecaster(PROFILES, make_speeds("time-sliced")).forecasts([offer], THESIS_GPU)
            slowed = forecasts.ends_ms[0, 1, 0] > 1.2 * forecasts.ends_ms[0, 0, 0]
            if slowed and allowed(offer, None) == [True, True]:
                return one, other
    raise AssertionError("no such pair")


def test_the_compiled_shield_says_what_the_forecast_says_of_ends_together_and_in_turn() -> None:
    names = list(PROFILES)
    offers = [
        Offer(tuple(candidate(name, 0.6) for name in names[at : at + at % 3]),
              tuple(candidate(name) for name in names[at + 3 : at + 4 + at % 4]))
        for at in range(len(names) - 6)
    ]  # fmt: skip
    forecasts = Forecaster(PROFILES, make_speeds("time-sliced")).forecasts(offers, THESIS_GPU)
    in_turn_ms = forecasts.total_ms[:, :1] + forecasts.alone_ms()
    expected = forecasts.fits & (forecasts.total_ms <= in_turn_ms)
    found = shielded(Scene(forecasts, THESIS_GPU, 1, 0, ()))
    assert found.tolist() == expected.tolist()
    assert found.any()
    assert (forecasts.fits & ~found).any()


def test_a_job_waits_for_a_gpu_that_is_soon_empty_and_shares_where_none_is() -> None:
    tenant, job = pair_that_shares()
    offer = Offer((candidate(tenant, 0.9),), (candidate(job),))
    forecasts = Forecaster(PROFILES, make_speeds("time-sliced")).forecasts([offer], THESIS_GPU)
    slowed_ms = int(forecasts.ends_ms[0, 1, 0] - forecasts.ends_ms[0, 0, 0])
    # The wait at which both are the same: what the tenant loses, and what the job itself loses beside it.
    level_ms = slowed_ms + int(forecasts.ends_ms[0, 1, 1]) - run_time_ms(PROFILES[job])
    assert level_ms > 0
    for wait_ms, shares in ((0, False), (level_ms - 1, False), (level_ms, True), (NEVER_MS, True)):
        assert allowed(offer, Waits(np.array([[wait_ms]]), 0.0)) == [True, shares]


def test_the_more_jobs_wait_behind_the_sooner_a_gpu_is_shared() -> None:
    tenant, job = pair_that_shares()
    offer = Offer((candidate(tenant, 0.9),), (candidate(job),))
    forecasts = Forecaster(PROFILES, make_speeds("time-sliced")).forecasts([offer], THESIS_GPU)
    saved_ms = int(forecasts.total_ms[0, 0] + forecasts.alone_ms()[0, 1] - forecasts.total_ms[0, 1])
    assert saved_ms > 0
    none = Waits(np.array([[0]]), 0.0)
    assert allowed(offer, none) == [True, False]
    assert allowed(offer, none._replace(behind=1e9 / saved_ms)) == [True, True]


def test_one_job_always_starts_on_an_empty_gpu() -> None:
    offer = Offer((), (candidate(HEAVY), candidate(HEAVY)))
    assert allowed(offer, Waits(np.array([[0, 0]]), 0.0))[:3] == [True, True, False]


@pytest.fixture
def four() -> tuple[Cluster, EmptyGpus]:
    """Four GPUs of two kinds of node; jobs run on the first three."""
    nodes = [Node("a", gpus=2, gpu_model=THESIS_GPU), Node("b", gpus=2, gpu_model=THESIS_GPU, labels=("x",))]
    cluster = Cluster(nodes)
    for at, slot in enumerate((GpuSlot(0, 0), GpuSlot(0, 1), GpuSlot(1, 0))):
        job = Job(f"{at}", 0, 1000, share=Share(100))
        cluster.place(Placement(job, (slot,), Share(100), True, True), now_ms=0)
    rooms = OpenGpus(cluster, [0, 1])
    rooms.open(cluster, 0, 0, closed=())
    return cluster, EmptyGpus(rooms, [0, 1], 4)


def offered(*places: int, slot: GpuSlot = GpuSlot(0, 0)) -> list[Offered]:  # noqa: B008
    jobs = [Job(f"w{place}", 0, 1000) for place in places]
    kinds = tuple(Candidate(job.application, 1, 1) for job in jobs)
    return [Offered(slot, (), jobs, kinds, False, list(places))]


def test_jobs_find_empty_gpus_in_the_order_in_which_they_wait(four) -> None:
    cluster, empty = four
    empty.expect([GpuSlot(0, 0), GpuSlot(0, 1), GpuSlot(1, 0)], [500, 900, 700])
    waits = empty.waits(
        offered(0, 1, 2, 3, 4), cluster, 100, waiting=5, mean_ms=1000, may_run=lambda *_: True
    )
    assert waits is not None
    # One is idle; those behind the fourth wait for a job of usual length before them.
    assert waits.empty_ms.tolist() == [[0, 400, 600, 800, 1000]]
    assert waits.behind == 1.0


def test_a_gpu_that_is_late_or_that_a_job_may_not_use_is_not_waited_for(four) -> None:
    cluster, empty = four
    empty.expect([GpuSlot(0, 0), GpuSlot(0, 1), GpuSlot(1, 0)], [500, 900, 700])
    late = empty.waits(offered(1), cluster, 600, waiting=2, mean_ms=1000, may_run=lambda *_: True)
    assert late is not None
    assert late.empty_ms.tolist() == [[100]]
    first = empty.waits(
        offered(0, 2), cluster, 100, waiting=2, mean_ms=1000, may_run=lambda _, slot, __: slot.node == 0
    )
    assert first is not None
    assert first.empty_ms.tolist() == [[400, 1400]]
    none = empty.waits(offered(0), cluster, 100, waiting=1, mean_ms=1000, may_run=lambda *_: False)
    assert none is not None
    assert none.empty_ms.tolist() == [[NEVER_MS]]


def test_a_gpu_that_a_job_has_taken_whole_since_it_was_forecast_is_not_waited_for(four) -> None:
    cluster, empty = four
    empty.expect([GpuSlot(0, 0), GpuSlot(0, 1), GpuSlot(1, 0)], [500, 900, 700])
    cluster.release("0")
    cluster.place(Placement(Job("whole", 0, 9000), (GpuSlot(0, 0),), Share(1000)), now_ms=100)
    waits = empty.waits(offered(1), cluster, 100, waiting=2, mean_ms=1000, may_run=lambda *_: True)
    assert waits is not None
    assert waits.empty_ms.tolist() == [[600]]


def test_jobs_that_are_alike_are_looked_at_once_for_each_kind_of_node(four) -> None:
    cluster, empty = four
    asked: list[int] = []

    def may_run(_, slot: GpuSlot, __) -> bool:
        asked.append(slot.node)
        return True

    empty.waits(offered(0, 1, 2), cluster, 100, waiting=3, mean_ms=1000, may_run=may_run)
    assert sorted(asked) == [0, 1]


def test_an_idle_gpu_whose_node_has_too_little_left_is_not_waited_for() -> None:
    cluster = Cluster([Node("a", gpus=2, cpu_milli=4000), Node("b", gpus=2, cpu_milli=500)])
    rooms = OpenGpus(cluster, [0, 1])
    empty = EmptyGpus(rooms, [0, 1], 4)
    rooms.open(cluster, 0, 0, closed=())
    for cpu_milli, idle in ((2000, 2), (500, 4)):
        job = Job("w", 0, 1000, cpu_milli=cpu_milli)
        offers = [Offered(GpuSlot(0, 0), (), [job] * 4, (candidate(HEAVY),) * 4, False, [0, 1, 2, 3])]
        waits = empty.waits(offers, cluster, 0, waiting=4, mean_ms=1000, may_run=lambda *_: True)
        assert waits is not None
        assert (waits.empty_ms == 0).sum() == idle


def test_a_gpu_that_is_kept_for_a_job_is_there_for_no_other(four) -> None:
    cluster, empty = four
    jobs = offered(0, 1)
    given = {"waiting": 2, "mean_ms": 1000, "may_run": lambda *_: True}
    kept = jobs[0].window[0], GpuSlot(1, 1)  # the one that is idle
    waits = empty.waits(jobs, cluster, 0, kept=kept, **given)
    assert waits is not None
    assert waits.empty_ms.tolist() == [[0, NEVER_MS]]


def test_a_gpu_on_a_drained_node_is_not_waited_for(four) -> None:
    cluster, empty = four
    empty.expect([GpuSlot(0, 0), GpuSlot(0, 1), GpuSlot(1, 0)], [500, 900, 700])
    cluster.lose(0)
    waits = empty.waits(offered(1), cluster, 100, waiting=2, mean_ms=1000, may_run=lambda *_: True)
    assert waits is not None
    assert waits.empty_ms.tolist() == [[600]]


def started(policy, queue: Queue, cluster: Cluster, now_ms: int) -> list[tuple[str, int]]:
    """The jobs that a policy starts now, and their nodes."""
    found = []
    for decision in policy(queue, cluster, now_ms):
        if isinstance(decision, Placement):
            cluster.place(decision, now_ms=now_ms)
            queue.remove(decision.job)
            found.append((decision.job.id, decision.slots[0].node))
    return found


@pytest.mark.parametrize("name", ["learned", "rule", "random-sharing", "greedy"])
def test_a_job_starts_on_a_node_like_one_that_has_vanished(name: str) -> None:
    first, second = (Node(one, gpus=1, gpu_model=THESIS_GPU) for one in "ab")
    other = Node("c", gpus=1, gpu_model=THESIS_GPU, labels=("x",))
    cluster, queue = Cluster([first, second, other]), Queue()
    queue.add(Job("waits", 0, run_time_ms(PROFILES[HEAVY]), application=HEAVY))
    cluster.place(Placement(Job("whole", 0, 900_000), (GpuSlot(1, 0),), Share(1000)), now_ms=0)
    for identity in ("heavy", "too"):  # no third one fits beside them
        job = Job(identity, 0, run_time_ms(PROFILES[HEAVY]), application=HEAVY)
        cluster.place(Placement(job, (GpuSlot(2, 0),), Share(100), True, True), now_ms=0)
    cluster.nodes_changed([second, other])
    policy = make_policy(name, Setting(0, knowledge=Oracle((), TRUTH)))
    assert started(policy, queue, cluster, 1000) == []
    cluster.release("whole")
    assert started(policy, queue, cluster, 2000) == [("waits", 1)]


@pytest.mark.parametrize("name", ["learned", "greedy"])
def test_a_job_starts_on_a_node_like_one_that_is_reserved_for_others(name: str) -> None:
    reserved = Node("a", gpus=1, gpu_model=THESIS_GPU, reserved_for=("alice",))
    cluster = Cluster([reserved, Node("b", gpus=1, gpu_model=THESIS_GPU)], owners=["alice"])
    queue = Queue()
    queue.add(Job("bobs", 0, run_time_ms(PROFILES[HEAVY]), user="bob", application=HEAVY))
    policy = make_policy(name, Setting(0, knowledge=Oracle((), TRUTH)))
    assert started(policy, queue, cluster, 0) == [("bobs", 1)]


def test_on_one_gpu_and_before_a_long_queue_no_job_waits(four) -> None:
    cluster, empty = four
    given = {"mean_ms": 1000, "may_run": lambda *_: True}
    assert empty.waits(offered(0), cluster, 0, waiting=17, **given) is None
    assert empty.waits(offered(0), cluster, 0, waiting=16, **given) is not None
    assert (
        EmptyGpus(OpenGpus(cluster, [0, 1]), [0, 1], 1).waits(offered(0), cluster, 0, waiting=1, **given)
        is None
    )


def arriving(count: int, every_ms: int) -> list[Job]:
    return [
        replace(job, submit_ms=at * every_ms, retries=3)
        for at, job in enumerate(workload_jobs("random", count, 40_000))
    ]


def completion_s(policy: str, jobs: list[Job], cluster: Cluster) -> float:
    made = make_policy(policy, Setting(0, knowledge=Oracle((), TRUTH)))
    ends = {
        event.job.id: event.time_ms
        for event in simulate(jobs, cluster, made, interference=TRUTH)
        if event.kind is EventKind.FINISH
    }
    return fmean((ends[job.id] - job.submit_ms) / 1000 for job in jobs)


@pytest.mark.slow
def test_with_arrivals_it_ends_jobs_sooner_than_sharing_at_once_and_than_never_sharing() -> None:
    cluster = Cluster([Node("node", gpus=4, gpu_model=THESIS_GPU)])
    jobs = arriving(60, 30_000)
    found = {name: completion_s(name, jobs, cluster) for name in ("learned", "greedy", "fifo+best-fit")}
    assert found["learned"] < 0.98 * found["greedy"]
    assert found["learned"] < 0.98 * found["fifo+best-fit"]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["learned", "random-sharing", "rule"])
def test_no_job_waits_for_ever_for_a_gpu_whose_tenants_outlive_what_is_believed(policy: str) -> None:
    cluster = Cluster([Node("node", gpus=3, gpu_model=THESIS_GPU)])
    jobs = arriving(40, 40_000)
    doubt = Noisy(Oracle(jobs, TRUTH), Noise(run=1.0, memory=0.05, seed=3))
    made = make_policy(policy, Setting(0, knowledge=doubt))
    events = list(simulate(jobs, cluster, made, interference=TRUTH, knowledge=doubt))
    assert len([event for event in events if event.kind is EventKind.FINISH]) == len(jobs)


@pytest.mark.parametrize("policy", ["learned", "random-sharing", "rule"])
def test_a_job_shares_at_once_if_the_idle_gpu_is_on_a_node_without_cpu_for_it(policy: str) -> None:
    long = Job("long", 0, 10**9, application="GROMACS", cpu_milli=2000)
    short = Job("short", 5000, run_time_ms(PROFILES["alexnet"]), application="alexnet", cpu_milli=2000)
    nodes = [Node("a", 1, THESIS_GPU, cpu_milli=8000), Node("b", 1, THESIS_GPU, cpu_milli=1000)]
    made = make_policy(policy, Setting(0, knowledge=Oracle((), TRUTH)))
    events = simulate([long, short], Cluster(nodes), made, interference=TRUTH)
    assert {event.job.id: event.time_ms for event in events if event.kind is EventKind.START} == {
        "long": 0,
        "short": 5000,
    }
