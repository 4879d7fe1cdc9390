"""The device plugin gives each container exactly its own limits, whatever the kubelet does meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from berth.errors import KubernetesError
from berth.live.kubernetes.names import PLACED_UID, PLACEMENT, RESOURCE
from berth.live.kubernetes.node.allotments import Allotment, Holder, Part
from berth.live.kubernetes.node.api_server import Container, Pod
from berth.live.kubernetes.node.device_plugin import DevicePlugin, allotment_name
from berth.partition import find
from tests.live.kubernetes.kubelet import AdmissionError, Given
from tests.live.kubernetes.node.containers import of_device_plugin, share_of, start
from tests.live.kubernetes.node.node_world import NodeWorld

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes and mount namespaces")
pytestmark = needs_root


@asynccontextmanager
async def running(world: NodeWorld) -> AsyncIterator[DevicePlugin]:
    """A kubelet, and the plugin registered with it."""
    await world.kubelet.start()
    plugin = world.plugin()
    task = asyncio.create_task(plugin.run())
    try:
        await world.kubelet.until_registered(RESOURCE)
        yield plugin
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await world.kubelet.stop()


async def prepared(world: NodeWorld, pod: Pod, container: str = "main") -> Given:
    """A pod that was admitted, and whose container may be made now."""
    await world.kubelet.admit(pod, RESOURCE)
    return await world.kubelet.pre_start(pod, container, RESOURCE)


def limits(world: NodeWorld, given: Given) -> dict[int, tuple[int, int]]:
    """What the container's region says: MiB and per cent of each GPU, by index."""
    indices = {card.uuid.removeprefix("GPU-"): card.index for card in world.cards}
    found = find(allotment_name(given.ids), world.allotments.root)
    return {indices[part.uuid]: (part.limit_bytes >> 20, part.core_pct) for part in found}


async def share(world: NodeWorld, given: Given, name: str) -> dict[str, Any]:
    """What a process in the container finds."""
    process = start(of_device_plugin(given.answer), share_of(), world.folder / f"scratch-{name}")
    output, _ = await asyncio.to_thread(process.communicate)
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def test_units_are_counted_and_lost_gpus_are_not(folder: Path) -> None:
    async def story() -> None:
        world = NodeWorld(folder)
        async with running(world) as plugin:
            assert world.kubelet.capacity(RESOURCE) == (32, 32)
            await plugin.set_lost(frozenset({1}))
            await world.kubelet.until_registered(RESOURCE, lists=2)
            assert world.kubelet.capacity(RESOURCE) == (32, 16)
            await plugin.set_lost(frozenset())
            await world.kubelet.until_registered(RESOURCE, lists=3)
            assert world.kubelet.capacity(RESOURCE) == (32, 32)
            assert (plugin._folder / "berth.sock").stat().st_mode & 0o777 == 0o600

    asyncio.run(story())


def test_a_container_gets_its_gpu_its_memory_and_its_nodes(folder: Path) -> None:
    async def story() -> None:
        world = NodeWorld(folder)
        async with running(world):
            given = await prepared(world, world.api.add_pod("one", (1, 500, 8192)))
            assert limits(world, given) == {0: (1, 0), 1: (8192, 50)}
            (gpu,) = (found := await share(world, given, "one"))["gpus"]
            assert found["nodes"] == ["nvidia1"]
            assert gpu["uuid"] == world.cards[1].uuid.removeprefix("GPU-").replace("-", "")
            assert (gpu["total_mib"], gpu["took_mib"], gpu["more"]) == (8192, 8192, 2)

    asyncio.run(story())


def test_limits_are_read_only_inside_and_a_restart_of_the_container_keeps_its_region(folder: Path) -> None:
    async def story() -> None:
        world = NodeWorld(folder)
        async with running(world):
            pod = world.api.add_pod("one", (0, 500, 4096))
            given = await prepared(world, pod)
            edits = of_device_plugin(given.answer)
            script = (
                "for file in /run/berth/region/*.limit /run/berth/libberth.so /etc/ld.so.preload; do"
                " (echo x >> $file) 2>/dev/null && echo $file; done; rm -f /run/berth/region/* 2>/dev/null;"
                " ls /run/berth/region"
            )
            process = start(edits, ["sh", "-c", script], folder / "scratch")
            output, _ = process.communicate()
            assert len(output.split()) == 4  # nothing could be written, nothing removed
            before = {path: path.stat().st_ino for path in world.allotments.root.rglob("*.use")}
            again = await world.kubelet.pre_start(pod, "main", RESOURCE)
            assert again.ids == given.ids
            assert {path: path.stat().st_ino for path in world.allotments.root.rglob("*.use")} == before

    asyncio.run(story())


