"""Pods that no node can hold are left to kube-scheduler, unpinned, so that an autoscaler sees them."""

from __future__ import annotations

import pytest

from berth.live.kubernetes import names
from berth.live.kubernetes.objects import Expression, Pod, Term
from berth.live.kubernetes.pod_site import PATIENCE_MS, RELEASE_TIMES, State
from berth.live.kubernetes.steps import Lift, Patch, PodEvent
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.steered import Steered, bound, node, pod, refused, steered
from tests.live.kubernetes.world import World

QUOTAS = "priority+best-fit"
LATE_MS = 2 + RELEASE_TIMES * PATIENCE_MS


def released(board: Steered, now_ms: int) -> list[str]:
    return sorted(step.name for step in board.steps(now_ms) if isinstance(step, Patch))


def test_a_pod_that_no_node_can_hold_is_released_unpinned_and_gets_its_part_where_it_is_bound() -> None:
    board = steered([node("n1", 1)], [pod("large", 2, gpu_milli=500)])
    assert released(board, 1) == []
    assert board.driver.next_ms(1) is None
    assert board.site.next_ms() == LATE_MS - 1
    (step,) = board.steps(LATE_MS)
    terms = [Term((Expression(names.LABEL_GPU_COUNT, "Gt", ("1",)),))]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    spec = {"schedulingGates": None, "affinity": {"nodeAffinity": required}}
    why = "no node can hold it: of 1 nodes, 1 fewer than 2 GPUs. Its gate is lifted, so that an autoscaler may make one"
    meta = {"uid": "uid-large", "annotations": {names.RELEASED: why}}
    event = PodEvent("uid-large", "n", "large", "Released", why, False)
    assert step == Patch("uid-large", "n", "large", {"metadata": meta, "spec": spec}, event)
    assert (board.state("large"), board.why("large")) == (State.STRAY, why)
    board.pods(LATE_MS + 1, pod("large", 2, gpu_milli=500))  # its patch is not done yet
    board.pods(LATE_MS + 2, pod("large", 2, gates=(), gpu_milli=500))
    assert board.steps(LATE_MS + 3) == []
    assert board.why("large") == why
    board.nodes(LATE_MS + 4, node("n2", 2))
    assert board.steps(LATE_MS + 5) == []
    board.pods(LATE_MS + 6, pod("large", 2, on="n2", gpu_milli=500))
    (step,) = board.steps(LATE_MS + 7)
    assert isinstance(step, Lift)
    assert (step.name, step.node, step.is_bound) == ("large", "n2", True)


def test_a_pod_that_was_released_keeps_berths_reason_before_kube_schedulers_words() -> None:
    there = pod("a", gates=(), released="no node has room for it")
    board = steered([node("n1", 1)], [there])
    assert board.why("a") == "no node has room for it"
    board.pods(1, refused(there, "0/1 nodes are available"))
    assert board.why("a") == "no node has room for it; kube-scheduler: 0/1 nodes are available"
    board.pods(2, refused(there, "0/2 nodes are available"))
    assert board.why("a") == "no node has room for it; kube-scheduler: 0/2 nodes are available"


def test_a_pod_without_a_gate_is_shown_in_kube_schedulers_words() -> None:
    board = steered([node("n1", 1)], [pod("a", gates=()), pod("plain", 0, gates=())])
    assert board.steps(1) == []
    assert board.why("a") == "kube-scheduler may bind it, and has not yet"
    board.pods(2, refused(pod("a", gates=()), "0/1 nodes are available"))
    assert board.why("a") == "0/1 nodes are available"
    board.pods(3, held := pod("b", hold="true"))
    assert board.why("b") == "held by annotation berth.dev/hold"
    held.spec.scheduling_gates = []
    board.pods(4, held)
    assert board.why("b") == "kube-scheduler may bind it, and has not yet"


def test_a_node_that_comes_in_time_gets_the_pod_by_berths_order() -> None:
    board = steered([node("n1", 1)], [pod("large", 2)])
    assert released(board, 1) == []
    board.nodes(2, node("n2", 2))
    (step,) = board.steps(LATE_MS)
    assert isinstance(step, Lift)
    assert (step.name, step.node) == ("large", "n2")


