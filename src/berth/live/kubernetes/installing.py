"""Put berth on a cluster and take it out: manifests, the gates of pods that wait, what agents wrote into nodes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import msgspec

from berth.errors import ApiError, KubernetesError
from berth.live.kubernetes import names, objects
from berth.live.kubernetes.client import Api

GATED_S = 10.0
"""How long to wait for API servers to stop adding the gate: they take in a deleted policy after about a second."""


async def apply(api: Api, manifest: dict[str, Any]) -> str:
    """Make or change one object; returns what was done, in words. Raises ApiError."""
    kind, name, path = manifest["kind"], manifest["metadata"]["name"], _path(manifest)
    try:
        await api.request("POST", path, manifest, patience_s=10)
    except ApiError as error:
        if error.status != 409:
            raise
        await api.request("PATCH", f"{path}/{name}", manifest, patience_s=10)
        return f"{kind} {name} is up to date"
    return f"{kind} {name} made"


async def check_namespace(api: Api) -> None:
    """Raise KubernetesError while the namespace of a berth that was taken out is being deleted."""
    there = await api.find(f"/api/v1/namespaces/{names.NAMESPACE}", objects.OfMeta, missing=(403, 404))
    if there is not None and there.metadata.deletion_timestamp is not None:
        raise KubernetesError(
            f"namespace {names.NAMESPACE} is still being deleted; run it again when"
            f" `kubectl get namespace {names.NAMESPACE}` no longer finds it"
        )


async def gate_tls(api: Api, make: Callable[[], tuple[str, str]]) -> tuple[str, str] | None:
    """Certificate and key (base64) of the webhook that adds the gate: those on the cluster, else what `make` makes.
    None if the API server has policies that can add it. Raises ApiError."""
    if "mutatingadmissionpolicies" in await api.kinds("admissionregistration.k8s.io/v1"):
        return None
    path = f"/api/v1/namespaces/{names.NAMESPACE}/secrets/{names.GATING}"
    secret = await api.find(path, objects.ConfigMap)
    return make() if secret is None else (secret.data["tls.crt"], secret.data["tls.key"])


async def take_away(api: Api, manifest: dict[str, Any]) -> str:
    """Delete one object; returns what was done, in words, empty if it is not there. Raises ApiError."""
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    options = {"propagationPolicy": "Background"}
    is_there = await api.change("DELETE", f"{_path(manifest)}/{name}", options, patience_s=10)
    return f"{kind} {name} deleted" if is_there else ""


async def lift_gates(api: Api) -> list[str]:
    """Lift the gates of all pods once no new pod gets one: kube-scheduler alone decides then. Returns what was done, in
    words. Raises ApiError."""
    done = []
    await _until_ungated(api)
    async for _, pods in api.list("/api/v1/pods", objects.Pod):
        for pod in pods:
            gates = [gate for gate in pod.spec.scheduling_gates if gate.name != names.GATE]
            if len(gates) == len(pod.spec.scheduling_gates):
                continue
            meta = pod.metadata
            body = {"metadata": {"uid": meta.uid}, "spec": {"schedulingGates": gates or None}}
            path = names.pod_path(meta.namespace, meta.name)
            if await api.change("PATCH", path, body, patience_s=10):
                done.append(f"the gate of pod {meta.namespace}/{meta.name} is lifted")
    return done


async def clean(api: Api) -> list[str]:
    """Lift all gates, and remove what the agents wrote into nodes. Returns what was done, in words. Raises ApiError."""
    done = await lift_gates(api)
    async for _, nodes in api.list("/api/v1/nodes", objects.Node):
        for node in nodes:
            name, path = node.metadata.name, f"/api/v1/nodes/{node.metadata.name}"
            ours = {key: None for key in node.metadata.labels if key.startswith(_PREFIX)}
            body = {"metadata": {"labels": ours}}
            if ours and await api.change("PATCH", path, body, patience_s=10):
                done.append(f"the labels of node {name} are removed")
            counted = dict.fromkeys(_COUNTED & node.status.allocatable.keys())
            body = {"status": {"capacity": counted, "allocatable": counted}}
            if counted and await api.change("PATCH", f"{path}/status", body, patience_s=10):
                done.append(f"the resources of node {name} are removed")
    if await api.kinds(names.CLAIMS_API):
        async for _, slices in api.list(_SLICES, objects.ResourceSlice):
            for each in slices:
                path = f"{_SLICES}/{each.metadata.name}"
                if each.spec.driver == names.DRIVER and await api.change("DELETE", path, patience_s=10):
                    done.append(f"ResourceSlice {each.metadata.name} deleted")
    return done


_PREFIX = "berth.dev/"
_COUNTED = {names.ASKED_MILLI, names.ASKED_MEM_MIB}
_SLICES = f"/apis/{names.CLAIMS_API}/resourceslices"


async def _until_ungated(api: Api) -> None:
    """Wait until new pods get no gate, because a gate would stay; for `GATED_S` if the API server does not say."""
    container = {"name": "main", "image": "none", "resources": {"limits": {names.RESOURCE: "1"}}}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "berth-uninstall-tries"},
        "spec": {"containers": [container]},
    }
    loop = asyncio.get_running_loop()
    end_s = loop.time() + GATED_S
    while loop.time() < end_s:
        try:
            text = await api.request(
                "POST", "/api/v1/namespaces/default/pods", body, params={"dryRun": "All"}, patience_s=10
            )
            made = msgspec.json.decode(text, type=objects.Pod)
        except ApiError:  # such as a rule of that namespace
            await asyncio.sleep(0.5)
            continue
        if names.GATE not in [gate.name for gate in made.spec.scheduling_gates]:
            return
        await asyncio.sleep(0.1)


def _path(manifest: dict[str, Any]) -> str:
    version, meta = manifest["apiVersion"], manifest["metadata"]
    base = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    if "namespace" in meta:
        base += f"/namespaces/{meta['namespace']}"
    kind = re.sub("y$", "ie", re.sub("s$", "se", manifest["kind"].lower()))
    return f"{base}/{kind}s"
