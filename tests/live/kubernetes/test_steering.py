"""The steerer with a real API server and a real kube-scheduler: each does its part, and nobody else's."""

from __future__ import annotations

import json

import pytest

from berth.live.kubernetes import names, pod_site
from berth.live.kubernetes.steps import PodEvent
from berth.live.kubernetes.writing import note_waiting
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.server import Server
from tests.live.kubernetes.world import World

pytestmark = pytest.mark.usefixtures("kube_scheduler")


def test_pods_that_ask_for_parts_share_a_gpu_and_kube_scheduler_binds_them_where_berth_says(
    play: Played,
) -> None:
    async def test(world: World) -> None:
        await world.node("n1", 1)
        await world.node("n2", 1)
        await world.pod("a", milli=500, mem=20_000)
        await world.pod("b", milli=500, mem=30_000)
        await world.pod("cpu", 0)
        async with world.steerer():
            places = await world.until_bound("a", "b", "cpu")
        pods = await world.pods()
        placed = json.loads(pods["b"]["metadata"]["annotations"][names.PLACEMENT])
        assert places["a"] == places["b"] == placed["node"]
        assert placed["gpus"] == [{"index": 0, "uuid": None, "milli": 500, "mem_mib": 30_000}]
        assert placed["policy"] == "easy+priority+best-fit"
        assert json.loads(pods["cpu"]["metadata"]["annotations"][names.PLACEMENT])["gpus"] == []
        assert not any("schedulingGates" in pod["spec"] for pod in pods.values())
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
        async with world.steerer():
            places = await world.until_bound("selects", "affine", "tolerates")
            said = await world.until_told("nowhere", "of 4 nodes")
            await world.until_told("plain", "waits for room")
            assert await world.until_event("Waits", "nowhere") == said
        assert places == {"selects": "slow", "affine": "fast", "tolerates": "tainted"}
        why = "2 no label disk=tape, 1 cordoned, 1 taint team=x:NoSchedule"
        assert said == f"no node can hold it: of 4 nodes, {why}"

    play(test)


@pytest.mark.slow
def test_the_record_of_who_manages_a_pods_fields_is_left_to_those_who_apply_them(play: Played) -> None:
    async def test(world: World) -> None:
        await world.node("n1", 2)
        await world.pod("made", milli=500)
        pod_requests = {"limits": {names.RESOURCE: "1"}, "requests": {names.RESOURCE: "1"}}
        spec = {
            "containers": [{"name": "main", "image": "busybox", "resources": pod_requests}],
            "schedulingGates": [{"name": names.GATE}],
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "applied"}, "spec": spec}
        await world.api.request(
            "PATCH",
            "/api/v1/namespaces/default/pods/applied",
            pod,
            params={"fieldManager": "somebody"},
            content_type="application/apply-patch+yaml",
        )
        async with world.steerer():
            await world.until_bound("made", "applied")
        pods = await world.pods()
        assert "managedFields" not in pods["made"]["metadata"]
        managers = {each["manager"] for each in pods["applied"]["metadata"]["managedFields"]}
        assert {"somebody", "berth"} <= managers

    play(test)


@pytest.mark.slow
def test_what_pods_of_others_use_is_not_given_away(play: Played) -> None:
    async def test(world: World) -> None:
        await world.node("n1", 2, cpu="4", resources={"nvidia.com/gpu": "2"})
        await world.pod("theirs", 0, scheduler="other", node="n1", cpu="3", resources={"nvidia.com/gpu": "1"})
        await world.pod("cpu", 0, cpu="2")
        await world.pod("both", 2)
        await world.pod("one", 1)
        async with world.steerer(policy="easy+fifo+best-fit"):
            await world.until_told("cpu", "no node can hold it: others use too much")
            await world.until_told("both", "waits for room")
            assert (await world.until_bound("one"))["one"] == "n1"
            await world.delete("one")
            await world.delete("theirs")
            await world.until_bound("cpu", "both")

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
        async with world.steerer(policy="easy+fifo+best-fit"):
            await world.until_bound("small-0", "small-1")
            await world.check()
            await world.until_told("half-0", "waits for 1 more task of gang half")
            await world.node("n3", 4)
            await world.until_bound(*(f"big-{at}" for at in range(4)))
            await world.check()
            await world.pod("half-1", annotations={names.GANG: "half/2"})
            await world.delete("small-0")
            await world.delete("small-1")
            await world.until_bound("half-0", "half-1")
            await world.check()

    play(test)


