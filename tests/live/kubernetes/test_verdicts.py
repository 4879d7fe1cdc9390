"""One pod for each feature of scheduling: a steered pod ends where kube-scheduler alone puts it, or waits as there.

Each pod has two nodes of its own, a and b, with 8 CPUs and 2 GPUs each, which its selector names. What the controllers
of volumes and quotas would do, the test does: they do not run here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import pytest

from berth.errors import ApiError
from berth.live.kubernetes import names
from berth.live.kubernetes.client import MERGE_PATCH
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.server import Server
from tests.live.kubernetes.world import World

pytestmark = [pytest.mark.usefixtures("kube_scheduler"), pytest.mark.slow]

HOST = names.HOSTNAME
A, B, EITHER, NOWHERE, REFUSED = {"a"}, {"b"}, {"a", "b"}, {""}, {"refused"}
NO_SCHEDULE = {"key": "team", "value": "x", "effect": "NoSchedule"}


@dataclass(frozen=True)
class Row:
    """A pod of a feature."""

    feature: str
    ends: set[str]
    """The nodes where it may end; empty text: it waits; `refused`: the API server does not take it."""
    pod: dict[str, Any] = field(default_factory=dict)
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What is special about node a or b."""
    there: dict[str, dict[str, Any]] = field(default_factory=dict)
    """A pod that is bound to a or b already; `status` is what its kubelet says."""
    gates: Sequence[str] = ()
    scheduler: str = "default-scheduler"
    silent: bool = False
    """Whether kube-scheduler never looks at it, and so says nothing of it."""
    minor: int = 0
    """The version that brought the feature: 34 for Kubernetes 1.34."""


def near(labels: dict[str, str]) -> dict[str, Any]:
    return {"labelSelector": {"matchLabels": labels}, "topologyKey": HOST}


def required(kind: str, labels: dict[str, str]) -> dict[str, Any]:
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [near(labels)]}}}


def node_affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    terms_ = {"nodeSelectorTerms": list(terms)}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms_}}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def container(cpu: str, **more: Any) -> dict[str, Any]:
    takes = {"cpu": cpu, "memory": "64Mi"}
    return {"name": "other", "image": "busybox", "resources": {"requests": takes, "limits": takes}, **more}


def spread(**more: Any) -> dict[str, Any]:
    rule = {"maxSkew": 1, "topologyKey": HOST, "whenUnsatisfiable": "DoNotSchedule", **more}
    return {"topologySpreadConstraints": [{**rule, "labelSelector": {"matchLabels": {"app": "web"}}}]}


def volume(**source: Any) -> dict[str, Any]:
    return {"volumes": [{"name": "v", **source}]}


def claimed(name: str) -> dict[str, Any]:
    return volume(persistentVolumeClaim={"claimName": name})


WEB = {"labels": {"app": "web"}}
BUSY = {"cpu": "4"}
PORT = {"ports": [{"containerPort": 80, "hostPort": 8080}]}
SHRINKS = {"name": "main", "image": "x", "imageID": "", "ready": True, "restartCount": 0,
    "resources": {"requests": {"cpu": "7"}}, "allocatedResources": {"cpu": "7"}}  # fmt: skip
