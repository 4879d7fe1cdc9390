"""Karpenter makes nodes for the pods that berth releases, and berth gives them their GPUs there.

Its own controllers run, with its kwok provider: the nodes are objects on the API server, of which the test says that
they are ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from berth.errors import ApiError
from berth.live.kubernetes import names
from berth.live.kubernetes.access import from_kubeconfig
from berth.live.kubernetes.client import Api
from tests.live.kubernetes.server import HERE, Server
from tests.live.kubernetes.test_units import gate
from tests.live.kubernetes.world import World
from tests.ports import free_ports

VERSION = re.findall(r"karpenter v([\d.]+)", (HERE / "autoscalers" / "go.mod").read_text())[0]
BUILT = (
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "berth-tests" / f"karpenter-{VERSION}"
)
POOLS = "/apis/karpenter.sh/v1/nodepools"
MODEL, CARDS, CARD_MIB = "A100-80", 4, 81_920
"""What each node has that Karpenter may make."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (BUILT / "karpenter").exists(),
        reason=f"no {BUILT / 'karpenter'}; run {HERE / 'build_server.sh'} karpenter",
    ),
]


class Karpenter:
    """Karpenter's controllers on a server, with one kind of node to make."""

    def __init__(self, server: Server, folder: Path) -> None:
        self._kubeconfig, self.log, self._types = (
            server.kubeconfig(),
            folder / "karpenter.log",
            folder / "types.json",
        )
        zone = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}
        sold = {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}
        kind = {
            "name": "four-cards",
            "offerings": [{"Price": 1.0, "Available": True, "Requirements": [sold, zone]}],
            "architecture": "amd64",
            "operatingSystems": ["linux"],
            "resources": {
                "cpu": "64",
                "memory": "256Gi",
                names.RESOURCE: str(names.SLOTS_PER_GPU * CARDS),
                names.ASKED_MILLI: str(1000 * CARDS),
                names.ASKED_MEM_MIB: str(CARD_MIB * CARDS),
            },
        }
        self._types.write_text(json.dumps([kind]))

    async def install(self, world: World) -> None:
        """Make the CRDs, and a pool of nodes which have the labels that docs/kubernetes.md asks for."""
        for path in sorted((BUILT / "crds").glob("*.yaml")):
            body = yaml.safe_load(path.read_text())
            await world.api.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body)
            version = next(each["name"] for each in body["spec"]["versions"] if each["served"])
            kinds = f"/apis/{body['spec']['group']}/{version}/{body['spec']['names']['plural']}"
            await world.until(f"{kinds} is served", lambda kinds=kinds: world.api.request("GET", kinds))
        labels = {
            names.LABEL_GPU_COUNT: str(CARDS),
            names.LABEL_GPU_MODEL: MODEL,
            names.LABEL_GPU_MEMORY_MIB: str(CARD_MIB),
        }
        node_class = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "fake"}
        amd64 = {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}
        pool = {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodePool",
            "metadata": {"name": "gpus"},
            "spec": {
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"nodeClassRef": node_class, "requirements": [amd64]},
                },
                "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never"},
            },
        }
        fake = {
            "apiVersion": "karpenter.kwok.sh/v1alpha1",
            "kind": "KWOKNodeClass",
            "metadata": {"name": "fake"},
        }
        await world.api.request("POST", "/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses", fake)
        await world.api.request("POST", POOLS, pool)

    def start(self) -> subprocess.Popen[bytes]:
        """Start the controllers."""
        metrics, health = free_ports(2)
        options = {
            "disable-leader-election": "true",
            "metrics-port": metrics,
            "health-probe-port": health,
            "instance-types-file-path": self._types,
        }
        words = [BUILT / "karpenter", *(f"--{key}={value}" for key, value in options.items())]
        environment = {**os.environ, "KUBECONFIG": str(self._kubeconfig), "SYSTEM_NAMESPACE": "default"}
        with self.log.open("wb") as log:
            return subprocess.Popen(words, stdout=log, stderr=log, env=environment)


