"""The scheduler on a real API server: pods of all kinds get their place, and those that do not are told why."""

from __future__ import annotations

import json

import pytest

from berth.errors import ApiError
from berth.live.kubernetes import names, writing
from berth.live.kubernetes.client import Api
from berth.live.kubernetes.steps import Stop
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.world import World


def test_pods_that_ask_for_parts_share_a_gpu_and_carry_their_placement(play: Played) -> None:
    async def test(world: World) -> None:
        await world.node("n1", 1)
        await world.pod("a", milli=500, mem=20_000)
        await world.pod("b", milli=500, mem=30_000)
        await world.pod("cpu", 0)
        async with world.scheduler():
            assert await world.until_bound("a", "b", "cpu") == {"a": "n1", "b": "n1", "cpu": "n1"}
        pods = await world.pods()
        assert json.loads(pods["b"]["metadata"]["annotations"][names.PLACEMENT]) == {
            "gpus": [{"index": 0, "uuid": None, "milli": 500, "mem_mib": 30_000}],
            "shared": False,
            "best_effort": False,
            "policy": "easy+priority+best-fit",
        }
        assert json.loads(pods["cpu"]["metadata"]["annotations"][names.PLACEMENT])["gpus"] == []
        await world.check()

    play(test)


def test_pods_go_where_selectors_affinity_taints_and_cordons_allow(play: Played) -> None:
    async def test(world: World) -> None:
        taint = {"key": "team", "value": "x", "effect": "NoSchedule"}
        await world.node("tainted", 4, taints=[taint])
        await world.node("cordoned", 4, unschedulable=True)
        await world.node("fast", 1, labels={"disk": "nvme", "zone": "b"})
        await world.node("slow", 1, labels={"disk": "hdd", "zone": "a"})
        await world.pod("selects", milli=100, nodeSelector={"disk": "hdd"})
        terms = [{"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]},
                                       {"key": "disk", "operator": "Exists"}]}]  # fmt: skip
        affinity = {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        }
        await world.pod("affine", milli=100, affinity=affinity)
        await world.pod("tolerates", 4, tolerations=[{"key": "team", "operator": "Exists"}])
        await world.pod("nowhere", milli=100, nodeSelector={"disk": "tape"})
        await world.pod("plain", milli=950)
        async with world.scheduler():
            places = await world.until_bound("selects", "affine", "tolerates")
            said = await world.until_told("nowhere", "0/4 nodes")
            full = await world.until_told("plain", "0/4 nodes")
            assert await world.until_event("FailedScheduling", "nowhere") == said
        assert places == {"selects": "slow", "affine": "fast", "tolerates": "tainted"}
        assert said == "0/4 nodes: 2 no label disk=tape, 1 cordoned, 1 taint team=x:NoSchedule"
        assert "2 GPU compute short by 50 milli" in full

    play(test)


def test_a_pod_that_waits_is_told_what_is_short_in_numbers(play: Played) -> None:
    async def test(world: World) -> None:
        for at in range(3):
            await world.node(f"t4-{at}", 1, model="T4", mem_mib=16_384)
        await world.node("a100", 1)
        await world.pod("holder", milli=100, mem=80_000, annotations={names.MODELS: "A100"})
        async with world.scheduler():
            await world.until_bound("holder")
            await world.pod("big", milli=100, mem=3_968, annotations={names.MODELS: "A100"})
            await world.pod("huge", 0, cpu="100")
            assert (
                await world.until_told("big", "nodes")
                == "0/4 nodes: 3 no model A100, 1 GPU memory short by 2048 MiB"
            )
            assert await world.until_told("huge", "nodes") == "0/4 nodes: 4 CPU short by 36000m"
            await world.delete("holder")
            assert (await world.until_bound("big"))["big"] == "a100"

    play(test)


def test_what_pods_of_others_use_is_not_given_away(play: Played) -> None:
    async def test(world: World) -> None:
        await world.node("n1", 2, cpu="4", resources={"nvidia.com/gpu": "2"})
        await world.pod("theirs", 0, scheduler="other", node="n1", cpu="3", resources={"nvidia.com/gpu": "1"})
        await world.pod("cpu", 0, cpu="2")
        await world.pod("both", 2)
        await world.pod("one", 1)
        async with world.scheduler(policy="easy+fifo+best-fit"):
            await world.until_told("cpu", "1 CPU short by")
            said = await world.until_told("both", "GPU compute")
            assert (await world.until_bound("one"))["one"] == "n1"
            await world.delete("one")
            await world.delete("theirs")
            await world.until_bound("cpu", "both")
        assert said.endswith("1 GPU compute short by 1000 milli")

    play(test)