"""The status of a container that is to have fewer CPUs, and has seven still."""
BY_HAND = {
    "accessModes": ["ReadWriteOnce"], "storageClassName": "by-hand", "resources": {"requests": {"storage": "1Gi"}},
}  # fmt: skip
ROWS = [
    Row("nothing", EITHER),
    Row("selector", B, {"nodeSelector": {"at": "b"}}),
    Row("selector-of-nothing", NOWHERE, {"nodeSelector": {"at": "c"}}),
    Row("affinity-in", B, node_affinity(expression("at", "In", "b"))),
    Row("affinity-not-in", B, node_affinity(expression("at", "NotIn", "a"))),
    Row("affinity-greater", B, node_affinity(expression("size", "Gt", "5")),
        {"a": {"labels": {"size": "3"}}, "b": {"labels": {"size": "9"}}}),
    Row("affinity-of-two-terms", B, node_affinity(expression("at", "In", "c"), expression("at", "In", "b"))),
    Row("affinity-absent", NOWHERE, node_affinity({"matchExpressions": [{"key": "at", "operator": "DoesNotExist"}]})),
    Row("taint-on-one", B, {}, {"a": {"taints": [NO_SCHEDULE]}}),
    Row("taint-on-both", NOWHERE, {}, {"a": {"taints": [NO_SCHEDULE]}, "b": {"taints": [NO_SCHEDULE]}}),
    Row("taint-tolerated", EITHER, {"tolerations": [{"key": "team", "operator": "Exists"}]},
        {"a": {"taints": [NO_SCHEDULE]}, "b": {"taints": [NO_SCHEDULE]}}),
    Row("taint-of-another-value", NOWHERE, {"tolerations": [{"key": "team", "value": "y"}]},
        {"a": {"taints": [NO_SCHEDULE]}, "b": {"taints": [NO_SCHEDULE]}}),
    Row("taint-no-execute", B, {}, {"a": {"taints": [{"key": "x", "effect": "NoExecute"}]}}),
    Row("cordon-on-one", B, {}, {"a": {"unschedulable": True}}),
    Row("cordon-on-both", NOWHERE, {}, {"a": {"unschedulable": True}, "b": {"unschedulable": True}}),
    Row("near-a-pod", B, required("podAffinity", {"app": "web"}), there={"b": WEB}),
    Row("near-no-pod", NOWHERE, required("podAffinity", {"app": "none"}), there={"b": WEB}),
    Row("far-from-a-pod", B, required("podAntiAffinity", {"app": "web"}), there={"a": WEB}),
    Row("far-from-all", NOWHERE, required("podAntiAffinity", {"app": "web"}), there={"a": WEB, "b": WEB}),
    Row("kept-away", B, {"labels": {"app": "noisy"}}, there={"a": required("podAntiAffinity", {"app": "noisy"})}),
    Row("far-and-affine", B, {"affinity": {
        **required("podAntiAffinity", {"app": "web"})["affinity"],
        **node_affinity(expression("at", "In", "a", "b"))["affinity"]}}, there={"a": WEB}),
    Row("spread", B, {**spread(), **WEB}, there={"a": WEB}),
    Row("spread-as-it-can", EITHER, {**spread(whenUnsatisfiable="ScheduleAnyway"), **WEB}, there={"a": WEB, "b": WEB}),
    Row("spread-over-three", NOWHERE, {**spread(minDomains=3), **WEB}, there={"a": WEB, "b": WEB}),
    Row("host-port", B, PORT, there={"a": PORT}),
    Row("host-port-on-both", NOWHERE, PORT, there={"a": PORT, "b": PORT}),
    Row("cpu-on-one", B, {"cpu": "6"}, there={"a": BUSY}),
    Row("cpu-on-none", NOWHERE, {"cpu": "9"}),
    Row("memory-on-none", NOWHERE, {"memory": "512Gi"}),
    Row("pods-on-one", B, {}, {"a": {"pods": "1"}}, {"a": {}}),
    Row("overhead", B, {"runtimeClassName": "heavy"}, there={"a": BUSY}),
    Row("runtime-class-of-nodes", B, {"runtimeClassName": "only-b"}),
    Row("pod-level-resources", B, {"pod_resources": {"requests": {"cpu": "6"}}}, there={"a": BUSY}, minor=34),
    Row("resize-under-way", B, {"cpu": "4"},
        there={"a": {"cpu": "1", "status": {"containerStatuses": [SHRINKS]}}}, minor=33),
    Row("quota", REFUSED, {"priorityClassName": "counted"}),
    Row("init-container", B, {"initContainers": [container("6")]}, there={"a": BUSY}),
    Row("sidecar", B, {"cpu": "3", "initContainers": [container("3", restartPolicy="Always")]}, there={"a": BUSY}),
    Row("extended-resource", B, {"resources": {"example.com/fpga": "1"}},
        {"b": {"resources": {"example.com/fpga": "1"}}}),
    Row("ephemeral-storage", B, {"resources": {"ephemeral-storage": "10Gi"}},
        {"a": {"resources": {"ephemeral-storage": "1Gi"}}, "b": {"resources": {"ephemeral-storage": "100Gi"}}}),
    Row("huge-pages", B, {"resources": {"hugepages-2Mi": "64Mi"}},
        {"a": {"resources": {"hugepages-2Mi": "0"}}, "b": {"resources": {"hugepages-2Mi": "1Gi"}}}),
    Row("volume-of-a-zone", B, claimed("zoned")),
    Row("volume-for-its-first-consumer", B, claimed("first")),
    Row("volume-that-is-not", NOWHERE, claimed("missing")),
    Row("volume-ephemeral", NOWHERE, volume(ephemeral={"volumeClaimTemplate": {"spec": BY_HAND}})),
    Row("volume-of-the-node", EITHER, volume(emptyDir={})),
    Row("volume-of-one-pod", NOWHERE, claimed("alone"), there={"a": claimed("alone")}),
    Row("claim-of-a-device", B, {"resourceClaims": [{"name": "d", "resourceClaimName": "device"}]}, minor=34),
    Row("claim-that-is-not", NOWHERE, {"resourceClaims": [{"name": "d", "resourceClaimName": "missing"}]},
        silent=True, minor=34),
    Row("priority-never", NOWHERE, {"cpu": "6", "priorityClassName": "never"}, there={"a": BUSY, "b": BUSY}),
    Row("gate-of-others", NOWHERE, gates=("example.com/theirs",)),
    Row("scheduler-of-others", NOWHERE, scheduler="nobody", silent=True),
]  # fmt: skip


