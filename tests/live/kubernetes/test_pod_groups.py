"""PodGroups, of the scheduler plugins and of Kubernetes itself: at least as many pods as they say, or none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from berth.live.kubernetes import names
from berth.live.kubernetes import objects as api
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.steered import Steered, node, pod, refused, steered
from tests.live.kubernetes.world import World

LABEL = names.POD_GROUP_LABELS[0]


def definition(plural: str, kind: str, scope: str, group: str, version: str) -> dict[str, Any]:
    """A custom resource that takes any fields."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        },
        "spec": {
            "group": group,
            "scope": scope,
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": [served],
        },
    }


def group(name: str = "g", **spec: Any) -> api.PodGroup:
    return msgspec.convert({"metadata": {"name": name, "namespace": "n"}, "spec": spec}, api.PodGroup)


def member(name: str, of: str = "g", label: str = LABEL, **said: Any) -> api.Pod:
    made = pod(name, **said)
    made.metadata.labels = {label: of}
    return made


def lifted(board: Steered, now: int = 1) -> list[str]:
    return sorted(board.lifts(now))


def test_pods_wait_for_their_group_and_then_for_each_other() -> None:
    board = steered([node("n1", 4)], [member("a"), member("b", label=names.POD_GROUP_LABELS[1])])
    assert lifted(board) == []
    assert board.why("a") == "PodGroup g is not there"
    board.site.pod_group_changed(names.PLUGINS_GROUP, group(minMember=3), 1)
    assert lifted(board) == []
    assert board.why("a") == "waits for 1 more task of gang g"
    board.pods(2, member("c"))
    assert lifted(board, 3) == ["a", "b", "c"]


def test_more_pods_than_the_least_start_as_there_is_room_for_each() -> None:
    board = steered([node("n1", 4)], [member(f"m{at}", version=at) for at in range(6)])
    board.site.pod_group_changed(names.PLUGINS_GROUP, group(minMember=2), 1)
    assert lifted(board) == ["m0", "m1", "m2", "m3"]
    board.gone(2, member("m0"))
    assert lifted(board, 3) == ["m4"]


def test_a_group_that_comes_to_ask_for_fewer_starts_with_those() -> None:
    board = steered([node("n1", 2)], [member(f"m{at}", version=at) for at in range(4)])
    board.site.pod_group_changed(names.PLUGINS_GROUP, group(minMember=3), 1)
    assert lifted(board) == []
    board.gone(2, member("m3"))
    board.gone(2, member("m2"))
    board.site.pod_group_changed(names.PLUGINS_GROUP, group(minMember=2), 1)
    assert lifted(board, 3) == ["m0", "m1"]


def test_a_group_that_has_no_room_for_its_least_holds_nothing_and_keeps_its_turn() -> None:
    board = steered([node("n1", 2)], [pod("first")])
    assert lifted(board) == ["first"]
    for at in range(2):
        board.pods(1, member(f"m{at}"))
    board.site.pod_group_changed(names.PLUGINS_GROUP, group(minMember=2, scheduleTimeoutSeconds=7), 1)
    assert lifted(board) == []
    assert board.cluster.free_total_milli == 1000
    board.pods(2, pod("later"))
    assert lifted(board, 7001) == []
    board.gone(7002, pod("first"))
    assert lifted(board, 7003) == ["m0", "m1"]


def test_a_group_that_is_deleted_keeps_what_runs_and_gives_back_what_it_holds() -> None:
    board = steered([node("n1", 2)], [pod("first")])
    assert lifted(board) == ["first"]
    for at in range(2):
        board.pods(1, member(f"m{at}"))
    board.site.pod_group_changed(names.PLUGINS_GROUP, group(minMember=2), 1)
    assert lifted(board) == []
    board.site.pod_group_changed(names.PLUGINS_GROUP, group(), 1, gone=True)
    board.gone(2, pod("first"))
    assert lifted(board, 3) == []
    board.pods(4, pod("other", 2))
    assert lifted(board, 5) == ["other"]


