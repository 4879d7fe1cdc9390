"""A cluster of a test: nodes and pods on the real API server, and what is seen of them from outside."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from berth.errors import ApiError
from berth.knowledge import make_knowledge
from berth.live.driver.warming import warm_up
from berth.live.kubernetes import names
from berth.live.kubernetes.access import from_kubeconfig
from berth.live.kubernetes.client import Api
from berth.live.kubernetes.pod_site import Settings
from berth.live.kubernetes.steering import Options, Steering

NAMESPACE = "default"
_WARM: set[str] = set()
"""Policies of which all is compiled in this process."""
NOW = {"gracePeriodSeconds": 0}


class World:
    """What tests do to a cluster, and what they see."""

    def __init__(self, api: Api, kubeconfig: Path) -> None:
        self.api = api
        self.kubeconfig = kubeconfig
        self._running: list[asyncio.Task[None]] = []

    async def clean(self) -> None:
        """Take away all that earlier tests have left."""
        for path in (
            "/api/v1/namespaces/default/pods",
            "/api/v1/namespaces/other/pods",
            "/api/v1/nodes",
            "/api/v1/namespaces/default/events",
            f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases",
            f"/api/v1/namespaces/{names.NAMESPACE}/configmaps",
            f"/api/v1/namespaces/{names.NAMESPACE}/events",
        ):
            await self.api.request("DELETE", path, NOW, patience_s=60)
        kinds = ("admissionpolicybindings", "admissionpolicies")
        for kind in [f"{sort}{kind}" for kind in kinds for sort in ("validating", "mutating")]:
            try:
                await self.api.request("DELETE", f"/apis/admissionregistration.k8s.io/v1/{kind}", NOW)
            except ApiError as error:
                if error.status != 404:  # before 1.36 there is none that mutates
                    raise
        for namespace in ("default", "other", names.NAMESPACE):
            await self.make("/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": namespace}})
        await self.until("no policy of an earlier test gates or refuses a pod", self._takes_pods)

    async def _takes_pods(self) -> bool:
        """Whether the API server takes a pod as it is: it forgets a policy a moment after that is deleted."""
        asks = {names.RESOURCE: "1"}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "probe", "annotations": {names.ASKED_MILLI: "500", names.PLACEMENT: "{}"}},
            "spec": {
                "containers": [
                    {"name": "main", "image": "busybox", "resources": {"requests": asks, "limits": asks}}
                ]
            },
        }
        path = f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All"
        taken = json.loads(await self.api.request("POST", path, body))
        return "schedulingGates" not in taken["spec"]

    async def make(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Post an object; nothing if there is one of its name."""
        try:
            made: dict[str, Any] = json.loads(
                await self.api.request("POST", path, {"apiVersion": "v1", **body}, patience_s=60, limit_s=60)
            )
        except ApiError as error:
            if error.status != 409:
                raise
            return {}
        return made

    async def node(
        self,
        name: str,
        gpus: int = 2,
        *,
        model: str = "A100-80",
        mem_mib: int = 81_920,
        cpu: str = "64",
        memory: str = "256Gi",
        pods: str = "110",
        labels: dict[str, str] | None = None,
        taints: list[dict[str, str]] | None = None,
        unschedulable: bool = False,
        resources: dict[str, str] | None = None,
    ) -> None:
        """Post a node that stays as it is."""
        of_gpus = {
            names.LABEL_GPU_COUNT: str(gpus),
            names.LABEL_GPU_MODEL: model,
            names.LABEL_GPU_MEMORY_MIB: str(mem_mib),
        }
        units = {
            names.RESOURCE: str(names.SLOTS_PER_GPU * gpus),
            names.ASKED_MILLI: str(1000 * gpus),
            names.ASKED_MEM_MIB: str(mem_mib * gpus),
        }
        there = {"cpu": cpu, "memory": memory, "pods": pods, **(units if gpus else {}), **(resources or {})}
        await self.make(
            "/api/v1/nodes",
            {
                "kind": "Node",
                "metadata": {"name": name, "labels": {**(of_gpus if gpus else {}), **(labels or {})}},
                "spec": {"taints": taints or [], "unschedulable": unschedulable},
                "status": {
                    "allocatable": there,
                    "capacity": there,
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            },
        )

    async def pod(
        self,
        name: str,
        gpus: int = 1,
        *,
        milli: int | str | None = None,
        mem: int | str | None = None,
        namespace: str = NAMESPACE,
        scheduler: str = "default-scheduler",
        gates: Sequence[str] = (names.GATE,),
        cpu: str = "100m",
        memory: str = "64Mi",
        annotations: dict[str, str] | None = None,
        labels: dict[str, str] | None = None,
        resources: dict[str, str] | None = None,
        pod_resources: dict[str, Any] | None = None,
        ports: Sequence[dict[str, int]] = (),
        node: str | None = None,
        owners: Sequence[dict[str, Any]] = (),
        **spec: Any,
    ) -> str:
        """Post a pod that berth is to steer, unless it has a node or no gates; returns its uid."""
        said = dict(annotations or {})
        if milli is not None:
            said[names.ASKED_MILLI] = str(milli)
        if mem is not None:
            said[names.ASKED_MEM_MIB] = str(mem)
        takes = {
            "cpu": cpu,
            "memory": memory,
            **({names.RESOURCE: str(gpus)} if gpus else {}),
            **(resources or {}),
        }
        container: dict[str, Any] = {
            "name": "main", "image": "busybox", "ports": list(ports), "resources": {"requests": takes, "limits": takes},
        }  # fmt: skip
        if pod_resources is not None:
            spec["resources"] = pod_resources
        body: dict[str, Any] = {
            "kind": "Pod",
            "metadata": {
                "name": name, "annotations": said, "labels": labels or {}, "ownerReferences": list(owners),
            },
            "spec": {
                "schedulerName": scheduler, "terminationGracePeriodSeconds": 0, "containers": [container], **spec,
            },
        }  # fmt: skip
        if node is not None:
            body["spec"]["nodeName"] = node
        elif gates:
            body["spec"]["schedulingGates"] = [{"name": gate} for gate in gates]
        made = await self.make(f"/api/v1/namespaces/{namespace}/pods", body)
        return str(made["metadata"]["uid"])

    async def delete(self, name: str, kind: str = "pods", namespace: str | None = NAMESPACE) -> None:
        """Delete a pod, or a node with `kind` and no namespace."""
        where = f"/api/v1/namespaces/{namespace}/{kind}" if namespace else f"/api/v1/{kind}"
        await self.api.request("DELETE", f"{where}/{name}", NOW, patience_s=60)

    async def patch(self, path: str, body: dict[str, Any]) -> None:
        """Change part of an object."""
        await self.api.request(
            "PATCH", path, body, content_type="application/merge-patch+json", patience_s=60
        )

    async def ended(self, name: str, phase: str = "Succeeded") -> None:
        """Let a pod have ended."""
        await self.patch(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/status", {"status": {"phase": phase}})

    async def pods(self) -> dict[str, dict[str, Any]]:
        """All pods by name."""
        listed = json.loads(await self.api.request("GET", "/api/v1/pods", patience_s=60))
        return {pod["metadata"]["name"]: pod for pod in listed["items"]}

    async def places(self) -> dict[str, str]:
        """The node of each pod that is bound, by name."""
        return {
            name: pod["spec"]["nodeName"]
            for name, pod in (await self.pods()).items()
            if "nodeName" in pod["spec"]
        }

    async def events(self, reason: str = "") -> list[tuple[str, str]]:
        """Pod and message of each event of that reason."""
        listed = json.loads(await self.api.request("GET", "/api/v1/events", patience_s=60))
        return [
            (each["involvedObject"]["name"], each["message"])
            for each in listed["items"]
            if not reason or each["reason"] == reason
        ]

    async def until(self, what: str, is_so: Callable[[], Any], patience_s: float = 120) -> Any:
        """Wait until an awaitable is true; returns it."""
        end = time.monotonic() + patience_s
        while True:
            with contextlib.suppress(ApiError):
                if found := await is_so():
                    return found
            for task in self._running:
                if task.done() and not task.cancelled():
                    task.result()
            assert time.monotonic() < end, f"not in {patience_s:g} s: {what}; {await self.pods_in_words()}"
            await asyncio.sleep(0.05)

    async def until_bound(self, *names_: str, patience_s: float = 120) -> dict[str, str]:
        """Wait until these pods are bound; returns all places."""

        async def bound() -> dict[str, str] | None:
            places = await self.places()
            return places if set(names_) <= places.keys() else None

        found: dict[str, str] = await self.until(f"{names_} are bound", bound, patience_s)
        return found

    async def until_counted(self, placed: int, *steerers: Steering) -> None:
        """Wait until these have counted this many placements: the server knows of one before its caller does."""

        async def counted() -> bool:
            return sum(steerer.counts.placed for steerer in steerers) == placed

        await self.until(f"{placed} placements are counted", counted)

    async def until_told(self, name: str, *words: str, patience_s: float = 120) -> str:
        """Wait until the condition of a pod says all of these words; returns its message."""

        async def told() -> str | None:
            for condition in (await self.pods())[name]["status"].get("conditions", []):
                if condition["type"] == "PodScheduled" and all(
                    word in condition.get("message", "") for word in words
                ):
                    return str(condition["message"])
            return None

        found: str = await self.until(f"{name} is told {words}", told, patience_s)
        return found

    async def until_event(self, reason: str, name: str) -> str:
        """Wait until there is an event of this reason about a pod; returns its message."""

        async def there() -> list[str]:
            return [message for about, message in await self.events(reason) if about == name]

        found: list[str] = await self.until(f"an event {reason} of {name}", there)
        return found[0]

    async def pods_in_words(self) -> str:
        """What waits and why, for a failed test."""
        with contextlib.suppress(ApiError):
            return "; ".join(
                f"{name}: {pod['spec'].get('nodeName', 'waits')}"
                f" {[c.get('message') for c in pod['status'].get('conditions', [])]}"
                for name, pod in (await self.pods()).items()
            )
        return "the server is away"

    async def check(self) -> None:
        """See from outside that no GPU is given away beyond what it has, and that gangs are whole."""
        used: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
        gangs: dict[tuple[str, str], int] = defaultdict(int)
        nodes = json.loads(await self.api.request("GET", "/api/v1/nodes", patience_s=60))["items"]
        cards_mib = {
            node["metadata"]["name"]: int(node["metadata"]["labels"][names.LABEL_GPU_MEMORY_MIB])
            for node in nodes
            if names.LABEL_GPU_MEMORY_MIB in node["metadata"].get("labels", {})
        }
        for pod in json.loads(await self.api.request("GET", "/api/v1/pods", patience_s=60))["items"]:
            name, said = pod["metadata"]["name"], pod["metadata"].get("annotations", {})
            if pod["status"].get("phase") in ("Succeeded", "Failed"):
                continue
            if names.PLACEMENT not in said:
                continue
            if names.GANG in said:
                gangs[pod["metadata"]["namespace"], said[names.GANG]] += 1
            placed = json.loads(said[names.PLACEMENT])
            node = pod["spec"].get("nodeName", placed["node"])  # it counts before it is bound
            assert placed["node"] == node, f"{name} has a placement on {placed['node']} and is on {node}"
            for gpu in placed["gpus"]:
                use = used[node, gpu["index"]]
                use[0] += 100 if placed["best_effort"] else gpu["milli"]
                use[1] += 0 if placed["best_effort"] else gpu["mem_mib"]
        for slot, (milli, mem_mib) in used.items():
            assert milli <= 1000, f"{slot} is given away by {milli} milli"
            assert mem_mib <= cards_mib.get(slot[0], mem_mib), f"{slot} is given away by {mem_mib} MiB"
        for (_, gang), there in gangs.items():
            assert there == int(gang.rpartition("/")[2]), f"{there} pods of gang {gang} are bound"

    @contextlib.asynccontextmanager
    async def agent_pod(self, port: int) -> AsyncIterator[None]:
        """The pod of an agent that is a process and listens on this port, as the DaemonSet has it, on no kubelet."""
        path = f"/api/v1/namespaces/{names.NAMESPACE}/pods"
        ports = [{"name": "metrics", "containerPort": port}]
        body = {
            "kind": "Pod",
            "metadata": {"name": "agent", "labels": {"app.kubernetes.io/name": "berth-node"}},
            "spec": {"nodeName": "agents", "containers": [{"name": "node", "image": "x", "ports": ports}]},
        }
        await self.make(path, body)
        await self.patch(f"{path}/agent/status", {"status": {"podIP": _address(), "phase": "Running"}})
        try:
            yield
        finally:
            await self.api.request("DELETE", f"{path}/agent", NOW)

    @contextlib.asynccontextmanager
    async def steerer(self, identity: str = "test", **options: Any) -> AsyncIterator[Steering]:
        """A steerer that runs in this process, on a connection of its own."""
        elect = options.pop("elect", False)
        token = options.pop("token", None)
        agent = options.pop("agent", "berth")
        access = from_kubeconfig(
            self.kubeconfig.with_name(f"{token}.kubeconfig") if token else self.kubeconfig
        )
        settings = Settings(**options)
        if settings.policy not in _WARM:  # else what a test waits for may wait for a compiler
            await asyncio.to_thread(warm_up, settings.policy, make_knowledge(settings.knowledge, grows=True))
            _WARM.add(settings.policy)
        async with Api(access, agent=agent) as api:
            steering = Steering(api, Options(settings, identity=identity, elect=elect))
            task = asyncio.create_task(steering.run())
            self._running.append(task)
            try:
                yield steering
                if task.done():
                    task.result()
            finally:
                self._running.remove(task)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


def _address() -> str:
    """One of this machine's that is not its loopback, to which API servers do not proxy."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # nothing is sent
        return str(probe.getsockname()[0])
