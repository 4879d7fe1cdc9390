"""`berth k8s uninstall` leaves nothing of berth on a cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from berth.cli.app import app
from berth.live.kubernetes import names
from berth.live.kubernetes.access import from_kubeconfig
from berth.live.kubernetes.client import Api
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.server import Server
from tests.live.kubernetes.world import World

Objects = dict[tuple[str, str], dict[str, Any]]


def berth(*words: str, kubeconfig: Path) -> str:
    """Run a command as an operator does, in this process; returns what it printed."""
    done = CliRunner().invoke(app, ["k8s", *words], env={"KUBECONFIG": str(kubeconfig), "COLUMNS": "150"})
    assert done.exit_code == 0, done.output
    return str(done.stdout)


def on(server: Server, what: Callable[[World], Awaitable[Any]]) -> Any:
    """Do something on the cluster as it is."""

    async def whole() -> Any:
        async with Api(from_kubeconfig(server.kubeconfig())) as api:
            return await what(World(api, server.kubeconfig()))

    return asyncio.run(whole())


async def objects_of_every_kind(world: World) -> Objects:
    """All objects by plural, and by namespace and name; without events, which expire by themselves."""
    found: Objects = {}
    groups = json.loads(await world.api.request("GET", "/apis"))["groups"]
    for base in ["/api/v1", *(f"/apis/{each['preferredVersion']['groupVersion']}" for each in groups)]:
        for kind in json.loads(await world.api.request("GET", base))["resources"]:
            if "list" not in kind["verbs"] or kind["name"] in ("events", "componentstatuses"):
                continue
            listed = json.loads(await world.api.request("GET", f"{base}/{kind['name']}", patience_s=60))
            for each in listed["items"] or ():
                meta = each["metadata"]
                found[kind["name"], f"{meta.get('namespace', '')}/{meta['name']}"] = each
    return found


async def is_gated(world: World) -> bool:
    """Whether a new pod that asks for a GPU gets a gate."""
    await world.pod("asks", gates=())
    there = (await world.pods())["asks"]["spec"].get("schedulingGates")
    await world.delete("asks")
    return bool(there)


@pytest.fixture(params=[True, False], ids=["1.36", "before 1.36"])
def policies(request: pytest.FixtureRequest, server: Server, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the API server says that it has policies which change objects."""
    if request.param and not server.is_at_least(36):
        pytest.skip(f"{server.assets.version} has no MutatingAdmissionPolicy")
    asked = Api.get

    async def get(self: Api, path: str, *rest: Any, **more: Any) -> Any:
        found = await asked(self, path, *rest, **more)
        if path == "/apis/admissionregistration.k8s.io/v1" and not request.param:
            kinds = [each for each in found["resources"] if not each["name"].startswith("mutatingadmission")]
            return {**found, "resources": kinds}
        return found

    monkeypatch.setattr(Api, "get", get)
    return bool(request.param)


async def certificates(world: World) -> tuple[str, str]:
    """That of the webhook's Secret, and the one that the API server wants it to show."""
    secret = await world.api.get(f"/api/v1/namespaces/{names.NAMESPACE}/secrets/berth-gate", dict[str, Any])
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/berth-gate"
    (hook,) = (await world.api.get(path, dict[str, Any]))["webhooks"]
    return secret["data"]["tls.crt"], hook["clientConfig"]["caBundle"]


@pytest.mark.slow
def test_an_uninstall_leaves_nothing_of_berth_and_new_pods_get_no_gate(
    play: Played, server: Server, policies: bool
) -> None:
    before: Objects = {}
    kubeconfig, namespace = server.kubeconfig(), f"/api/v1/namespaces/{names.NAMESPACE}"

    async def begin(world: World) -> None:
        await world.node("n1", 1, labels={"berth.dev/gpus": "shared", "zone": "a"})
        await world.pod("shared", milli=250, mem=20_000)
        await world.pod("waits", 2)
        await world.pod("of-kueue", gates=(names.GATE, "kueue.x-k8s.io/admission"))
        before.update(await objects_of_every_kind(world))

    async def end_namespace(world: World) -> None:
        """What Kubernetes' namespace controller does, which does not run here."""
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": names.NAMESPACE}, "spec": {}}
        await world.api.request("PUT", f"{namespace}/finalize", body)

    play(begin)
    install = (
        "install",
        "--image",
        "registry.example/berth:1",
        *(["--claims"] if server.is_at_least(34) else []),
    )
    berth(*install, kubeconfig=kubeconfig)
    if not policies:
        first, shown = on(server, certificates)
        assert first == shown
        assert "MutatingWebhookConfiguration berth-gate is up to date\n" in berth(
            *install, kubeconfig=kubeconfig
        )
        assert on(server, certificates) == (first, first)
    else:
        on(server, lambda world: world.until("the policy is in force", lambda: is_gated(world)))
    said = berth("steerer", "--once", kubeconfig=server.kubeconfig("steerertoken"))
    assert said == "placed 1, advised 0, evicted 0, failed 0\n"

    adds_gate = "MutatingAdmissionPolicy" if policies else "MutatingWebhookConfiguration"
    said = berth(*install, "--mode", "advise", kubeconfig=kubeconfig)
    assert f"{adds_gate} berth-gate deleted\n" in said
    assert "the gate of pod default/waits is lifted\n" in said
    berth(*install, kubeconfig=kubeconfig)
    on(server, lambda world: world.delete("waits"))
    on(server, lambda world: world.pod("waits", 2))
    said = berth("uninstall", kubeconfig=kubeconfig)
    try:
        assert f"{adds_gate} berth-gate deleted\n" in said
        assert "the gate of pod default/waits is lifted\n" in said
        assert "the labels of node n1 are removed\n" in said
        assert "the resources of node n1 are removed\n" in said
        assert not on(server, is_gated)
        left: Objects = on(server, objects_of_every_kind)
        ours = {key for key in left if "berth" in "".join(key)}
        # The Lease goes with its namespace.
        assert ours | (left.keys() - before.keys()) == {
            ("namespaces", f"/{names.NAMESPACE}"),
            ("leases", f"{names.NAMESPACE}/{names.LEASE}"),
        }
        assert "deletionTimestamp" in left["namespaces", f"/{names.NAMESPACE}"]["metadata"]
        counted = left["nodes", "/n1"]["status"]["capacity"].keys()
        assert {key for key in counted if "berth" in key} == {
            names.RESOURCE
        }  # its plugin's, and so the kubelet's
        node = left["nodes", "/n1"]["metadata"]
        assert (node["labels"], node.get("annotations", {})) == ({"zone": "a"}, {})
        gates = {
            name: [
                gate["name"] for gate in left["pods", f"default/{name}"]["spec"].get("schedulingGates", ())
            ]
            for name in ("shared", "waits", "of-kueue")
        }
        assert gates == {"shared": [], "waits": [], "of-kueue": ["kueue.x-k8s.io/admission"]}
    finally:
        on(server, end_namespace)
    assert berth("uninstall", kubeconfig=kubeconfig) == ""
