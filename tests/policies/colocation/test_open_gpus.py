"""Large clusters: a decision looks at the GPUs whose turn it is, and every GPU gets its turn."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from berth.cluster import PLACE_MILLI, Cluster
from berth.engine import simulate
from berth.interference import make_interference
from berth.knowledge import Oracle
from berth.model import NO_GPU, EventKind, GpuModel, GpuSlot, Job, Node, Placement
from berth.policies import Setting, make_policy
from berth.policies.colocation import colocating
from berth.policies.colocation import open_gpus as open_gpus_module
from berth.policies.colocation.colocating import Colocating
from berth.policies.colocation.forecast import Candidate, Forecaster, Forecasts, Offer
from berth.policies.colocation.open_gpus import LEAD_STEP_MS, MOST_ASKED_AGAIN, OpenGpus, look_again_ms
from berth.profiles import THESIS_GPU, workload_jobs
from berth.scheduler import Scheduler
from tests.every_policy import some

GPUS = 200
LATER_MS = 10**9


def cluster_of(gpus: int) -> Cluster:
    return Cluster([Node(f"n{at}", 8, THESIS_GPU) for at in range(gpus // 8)])


def tenant(cluster: Cluster, name: str, slot: GpuSlot) -> None:
    job = Job(name, 0, 10**6, application="vgg16")
    cluster.place(Placement(job, (slot,), job.share, True, True), now_ms=0)


def filled(gpus: int) -> Cluster:
    cluster = cluster_of(gpus)
    for at in range(gpus):
        tenant(cluster, f"t{at}", GpuSlot(at // 8, at % 8))
    return cluster


def asked_and_declined(open_gpus: OpenGpus, cluster: Cluster, now_ms: int, changes: int) -> list[GpuSlot]:
    open_gpus.begin()
    found = open_gpus.open(cluster, now_ms, changes, closed=()).rooms
    for room in found:
        open_gpus.decline(
            room, [Job(f"{changes}", 0, 1)], hold_ms=LATER_MS, now_ms=now_ms, queue_changes=changes
        )
    return [slot for slot, _ in found]


@pytest.mark.parametrize("gpus", [8, MOST_ASKED_AGAIN])
def test_of_few_gpus_all_with_room_are_asked_each_time(gpus: int) -> None:
    cluster = filled(gpus)
    open_gpus = OpenGpus(cluster, [0] * len(cluster.nodes))
    for changes in range(3):
        assert len(asked_and_declined(open_gpus, cluster, 0, changes)) == gpus


def test_of_many_those_asked_longest_ago_are_next_and_none_is_left_out() -> None:
    cluster = filled(GPUS)
    open_gpus = OpenGpus(cluster, [0] * len(cluster.nodes))
    assert len(asked_and_declined(open_gpus, cluster, 0, 0)) == GPUS
    assert not open_gpus.postponed
    turns = [asked_and_declined(open_gpus, cluster, 1, 1) for _ in range(-(-GPUS // MOST_ASKED_AGAIN))]
    assert all(len(turn) <= MOST_ASKED_AGAIN for turn in turns)
    assert sorted(slot for turn in turns for slot in turn) == sorted(
        GpuSlot(at // 8, at % 8) for at in range(GPUS)
    )
    assert asked_and_declined(open_gpus, cluster, 2, 1) == []  # nothing has changed since
    assert not open_gpus.postponed


def test_a_gpu_that_is_offered_the_same_again_has_had_its_turn() -> None:
    cluster = filled(GPUS)
    open_gpus = OpenGpus(cluster, [0] * len(cluster.nodes))
    asked_and_declined(open_gpus, cluster, 0, 0)
    seen: set[GpuSlot] = set()
    for _ in range(-(-GPUS // MOST_ASKED_AGAIN)):
        open_gpus.begin()
        for room in open_gpus.open(cluster, 1, 1, closed=()).rooms:
            assert open_gpus.declines_still(room, [Job("0", 0, 1)], now_ms=1, queue_changes=1)
            seen.add(room[0])
    assert len(seen) == GPUS


def test_idle_changed_and_due_gpus_are_asked_at_once() -> None:
    cluster = filled(GPUS)
    open_gpus = OpenGpus(cluster, [0] * len(cluster.nodes))
    asked_and_declined(open_gpus, cluster, 0, 0)
    cluster.release("t7")
    tenant(cluster, "second", GpuSlot(20, 3))
    cluster.lose(5)
    first = asked_and_declined(open_gpus, cluster, 1, 0)
    assert first == [GpuSlot(0, 7), GpuSlot(20, 3)]  # the queue is as it was: no other has reason to be asked
    assert asked_and_declined(open_gpus, cluster, 2, 0) == [GpuSlot(0, 7)]  # idle
    cluster.restore(5)
    assert {slot.node for slot in asked_and_declined(open_gpus, cluster, 3, 0)} == {0, 5}
    assert len(asked_and_declined(open_gpus, cluster, LATER_MS, 0)) >= GPUS - 16


def declining(open_gpus: OpenGpus, cluster: Cluster, now_ms: int) -> list[GpuSlot]:
    """One decision in which all that are asked decline, sixteen at a time."""
    open_gpus.begin()
    closed: list[GpuSlot] = []
    more = True
    while more:
        rooms, _, more = open_gpus.open(cluster, now_ms, 0, closed=closed, waiting=1, most=16)
        for room in rooms:
            open_gpus.decline(room, [Job("a", 0, 1)], hold_ms=LATER_MS, now_ms=now_ms, queue_changes=0)
        closed += [slot for slot, _ in rooms]
    return closed


def test_a_decision_ends_when_many_have_declined_and_the_next_ones_ask_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_gpus_module, "MOST_DECLINED", 72)
    cluster = filled(GPUS)
    open_gpus = OpenGpus(cluster, [0] * len(cluster.nodes))
    turns = []
    for now_ms in range(2):
        turns.append(declining(open_gpus, cluster, now_ms))
        assert open_gpus.postponed
    cluster.release("t3")
    tenant(cluster, "other", GpuSlot(0, 3))  # it has declined, but beside another tenant
    turns.append(declining(open_gpus, cluster, 3))
    assert not open_gpus.postponed
    assert [len(turn) for turn in turns] == [72, 72, 57]
    assert turns[2].count(GpuSlot(0, 3)) == 1
    assert len({slot for turn in turns for slot in turn}) == GPUS
    assert declining(open_gpus, cluster, 4) == []


def test_one_that_had_too_little_left_is_asked_when_it_or_its_node_has_more_and_not_before() -> None:
    cluster = Cluster([Node(f"n{at}", 8, THESIS_GPU, 10_000, 10_000) for at in range(GPUS // 8)])
    for at in range(GPUS):
        tenant(cluster, f"t{at}", GpuSlot(at // 8, at % 8))
    on_node = Job("on-node", 0, 10**6, gpus=0, cpu_milli=9000)
    cluster.place(Placement(on_node, (GpuSlot(4, NO_GPU),), on_node.share, False, False), now_ms=0)
    open_gpus = OpenGpus(cluster, [0] * len(cluster.nodes))
    open_gpus.begin()
    for room in open_gpus.open(cluster, 0, 0, closed=()).rooms:
        short_on = cluster if room[0].node == 4 else None
        open_gpus.decline(
            room, [Job("a", 0, 1)], hold_ms=LATER_MS, now_ms=0, queue_changes=0, short_on=short_on
        )
    assert asked_and_declined(open_gpus, cluster, 1, 0) == []
    takes = Job("takes", 0, 10**6, gpus=0, cpu_milli=500)
    cluster.place(Placement(takes, (GpuSlot(4, NO_GPU),), takes.share, False, False), now_ms=0)
    assert asked_and_declined(open_gpus, cluster, 2, 0) == []
    cluster.release("on-node")
    assert asked_and_declined(open_gpus, cluster, 3, 0) == [GpuSlot(4, at) for at in range(8)]
    assert asked_and_declined(open_gpus, cluster, 4, 0) == []


def test_what_is_kept_is_what_the_cluster_says() -> None:
    """After any run of placements, ends and lost nodes the open_gpus are those that a look at every GPU finds."""
    cluster = cluster_of(32)
    open_gpus = OpenGpus(cluster, [0] * len(cluster.nodes))
    queued = [replace(job, id=f"{at}") for at, job in enumerate(workload_jobs("random", 60, 5))]
    for at, job in enumerate(queued):
        slot = GpuSlot(at % 4, at * 7 % 8)
        if at % 11 == 10:
            cluster.lose(at % 4)
        elif at % 11 == 5:
            cluster.restore((at + 5) % 4)
        elif at % 3 == 2 and cluster.running:
            cluster.release(next(iter(cluster.running)))
        elif cluster.free.milli[slot] >= PLACE_MILLI and cluster.up[slot.node]:
            cluster.place(Placement(job, (slot,), job.share, True, True), now_ms=0)
        every = {
            slot: cluster.jobs_on(slot)
            for slot in (GpuSlot(node, index) for node in range(4) for index in range(8))
            if cluster.up[slot.node] and cluster.free.milli[slot] >= PLACE_MILLI
        }
        found = dict(open_gpus.open(cluster, 0, 0, closed=()).rooms)
        assert found == {slot: tenants for slot, tenants in every.items() if len(tenants) < 4}


def test_a_decision_on_a_full_cluster_forecasts_few_gpus() -> None:
    model = make_interference("mps")
    jobs = [
        replace(job, id=f"{at}", submit_ms=max(0, at - 600) * 200)
        for at, job in enumerate(workload_jobs("random", 800, 77))
    ]
    policy = make_policy("rule", Setting(0, knowledge=Oracle((), model)))
    assert isinstance(policy, Colocating)
    offers: list[int] = []
    forecasts = policy.forecaster.forecasts

    def counted(offered: list[Offer], *rest: object) -> object:
        offers.append(len(offered))
        return forecasts(offered, *rest)  # type: ignore[arg-type]

    policy.forecaster.forecasts = counted  # type: ignore[method-assign,assignment]
    begun = 0
    for event in simulate(jobs, cluster_of(104), policy, interference=model):
        begun += event.kind is EventKind.START
        if event.time_ms > 5_000:
            break
    assert begun > 250
    assert max(offers) == 104  # at first all are idle
    assert len(offers) > 40
    assert sum(count > MOST_ASKED_AGAIN for count in offers) <= 3


def test_of_idle_gpus_no_more_are_asked_than_jobs_wait_on_each_kind_of_node() -> None:
    cluster = cluster_of(GPUS)
    kinds = [node % 2 for node in range(GPUS // 8)]
    open_gpus = OpenGpus(cluster, kinds)
    tenant(cluster, "t", GpuSlot(0, 0))
    found = [
        slot
        for slot, _ in open_gpus.open(
            cluster, 0, 0, closed={GpuSlot(1, 0)}, waiting=3, always=GpuSlot(9, 5)
        ).rooms
    ]
    assert found == [*(GpuSlot(0, at) for at in range(1, 5)), *(GpuSlot(1, at) for at in range(1, 5)),
                     GpuSlot(9, 5), GpuSlot(0, 0)]  # fmt: skip
    assert len(open_gpus.open(cluster, 0, 0, closed=()).rooms) == GPUS


@pytest.mark.parametrize("tenants", [0, 3, GPUS - 2])
@pytest.mark.parametrize("most", [1, 5, GPUS - 1, GPUS, 2 * GPUS])
def test_the_first_of_the_gpus_are_the_first_of_all_and_the_one_that_is_kept(tenants: int, most: int) -> None:
    cluster = Cluster([Node(f"n{at}", 8, THESIS_GPU) for at in range(GPUS // 8)])
    for at in range(tenants):
        tenant(cluster, f"t{at}", GpuSlot(at // 8, at % 8))
    for always in (None, GpuSlot(0, 0), GpuSlot(GPUS // 8 - 1, 7)):
        open_gpus = OpenGpus(cluster, [0] * len(cluster.nodes))
        open_gpus.begin()
        every = open_gpus.open(cluster, 0, 0, closed=(), waiting=GPUS, always=always).rooms
        open_gpus.begin()
        found = open_gpus.open(cluster, 0, 0, closed=(), waiting=GPUS, always=always, most=most)
        assert found.rooms == [*every[:most], *(room for room in every[most:] if room[0] == always)]
        assert found.idle == sum(not held for _, held in every)
        assert found.more or len(found.rooms) == len(every)


@pytest.mark.parametrize("seed", some(range(3)))
def test_what_starts_is_the_same_as_when_every_idle_gpu_is_asked(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two kinds of cards, CPU that runs short, jobs that allow one kind or both."""
    other = replace(THESIS_GPU, name="Other", mem_mib=THESIS_GPU.mem_mib // 2)
    nodes = [Node(f"n{at}", 2, (THESIS_GPU, other)[at % 2], 4000, 10_000) for at in range(10)]
    draw = random.Random(seed)
    jobs = [
        replace(job, id=f"{at}", submit_ms=at * draw.choice((0, 500, 9000)), cpu_milli=draw.choice((500, 3000)),
                models=draw.choice(((), (THESIS_GPU.name,), ("Other",))))
        for at, job in enumerate(workload_jobs("random", 40, seed))
    ]  # fmt: skip
    jobs.sort(key=lambda job: job.submit_ms)
    model = make_interference("mps")

    def run() -> list[tuple[object, ...]]:
        events = simulate(jobs, Cluster(nodes), "greedy", interference=model)
        return [(event.time_ms, event.kind, event.job.id, event.slots) for event in events]

    few = run()
    ask = OpenGpus.open
    monkeypatch.setattr(OpenGpus, "open", lambda *of, waiting=None, **more: ask(*of, waiting=None, **more))
    assert few == run()


def test_on_many_gpus_the_first_start_before_all_are_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of(40)
    knowledge = Oracle((), make_interference("time-sliced"))
    policy = make_policy("greedy", Setting(0, knowledge=knowledge))
    asked: list[int] = []
    real = Forecaster.forecasts

    def forecasts(
        self: Forecaster,
        offers: Sequence[Offer],
        gpu: GpuModel | None,
    ) -> Forecasts:
        asked.append(len(offers))
        return real(self, offers, gpu)

    monkeypatch.setattr(Forecaster, "forecasts", forecasts)
    monkeypatch.setattr(colocating, "MOST_AT_ONCE", 16)
    scheduler = Scheduler(cluster, policy, knowledge)
    for at in range(160):
        scheduler.submit(Job(f"j{at}", 0, 10**6, application="vgg16"))
    started = {slot for each in scheduler.decide(1) if isinstance(each, Placement) for slot in each.slots}
    assert len(started) == 40
    assert max(asked) == 16


@pytest.mark.parametrize(("ran_ms", "again_ms"), [(100_000, LEAD_STEP_MS), (604_800_000, 1_209_600)])
def test_beside_a_job_that_has_outlived_its_forecast_a_gpu_is_asked_ever_more_seldom(
    ran_ms: int, again_ms: int
) -> None:
    jobs = workload_jobs("GPU_light", 2, 0)
    knowledge = Oracle(jobs, make_interference("mps"))
    forecaster = Forecaster(knowledge.profiles, knowledge.speeds)
    late = Candidate(jobs[0].application, 1, 60_000_000, ran_ms)
    fresh = Candidate(jobs[1].application, 60_000_000, 60_000_000)
    forecasts = forecaster.forecasts([Offer((late,), (fresh,))], THESIS_GPU)
    assert look_again_ms(forecasts).tolist() == [again_ms]
