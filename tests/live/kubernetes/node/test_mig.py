"""GPUs whose MIG is on: published by counter sets as each version wants them, instances made and taken by claims."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import celpy
import pytest
from celpy.adapter import json_to_cel

from berth.live.kubernetes.manifests import Install, manifests
from berth.live.kubernetes.names import DRIVER, RESOURCE
from berth.live.kubernetes.node.api_server import ApiServer
from berth.live.kubernetes.node.cut_gpus import CutGpu
from berth.live.kubernetes.node.service import split_gpus
from berth.live.kubernetes.node.slices import TAINT, SlicePublisher, cut_devices_of, devices_of
from berth.live.local.cards import Card, fake_gpus
from berth.partition.mig import Place
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.kubelet import Kubelet
from tests.live.kubernetes.node.containers import of_cdi
from tests.live.kubernetes.node.fake_api import FakeApi
from tests.live.kubernetes.node.test_service import ANYTHING, Running, claims_served, needs_root, node, share
from tests.live.kubernetes.server import Server
from tests.live.kubernetes.world import World

RESOURCES = "/apis/resource.k8s.io/v1"
CARD = Card(1, "GPU-1", "A100-80G", 81920)
SIZES = {"1g.10gb": (range(7), 1, 1), "3g.40gb": ((0, 4), 4, 3), "7g.80gb": ((0,), 8, 7)}
PLACES = tuple(
    Place(profile, start, size, slices, size * 10240)
    for profile, (starts, size, slices) in SIZES.items()
    for start in starts
)
CUT = CutGpu(CARD, PLACES)


def test_each_place_of_an_instance_is_a_device_that_consumes_what_it_takes() -> None:
    told = cut_devices_of(CUT, {1: "79"}, (), ())
    slices = {f"memory-slice-{n}": {"value": "1"} for n in range(8)}
    assert told.counters == {
        "name": "gpu-1", "counters": {"slices": {"value": "7"}, "memory": {"value": "81920Mi"}, **slices},
    }  # fmt: skip
    assert [each["name"] for each in told.devices] == [
        *(f"gpu-1-mig-1g-10gb-{n}" for n in range(7)), "gpu-1-mig-3g-40gb-0", "gpu-1-mig-3g-40gb-4",
        "gpu-1-mig-7g-80gb-0",
    ]  # fmt: skip
    assert told.devices[8] == {
        "name": "gpu-1-mig-3g-40gb-4",
        "attributes": {
            "model": {"string": "A100-80"}, "architecture": {"string": "Ampere"}, "profile": {"string": "3g.40gb"},
            "start": {"int": 4}, "parentUUID": {"string": "GPU-1"}, "parentIndex": {"int": 1},
        },
        "capacity": {"memory": {"value": "40960Mi"}, "milli": {"value": "428"}},
        "consumesCounters": [{"counterSet": "gpu-1", "counters": {
            "slices": {"value": "3"}, "memory": {"value": "40960Mi"},
            **{f"memory-slice-{n}": {"value": "1"} for n in range(4, 8)},
        }}],
        "taints": [{"key": TAINT, "value": "79", "effect": "NoSchedule"}],
    }  # fmt: skip


def test_an_instance_that_was_made_by_hand_leaves_its_own_device_and_those_beside_it() -> None:
    by_hand, ours = PLACES[2], PLACES[7]
    told = cut_devices_of(CUT, {}, (by_hand,), ())
    names = [each["name"] for each in told.devices]
    assert names == [*(f"gpu-1-mig-1g-10gb-{n}" for n in range(7)), "gpu-1-mig-3g-40gb-4"]
    assert len(cut_devices_of(CUT, {}, (ours,), {(ours.profile, ours.start)}).devices) == len(PLACES)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("apart", {"": (0, 1), "-counters-0": (1, 0), "-gpu-1-0": (0, len(PLACES))}),
        ("", {"": (0, 1)}),
    ],
)
def test_slices_have_the_form_that_the_api_server_keeps(
    form: str, expected: dict[str, tuple[int, int]]
) -> None:
    """A server whose gate is off drops the counters, and is told no device."""

    async def story() -> None:
        api = FakeApi()
        api.counters = form
        publisher = SlicePublisher("here", api)
        whole = devices_of([Card(0, "GPU-0", "A100-80G", 81920)], {})
        cut = [cut_devices_of(CUT, {}, (), ())]
        assert await publisher.publish(whole, cut)
        assert not await publisher.publish(whole, cut)
        shown = {
            name.removeprefix(publisher.name): (
                len(spec.get("sharedCounters", ())),
                len(spec.get("devices", ())),
            )
            for name, spec in sorted(api.known_slices.items())
        }
        assert shown == expected
        pools = [spec["pool"] for spec in api.known_slices.values()]
        assert pools == [{"name": "here", "generation": 1, "resourceSliceCount": len(shown)}] * len(shown)
        await publisher.publish([], ())
        assert api.known_slices == {}

    asyncio.run(story())


def test_slices_that_stay_tell_how_many_are_left() -> None:
    """A scheduler takes nothing from a pool with fewer slices than each of them tells."""

    async def story() -> None:
        api = FakeApi()
        publisher = SlicePublisher("here", api)
        whole = devices_of([Card(0, "GPU-0", "A100-80G", 81920)], {})
        await publisher.publish(whole, [cut_devices_of(CUT, {}, (), ())])
        assert len(api.known_slices) == 3
        assert await publisher.publish(whole, ())
        assert {name: spec["pool"] for name, spec in api.known_slices.items()} == {
            publisher.name: {"name": "here", "generation": 2, "resourceSliceCount": 1}
        }
        assert not await publisher.publish(whole, ())

    asyncio.run(story())


@pytest.mark.parametrize(
    ("spec_of_slices", "expected"),
    [
        (ANYTHING, ["-counters-0", "-gpu-1-0"]),
        ({**ANYTHING, "required": ["sharedCounters"]}, []),
        ({"type": "object", "properties": {
            "driver": {"type": "string"}, "nodeName": {"type": "string"}, "pool": ANYTHING,
            "devices": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
        }}, []),
    ],
    ids=["apart", "refused", "dropped"],
)  # fmt: skip
def test_a_real_api_server_is_asked_whether_it_keeps_counters(
    play: Played, server: Server, spec_of_slices: dict[str, Any], expected: list[str]
) -> None:
    """By a write that is not carried out: a slice of its own for counters may be refused, and their fields dropped."""
    if server.is_at_least(34) and spec_of_slices is not ANYTHING:
        pytest.skip(f"{server.assets.version} has a schema of its own")

    async def story(world: World) -> None:
        schema = {"type": "object", "properties": {"spec": spec_of_slices}}
        async with claims_served(world, {"ResourceSlice": schema}):
            await world.node("here", gpus=0)
            api = ApiServer(world.api, "here")
            assert await api.find_claims()
            publisher = SlicePublisher("here", api)
            await publisher.publish([], [cut_devices_of(CUT, {}, (), ())])
            assert sorted(await slices_of(world)) == [f"{publisher.name}{rest}" for rest in expected]
            assert not await publisher.publish([], [cut_devices_of(CUT, {}, (), ())])

    play(story)


def test_a_class_chooses_whole_gpus_or_instances() -> None:
    cut = cut_devices_of(CUT, {}, (), ()).devices[0]
    whole = devices_of([CARD], {})[0]
    chosen: dict[str, list[Any]] = {}
    for each in manifests(Install("", claims=True))["device-class"]:
        expression = each["spec"]["selectors"][0]["cel"]["expression"]
        environment = celpy.Environment()
        program = environment.program(environment.compile(expression))
        for device in (whole, cut):
            attributes = {
                DRIVER: {name: next(iter(said.values())) for name, said in device["attributes"].items()}
            }
            given = {"device": json_to_cel({"driver": DRIVER, "attributes": attributes})}
            if program.evaluate(given):
                chosen.setdefault(each["metadata"]["name"], []).append(device["name"])
    assert chosen == {"gpu.berth.dev": ["gpu-1"], "mig.berth.dev": ["gpu-1-mig-1g-10gb-0"]}


@pytest.mark.parametrize(
    ("dra", "has_claims", "expected"),
    [
        ("auto", True, ((1,), (0,))),
        ("auto", False, ((), (0,))),
        ("none", True, ((), (0,))),
        ("0", True, ((0,), ())),
    ],
)
def test_a_gpu_whose_mig_is_on_is_for_claims_alone(dra: str, has_claims: bool, expected: Any) -> None:
    assert split_gpus(dra, [0, 1], has_claims=has_claims, cut=[1]) == expected


async def slices_of(world: World) -> dict[str, Any]:
    told = json.loads(await world.api.request("GET", f"{RESOURCES}/resourceslices"))["items"]
    return {each["metadata"]["name"]: each["spec"] for each in told}


async def claim(world: World, name: str, device: str) -> tuple[str, str, str]:
    """A claim that was allocated an instance."""
    path = f"{RESOURCES}/namespaces/default/resourceclaims"
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {},
    }
    made = json.loads(await world.api.request("POST", path, body))
    result = {"request": "gpu", "driver": DRIVER, "pool": "here", "device": device}
    made["status"] = {"allocation": {"devices": {"results": [result]}}}
    await world.api.request("PUT", f"{path}/{name}/status", made)
    return "default", name, made["metadata"]["uid"]


def cdi_names(answer: Any) -> list[str]:
    return [name for device in answer.devices for name in device.cdi_device_ids]


def asked_of_mig(folder: Path, words: str) -> str:
    """What a program of the machine's operator is told, who works on the same card by hand."""
    before = (
        "from berth.partition import fake_driver_folder as folder; from berth.partition.gpus import gpus;"
        "from berth.partition import mig; gpu = gpus(folder())[1];"
    )
    environment = {
        **os.environ,
        **fake_gpus("2xA100-80G"),
        "BERTH_FAKE_CARD": str(folder / "state" / "fake-card"),
    }
    done = subprocess.run(
        [sys.executable, "-c", before + words], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def instances(folder: Path) -> list[tuple[str, int]]:
    words = "print([(at.profile, at.start) for at in mig.instances_on(gpu, folder())])"
    found: list[tuple[str, int]] = ast.literal_eval(asked_of_mig(folder, words))
    return found


@pytest.mark.usefixtures("kinds_of_ours")
@needs_root
@pytest.mark.slow
def test_claims_get_instances_that_are_made_for_them_and_go_with_them(
    play: Played, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTH_FAKE_MIG", "1")

    async def story(world: World) -> None:
        async with claims_served(world):
            async with node(world, folder) as (running, kubelet):
                await prepared(world, running, kubelet)
            async with node(world, folder) as (running, kubelet):
                await after_a_restart(world, running, kubelet)

    async def found(running: Running, kubelet: Kubelet, world: World) -> None:
        async def registered() -> bool:
            await kubelet.find_drivers()
            return DRIVER in kubelet.drivers and len(await slices_of(world)) == 3

        await running.until(registered)
        assert RESOURCE not in kubelet.resources

    async def prepared(world: World, running: Running, kubelet: Kubelet) -> None:
        await found(running, kubelet, world)
        told = await slices_of(world)
        counters = told[f"here-{DRIVER}-counters-0"]["sharedCounters"]
        assert [each["name"] for each in counters] == ["gpu-0", "gpu-1"]
        assert len(told[f"here-{DRIVER}-gpu-1-0"]["devices"]) == 18
        blue = await claim(world, "blue", "gpu-1-mig-2g-20gb-2")
        both = await claim(world, "both", "gpu-1-mig-3g-40gb-0")
        first = await kubelet.prepare(DRIVER, [blue])
        assert first[blue[2]].error == ""
        assert instances(folder) == [("2g.20gb", 2)]
        assert await share(of_cdi(folder / "cdi", cdi_names(first[blue[2]])), folder / "scratch") == [
            (20480, 2)
        ]
        assert str(await kubelet.prepare(DRIVER, [blue])) == str(first)
        refused = await kubelet.prepare(DRIVER, [both])  # a scheduler that counts allocates no such thing
        assert "an instance 3g.40gb of GPU 1: NVML refuses with error 23" in refused[both[2]].error
        asked_of_mig(folder, "mig.create_instance(gpu, '1g.10gb', folder(), 5)")

        async def without() -> bool:
            devices = (await slices_of(world))[f"here-{DRIVER}-gpu-1-0"]["devices"]
            return "gpu-1-mig-3g-40gb-4" not in {each["name"] for each in devices}

        await running.until(without)

    async def after_a_restart(world: World, running: Running, kubelet: Kubelet) -> None:
        await found(running, kubelet, world)
        path = f"{RESOURCES}/namespaces/default/resourceclaims/blue"
        uid = json.loads(await world.api.request("GET", path))["metadata"]["uid"]
        by_hand = await claim(world, "hand", "gpu-1-mig-1g-10gb-5")
        answers = await kubelet.prepare(DRIVER, [("default", "blue", uid), by_hand])
        assert [each.error for each in answers.values()] == ["", ""]
        names = cdi_names(answers[by_hand[2]])
        assert await share(of_cdi(folder / "cdi", names), folder / "scratch") == [(10240, 2)]
        assert sorted(instances(folder)) == [("1g.10gb", 5), ("2g.20gb", 2)]
        for _ in range(2):
            told = await kubelet.unprepare(DRIVER, [("default", "blue", uid), by_hand])
            assert [each.error for each in told.values()] == ["", ""]
        assert instances(folder) == [("1g.10gb", 5)]  # it was there before, and is the operator's

    play(story)


@pytest.mark.usefixtures("kinds_of_ours")
@needs_root
@pytest.mark.slow
def test_an_agent_that_died_over_an_instance_leaves_none_behind(
    play: Played, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed when the instance was made and its region was not: what was begun is taken up, or taken away."""
    monkeypatch.setenv("BERTH_FAKE_MIG", "1")

    def half_made(name: str, start: int) -> None:
        place = folder / "run" / "regions" / name
        asked_of_mig(
            folder,
            "from berth.partition.hardware import Hardware, keep; from pathlib import Path;"
            f"place = Path({str(place)!r}); place.mkdir(parents=True);"
            f"keep(place, 'begun', Hardware('mig', gpu.uuid, '', 0, '1g.10gb', start={start}));"
            f"mig.create_instance(gpu, '1g.10gb', folder(), {start})",
        )

    async def story(world: World) -> None:
        async with claims_served(world), node(world, folder) as (running, kubelet):

            async def registered() -> bool:
                await kubelet.find_drivers()
                return DRIVER in kubelet.drivers

            await running.until(registered)
            blue = await claim(world, "blue", "gpu-1-mig-1g-10gb-3")
            half_made(f"{blue[2]}.0", 3)
            for _ in range(2):
                assert (await kubelet.prepare(DRIVER, [blue]))[blue[2]].error == ""
                assert instances(folder) == [("1g.10gb", 3)]
                assert (await kubelet.unprepare(DRIVER, [blue]))[blue[2]].error == ""
                assert instances(folder) == []
            half_made("nobody.0", 6)
        async with claims_served(world), node(world, folder) as (running, _):

            async def gone() -> bool:
                return not instances(folder)

            await running.until(gone)

    play(story)
