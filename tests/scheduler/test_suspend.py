"""Jobs that leave their GPUs and run on later: in the cluster, in what is expected, in the simulator and in what is
counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pytest

from berth.cluster import Cluster, Queue
from berth.engine import Suspension, simulate
from berth.errors import DoesNotFit, SchedulerError
from berth.history.store.events import write_events
from berth.history.store.record_files import records
from berth.model import (
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
    RecordState,
    Resume,
    Share,
    gang_of,
)
from berth.policies import Decision, Policy, make_policy
from berth.policies.schemes.rounds import Rounds
from berth.scheduler import Evicted, Refused, Resumed, Suspended
from berth.statistics import event_columns
from berth.statistics.measures import events_of, gpu_hours
from berth.statistics.run import timeline
from tests.scheduler.examples import Says, live, scheduler, started

CARD = GpuModel("card", mem_mib=10_000, pcie_mbps=1000)
NODES = [Node("a", 2, CARD, 8000, 30_000)]
SLOT = GpuSlot(0, 0)
HALF = Share(500, 4000)
FREE = Suspension(setup_ms=0)
"""Nothing is copied from a card whose memory is not known."""


def held(run: object) -> int | None:
    return None


def all_of_it(run: object) -> int:
    return 10_000


def test_a_suspended_job_holds_no_gpu_and_its_node_keeps_its_memory() -> None:
    cluster = Cluster(NODES)
    job = Job("a", 0, 1, share=HALF, cpu_milli=2000, mem_mib=5000)
    cluster.place(Placement(job, (SLOT,), HALF), now_ms=0)
    cluster.suspend("a", now_ms=10)
    assert cluster.free_on(SLOT) == Share(1000, 10_000)
    assert (cluster.free.cpu_milli[0], cluster.free.mem_mib[0]) == (8000, 30_000 - 5000 - 4000)
    assert (list(cluster.running), list(cluster.suspended)) == ([], ["a"])
    run = cluster.resume("a", now_ms=40)
    assert (run.start_ms, run.suspended_ms, run.as_of_ms) == (30, 30, 40)
    assert (cluster.free.cpu_milli[0], cluster.free.mem_mib[0]) == (6000, 25_000)
    cluster.suspend("a", now_ms=50)
    cluster.release("a", now_ms=60)
    for one, other in zip(cluster.free, cluster.capacity, strict=True):
        assert np.array_equal(one, other)


def test_a_share_that_grew_is_had_again_after_a_suspension() -> None:
    cluster = Cluster(NODES)
    cluster.place(Placement(Job("a", 0, 1, share=HALF), (SLOT,), HALF), now_ms=0)
    cluster.resize("a", Share(800, 9000), now_ms=1)
    cluster.suspend("a", now_ms=2)
    cluster.place(Placement(Job("b", 0, 1, share=HALF), (SLOT,), HALF), now_ms=3)
    before = cluster.digest()
    assert not cluster.can_resume("a")
    with pytest.raises(DoesNotFit):
        cluster.resume("a", now_ms=4)
    assert (cluster.suspended["a"].share, cluster.free_on(SLOT)) == (Share(800, 9000), Share(500, 6000))
    assert list(cluster.running) == ["b"]
    assert before != ""
    cluster.release("b")
    assert cluster.resume("a", now_ms=5).share == Share(800, 9000)
    assert cluster.free_on(SLOT) == Share(200, 1000)


def test_memory_of_the_node_limits_what_is_suspended() -> None:
    cluster = Cluster([Node("a", 2, CARD, 8000, 12_000)])
    for at in range(2):
        cluster.place(Placement(Job(f"j{at}", 0, 1), (GpuSlot(0, at),), Share()), now_ms=0)
    cluster.suspend("j0", now_ms=1)
    before = cluster.digest()
    with pytest.raises(DoesNotFit, match="it holds 10000 MiB of GPU memory, and node 'a' has 2000 MiB free"):
        cluster.suspend("j1", now_ms=2)
    assert cluster.digest() == before


def test_gpu_time_is_counted_while_a_gpu_is_held() -> None:
    cluster = Cluster(NODES)
    cluster.usage()
    cluster.place(Placement(Job("a", 0, 1, user="u"), (SLOT,), Share()), now_ms=0)
    cluster.suspend("a", now_ms=10)
    assert cluster.usage().users["u"].held_milli == 0
    cluster.resume("a", now_ms=100)
    cluster.release("a", now_ms=130)
    assert cluster.usage().jobs == {"a": 1000 * 40}


def test_a_scheduler_keeps_the_attempt_and_the_place_of_a_suspended_job() -> None:
    one = scheduler(nodes=[Node("a", 1, CARD, 8000, 30_000)])
    for name in ("a", "b", "c"):
        one.submit(live(name))
    assert started(one) == ["a"]
    run = one.suspended("a", 10)
    assert one.run_of("a") is run
    assert not one.waits("a")
    with pytest.raises(SchedulerError, match="waits or runs already"):
        one.submit(live("a"))
    assert [type(each).__name__ for each in one.decide(10)] == ["Resumed"], "it comes before what waits"
    one.suspended("a", 20, resumes=False)
    assert started(one, 20) == ["b"]
    with pytest.raises(SchedulerError, match="0 milli"):
        one.resumed("a", 30)
    one.ended("b", RecordState.COMPLETED, 40)
    assert started(one, 40) == ["c"], "nobody let it run on"
    one.cluster.suspended["a"].resumes = True
    one.ended("c", RecordState.COMPLETED, 50)
    (outcome,) = one.decide(50)
    assert isinstance(outcome, Resumed)
    assert (outcome.run.attempt, outcome.run.suspended_ms) == (1, 30)
    assert one.ended("a", RecordState.COMPLETED, 60).start_ms == 30
    assert not one.cluster.running


def test_a_suspended_job_may_end_be_withdrawn_or_be_lost_with_its_node() -> None:
    one = scheduler(nodes=NODES)
    for name in ("a", "b", "c"):
        one.submit(live(name))
    assert started(one) == ["a", "b"]
    one.suspended("a", 1, resumes=False)
    assert one.ended("a", RecordState.FAILED, 2).job.id == "a"
    one.suspended("b", 2, resumes=False)
    one.withdraw("b", 3)
    assert started(one, 3) == ["c"]
    one.suspended("c", 4)
    assert [run.job.id for run in one.node_lost("a", 5)] == ["c"]
    assert (one.waits("c"), one.attempt("c"), dict(one.cluster.suspended)) == (True, 2, {})
    for free, all_of in zip(one.cluster.free, one.cluster.capacity, strict=True):
        assert np.array_equal(free, all_of)


def test_what_cannot_be_suspended_is_evicted_as_before() -> None:
    tasks = [live(f"t{at}") for at in range(2)]
    one = scheduler(Says(Evict(tasks[0])), nodes=NODES)
    one.place(Placement(gang_of(tasks), (SLOT, GpuSlot(0, 1)), Share()), 0)
    with pytest.raises(SchedulerError, match="task of a gang"):
        one.suspended("t0", 0)
    assert any(isinstance(each, Evicted) for each in one.decide(1, parked_mib=all_of_it))
    for parked_mib, kind in (
        (None, Evicted),
        (held, Evicted),
        (lambda run: 40_000, Evicted),
        (all_of_it, Suspended),
    ):
        two = scheduler(Says(Evict(live("a"))), nodes=NODES)
        two.place(Placement(live("a"), (SLOT,), Share()), 0)
        outcomes = list(two.decide(1, parked_mib=parked_mib))
        assert isinstance(outcomes[0], kind), outcomes


def test_a_resume_that_cannot_be_is_refused() -> None:
    one = scheduler(Says(Resume(live("a"))))
    one.submit(live("a"))
    (refused,) = one.decide(0)
    assert isinstance(refused, Refused)
    assert (
        refused.why
        == "at 0 ms the policy decides what cannot be: job 'a' cannot be resumed: it is not suspended"
    )


def test_a_trial_of_a_suspension_leaves_nothing() -> None:
    one = scheduler(nodes=NODES)
    one.submit(live("a"))
    assert started(one) == ["a"]
    before = one.cluster.digest()
    with one.trial():
        one.suspended("a", 5)
        one.resumed("a", 9)
        one.suspended("a", 11)
    assert one.cluster.digest() == before
    assert one.cluster.running["a"].suspended_ms == 0


def test_a_new_scheduler_takes_over_what_is_suspended() -> None:
    one = scheduler(nodes=[Node("a", 1, CARD, 8000, 12_000)])
    one.place(Placement(live("b"), (SLOT,), Share()), 50)
    one.adopt_suspended(Placement(live("a", estimate_ms=100), (SLOT,), Share()), 0, 60)
    assert one.cluster.free.mem_mib[0] == 2000
    assert [*one.decide(70)] == []
    one.ended("b", RecordState.COMPLETED, 80)
    assert [type(each).__name__ for each in one.decide(80)] == ["Resumed"]


# In the simulator


def lines(events: list[Event]) -> list[tuple[int, str, str]]:
    return [
        (event.time_ms, event.kind.value, event.job.id) for event in events if event.kind != EventKind.SUBMIT
    ]


URGENT = [
    Job("low", 0, 100_000, priority=0, mem_mib=1000),
    Job("high", 20_000, 30_000, priority=5),
    Job("next", 21_000, 10_000, priority=0),
]


def run(
    suspension: Suspension | None,
    jobs: list[Job] = URGENT,
    policy: str | Policy = "preempt+fifo+first-fit",
    **more: object,
) -> list[Event]:
    card = GpuModel("card") if suspension is FREE else CARD
    cluster = Cluster([Node("a", 1, card, 8000, 30_000)])
    return list(simulate(jobs, cluster, policy, suspension=suspension, **more))  # type: ignore[arg-type]


def test_an_urgent_job_suspends_the_one_that_matters_least_which_runs_on_later() -> None:
    assert lines(run(FREE)) == [
        (0, "start", "low"), (20_000, "suspend", "low"), (20_000, "start", "high"), (50_000, "finish", "high"),
        (50_000, "resume", "low"), (130_000, "finish", "low"), (130_000, "start", "next"), (140_000, "finish", "next"),
    ]  # fmt: skip


@pytest.mark.parametrize("policy", ["preempt+fifo+first-fit", "preempt+fifo+whole-gpus", "in rounds"])
def test_a_suspended_job_runs_on_after_all_urgent_ones(policy: str) -> None:
    jobs = [
        Job("low", 0, 100_000, priority=0, mem_mib=1000),
        Job("high", 20_000, 30_000, priority=5),
        Job("higher", 21_000, 30_000, priority=5),
    ]
    decides = Rounds(make_policy("preempt+fifo+first-fit"), 1000) if policy == "in rounds" else policy
    events = lines(run(FREE, jobs, policy=decides))
    assert [each for each in events if each[1] in ("suspend", "resume")] == [
        (20_000, "suspend", "low"), (80_000, "resume", "low"),
    ]  # fmt: skip


def test_a_job_that_is_suspended_to_the_end_fails_then() -> None:
    """It waits behind an urgent job whose second node never comes back."""
    jobs = [*URGENT[:2], Job("never", 20_000, 1, gpus=2, nodes=2, priority=5)]
    cluster = Cluster([Node(name, 1, GpuModel("card"), 8000, 30_000) for name in "ab"])
    lost = [Outage(node=1, down_ms=0, up_ms=None)]
    events = list(simulate(jobs, cluster, "preempt+fifo+first-fit", suspension=FREE, outages=lost))
    assert lines(events)[-3:] == [
        (50_000, "finish", "high"),
        (50_000, "fail", "low"),
        (50_000, "reject", "never"),
    ]
    assert events[-2].reason is Reason.LEFT_WAITING
    assert events_of(event_columns(events), EventKind.FAIL) == 1


def test_suspending_and_resuming_cost_what_is_copied() -> None:
    # 10,000 MiB at 1,000 MB/s take 10.48576 s, and half a second each way besides.
    assert lines(run(Suspension(mbps=8000, setup_ms=500))) == [
        (0, "start", "low"), (20_000, "suspend", "low"), (20_000, "start", "high"), (60_986, "finish", "high"),
        (60_986, "resume", "low"), (151_972, "finish", "low"), (151_972, "start", "next"),
        (161_972, "finish", "next"),
    ]  # fmt: skip
    hours = {
        name: gpu_hours(event_columns(run(how)))
        for name, how in (("kill", None), ("free", FREE), ("suspend", Suspension()))
    }
    assert hours["free"].wasted == 0
    assert hours["kill"].wasted == pytest.approx(20 / 3600)
    assert 0 < hours["suspend"].wasted < 2 * 11 * 2 / 3600


@pytest.mark.parametrize("knowledge", ["user", "oracle", "history"])
def test_every_knowledge_sees_the_same_suspension(knowledge: str) -> None:
    jobs = [
        Job(each.id, each.submit_ms, each.work_ms, priority=each.priority, estimate_ms=1000)
        for each in URGENT
    ]
    assert lines(run(FREE, jobs, knowledge=knowledge)) == lines(run(FREE))


def test_a_time_limit_does_not_run_while_a_job_is_suspended() -> None:
    low = Job("low", 0, 100_000, time_limit_ms=60_000)
    events = lines(run(FREE, [low, Job("high", 20_000, 500_000, priority=1)]))
    assert events[-2:] == [(520_000, "resume", "low"), (560_000, "fail", "low")]


def test_where_the_node_has_too_little_memory_jobs_are_evicted() -> None:
    cluster = Cluster([Node("a", 1, CARD, 8000, 9000)])
    events = lines(list(simulate(URGENT, cluster, "preempt+fifo+first-fit", suspension=FREE)))
    assert (20_000, "evict", "low") in events
    assert not [each for each in events if each[1] == "suspend"]


def test_a_node_that_is_lost_takes_its_suspended_jobs_along() -> None:
    events = run(FREE, outages=[Outage(0, 30_000, 40_000)])
    assert [each for each in lines(events) if each[0] == 30_000] == [
        (30_000, "fail", "high"), (30_000, "fail", "low"),
    ]  # fmt: skip
    assert sorted(each.job.id for each in events if each.kind is EventKind.FINISH) == ["high", "low", "next"]


def test_records_events_and_timelines_tell_suspended_time_apart(tmp_path: Path) -> None:
    events = run(FREE)
    nodes = [Node("a", 1, CARD, 8000, 30_000)]
    low = next(record for record in records(events, nodes) if record.job_id == "low")
    assert (low.start_ms, low.end_ms, low.suspended_ms) == (0, 130_000, 30_000)
    write_events(events, nodes, tmp_path / "events.parquet")
    signs = "CASE WHEN kind IN ('start', 'resume') THEN 1 WHEN kind IN ('submit') THEN 0 ELSE -1 END"
    query = f"SELECT sum(milli * ({signs})), sum(memory_mib * ({signs})) FROM '{tmp_path}/events.parquet'"
    assert duckdb.sql(query).fetchall() == [(0, 0)]
    found = timeline(event_columns(events), nodes, points=14)
    assert set(found.allocated_milli_mean.tolist()) == {1000.0}


class Meddling:
    """Suspends and resumes at will; what cannot be is refused."""

    resumes = True

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        for job in queue:
            yield Placement(job, (SLOT,), job.share)
            return
        yield from (Resume(run.job) for run in list(cluster.suspended.values()))


def test_a_policy_of_ones_own_says_when_jobs_run_on() -> None:
    events = list(
        simulate([Job("a", 0, 1000), Job("b", 2000, 1000)], Cluster(NODES), Meddling(), suspension=FREE)
    )
    assert [each[1] for each in lines(events)] == ["start", "finish", "start", "finish"]
