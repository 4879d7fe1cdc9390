"""The device plugin: units of GPUs for the kubelet to count, and each container's own limits before it starts.

The kubelet's Allocate names units and no pod. So it is answered with paths that follow from the units alone; what lies
there is made in PreStartContainer, which names the same units when the kubelet has noted whose they are and before the
container is made. A container that cannot be told, or whose pod was not placed by berth, does not start, and the
kubelet asks again.

Whose units they are, the kubelet says in its pod-resources service and in its checkpoint. Only the checkpoint has the
pod's uid, by which a pod is told from an older one of the same name; where it can be read, both must agree.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import grpc
import msgspec

from berth.errors import BerthError, KubernetesError
from berth.live.kubernetes.apis import (
    DEVICE_PLUGIN,
    DEVICE_REGISTRATION,
    POD_RESOURCES,
    call,
    open_channel,
    plugins,
    pod_resources,
    serve,
)
from berth.live.kubernetes.names import BURST, PLACED_UID, PLACEMENT, RESOURCE, SLOTS_PER_GPU
from berth.live.kubernetes.node.allotments import Allotment, Allotments, Holder, Part
from berth.live.kubernetes.node.api_server import ApiServer, Pod
from berth.live.kubernetes.node.driver_files import DriverFiles, node_folder
from berth.live.kubernetes.placements import Placed
from berth.live.local.cards import Card
from berth.partition.gpus import plain_uuid
from berth.partition.regions import region_mounts


@dataclass(frozen=True, slots=True)
class Held:
    namespace: str
    pod: str
    container: str
    device_ids: frozenset[str]
    uid: str = ""
    """The pod's; empty where the checkpoint does not tell."""


class Identity:
    def __init__(self, socket: Path, checkpoint: Path) -> None:
        """`socket` is of the pod-resources service, `checkpoint` the device manager's file."""
        self._socket, self._checkpoint = socket, checkpoint

    async def holder_of(self, device_ids: Iterable[str]) -> Held:
        """The container that holds exactly these units; KubernetesError where the kubelet names none."""
        asked = frozenset(device_ids)
        found = [held for held in await self.all_held() if held.device_ids == asked]
        if len(found) != 1:
            raise KubernetesError(
                f"the kubelet names {len(found)} containers that hold the units {', '.join(sorted(asked))};"
                " it will ask again"
            )
        return found[0]

    async def all_held(self) -> list[Held]:
        """All containers that hold units; KubernetesError where the kubelet does not answer."""
        uids = self._uids()
        try:
            async with open_channel(self._socket) as channel:
                answer = await call(channel, POD_RESOURCES, "List", pod_resources.ListPodResourcesRequest())
        except grpc.aio.AioRpcError as error:
            raise KubernetesError(
                f"the kubelet's pod-resources service at {self._socket} does not answer: {error.details()}"
            ) from error
        found = []
        for pod in answer.pod_resources:
            for container in pod.containers:
                ids = frozenset(
                    unit
                    for devices in container.devices
                    if devices.resource_name == RESOURCE
                    for unit in devices.device_ids
                )
                if not ids:
                    continue
                uid = uids.get((container.name, ids), "") if uids is not None else ""
                if uids is not None and not uid:
                    continue  # the two were read at different moments, or the pod is going
                found.append(Held(pod.namespace, pod.name, container.name, ids, uid))
        return found

    def _uids(self) -> dict[tuple[str, frozenset[str]], str] | None:
        """The pods' uids by container and units; None where there is no checkpoint that can be read."""
        try:
            answer = json.loads(self._checkpoint.read_bytes())
            entries = answer["Data"]["PodDeviceEntries"] or ()
            return {
                (entry["ContainerName"], frozenset(chain.from_iterable(entry["DeviceIDs"].values()))): entry[
                    "PodUID"
                ]
                for entry in entries
                if entry["ResourceName"] == RESOURCE
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


def parts_of(pod: Pod, container: str, cards: Mapping[int, Card]) -> tuple[Part, ...]:
    """The parts of one container, in the placement's order; KubernetesError says what is wrong with the placement.

    The placement lists the pod's GPUs. Containers take from it in their order in the pod, as many as each asks for.
    """
    parts = _placed(pod, {card.uuid: card.index for card in cards.values()})
    mine = next((each for each in pod.containers if each.name == container), None)
    if mine is None or mine.gpus < 1:
        raise KubernetesError(
            f"the container '{container}' of {pod} asks for no GPU; the kubelet says it has some"
        )
    start = 0
    for each in pod.containers:
        if each.name == container:
            break
        start += each.gpus
    found = parts[start : start + mine.gpus]
    if len(found) < mine.gpus:
        raise KubernetesError(
            f"the placement of {pod} has {len(parts)} GPUs, and its containers ask for more; it is from an older"
            " version of the pod, or written by hand"
        )
    if len({part.index for part in found}) < len(found):
        raise KubernetesError(f"the placement of {pod} names a GPU twice for the container '{container}'")
    return found


def digest_of(pod: Pod) -> str:
    """What tells a pod's placement from any other: the words by which its parts are made, in short."""
    said = [pod.annotations.get(key, "") for key in (PLACEMENT, BURST)]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:32]


