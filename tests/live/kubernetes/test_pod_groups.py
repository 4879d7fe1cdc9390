"""PodGroups, of the scheduler plugins and of Kubernetes itself: at least as many pods as they say, or none."""

from __future__ import annotations

from typing import Any

import msgspec

from berth.live.kubernetes import names
from berth.live.kubernetes import objects as api
from berth.live.kubernetes.board import Board
from berth.live.kubernetes.entries import State
from berth.live.kubernetes.reasons import Reasons
from berth.live.kubernetes.steps import Bind
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.test_board import board_of, node, pod
from tests.live.kubernetes.test_slices import definition
from tests.live.kubernetes.world import World

LABEL = names.POD_GROUP_LABELS[0]


def group(name: str = "g", **spec: Any) -> api.PodGroup:
    return msgspec.convert({"metadata": {"name": name, "namespace": "n"}, "spec": spec}, api.PodGroup)


def member(name: str, of: str = "g", label: str = LABEL, **said: Any) -> api.Pod:
    made = pod(name, **said)
    made.metadata.labels = {label: of}
    return made


def bound(board: Board, now: int = 1) -> list[str]:
    return sorted(step.name for step in board.decide(now) if isinstance(step, Bind))


def test_pods_wait_for_their_group_and_then_for_each_other() -> None:
    board = board_of([node("n1", 4)], [member("a"), member("b", label=names.POD_GROUP_LABELS[1])])
    assert bound(board) == []
    assert Reasons(board).of(board.entries["uid-a"]).message == "PodGroup g is not there"
    board.pod_group_changed(names.PLUGINS_GROUP, group(minMember=3))
    assert bound(board) == []
    assert "2 of 3 pods are there" in Reasons(board).of(board.entries["uid-a"]).message
    board.pod_changed(member("c"), 2)
    assert bound(board, 3) == ["a", "b", "c"]


def test_more_pods_than_the_least_start_as_there_is_room_for_each() -> None:
    board = board_of([node("n1", 4)], [member(f"m{at}", version=at) for at in range(6)])
    board.pod_group_changed(names.PLUGINS_GROUP, group(minMember=2))
    assert bound(board) == ["m0", "m1", "m2", "m3"]
    board.pod_gone(member("m0"), 2)
    assert bound(board, 3) == ["m4"]


def test_a_group_that_comes_to_ask_for_fewer_starts_with_those() -> None:
    board = board_of([node("n1", 2)], [member(f"m{at}", version=at) for at in range(4)])
    board.pod_group_changed(names.PLUGINS_GROUP, group(minMember=3))
    assert bound(board) == []
    board.pod_gone(member("m3"), 2)
    board.pod_gone(member("m2"), 2)
    board.pod_group_changed(names.PLUGINS_GROUP, group(minMember=2))
    assert bound(board, 3) == ["m0", "m1"]


def test_a_group_that_has_no_room_for_its_least_holds_nothing_and_keeps_its_turn() -> None:
    board = board_of([node("n1", 2)], [pod("first")])
    assert bound(board) == ["first"]
    for at in range(2):
        board.pod_changed(member(f"m{at}"), 1)
    board.pod_group_changed(names.PLUGINS_GROUP, group(minMember=2, scheduleTimeoutSeconds=7))
    assert bound(board) == []
    assert board.cluster.free_total_milli == 1000
    board.pod_changed(pod("later"), 2)
    assert bound(board, 7001) == []
    board.pod_gone(pod("first"), 7002)
    assert bound(board, 7003) == ["m0", "m1"]


def test_a_group_that_is_deleted_keeps_what_runs_and_gives_back_what_it_holds() -> None:
    board = board_of([node("n1", 2)], [pod("first")])
    assert bound(board) == ["first"]
    for at in range(2):
        board.pod_changed(member(f"m{at}"), 1)
    board.pod_group_changed(names.PLUGINS_GROUP, group(minMember=2))
    assert bound(board) == []
    board.pod_group_gone(names.PLUGINS_GROUP, group())
    board.pod_gone(pod("first"), 2)
    assert bound(board, 3) == []
    board.pod_changed(pod("other", 2), 4)
    assert bound(board, 5) == ["other"]


def test_a_completed_member_counts_after_a_restart() -> None:
    before = board_of([node("n1", 4)], [member(f"m{at}") for at in range(2)])
    before.pod_group_changed(names.PLUGINS_GROUP, group(minMember=2))
    binds = {step.name: step for step in before.decide(1) if isinstance(step, Bind)}
    done = member("m0", on="n1", placement=binds["m0"].placement, placed_uid="uid-m0")
    done.status.phase = "Succeeded"
    after = Board()
    after.nodes.changed(node("n1", 4))
    after.pod_group_changed(names.PLUGINS_GROUP, group(minMember=2))
    after.sync_nodes(0)
    for each in (done, member("m2")):
        after.pod_changed(each, 0)
    after.begin(0)
    assert bound(after, 2) == ["m2"]


def test_kubernetes_own_groups_are_read_too() -> None:
    pods = [pod(f"m{at}") for at in range(3)]
    for each in pods:
        each.spec.scheduling_group = api.SchedulingGroup("g")
    board = board_of([node("n1", 4)], pods[:2])
    board.pod_group_changed(names.PLUGINS_GROUP, group(minMember=1))  # another's of the same name
    assert bound(board) == []
    board.pod_group_changed(names.OWN_GROUP, group(schedulingPolicy={"gang": {"minCount": 3}}))
    assert bound(board) == []
    board.pod_changed(pods[2], 2)
    assert bound(board, 3) == ["m0", "m1", "m2"]
    alone = board_of([node("n1", 4)], pods[:1])
    alone.pod_group_changed(names.OWN_GROUP, group(schedulingPolicy={"basic": {}}))
    assert bound(alone) == ["m0"]


def test_an_annotation_and_a_group_are_refused() -> None:
    board = board_of([node("n1", 4)], [member("a", gang="g/2")])
    assert board.entries["uid-a"].state is State.REFUSED
    assert "PodGroup" in board.entries["uid-a"].message


def test_a_group_on_a_cluster_is_whole_or_waits(play: Played) -> None:
    crds, path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", names.PLUGINS_GROUP
    groups = f"/apis/{path}/v1alpha1/namespaces/default/podgroups"
    made = definition("podgroups", "PodGroup", "Namespaced", path, "v1alpha1")

    async def test(world: World) -> None:
        await world.api.request("POST", crds, made)
        try:
            await world.until("the kind is served", lambda: world.api.request("GET", groups))
            await world.node("n1", 2)
            async with world.scheduler():
                for at in range(2):
                    await world.pod(f"m{at}", labels={LABEL: "train"})
                await world.until_told("m0", "PodGroup train is not there")
                body = {"apiVersion": f"{path}/v1alpha1", "kind": "PodGroup", "metadata": {"name": "train"}}
                await world.api.request("POST", groups, {**body, "spec": {"minMember": 3}})
                await world.until_told("m0", "2 of 3 pods are there")
                await world.patch(f"{groups}/train", {"spec": {"minMember": 2}})
                await world.until_bound("m0", "m1")
                await world.pod("m2", labels={LABEL: "train"})
                await world.until_told("m2", "GPU compute short")
                await world.check()
        finally:
            await world.api.request("DELETE", f"{crds}/podgroups.{path}", patience_s=10)

    play(test)
