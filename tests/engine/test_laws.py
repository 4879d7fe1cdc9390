"""Laws that no run breaks, whatever the policy: each attempt starts and ends once, and capacity is never exceeded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from berth.cluster import Cluster, Queue
from berth.engine import simulate
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
    WakeAt,
)
from berth.policies import names
from tests.engine.examples import clusters, half_each, outages, workloads
from tests.examples import examples

TWO_GPUS = Cluster([Node("a", gpus=2, gpu_model=GpuModel("V100", mem_mib=16_000))])
POLICIES = names()


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


@settings(max_examples=examples(75), deadline=None)
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


@settings(max_examples=examples(60), deadline=None)
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


@settings(max_examples=examples(40), deadline=None)
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


@settings(max_examples=examples(80), deadline=None)
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
