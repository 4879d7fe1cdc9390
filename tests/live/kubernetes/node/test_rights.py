"""The nodes' agents have the rights that they use, and no other; their DaemonSet is what they need."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from berth.live.kubernetes.installing import apply
from berth.live.kubernetes.manifests import Install, manifests
from berth.live.kubernetes.names import DRIVER, PLACED_UID, PLACEMENT, RESOURCE
from berth.live.kubernetes.node.api_server import ApiServer
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.node.containers import of_device_plugin
from tests.live.kubernetes.node.test_service import node, share
from tests.live.kubernetes.server import Server
from tests.live.kubernetes.test_install import IMAGE
from tests.live.kubernetes.world import World


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="the node's agent runs as root")
def test_an_agent_uses_each_right_that_it_has_and_no_other(
    play: Played, server: Server, folder: Path
) -> None:
    """What the program itself asks, by the API server's own audit log; a refusal there fails the test."""
    server.audit.unlink(missing_ok=True)
    server.stop_api()
    server.start_api()
    install = Install(IMAGE, claims=True)

    async def story(world: World) -> None:
        for each in [each for made in manifests(install).values() for each in made]:
            # Policies ask for the node that a token was made for, which this server's do not name, and gate pods.
            if "AdmissionPolicy" not in each["kind"]:
                await apply(world.api, each)
        await on_a_node(world)

    async def on_a_node(world: World) -> None:
        agents = World(world.api, server.kubeconfig("nodetoken"))
        path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"

        async def used(*rights: tuple[str, str]) -> bool:
            return set(rights) <= server.rights_used("berth-node")

        async with node(agents, folder, "--dra", "1") as (running, kubelet):
            await kubelet.until_registered(RESOURCE)
            uid = await world.pod("one", scheduler="nobody", gates=())
            placed = json.dumps({"gpus": [{"index": 0, "uuid": None, "milli": 400, "mem_mib": 7000}]})
            notes = {PLACEMENT: placed, PLACED_UID: uid}
            binding = {
                "kind": "Binding", "apiVersion": "v1", "target": {"kind": "Node", "name": "here"},
                "metadata": {"name": "one", "uid": uid, "annotations": notes},
            }  # fmt: skip
            await world.api.request("POST", "/api/v1/namespaces/default/pods/one/binding", binding)
            pod = await ApiServer(world.api, "here").pod("default", "one")
            assert pod is not None
            await kubelet.admit(pod, RESOURCE)
            given = await kubelet.pre_start(pod, "main", RESOURCE)
            await share(of_device_plugin(given.answer), folder / "scratch")  # it asks for more than its part
            await running.until(lambda: used(("events", "create")))
            kubelet.end(pod)
            await world.ended("one", "Failed")
            await running.until(lambda: used(("pods", "patch")))
            claim = {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": "blue"},
            }
            made = json.loads(await world.api.request("POST", path, {**claim, "spec": {}}))

            async def registered() -> bool:
                await kubelet.find_drivers()
                return DRIVER in kubelet.drivers

            await running.until(registered)
            await kubelet.prepare(DRIVER, [("default", "blue", made["metadata"]["uid"])])
            await running.until(lambda: used(("resourceslices", "create")))
            (folder / "xids").write_text("1 79\n")
            await running.until(lambda: used(("resourceslices", "update"), ("resourceclaims", "get")))
        async with node(agents, folder) as (running, _):
            await running.until(lambda: used(("resourceslices", "delete")))

    play(story)
    given = {
        (resource, verb)
        for rule in manifests(Install(IMAGE))["node-rights"][1]["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert server.rights_used("berth-node") == given


def test_no_agent_may_delete_pods() -> None:
    role = next(each for each in manifests(Install(IMAGE))["node-rights"] if each["kind"] == "ClusterRole")
    rights = {verb for rule in role["rules"] if "pods" in rule["resources"] for verb in rule["verbs"]}
    assert rights == {"get", "list", "patch"}


def test_the_daemon_set_sees_the_hosts_folders_at_their_own_paths() -> None:
    (made,) = manifests(Install(IMAGE, fake_gpus="2xA100-80G"))["node"]
    spec = made["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["command"] == ["berth", "k8s", "node", "--metrics", ":9400", "--fake-gpus", "2xA100-80G"]
    inside = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert inside == {each["name"]: each["hostPath"]["path"] for each in spec["volumes"]}
    assert {"/var/lib/kubelet", "/var/lib/berth", "/run/berth", "/var/run/cdi", "/dev"} == set(
        inside.values()
    )
    assert spec["hostPID"]


def test_the_device_class_is_made_where_it_is_asked_for() -> None:
    assert "device-class" not in manifests(Install(IMAGE))
    made = manifests(Install(IMAGE, claims=True))["device-class"]
    assert [each["metadata"]["name"] for each in made] == [DRIVER]
