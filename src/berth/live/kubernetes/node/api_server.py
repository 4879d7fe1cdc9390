"""The API server for one node, over the thin client: its objects become the values of `cluster_api`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from berth.errors import ApiError, KubernetesError
from berth.live.kubernetes.client import MERGE_PATCH, About, Api, event
from berth.live.kubernetes.consumed import consumed_of
from berth.live.kubernetes.names import DRIVER, RESOURCE, controller_name
from berth.live.kubernetes.node.cluster_api import Claim, ClaimDevice, Container, Pod, Slice
from berth.live.kubernetes.quantities import cpu_milli, mem_mib, whole

RESOURCES = "/apis/resource.k8s.io/v1"
PATIENCE_S = 5.0


class ApiServer:
    """A `NodeApi` that asks the real one."""

    def __init__(self, api: Api, node: str) -> None:
        self._api, self._node = api, node
        self._node_uid = ""
        self.has_claims = False
        """Whether `resource.k8s.io/v1` is served; `find_claims` finds out."""

    async def find_claims(self) -> bool:
        """Whether the cluster has resource claims in the version that is known here."""
        self.has_claims = await self._find(RESOURCES, patience_s=30) is not None
        return self.has_claims

    async def pod(self, namespace: str, name: str) -> Pod | None:
        """The pod of this name; None where there is none."""
        told = await self._find(f"/api/v1/namespaces/{namespace}/pods/{name}")
        return None if told is None else pod_of(told)

    async def pods(self) -> Sequence[Pod]:
        """All pods of this node."""
        params = {
            "fieldSelector": f"spec.nodeName={self._node}",
            "resourceVersion": "0",
        }  # of the server's cache
        told = msgspec.json.decode(await self._ask("GET", "/api/v1/pods", params=params))
        return [pod_of(each) for each in told["items"]]

    async def claim(self, namespace: str, name: str) -> Claim | None:
        """The claim of this name; None where there is none."""
        told = await self._find(f"{RESOURCES}/namespaces/{namespace}/resourceclaims/{name}")
        return None if told is None else claim_of(told)

    async def slices(self) -> Sequence[Slice]:
        """The ResourceSlices that berth's driver has for this node."""
        path = f"{RESOURCES}/resourceslices"
        selector = {"fieldSelector": f"spec.driver={DRIVER},spec.nodeName={self._node}"}
        try:
            text = await self._ask("GET", path, params=selector)
        except ApiError as error:
            if error.status != 400:  # a custom resource of this name can be selected by its name alone
                raise
            text = await self._ask("GET", path)
        told = msgspec.json.decode(text)
        return [
            Slice(each["metadata"]["name"], each["spec"]["pool"].get("generation", 0), each["spec"])
            for each in told["items"]
            if each["spec"].get("driver") == DRIVER and each["spec"].get("nodeName") == self._node
        ]

    async def write_slice(self, name: str, spec: Mapping[str, Any]) -> None:
        """Make or replace a ResourceSlice, which goes when the node goes."""
        path = f"{RESOURCES}/resourceslices/{name}"
        there = await self._find(path)
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": await self._uid()}
        body: dict[str, Any] = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name, "ownerReferences": [owner]},
            "spec": dict(spec),
        }
        if there is None:
            await self._ask("POST", f"{RESOURCES}/resourceslices", body)
        else:
            body["metadata"]["resourceVersion"] = there["metadata"]["resourceVersion"]
            await self._ask("PUT", path, body)

    async def try_slice(self, name: str, spec: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """What the API server would keep of a new ResourceSlice, without one being made; None where it refuses it."""
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name},
            "spec": dict(spec),
        }
        try:
            told = await self._ask("POST", f"{RESOURCES}/resourceslices", body, params={"dryRun": "All"})
        except ApiError as error:
            if error.status not in (400, 422):
                raise
            return None
        kept: Mapping[str, Any] = msgspec.json.decode(told)["spec"]
        return kept

    async def remove_slice(self, name: str) -> None:
        """Take a ResourceSlice away."""
        await self._gone_is_fine("DELETE", f"{RESOURCES}/resourceslices/{name}")

    async def label_node(self, labels: Mapping[str, str | None]) -> None:
        """Set labels of this node; None takes one away. ApiError where the kubelet has not made the node yet."""
        body = {"metadata": {"labels": dict(labels)}}
        await self._ask("PATCH", f"/api/v1/nodes/{self._node}", body, content_type=MERGE_PATCH)

    async def advertise(self, resources: Mapping[str, str | None]) -> None:
        """Set extended resources of this node that no plugin counts; None takes one away. The kubelet keeps them."""
        body = {"status": {"capacity": dict(resources), "allocatable": dict(resources)}}
        await self._ask("PATCH", f"/api/v1/nodes/{self._node}/status", body, content_type=MERGE_PATCH)

    async def annotate(self, pod: Pod, annotations: Mapping[str, str]) -> None:
        """Set annotations of a pod, if it is still the same one."""
        await self._patch(_path(pod), {"metadata": {"uid": pod.uid, "annotations": dict(annotations)}})

    async def tell(self, pod: Pod, reason: str, message: str) -> None:
        """Write a warning event about a pod."""
        about = About(pod.namespace, pod.name, pod.uid)
        body = event(about, reason, message, f"berth-node on {self._node}")
        await self._ask("POST", f"/api/v1/namespaces/{pod.namespace}/events", body)

    async def evict(self, pod: Pod) -> None:
        """Delete a pod with its own grace, if it is still the same one."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": pod.uid}}
        await self._gone_is_fine("DELETE", _path(pod), body)

    async def _ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        patience_s: float = PATIENCE_S,
    ) -> bytes:
        return await self._api.request(
            method, path, body, params=params, content_type=content_type, patience_s=patience_s
        )

    async def _find(self, path: str, *, patience_s: float = PATIENCE_S) -> dict[str, Any] | None:
        try:
            text = await self._ask("GET", path, patience_s=patience_s)
            found: dict[str, Any] = msgspec.json.decode(text)
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return found

    async def _gone_is_fine(self, method: str, path: str, body: object = None) -> None:
        try:
            await self._ask(method, path, body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def _patch(self, path: str, body: object) -> None:
        try:
            await self._ask("PATCH", path, body, content_type=MERGE_PATCH)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def _uid(self) -> str:
        if not self._node_uid:
            told = await self._find(f"/api/v1/nodes/{self._node}")
            if told is None:
                raise KubernetesError(f"the cluster has no node '{self._node}'; name it by --node-name")
            self._node_uid = told["metadata"]["uid"]
        return self._node_uid


def pod_of(told: Mapping[str, Any]) -> Pod:
    """A pod of the API's JSON."""
    meta, spec, status = told["metadata"], told["spec"], told.get("status", {})
    containers = [
        Container(
            each["name"],
            whole((each.get("resources", {}).get("limits") or {}).get(RESOURCE, 0)),
            init and each.get("restartPolicy") != "Always",
            _program(each),
            cpu_milli(_requested(each, "cpu")),
            mem_mib(_requested(each, "memory")),
        )
        for init, key in ((True, "initContainers"), (False, "containers"))
        for each in spec.get(key) or ()
    ]
    claims = [
        each.get("resourceClaimName") or ""
        for each in (*(status.get("resourceClaimStatuses") or ()), *(spec.get("resourceClaims") or ()))
    ]
    ended = [
        each["state"]["terminated"]
        for each in status.get("containerStatuses") or ()
        if "terminated" in each.get("state", {})
    ]
    owners = meta.get("ownerReferences") or ()
    return Pod(
        meta["namespace"],
        meta["name"],
        meta["uid"],
        spec.get("nodeName", ""),
        status.get("phase", ""),
        "deletionTimestamp" in meta,
        meta.get("annotations") or {},
        tuple(containers),
        _ms(meta.get("creationTimestamp")) or 0,
        tuple(filter(None, claims)),
        _ms(status.get("startTime")),
        max((at for each in ended if (at := _ms(each.get("finishedAt")))), default=None),
        max((int(each.get("exitCode", 0)) for each in ended), default=None),
        next((controller_name(each["kind"], each["name"]) for each in owners if each.get("controller")), ""),
    )


def _requested(container: Mapping[str, Any], resource: str) -> str:
    """What it requests of a resource of the node; its limit if it states no request, as for Kubernetes itself."""
    resources = container.get("resources", {})
    found = (resources.get(key, {}).get(resource) for key in ("requests", "limits"))
    return next((str(each) for each in found if each is not None), "0")


def _program(container: Mapping[str, Any]) -> str:
    """The image and the first word, and what tells the rest from other words: those may hold passwords."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    told = [container.get("image", ""), *words[:1]]
    if words[1:]:
        told.append(f"#{hashlib.sha256(msgspec.json.encode(words)).hexdigest()[:12]}")
    return " ".join(told)[:500]


def _ms(text: str | None) -> int | None:
    return None if not text else round(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)


def claim_of(told: Mapping[str, Any]) -> Claim:
    """A claim of the API's JSON, with what was allocated of berth's driver."""
    meta, allocation = told["metadata"], (told.get("status") or {}).get("allocation")
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


def _path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
