"""The nodes' agents have the rights that they use, and no other; their DaemonSet is what they need."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

from berth.errors import ApiError
from berth.live.kubernetes.access import from_kubeconfig
from berth.live.kubernetes.client import Api
from berth.live.kubernetes.installing import apply
from berth.live.kubernetes.manifests import Install, manifests
from berth.live.kubernetes.node.api_server import ApiServer
from berth.live.kubernetes.node_manifests import NODE_RULES, device_class
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.server import Server
from tests.live.kubernetes.test_install import right
from tests.live.kubernetes.world import World


def test_an_agent_has_every_right_that_it_uses_and_no_other(
    play: Played, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: set[tuple[str, str]] = set()
    real = Api._open

    def note(self: Api, method: str, path: str, **keywords: Any) -> Any:
        if self._agent == "node":
            used.add(right(method, path, keywords.get("params") or {}))
        return real(self, method, path, **keywords)

    async def everything(api: ApiServer) -> None:
        pod = await api.pod("default", "one")
        assert pod is not None
        assert [each.name for each in await api.pods()] == ["one"]
        await api.label_node({"berth.dev/gpu-count": "2"})
        await api.annotate(pod, {"berth.dev/measured": "{}"})
        await api.tell(pod, "GpuLimitLost", "a test")
        await api.evict(pod)

    async def story(world: World) -> None:
        for each in [each for made in manifests(Install()).values() for each in made]:
            await apply(world.api, each)
        await world.node("here", 1)
        await world.pod("one", node="here")
        monkeypatch.setattr(Api, "_open", note)
        async with Api(from_kubeconfig(server.kubeconfig("nodetoken")), agent="node") as api:
            await everything(ApiServer(api, "here"))
            with pytest.raises(ApiError, match=r"cannot list resource .secrets"):
                await api.request("GET", "/api/v1/secrets")
            with contextlib.suppress(ApiError):
                await api.request("GET", "/api/v1/nodes/here")  # as for the owner of a slice
        node = json.loads(await world.api.request("GET", "/api/v1/nodes/here"))
        assert node["metadata"]["labels"]["berth.dev/gpu-count"] == "2"

    play(story)
    given = {
        (resource, verb)
        for rule in NODE_RULES
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if "resource.k8s.io" not in rule["apiGroups"]
    }
    assert used - {("secrets", "list")} == given


def test_the_daemon_set_sees_the_hosts_folders_at_their_own_paths() -> None:
    (made,) = manifests(Install(fake_gpus="2xA100-80G"))["node"]
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
    assert "device-class" not in manifests(Install())
    assert manifests(Install(claims=True))["device-class"] == [device_class()]