async def made(world: World) -> list[dict[str, Any]]:
    """The nodes that Karpenter has made."""
    nodes = json.loads(await world.api.request("GET", "/api/v1/nodes"))["items"]
    return [node for node in nodes if "karpenter.sh/nodepool" in node["metadata"]["labels"]]


async def empty_nodes_go(world: World, after: str) -> None:
    """How long Karpenter keeps a node without pods: `Never` takes none away, `0s` any."""
    await world.patch(f"{POOLS}/gpus", {"spec": {"disruption": {"consolidateAfter": after}}})


async def be_kubelets(world: World) -> None:
    """Say of each node that Karpenter makes that it is ready."""
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "no kubelet runs"}
    while True:
        with contextlib.suppress(ApiError):  # the server is busy, or the node is gone again
            for node in await made(world):
                if not node["status"].get("conditions"):
                    path = f"/api/v1/nodes/{node['metadata']['name']}/status"
                    await world.patch(path, {"status": {"conditions": [ready]}})
        await asyncio.sleep(0.2)


def test_karpenter_makes_nodes_for_pods_that_berth_releases_and_berth_shares_their_cards(
    own_server: Server, tmp_path: Path
) -> None:
    if not own_server.is_at_least(36):
        pytest.skip(f"{own_server.assets.version} has no MutatingAdmissionPolicy")
    karpenter, kubeconfig = Karpenter(own_server, tmp_path), own_server.kubeconfig()

    async def story(world: World) -> None:
        await gate(world)
        await world.node("full", 1)
        await world.pod("old")
        async with world.steerer():
            await world.until_bound("old")
        await world.pod("small")  # waits for room, and asks for no new node
        await world.pod("large", 3)
        await world.pod("halves", 3, milli=500)
        async with world.steerer(patience_ms=1500):  # which sees both at once, and releases both
            places = await world.until_bound("large", "halves", "small", patience_s=300)
            nodes = {each["metadata"]["name"] for each in await made(world)}
            # By their parts both do not fit on four cards, so that Karpenter makes two nodes.
            assert {places["large"], places["halves"]} == nodes
            assert len(nodes) == 2
            assert (places["old"], places["small"] in nodes) == ("full", True)
            wanted = {"old": [1000], "small": [1000], "large": [1000] * 3, "halves": [500] * 3}

            async def shared() -> bool:
                said = {name: pod["metadata"]["annotations"] for name, pod in (await world.pods()).items()}
                placed = {
                    name: json.loads(each.get(names.PLACEMENT, '{"gpus": []}')) for name, each in said.items()
                }
                return {
                    name: [gpu["milli"] for gpu in each["gpus"]] for name, each in placed.items()
                } == wanted

            await world.until("each has its part", shared)
            await world.check()
            assert sorted(name for name, _ in await world.events("Released")) == ["halves", "large"]
            for name in ("halves", "large", "small"):
                await world.ended(name)
            await empty_nodes_go(world, "0s")

            async def removed() -> bool:
                return not await made(world)

            await world.until("Karpenter removes the empty nodes", removed, 300)
            await empty_nodes_go(world, "Never")
            await world.pod("next")
            await world.until_told("next", "waits for room")
            await world.pod("eager", annotations={names.NEW_NODE: "1s"})
            places = await world.until_bound("eager", "next", patience_s=300)
            (new,) = [each["metadata"]["name"] for each in await made(world)]
            assert (places["eager"], places["next"], places["old"]) == (new, new, "full")
            await world.check()

    async def whole() -> None:
        async with Api(from_kubeconfig(kubeconfig)) as api:
            world = World(api, kubeconfig)
            await world.clean()
            await karpenter.install(world)
            process, kubelets = karpenter.start(), asyncio.create_task(be_kubelets(world))
            try:
                await story(world)
            except BaseException:
                print(karpenter.log.read_text()[-5000:])
                raise
            finally:
                kubelets.cancel()
                process.kill()
                process.wait()

    asyncio.run(asyncio.wait_for(whole(), 900))
