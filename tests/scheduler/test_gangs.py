"""Gangs: one job of the queue, all or nothing, and what becomes of them when a task is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from berth.cluster import Cluster
from berth.engine import simulate
from berth.errors import KnowledgeError, SchedulerError
from berth.knowledge import User
from berth.model import (
    EventKind,
    Evict,
    GpuModel,
    GpuSlot,
    Job,
    Node,
    Placement,
    Record,
    RecordState,
    Share,
    gang_of,
)
from berth.policies import Setting, make_policy
from berth.scheduler import Evicted, NeverFits, Refused, Scheduler
from tests.scheduler.examples import Says, live, started

A100, T4 = GpuModel("A100"), GpuModel("T4")
NODES = [Node("a", 2, A100, 8000, 8000), Node("b", 2, T4, 8000, 8000)]


def scheduler(policy: object = "fifo+first-fit", nodes: list[Node] = NODES) -> Scheduler:
    knowledge = User()
    made = make_policy(policy, Setting(knowledge=knowledge)) if isinstance(policy, str) else policy
    return Scheduler(Cluster(nodes), made, knowledge)  # type: ignore[arg-type]


def tasks(count: int, name: str = "g", **more: object) -> list[Job]:
    return [live(f"{name}{at}", **more) for at in range(count)]


UNLIKE = gang_of(
    [
        live("head", gpus=0, cpu_milli=3000),
        live("big", gpus=2, models=("A100",)),
        live("small", share=Share(300, 0)),
    ]
)


def test_a_gang_has_the_size_of_the_tasks_that_start_together_and_the_rest_of_its_first() -> None:
    assert (UNLIKE.id, UNLIKE.gpus, UNLIKE.share, UNLIKE.cpu_milli, UNLIKE.models, UNLIKE.min_tasks) == (
        "head", 3, Share(767, 0), 3000, (), 3
    )  # fmt: skip
    one = live("a", priority=3, user="u")
    assert gang_of([one]) is one
    grown = gang_of(tasks(4, priority=2), 2)
    assert (grown.gpus, grown.priority, [task.gang for task in grown.tasks]) == (2, 2, ["g0"] * 4)


@pytest.mark.parametrize(
    ("members", "least", "why"),
    [
        ([], None, "0 tasks cannot start 0 together"),
        (tasks(2), 3, "2 tasks cannot start 3 together"),
        ([live("a"), live("a")], None, "same id"),
        ([live("a"), UNLIKE], None, "'head' cannot be a task of a gang"),
    ],
)
def test_a_gang_that_makes_no_sense_is_refused(members: list[Job], least: int | None, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        gang_of(members, least)


def test_unlike_tasks_start_together_each_with_a_placement_of_its_own() -> None:
    one = scheduler()
    one.submit(UNLIKE)
    assert [one.waits(name) for name in ("head", "big", "small")] == [True] * 3
    placed = list(one.decide(0))
    assert [(outcome.job.id, len(outcome.slots), outcome.share) for outcome in placed] == [  # type: ignore[union-attr]
        ("head", 1, Share()), ("big", 2, Share()), ("small", 1, Share(300, 0))
    ]  # fmt: skip
    assert list(one.cluster.running) == ["head", "big", "small"]
    assert not one.waits("small")
    assert one.cluster.running["big"].slots == (GpuSlot(0, 0), GpuSlot(0, 1))


def test_a_gang_that_does_not_fit_whole_takes_nothing_and_holds_up_those_behind_it() -> None:
    one = scheduler()
    one.submit(live("runs"))
    one.submit(gang_of(tasks(4)))
    one.submit(live("behind"))
    assert started(one) == ["runs"]
    assert one.cluster.free_total_milli == 3000
    assert started(one, 1) == []
    one.ended("runs", RecordState.COMPLETED, 2)
    assert started(one, 2) == ["g0", "g1", "g2", "g3"]


def test_further_tasks_wait_in_the_place_of_their_gang() -> None:
    one = scheduler()
    one.submit(gang_of(tasks(6), 3))
    one.submit(live("behind"))
    assert started(one) == ["g0", "g1", "g2", "g3"]
    assert [job.id for job in one.queue] == ["g4", "g5", "behind"]
    one.ended("g0", RecordState.COMPLETED, 1)
    assert started(one, 1) == ["g4"]


def test_a_gang_that_could_never_start_is_said_so() -> None:
    one = scheduler()
    assert not one.submit(gang_of(tasks(5)))
    assert [type(outcome) for outcome in one.decide(0)] == [NeverFits]
    assert one.submit(gang_of(tasks(5, "h"), 4))


def test_one_task_that_is_evicted_takes_its_gang_with_it_if_too_few_are_left() -> None:
    one = scheduler()
    one.submit(gang_of(tasks(3)))
    assert len(started(one)) == 3
    job = one.cluster.running["g1"].job
    one.policy = Says(Evict(job))
    assert [outcome.run.job.id for outcome in one.decide(5)] == ["g1", "g0", "g2"]  # type: ignore[union-attr]
    assert [waiting.id for waiting in one.queue] == ["g0"]
    assert [one.attempt(name) for name in ("g0", "g1", "g2")] == [2, 2, 2]
    one.policy = make_policy("fifo+first-fit")
    assert started(one, 6) == ["g0", "g1", "g2"]


def test_a_gang_with_tasks_to_spare_goes_on_without_one_which_waits_by_itself() -> None:
    one = scheduler()
    one.submit(gang_of(tasks(4), 3))
    assert len(started(one)) == 4
    assert [run.job.id for run in one.evict(["g1"], 5)] == ["g1"]
    assert [waiting.id for waiting in one.queue] == ["g1"]
    assert started(one, 6) == ["g1"]
    one.ended("g0", RecordState.COMPLETED, 7)  # it counts still
    assert [run.job.id for run in one.evict(["g1"], 8)] == ["g1"]
    assert {run.job.id for run in one.evict(["g2"], 9)} == {"g2", "g3"}
    (gang,) = one.queue
    assert ([task.id for task in gang.tasks], gang.min_tasks) == (["g1", "g2", "g3"], 2)


def test_a_lost_node_stops_the_gang_elsewhere_too() -> None:
    one = scheduler()
    one.submit(gang_of(tasks(4)))
    assert len(started(one)) == 4
    there = one.node_lost("b", 3)
    assert [run.job.id for run in there] == ["g2", "g3"]
    assert [run.job.id for run in one.take_evicted()] == ["g0", "g1"]
    assert list(one.decide(3)) == []
    assert not one.cluster.running
    one.node_back("b")
    assert len(started(one, 4)) == 4


def test_the_knowledge_hears_that_each_task_on_a_lost_node_failed_with_it_and_the_others_were_evicted() -> (
    None
):
    heard: dict[str, RecordState] = {}

    class Listens(User):
        def observe(self, record: Record) -> None:
            heard[record.job_id] = record.state

    knowledge = Listens()
    policy = make_policy("fifo+first-fit", Setting(knowledge=knowledge))
    one = Scheduler(Cluster(NODES), policy, knowledge)
    one.submit(gang_of(tasks(4)))
    assert len(started(one)) == 4
    one.node_lost("b", 3)
    assert heard == {
        "g0": RecordState.PREEMPTED,
        "g1": RecordState.PREEMPTED,
        "g2": RecordState.NODE_FAIL,
        "g3": RecordState.NODE_FAIL,
    }


def test_a_gang_whose_placement_fails_in_the_knowledge_loses_no_eviction_that_is_due() -> None:
    class Fails(User):
        def run_ms(self, job: Job) -> int:
            if job.gang == "h0":
                raise KnowledgeError("no idea")
            return super().run_ms(job)

    knowledge = Fails()
    policy = make_policy("fifo+first-fit", Setting(knowledge=knowledge))
    one = Scheduler(Cluster([*NODES, Node("c", 2)]), policy, knowledge)
    one.submit(gang_of(tasks(4)))
    assert len(started(one)) == 4
    one.node_lost("b", 2)
    other = gang_of(tasks(2, "h"))
    with pytest.raises(KnowledgeError, match="no idea"):
        one.place(Placement(other, (GpuSlot(2, 0), GpuSlot(2, 1)), Share()), 3)
    assert [run.job.id for run in one.take_evicted()] == ["g0", "g1"]


def test_a_task_out_of_memory_or_one_that_fails_to_start_queues_its_gang_again() -> None:
    one = scheduler()
    one.submit(gang_of(tasks(2)))
    assert len(started(one)) == 2
    one.ended("g0", RecordState.OUT_OF_MEMORY, 3, held_mib=10)
    evicted, *again = one.decide(3)
    assert isinstance(evicted, Evicted)
    assert evicted.run.job.id == "g1"
    assert [outcome.job.id for outcome in again] == ["g0", "g1"]  # type: ignore[union-attr]
    one.failed_to_start("g1", 4)
    assert [run.job.id for run in one.take_evicted()] == ["g0"]
    assert [job.id for job in one.queue] == ["g0"]


def test_a_gang_leaves_the_queue_whole_by_the_id_of_any_of_its_tasks() -> None:
    one = scheduler()
    one.submit(UNLIKE)
    with pytest.raises(SchedulerError, match="'small' waits or runs already"):
        one.submit(live("small"))
    with pytest.raises(SchedulerError, match="'small' waits or runs already"):
        one.submit(gang_of([live("x"), live("small")]))
    assert one.withdraw("small", 1) == UNLIKE
    assert (len(one.queue), one.waits("head")) == (0, False)
    assert one.submit(live("small"))


def test_a_gang_that_is_placed_where_it_does_not_fit_is_refused_and_nothing_changes() -> None:
    gang = gang_of(tasks(2))
    one = scheduler(Says(Placement(gang, (GpuSlot(0, 0), GpuSlot(0, 0)), Share())))
    one.submit(gang)
    before = (one.cluster.changes, one.queue.changes, list(one.queue))
    (refused,) = one.decide(0)
    assert isinstance(refused, Refused)
    assert "and they do not all fit there" in refused.why
    assert (one.cluster.changes, one.queue.changes, list(one.queue)) == before
    assert one.cluster.free_total_milli == 4000


def test_a_caller_that_stops_in_a_gang_hears_of_the_rest_of_it_next() -> None:
    one = scheduler()
    one.submit(gang_of(tasks(3)))
    outcomes = one.decide(0)
    assert next(outcomes).job.id == "g0"  # type: ignore[union-attr]
    outcomes.close()  # type: ignore[attr-defined]
    assert started(one, 1) == ["g1", "g2"]


def test_tasks_of_unlike_length_end_by_themselves_in_the_simulator_and_dependents_wait_for_the_last() -> None:
    gang = gang_of([Job("a", 0, 10), Job("b", 0, 30), Job("c", 0, 20)], 2)
    after = Job("after", 1, 5, after=("a",))
    events = simulate([gang, after], Cluster([Node("n", 2)]), "fifo+first-fit")
    assert [(event.time_ms, str(event.kind), event.job.id) for event in events] == [
        (0, "submit", "a"), (0, "submit", "b"), (0, "submit", "c"),
        (0, "start", "a"), (0, "start", "b"),
        (1, "submit", "after"),
        (10, "finish", "a"), (10, "start", "c"),
        (30, "finish", "b"), (30, "finish", "c"), (30, "start", "after"),
        (35, "finish", "after"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["fifo+first-fit", "easy+priority+best-fit", "preempt+fifo", "passing+fifo"])
def test_a_gang_that_never_fits_or_runs_out_of_patience_is_rejected_with_all_tasks(name: str) -> None:
    never = gang_of([Job("x", 0, 10), Job("y", 0, 10), Job("z", 0, 10)])
    impatient = gang_of([Job("p", 1, 10, patience_ms=2), Job("q", 1, 10, patience_ms=2)])
    events = simulate([never, Job("r", 1, 50), impatient], Cluster([Node("n", 2)]), name)
    assert [event.job.id for event in events if event.kind is EventKind.REJECT] == ["x", "y", "z", "p", "q"]


def test_a_gang_keeps_its_name_when_its_first_task_has_ended() -> None:
    gang = gang_of([replace(task, priority=4) for task in tasks(3)], 2, "train")
    assert [task.gang for task in gang.tasks] == ["train"] * 3
