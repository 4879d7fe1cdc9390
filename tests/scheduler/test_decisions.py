"""What the scheduler makes of a policy's decisions, those that make no sense among them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from berth.cluster import Cluster, Queue
from berth.errors import PolicyError
from berth.knowledge import User
from berth.model import Evict, GpuSlot, Placement, Share, WakeAt
from berth.policies import Decision
from berth.scheduler import Evicted, Refused, Scheduler
from tests.scheduler.examples import ONE_GPU, WHERE, WHOLE, Says, live, scheduler, started


def test_a_wake_stays_until_it_is_due_and_is_handed_out_once() -> None:
    one = scheduler(Says(WakeAt(100), WakeAt(50), WakeAt(100)))
    one.submit(live("a"))
    assert list(one.decide(0)) == [WakeAt(100), WakeAt(50)]
    assert one.next_wake_ms == 50
    assert list(one.decide(10)) == []  # known already
    assert one.next_wake_ms == 50
    assert [type(outcome) for outcome in one.decide(60)] == [Refused]  # 50 ms is over: not later than now
    assert one.next_wake_ms == 100


@pytest.mark.parametrize(
    ("decision", "why"),
    [
        (Placement(live("other"), WHERE, Share()), "starts job 'other', which is not waiting"),
        (Placement(live("a"), (GpuSlot(3, 0),), Share()), "not waiting"),  # an equal job, but another one
        (Evict(live("a")), "evicts job 'a', which is not running"),
        (WakeAt(0), "woken at 0 ms; expected a later whole number"),
    ],
)
def test_a_decision_that_cannot_be_comes_back_and_changes_nothing(decision: object, why: str) -> None:
    one = scheduler(Says(decision))
    one.submit(live("a"))
    before = one.cluster.digest()
    (refused,) = one.decide(0)
    assert isinstance(refused, Refused)
    assert refused.decision == decision
    assert why in refused.why
    assert (one.cluster.digest(), [job.id for job in one.queue]) == (before, ["a"])


def test_a_placement_that_does_not_fit_comes_back_and_the_caller_may_go_on() -> None:
    jobs = [live("a"), live("b")]
    one = scheduler(Says(Placement(jobs[0], (GpuSlot(7, 0),), Share()), Placement(jobs[1], WHERE, Share())))
    for job in jobs:
        one.submit(job)
    refused, placed = one.decide(0)
    assert isinstance(refused, Refused)
    assert "there is no slot (7, 0)" in refused.why
    assert placed == Placement(jobs[1], WHERE, Share())
    assert [job.id for job in one.queue] == ["a"]


def test_an_eviction_gives_back_and_queues_again() -> None:
    one = scheduler("preempt+fifo+first-fit")
    one.submit(live("low"))
    assert started(one) == ["low"]
    one.submit(live("high", priority=1))
    outcomes = list(one.decide(5))
    assert isinstance(outcomes[0], Evicted)
    assert outcomes[0].run.job.id == "low"
    assert isinstance(outcomes[1], Placement)
    assert [job.id for job in one.queue] == ["low"]


def test_a_policy_that_raises_is_told_and_what_it_decided_before_stands() -> None:
    job = live("a")

    def raises(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        yield Placement(job, WHERE, Share())
        raise KeyError("oops")

    one = scheduler(raises)
    one.submit(job)
    with pytest.raises(
        PolicyError, match=r"at 3 ms the policy fails: KeyError: 'oops' \(.*test_decisions.py:"
    ):
        list(one.decide(3))
    assert list(one.cluster.running) == ["a"]


def test_a_policy_that_never_ends_is_stopped_in_time() -> None:
    def endless(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        at_ms = now_ms
        while True:
            at_ms += 1
            yield WakeAt(at_ms)

    one = scheduler(endless)
    one.submit(live("a"))
    looks = iter(range(1000))
    with pytest.raises(PolicyError, match="has not ended its decisions within its time"):
        for _ in one.decide(0, out_of_time=lambda: next(looks) > 50):
            pass
    assert [job.id for job in one.queue] == ["a"]


def test_a_policy_that_writes_to_what_it_is_shown_is_told() -> None:
    def meddles(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        queue.remove(next(iter(queue)))
        yield WakeAt(now_ms + 1)

    one = scheduler(meddles)
    one.submit(live("a"))
    with pytest.raises(PolicyError, match="it may only yield"):
        list(one.decide(0))


@pytest.mark.parametrize("nonsense", [None, "start", 5, ()])
def test_a_policy_that_yields_what_is_no_decision_is_told(nonsense: object) -> None:
    one = scheduler(Says(nonsense))
    one.submit(live("a"))
    with pytest.raises(PolicyError, match="yields Placement, Evict, Resume, Resize or WakeAt"):
        list(one.decide(0))


@pytest.mark.parametrize(
    ("slots", "share"),
    [
        (None, WHOLE), (5, WHOLE), ((0,), WHOLE), (GpuSlot(0, 0), WHOLE), (([0, 0],), WHOLE), ([GpuSlot(0, 0)], WHOLE),
        ((GpuSlot(0, 0),), None), ((GpuSlot(0, 0),), 1000), ((GpuSlot(0, 0),), Share("x", 0)),
    ],
)  # fmt: skip
def test_a_placement_of_the_wrong_kind_is_refused_and_the_job_waits(slots: object, share: object) -> None:
    def wrong(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        for job in queue:
            yield Placement(job, slots, share)

    one = Scheduler(Cluster(ONE_GPU), wrong, User())
    one.submit(live("a"))
    before = one.cluster.digest()
    (refused,) = one.decide(0)
    assert isinstance(refused, Refused)
    assert "job 'a'" in refused.why
    assert one.waits("a")
    assert not one.cluster.running
    assert one.cluster.digest() == before


@pytest.mark.parametrize("time_ms", [float("nan"), float("inf"), 1.5, 0])
def test_a_wake_that_is_no_later_whole_number_is_refused(time_ms: object) -> None:
    one = Scheduler(Cluster(ONE_GPU), lambda queue, cluster, now_ms: iter([WakeAt(time_ms)]), User())
    (refused,) = one.decide(0)
    assert isinstance(refused, Refused)
    assert "expected a later whole number" in refused.why
    assert one.next_wake_ms is None


def test_a_job_is_placed_without_a_wake_being_lost() -> None:
    one = scheduler(Says(WakeAt(50)))
    one.submit(live("a"))
    assert list(one.decide(0)) == [WakeAt(50)]
    assert one.place(Placement(live("b"), WHERE, WHOLE, False, False), 60)
    assert one.next_wake_ms == 50
