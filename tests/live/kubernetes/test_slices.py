"""GPUs from ResourceSlices and parts of them allocated to claims, as custom resources of the real API server's."""

from __future__ import annotations

import json
from typing import Any

from berth.errors import ApiError
from berth.live.kubernetes import names
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.world import World

GROUP = "resource.k8s.io"
KINDS = {"resourceslices": ("ResourceSlice", "Cluster"), "resourceclaims": ("ResourceClaim", "Namespaced")}


def definition(plural: str) -> dict[str, Any]:
    kind, scope = KINDS[plural]
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{GROUP}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        },
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": [version],
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


def test_slices_tell_of_gpus_and_claims_take_theirs(play: Played) -> None:
    async def test(world: World) -> None:
        crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        try:
            await world.api.request("GET", f"/apis/{GROUP}/v1")
            ours = False
        except ApiError:
            ours = True
            for plural in KINDS:
                await world.api.request("POST", crds, definition(plural))

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
    await world.node("n1", 0)
    await slices(world, "n1", [gpu(0), gpu(2), gpu(5, taints=[{"key": "xid", "effect": "NoExecute"}])])
    claims = f"/apis/{GROUP}/v1/namespaces/default/resourceclaims"
    results = [
        {
            "driver": names.DRIVER, "pool": "n1", "device": "gpu-0",
            "consumedCapacity": {"memory": "70000Mi", "milli": "200"},
        }
    ]  # fmt: skip
    claim = {
        "apiVersion": f"{GROUP}/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "theirs"},
        "status": {"allocation": {"devices": {"results": results}}},
    }
    await world.api.request("POST", claims, claim)
    async with world.scheduler():
        await world.pod("a", milli=500, mem=20_000)
        await world.until_bound("a")
        placed = json.loads((await world.pods())["a"]["metadata"]["annotations"][names.PLACEMENT])
        assert placed["gpus"] == [{"index": 2, "uuid": "GPU-2", "milli": 500, "mem_mib": 20_000}]
        await world.pod("b", milli=500, mem=65_000)
        said = await world.until_told("b", "nodes")
        assert said == "0/1 nodes: 1 GPU memory short by 3080 MiB"
        await world.api.request("DELETE", f"{claims}/theirs")
        await world.until_bound("b")
        # A new generation takes the place of the old one: the GPU that failed is mended.
        await slices(world, "n1", [gpu(0), gpu(2), gpu(5)], generation=2)
        await world.pod("c", 1)
        await world.until_bound("c")
