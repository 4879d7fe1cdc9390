"""The event loop: what happens, in which order, and what can never happen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

import berth
from berth.cluster import Cluster, Queue
from berth.engine import simulate
from berth.errors import PolicyError, SettingError, SimulationError
from berth.interference import Outlook, Tenant
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
from tests.engine.examples import half_each

TWO_GPUS = Cluster([Node("a", gpus=2, gpu_model=GpuModel("V100", mem_mib=16_000))])


def told(events: Iterator[Event]) -> list[str]:
    """Events as one reads them: time, what, which try of whom, where, why."""
    lines = []
    for event in events:
        where = " on " + ",".join(f"{node}.{index}" for node, index in event.slots) if event.slots else ""
        why = f" ({event.reason})" if event.reason else ""
        lines.append(f"{event.time_ms} {event.kind} {event.job.id}/{event.attempt}{where}{why}")
    return lines


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

    monkeypatch.setattr("berth.engine.run.IN_VAIN", 1000)
    with pytest.raises(SimulationError, match="since 1,000 instants nothing happens"):
        list(simulate([Job("a", 0, 1)], TWO_GPUS, insomniac))


def test_a_long_job_that_is_looked_at_often_is_no_standstill(monkeypatch: pytest.MonkeyPatch) -> None:
    def every_ms(tenants: Sequence[Tenant], gpu: GpuModel | None) -> Outlook:
        return Outlook((500,) * len(tenants), hold_ms=1)

    monkeypatch.setattr("berth.engine.run.IN_VAIN", 10)
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

    monkeypatch.setattr("berth.engine.run.IN_VAIN", 10)
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
        (nonsense, "yields Placement, Evict, Resume, Resize or WakeAt, not 'start it'"),
        (too_late, "asks to be woken at 0 ms; expected a later whole number"),
        (evicts_nobody, "evicts job 'a', which is not running"),
    ],
)
def test_a_policy_that_decides_on_what_is_not_so_is_stopped(policy: object, message: str) -> None:
    with pytest.raises(PolicyError) as refusal:
        list(simulate([Job("a", 0, 1)], TWO_GPUS, policy))  # type: ignore[arg-type]
    assert message in str(refusal.value)


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


@pytest.mark.parametrize(
    "policy", ["fifo", "easy+fifo+first-fit", "preempt+fifo+first-fit", "passing+fifo+first-fit"]
)
def test_jobs_that_waited_behind_one_start_when_its_patience_ends(policy: str) -> None:
    """The impatient job wants more GPUs than are free; when it leaves nothing else happens for ten hours."""
    hour_ms = 3_600_000
    jobs = [
        Job("long", 0, 10 * hour_ms),
        Job("impatient", 1000, 1000, gpus=2, patience_ms=1000),
        Job("short", 1500, 11 * hour_ms),
    ]
    events = simulate(jobs, Cluster([Node("n", 2)]), policy)
    starts = {event.job.id: event.time_ms for event in events if event.kind is EventKind.START}
    assert starts["short"] == (1500 if policy.startswith("passing") else 2000)


def test_what_is_no_cluster_and_no_jobs_is_refused_with_what_would_be() -> None:
    jobs: Any = "jobs.csv"
    nodes: Any = (Node("n", gpus=1),)
    with pytest.raises(SettingError, match=r"simulate takes jobs, such as berth\.read_trace\('jobs\.csv'\)"):
        simulate(jobs, Cluster(nodes), "fifo")
    with pytest.raises(SettingError, match=r"such as berth\.Cluster\(trace\.nodes\); not \(Node\("):
        simulate([], nodes, "fifo")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: simulate(None, TWO_GPUS, "fifo"), "simulate takes jobs, such as .*; not None"),
        (lambda: simulate([], TWO_GPUS, None), "simulate takes a policy by its name or .*; not None"),
        (
            lambda: simulate([], TWO_GPUS, "fifo", interference="mps"),
            "interference as a function.*; not 'mps'",
        ),
        (lambda: simulate([], TWO_GPUS, "fifo", outages=3), "outages, each a berth.Outage; not 3"),
        (lambda: berth.Cluster(None), "a cluster takes nodes, each a berth.Node; not None"),
        (lambda: berth.Cluster("2x4:A100"), r"such as berth\.read_nodes\('2x4:A100'\); not '2x4:A100'"),
        (
            lambda: simulate([], TWO_GPUS, "fifo", seed=1.5),
            "simulate takes a whole number as its seed; not 1.5",
        ),
        (
            lambda: berth.compare("synthetic:demo", "fifo", seeds="3"),
            "compare takes seeds as .* list; not '3'",
        ),
        (lambda: berth.make_policy(None), "make_policy takes the name of a policy.*; not None"),
        (lambda: berth.read_trace(None), "read_trace takes the path of a trace.*; not None"),
        (lambda: list(berth.read(5)), "read takes a Trace or its path; not 5"),
        (lambda: berth.read_nodes(None), "read_nodes takes a file.*; not None"),
        (lambda: berth.compare(None, "fifo"), "compare takes a trace.*; not None"),
        (lambda: berth.compare("synthetic:demo", None), "compare takes policies.*; not None"),
        (lambda: berth.compare("synthetic:demo", "fifo", processes="x"), "a number of processes; not 'x'"),
        (lambda: berth.compare("synthetic:demo", "fifo", compress="x"), "compress takes a number.*; not 'x'"),
        (lambda: berth.sweep(None), "sweep takes a plan.*; not None"),
        (
            lambda: berth.write_report(None, "x.html"),
            "write_report takes what berth.compare returned; not None",
        ),
    ],
)
def test_a_value_of_another_kind_is_refused_where_it_enters(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        call()


def test_what_is_no_job_is_named() -> None:
    jobs: Any = [Job("a", 0, 10), "b"]
    with pytest.raises(SimulationError, match=r"'b' is among the jobs; expected each to be a berth\.Job"):
        list(simulate(jobs, TWO_GPUS, "fifo"))
