"""What the node side asks of the API server, and the values in which it gets the answers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from berth.errors import KubernetesError
from berth.live.kubernetes import objects
from berth.live.kubernetes.client import Api, event
from berth.live.kubernetes.names import CLAIMS_API, DRIVER, GANG, RESOURCE, application_of, pod_path
from berth.live.kubernetes.pod_requests import (
    consumed_of,
    controller_of,
    moment_ms,
    pod_group,
    pod_resources,
    whole,
)

RESOURCES = f"/apis/{CLAIMS_API}"
SLICES = f"{RESOURCES}/resourceslices"
PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class Container:
    name: str
    gpus: int
    """Units of `berth.dev/gpu` that it asks for."""


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod, as the API server has it."""

    namespace: str
    name: str
    uid: str
    node: str
    phase: str
    annotations: Mapping[str, str]
    containers: tuple[Container, ...]
    application: str = ""
    """The name under which its profile and its run times are learned."""
    program: str = ""
    """Image and command of its first container that asks to run on."""
    probed: bool = False
    """Whether the kubelet restarts a container of it that does not answer."""
    in_gang: bool = False
    """Whether it starts together with others."""
    priority: int = 0
    cpu_milli: int = 0
    mem_mib: int = 0
    """CPU and memory of the node that it requests."""
    created_ms: int = 0
    claims: tuple[str, ...] = ()
    """Names of the claims that it uses."""
    start_ms: int | None = None
    end_ms: int | None = None
    """When its last container ended."""
    exit_code: int | None = None
    """The highest of its containers'; None while none has ended."""

    @property
    def ended(self) -> bool:
        """Whether none of its containers will run again."""
        return self.phase in ("Succeeded", "Failed")

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ClaimDevice:
    request: str
    pool: str
    device: str
    share: str = ""
    """The id of its share, where several claims share the device."""
    mem_mib: int | None = None
    """None: all that the device has."""
    milli: int | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """One ResourceClaim, with what berth's driver was allocated of it."""

    namespace: str
    name: str
    uid: str
    devices: tuple[ClaimDevice, ...]
    allocated: bool
    burst: bool = False
    priority: str = "normal"


class ApiServer:
    """The API server, for one node. Each call raises `KubernetesError` where it cannot be asked."""

    def __init__(self, api: Api, node: str) -> None:
        self._api, self._node = api, node
        self._node_uid = ""
        self.has_claims = False
        """Whether `resource.k8s.io/v1` is served; `find_claims` finds out."""

    async def find_claims(self) -> None:
        self.has_claims = bool(await self._api.kinds(CLAIMS_API))

    async def pod(self, namespace: str, name: str) -> Pod | None:
        answer = await self._find(pod_path(namespace, name))
        return None if answer is None else pod_of(answer)

    async def pods(self) -> Sequence[Pod]:
        """All pods of this node, as the server's cache has them."""
        params = {"fieldSelector": f"spec.nodeName={self._node}", "resourceVersion": "0"}
        answer = msgspec.json.decode(await self._ask("GET", "/api/v1/pods", params=params))
        return [pod_of(each) for each in answer["items"]]

    async def claim(self, namespace: str, name: str) -> Claim | None:
        answer = await self._find(f"{RESOURCES}/namespaces/{namespace}/resourceclaims/{name}")
        return None if answer is None else claim_of(answer)

    async def slices(self) -> dict[str, int]:
        """The ResourceSlices that berth's driver has for this node: their generations by their names."""
        selector = {"fieldSelector": f"spec.driver={DRIVER},spec.nodeName={self._node}"}
        answer = msgspec.json.decode(await self._ask("GET", SLICES, params=selector))
        return {
            each["metadata"]["name"]: each["spec"]["pool"].get("generation", 0) for each in answer["items"]
        }

    async def write_slice(self, name: str, spec: Mapping[str, Any]) -> None:
        """Make or replace a ResourceSlice, which goes when the node goes."""
        path = f"{SLICES}/{name}"
        there = await self._find(path)
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": await self._uid()}
        meta: dict[str, Any] = {"name": name, "ownerReferences": [owner]}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": meta, "spec": spec}
        if there is None:
            await self._ask("POST", SLICES, body)
        else:
            meta["resourceVersion"] = there["metadata"]["resourceVersion"]
            await self._ask("PUT", path, body)

    async def remove_slice(self, name: str) -> None:
        await self._api.change("DELETE", f"{SLICES}/{name}", patience_s=PATIENCE_S)

    async def label_node(self, labels: Mapping[str, str | None]) -> None:
        """Set labels of this node; None takes one away. ApiError where the kubelet has not made the node yet."""
        body = {"metadata": {"labels": dict(labels)}}
        await self._ask("PATCH", f"/api/v1/nodes/{self._node}", body)

    async def advertise(self, resources: Mapping[str, str | None]) -> None:
        """Set extended resources of this node that no plugin counts; None takes one away. The kubelet keeps them."""
        body = {"status": {"capacity": dict(resources), "allocatable": dict(resources)}}
        await self._ask("PATCH", f"/api/v1/nodes/{self._node}/status", body)

    async def annotate(self, pod: Pod, annotations: Mapping[str, str]) -> None:
        """Set annotations of a pod, if it is still the same one."""
        body = {"metadata": {"uid": pod.uid, "annotations": dict(annotations)}}
        await self._api.change("PATCH", pod_path(pod.namespace, pod.name), body, patience_s=PATIENCE_S)

    async def warn(self, pod: Pod, reason: str, message: str) -> None:
        """Write a warning event about a pod."""
        body = event(pod.namespace, pod.name, pod.uid, reason, message, f"berth-node on {self._node}")
        await self._ask("POST", f"/api/v1/namespaces/{pod.namespace}/events", body)

    async def _ask(self, method: str, path: str, body: object = None, **more: Any) -> bytes:
        return await self._api.request(method, path, body, patience_s=PATIENCE_S, **more)

    async def _find(self, path: str) -> dict[str, Any] | None:
        return await self._api.find(path, dict[str, Any], patience_s=PATIENCE_S)

    async def _uid(self) -> str:
        if not self._node_uid:
            answer = await self._find(f"/api/v1/nodes/{self._node}")
            if answer is None:
                raise KubernetesError(f"the cluster has no node '{self._node}'; name it by --node-name")
            self._node_uid = answer["metadata"]["uid"]
        return self._node_uid