@pytest.mark.slow
def test_fifty_pods_that_start_at_once_each_get_exactly_their_own_limits(folder: Path) -> None:
    """Allocate names no pod: in shuffled order, retried, with lost answers, nobody gets another's limits."""
    shares = {f"pod{n}": (n % 8, 20 + n, 1500 + 37 * n) for n in range(50)}

    async def story() -> None:
        world = NodeWorld(folder, "8xA100-80G", seed=7)
        world.kubelet.faults.repeats = 1
        order = random.Random(3)
        async with running(world):
            pods = [world.api.add_pod(name, each) for name, each in shares.items()]
            order.shuffle(pods)
            world.kubelet.faults.lost_replies = 20
            await asyncio.gather(*(world.kubelet.admit(pod, RESOURCE) for pod in pods))
            order.shuffle(pods)
            world.kubelet.faults.lost_replies = 20
            given = await asyncio.gather(*(world.kubelet.pre_start(pod, "main", RESOURCE) for pod in pods))
            room = asyncio.Semaphore(8)

            async def found(pod: Pod, one: Given) -> dict[str, Any]:
                async with room:
                    return await share(world, one, pod.name)

            seen = await asyncio.gather(*(found(pod, one) for pod, one in zip(pods, given, strict=True)))
            for pod, one, inside in zip(pods, given, seen, strict=True):
                gpu, milli, mem_mib = shares[pod.name]
                mine = {at: limit for at, limit in limits(world, one).items() if limit != (1, 0)}
                assert mine == {gpu: (mem_mib, -(-milli // 10))}
                (only,) = inside["gpus"]
                assert inside["nodes"] == [f"nvidia{gpu}"]
                assert (only["total_mib"], only["took_mib"], only["more"]) == (mem_mib, mem_mib, 2)

    asyncio.run(story())


def test_containers_of_one_pod_take_their_gpus_in_their_order(folder: Path) -> None:
    async def story() -> None:
        world = NodeWorld(folder, "4xA100-80G")
        containers = [Container("a", 2), Container("side", 0), Container("b", 1)]
        async with running(world):
            pod = world.api.add_pod(
                "many", (3, 100, 1000), (0, 200, 2000), (2, 300, 3000), containers=containers
            )
            await world.kubelet.admit(pod, RESOURCE)
            for name, expected in (
                ("a", {3: (1000, 10), 0: (2000, 20)}),
                ("b", {2: (3000, 30)}),
            ):
                given = await world.kubelet.pre_start(pod, name, RESOURCE)
                assert {at: one for at, one in limits(world, given).items() if one != (1, 0)} == expected

    asyncio.run(story())


@pytest.mark.slow
def test_a_restarted_kubelet_gets_the_plugin_again_and_old_pods_keep_their_limits(folder: Path) -> None:
    async def story() -> None:
        world = NodeWorld(folder)
        async with running(world) as plugin:
            pod = world.api.add_pod("one", (0, 300, 5000))
            before = await prepared(world, pod)
            for count in (2, 3):
                await world.kubelet.restart()
                assert world.kubelet.capacity(RESOURCE) == (0, 0)
                with pytest.raises(AdmissionError):
                    await world.kubelet.admit(world.api.add_pod("early", (1, 100, 100)), RESOURCE)
                await world.kubelet.until_registered(RESOURCE)
                assert (plugin.registrations, world.kubelet.capacity(RESOURCE)) == (count, (32, 32))
            again = await world.kubelet.pre_start(pod, "main", RESOURCE)
            assert limits(world, again) == limits(world, before) == {0: (5000, 30), 1: (1, 0)}

    asyncio.run(story())


def test_a_new_agent_finds_what_was_given_and_makes_what_a_restart_of_the_machine_took(folder: Path) -> None:
    async def story() -> None:
        world = NodeWorld(folder)
        async with running(world):
            pod = world.api.add_pod("one", (0, 300, 5000))
            given = await prepared(world, pod)
        shutil.rmtree(world.allotments.root)  # /run is gone
        world.allotments = world.new_allotments()
        assert limits(world, given) == {0: (5000, 30), 1: (1, 0)}
        async with running(world):
            assert await world.kubelet.pre_start(pod, "main", RESOURCE) == given

    asyncio.run(story())


def test_units_that_the_kubelet_gives_anew_get_the_new_pods_limits(folder: Path) -> None:
    async def story() -> None:
        world = NodeWorld(folder)
        async with running(world):
            first = world.api.add_pod("first", (0, 300, 60_000))
            given = await prepared(world, first)
            world.kubelet.end(first)
            second = world.api.add_pod(
                "second", (0, 900, 70_000)
            )  # fits only where the first's is taken back
            world.kubelet.given.append(
                Given(second.uid, "default", "second", "main", RESOURCE, given.ids, given.answer)
            )
            world.kubelet._write_checkpoint()
            await world.kubelet.pre_start(second, "main", RESOURCE)
            assert limits(world, given)[0] == (70_000, 90)
            assert [each.holder.name for each in world.allotments.given.values()] == ["second"]

    asyncio.run(story())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"node": "there"}, "is bound to the node 'there'"),
        ({"annotations": {}}, "has no placement yet"),
        ({"annotations": {PLACEMENT: "{"}}, "is no placement"),
        (
            {"annotations": {PLACEMENT: '{"gpus":[{"index":0,"milli":5000,"mem_mib":10}]}'}},
            "is no placement .*<= 1000",
        ),
        ({"annotations": {PLACEMENT: '{"gpus":[{"index":0,"milli":50,"mem_mib":0}]}'}}, "gives it no memory"),
        ({"annotations": {PLACEMENT: '{"gpus":[{"index":7,"milli":100,"mem_mib":10}]}'}}, "placed on GPU 7"),
        ({"annotations": {PLACEMENT: '{"gpus":[]}'}}, "has 0 GPUs, and its containers ask for more"),
        (
            {"annotations": {PLACEMENT: '{"gpus":[{"index":0,"milli":1,"mem_mib":90000}]}'}},
            "of whose 81920 MiB 0",
        ),
        (
            {"annotations": {PLACEMENT: '{"gpus":[{"index":0,"uuid":"GPU-x","milli":1,"mem_mib":1}]}'}},
            "names GPU 'GPU-x'",
        ),
        ({"uid": "another"}, "another pod of its name is there now"),
        ({"annotations": {PLACED_UID: "uid-other", PLACEMENT: "{}"}}, "is for the uid uid-other"),
    ],
)
def test_a_pod_that_cannot_be_told_does_not_start_and_says_why(
    folder: Path, change: dict[str, Any], why: str
) -> None:
    async def story() -> None:
        from dataclasses import replace

        world = NodeWorld(folder)
        async with running(world):
            pod = world.api.add_pod("one", (0, 300, 5000))
            if change.get("annotations"):
                change["annotations"] = {PLACED_UID: pod.uid, **change["annotations"]}
            world.api.known_pods["default", "one"] = replace(pod, **change)
            await world.kubelet.admit(pod, RESOURCE)
            with pytest.raises(grpc.aio.AioRpcError, match=why) as raised:
                await world.kubelet.pre_start(pod, "main", RESOURCE)
            assert raised.value.code() == grpc.StatusCode.FAILED_PRECONDITION
            assert world.allotments.given == {}
            world.api.known_pods["default", "one"] = pod
            await world.kubelet.pre_start(pod, "main", RESOURCE)  # asked again, and right now

    asyncio.run(story())


