"""The event loop: what happens, in which order, and what can never happen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.cluster import Cluster, Queue
from berth.engine import simulate
from berth.errors import PolicyError, SimulationError
from berth.interference import Outlook, Tenant
from berth.knowledge import Oracle
from berth.model import (
    FOREVER_MS,
    Event,
    EventKind,
    Evict,
    GpuModel,
    GpuSlot,
    Job,
    Node,
    Outage,
    Placement,
    Reason,
    Reservation,
    Share,
    WakeAt,
)
from berth.policies import names
from tests.engine.examples import clusters, outages, workloads

TWO_GPUS = Cluster([Node("a", gpus=2, gpu_model=GpuModel("V100", mem_mib=16_000))])
POLICIES = names()


def told(events: Iterator[Event]) -> list[str]:
    """Events as one reads them: time, what, which try of whom, where, why."""
    lines = []
    for event in events:
        where = " on " + ",".join(f"{node}.{index}" for node, index in event.slots) if event.slots else ""
        why = f" ({event.reason})" if event.reason else ""
        lines.append(f"{event.time_ms} {event.kind} {event.job.id}/{event.attempt}{where}{why}")
    return lines


def half_each(tenants: Sequence[Tenant], gpu: GpuModel | None) -> Outlook:
    """n jobs on a GPU get an nth each."""
    return Outlook((1000 // len(tenants),) * len(tenants))


def test_a_queue_is_served_in_order_and_nobody_overtakes_the_first() -> None:
    jobs = [Job("a", 0, 10), Job("b", 0, 20), Job("both", 1, 5, gpus=2), Job("c", 2, 1)]
    assert told(simulate(jobs, TWO_GPUS, "fifo+first-fit")) == [
        "0 submit a/1",
        "0 submit b/1",
        "0 start a/1 on 0.0",
        "0 start b/1 on 0.1",
        "1 submit both/1",
        "2 submit c/1",
        "10 finish a/1 on 0.0",
        "20 finish b/1 on 0.1",
        "20 start both/1 on 0.0,0.1",
        "25 finish both/1 on 0.0,0.1",
        "25 start c/1 on 0.0",
        "26 finish c/1 on 0.0",
    ]


def test_the_shortest_job_goes_first() -> None:
    jobs = [Job("now", 0, 10, gpus=2), Job("long", 1, 9), Job("short", 2, 3), Job("tie", 3, 3)]
    starts = [line for line in told(simulate(jobs, TWO_GPUS, "sjf")) if "start" in line]
    assert starts == [
        "0 start now/1 on 0.0,0.1",
        "10 start short/1 on 0.0",
        "10 start tie/1 on 0.1",
        "13 start long/1 on 0.0",
    ]


def test_neighbours_slow_each_other_and_a_change_of_neighbours_retimes_them() -> None:
    half = Share(500)
    jobs = [Job("a", 0, 10, share=half), Job("b", 4, 10, share=half)]
    # a: 4 ms alone, then 12 ms at half speed; b: the same 12 ms, then 4 ms alone.
    assert told(simulate(jobs, TWO_GPUS, "best-fit", interference=half_each)) == [
        "0 submit a/1",
        "0 start a/1 on 0.0",
        "4 submit b/1",
        "4 start b/1 on 0.0",
        "16 finish a/1 on 0.0",
        "20 finish b/1 on 0.0",
    ]


def test_an_outlook_that_holds_for_a_while_is_asked_for_again() -> None:
    def wakes_up(tenants: Sequence[Tenant], gpu: GpuModel | None) -> Outlook:
        done = tenants[0].done_ms
        return Outlook((1000,)) if done >= 3 else Outlook((500,), hold_ms=2 * (3 - done))

    jobs = [Job("a", 0, 10)]
    assert told(simulate(jobs, TWO_GPUS, "first-fit", interference=wakes_up))[-1] == "13 finish a/1 on 0.0"


def test_a_job_that_runs_out_of_memory_is_queued_again_so_often_as_it_may() -> None:
    def crowded(tenants: Sequence[Tenant], gpu: GpuModel | None) -> Outlook:
        full = len(tenants) > 1
        return Outlook((1000,) * len(tenants), out_of_memory=len(tenants) - 1 if full else None)

    half = Share(500)
    jobs = [Job("a", 0, 10, share=half), Job("b", 4, 3, share=half, retries=1)]
    one = Cluster([Node("a", gpus=1)])
    assert told(simulate(jobs, one, "first-fit", interference=crowded)) == [
        "0 submit a/1",
        "0 start a/1 on 0.0",
        "4 submit b/1",
        "4 start b/1 on 0.0",
        "4 fail b/1 on 0.0 (out-of-memory)",
        "4 submit b/2",
        "4 start b/2 on 0.0",
        "4 fail b/2 on 0.0 (out-of-memory)",
        "10 finish a/1 on 0.0",
    ]


def test_jobs_on_a_lost_node_start_again_with_or_without_what_they_had_done() -> None:
    two = Cluster([Node("a", gpus=1), Node("b", gpus=1)])
    jobs = [Job("keeps", 0, 10, keeps_work=True), Job("loses", 0, 10)]
    lost = [Outage(0, 4, 6), Outage(1, 4, 6)]
    assert told(simulate(jobs, two, "first-fit", outages=lost)) == [
        "0 submit keeps/1",
        "0 submit loses/1",
        "0 start keeps/1 on 0.0",
        "0 start loses/1 on 1.0",
        "4 fail keeps/1 on 0.0 (node-lost)",
        "4 submit keeps/2",
        "4 fail loses/1 on 1.0 (node-lost)",
        "4 submit loses/2",
        "6 start keeps/2 on 0.0",
        "6 start loses/2 on 1.0",
        "12 finish keeps/2 on 0.0",
        "16 finish loses/2 on 1.0",
    ]


def test_overlapping_and_touching_outages_are_one() -> None:
    jobs = [Job("a", 3, 1)]
    for lost in ([Outage(0, 1, 100), Outage(0, 2, 4)], [Outage(0, 1, 5), Outage(0, 5, 100)]):
        for node in (1,):
            lost.append(Outage(node, 0))
        two = Cluster([Node("a", gpus=1), Node("b", gpus=1)])
        assert told(simulate(jobs, two, "first-fit", outages=lost))[1:] == [
            "100 start a/1 on 0.0",
            "101 finish a/1 on 0.0",
        ]


def test_a_lost_node_does_not_count_as_running_out_of_memory() -> None:
    def full_at_first(tenants: Sequence[Tenant], gpu: GpuModel | None) -> Outlook:
        return Outlook((1000,), out_of_memory=0 if tenants[0].done_ms == 0 else None)

    def never(tenants: Sequence[Tenant], gpu: GpuModel | None) -> Outlook:
        return Outlook((1000,))

    job = Job("a", 0, 10, retries=1)
    one = Cluster([Node("a", gpus=1)])
    failures = [
        [
            event.reason
            for event in simulate([job], one, "fifo", interference=model, outages=lost)
            if event.reason
        ]
        for model, lost in ((full_at_first, ()), (never, [Outage(0, 4, 5), Outage(0, 7, 8)]))
    ]
    assert failures == [[Reason.OUT_OF_MEMORY] * 2, [Reason.NODE_LOST] * 2]


def test_a_service_is_not_looked_at_for_ever() -> None:
    seen: list[int] = []

    def phases(tenants: Sequence[Tenant], gpu: GpuModel | None) -> Outlook:
        seen.append(tenants[0].done_ms)
        return Outlook((500,) * len(tenants), hold_ms=10)

    jobs = [Job("service", 0, FOREVER_MS, share=Share(500)), Job("a", 20, 10, share=Share(500))]
    one = Cluster([Node("a", gpus=1)])
    assert told(simulate(jobs, one, "fifo", interference=phases))[-1] == "40 finish a/1 on 0.0"
    assert seen == [0, 5, 10, 15, 20]  # how far the service was whenever it was looked at


def test_what_is_overdue_does_not_move_the_time_at_which_others_are_given_up() -> None:
    jobs = [Job("service", 0, FOREVER_MS, gpus=2, patience_ms=10**9), Job("waits", 1, 5)]
    assert told(simulate(jobs, TWO_GPUS, "fifo"))[-1] == "1 reject waits/1 (left-waiting)"


def test_a_policy_that_asks_to_be_woken_for_ever_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def insomniac(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[WakeAt]:
        yield WakeAt(now_ms + 1)

    monkeypatch.setattr("berth.engine.IN_VAIN", 1000)
    with pytest.raises(SimulationError, match="since 1,000 instants nothing happens"):
        list(simulate([Job("a", 0, 1)], TWO_GPUS, insomniac))


def test_a_long_job_that_is_looked_at_often_is_no_standstill(monkeypatch: pytest.MonkeyPatch) -> None:
    def every_ms(tenants: Sequence[Tenant], gpu: GpuModel | None) -> Outlook:
        return Outlook((500,) * len(tenants), hold_ms=1)

    monkeypatch.setattr("berth.engine.IN_VAIN", 10)
    last = list(simulate([Job("a", 0, 100)], TWO_GPUS, "fifo", interference=every_ms))[-1]
    assert (last.kind, last.time_ms) == (EventKind.FINISH, 200)


@pytest.mark.parametrize(
    "told_of",
    [{"outages": [Outage(0, 0, 50)]}, {"reservations": [Reservation((0,), ("somebody else",), 0, 50)]}],
)
def test_a_long_wait_for_a_node_is_no_standstill(
    monkeypatch: pytest.MonkeyPatch, told_of: dict[str, Any]
) -> None:
    def insomniac(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement | WakeAt]:
        yield WakeAt(now_ms + 1)
        for job in queue:
            for node in cluster.fitting_nodes(job).tolist()[:1]:
                yield Placement(job, cluster.slots_on(node, job), job.share)

    monkeypatch.setattr("berth.engine.IN_VAIN", 10)
    events = simulate([Job("a", 0, 5)], Cluster([Node("x", gpus=1)]), insomniac, **told_of)
    last = list(events)[-1]
    assert (last.kind, last.time_ms) == (EventKind.FINISH, 55)


def test_what_was_applied_before_a_wrong_decision_has_been_told() -> None:
    events = simulate([Job("a", 0, 1)], TWO_GPUS, twice)
    assert [next(events).kind, next(events).kind] == [EventKind.SUBMIT, EventKind.START]
    with pytest.raises(PolicyError):
        next(events)


def test_a_policy_may_evict_and_ask_to_be_woken() -> None:
    def impatient(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement | Evict | WakeAt]:
        for job in queue:
            if job.priority and cluster.running:
                yield Evict(next(iter(cluster.running.values())).job)
            if now_ms < 3:
                yield WakeAt(3)
            else:
                for node in cluster.fitting_nodes(job).tolist()[:1]:
                    yield Placement(job, cluster.slots_on(node, job), job.share)

    one = Cluster([Node("a", gpus=1)])
    jobs = [Job("low", 1, 10, keeps_work=True), Job("high", 5, 2, priority=1)]
    assert told(simulate(jobs, one, impatient)) == [
        "1 submit low/1",
        "3 start low/1 on 0.0",
        "5 submit high/1",
        "5 evict low/1 on 0.0",
        "5 submit low/2",
        "5 start high/1 on 0.0",
        "7 finish high/1 on 0.0",
        "7 start low/2 on 0.0",
        "15 finish low/2 on 0.0",
    ]


def test_who_cannot_be_served_is_told_why() -> None:
    jobs = [
        Job("huge", 0, 1, gpus=3),
        Job("service", 0, FOREVER_MS, gpus=2),
        Job("hasty", 1, 1, patience_ms=0),
        Job("patient", 1, 1, patience_ms=7),
        Job("forlorn", 2, 1),
    ]
    assert told(simulate(jobs, TWO_GPUS, "first-fit")) == [
        "0 submit huge/1",
        "0 reject huge/1 (never-fits)",
        "0 submit service/1",
        "0 start service/1 on 0.0,0.1",
        "1 submit hasty/1",
        "1 submit patient/1",
        "1 reject hasty/1 (patience)",
        "2 submit forlorn/1",
        "8 reject patient/1 (patience)",
        "8 reject forlorn/1 (left-waiting)",
    ]


def test_a_time_limit_ends_a_job_for_good() -> None:
    jobs = [Job("a", 0, 10, time_limit_ms=4), Job("b", 0, 4, time_limit_ms=4)]
    assert told(simulate(jobs, TWO_GPUS, "first-fit"))[-2:] == [
        "4 fail a/1 on 0.0 (time-limit)",
        "4 finish b/1 on 0.1",
    ]


@pytest.mark.parametrize(
    ("jobs", "lost", "message"),
    [
        (
            [Job("a", 5, 1), Job("b", 4, 1)],
            (),
            "job 'b' was submitted at 4 ms, before the one that stands before it",
        ),
        ([Job("a", 5, 1), Job("a", 6, 1)], (), "two jobs have the id 'a'"),
        ([Job("a", 5, -1)], (), "job 'a' has -1 ms of work"),
        ([Job("a", 5, 1, gpus=3, nodes=2)], (), "3 GPUs on exactly 2 nodes"),
        ([], (Outage(1, 0, 5),), "an outage names node 1; the cluster has nodes 0…0"),
        ([], (Outage(0, 5, 5),), "ends at 5 ms, before"),
    ],
)
def test_what_cannot_be_replayed_is_refused(jobs: list[Job], lost: Sequence[Outage], message: str) -> None:
    with pytest.raises(SimulationError) as refusal:
        list(simulate(jobs, TWO_GPUS, "first-fit", outages=lost))
    assert message in str(refusal.value)


def twice(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement]:
    job = next(iter(queue))
    yield Placement(job, (GpuSlot(0, 0),), job.share)
    yield Placement(job, (GpuSlot(0, 1),), job.share)


def nowhere(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement]:
    yield Placement(next(iter(queue)), (GpuSlot(0, 7),), Share())


def meddles(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement]:
    job = next(iter(queue))
    cluster.place(Placement(job, (GpuSlot(0, 0),), job.share))
    yield from ()


def nonsense(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[object]:
    yield "start it"


def too_late(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[WakeAt]:
    yield WakeAt(now_ms)


def evicts_nobody(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Evict]:
    yield Evict(next(iter(queue)))


def forges(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement]:
    job = replace(next(iter(queue)), work_ms=0)
    yield Placement(job, (GpuSlot(0, 0),), job.share)


def reopens(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement]:
    job = next(iter(queue))
    yield Placement(job, (GpuSlot(0, 0),), job.share)
    cluster.reopen()


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (forges, "starts job 'a', which is not waiting"),
        (reopens, "has changed the cluster or the queue"),
        (twice, "starts job 'a', which is not waiting"),
        (nowhere, "decides what cannot be: job 'a': there is no slot (0, 7)"),
        (meddles, "has changed the cluster or the queue that it was shown"),
        (nonsense, "yields Placement, Evict or WakeAt, not 'start it'"),
        (too_late, "asks to be woken at 0 ms; expected a later whole number"),
        (evicts_nobody, "evicts job 'a', which is not running"),
    ],
)
def test_a_policy_that_decides_on_what_is_not_so_is_stopped(policy: object, message: str) -> None:
    with pytest.raises(PolicyError) as refusal:
        list(simulate([Job("a", 0, 1)], TWO_GPUS, policy))  # type: ignore[arg-type]
    assert message in str(refusal.value)


class Watched:
    """A policy that is checked to have changed nothing that it was shown."""

    def __init__(self, name: str, jobs: list[Job]) -> None:
        from berth.policies import Setting, make_policy

        self.policy = make_policy(name, Setting(3, knowledge=Oracle(jobs)))

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[object]:
        before = (cluster.digest(), [job.id for job in queue])
        for decision in self.policy(queue, cluster, now_ms):
            assert (cluster.digest(), [job.id for job in queue]) == before
            yield decision
            before = (cluster.digest(), [job.id for job in queue])
        assert (cluster.digest(), [job.id for job in queue]) == before


@settings(max_examples=150, deadline=None)
@given(data=st.data(), name=st.sampled_from(POLICIES), shared=st.booleans())
def test_no_run_breaks_the_laws(data: st.DataObject, name: str, shared: bool) -> None:
    """Capacity is never exceeded, time never runs back, every try starts and ends once, no job is forgotten."""
    nodes = data.draw(clusters())
    jobs = data.draw(workloads())
    lost = data.draw(outages(nodes))
    keywords = {"outages": lost} | ({"interference": half_each} if shared else {})
    cluster = Cluster(nodes)
    events = list(simulate(jobs, cluster, Watched(name, jobs), **keywords))  # type: ignore[arg-type]
    again = list(simulate(jobs, cluster, Watched(name, jobs), **keywords))  # type: ignore[arg-type]
    assert events == again
    assert [event.time_ms for event in events] == sorted(event.time_ms for event in events)
    check_conservation(events, nodes, lost)
    check_lives(events, jobs)


def check_conservation(events: list[Event], nodes: tuple[Node, ...], lost: Sequence[Outage]) -> None:
    """Add up from the events alone what every GPU and node gives."""
    milli: Counter[GpuSlot] = Counter()
    memory: Counter[GpuSlot] = Counter()
    cpu: Counter[int] = Counter()
    mem: Counter[int] = Counter()
    for event in events:
        sign = {EventKind.SUBMIT: 0, EventKind.REJECT: 0, EventKind.START: 1}.get(event.kind, -1)
        job = event.job
        there = Counter(slot.node for slot in event.slots)
        for slot in event.slots:
            model = nodes[slot.node].gpu_model
            if slot.index >= 0:
                assert slot.index < nodes[slot.node].gpus
                milli[slot] += sign * event.share.milli
                memory[slot] += sign * event.share.mem_mib
                assert 0 <= milli[slot] <= 1000
                assert model is not None
                assert 0 <= memory[slot] <= model.mem_mib
                assert not job.models or model.name in job.models
        for number, parts in there.items():
            node = nodes[number]
            cpu[number] += sign * -(-job.cpu_milli * parts // len(event.slots))
            mem[number] += sign * -(-job.mem_mib * parts // len(event.slots))
            assert node.cpu_milli is None or 0 <= cpu[number] <= node.cpu_milli
            assert node.mem_mib is None or 0 <= mem[number] <= node.mem_mib
            assert set(job.labels) <= set(node.labels)
            if sign == 1:
                for outage in lost:
                    back = FOREVER_MS if outage.up_ms is None else outage.up_ms
                    assert outage.node != number or not outage.down_ms <= event.time_ms < back
        if sign == 1 and job.nodes:
            assert len(there) == job.nodes
            assert len(set(there.values())) == 1
    assert not any(milli.values())
    assert not any(cpu.values())
    assert not any(mem.values())


def check_lives(events: list[Event], jobs: list[Job]) -> None:
    """Every job is submitted; every try is queued, starts at most once and ends once; nothing after the end."""
    lives: dict[str, list[Event]] = {job.id: [] for job in jobs}
    for event in events:
        lives[event.job.id].append(event)
    for identity, life in lives.items():
        kinds = [(event.kind, event.attempt) for event in life]
        assert kinds[0] == (EventKind.SUBMIT, 1), identity
        for before, after in pairwise(life):
            if before.kind is EventKind.SUBMIT:
                assert after.kind in (EventKind.START, EventKind.REJECT)
                assert after.attempt == before.attempt
            elif before.kind is EventKind.START:
                assert after.kind in (EventKind.FINISH, EventKind.FAIL, EventKind.EVICT)
                assert (after.attempt, after.slots) == (before.attempt, before.slots)
            else:
                assert before.kind in (EventKind.FAIL, EventKind.EVICT)
                assert (after.kind, after.attempt) == (EventKind.SUBMIT, before.attempt + 1)
        last = life[-1]
        assert last.kind in (EventKind.FINISH, EventKind.REJECT, EventKind.FAIL)
        if last.kind is EventKind.FAIL:
            assert last.reason in (Reason.TIME_LIMIT, Reason.OUT_OF_MEMORY)


@settings(max_examples=60, deadline=None)
@given(nodes=clusters(), jobs=workloads())
def test_without_interference_a_finished_try_takes_exactly_its_work(
    nodes: tuple[Node, ...], jobs: list[Job]
) -> None:
    starts: dict[str, int] = {}
    for event in simulate(jobs, Cluster(nodes), "fifo+best-fit"):
        if event.kind is EventKind.START:
            starts[event.job.id] = event.time_ms
        elif event.kind is EventKind.FINISH:
            assert event.time_ms - starts[event.job.id] == event.job.work_ms


def uneven(tenants: Sequence[Tenant], gpu: GpuModel | None) -> Outlook:
    """Speeds that depend on who is there, on what, and on how far the first is; sometimes too full."""
    first = tenants[0]
    base = 900 if gpu is not None and gpu.name == "V100" else 700
    speeds = tuple(max(1, base // len(tenants) - 37 * place) for place in range(len(tenants)))
    phase = first.done_ms // 7 % 2
    full = len(tenants) - 1 if len(tenants) > 2 and phase else None
    return Outlook(tuple(speed - 13 * phase for speed in speeds), hold_ms=5, out_of_memory=full)


class Evicting:
    """best-fit, and now and then an eviction or a wish to be woken."""

    def __init__(self) -> None:
        from berth.policies import make_policy

        self.policy = make_policy("fifo+best-fit")
        self.calls = 0

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement | Evict | WakeAt]:
        self.calls += 1
        if self.calls % 7 == 3 and cluster.running:
            yield Evict(next(iter(cluster.running.values())).job)
        if self.calls % 5 == 1:
            yield WakeAt(now_ms + 3)
        yield from self.policy(queue, cluster, now_ms)  # type: ignore[misc]


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_the_laws_hold_with_evictions_and_uneven_neighbours(data: st.DataObject) -> None:
    nodes = data.draw(clusters())
    jobs = data.draw(workloads())
    lost = data.draw(outages(nodes))
    runs = [
        list(simulate(jobs, Cluster(nodes), Evicting(), interference=uneven, outages=lost)) for _ in range(2)
    ]
    assert runs[0] == runs[1]
    events = runs[0]
    assert [event.time_ms for event in events] == sorted(event.time_ms for event in events)
    check_conservation(events, nodes, lost)
    check_lives(events, jobs)
    starts: dict[str, int] = {}
    for event in events:
        if event.kind is EventKind.START:
            starts[event.job.id] = event.time_ms
        elif event.kind is EventKind.FINISH and event.attempt == 1:
            lasted_ms = event.time_ms - starts[event.job.id]
            if event.job.gpus:
                assert Fraction(event.job.work_ms * 1000, 900) <= lasted_ms  # 900 is the highest speed
            else:
                assert lasted_ms == event.job.work_ms


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 1000)), min_size=1, max_size=60),
    st.integers(0, 400),
)
def test_a_job_whose_speed_keeps_changing_ends_when_exact_arithmetic_says(
    phases: list[tuple[int, int]], work_ms: int
) -> None:
    now_ms = 0
    turns = []
    for length_ms, speed in phases:
        turns.append((now_ms, length_ms, speed))
        now_ms += length_ms
    clock = {"now_ms": 0}

    def phased(tenants: Sequence[Tenant], gpu: GpuModel | None) -> Outlook:
        begin_ms = clock["now_ms"]
        for start_ms, length_ms, speed in turns:
            if start_ms == begin_ms:
                clock["now_ms"] += length_ms
                return Outlook((speed,), hold_ms=length_ms)
        return Outlook((1000,))

    done = Fraction(0)
    expected = None
    for start_ms, length_ms, speed in turns:
        needed = (work_ms - done) * 1000 / speed
        if needed <= length_ms:
            expected = start_ms + -(-needed.numerator // needed.denominator)
            break
        done += Fraction(length_ms * speed, 1000)
    if expected is None:
        rest = work_ms - done
        expected = now_ms + -(-rest.numerator // rest.denominator)
    last = list(simulate([Job("a", 0, work_ms)], TWO_GPUS, "fifo", interference=phased))[-1]
    assert (last.kind, last.time_ms) == (EventKind.FINISH, expected)


def test_every_event_has_all_of_its_fields() -> None:
    """The engine makes events by the constructor of tuples, which does not count them."""
    jobs = [Job("a", 0, 10), Job("b", 0, 10), Job("big", 0, 10, gpus=9)]
    events = list(simulate(jobs, Cluster([Node("n", gpus=1)]), "fifo+first-fit"))
    assert {event.kind for event in events} >= {
        EventKind.SUBMIT,
        EventKind.START,
        EventKind.FINISH,
        EventKind.REJECT,
    }
    assert {len(event) for event in events} == {len(Event._fields)}
