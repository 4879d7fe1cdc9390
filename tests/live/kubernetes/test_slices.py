"""GPUs from ResourceSlices and parts of them allocated to claims, as custom resources of the real API server's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from berth.errors import ApiError
from berth.live.kubernetes import names
from berth.live.kubernetes.entries import Settings
from berth.live.kubernetes.viewing import look
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.world import World

GROUP = "resource.k8s.io"
KINDS = {"resourceslices": ("ResourceSlice", "Cluster"), "resourceclaims": ("ResourceClaim", "Namespaced")}


def definition(plural: str, kind: str, scope: str, group: str = GROUP, version: str = "v1") -> dict[str, Any]:
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


def gpu(index: int, *, taints: list[dict[str, str]] | None = None) -> dict[str, Any]:
    return {
        "name": f"gpu-{index}",
        "attributes": {
            "model": {"string": "A100-80"},
            "index": {"int": index},
            f"{names.DRIVER}/uuid": {"string": f"GPU-{index}"},
        },
        "capacity": {"memory": {"value": "81920Mi"}, "milli": {"value": "1k"}},
        "allowMultipleAllocations": True,
        **({"taints": taints} if taints else {}),
    }


async def slices(world: World, node: str, devices: list[dict[str, Any]], generation: int = 1) -> None:
    body = {
        "apiVersion": f"{GROUP}/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{generation}"},
        "spec": {
            "driver": names.DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
            "devices": devices,
        },
    }
    await world.api.request("POST", f"/apis/{GROUP}/v1/resourceslices", body)


@pytest.mark.usefixtures("kinds_of_ours")
def test_slices_tell_of_gpus_and_claims_take_theirs(play: Played) -> None:
    async def test(world: World) -> None:
        crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        try:
            await world.api.request("GET", f"/apis/{GROUP}/v1")
            ours = False
        except ApiError:
            ours = True
            for plural in KINDS:
                await world.api.request("POST", crds, definition(plural, *KINDS[plural]))

            async def served() -> bool:
                for plural in KINDS:
                    await world.api.request("GET", f"/apis/{GROUP}/v1/{plural}")
                return True

            await world.until("the kinds are served", served)
        try:
            await _with_slices(world)
        finally:
            for plural in KINDS if ours else ():
                await world.api.request("DELETE", f"{crds}/{plural}.{GROUP}", patience_s=10)

    play(test)


async def _with_slices(world: World) -> None:
    """GPUs 0 and 1 are given through claims, 2 and 3 by the device plugin."""
    await world.node("n1", 2, labels={names.LABEL_GPU_INDICES: "2-3", names.LABEL_GPUS_AILING: "3"})
    await slices(world, "n1", [gpu(0), gpu(1)])
    claims = f"/apis/{GROUP}/v1/namespaces/default/resourceclaims"

    async def claim(name: str, device: str) -> None:
        consumed = {"memory": "70000Mi", "milli": "200"}
        results = [
            {"driver": names.DRIVER, "pool": "n1", "device": device, "consumedCapacity": consumed}
            for _ in range(1 if device == "gpu-0" else 2)
        ]
        body = {
            "apiVersion": f"{GROUP}/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name},
            "status": {"allocation": {"devices": {"results": results}}},
        }
        await world.api.request("POST", claims, body)

    await claim("theirs", "gpu-0")
    async with world.scheduler():
        await world.pod("a", milli=500, mem=20_000)
        await world.until_bound("a")
        placed = json.loads((await world.pods())["a"]["metadata"]["annotations"][names.PLACEMENT])
        assert placed["gpus"] == [{"index": 2, "uuid": None, "milli": 500, "mem_mib": 20_000}]
        await world.pod("b", milli=500, mem=65_000)
        assert await world.until_told("b", "nodes") == "0/1 nodes: 1 GPU memory short by 3080 MiB"
        await world.delete("b")
        # GPU 3 is well again; a claim that has not left it yet is counted, with both of its parts.
        await claim("leaving", "gpu-3")
        await world.patch("/api/v1/nodes/n1", {"metadata": {"labels": {names.LABEL_GPUS_AILING: None}}})
        await world.pod("c", milli=700, mem=1000)
        await world.until_told("c", "1 GPU compute short by 100 milli")
        await world.api.request("DELETE", f"{claims}/leaving")
        await world.until_bound("c")
        seen = await look(world.api, Settings())
        claimed = [each for each in seen.gpus if each.for_claims]
        assert [(each.index, each.milli, each.mem_mib) for each in claimed] == [(0, 200, 70_000), (1, 0, 0)]

        async def given_by_claims() -> list[int]:
            return [each.index for each in (await look(world.api, Settings())).gpus if each.for_claims]

        await slices(world, "n1", [gpu(0)], generation=3)
        assert await given_by_claims() == [0]
        await slices(
            world, "n1", [gpu(0), gpu(1), gpu(5)], generation=2
        )  # an agent whose generation went back
        assert await given_by_claims() == [0]
        await world.pod("d", milli=200, mem=1000)
        await world.until_bound("d")
    await world.check()
