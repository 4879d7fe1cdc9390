"""Gangs on the board: whole or not at all, through restarts, preemption and others that never fit."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from berth.live.kubernetes import objects as api
from berth.live.kubernetes.board import Board
from berth.live.kubernetes.entries import State
from berth.live.kubernetes.steps import Bind, Stop
from tests.live.kubernetes.test_board import board_of, node, pod


def ended(each: api.Pod, phase: str = "Succeeded") -> api.Pod:
    found = msgspec.json.decode(msgspec.json.encode(each), type=api.Pod)
    found.status.phase = phase
    return found


def bound_by(board: Board, *, now: int = 1) -> dict[str, Bind]:
    return {step.name: step for step in board.decide(now) if isinstance(step, Bind)}


def on(bind: Bind, **said: Any) -> api.Pod:
    return pod(bind.name, on=bind.node, placement=bind.placement, placed_uid=bind.uid, **said)


def test_a_completed_pod_counts_after_a_restart_as_it_did_before() -> None:
    before = board_of([node("n1", 4)], [pod(f"g{at}", gang="g/4") for at in range(4)])
    binds = bound_by(before)
    there = [on(binds["g0"], gang="g/4"), on(binds["g1"], gang="g/4")]
    done = ended(on(binds["g2"], gang="g/4"))
    again = pod("g4", gang="g/4")  # its owner made it anew for g3
    after = board_of([node("n1", 4)], [done, *there, again])
    assert sorted(bound_by(after)) == ["g4"]


def test_a_gang_runs_again_while_the_pods_of_its_last_run_are_there() -> None:
    first = board_of([node("n1", 2)], [pod(f"g{at}", gang="g/2") for at in range(2)])
    old = [ended(on(bind, gang="g/2")) for bind in bound_by(first).values()]
    for each in old:
        first.pod_changed(each, 2)
    for board in (first, board_of([node("n1", 2)], old)):
        board.pod_changed(pod("h0", gang="g/2"), 3)
        assert bound_by(board, now=4) == {}
        board.pod_changed(pod("h1", gang="g/2"), 5)
        assert sorted(bound_by(board, now=6)) == ["h0", "h1"]


def test_a_gang_gives_way_whole() -> None:
    board = board_of(
        [node("n1", 2), node("n2", 2)],
        [pod(f"g{at}", gang="g/4", gpu_milli=1000, gpu_mem_mib=1000) for at in range(4)],
        policy="preempt+fifo+best-fit",
    )
    for bind in bound_by(board).values():
        board.pod_changed(on(bind, gang="g/4", gpu_milli=1000, gpu_mem_mib=1000), 2)
    urgent = pod("urgent", gpu_milli=1000, gpu_mem_mib=1000)
    urgent.spec.priority = 1000
    board.pod_changed(urgent, 3)
    steps = list(board.decide(4))
    assert sorted(step.name for step in steps if isinstance(step, Stop)) == ["g0", "g1", "g2", "g3"]
    assert [step.name for step in steps if isinstance(step, Bind)] == ["urgent"]


def test_a_pod_that_gives_way_before_its_bind_waits_again() -> None:
    board = board_of([node("n1", 1)], [pod("low")], policy="preempt+fifo+best-fit")
    assert [step.name for step in board.decide(1) if isinstance(step, Bind)] == ["low"]
    urgent = pod("urgent")
    urgent.spec.priority = 1000
    board.pod_changed(urgent, 2)
    steps = list(board.decide(3))
    assert [step.name for step in steps if isinstance(step, Stop)] == []
    assert [step.name for step in steps if isinstance(step, Bind)] == ["urgent"]
    assert board.entries["uid-low"].state is State.WAITING
    board.pod_gone(urgent, 4)
    assert sorted(bound_by(board, now=5)) == ["low"]


def test_gangs_that_never_fit_stop_no_other_and_hold_nothing() -> None:
    large = [
        pod(f"l{gang:02}-{at}", gang=f"l{gang:02}/5", version=gang) for gang in range(20) for at in range(5)
    ]
    small = [pod(f"s{at}", gang="s/2", version=99) for at in range(2)]
    board = board_of([node("n1", 4)], [*large, *small])
    bound: dict[str, Bind] = {}
    for now in range(1, 4):
        bound |= bound_by(board, now=now)
    assert sorted(bound) == ["s0", "s1"]


@pytest.mark.parametrize(
    ("policy", "others"), [("passing+fifo+best-fit", ["s0", "s1"]), ("fifo+best-fit", [])]
)
def test_gangs_that_have_no_room_hold_up_others_as_the_policy_says(policy: str, others: list[str]) -> None:
    large = [
        pod(f"l{gang:02}-{at}", gang=f"l{gang:02}/4", version=gang) for gang in range(20) for at in range(4)
    ]
    fits = [pod(f"s{at}", gang="s/2", version=99, gpu_milli=1, gpu_mem_mib=1) for at in range(2)]
    full = pod("full", 4, on="n1", gpu_milli=999, gpu_mem_mib=80_000)
    before = board_of([node("n1", 4)], [pod("full", 4, gpu_milli=999, gpu_mem_mib=80_000)])
    full = on(bound_by(before)["full"], gpu_milli=999, gpu_mem_mib=80_000)
    full.spec.containers = pod("full", 4).spec.containers
    board = board_of([node("n1", 4)], [full, *large, *fits], policy=policy)
    bound: dict[str, Bind] = {}
    for now in range(1, 5):
        bound |= bound_by(board, now=now)
    assert sorted(bound) == others


def test_a_failed_bind_waits_longer_each_time_and_keeps_no_place() -> None:
    board = board_of([node("n1", 1)], [pod("a"), pod("b")])
    assert sorted(bound_by(board)) == ["a"]
    board.bind_failed("uid-a", 10, again=True, why="a webhook says no")
    assert sorted(bound_by(board, now=11)) == ["b"]
    assert board.next_wake_ms(11) == 1010
    board.pod_gone(pod("b"), 12)
    assert bound_by(board, now=13) == {}
    assert sorted(bound_by(board, now=1010)) == ["a"]
    board.bind_failed("uid-a", 2000, again=True, why="a webhook says no")
    assert board.next_wake_ms(2000) == 4000


def advised(board: Board, *, now: int) -> list[tuple[str, str]]:
    return [(type(step).__name__, step.name) for step in board.decide(now) if isinstance(step, Bind | Stop)]


def test_in_advise_mode_a_pod_gives_way_to_the_one_that_takes_its_gpu_and_to_no_other() -> None:
    first = board_of([node("n1", 2)], [pod("a"), pod("b", gpu_milli=100)])
    there = [on(bind) for bind in bound_by(first).values()]
    there[1] = on(
        bound_by(board_of([node("n1", 2)], [pod("a"), pod("b", gpu_milli=100)]))["b"], gpu_milli=100
    )
    board = board_of([node("n1", 2)], there, policy="preempt+fifo+best-fit", advise=True)
    urgent = pod("urgent")
    urgent.spec.priority = 10
    beside = pod("beside", gpu_milli=100, version=2)
    beside.spec.priority = 20
    board.pod_changed(urgent, 2)
    board.pod_changed(beside, 2)  # it goes beside b, and needs nobody's place
    said = advised(board, now=3)
    assert ("Bind", "beside") in said
    assert ("Bind", "urgent") in said
    stopped = [name for kind, name in said if kind == "Stop"]
    board.pod_gone(beside, 4)
    assert advised(board, now=5) == []
    assert not any(board.entries[f"uid-{name}"].state is State.BOUND for name in stopped)
    board.pod_gone(urgent, 6)
    list(board.decide(7))
    assert all(board.entries[f"uid-{name}"].state is State.BOUND for name in ("a", "b"))
    assert len(board.cluster.running) == 2


def test_in_advise_mode_a_pod_that_would_give_way_to_one_that_is_not_placed_runs_on() -> None:
    (bind,) = bound_by(board_of([node("n1", 1)], [pod("low")])).values()
    board = board_of([node("n1", 1)], [on(bind)], policy="preempt+fifo+best-fit", advise=True)
    high = pod("high")
    high.spec.priority = 10
    board.pod_changed(high, 2)
    steps = board.decide(3)
    assert isinstance(next(steps), Stop)
    steps.close()  # type: ignore[attr-defined]
    board.pod_gone(high, 4)
    list(board.decide(5))
    assert board.entries["uid-low"].state is State.BOUND


def arrivals_until_large_starts(policy: str, *, gangs: bool, priority: int = 0, most: int = 40) -> int:
    """Two GPUs, a waiting pod of both, and pods of one GPU for 10 minutes every 5 minutes: how many of these arrive
    before the large one is bound."""
    board = board_of([node("n1", 2)], [], policy=policy)
    ends: dict[str, tuple[int, api.Pod]] = {}
    large = pod("large", 2, version=1)
    large.spec.priority = priority
    for at in range(most):
        now = 1 + at * 300_000
        for name, (end_ms, there) in list(ends.items()):
            if end_ms <= now:
                del ends[name]
                board.pod_changed(ended(there), now)
                board.pod_gone(there, now)
        said = {"gang": f"g{at}/1"} if gangs else {}
        small = pod(f"s{at}", version=2 + at, **said)
        small.spec.priority = -5 if priority else 0
        board.pod_changed(small, now)
        if at == 0:
            board.pod_changed(large, now)
        for bind in bound_by(board, now=now).values():
            if bind.name == "large":
                return at + 1
            there = on(bind, **said)
            board.pod_changed(there, now)
            ends[bind.name] = (now + 600_000, there)
    return most


@pytest.mark.parametrize("policy", ["fifo+best-fit", "easy+fifo+best-fit", "priority+best-fit"])
@pytest.mark.parametrize("priority", [0, 1000])
def test_small_gangs_starve_a_large_pod_no_more_than_small_pods_do(policy: str, priority: int) -> None:
    plain = arrivals_until_large_starts(policy, gangs=False, priority=priority)
    assert plain < 5
    assert arrivals_until_large_starts(policy, gangs=True, priority=priority) == plain


def test_a_gang_does_not_pass_a_pod_of_a_higher_priority() -> None:
    board = board_of([node("n1", 2)], [pod("runs")], policy="priority+best-fit")
    assert sorted(bound_by(board)) == ["runs"]
    high = pod("high", 2)
    high.spec.priority = 1000
    low = pod("low", gang="low/1")
    low.spec.priority = -5
    for each in (low, high):
        board.pod_changed(each, 2)
    assert bound_by(board, now=3) == {}
    board.pod_gone(pod("runs"), 4)
    assert sorted(bound_by(board, now=5)) == ["high"]


def test_pods_of_a_gang_run_on_when_another_of_it_loses_its_node() -> None:
    board = board_of([node("n1", 1), node("n2", 1)], [pod(f"g{at}", gang="g/2") for at in range(2)])
    for bind in bound_by(board).values():
        board.pod_changed(on(bind, gang="g/2"), 2)
    board.nodes.gone(node("n2", 1))
    assert [step for step in board.decide(3) if isinstance(step, Bind | Stop)] == []
    assert len(board.cluster.running) == 1