def test_gangs_start_whole_or_not_at_all(play: Played) -> None:
    async def test(world: World) -> None:
        await world.node("n1", 2)
        await world.node("n2", 1)
        for at in range(4):
            await world.pod(f"big-{at}", annotations={names.GANG: "big/4"})
        for at in range(2):
            await world.pod(f"small-{at}", annotations={names.GANG: "small/2"})
        await world.pod("half-0", annotations={names.GANG: "half/2"})
        async with world.scheduler(policy="easy+fifo+best-fit"):
            await world.until_bound("small-0", "small-1")
            await world.check()
            assert "1 of 2 pods are there" in await world.until_told("half-0", "gang half")
            await world.node("n3", 4)
            await world.until_bound(*(f"big-{at}" for at in range(4)))
            await world.check()
            await world.pod("half-1", annotations={names.GANG: "half/2"})
            await world.delete("small-0")
            await world.delete("small-1")
            await world.until_bound("half-0", "half-1")
            await world.check()

    play(test)


def test_a_pod_of_higher_priority_is_bound_when_its_victim_has_left(
    play: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, refused = writing.stop, []

    async def stop(api: Api, step: Stop) -> None:
        if not refused:
            refused.append(step.name)
            raise ApiError("DELETE", 500, "InternalError", "etcd is away", 0.0)
        await real(api, step)

    monkeypatch.setattr(writing, "stop", stop)

    async def test(world: World) -> None:
        await world.node("n1", 1)
        for name, value in (("low", 1), ("high", 1000)):
            body = {"kind": "PriorityClass", "metadata": {"name": name}, "value": value}
            await world.api.request(
                "POST", "/apis/scheduling.k8s.io/v1/priorityclasses",
                {"apiVersion": "scheduling.k8s.io/v1", **body},
            )  # fmt: skip
        victim = {"priorityClassName": "low", "terminationGracePeriodSeconds": 600}
        await world.until("the class is known", lambda: world.pod("victim", **victim))
        async with world.scheduler(policy="preempt+fifo+best-fit"):
            await world.until_bound("victim")
            await world.until("the class is known", lambda: world.pod("urgent", priorityClassName="high"))

            async def told_to_go() -> bool:
                return bool((await world.pods())["victim"]["metadata"].get("deletionTimestamp"))

            await world.until("the victim is told to go", told_to_go)
            assert "urgent" not in await world.places()  # the victim uses its GPU still
            await world.delete("victim")  # as its kubelet does in the end
            await world.until_bound("urgent")
            assert "higher priority" in await world.until_event("Preempted", "victim")
        assert refused == ["victim"]  # it was deleted at the second attempt
        for name in ("low", "high"):
            await world.api.request("DELETE", f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}")

    play(test)


def test_another_scheduler_takes_over_from_the_cluster_alone(play: Played) -> None:
    async def test(world: World) -> None:
        await world.node("n1", 2)
        await world.pod("a", milli=700, mem=40_000)
        await world.pod("b", milli=700, mem=40_000)
        async with world.scheduler():
            before = await world.until_bound("a", "b")
        await world.pod("c", milli=300, mem=41_000)
        await world.pod("d", milli=400, mem=1_000)
        async with world.scheduler() as second:
            await world.until_bound("c")
            assert "GPU compute short by 100 milli" in await world.until_told("d", "nodes")
            assert second.counts.bound == 1
            await world.ended("a")
            await world.until_bound("d")
        after = await world.places()
        assert {name: after[name] for name in before} == before
        await world.check()

    play(test)


def test_nodes_come_and_go_and_change_while_pods_wait(play: Played) -> None:
    async def test(world: World) -> None:
        async with world.scheduler():
            await world.pod("early", 1)
            assert await world.until_told("early", "nodes") == "0/0 nodes: there are none"
            await world.node("n1", 0)
            await world.until_told("early", "1 no GPU")
            await world.patch("/api/v1/nodes/n1", {"metadata": {"labels": {
                names.LABEL_GPU_COUNT: "1", names.LABEL_GPU_MEMORY_MIB: "16384", names.LABEL_GPU_MODEL: "T4",
            }}})  # fmt: skip
            units = {"status": {"allocatable": {names.RESOURCE: "16"}, "capacity": {names.RESOURCE: "16"}}}
            await world.patch("/api/v1/nodes/n1/status", units)
            await world.until_bound("early")
            await world.pod("next", 1)
            await world.until_told("next", "GPU compute")
            await world.delete("n1", "nodes", None)
            await world.until_told("next", "0/0 nodes")
            await world.node("n1", 1)  # back, with its pod on it
            await world.until_told("next", "GPU compute")
            await world.patch("/api/v1/nodes/n1", {"metadata": {"labels": {names.LABEL_GPU_COUNT: "2"}}})
            await world.until_bound("next")
            await world.check()

    play(test)


def test_a_node_takes_no_more_pods_ports_and_other_resources_than_it_has(play: Played) -> None:
    async def test(world: World) -> None:
        await world.node("n1", 4, pods="3", resources={"example.com/nic": "1"})
        ports = [{"name": "main", "image": "busybox", "ports": [{"containerPort": 1, "hostPort": 8080}]}]
        await world.pod("port-0", 0, containers=ports)
        await world.pod("port-1", 0, containers=ports)
        await world.pod("nic-0", 0, resources={"example.com/nic": "1"})
        await world.pod("nic-1", 0, resources={"example.com/nic": "1"})
        async with world.scheduler():
            await world.until_bound("port-0", "nic-0")
            assert "no free host port 8080" in await world.until_told("port-1", "nodes")
            assert "no free example.com/nic" in await world.until_told("nic-1", "nodes")
            await world.pod("third", 0)
            await world.pod("fourth", 0)
            await world.until_bound("third")
            assert await world.until_told("fourth", "nodes") == "0/1 nodes: 1 full with 3 pods"
            await world.delete("port-0")
            await world.until_bound("fourth")

    play(test)


def test_advice_is_told_and_nothing_bound(play: Played) -> None:
    async def test(world: World) -> None:
        await world.node("n1", 1)
        await world.pod("theirs", milli=500, mem=1000, scheduler="default-scheduler")
        await world.pod("large", 2, scheduler="default-scheduler")
        async with world.scheduler(advise=True, scheduler_name="default-scheduler"):
            told = await world.until_event("Advised", "theirs")
            assert "fewer than 2 GPUs" in await world.until_event("FailedScheduling", "large")
        # The pod's status is its own scheduler's: autoscalers read it.
        assert not (await world.pods())["large"]["status"].get("conditions")
        assert told == "easy+priority+best-fit places it on node n1, GPU 0: 500 milli, 1000 MiB"
        assert await world.places() == {}

    play(test)


def test_advice_that_a_pod_gives_way_is_forgotten_with_the_pod_that_it_was_for(play: Played) -> None:
    async def test(world: World) -> None:
        await world.node("n1", 1)
        await world.pod("low")
        async with world.scheduler():
            await world.until_bound("low")
        path = "/apis/scheduling.k8s.io/v1/priorityclasses"
        body = {"kind": "PriorityClass", "metadata": {"name": "urgent"}, "value": 1000}
        await world.api.request("POST", path, {"apiVersion": "scheduling.k8s.io/v1", **body})
        await world.until("the class is known", lambda: world.pod("high", priorityClassName="urgent"))
        async with world.scheduler(advise=True, policy="preempt+fifo+best-fit"):
            await world.until_event("Advised", "high")
            assert "would be deleted" in await world.until_event("Advised", "low")
            await world.delete("high")
            await world.pod("next")
            assert "GPU compute short" in await world.until_event("FailedScheduling", "next")
        assert await world.events("Preempted") == []
        assert await world.places() == {"low": "n1"}
        await world.api.request("DELETE", f"{path}/urgent")

    play(test)


def test_parts_of_memory_become_mib_of_the_card_that_is_chosen(play: Played) -> None:
    async def test(world: World) -> None:
        await world.node("small", 1, model="T4", mem_mib=16_000)
        await world.node("large", 1)
        for at in range(4):
            await world.pod(f"half-{at}", milli=500)
        async with world.scheduler():
            await world.until_bound(*(f"half-{at}" for at in range(4)))
        found = sorted(
            (
                pod["spec"]["nodeName"],
                json.loads(pod["metadata"]["annotations"][names.PLACEMENT])["gpus"][0]["mem_mib"],
            )
            for pod in (await world.pods()).values()
        )
        assert found == [("large", 40_960), ("large", 40_960), ("small", 8_000), ("small", 8_000)]

    play(test)
