"""What berth writes and reads of `resource.k8s.io/v1`, on a real API server with the schemas of each version."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from berth.errors import ApiError
from berth.live.kubernetes.manifests import Install, manifests
from berth.live.kubernetes.names import DRIVER
from berth.live.kubernetes.node.api_server import ApiServer, ClaimDevice
from berth.live.kubernetes.node.slices import SlicePublisher, devices_of
from berth.live.local.cards import Card
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.node.test_service import claims_served
from tests.live.kubernetes.world import World

SCHEMAS = Path(__file__).parents[1] / "schemas"
RESOURCES = "/apis/resource.k8s.io/v1"
pytestmark = pytest.mark.slow  # three kinds are made and taken away for each version


@pytest.mark.usefixtures("kinds_of_ours")
@pytest.mark.parametrize("version", sorted(path.stem for path in SCHEMAS.glob("*.json")))
def test_each_version_keeps_all_that_berth_writes_and_refuses_what_is_of_another_type(
    play: Played, version: str
) -> None:
    schemas = json.loads((SCHEMAS / f"{version}.json").read_text())

    async def story(world: World) -> None:
        async with claims_served(world, schemas):
            await world.node("here", gpus=0)
            api = ApiServer(world.api, "here")
            assert await api.find_claims()
            devices = devices_of([Card(0, "GPU-0", "A100-80G", 81920)], {0: "79"})
            await SlicePublisher("here", api).publish(devices)
            (kept,) = json.loads(await world.api.request("GET", f"{RESOURCES}/resourceslices"))["items"]
            assert kept["spec"]["devices"] == devices
            await of_claims(world, api)
            for each in manifests(Install("", claims=True))["device-class"]:
                made = json.loads(await world.api.request("POST", f"{RESOURCES}/deviceclasses", each))
                assert made["spec"] == each["spec"]

    async def of_claims(world: World, api: ApiServer) -> None:
        path = f"{RESOURCES}/namespaces/default/resourceclaims"
        exactly = {
            "deviceClassName": DRIVER, "capacity": {"requests": {"memory": "5Gi", "milli": "250"}},
        }  # fmt: skip
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
        claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "blue"}}
        made = json.loads(await world.api.request("POST", path, {**claim, "spec": spec}))
        assert made["spec"] == spec
        device = {
            "request": "gpu", "driver": DRIVER, "pool": "here", "device": "gpu-0", "shareID": "s-1",
            "consumedCapacity": {"memory": "5Gi", "milli": "250"},
        }  # fmt: skip
        config = {"opaque": {"driver": DRIVER, "parameters": {"priority": "low"}}, "source": "FromClaim"}
        made["status"] = {"allocation": {"devices": {"results": [device], "config": [config]}}}
        await world.api.request("PUT", f"{path}/blue/status", made)
        read = await api.claim("default", "blue")
        assert read is not None
        assert read.devices == (ClaimDevice("gpu", "here", "gpu-0", "s-1", 5120, 250),)
        assert read.priority == "low"
        wrong = {**claim, "metadata": {"name": "wrong"}, "spec": {"devices": {"requests": "all"}}}
        with pytest.raises(ApiError, match="must be of type array"):
            await world.api.request("POST", path, wrong)

    play(story)
