"""Trials: what is tried and not committed leaves no trace under any policy; a committed one is as good as none."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.cluster import Cluster, Queue
from berth.errors import SchedulerError
from berth.knowledge import History, Knowledge, Oracle, User
from berth.model import Evict, GpuSlot, Job, Placement, Record, RecordState, Share, WakeAt, gang_of
from berth.policies import Decision, Setting, make_policy
from berth.scheduler import Evicted, Scheduler
from tests.every_policy import some
from tests.policies.test_live_contract import CLOCKED, EVERY, Recorded, jobs, learning, nodes, quick, run_ms
from tests.scheduler.examples import WHERE, WHOLE, Says, live, scheduler, started

Step = tuple[int, int]
STEPS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 23)), min_size=1, max_size=12)
BY_WHAT_IS_USUAL = ("fgd", "genetic")
"""Parts of the names of policies that go by what jobs usually ask for. In a trial that is what was known before it: the
knowledge is told of evictions and losses when the trial ends."""
TRIED = st.lists(st.tuples(st.integers(1, 7), st.integers(0, 23)), min_size=1, max_size=6)


def made(name: str, knowledge: Knowledge) -> Scheduler:
    timeless = "&budget_ms=100000" if name in CLOCKED else ""  # how far it searches, and not for how long
    policy = make_policy(quick(name) + timeless, Setting(3, knowledge=knowledge))
    return Scheduler(Cluster(nodes()), policy, knowledge)


def do(one: Scheduler, step: Step, workload: list[Job], now_ms: int) -> list[object]:
    """One thing that a driver does: what comes of it, in words that two schedulers can be compared by."""
    what, number = step
    running, waiting = list(one.cluster.running), [job.id for job in one.queue]
    job = workload[number]
    name = running[number % len(running)] if running else ""
    if what == 0:
        if not any(one.waits(task.id) or task.id in one.cluster.running for task in job.tasks or (job,)):
            one.submit(job)
    elif what == 1:
        return [said(outcome) for outcome in one.decide(now_ms)]
    elif what == 2 and running:
        one.release(name, now_ms)
    elif what == 3 and running:
        one.evict([name], now_ms)
    elif what == 4 and waiting:
        wish = one.queue.named(waiting[number % len(waiting)])
        assert wish is not None
        slots = one.cluster.slots_for(wish, one.cluster.fitting_nodes(wish).tolist())
        if wish.tasks and slots is None:
            return []
        return [one.place(Placement(wish, slots or WHERE, wish.share), now_ms)]
    elif what == 5:
        (one.node_lost if one.cluster.up[number % 3] else lambda at, _: one.node_back(at))(
            f"n{number % 3}", now_ms
        )
    elif what == 6 and waiting:
        one.replace(replace(one.queue.named(waiting[number % len(waiting)]) or job, priority=number))
    elif what == 7 and running:
        try:
            one.resize(name, Share(1 + number * 40, 100 * number), now_ms)
        except SchedulerError as error:
            return [str(error)]
    return []


def said(outcome: object) -> object:
    return ("evicted", outcome.run.job.id) if isinstance(outcome, Evicted) else outcome


def state(one: Scheduler) -> tuple[object, ...]:
    """All that can be seen of a scheduler."""
    cluster, queue = one.cluster, one.queue
    usage = cluster.usage()
    return (
        cluster.digest(), cluster.openings, cluster.losses, cluster.changes, cluster.reopened, cluster.request_types,
        cluster.marks().tolist(), list(queue), queue.changes, queue.emptied, queue.replacements, dict(one.attempts),
        one.next_wake_ms, one.fault, repr(usage.users), repr(usage.virtual_clusters), dict(usage.jobs),
    )  # fmt: skip


def know(name: str, workload: list[Job]) -> list[Knowledge]:
    return {
        "oracle": lambda: [Oracle(workload), Oracle(workload)],
        "recorded": lambda: [Recorded(), Recorded()],
        "history": lambda: [learning(), learning()],
    }[name]()


def worked(seed: int) -> list[Job]:
    plain = [replace(job, work_ms=run_ms(job)) for job in jobs(seed)]
    return [
        gang_of([job, replace(job, id=f"{job.id}.1", gpus=1), replace(job, id=f"{job.id}.2", gpus=0)], 2)
        if at % 6 == 5
        else job
        for at, job in enumerate(plain)
    ]


@pytest.mark.parametrize("kind", ["oracle", "recorded", "history"])
@pytest.mark.parametrize("name", some(EVERY))
def test_what_is_tried_and_undone_changes_nothing_that_comes_after(name: str, kind: str) -> None:
    @settings(max_examples=3, deadline=None)
    @given(seed=st.integers(0, 5), script=STEPS, tried=TRIED)
    def check(seed: int, script: list[Step], tried: list[Step]) -> None:
        workload = worked(seed)
        one, other = (made(name, knowledge) for knowledge in know(kind, workload))
        for job in workload[:16]:
            assert one.submit(job) == other.submit(job)
        now_ms = 0
        for step in [(1, 0), *script, (1, 0), (2, 1), (1, 0)]:
            before = state(one)
            with one.trial():
                for try_step in tried:
                    do(one, try_step, workload, now_ms)
                with one.trial() as inner:
                    do(one, (1, 0), workload, now_ms)
                    inner.commit()
            assert state(one) == before
            assert do(one, step, workload, now_ms) == do(other, step, workload, now_ms)
            assert state(one) == state(other)
            now_ms += 1500

    check()


@pytest.mark.parametrize("name", some(EVERY))
def test_what_is_committed_is_as_if_it_had_been_done_without_a_trial(name: str) -> None:
    @settings(max_examples=3, deadline=None)
    @given(seed=st.integers(0, 5), script=STEPS, tried=TRIED)
    def check(seed: int, script: list[Step], tried: list[Step]) -> None:
        workload = worked(seed)
        kind = "oracle" if any(part in name for part in BY_WHAT_IS_USUAL) else "recorded"
        one, other = (made(name, knowledge) for knowledge in know(kind, workload))
        for job in workload[:16]:
            assert one.submit(job) == other.submit(job)
        now_ms = 0
        for step in [(1, 0), *script, (1, 0)]:
            with one.trial() as trial:
                done = [do(one, each, workload, now_ms) for each in (step, *tried)]
                trial.commit()
            assert done == [do(other, each, workload, now_ms) for each in (step, *tried)]
            assert state(one) == state(other)
            now_ms += 1500

    check()


def test_a_run_that_was_released_in_a_trial_is_the_same_object_afterwards() -> None:
    one = scheduler()
    one.submit(live("a"))
    one.submit(live("b"))
    assert started(one) == ["a"]
    run = one.cluster.running["a"]
    with one.trial():
        assert one.release("a", 10) is run
        assert started(one, 10) == ["b"]
    assert list(one.cluster.running) == ["a"]
    assert one.cluster.running["a"] is run
    assert started(one, 10) == []


def place_and_fail(one: Scheduler) -> None:
    with one.trial():
        assert one.place(Placement(one.queue.named("a") or live("a"), WHERE, WHOLE), 0)
        raise KeyError


def test_an_error_in_a_trial_undoes_it() -> None:
    one = scheduler()
    one.submit(live("a"))
    with pytest.raises(KeyError):
        place_and_fail(one)
    assert one.waits("a")


def test_a_policy_that_keeps_state_in_a_closure_or_an_attribute_is_put_back() -> None:
    def counting() -> Callable[[Queue, Cluster, int], Iterator[Decision]]:
        asked = 0

        def policy(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
            nonlocal asked
            asked += 1
            yield WakeAt(now_ms + asked)

        return policy

    one = scheduler(counting())
    assert list(one.decide(0)) == [WakeAt(1)]
    with one.trial():
        assert list(one.decide(0)) == [WakeAt(2)]
    assert list(one.decide(1)) == [WakeAt(3)]


def test_an_ordered_dict_is_put_back_in_its_order_and_works() -> None:
    class Policy:
        def __init__(self) -> None:
            self.seen = OrderedDict(x=1, y=2, z=3)

        def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
            self.seen["new"] = now_ms
            self.seen.move_to_end("y", last=False)
            del self.seen["x"]
            yield from ()

    policy = Policy()
    policy.seen.move_to_end("x")
    one = scheduler(policy)
    with one.trial():
        assert list(one.decide(0)) == []
        assert list(policy.seen) == ["y", "z", "new"]
    assert list(policy.seen.items()) == [("y", 2), ("z", 3), ("x", 1)]
    assert policy.seen.popitem(last=False) == ("y", 2)
    assert repr(policy.seen) == repr(OrderedDict(z=3, x=1))


def test_a_slot_that_was_first_set_in_a_trial_is_unset_again() -> None:
    class Policy:
        __slots__ = ("first_ms", "never")

        def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
            self.first_ms = now_ms
            yield from ()

    policy = Policy()
    one = scheduler(policy)
    with one.trial():
        assert list(one.decide(7)) == []
        assert policy.first_ms == 7
    assert not hasattr(policy, "first_ms")


def test_the_knowledge_hears_of_a_trial_when_it_is_committed_and_not_before() -> None:
    heard: list[Record] = []

    class Listens(User):
        def observe(self, record: Record) -> None:
            heard.append(record)

    one = Scheduler(Cluster(nodes(1)), Says(), Listens())
    one.place(Placement(live("a"), (GpuSlot(0, 0),), WHOLE), 0)
    with one.trial():
        one.evict(["a"], 5)
    assert heard == []
    with one.trial() as trial:
        one.evict(["a"], 6)
        assert heard == []
        with one.trial() as inner:
            inner.commit()
        assert heard == []
        trial.commit()
    assert [(record.job_id, record.state, record.end_ms) for record in heard] == [
        ("a", RecordState.PREEMPTED, 6)
    ]


def test_an_eviction_that_the_policy_tries_is_undone() -> None:
    one = scheduler()
    one.submit(live("a"))
    assert started(one) == ["a"]
    job = one.cluster.running["a"].job
    with one.trial():
        one.policy = Says(Evict(job))
        assert [type(outcome) for outcome in one.decide(3)] == [Evicted]
        assert one.attempt("a") == 2
    assert (one.attempt("a"), one.waits("a"), list(one.cluster.running)) == (1, False, ["a"])


def test_a_history_that_learns_is_the_same_after_a_trial() -> None:
    history = History()
    one = Scheduler(Cluster(nodes(1)), Says(), history)
    one.place(Placement(live("a", application="x"), (GpuSlot(0, 0),), WHOLE), 0)
    before = history.run_ms(live("b", application="x"))
    with one.trial():
        one.ended("a", RecordState.COMPLETED, 5000)
    assert history.run_ms(live("b", application="x")) == before
    one.ended("a", RecordState.COMPLETED, 5000)
    assert history.run_ms(live("b", application="x")) != before


def test_a_policy_that_keeps_a_counter_which_cannot_be_put_back_is_refused() -> None:
    class Counting:
        def __init__(self) -> None:
            self.calls = itertools.count()

        def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
            next(self.calls)
            return iter(())

    one = Scheduler(Cluster(nodes()), Counting(), User())
    with pytest.raises(SchedulerError, match=r"how far count\(0\) has come"), one.trial():
        pass