def test_a_pod_starts_where_the_kubelet_has_no_checkpoint(folder: Path) -> None:
    async def story() -> None:
        world = NodeWorld(folder)
        world.kubelet.faults.stale_checkpoint = True
        async with running(world):
            given = await prepared(world, world.api.add_pod("one", (0, 300, 5000)))
            assert limits(world, given)[0] == (5000, 30)

    asyncio.run(story())


def test_an_api_server_that_does_not_answer_delays_a_start_and_harms_nothing(folder: Path) -> None:
    async def story() -> None:
        world = NodeWorld(folder)
        async with running(world):
            pod = world.api.add_pod("one", (0, 300, 5000))
            await world.kubelet.admit(pod, RESOURCE)
            world.api.down = True
            with pytest.raises(grpc.aio.AioRpcError, match="does not answer"):
                await world.kubelet.pre_start(pod, "main", RESOURCE)
            world.api.down = False
            assert limits(world, await world.kubelet.pre_start(pod, "main", RESOURCE))[0] == (5000, 30)

    asyncio.run(story())


def test_a_placement_that_is_raised_after_the_start_is_refused_at_the_next(folder: Path) -> None:
    """Who may edit pods gets no more by it: the parts of a uid stay those of its first start."""

    async def story() -> None:
        world = NodeWorld(folder)
        async with running(world):
            pod = world.api.add_pod("one", (0, 300, 5000))
            given = await prepared(world, pod)
            world.api.add_pod("one", (0, 900, 70_000))
            with pytest.raises(grpc.aio.AioRpcError, match="was changed after it started"):
                await world.kubelet.pre_start(pod, "main", RESOURCE)
            world.api.add_pod("one", (0, 300, 5000), burst="true")
            with pytest.raises(grpc.aio.AioRpcError, match="was changed after it started"):
                await world.kubelet.pre_start(pod, "main", RESOURCE)
            assert limits(world, given)[0] == (5000, 30)
            world.api.add_pod("one", (0, 300, 5000))
            await world.kubelet.pre_start(pod, "main", RESOURCE)

    asyncio.run(story())