async def made(world: World, rows: Sequence[Row]) -> None:
    """Make what the pods ask for besides nodes."""
    bound = {"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"}
    for name, modes, at in (("zoned", "ReadWriteOnce", "b"), ("alone", "ReadWriteOncePod", "a")):
        what = {"accessModes": [modes], "storageClassName": "by-hand"}
        path = "/api/v1/namespaces/default/persistentvolumeclaims"
        asked = {**what, "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}}
        await world.make(
            path,
            {
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "annotations": bound},
                "spec": asked,
            },
        )
        await world.patch(f"{path}/{name}/status", {"status": {"phase": "Bound"}})
        where = {"required": {"nodeSelectorTerms": [expression("at", "In", at)]}}
        await world.make("/api/v1/persistentvolumes", {"kind": "PersistentVolume", "metadata": {"name": name}, "spec": {
            **what, "capacity": {"storage": "1Gi"}, "nodeAffinity": where, "hostPath": {"path": "/x"},
            "claimRef": {"namespace": "default", "name": name},
        }})  # fmt: skip
    classes = "/apis/node.k8s.io/v1/runtimeclasses"
    heavy = {"handler": "runc", "overhead": {"podFixed": {"cpu": "5"}}}
    only = {"handler": "runc", "scheduling": {"nodeSelector": {"at": "b"}}}
    for name, of in (("heavy", heavy), ("only-b", only)):
        await world.make(
            classes,
            {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, **of},
        )
    for name, of in (("never", {"value": 1000, "preemptionPolicy": "Never"}), ("counted", {"value": 0})):
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        await world.make("/apis/scheduling.k8s.io/v1/priorityclasses", {**kind, **of})
    await first_consumer(world)
    await quota(world)
    if all(row.feature != "claim-of-a-device" for row in rows):
        return
    group = "/apis/resource.k8s.io/v1"
    version = {"apiVersion": "resource.k8s.io/v1"}
    driver = {"selectors": [{"cel": {"expression": "device.driver == 'test.example.com'"}}]}
    await world.make(
        f"{group}/deviceclasses",
        {**version, "kind": "DeviceClass", "metadata": {"name": "test"}, "spec": driver},
    )
    node = "claim-of-a-device-b"
    slices = {**version, "kind": "ResourceSlice", "metadata": {"name": node}}
    await world.make(f"{group}/resourceslices", {**slices, "spec": {
        "driver": "test.example.com", "nodeName": node, "devices": [{"name": "d"}],
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
    }})  # fmt: skip
    asked = {"devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": "test"}}]}}
    await world.make(f"{group}/namespaces/default/resourceclaims",
        {**version, "kind": "ResourceClaim", "metadata": {"name": "device"}, "spec": asked})  # fmt: skip


