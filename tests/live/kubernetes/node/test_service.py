"""`berth k8s node` as it is installed: a process of its own, a real API server, and a kubelet of the tests' own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import grpc
import pytest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from berth.errors import KubernetesError, SettingError
from berth.live.kubernetes.names import (
    ASKED_MEM_MIB,
    ASKED_MILLI,
    DRIVER,
    GANG,
    INTERACTIVE,
    MAX_MEM_MIB,
    MEASURED,
    PLACED_UID,
    PLACEMENT,
    RESOURCE,
    SUSPEND,
)
from berth.live.kubernetes.node import service
from berth.live.kubernetes.node.api_server import ApiServer, ClaimDevice, claim_of, pod_of
from berth.live.kubernetes.node.service import NodeSettings, split_gpus
from berth.live.kubernetes.node.serving import serve_node
from berth.live.kubernetes.placements import GpuMemory, read_annotation
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.kubelet import Kubelet
from tests.live.kubernetes.node.containers import of_device_plugin, share_of, start
from tests.live.kubernetes.node.fake_api import FakeApi
from tests.live.kubernetes.node.node_world import make_cards
from tests.live.kubernetes.world import World
from tests.ports import free_ports

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="the node's agent runs as root")
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class Running:
    """The agent's process."""

    def __init__(self, folder: Path, kubeconfig: Path, kubelet: Path | None = None, *more: str) -> None:
        self.folder = folder
        (self.port,) = free_ports(1)
        words = [
            "k8s", "node", "--node-name", "here", "--fake-gpus", "2xA100-80G", "--kubeconfig", str(kubeconfig),
            "--kubelet-folder", str(kubelet or folder / "kubelet"), "--state-folder", str(folder / "state"),
            "--run-folder", str(folder / "run"), "--cdi-folder", str(folder / "cdi"), "--every", "0.2",
            "--metrics", f":{self.port}", *more,
        ]  # fmt: skip
        environment = {**os.environ, "BERTH_FAKE_XIDS": str(folder / "xids")}
        self.log = (folder / "log").open("w")
        self.process = subprocess.Popen(
            [str(Path(sys.executable).with_name("berth")), *words], env=environment, stdout=self.log, stderr=self.log
        )  # fmt: skip

    @property
    def said(self) -> str:
        return (self.folder / "log").read_text()

    async def until(self, is_so: Any) -> Any:
        """Wait until something is true."""
        async with asyncio.timeout(120):
            while not (found := await is_so()):
                assert self.process.poll() is None, self.said
                await asyncio.sleep(0.05)
        return found

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=300) as answer:
            return str(answer.read().decode())

    def close(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(300)
        finally:
            self.process.kill()
            self.log.close()


@asynccontextmanager
async def node(world: World, folder: Path, *more: str) -> AsyncIterator[tuple[Running, Kubelet]]:
    """A node in the cluster, its kubelet and its agent; the agent ends as it is asked to."""
    kubelet = Kubelet(folder / "kubelet")
    await kubelet.start()
    running = Running(folder, world.kubeconfig, None, *more)
    try:
        while not (
            folder / "state" / "samples"
        ).exists():  # it has looked once, and the kubelet makes the node late
            assert running.process.poll() is None, running.said
            await asyncio.sleep(0.1)
        await world.node("here", gpus=0)
        yield running, kubelet
        assert await asyncio.to_thread(running.close) == 0, running.said
    finally:
        running.process.kill()
        running.process.wait()
        running.log.close()
        await kubelet.stop()


async def share(edits: Any, scratch: Path) -> list[tuple[float, int]]:
    process = start(edits, share_of(), scratch)
    output, _ = await asyncio.to_thread(process.communicate)
    return [(gpu["took_mib"], gpu["more"]) for gpu in json.loads(output.splitlines()[-1])["gpus"]]


@pytest.mark.slow
@needs_root
def test_a_pod_that_was_placed_gets_its_part_and_gives_it_back(play: Played, folder: Path) -> None:
    async def story(world: World) -> None:
        async with node(world, folder) as (running, kubelet):
            await kubelet.until_registered(RESOURCE)

            async def labels() -> Any:
                told = json.loads(await world.api.request("GET", "/api/v1/nodes/here"))
                found = {
                    key: value for key, value in told["metadata"].get("labels", {}).items() if "berth" in key
                }
                found |= {
                    key: told["status"].get("capacity", {}).get(key) for key in (ASKED_MILLI, ASKED_MEM_MIB)
                }
                return found if all(found.values()) and len(found) == 6 else None

            assert await running.until(labels) == {
                "berth.dev/gpu-count": "2", "berth.dev/gpu-indices": "0-1",
                "berth.dev/gpu-model": "A100-80", "berth.dev/gpu-memory-mib": "81920",
                ASKED_MILLI: "2k", ASKED_MEM_MIB: "163840",
            }  # fmt: skip
            uid = await world.pod("one", scheduler="nobody", gates=())
            placed = {"gpus": [{"index": 1, "uuid": None, "milli": 400, "mem_mib": 7000}], "shared": True}
            binding = {
                "kind": "Binding", "apiVersion": "v1", "target": {"kind": "Node", "name": "here"},
                "metadata": {"name": "one", "uid": uid, "annotations": {
                    PLACEMENT: json.dumps(placed), PLACED_UID: uid,
                }},
            }  # fmt: skip
            await world.api.request("POST", "/api/v1/namespaces/default/pods/one/binding", binding)
            pod = await ApiServer(world.api, "here").pod("default", "one")
            assert pod is not None
            await kubelet.admit(pod, RESOURCE)
            given = await kubelet.pre_start(pod, "main", RESOURCE)
            assert await share(of_device_plugin(given.answer), folder / "scratch") == [(7000, 2)]
            of = 'container="main",gpu="1",namespace="default",pod="one"'

            async def counted() -> bool:
                told = running.metrics()
                return f"berth_pod_gpu_refused_calls_total{{{of}}} 1.0" in told

            await running.until(counted)
            kubelet.end(pod)
            await world.ended("one", "Failed")

            async def measured() -> Any:
                return (await world.pods())["one"]["metadata"]["annotations"].get(MEASURED)

            told = json.loads(await running.until(measured))
            assert told == {"peak_mib": 7000, "refused": 1, "needed_mib": 7001}
            assert json.loads((folder / "state" / "allotments" / "given.json").read_text()) == []
            assert list((folder / "run" / "nodes").iterdir()) == []

    play(story)


async def bound(world: World, name: str, gpu: int, mem_mib: int, **annotations: str) -> Any:
    """A pod that is bound to this node with a placement, as its agent reads it."""
    uid = await world.pod(name, scheduler="nobody", gates=())
    placed = {"gpus": [{"index": gpu, "uuid": None, "milli": 300, "mem_mib": mem_mib}], "shared": True}
    said = {PLACEMENT: json.dumps(placed), PLACED_UID: uid, **annotations}
    binding = {
        "kind": "Binding", "apiVersion": "v1", "target": {"kind": "Node", "name": "here"},
        "metadata": {"name": name, "uid": uid, "annotations": said},
    }  # fmt: skip
    await world.api.request("POST", f"/api/v1/namespaces/default/pods/{name}/binding", binding)
    pod = await ApiServer(world.api, "here").pod("default", name)
    assert pod is not None
    return pod


@pytest.mark.slow
@needs_root
def test_the_memory_of_a_pod_grows_and_the_cluster_is_told(play: Played, folder: Path) -> None:
    """As far as it says, while the card has room; what it took nobody else is given."""

    async def story(world: World) -> None:
        async with node(world, folder) as (running, kubelet):
            await kubelet.until_registered(RESOURCE)
            pod = await bound(world, "grows", 1, 4000, **{MAX_MEM_MIB: "7000"})
            await kubelet.admit(pod, RESOURCE)
            given = await kubelet.pre_start(pod, "main", RESOURCE)
            process = start(of_device_plugin(given.answer), share_of("hold"), folder / "scratch")
            assert process.stdout is not None
            try:
                took = json.loads(await asyncio.to_thread(process.stdout.readline))
                assert [(gpu["took_mib"], gpu["more"]) for gpu in took["gpus"]] == [(4000, 0)]

                async def told() -> Any:
                    pods = await world.pods()
                    return read_annotation(pods["grows"]["metadata"].get("annotations", {}), GpuMemory)

                memory = await running.until(told)
                assert (memory.promise_mib, memory.limit_mib, memory.max_mib) == (4000, 4096, 7000)
                other = await bound(world, "other", 1, 81920 - 4096 + 1)
                await kubelet.admit(other, RESOURCE)
                with pytest.raises(grpc.aio.AioRpcError, match="of whose 81920 MiB 4096 are given"):
                    await kubelet.pre_start(other, "main", RESOURCE)
            finally:
                process.kill()
                process.communicate()
            kubelet.end(pod)
            await world.ended("grows", "Failed")

            async def starts() -> bool:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await kubelet.pre_start(other, "main", RESOURCE)
                    return True
                return False

            await running.until(starts)

    play(story)


@needs_root
@pytest.mark.slow  # a driver is believed to take half a second, which ten seconds of idling cost
def test_an_interactive_pod_lends_its_memory_while_it_idles(play: Played, folder: Path) -> None:
    async def story(world: World) -> None:
        async with node(world, folder, "--grow", "suspend") as (running, kubelet):
            await kubelet.until_registered(RESOURCE)
            first = await bound(world, "first", 1, 70_000, **{INTERACTIVE: "true"})
            await kubelet.admit(first, RESOURCE)
            given = await kubelet.pre_start(first, "main", RESOURCE)
            process = start(of_device_plugin(given.answer), share_of("hold", "100"), folder / "scratch")
            assert process.stdout is not None
            try:
                await asyncio.to_thread(process.stdout.readline)
                second = await bound(world, "second", 1, 81920 - 70_000)
                await kubelet.admit(second, RESOURCE)
                given = await kubelet.pre_start(second, "main", RESOURCE)
                assert await share(of_device_plugin(given.answer), folder / "other") == [(11_920, 0)]

                async def is_away() -> bool:
                    pods = await world.pods()
                    found = read_annotation(pods["first"]["metadata"].get("annotations", {}), GpuMemory)
                    return found is not None and found.idle and found.suspended_ms is not None

                await running.until(is_away)
            finally:
                process.kill()
                process.communicate()

    play(story)


@pytest.mark.slow
@needs_root
def test_a_pod_leaves_its_gpu_for_another_and_comes_back(play: Played, folder: Path) -> None:
    async def story(world: World) -> None:
        path = "/api/v1/namespaces/default/pods/first"
        async with node(world, folder, "--grow", "suspend") as (running, kubelet):
            await kubelet.until_registered(RESOURCE)
            first = await bound(world, "first", 1, 50_000)
            await kubelet.admit(first, RESOURCE)
            given = await kubelet.pre_start(first, "main", RESOURCE)
            process = start(of_device_plugin(given.answer), share_of("hold", "40000"), folder / "scratch")
            assert process.stdout is not None

            def memory(is_so: Callable[[GpuMemory], bool]) -> Callable[[], Awaitable[bool]]:
                async def told() -> bool:
                    pods = await world.pods()
                    found = read_annotation(pods["first"]["metadata"].get("annotations", {}), GpuMemory)
                    return found is not None and is_so(found)

                return told

            try:
                await asyncio.to_thread(process.stdout.readline)
                await running.until(memory(lambda told: told.leaves))
                await world.patch(path, {"metadata": {"annotations": {SUSPEND: "true"}}})
                await running.until(memory(lambda told: told.suspended_ms is not None))
                second = await bound(world, "second", 1, 60_000)
                await kubelet.admit(second, RESOURCE)
                given = await kubelet.pre_start(second, "main", RESOURCE)
                assert await share(of_device_plugin(given.answer), folder / "other") == [(60_000, 0)]
                await world.patch(path, {"metadata": {"annotations": {SUSPEND: None}}})
                kubelet.end(second)
                await world.ended("second", "Succeeded")
                await running.until(memory(lambda told: told.suspended_ms is None))
                assert process.poll() is None
                output, _ = await asyncio.to_thread(process.communicate, "\n")
                assert (process.returncode, output) == (0, "")
            finally:
                process.kill()
                process.communicate()

    play(story)


@pytest.mark.slow
@pytest.mark.usefixtures("kube_scheduler")
@needs_root
def test_a_pod_that_is_deleted_between_its_bind_and_its_start_gets_nothing(
    play: Played, folder: Path
) -> None:
    async def story(world: World) -> None:
        async with node(world, folder) as (running, kubelet):
            await kubelet.until_registered(RESOURCE)
            units, _ = kubelet.capacity(RESOURCE)
            counted = {"cpu": "8", "memory": "8Gi", RESOURCE: str(units)}
            await world.patch("/api/v1/nodes/here/status", {"status": {"allocatable": counted}})
            async with world.steerer():
                await world.pod("one", milli=300, mem=5000)
                await world.until_bound("one")
                server = ApiServer(world.api, "here")
                first = await server.pod("default", "one")
                assert first is not None
                await kubelet.admit(first, RESOURCE)
                await world.delete("one")
                with pytest.raises(grpc.aio.AioRpcError, match="is gone"):
                    await kubelet.pre_start(first, "main", RESOURCE)
                await world.pod("one", milli=500, mem=9000)  # another of its name
                await world.until_bound("one")
                with pytest.raises(grpc.aio.AioRpcError, match="another pod of its name"):
                    await kubelet.pre_start(first, "main", RESOURCE)
                kubelet.end(first)
                second = await server.pod("default", "one")
                assert second is not None
                await kubelet.admit(second, RESOURCE)
                given = await kubelet.pre_start(second, "main", RESOURCE)
                assert await share(of_device_plugin(given.answer), folder / "scratch") == [(9000, 2)]
            assert running.process.poll() is None
        await world.check()

    play(story)


def test_what_was_allocated_is_read_from_a_claim() -> None:
    told = {
        "metadata": {"namespace": "a", "name": "b", "uid": "c"},
        "status": {
            "allocation": {
                "devices": {
                    "results": [
                        {"request": "x", "driver": DRIVER, "pool": "n", "device": "gpu-0"},
                        {"request": "y", "driver": "gpu.nvidia.com", "pool": "n", "device": "gpu-0"},
                        {
                            "request": "z", "driver": DRIVER, "pool": "n", "device": "gpu-1", "shareID": "s",
                            "consumedCapacity": {f"{DRIVER}/memory": "1536Mi", "milli": 125},
                        },
                    ],
                    "config": [{"opaque": {"driver": DRIVER, "parameters": {"burst": True, "priority": "low"}}}],
                }
            }
        },
    }  # fmt: skip
    claim = claim_of(told)
    assert (claim.devices, claim.burst, claim.priority) == (
        (ClaimDevice("x", "n", "gpu-0"), ClaimDevice("z", "n", "gpu-1", "s", 1536, 125)), True, "low",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("dra", "has_claims", "expected"),
    [
        ("all", True, ((0, 1), ())),
        ("0", True, ((0,), (1,))),
        ("none", True, ((), (0, 1))),
    ],
)
def test_each_gpu_is_given_by_one_way_only(dra: str, has_claims: bool, expected: Any) -> None:
    assert split_gpus(dra, [0, 1], has_claims=has_claims) == expected


@pytest.mark.parametrize(
    ("dra", "why"),
    [
        ("0", "serves no resource.k8s.io"),
        ("5", "--dra '5'; write all, none or indices of this node's GPUs"),
    ],
)
def test_gpus_that_cannot_be_split_so_are_refused(dra: str, why: str) -> None:
    with pytest.raises(SettingError, match=why):
        split_gpus(dra, [0, 1], has_claims=False)


def test_a_program_is_told_apart_by_its_words_and_none_of_them_is_kept() -> None:
    def program(*words: str) -> str:
        container = {"name": "a", "image": "x:1", "command": list(words), "resources": {}}
        told = {"metadata": {"namespace": "n", "name": "p", "uid": "u"}, "spec": {"containers": [container]}}
        return pod_of(told).program

    assert program("train") == "x:1 train"
    assert program("train", "--password=hunter2") != program("train", "--password=hunter3")
    assert "hunter2" not in program("train", "--password=hunter2")


def test_a_pod_of_a_gang_or_with_a_liveness_probe_is_known() -> None:
    def told(annotations: Mapping[str, str], **more: Any) -> tuple[bool, bool]:
        meta = {"namespace": "n", "name": "p", "uid": "u", "annotations": annotations}
        pod = pod_of({"metadata": meta, "spec": {"containers": [{"name": "a", "resources": {}}], **more}})
        return pod.probed, pod.in_gang

    probed = {"name": "side", "restartPolicy": "Always", "livenessProbe": {}, "resources": {}}
    assert told({}) == (False, False)
    assert told({GANG: "train/4"}) == (False, True)
    assert told({}, schedulingGroup={"podGroupName": "train"}) == (False, True)
    assert told({}, initContainers=[probed]) == (True, False)


@needs_root
def test_a_gpu_whose_mig_is_on_is_given_to_nobody(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BERTH_FAKE_CARD", str(folder / "card"))
    monkeypatch.setenv("BERTH_ROOT", str(folder / "root"))  # whose agent this is until the process ends
    monkeypatch.setattr(service, "is_cut", lambda gpu, driver: gpu.index == 1)
    settings = NodeSettings(
        "here", folder / "state", folder / "run", folder / "cdi", folder / "kubelet", fake=True
    )
    cards: Any = SimpleNamespace(cards=make_cards("3xA100-80G", folder / "card"))
    server: Any = FakeApi()
    server.has_claims = False
    made = service._Node(settings, cards, server)
    assert (made.plugin_gpus, made.dra_gpus) == ((0, 2), ())
    assert caplog.messages == ["GPUs [1] are left out, because their MIG is on"]


@needs_root
def test_an_agent_whose_look_hangs_answers_its_probe_with_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTH_FAKE_CARD", str(folder / "card"))
    monkeypatch.setenv("BERTH_ROOT", str(folder / "root"))
    settings = NodeSettings(
        "here", folder / "state", folder / "run", folder / "cdi", folder / "kubelet", fake=True
    )
    cards: Any = SimpleNamespace(cards=make_cards("1xA100-80G", folder / "card"))
    server: Any = FakeApi()
    server.has_claims = False
    (port,) = free_ports(1)

    async def run() -> list[int]:
        made = service._Node(settings, cards, server)
        served = asyncio.create_task(
            serve_node(f"127.0.0.1:{port}", Collected(), folder / "none", lambda: made.hangs)
        )
        found = []
        async with aiohttp.ClientSession() as client:
            for limit_s in (3600.0, 0.0):
                monkeypatch.setattr(service, "HANGS_S", limit_s)
                async with asyncio.timeout(300):
                    while True:
                        with contextlib.suppress(aiohttp.ClientConnectionError):
                            async with client.get(f"http://127.0.0.1:{port}/metrics") as answer:
                                found.append(answer.status)
                                break
                        await asyncio.sleep(0.01)
        served.cancel()
        await asyncio.gather(served, return_exceptions=True)
        return found

    assert asyncio.run(run()) == [200, 503]


@needs_root
def test_what_the_cluster_could_not_be_told_is_told_again_after_a_while(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTH_FAKE_CARD", str(folder / "card"))
    monkeypatch.setenv("BERTH_ROOT", str(folder / "root"))
    settings = NodeSettings(
        "here", folder / "state", folder / "run", folder / "cdi", folder / "kubelet", fake=True
    )
    cards: Any = SimpleNamespace(cards=make_cards("1xA100-80G", folder / "card"))
    server: Any = FakeApi()
    server.has_claims, server.down = False, True
    now_s = [100.0]
    monkeypatch.setattr(service, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    made = service._Node(settings, cards, server)

    async def tell(ailing: dict[int, str]) -> bool:
        """Whether the cluster was asked to take it."""
        try:
            before = dict(server.labels)
            await made._publish(ailing)
        except KubernetesError:
            return True
        return bool(before != server.labels)

    async def run() -> list[bool]:
        found = [await tell({}), await tell({}), await tell({0: "79"})]  # news does not wait
        now_s[0] += service.RETRY_S
        server.down = False
        return [*found, await tell({0: "79"}), await tell({0: "79"})]

    assert asyncio.run(run()) == [True, False, True, True, False]


class Collected(Collector):
    def collect(self) -> list[Metric]:
        return []