def test_nothing_starts_on_a_gpu_that_ails(folder: Path) -> None:
    """Units are of no GPU in particular, so that the kubelet may still have healthy ones for it."""

    async def story() -> None:
        world = NodeWorld(folder)
        async with running(world) as plugin:
            bad, good = world.api.add_pod("bad", (1, 300, 5000)), world.api.add_pod("good", (0, 300, 5000))
            await plugin.set_lost(frozenset({1}))
            await prepared(world, good)
            with pytest.raises(grpc.aio.AioRpcError, match="placed on GPU 1, which is lost or had an error"):
                await prepared(world, bad)
            assert [each.holder.name for each in world.allotments.given.values()] == ["good"]

    asyncio.run(story())


def test_a_region_that_is_left_over_gives_its_limits_to_no_other(folder: Path) -> None:
    """The agent was killed after it made the region and before it noted whose it is."""

    async def story() -> None:
        world = NodeWorld(folder)
        async with running(world):
            pod = world.api.add_pod("one", (0, 300, 5000))
            given = await prepared(world, pod)
            world.allotments.path.unlink()
            root = world.allotments.root
            shutil.copytree(root, folder / "copy")
            world.allotments = world.new_allotments()
            assert (world.allotments.damaged, list(root.iterdir())) == ([], [])
            shutil.copytree(folder / "copy", root, dirs_exist_ok=True)
        async with running(world):
            world.api.add_pod("one", (0, 500, 6000))
            await world.kubelet.pre_start(pod, "main", RESOURCE)
            assert limits(world, given)[0] == (6000, 50)

    asyncio.run(story())


def test_what_a_container_has_of_a_gpu_that_is_gone_stays_its_own(folder: Path) -> None:
    async def story() -> None:
        world = NodeWorld(folder)
        async with running(world):
            await prepared(world, world.api.add_pod("one", (0, 300, 50_000), (1, 300, 50_000)))
        world.cards = world.cards[:1]
        world.allotments = world.new_allotments()
        assert world.allotments.damaged == []
        async with running(world):
            with pytest.raises(grpc.aio.AioRpcError, match="of whose 81920 MiB 50000 are given"):
                await prepared(world, world.api.add_pod("two", (0, 300, 40_000)))

    asyncio.run(story())


def test_a_container_that_was_suspended_starts_anew_when_its_room_is_there_again(folder: Path) -> None:
    world = NodeWorld(folder)
    there = world.allotments

    def part(name: str, mem_mib: int) -> Allotment:
        return Allotment(
            f"dp-{name}", Holder("default", name, f"uid-{name}", "main"), (Part(0, mem_mib, 300),)
        )

    there.give(part("first", 50_000))
    there.held_now = lambda: {"dp-first": 0}
    there.give(part("second", 60_000))
    with pytest.raises(KubernetesError, match="50000 MiB of GPU 0, of whose 81920 MiB 60000 are given"):
        there.give(part("first", 50_000))
    there.take_back("dp-second")
    there.give(part("first", 50_000))
    there.held_now = dict
    with pytest.raises(KubernetesError, match="81920 MiB 50000 are given"):
        there.give(part("second", 60_000))


def test_more_units_than_gpus_are_refused_at_admission(folder: Path) -> None:
    async def story() -> None:
        world = NodeWorld(folder)
        async with running(world):
            pod = world.api.add_pod("wide", (0, 1, 1), (1, 1, 1), (1, 1, 1))
            with pytest.raises(AdmissionError, match="this node has 2 GPUs"):
                await world.kubelet.admit(pod, RESOURCE)

    asyncio.run(story())