CLAIMS, VOLUMES = "/api/v1/namespaces/default/persistentvolumeclaims", "/api/v1/persistentvolumes"


async def first_consumer(world: World) -> None:
    """A claim that nobody has bound, and a volume in b's zone that a pod which uses the claim may get."""
    for path in (f"{CLAIMS}/first", f"{VOLUMES}/first"):
        await world.api.change("PATCH", path, {"metadata": {"finalizers": None}}, content_type=MERGE_PATCH)
        await world.api.change("DELETE", path, {"gracePeriodSeconds": 0})
    kind = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "first"}}
    binds = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
    await world.make("/apis/storage.k8s.io/v1/storageclasses", {**kind, **binds})
    what, size = {"accessModes": ["ReadWriteOnce"], "storageClassName": "first"}, {"storage": "1Gi"}
    where = {"required": {"nodeSelectorTerms": [expression("at", "In", "b")]}}
    meta = {"name": "first"}
    volume = {**what, "capacity": size, "nodeAffinity": where, "hostPath": {"path": "/x"}}
    await world.make(VOLUMES, {"kind": "PersistentVolume", "metadata": meta, "spec": volume})
    await world.patch(f"{VOLUMES}/first/status", {"status": {"phase": "Available"}})
    asked = {**what, "resources": {"requests": size}}
    await world.make(CLAIMS, {"kind": "PersistentVolumeClaim", "metadata": meta, "spec": asked})


async def bind_volume(world: World) -> None:
    """Finish what kube-scheduler has begun, as the controller of volumes does."""
    volume = json.loads(await world.api.request("GET", f"{VOLUMES}/first"))
    if "claimRef" in volume["spec"]:
        done = {"pv.kubernetes.io/bind-completed": "yes"}
        spec = {"volumeName": "first"}
        await world.patch(f"{CLAIMS}/first", {"metadata": {"annotations": done}, "spec": spec})
        await world.patch(f"{VOLUMES}/first/status", {"status": {"phase": "Bound"}})
        await world.patch(f"{CLAIMS}/first/status", {"status": {"phase": "Bound"}})


async def quota(world: World) -> None:
    """No pod of the class `counted` may be made."""
    path, hard = "/api/v1/namespaces/default/resourcequotas", {"pods": "0"}
    scope = {"scopeName": "PriorityClass", "operator": "In", "values": ["counted"]}
    spec = {"hard": hard, "scopeSelector": {"matchExpressions": [scope]}}
    await world.make(path, {"kind": "ResourceQuota", "metadata": {"name": "counted"}, "spec": spec})
    await world.patch(f"{path}/counted/status", {"status": {"hard": hard, "used": {"pods": "0"}}})

    async def refused() -> bool:
        await world.api.change("DELETE", "/api/v1/namespaces/default/pods/probe", {"gracePeriodSeconds": 0})
        try:
            await world.pod("probe", 0, gates=(), priorityClassName="counted")
        except ApiError as error:
            return "exceeded quota" in error.message
        return False

    await world.until("the quota is seen", refused)