def test_a_groups_own_time_out_says_how_long_it_may_be_started_in_part() -> None:
    board = steered([node("n1", 1), node("n2", 1)], [member(f"m{at}", owner="Job/m") for at in range(2)])
    board.site.pod_group_changed(names.PLUGINS_GROUP, group(minMember=2, scheduleTimeoutSeconds=7), 1)
    lifts = board.lifts(1)
    there = member("m0", owner="Job/m", on=lifts["m0"].node, placement=lifts["m0"].placement)
    left = member("m1", owner="Job/m", placement=lifts["m1"].placement)
    board.pods(2, there, refused(left, "no"))
    assert board.evicted(7000) == []
    assert board.evicted(7001) == ["m0", "m1"]


def test_a_completed_member_counts_after_a_restart() -> None:
    before = steered([node("n1", 4)], [member(f"m{at}") for at in range(2)])
    before.site.pod_group_changed(names.PLUGINS_GROUP, group(minMember=2), 1)
    binds = before.lifts(1)
    done = member("m0", on="n1", placement=binds["m0"].placement, placed_uid="uid-m0")
    done.status.phase = "Succeeded"
    after = steered([node("n1", 4)])
    after.site.pod_group_changed(names.PLUGINS_GROUP, group(minMember=2), 1)
    after.pods(0, done, member("m2"))
    assert lifted(after, 2) == ["m2"]


def test_kubernetes_own_groups_are_read_too() -> None:
    pods = [pod(f"m{at}") for at in range(3)]
    for each in pods:
        each.spec.scheduling_group = api.SchedulingGroup("g")
    board = steered([node("n1", 4)], pods[:2])
    board.site.pod_group_changed(names.PLUGINS_GROUP, group(minMember=1), 1)  # another's of the same name
    assert lifted(board) == []
    board.site.pod_group_changed(names.OWN_GROUP, group(schedulingPolicy={"gang": {"minCount": 3}}), 1)
    assert lifted(board) == []
    board.pods(2, pods[2])
    assert lifted(board, 3) == ["m0", "m1", "m2"]
    alone = steered([node("n1", 4)], pods[:1])
    alone.site.pod_group_changed(names.OWN_GROUP, group(schedulingPolicy={"basic": {}}), 1)
    assert lifted(alone) == ["m0"]


def test_an_annotation_and_a_group_are_refused() -> None:
    board = steered([node("n1", 4)], [member("a", gang="g/2")])
    assert "expected one of them" in board.why("a")


@pytest.mark.slow
@pytest.mark.usefixtures("kube_scheduler")
def test_a_group_on_a_cluster_is_whole_or_waits(play: Played) -> None:
    crds, path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", names.PLUGINS_GROUP
    groups = f"/apis/{path}/v1alpha1/namespaces/default/podgroups"
    made = definition("podgroups", "PodGroup", "Namespaced", path, "v1alpha1")

    async def test(world: World) -> None:
        await world.api.request("POST", crds, made)
        try:
            await world.until("the kind is served", lambda: world.api.request("GET", groups))
            await world.node("n1", 2)
            async with world.steerer():
                for at in range(2):
                    await world.pod(f"m{at}", labels={LABEL: "train"})
                await world.until_told("m0", "PodGroup train is not there")
                body = {"apiVersion": f"{path}/v1alpha1", "kind": "PodGroup", "metadata": {"name": "train"}}
                await world.api.request("POST", groups, {**body, "spec": {"minMember": 3}})
                await world.until_told("m0", "waits for 1 more task of gang train")
                await world.patch(f"{groups}/train", {"spec": {"minMember": 2}})
                await world.until_bound("m0", "m1")
                await world.pod("m2", labels={LABEL: "train"})
                await world.until_told("m2", "waits for room")
                await world.check()
        finally:
            await world.api.request("DELETE", f"{crds}/podgroups.{path}", patience_s=60)

    play(test)
