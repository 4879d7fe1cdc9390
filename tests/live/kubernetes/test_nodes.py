"""Which GPUs of a node pods may have, and what becomes of pods when nodes come, go and change."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from berth.live.kubernetes import names
from berth.live.kubernetes import objects as api
from berth.live.kubernetes.eligibility import MOST_OF_ONE
from berth.live.kubernetes.entries import State
from berth.live.kubernetes.reasons import Reasons
from berth.live.kubernetes.steps import Bind
from berth.live.kubernetes.viewing import snapshot
from tests.live.kubernetes.test_board import board_of, pod


def node(
    name: str = "n1", gpus: int = 4, *, units: int | None = None, mem_mib: int = 81_920, **labels: str
) -> api.Node:
    said = {
        names.LABEL_GPU_COUNT: str(gpus),
        names.LABEL_GPU_MODEL: "A100-80",
        names.LABEL_GPU_MEMORY_MIB: str(mem_mib),
        **{f"berth.dev/{key.replace('_', '-')}": value for key, value in labels.items()},
    }
    there = {"cpu": "64", "memory": "256Gi", names.RESOURCE: str(16 * gpus if units is None else units)}
    body = {"metadata": {"name": name, "labels": said}, "status": {"allocatable": there}}
    return msgspec.json.decode(msgspec.json.encode(body), type=api.Node)


def slice_of(node: str, *indices: int) -> api.ResourceSlice:
    devices = [
        {
            "name": f"gpu-{at}",
            "attributes": {"index": {"int": at}, "model": {"string": "A100-80"}},
            "capacity": {"memory": {"value": "80Gi"}},
        }
        for at in indices
    ]
    spec = {"driver": names.DRIVER, "nodeName": node, "pool": {"name": node}, "devices": devices}
    body = {"metadata": {"name": f"{node}-slice"}, "spec": spec}
    return msgspec.json.decode(msgspec.json.encode(body), type=api.ResourceSlice)


def instances_of(node: str, *, apart: bool) -> list[api.ResourceSlice]:
    """GPU 1 of 80 GiB, cut into instances of MIG that share its counters, beside GPU 0; the counters `apart` from the
    devices as Kubernetes 1.35 has them, or in one slice as 1.34 does."""

    def takes(memory: str, slices: int) -> list[dict[str, Any]]:
        counters = {"memory": {"value": memory}, "slices": {"value": str(slices)}}
        return [{"counterSet": "gpu-1-counters", "counters": counters}]

    instances = [
        {
            "name": f"gpu-1-mig-{at}",
            "attributes": {"model": {"string": "A100-80"}, "profile": {"string": "1g.10gb"}},
            "consumesCounters": takes("10Gi", 1),
        }
        for at in range(7)
    ] + [
        {
            "name": "gpu-1-mig-big",
            "attributes": {"model": {"string": "A100-80"}},
            "consumesCounters": takes("40Gi", 3),
        }
    ]
    whole = {
        "name": "gpu-0", "attributes": {"index": {"int": 0}, "model": {"string": "A100-80"}},
        "capacity": {"memory": {"value": "80Gi"}},
    }  # fmt: skip
    sets = [{"name": "gpu-1-counters", "counters": {"memory": {"value": "80Gi"}, "slices": {"value": "7"}}}]
    pool = {"name": node, "generation": 4, "resourceSliceCount": 2 if apart else 1}
    specs: list[dict[str, Any]] = (
        [{"devices": [whole, *instances]}, {"sharedCounters": sets}]
        if apart
        else [{"devices": [whole, *instances], "sharedCounters": sets}]
    )
    return [
        msgspec.convert(
            {"metadata": {"name": f"{node}-{at}"},
             "spec": {"driver": names.DRIVER, "nodeName": node, "pool": pool, **spec}}, api.ResourceSlice
        )
        for at, spec in enumerate(specs)
    ]  # fmt: skip


def claim_of(name: str, *devices: str, node: str = "n1") -> api.Claim:
    results = [{"driver": names.DRIVER, "pool": node, "device": each} for each in devices]
    status = {"allocation": {"devices": {"results": results}}}
    return msgspec.convert({"metadata": {"name": name, "uid": name}, "status": status}, api.Claim)


@pytest.mark.parametrize("apart", [False, True])
def test_instances_that_share_counters_are_one_gpu_and_claims_take_their_parts_of_it(apart: bool) -> None:
    board = board_of([node(gpus=3, gpu_indices="0-2")], [])
    for each in instances_of("n1", apart=apart):
        board.nodes.slice_changed(each)
    board.claim_changed(claim_of("small", "gpu-1-mig-0", "gpu-1-mig-3"))
    board.claim_changed(claim_of("large", "gpu-1-mig-big"))
    board.sync_nodes(0)
    seen = [each for each in snapshot(board, 0, 10).gpus if each.for_claims]
    assert [(each.index, each.milli, each.mem_mib, each.card_mib) for each in seen] == [
        (0, 0, 0, 81_920), (1, 143 + 143 + 429, 60 << 10, 81_920),
    ]  # fmt: skip
    board.pod_changed(pod("a", 1), 1)
    board.pod_changed(pod("b", 1, version=2), 1)
    (bind,) = board.decide(2)
    assert indices(bind) == [2]  # GPUs 0 and 1 are for claims
    assert isinstance(bind, Bind)
    board.pod_changed(pod("a", 1, on="n1", placement=bind.placement, placed_uid="uid-a"), 2)
    # The node gives GPU 1 to pods again; who was allocated an instance of it has all of it until it has ended.
    for each in instances_of("n1", apart=apart):
        board.nodes.slice_gone(each)
    board.nodes.slice_changed(slice_of("n1", 0))
    assert list(board.decide(3)) == []
    board.claim_gone(claim_of("small"))
    board.claim_gone(claim_of("large"))
    assert [indices(step) for step in board.decide(4)] == [[1]]


def test_counters_of_a_set_that_is_not_there_are_a_mistake_of_the_node() -> None:
    board = board_of([node(gpus=1)], [])
    first, second = instances_of("n1", apart=True)
    board.nodes.slice_changed(first)
    board.sync_nodes(0)
    assert "consume counters of 'gpu-1-counters'" in board.views["n1"].problem
    board.nodes.slice_changed(second)
    board.sync_nodes(1)
    assert board.views["n1"].problem == ""


def indices(step: object) -> list[int]:
    assert isinstance(step, Bind)
    return [gpu["index"] for gpu in json.loads(step.placement)["gpus"]]


def why(board: Any, uid: str) -> str:
    return str(Reasons(board).of(board.entries[uid]).message)


def test_pods_go_to_the_gpus_that_the_label_names() -> None:
    board = board_of([node(gpus=2, gpu_indices="2-3")], [pod("a"), pod("b"), pod("c")])
    assert sorted(index for step in board.decide(1) for index in indices(step)) == [2, 3]


def test_gpus_of_slices_are_for_claims_alone() -> None:
    board = board_of([node(gpus=4, gpu_indices="0-3")], [])
    board.nodes.slice_changed(slice_of("n1", 0, 1))
    board.pod_changed(pod("a", 2), 1)
    board.pod_changed(pod("b"), 1)
    assert [indices(step) for step in board.decide(2)] == [[2, 3]]


def test_a_node_without_the_resource_has_no_gpu_for_pods() -> None:
    board = board_of([node(units=0)], [pod("a"), pod("cpu", 0)])
    assert [step.name for step in board.decide(1) if isinstance(step, Bind)] == ["cpu"]
    assert why(board, "uid-a") == "0/1 nodes: 1 no GPU"


def test_nothing_starts_on_an_ailing_gpu_and_others_go_on() -> None:
    board = board_of([node(gpus=2, gpus_ailing="0")], [pod("a"), pod("b")])
    assert [indices(step) for step in board.decide(1)] == [[1]]
    board.nodes.changed(node(gpus=2))
    assert [indices(step) for step in board.decide(2)] == [[0]]


def test_nothing_starts_on_a_drained_gpu_what_runs_there_goes_on_and_keeps_it_after_a_restart() -> None:
    board = board_of([node(gpus=2)], [pod("a", gpu_milli=400)])
    (bind,) = [step for step in board.decide(1) if isinstance(step, Bind)]
    (at,) = indices(bind)
    drained = node(gpus=2, **{f"gpu_drained_{at}": "true"})
    runs = pod("a", gpu_milli=400, on="n1", placement=bind.placement)
    board.bound("uid-a", 2)
    board.nodes.changed(drained)
    board.pod_changed(pod("b", gpu_milli=400), 2)
    assert [indices(step) for step in board.decide(2)] == [[1 - at]]
    for seen in (board, board_of([drained], [runs])):
        told = snapshot(seen, 3, 10).gpus[at]
        assert (told.milli, told.holders, told.foreign_milli, told.drained, told.ailing) == (
            400, ("n/a",), 0, "it is drained", "",
        )  # fmt: skip
    board.pod_changed(pod("c", gpu_milli=700), 4)
    assert not [step for step in board.decide(4) if isinstance(step, Bind)]
    board.pod_gone(runs, 5)
    assert not [step for step in board.decide(5) if isinstance(step, Bind)]
    board.nodes.changed(node(gpus=2))
    assert [indices(step) for step in board.decide(6) if isinstance(step, Bind)] == [[at]]


def test_a_held_pod_is_not_placed_and_holds_up_nobody() -> None:
    board = board_of([node(gpus=1)], [pod("a", hold="true"), pod("b", version=2)])
    assert [step.name for step in board.decide(1) if isinstance(step, Bind)] == ["b"]
    board.pod_changed(pod("c"), 2)
    board.pod_changed(pod("c", hold="true"), 3)  # while it waits
    board.pod_gone(pod("b"), 4)
    assert not [step for step in board.decide(4) if isinstance(step, Bind)]
    board.pod_changed(pod("a", hold="false"), 5)
    assert [step.name for step in board.decide(5) if isinstance(step, Bind)] == ["a"]


def test_no_more_pods_than_the_kubelet_has_units() -> None:
    pods = [pod(f"p{at:02}", gpu_milli=50, version=at) for at in range(20)]
    board = board_of([node("n1", 1), node("n2", 1, units=2)], pods)
    bound = [step for now in range(1, 5) for step in board.decide(now) if isinstance(step, Bind)]
    assert sorted(step.node for step in bound) == ["n1"] * 16 + ["n2"] * 2
    waits = next(uid for uid, entry in board.entries.items() if entry.state is not State.PLACED)
    assert why(board, waits) == "0/2 nodes: 2 no free berth.dev/gpu"
    board.pod_gone(pods[int(bound[0].name[1:])], 6)
    assert len([step for step in board.decide(7) if isinstance(step, Bind)]) == 1


def test_an_init_container_cannot_have_a_gpu() -> None:
    asked = pod("a")
    body = msgspec.json.decode(msgspec.json.encode(asked))
    body["spec"]["initContainers"] = [{"resources": {"limits": {names.RESOURCE: "1"}}}]
    board = board_of([node()], [msgspec.json.decode(msgspec.json.encode(body), type=api.Pod)])
    assert list(board.decide(1)) == []
    assert "an init container asks for berth.dev/gpu" in board.entries["uid-a"].message


def test_a_pod_whose_node_vanishes_before_its_bind_goes_to_another() -> None:
    board = board_of([node("n1", 1)], [pod("a")])
    (first,) = board.decide(1)
    assert isinstance(first, Bind)
    board.nodes.gone(node("n1"))
    board.nodes.changed(node("n2", 1))
    (second,) = board.decide(2)
    assert isinstance(second, Bind)
    assert second.node == "n2"
    board.bound("uid-a", 3)
    assert board.entries["uid-a"].state is State.BOUND


def test_a_gang_whose_node_vanishes_before_its_bind_starts_whole_elsewhere() -> None:
    board = board_of([node("n1", 2)], [pod(f"g{at}", gang="g/2") for at in range(2)])
    assert len(list(board.decide(1))) == 2
    board.nodes.gone(node("n1"))
    board.nodes.changed(node("n2", 2))
    steps = [step for now in (2, 3) for step in board.decide(now)]
    assert sorted((step.name, step.node) for step in steps if isinstance(step, Bind)) == [
        ("g0", "n2"),
        ("g1", "n2"),
    ]


def test_what_others_use_is_counted_again_when_their_node_comes_back() -> None:
    theirs = pod("theirs", 0, on="n1", cpu="60")
    board = board_of([node("n1")], [theirs])
    for at in (1, 3):
        board.nodes.gone(node("n1"))
        list(board.decide(at))
        board.nodes.changed(node("n1"))
        list(board.decide(at + 1))
    assert board.views["n1"].node().cpu_milli == 4_000
    board.pod_gone(theirs, 5)
    list(board.decide(6))
    assert board.views["n1"].node().cpu_milli == 64_000


def test_pods_keep_their_gpu_when_a_node_gives_others() -> None:
    board = board_of([node(gpus=3, gpu_indices="0-2")], [pod("a")])
    (bind,) = board.decide(1)
    (at,) = indices(bind)
    assert isinstance(bind, Bind)
    board.pod_changed(pod("a", on="n1", placement=bind.placement, placed_uid="uid-a"), 2)
    rest = {0, 1, 2, 3} - {0 if at else 2}
    board.nodes.changed(node(gpus=3, gpu_indices=".".join(map(str, sorted(rest)))))
    list(board.decide(3))
    for name in "bcd":
        board.pod_changed(pod(name), 4)
    given = [index for now in (5, 6) for step in board.decide(now) for index in indices(step)]
    assert sorted([*given, at]) == sorted(rest)


def test_a_heartbeat_has_nothing_read_anew() -> None:
    board = board_of([node()], [])
    before = board.views["n1"].traits
    board.nodes.changed(node())
    list(board.decide(1))
    assert board.views["n1"].traits is before


def test_half_of_a_card_is_half_of_the_one_that_is_chosen() -> None:
    nodes = [node("n1", 1, mem_mib=81_920), node("n2", 1, mem_mib=81_250)]
    board = board_of(nodes, [pod(f"p{at}", gpu_milli=500, models="A100-80") for at in range(4)])
    given = [
        (step.node, json.loads(step.placement)["gpus"][0]["mem_mib"])
        for now in (1, 2, 3)
        for step in board.decide(now)
        if isinstance(step, Bind)
    ]
    assert sorted(given) == [("n1", 40_960), ("n1", 40_960), ("n2", 40_625), ("n2", 40_625)]


def test_a_placement_out_of_range_counts_as_whole_gpus() -> None:
    forged = '{"gpus":[{"index":0,"uuid":null,"milli":-1000,"mem_mib":1}]}'
    theirs = [pod("forged", on="n1", placement=forged, placed_uid="uid-forged"), pod("other", on="n1")]
    board = board_of([node(gpus=2)], theirs)
    board.pod_changed(pod("a", gpu_milli=1), 1)
    assert list(board.decide(2)) == []


def test_a_placement_that_was_made_smaller_counts_as_much_as_the_pod_asks_for() -> None:
    (bind,) = board_of([node(gpus=1)], [pod("a", gpu_milli=600, gpu_mem_mib=60_000)]).decide(1)
    assert isinstance(bind, Bind)
    edited = bind.placement.replace("60000", "1").replace("600", "1")
    ours = pod("a", on="n1", gpu_milli=600, gpu_mem_mib=60_000, placement=edited, placed_uid="uid-a")
    board = board_of([node(gpus=1)], [ours])
    board.pod_changed(pod("b", gpu_milli=100, gpu_mem_mib=30_000), 2)
    assert list(board.decide(3)) == []


def test_impossible_selectors_of_one_namespace_hold_up_nobody() -> None:
    def selects(name: str, namespace: str, **selector: str) -> api.Pod:
        found = pod(name)
        found.metadata.namespace = namespace
        found.spec.node_selector = selector
        return found

    nodes = [node("n1", 4), node("n2", 4)]
    for each, disk in zip(nodes, ("ssd", "hdd"), strict=True):
        each.metadata.labels["disk"] = disk
    impossible = [selects(f"i{at:03}", "greedy", disk=f"none-{at}") for at in range(200)]
    board = board_of(nodes, [*impossible, selects("good", "other", disk="ssd")])
    bound = [(step.name, step.node) for now in (1, 2) for step in board.decide(now) if isinstance(step, Bind)]
    assert bound == [("good", "n1")]
    assert why(board, "uid-i000") == "0/2 nodes: 2 no label disk=none-0"


def test_amounts_of_many_sizes_need_no_place_among_the_constraints() -> None:
    pods = []
    for at in range(100):
        each = pod(f"p{at:03}", 0, cpu="0", version=at)
        each.spec.containers[0].resources.requests["ephemeral-storage"] = str(1000 + at)
        pods.append(each)
    there = node("n1")
    there.status.allocatable["ephemeral-storage"] = "100000"
    board = board_of([there], pods)
    bound = [step for now in range(1, 9) for step in board.decide(now) if isinstance(step, Bind)]
    used = sum(1000 + int(step.name[1:]) for step in bound)
    assert used <= 100_000
    assert len(bound) >= 90
    assert all(each.state is State.PLACED or each.tight for each in board.entries.values())


def selects(name: str, namespace: str, at: int) -> api.Pod:
    found = pod(name, 0)
    found.metadata.namespace = namespace
    found.spec.node_selector = {"rack": f"r{at:03}"}
    return found


def test_pods_of_a_hundred_sets_of_nodes_are_placed_in_one_decision() -> None:
    nodes = [node(f"n{at:03}", 0) for at in range(100)]
    for at, each in enumerate(nodes):
        each.metadata.labels["rack"] = f"r{at:03}"
    board = board_of(nodes, [selects(f"m{at:03}", "many", at) for at in range(100)])
    bound = {step.name: step.node for step in board.decide(1) if isinstance(step, Bind)}
    assert bound == {f"m{at:03}": f"n{at:03}" for at in range(100)}


def test_sets_of_nodes_beyond_those_that_are_compared_wait_and_are_told_so() -> None:
    nodes = [node(f"n{at:03}", 0) for at in range(140)]
    for at, each in enumerate(nodes):
        each.metadata.labels["rack"] = f"r{at:03}"
    many = [selects(f"m{at:03}", "many", at) for at in range(140)]
    board = board_of(nodes, [*many, selects("few", "few", 3), selects("other", "few", 130)])
    refused = [entry for entry in board.entries.values() if entry.state is State.REFUSED]
    assert len(refused) == 140 - MOST_OF_ONE
    assert f"{MOST_OF_ONE} in this namespace" in refused[0].message
    bound = {
        step.name: step.node for now in range(1, 6) for step in board.decide(now) if isinstance(step, Bind)
    }
    assert bound == {f"m{at:03}": f"n{at:03}" for at in range(140)} | {"few": "n003", "other": "n130"}