@pytest.mark.slow
def test_another_steerer_takes_over_from_the_cluster_alone(play: Played) -> None:
    async def test(world: World) -> None:
        await world.node("n1", 2)
        await world.pod("a", milli=700, mem=40_000)
        await world.pod("b", milli=700, mem=40_000)
        async with world.steerer():
            before = await world.until_bound("a", "b")
        await world.pod("c", milli=300, mem=41_000)
        await world.pod("d", milli=400, mem=1_000)
        async with world.steerer() as second:
            await world.until_bound("c")
            await world.until_told("d", "waits for room")
            assert second.counts.placed == 1
            await world.ended("a")
            await world.until_bound("d")
        after = await world.places()
        assert {name: after[name] for name in before} == before
        await world.check()

    play(test)


@pytest.mark.slow
def test_nodes_come_and_go_and_change_while_pods_wait(play: Played) -> None:
    async def test(world: World) -> None:
        async with world.steerer():
            await world.pod("early", 1)
            await world.until_told("early", "node")
            await world.node("n1", 0)
            await world.until_told("early", "of 1 nodes, 1 no GPU for pods")
            await world.patch("/api/v1/nodes/n1", {"metadata": {"labels": {
                names.LABEL_GPU_COUNT: "1", names.LABEL_GPU_MEMORY_MIB: "16384", names.LABEL_GPU_MODEL: "T4",
            }}})  # fmt: skip
            units = {"status": {"allocatable": {names.RESOURCE: "16"}, "capacity": {names.RESOURCE: "16"}}}
            await world.patch("/api/v1/nodes/n1/status", units)
            await world.until_bound("early")
            await world.pod("next", 1)
            await world.until_told("next", "waits for room")
            await world.delete("n1", "nodes", None)
            await world.until_told("next", "node")
            await world.node("n1", 1)  # back, with its pod on it
            await world.until_told("next", "waits for room")
            await world.patch("/api/v1/nodes/n1", {"metadata": {"labels": {names.LABEL_GPU_COUNT: "2"}}})
            await world.until_bound("next")
            await world.check()

    play(test)


def test_parts_of_memory_become_mib_of_the_card_that_is_chosen(play: Played) -> None:
    async def test(world: World) -> None:
        await world.node("small", 1, model="T4", mem_mib=16_000)
        await world.node("large", 1)
        for at in range(4):
            await world.pod(f"half-{at}", milli=500)
        async with world.steerer():
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


@pytest.mark.slow
def test_advice_is_told_and_nothing_done(play: Played) -> None:
    async def test(world: World) -> None:
        await world.node("n1", 1)
        await world.pod("theirs", milli=500, mem=1000, scheduler="nobody", gates=())
        await world.pod("large", 2, scheduler="nobody", gates=())
        async with world.steerer(advise=True):
            told = await world.until_event("Advised", "theirs")
            assert "fewer than 2 GPUs" in await world.until_event("Waits", "large")
        # The pod's status is its own scheduler's: autoscalers read it.
        assert not (await world.pods())["large"]["status"].get("conditions")
        assert told == "easy+priority+best-fit places it on node n1, GPU 0"
        assert await world.places() == {}

    play(test)