def _placed(pod: Pod, by_uuid: Mapping[str, int]) -> tuple[Part, ...]:
    text = pod.annotations.get(PLACEMENT)
    if text is None:
        raise KubernetesError(
            f"{pod} asks for GPUs and has no placement yet; it starts when berth has one for it: berth k8s why {pod}"
        )
    if pod.annotations.get(PLACED_UID) != pod.uid:
        raise KubernetesError(
            f"the placement of {pod} is for the uid {pod.annotations.get(PLACED_UID, 'of no pod')}, and this pod's is"
            f" {pod.uid}: it is another pod's, or written by hand"
        )
    try:
        placed = msgspec.json.decode(text, type=Placed)
        if placed.node not in ("", pod.node):
            raise KubernetesError(
                f"the placement of {pod} is for node {placed.node}, and it is bound to {pod.node}; it starts when berth"
                " has one for it here"
            )
        if not all(gpu.mem_mib for gpu in placed.gpus):
            raise KubernetesError(f"the placement of {pod} gives it no memory: {text[:200]}")
        burst = pod.annotations.get(BURST) == "true"
        return tuple(
            # By its UUID where the placement names one: a restart of the machine may number GPUs anew.
            Part(
                by_uuid[gpu.uuid] if gpu.uuid else gpu.index,
                gpu.mem_mib,
                gpu.milli,
                placed.best_effort,
                burst,
            )
            for gpu in placed.gpus
        )
    except KeyError as error:
        raise KubernetesError(
            f"the annotation {PLACEMENT} of {pod} names GPU {error}, and this node has no such GPU"
        ) from error
    except msgspec.DecodeError as error:
        raise KubernetesError(
            f"the annotation {PLACEMENT} of {pod} is no placement ({error}): {text[:200]}"
        ) from error


log = logging.getLogger(__name__)

SOCKET = "berth.sock"
LOOK_S = 0.5


def allotment_name(device_ids: Iterable[str]) -> str:
    """The partition of a container that holds these units."""
    return "dp-" + hashlib.sha256(",".join(sorted(device_ids)).encode()).hexdigest()[:32]


