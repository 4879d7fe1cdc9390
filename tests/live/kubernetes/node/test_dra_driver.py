"""The DRA driver prepares each claim once, exactly and again after any restart, and takes it back whole."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from berth.live.kubernetes.names import DRIVER, RESOURCE
from berth.live.kubernetes.node.api_server import Claim
from berth.live.kubernetes.node.claims import TAINT, DraDriver, SlicePublisher, devices_of
from berth.live.kubernetes.node.reaper import Reaper
from berth.partition import find
from tests.live.kubernetes.node.containers import of_cdi, share_of, start
from tests.live.kubernetes.node.node_world import NodeWorld

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes and mount namespaces")


@asynccontextmanager
async def running(world: NodeWorld) -> AsyncIterator[DraDriver]:
    """A kubelet that has found the driver."""
    await world.kubelet.start()
    driver = world.dra()
    task = asyncio.create_task(driver.run())
    try:
        async with asyncio.timeout(300):
            while not list(world.kubelet.registry.glob("*.sock")):
                await asyncio.sleep(0.01)
        await world.kubelet.find_drivers()
        yield driver
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await world.kubelet.stop()


def ref(claim: Claim) -> tuple[str, str, str]:
    return claim.namespace, claim.name, claim.uid


def cdi_names(answer: Any) -> list[str]:
    return [name for device in answer.devices for name in device.cdi_device_ids]


def inside(world: NodeWorld, answer: Any) -> dict[str, Any]:
    """What a process in a container with the claim finds."""
    edits = of_cdi(world.cdi, cdi_names(answer))
    output, _ = start(edits, share_of(), world.folder / "scratch").communicate()
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def inodes(world: NodeWorld) -> dict[Path, int]:
    return {path: path.stat().st_ino for path in world.allotments.root.rglob("*.use")}


def test_each_claim_is_prepared_with_its_own_gpu_memory_and_share(folder: Path) -> None:
    async def story() -> None:
        world = NodeWorld(folder)
        blue = world.api.add_claim("blue", (0, 300, 9000))
        red = world.api.add_claim("red", (0, 700, 7000), (1, 250, 3000), burst=True)
        async with running(world):
            answers = await world.kubelet.prepare(DRIVER, [ref(blue), ref(red)])
            assert [
                (each.pool_name, each.device_name, list(each.request_names))
                for each in answers[red.uid].devices
            ] == [("here", "gpu-0", ["r0"]), ("here", "gpu-1", ["r1"])]
            assert [each.share_id for each in answers[red.uid].devices] == ["share-0", "share-1"]
            for uid, nodes, memory in (
                (blue.uid, ["nvidia0"], [9000]),
                (red.uid, ["nvidia0", "nvidia1"], [7000, 3000]),
            ):
                found = inside(world, answers[uid])
                assert found["nodes"] == nodes
                assert [(gpu["total_mib"], gpu["took_mib"], gpu["more"]) for gpu in found["gpus"]] == [
                    (mib, mib, 2) for mib in memory
                ]
            (part,) = find(f"{red.uid}.1", world.allotments.root)
            assert (part.core_pct, part.burst) == (25, True)

    asyncio.run(story())


def test_preparing_again_changes_nothing_whoever_restarted(folder: Path) -> None:
    async def story() -> None:
        world = NodeWorld(folder)
        world.kubelet.faults.repeats, world.kubelet.faults.lost_replies = 2, 2
        claim = world.api.add_claim("blue", (0, 300, 9000), (1, 100, 100))
        async with running(world):
            first = await world.kubelet.prepare(DRIVER, [ref(claim)])
            before = inodes(world)
            await world.kubelet.restart()
            await world.kubelet.find_drivers()
            assert str(await world.kubelet.prepare(DRIVER, [ref(claim)])) == str(first)
        world.allotments = world.new_allotments()
        async with running(world):
            assert str(await world.kubelet.prepare(DRIVER, [ref(claim)])) == str(first)
            assert inodes(world) == before
            for path in world.cdi.iterdir():
                path.unlink()
            shutil.rmtree(world.allotments.root / f"{claim.uid}.1")
            assert str(await world.kubelet.prepare(DRIVER, [ref(claim)])) == str(first)
            assert [gpu["took_mib"] for gpu in inside(world, first[claim.uid])["gpus"]] == [9000, 100]

    asyncio.run(story())


def test_an_agent_that_died_halfway_leaves_nothing_that_is_given_twice(folder: Path) -> None:
    async def story() -> None:
        world = NodeWorld(folder)
        claim = world.api.add_claim("blue", (0, 600, 50_000), (1, 600, 50_000))
        async with running(world):
            await world.kubelet.prepare(DRIVER, [ref(claim)])
        kept = json.loads(world.allotments.path.read_text())[:1]  # killed before the second was noted
        world.allotments.path.write_text(json.dumps([*kept, {"name": "torn"}]))
        world.allotments = world.new_allotments()
        assert len(world.allotments.damaged) == 1
        async with running(world):
            answers = await world.kubelet.prepare(DRIVER, [ref(claim)])
            assert answers[claim.uid].error == ""
            assert sorted(world.allotments.given) == [f"{claim.uid}.0", f"{claim.uid}.1"]

    asyncio.run(story())


def test_one_claim_that_fails_harms_no_other(folder: Path) -> None:
    async def story() -> None:
        world = NodeWorld(folder)
        api = world.api
        good = api.add_claim("good", (0, 500, 1000))
        bad = {
            "is gone": replace(good, name="missing", uid="uid-missing"),
            "is not allocated": api.add_claim("waits", allocated=False),
            "was allocated nothing of": api.add_claim("foreign"),
            "does not give on this node": api.add_claim("seventh", (7, 1, 1)),
            "of whose 81920 MiB": api.add_claim("huge", (0, 100, 99_999)),
            "at least 1 MiB": api.add_claim("none", (0, 100, 0)),
            "another one of its name": replace(api.add_claim("new", (0, 1, 1)), uid="uid-old"),
        }
        elsewhere = api.add_claim("elsewhere", (0, 1, 1))
        bad["and this is the node here"] = api.claims["default", "elsewhere"] = replace(
            elsewhere, devices=(replace(elsewhere.devices[0], pool="there"),)
        )
        async with running(world):
            answers = await world.kubelet.prepare(DRIVER, [ref(good), *map(ref, bad.values())])
            assert answers[good.uid].error == ""
            for why, claim in bad.items():
                assert why in answers[claim.uid].error
                assert not answers[claim.uid].devices
            assert [each.holder.name for each in world.allotments.given.values()] == ["good"]
            assert world.rooms_made == 1

    asyncio.run(story())


def test_a_claim_is_taken_back_whole_and_not_while_a_process_uses_it(folder: Path) -> None:
    async def story() -> None:
        world = NodeWorld(folder)
        claim = world.api.add_claim("blue", (0, 300, 9000), (1, 100, 100))
        async with running(world):
            answers = await world.kubelet.prepare(DRIVER, [ref(claim)])
            edits = of_cdi(world.cdi, cdi_names(answers[claim.uid]))
            process = start(edits, share_of("hold"), folder / "scratch")
            assert process.stdout is not None
            await asyncio.to_thread(process.stdout.readline)
            told = await world.kubelet.unprepare(DRIVER, [ref(claim)])
            assert "1 process uses the partition" in told[claim.uid].error
            process.communicate("\n")
            for _ in range(2):
                told = await world.kubelet.unprepare(DRIVER, [ref(claim), ("default", "never", "uid-never")])
                assert {uid: each.error for uid, each in told.items()} == {claim.uid: "", "uid-never": ""}
            assert world.allotments.given == {}
            assert [*world.allotments.root.iterdir(), *world.cdi.iterdir()] == []

    asyncio.run(story())


def test_a_claim_deleted_while_prepared_is_taken_back_when_its_processes_have_ended(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        world = NodeWorld(folder)
        claim = world.api.add_claim("blue", (0, 300, 9000))
        async with running(world):
            answers = await world.kubelet.prepare(DRIVER, [ref(claim)])
            reaper = Reaper(world.allotments, world.api, None)
            reaper.claims = world.claims
            edits = of_cdi(world.cdi, cdi_names(answers[claim.uid]))
            process = start(edits, share_of("hold"), folder / "scratch")
            assert process.stdout is not None
            await asyncio.to_thread(process.stdout.readline)
            assert await reaper.collect() == []
            del world.api.claims["default", "blue"]
            assert [await reaper.collect() for _ in range(2)] == [[], []]
            (said,) = (each for each in caplog.messages if "keeps its part of a GPU" in each)
            assert "1 process uses" in said
            process.communicate("\n")
            world.api.down = True
            assert await reaper.collect() == []
            world.api.down = False
            assert [each.name for each in await reaper.collect()] == [f"{claim.uid}.0"]
            assert (world.allotments.given, list(world.cdi.iterdir()), reaper.kept) == ({}, [], {})

    asyncio.run(story())


def test_what_was_prepared_does_not_wait_for_the_api_server(folder: Path) -> None:
    async def story() -> None:
        world = NodeWorld(folder)
        old, new = world.api.add_claim("old", (0, 300, 9000)), world.api.add_claim("new", (0, 300, 9000))
        async with running(world):
            first = await world.kubelet.prepare(DRIVER, [ref(old)])
            world.api.down, world.api.asked = True, []
            again = await world.kubelet.prepare(DRIVER, [ref(old), ref(new)])
            assert world.api.asked == ["new"]
            assert str(again[old.uid]) == str(first[old.uid])
            assert "does not answer" in again[new.uid].error

    asyncio.run(story())


def test_a_gpu_is_given_by_claims_or_by_the_device_plugin_and_never_by_both(folder: Path) -> None:
    """Both share one record of what was given; an agent that was started with other options is caught here."""

    async def story() -> None:
        world = NodeWorld(folder)
        claim = world.api.add_claim("blue", (0, 300, 60_000))
        async with running(world):
            await world.kubelet.prepare(DRIVER, [ref(claim)])
            plugin = world.plugin()
            task = asyncio.create_task(plugin.run())
            await world.kubelet.until_registered(RESOURCE)
            pod = world.api.add_pod("one", (0, 500, 3000))
            await world.kubelet.admit(pod, RESOURCE)
            with pytest.raises(Exception, match="GPU 0, of which claims have parts"):
                await world.kubelet.pre_start(pod, "main", RESOURCE)
            await world.kubelet.unprepare(DRIVER, [ref(claim)])
            await world.kubelet.pre_start(pod, "main", RESOURCE)
            answers = await world.kubelet.prepare(DRIVER, [ref(claim)])
            assert "GPU 0, of which pods that ask for berth.dev/gpu have parts" in answers[claim.uid].error
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    asyncio.run(story())


def test_a_claim_of_a_device_that_is_lost_is_not_prepared(folder: Path) -> None:
    async def story() -> None:
        world = NodeWorld(folder)
        old, new = world.api.add_claim("old", (0, 300, 9000)), world.api.add_claim("new", (0, 300, 9000))
        async with running(world):
            await world.kubelet.prepare(DRIVER, [ref(old)])
            world.claims.lost = frozenset({0})
            answers = await world.kubelet.prepare(DRIVER, [ref(old), ref(new)])
            assert answers[old.uid].error == ""
            assert "has fallen off the bus" in answers[new.uid].error

    asyncio.run(story())


def test_a_fault_of_our_own_in_one_claim_harms_no_other(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        world = NodeWorld(folder)
        good, bad = world.api.add_claim("good", (0, 300, 9000)), world.api.add_claim("bad", (0, 300, 9000))
        asked = world.api.claim

        async def claim(namespace: str, name: str) -> Claim | None:
            if name == "bad":
                raise KeyError("request")
            return await asked(namespace, name)

        monkeypatch.setattr(world.api, "claim", claim)
        async with running(world):
            answers = await world.kubelet.prepare(DRIVER, [ref(bad), ref(good)])
            assert (answers[bad.uid].error, answers[good.uid].error) == ("berth: KeyError('request')", "")

    asyncio.run(story())


def test_a_kubelet_of_an_unknown_version_is_told_of(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        world = NodeWorld(folder)
        world.kubelet.faults.dra_versions = ("v9.DRAPlugin",)
        async with running(world):
            assert world.kubelet.drivers == {}

    asyncio.run(story())
    assert f"the kubelet refuses {DRIVER}: no version that this kubelet speaks" in caplog.messages


def test_sockets_are_roots_own_and_come_back_when_they_are_deleted(folder: Path) -> None:
    async def story() -> None:
        world = NodeWorld(folder)
        async with running(world):
            sockets = [
                *world.kubelet.registry.glob("*.sock"),
                *(folder / "kubelet" / "plugins").rglob("*.sock"),
            ]
            assert [(path.stat().st_mode & 0o777, path.stat().st_uid) for path in sockets] == [(0o600, 0)] * 2
            for path in sockets:
                path.unlink()
            async with asyncio.timeout(300):
                while not all(path.exists() for path in sockets):
                    await asyncio.sleep(0.05)
            await world.kubelet.find_drivers()

    asyncio.run(story())


def test_the_generation_of_the_slice_never_goes_back(folder: Path) -> None:
    async def story() -> None:
        world = NodeWorld(folder)
        api, devices = world.api, devices_of(world.cards, {})

        publisher = SlicePublisher("here", api)

        def generations() -> list[int]:
            return [spec["pool"]["generation"] for spec in api.known_slices.values()]

        assert await publisher.publish(devices)
        assert not await publisher.publish(devices)
        assert generations() == [1]
        backup = json.loads(json.dumps(api.known_slices))
        assert await publisher.publish(devices_of(world.cards, {1: "79"}))
        assert generations() == [2]
        assert await SlicePublisher("here", api).publish(devices)  # an agent that starts anew
        assert generations() == [3]
        api.known_slices["leftover"] = {**backup["here-gpu.berth.dev"], "pool": {"generation": 40}}
        assert await publisher.publish(devices)
        assert (generations(), list(api.known_slices)) == ([41], ["here-gpu.berth.dev"])

    asyncio.run(story())


def test_devices_are_what_a_scheduler_needs_to_know(folder: Path) -> None:
    world = NodeWorld(folder)
    first, second = devices_of(world.cards, {1: "79"})
    whole = {"default": "81920Mi", "validRange": {"min": "1Mi", "max": "81920Mi", "step": "1Mi"}}
    thousand = {"default": "1000", "validRange": {"min": "1", "max": "1000", "step": "1"}}
    assert first == {
        "name": "gpu-0",
        "attributes": {
            "uuid": {"string": world.cards[0].uuid}, "model": {"string": "A100-80"}, "index": {"int": 0},
            "architecture": {"string": "Ampere"},
        },
        "capacity": {
            "memory": {"value": "81920Mi", "requestPolicy": whole},
            "milli": {"value": "1000", "requestPolicy": thousand},
        },
        "allowMultipleAllocations": True,
    }  # fmt: skip
    assert second["taints"] == [{"key": TAINT, "value": "79", "effect": "NoSchedule"}]