def test_pods_that_a_node_could_hold_gangs_and_what_is_beyond_a_quota_are_not_released() -> None:
    others = pod("others", 0, on="n1", cpu="60", gates=())
    gang = [pod(f"g{at}", 8, gang="g/2") for at in range(2)]
    board = steered([node("n1", 2)], [others, pod("cpu", cpu="30"), *gang])
    assert released(board, 1) == []
    assert released(board, LATE_MS) == []
    assert "others use too much" in board.why("cpu")
    board = steered(
        [node("n1", 1)],
        [pod("a", 2), pod("b", 2, version=2), pod("c", 3, version=3)],
        policy=QUOTAS,
        quotas={"n": 3},
    )
    assert released(board, 1) == []
    assert released(board, LATE_MS) == ["a"]
    down = node("n1", 2)
    down.spec.unschedulable = True
    board = steered([down], [pod("waits", 2)])
    assert released(board, 1) == []
    assert released(board, LATE_MS) == []


def counted(each: Pod) -> Pod:
    """The pod as an API server has it that adds its part as a resource, so that kube-scheduler counts it."""
    each.spec.containers[0].resources.requests[names.ASKED_MILLI] = "1000"
    return each


def test_a_pod_that_waits_for_room_is_released_after_the_time_that_it_says() -> None:
    board = steered([node("n1", 1)], [pod("old")])
    (lift,) = board.lifts(1).values()
    board.pods(2, bound(lift), counted(pod("calm")), counted(pod("eager", new_node_after="5m")))
    assert released(board, 3) == []
    assert board.site.next_ms() == 300_003
    assert released(board, 300_002) == []
    (step,) = board.steps(300_003)
    assert isinstance(step, Patch)
    assert (step.name, step.body["spec"]["schedulingGates"]) == ("eager", None)
    why = "no node has room for it. Its gate is lifted, so that an autoscaler may make one"
    assert (board.state("eager"), board.why("eager")) == (State.STRAY, why)
    assert step.event is not None
    assert step.event.message == why
    board.pods(300_004, pod("eager", gates=(), new_node_after="5m"))
    board.nodes(300_005, node("n2", 2))
    assert list(board.lifts(300_006)) == ["calm"]
    board.pods(300_007, pod("eager", on="n2", new_node_after="5m"))
    (step,) = board.steps(300_008)
    assert isinstance(step, Lift)
    assert (step.name, step.node, step.is_bound) == ("eager", "n2", True)


def test_a_pod_that_asks_for_a_new_node_goes_where_there_is_room_and_a_gang_stays() -> None:
    board = steered([node("n1", 1)], [counted(pod("eager", new_node_after="0"))])
    assert list(board.lifts(1)) == ["eager"]
    gang = [counted(pod(f"g{at}", gang="g/2", new_node_after="1")) for at in range(2)]
    board.pods(2, *gang, pod("uncounted", new_node_after="1"))  # kube-scheduler would bind it to a full node
    assert released(board, 3) == []
    assert released(board, 3 + PATIENCE_MS) == []
    assert {board.state(name) for name in ("g0", "g1", "uncounted")} == {State.WAITING}


@pytest.mark.slow
@pytest.mark.usefixtures("kube_scheduler")
def test_an_autoscaler_sees_a_released_pod_and_a_node_that_it_makes_gets_it(play: Played) -> None:
    async def test(world: World) -> None:
        await world.node("n1", 1)
        await world.pod("large", 2, milli=500)
        async with world.steerer(patience_ms=500):

            async def is_seen() -> bool:
                told = (await world.pods())["large"]
                conditions = told["status"].get("conditions", [])
                return "schedulingGates" not in told["spec"] and any(
                    (each["type"], each.get("reason")) == ("PodScheduled", "Unschedulable")
                    for each in conditions
                )

            await world.until("kube-scheduler finds no node", is_seen)
            await world.node("n2", 2)
            assert await world.until_bound("large") == {"large": "n2"}

            async def has_its_part() -> bool:
                return names.PLACEMENT in (await world.pods())["large"]["metadata"]["annotations"]

            await world.until("it has its part", has_its_part)

    play(test)