def test_a_pod_of_higher_priority_is_bound_when_its_victim_has_left(play: Played) -> None:
    async def test(world: World) -> None:
        await world.node("n1", 1)
        path = "/apis/scheduling.k8s.io/v1/priorityclasses"
        body = {"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}
        await world.api.request("POST", path, {"apiVersion": "scheduling.k8s.io/v1", **body})
        await world.pod("victim", terminationGracePeriodSeconds=600)
        budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
        try:
            async with world.steerer(policy="preempt+fifo+best-fit"):
                await world.until_bound("victim")
                await world.ended("victim", "Running")
                await world.until("the class is known", lambda: world.pod("urgent", priorityClassName="high"))

                async def told_to_go() -> bool:
                    return bool((await world.pods())["victim"]["metadata"].get("deletionTimestamp"))

                await world.until("the victim is told to go", told_to_go)
                assert "urgent" not in await world.places()  # the victim uses its GPU still
                await world.delete("victim")  # as its kubelet does in the end
                await world.until_bound("urgent")
                assert "higher priority" in await world.until_event("Preempted", "victim")
        finally:
            await world.api.request("DELETE", f"{path}/high")
            await world.api.request("DELETE", budgets)

    play(test)


@pytest.mark.slow
def test_what_kube_scheduler_refuses_is_given_back_and_the_next_pod_goes_elsewhere(play: Played) -> None:
    async def test(world: World) -> None:
        await world.node("n1", 1, resources={"example.com/nic": "0"})
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u-1", "controller": True}
        nic = {"resources": {"example.com/nic": "1"}}
        # kube-scheduler knows a node that it has bound a pod to; before, it refuses pods in other words.
        await world.pod("knows-n1", 0, gates=())
        await world.until_bound("knows-n1")
        await world.pod("bare", **nic)
        await world.pod("owned", milli=500, mem=1000, owners=[owner], **nic)
        async with world.steerer(patience_ms=1000):

            async def both() -> bool:
                pods = await world.pods()
                placed = names.PLACEMENT in pods["bare"]["metadata"].get("annotations", {})
                return "owned" not in pods and not placed

            await world.until("both have given back their parts", both)
            assert "Insufficient example.com/nic" in await world.until_event("PinsRefused", "bare")
            assert "Insufficient example.com/nic" in await world.until_event("PinsRefused", "owned")
            await world.pod("other", 1)
            assert (await world.until_bound("other"))["other"] == "n1"
            await world.node("n2", 1, resources={"example.com/nic": "4"})
            await world.pod("knows-n2", 0, gates=(), **nic)
            await world.until_bound("knows-n2")
            await world.pod("again", milli=500, mem=1000, owners=[owner], **nic)
            assert (await world.until_bound("again"))["again"] == "n2"
        await world.check()

    play(test)


@pytest.mark.slow
def test_a_pod_of_which_kube_scheduler_says_nothing_is_told_and_its_part_goes_to_others(
    play: Played, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not server.is_at_least(34):
        pytest.skip(f"{server.assets.version} has no resource claims")
    monkeypatch.setattr(pod_site, "SILENCE_MS", 2000)

    async def test(world: World) -> None:
        await world.node("n1", 2)
        await world.pod("silent", resourceClaims=[{"name": "c", "resourceClaimName": "missing"}])
        async with world.steerer(patience_ms=1000):
            await world.until_told("silent", "kube-scheduler says nothing of it")
            assert names.PLACEMENT in (await world.pods())["silent"]["metadata"]["annotations"]
            await world.pod("later")
            await world.until_bound("later")
            assert "kubectl delete pod" in await world.until_event("Unseen", "silent")
            await world.pod("next")
            await world.until_bound("next")
        await world.check()

    play(test)


def test_a_reason_that_comes_late_does_not_hide_what_became_of_a_pod(play: Played) -> None:
    async def test(world: World) -> None:
        uid = await world.pod("a")
        version = (await world.pods())["a"]["metadata"]["resourceVersion"]
        tell = PodEvent(uid, "default", "a", "Waits", "others come first")
        assert await note_waiting(world.api, tell, version)
        assert not await note_waiting(world.api, tell._replace(message="too late"), version)
        assert await world.until_told("a") == "others come first"
        assert not await note_waiting(world.api, tell._replace(name="gone"), version)

    play(test)
