"""Decisions at whole multiples of a period."""

from __future__ import annotations

from dataclasses import replace

from berth.cluster import Cluster
from berth.engine import simulate
from berth.knowledge import User
from berth.model import EventKind, Job, Node, Placement, RecordState, WakeAt
from berth.policies import Setting, make_policy
from berth.policies.schemes.rounds import Rounds
from berth.scheduler import Scheduler

ROUND_MS = 1000


def live(name: str) -> Job:
    return Job(name, 0, None)


def scheduler(nodes: int = 1) -> Scheduler:
    knowledge = User()
    policy = Rounds(make_policy("fifo+first-fit", Setting(knowledge=knowledge)), ROUND_MS)
    return Scheduler(Cluster([Node(f"n{at}", 1) for at in range(nodes)]), policy, knowledge)


def decided(one: Scheduler, now_ms: int) -> list[object]:
    return [out.job.id if isinstance(out, Placement) else out for out in one.decide(now_ms)]


def test_a_loop_that_is_woken_late_decides_at_once_and_then_at_the_next_round() -> None:
    one = scheduler(2)
    one.submit(live("a"))
    assert decided(one, 300) == [WakeAt(1000)]
    assert decided(one, 700) == []
    assert decided(one, 1003) == ["a"]
    one.submit(live("b"))
    assert decided(one, 1004) == [WakeAt(2000)]
    assert decided(one, 3700) == ["b"]  # more than a round late


def test_a_round_that_is_due_is_not_forgotten_if_nodes_change() -> None:
    one = scheduler()
    one.submit(live("a"))
    assert decided(one, 300) == [WakeAt(1000)]
    one.nodes_changed([Node("other", 1)], 1002)
    assert decided(one, 1002) == ["a"]


def test_a_round_that_nobody_waits_for_any_more_is_none_of_those_that_come_later() -> None:
    one = scheduler()
    one.submit(live("a"))
    assert decided(one, 300) == [WakeAt(1000)]
    one.withdraw("a", 400)
    one.submit(live("b"))
    assert decided(one, 1200) == [WakeAt(2000)]
    assert decided(one, 2000) == ["b"]
    one.ended("b", RecordState.COMPLETED, 2500)


def test_the_simulator_decides_at_the_rounds_alone() -> None:
    jobs = [Job(f"j{at}", 300 * at, 400, patience_ms=None if at % 2 else 100) for at in range(8)]
    policy = Rounds(make_policy("fifo+first-fit"), ROUND_MS)
    events = list(simulate([replace(job) for job in jobs], Cluster([Node("n", 2)]), policy))
    starts = [event.time_ms for event in events if event.kind is EventKind.START]
    assert all(time_ms % ROUND_MS == 0 for time_ms in starts)
    assert set(starts) == {0, 1000, 2000, 3000}
