"""Claims that Kubernetes' own scheduler allocates, on an API server that serves `resource.k8s.io/v1` itself.

Only where both are of Kubernetes 1.36 or later. A kubelet that is there too starts the pods, if the machine's
containerd is 2.0 or later.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from berth.errors import ApiError
from berth.live.kubernetes.installing import apply
from berth.live.kubernetes.manifests import Install, manifests
from berth.live.kubernetes.names import DRIVER
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.node.containers import of_cdi
from tests.live.kubernetes.node.real_node import KUBELET_FOLDER, RealNode, programs
from tests.live.kubernetes.node.test_real_kubelet import logs
from tests.live.kubernetes.node.test_service import Running, needs_root, node, share
from tests.live.kubernetes.server import Server
from tests.live.kubernetes.world import World

RESOURCES = "/apis/resource.k8s.io/v1"
CLAIMS = f"{RESOURCES}/namespaces/default/resourceclaims"
ASKED = {"first": (300, 20_000), "second": (300, 20_000), "large": (900, 60_000), "too-much": (500, 70_000)}
"""Milli and MiB, in the order of the pods."""


def claim(name: str) -> dict[str, Any]:
    milli, mem_mib = ASKED[name]
    asked = {"milli": str(milli), "memory": f"{mem_mib}Mi"}
    request = {
        "name": "gpu",
        "exactly": {"deviceClassName": DRIVER, "capacity": {"requests": asked}},
    }
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
        "spec": {"devices": {"requests": [request]}},
    }  # fmt: skip


@asynccontextmanager
async def classes(world: World) -> AsyncIterator[None]:
    """The DeviceClasses are there within; claims and slices are gone after it."""
    for each in manifests(Install("", claims=True))["device-class"]:
        await apply(world.api, each)
    try:
        yield
    finally:
        for name in await listed(world, CLAIMS):  # no controller runs that would see that their pods are gone
            await world.patch(f"{CLAIMS}/{name}", {"metadata": {"finalizers": None}})
        for path in (CLAIMS, f"{RESOURCES}/deviceclasses", f"{RESOURCES}/resourceslices"):
            with contextlib.suppress(ApiError):
                await world.api.request("DELETE", path)


async def listed(world: World, path: str) -> dict[str, Any]:
    items = json.loads(await world.api.request("GET", path))["items"]
    return {each["metadata"]["name"]: each for each in items}


@pytest.mark.slow
@needs_root
@pytest.mark.usefixtures("kube_scheduler")
def test_parts_that_a_real_scheduler_gives_to_claims_are_what_containers_get(
    play: Played, folder: Path
) -> None:
    async def story(world: World) -> None:
        async with classes(world), node(world, folder, "--dra", "all") as (running, kubelet):

            async def ready() -> bool:
                await kubelet.find_drivers()
                return DRIVER in kubelet.drivers and bool(await listed(world, f"{RESOURCES}/resourceslices"))

            await running.until(ready)
            for name in ASKED:
                await world.api.request("POST", CLAIMS, claim(name))
                uses = {"name": "gpu", "resourceClaimName": name}
                await world.pod(name, 0, gates=(), resourceClaims=[uses])
                if name != "too-much":
                    await world.until_bound(name)
            await world.until_told("too-much", "cannot allocate all claims")
            given = await listed(world, CLAIMS)
            results = {
                name: made["status"]["allocation"]["devices"]["results"]
                for name, made in given.items()
                if "allocation" in made.get("status", {})
            }
            assert sorted(results) == ["first", "large", "second"]  # no GPU has room for the last
            on = {name: found["device"] for name, (found,) in results.items()}
            assert on["first"] == on["second"] != on["large"]
            assert len({found["shareID"] for (found,) in results.values()}) == 3
            for name in results:
                ref = ("default", name, given[name]["metadata"]["uid"])
                answers = await kubelet.prepare(DRIVER, [ref])
                assert answers[ref[2]].error == ""
                devices = [one for each in answers[ref[2]].devices for one in each.cdi_device_ids]
                had = await share(of_cdi(folder / "cdi", devices), folder / f"scratch-{name}")
                assert [took_mib for took_mib, _ in had] == [ASKED[name][1]]

    play(story)


@needs_root
@pytest.mark.slow
@pytest.mark.usefixtures("kube_scheduler", "kubelets_turn")
def test_a_real_kubelet_starts_containers_with_the_parts_of_their_claims(
    play: Played, server: Server, folder: Path
) -> None:
    runtime = subprocess.run(["containerd", "--version"], capture_output=True, text=True, check=False).stdout
    if not server.assets.apiserver.with_name("kubelet").exists() or "/v2 " not in runtime:
        pytest.skip(f"wanted a kubelet of 1.36 or later and containerd 2: {runtime.strip()}")
    if missing := programs():
        pytest.skip(missing)
    fitting = [name for name in ASKED if name != "too-much"]

    async def story(world: World) -> None:
        real, running = RealNode(folder, world.kubeconfig), None
        try:
            await asyncio.to_thread(real.start)
            running = Running(folder, world.kubeconfig, KUBELET_FOLDER, "--dra", "all")
            async with classes(world):
                await claims(world)
        except BaseException:
            print(real.said("kubelet"), real.said("containerd"), running.said if running else "")
            raise
        finally:
            if running is not None:
                running.close()
            await asyncio.to_thread(real.close)

    async def claims(world: World) -> None:
        async def published() -> bool:
            nodes = (await listed(world, "/api/v1/nodes")).values()
            return bool(await listed(world, f"{RESOURCES}/resourceslices")) and any(
                each["type"] == "Ready" and each["status"] == "True"
                for one in nodes
                for each in one["status"]["conditions"]
            )

        await world.until("the node is ready", published, 120)
        for name in fitting:
            await world.api.request("POST", CLAIMS, claim(name))
            container = {
                "name": "main", "image": "localhost/berth-test:1", "imagePullPolicy": "Never",
                "command": ["/bin/sh", "-c", "ls /dev | grep nvidia; /opt/check total"],
                "resources": {"claims": [{"name": "gpu"}]},
            }  # fmt: skip
            pod = {
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
                "spec": {
                    "restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container],
                    "enableServiceLinks": False, "dnsPolicy": "Default", "hostNetwork": True,
                    "automountServiceAccountToken": False, "tolerations": [{"operator": "Exists"}],
                    "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
                },
            }  # fmt: skip
            await world.api.request("POST", "/api/v1/namespaces/default/pods", pod)

        async def ended() -> bool:
            pods = await world.pods()
            return all(pods[name]["status"].get("phase") == "Succeeded" for name in fitting)

        await world.until("all have ended", ended, 180)
        given = await listed(world, CLAIMS)
        for name in fitting:
            (found,) = given[name]["status"]["allocation"]["devices"]["results"]
            assert logs(name) == [f"nvidia{found['device'].removeprefix('gpu-')}", str(ASKED[name][1])]

    play(story)
