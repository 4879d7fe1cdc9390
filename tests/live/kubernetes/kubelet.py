"""A kubelet of the tests' own: it speaks the published interfaces as the real one does, with a switch for each fault.

What it does is what kubelets from 1.20 on do: units are chosen and Allocate is called at admission, one container at a
time; then the checkpoint is written; PreStartContainer is called before a container is made, and again for each
attempt; at a start the folder of device plugins is emptied but for the checkpoint, which is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from berth.live.kubernetes.apis import (
    DEVICE_PLUGIN,
    DEVICE_REGISTRATION,
    DRA,
    PLUGIN_REGISTRATION,
    POD_RESOURCES,
    call,
    dra,
    open_channel,
    plugins,
    pod_resources,
    registration,
    serve,
)
from berth.live.kubernetes.node.api_server import Pod

CHECKPOINT = "kubelet_internal_checkpoint"


class AdmissionError(Exception):
    """The pod failed for good: UnexpectedAdmissionError."""


@dataclass
class Faults:
    """What goes wrong; each count is used up by one."""

    lost_replies: int = 0
    """Calls whose answers are thrown away after the plugin did its work; they are made again."""
    repeats: int = 0
    """How many times more each PreStartContainer and prepare is called than is needed."""
    stale_checkpoint: bool = False
    """The checkpoint is not written."""
    dra_versions: tuple[str, ...] = ("v1.DRAPlugin",)
    """What this kubelet speaks, best first."""


@dataclass
class Given:
    """What the kubelet noted for one container."""

    uid: str
    namespace: str
    pod: str
    container: str
    resource: str
    ids: list[str]
    answer: Any = None


@dataclass
class _Plugin:
    endpoint: Path
    healthy: list[str] = field(default_factory=list)
    unhealthy: list[str] = field(default_factory=list)
    lists: int = 0
    pre_start: bool = False
    task: asyncio.Task[None] | None = None


class Kubelet:
    """One kubelet over a folder such as /var/lib/kubelet."""

    def __init__(self, folder: Path, *, seed: int = 0, faults: Faults | None = None) -> None:
        self.folder = folder
        self.plugins_folder = folder / "device-plugins"
        self.registry = folder / "plugins_registry"
        self.resources_socket = folder / "pod-resources" / "kubelet.sock"
        self.faults = faults or Faults()
        self.resources: dict[str, _Plugin] = {}
        self.given: list[Given] = []
        self.drivers: dict[str, tuple[Path, str]] = {}
        """Of each DRA driver: its endpoint and the version that was chosen."""
        self.calls: list[str] = []
        self._servers: list[Any] = []
        self._random = random.Random(seed)
        self._reserved: set[str] = set()
        """Units whose Allocate is under way."""

    async def start(self) -> None:
        """Empty the folder of plugins, read the checkpoint and serve."""
        for folder in (self.plugins_folder, self.registry, self.resources_socket.parent):
            folder.mkdir(parents=True, exist_ok=True)
        for path in self.plugins_folder.iterdir():
            if path.name != CHECKPOINT:
                path.unlink()
        self._servers = [
            await serve(self.plugins_folder / "kubelet.sock", DEVICE_REGISTRATION, self),
            await serve(self.resources_socket, POD_RESOURCES, self),
        ]

    async def stop(self) -> None:
        """End, leaving the sockets where they are, as a kill does."""
        for plugin in self.resources.values():
            if plugin.task is not None:
                plugin.task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await plugin.task
        self.resources.clear()
        self.drivers.clear()
        for server in self._servers:
            await server.stop(0)
        self._servers.clear()

    async def restart(self) -> None:
        """End and start again: plugins must notice and register anew."""
        await self.stop()
        await self.start()

    # What plugins and agents call.

    async def Register(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Take a device plugin."""
        if request.version != "v1beta1":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "unsupported API version")
        plugin = _Plugin(self.plugins_folder / request.endpoint, pre_start=request.options.pre_start_required)
        self.resources[request.resource_name] = plugin
        plugin.task = asyncio.create_task(self._follow(plugin))
        return plugins.Empty()

    async def _follow(self, plugin: _Plugin) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError):
            async with open_channel(plugin.endpoint) as channel:
                request, answer, _ = DEVICE_PLUGIN.calls["ListAndWatch"]
                sender = channel.unary_stream(
                    f"/{DEVICE_PLUGIN.name}/ListAndWatch",
                    request_serializer=request.SerializeToString,
                    response_deserializer=answer.FromString,
                )
                async for told in sender(request()):
                    plugin.healthy = [each.ID for each in told.devices if each.health == "Healthy"]
                    plugin.unhealthy = [each.ID for each in told.devices if each.health != "Healthy"]
                    plugin.lists += 1

    async def List(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Which container holds which units."""
        answer = pod_resources.ListPodResourcesResponse()
        pods: dict[tuple[str, str, str], Any] = {}
        for given in self.given:
            key = (given.namespace, given.pod, given.uid)
            if key not in pods:
                pods[key] = answer.pod_resources.add(name=given.pod, namespace=given.namespace)
            container = pods[key].containers.add(name=given.container)
            for unit in given.ids:  # the real one answers an entry for each unit too
                container.devices.add(resource_name=given.resource, device_ids=[unit])
        return answer

    # Pods

    async def until_registered(self, resource: str, lists: int = 1) -> None:
        """Wait until a resource's units are known."""
        async with asyncio.timeout(300):
            while resource not in self.resources or self.resources[resource].lists < lists:
                await asyncio.sleep(0.01)

    def capacity(self, resource: str) -> tuple[int, int]:
        """Capacity and allocatable units, as the node's status says them."""
        plugin = self.resources.get(resource)
        if plugin is None:
            return 0, 0
        return len(plugin.healthy) + len(plugin.unhealthy), len(plugin.healthy)

    async def admit(self, pod: Pod, resource: str) -> None:
        """Give a pod its units; AdmissionError fails it for good."""
        for container in pod.containers:
            if not container.gpus:
                continue
            if any(
                each.uid == pod.uid and each.container == container.name and each.resource == resource
                for each in self.given
            ):
                continue
            plugin = self.resources.get(resource)
            taken = {unit for each in self.given for unit in each.ids} | self._reserved
            free = sorted(set(plugin.healthy if plugin else ()) - taken)
            if plugin is None or len(free) < container.gpus:
                raise AdmissionError(
                    f"{pod}: {len(free)} units of {resource}, and {container.gpus} are asked for"
                )
            ids = self._random.sample(free, container.gpus)
            self._reserved.update(ids)
            request = plugins.AllocateRequest()
            request.container_requests.add(devices_ids=ids)
            note = Given(pod.uid, pod.namespace, pod.name, container.name, resource, ids)
            try:
                answer = await self._ask(plugin.endpoint, "Allocate", request)
            except grpc.aio.AioRpcError as error:
                raise AdmissionError(f"{pod}: Allocate failed: {error.details()}") from error
            finally:
                self._reserved.difference_update(ids)
            note.answer = answer.container_responses[0]
            self.given.append(note)
            self._write_checkpoint()

    async def pre_start(self, pod: Pod, container: str, resource: str) -> Given:
        """What the kubelet does before it makes a container; raises what the plugin answers."""
        (given,) = [each for each in self.given if each.uid == pod.uid and each.container == container]
        plugin = self.resources[resource]
        if plugin.pre_start:
            request = plugins.PreStartContainerRequest(devices_ids=given.ids)
            for _ in range(1 + self.faults.repeats):
                await self._ask(plugin.endpoint, "PreStartContainer", request)
        return given

    def end(self, pod: Pod) -> None:
        """Forget a pod that has ended: its units are free."""
        self.given = [each for each in self.given if each.uid != pod.uid]
        self._write_checkpoint()

    async def _ask(self, endpoint: Path, name: str, request: Any) -> Any:
        self.calls.append(name)
        async with open_channel(endpoint) as channel:
            if self.faults.lost_replies:
                self.faults.lost_replies -= 1
                await call(channel, DEVICE_PLUGIN, name, request, 60.0)
            return await call(channel, DEVICE_PLUGIN, name, request, 60.0)

    def _write_checkpoint(self) -> None:
        if self.faults.stale_checkpoint:
            return
        entries = [
            {
                "PodUID": each.uid, "ContainerName": each.container, "ResourceName": each.resource,
                "DeviceIDs": {"-1": each.ids}, "AllocResp": "",
            }
            for each in self.given
        ]  # fmt: skip
        text = json.dumps({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1})
        (self.plugins_folder / CHECKPOINT).write_text(text)

    # Claims

    async def find_drivers(self) -> None:
        """Look for new sockets in the folder of registrations, as the plugin watcher does."""
        for path in sorted(self.registry.glob("*.sock")):
            async with open_channel(path) as channel:
                told = await call(channel, PLUGIN_REGISTRATION, "GetInfo", registration.InfoRequest())
                known = [each for each in self.faults.dra_versions if each in told.supported_versions]
                status = registration.RegistrationStatus(
                    plugin_registered=bool(known),
                    error="" if known else "no version that this kubelet speaks",
                )
                await call(channel, PLUGIN_REGISTRATION, "NotifyRegistrationStatus", status)
                if known and told.type == "DRAPlugin":
                    self.drivers[told.name] = Path(told.endpoint)

    async def prepare(self, driver: str, claims: Iterable[tuple[str, str, str]]) -> Any:
        """Prepare claims (namespace, name, uid) in one call; the answers by uid."""
        return await self._claims(driver, "Prepare", list(claims), 1 + self.faults.repeats)

    async def unprepare(self, driver: str, claims: Iterable[tuple[str, str, str]]) -> Any:
        """Take claims back in one call; the answers by uid."""
        return await self._claims(driver, "Unprepare", list(claims), 1 + self.faults.repeats)

    async def _claims(
        self, driver: str, verb: str, claims: Sequence[tuple[str, str, str]], times: int
    ) -> Any:
        request = getattr(dra, f"Node{verb}ResourcesRequest")()
        for namespace, name, uid in claims:
            request.claims.add(namespace=namespace, name=name, uid=uid)
        async with open_channel(self.drivers[driver]) as channel:
            for _ in range(times):
                if self.faults.lost_replies:
                    self.faults.lost_replies -= 1
                    await call(channel, DRA, f"Node{verb}Resources", request, 60.0)
                answer = await call(channel, DRA, f"Node{verb}Resources", request, 60.0)
        return answer.claims