def pod_of(manifest: Mapping[str, Any]) -> Pod:
    pod = msgspec.convert(manifest, objects.Pod)
    meta, spec, status = manifest["metadata"], manifest["spec"], manifest.get("status", {})
    containers = [
        Container(each.name, whole(each.resources.limits.get(RESOURCE, 0)))
        for each in (*pod.spec.init_containers, *pod.spec.containers)
    ]
    claims = [
        each.get("resourceClaimName") or ""
        for each in (*(status.get("resourceClaimStatuses") or ()), *(spec.get("resourceClaims") or ()))
    ]
    ended = [each.state.terminated for each in pod.status.container_statuses if each.state.terminated]
    takes, program = dict(pod_resources(pod)), _program(spec["containers"][0])
    named = application_of(meta["namespace"], pod.metadata.annotations, controller_of(pod.metadata))
    return Pod(
        meta["namespace"],
        meta["name"],
        meta["uid"],
        pod.spec.node_name,
        pod.status.phase,
        pod.metadata.annotations,
        tuple(containers),
        named or program.partition(" ")[0],
        program,
        any("livenessProbe" in each for each in (*spec["containers"], *(spec.get("initContainers") or ()))),
        GANG in pod.metadata.annotations or pod_group(pod) is not None,
        pod.spec.priority,
        takes.get("cpu", 0),
        takes.get("memory", 0),
        moment_ms(pod.metadata.creation_timestamp) or 0,
        tuple(filter(None, claims)),
        moment_ms(pod.status.start_time),
        max((at for each in ended if (at := moment_ms(each.finished_at))), default=None),
        max((each.exit_code for each in ended), default=None),
    )


def _program(container: Mapping[str, Any]) -> str:
    """The image and the first word, and what tells the rest from other words: those may hold passwords."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    parts = [container.get("image", ""), *words[:1]]
    if words[1:]:
        parts.append(f"#{hashlib.sha256(msgspec.json.encode(words)).hexdigest()[:12]}")
    return " ".join(parts)[:500]


def claim_of(manifest: Mapping[str, Any]) -> Claim:
    """A claim of the API's JSON, with what was allocated of berth's driver."""
    meta, allocation = manifest["metadata"], (manifest.get("status") or {}).get("allocation")
    devices = (allocation or {}).get("devices") or {}
    found = [
        ClaimDevice(
            each["request"],
            each["pool"],
            each["device"],
            each.get("shareID", ""),
            *consumed_of(each.get("consumedCapacity") or {}),
        )
        for each in devices.get("results") or ()
        if each["driver"] == DRIVER
    ]
    options: dict[str, Any] = {}
    for each in devices.get("config") or ():
        opaque = each.get("opaque") or {}
        if opaque.get("driver") == DRIVER and isinstance(opaque.get("parameters"), dict):
            options |= opaque["parameters"]
    burst, priority = bool(options.get("burst", False)), str(options.get("priority", "normal"))
    if priority not in ("low", "normal"):
        raise KubernetesError(
            f"the claim {meta['namespace']}/{meta['name']} asks for the priority '{priority}'; there are low and normal"
        )
    return Claim(
        meta["namespace"], meta["name"], meta["uid"], tuple(found), allocation is not None, burst, priority
    )