async def unmade(world: World) -> None:
    """Take all of it away, so that the next tests find nothing."""
    for path in (
        "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims", "/apis/resource.k8s.io/v1/resourceslices",
        "/apis/resource.k8s.io/v1/deviceclasses", "/apis/node.k8s.io/v1/runtimeclasses",
        "/apis/scheduling.k8s.io/v1/priorityclasses/never", "/apis/scheduling.k8s.io/v1/priorityclasses/counted",
        "/api/v1/namespaces/default/resourcequotas", "/apis/storage.k8s.io/v1/storageclasses", CLAIMS, VOLUMES,
    ):  # fmt: skip
        await world.api.change("DELETE", path, {"gracePeriodSeconds": 0}, patience_s=60)


async def verdicts(world: World, rows: Sequence[Row], *, steered: bool) -> dict[str, str]:
    """Where each pod is once nothing is to be expected any more: a, b, or empty where it waits."""
    await world.clean()
    await made(world, rows)
    refused: set[str] = set()

    async def one(row: Row) -> None:
        for at in "ab":
            name, special = f"{row.feature}-{at}", dict(row.nodes.get(at, {}))
            labels = {"at": at, HOST: name, "feature": row.feature, **special.pop("labels", {})}
            await world.node(name, 2, cpu="8", labels=labels, **special)
            if at in row.there:
                there = dict(row.there[at])
                status = there.pop("status", None)
                await world.pod(f"there-{name}", 0, node=name, **there)
                if status is not None:
                    pods = "/api/v1/namespaces/default/pods"
                    await world.patch(f"{pods}/there-{name}/status", {"status": status})
        asks = dict(row.pod)
        selector = {"feature": row.feature, **asks.pop("nodeSelector", {})}
        gates = [*row.gates, *([names.GATE] if steered else [])]
        try:
            await world.pod(
                row.feature, milli=500, gates=gates, scheduler=row.scheduler, nodeSelector=selector, **asks
            )
        except ApiError as error:
            if error.status != 403:
                raise
            refused.add(row.feature)

    await asyncio.gather(*map(one, rows))

    async def settled() -> dict[str, str] | None:
        await bind_volume(world)
        pods = await world.pods()
        ends = {
            row.feature: "refused"
            if row.feature in refused
            else is_settled(row, pods[row.feature], steered=steered)
            for row in rows
        }
        return None if None in ends.values() else ends

    ends: dict[str, str] = await world.until("each pod is bound or told why not", settled, 120)
    return ends


def is_settled(row: Row, pod: dict[str, Any], *, steered: bool) -> str | None:
    """a, b, or empty where it waits and is told why; None while more is to be expected."""
    where = pod["spec"].get("nodeName", "")
    if where and steered:
        placed = json.loads(pod["metadata"]["annotations"].get(names.PLACEMENT, "{}"))
        return where[-1] if placed.get("node") == where and len(placed["gpus"]) == 1 else None
    if where or row.ends is not NOWHERE:
        return where[-1:] or None
    if row.silent:
        return None if names.GATE in map(itemgetter("name"), pod["spec"].get("schedulingGates", ())) else ""
    told = [each for each in pod["status"].get("conditions", []) if each["type"] == "PodScheduled"]
    gated = (
        "is blocked due to non-empty scheduling gates"  # the API server's own words, before anybody looked
    )
    return "" if told and (not steered or gated not in told[0].get("message", gated)) else None


def test_each_pod_ends_where_kube_scheduler_alone_would_put_it(play: Played, server: Server) -> None:
    rows = [row for row in ROWS if server.is_at_least(row.minor)]
    assert len({row.feature for row in rows}) >= 40

    async def test(world: World) -> None:
        try:
            alone = await verdicts(world, rows, steered=False)
            async with world.steerer():
                steered = await verdicts(world, rows, steered=True)
        finally:
            await world.clean()
            await unmade(world)
        wanted = {row.feature: row.ends for row in rows}
        assert {name: at for name, at in alone.items() if at not in wanted[name]} == {}
        assert {name: at for name, at in steered.items() if at not in wanted[name]} == {}

    play(test)