class DevicePlugin:
    """The service that the kubelet calls, and its registration."""

    def __init__(
        self,
        node: str,
        folder: Path,
        nodes: Path,
        gpus: tuple[int, ...],
        allotments: Allotments,
        driver: DriverFiles,
        identity: Identity,
        api: ApiServer,
        make_room: Callable[[], Awaitable[object]],
        admit: Callable[[Allotment, Pod], None] = lambda allotment, pod: None,
    ) -> None:
        """`folder` is the kubelet's folder of device plugins, with its own socket `kubelet.sock`; each container's
        device nodes are put into a folder of `nodes`. The plugin gives parts of `gpus`. `make_room` takes back what
        containers that ended had; it is asked where something does not fit. `admit` hears of each container that is
        about to start."""
        self._node, self._folder, self._nodes, self._gpus = node, folder, nodes, gpus
        self._allotments, self._driver = allotments, driver
        self._identity, self._api, self._make_room, self._admit = identity, api, make_room, admit
        self._lost: frozenset[int] = frozenset()
        self._changed = asyncio.Condition()
        self.registrations = 0
        """How often the kubelet has accepted the plugin."""
        self._trouble = ""
        """Why it is not registered, as it was said last."""

    async def run(self) -> None:
        """Serve and register, again after each restart of the kubelet, until cancelled."""
        own, kubelet = self._folder / SOCKET, self._folder / "kubelet.sock"
        while True:
            server = await serve(own, DEVICE_PLUGIN, self)
            try:
                seen = _stamp(kubelet)
                await self._register(kubelet)
                await asyncio.sleep(LOOK_S)
                while _stamp(kubelet) == seen and own.exists() and not self._trouble:
                    await asyncio.sleep(LOOK_S)
            finally:
                await server.stop(0)

    async def _register(self, kubelet: Path) -> None:
        request = plugins.RegisterRequest(
            version="v1beta1",
            endpoint=SOCKET,
            resource_name=RESOURCE,
            options=plugins.DevicePluginOptions(pre_start_required=True),
        )
        try:
            async with open_channel(kubelet) as channel:
                await call(channel, DEVICE_REGISTRATION, "Register", request)
        except grpc.aio.AioRpcError as error:
            before, self._trouble = self._trouble, str(error.details())
            if before != self._trouble:
                log.warning("the kubelet at %s does not take the device plugin: %s", kubelet, self._trouble)
            return
        self.registrations += 1
        self._trouble = ""

    async def set_lost(self, lost: frozenset[int]) -> None:
        """Tell the kubelet which GPUs cannot be used; no container starts on them."""
        async with self._changed:
            if lost != self._lost:
                self._lost = lost
                self._changed.notify_all()

    def units(self) -> list[tuple[str, bool]]:
        """All units, and whether each is healthy. They count places on GPUs: the placement says which GPU it is."""
        return [
            (f"gpu{gpu}-{slot:02}", gpu not in self._lost)
            for gpu in self._gpus
            for slot in range(SLOTS_PER_GPU)
        ]

    # What the kubelet calls; the names are the service's.

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:  # noqa: N802
        return plugins.DevicePluginOptions(pre_start_required=True)

    async def ListAndWatch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """All units, and again whenever the health of one changes."""
        while True:
            lost = self._lost
            yield plugins.ListAndWatchResponse(
                devices=[
                    plugins.Device(ID=unit, health="Healthy" if healthy else "Unhealthy")
                    for unit, healthy in self.units()
                ]
            )
            async with self._changed:
                while self._lost == lost:
                    await self._changed.wait()

    async def Allocate(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The files and nodes of containers with these units, which are there when they start."""
        answer = plugins.AllocateResponse()
        for each in request.container_requests:
            if len(each.devices_ids) > len(self._gpus):
                await context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"a container asks for {len(each.devices_ids)} of {RESOURCE}, a part of a GPU each,"
                    f" and this node has {len(self._gpus)} GPUs",
                )
            answer.container_responses.append(self._container(allotment_name(each.devices_ids)))
        return answer

    def _container(self, name: str) -> Any:
        region = self._allotments.root / name
        answer = plugins.ContainerAllocateResponse(envs=dict(self._driver.environment))
        uuids = (plain_uuid(self._allotments.cards[gpu].uuid) for gpu in self._gpus)
        for host, inside, writable in (*region_mounts(region, uuids), *self._driver.mounts):
            answer.mounts.add(host_path=str(host), container_path=inside, read_only=not writable)
        answer.devices.add(host_path=str(self._nodes / name), container_path="/dev", permissions="rw")
        return answer

    async def PreStartContainer(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Make the limits of the container that holds these units; it does not start before."""
        try:
            await self._prepare(tuple(sorted(request.devices_ids)))
        except (BerthError, OSError) as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"berth: {error}")
        return plugins.PreStartContainerResponse()

    async def _prepare(self, device_ids: tuple[str, ...]) -> None:
        held = await self._identity.holder_of(device_ids)
        pod = await self._api.pod(held.namespace, held.pod)
        if pod is None or (held.uid and pod.uid != held.uid):
            raise KubernetesError(
                f"{held.namespace}/{held.pod} is gone, or another pod of its name is there now"
            )
        if pod.node != self._node:
            raise KubernetesError(f"{pod} is bound to the node '{pod.node}', and this is '{self._node}'")
        parts = parts_of(pod, held.container, self._allotments.cards)
        mine = tuple(part.index for part in parts)
        if foreign := [gpu for gpu in mine if gpu not in self._gpus]:
            raise KubernetesError(
                f"{pod} is placed on GPU {foreign[0]}, which the device plugin of this node does not give"
            )
        if ailing := [gpu for gpu in mine if gpu in self._lost]:
            raise KubernetesError(
                f"{pod} is placed on GPU {ailing[0]}, which is lost or had an error (XID): nothing starts there until"
                " it has been reset and the agent restarted; delete the pod to have it placed elsewhere"
            )
        name, digest = allotment_name(device_ids), digest_of(pod)
        if any(each.placement != digest for each in self._allotments.of_holder(pod.uid)):
            raise KubernetesError(
                f"the placement of {pod} was changed after it started; a pod keeps the parts that it started with"
            )
        closed = tuple(gpu for gpu in self._gpus if gpu not in mine)
        holder = Holder(pod.namespace, pod.name, pod.uid, held.container)
        asked = Allotment(name, holder, parts, device_ids, closed, placement=digest)
        for other in [*self._allotments.given.values()]:
            # The kubelet gives a unit anew only after its container has ended.
            if other.name != name and {*device_ids} & {*other.device_ids}:
                self._allotments.take_back(other.name)
        try:
            self._allotments.give(asked)
        except KubernetesError:
            await self._make_room()
            self._allotments.give(asked)
        self._admit(asked, pod)
        node_folder(self._nodes / name, self._driver.nodes_of(mine))


def _stamp(socket: Path) -> tuple[int, int]:
    """What changes when a socket is made anew."""
    try:
        status = socket.stat()
    except OSError:
        return (0, 0)
    return (status.st_ino, status.st_ctime_ns)
