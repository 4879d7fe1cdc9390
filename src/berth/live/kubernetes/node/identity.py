"""Which container holds which of the kubelet's units: asked of the kubelet, since its calls to a plugin do not say.

Between Allocate and the start of a container the kubelet notes whose the units are, in its pod-resources service and
in its checkpoint. Only the checkpoint has the pod's uid, by which a pod is told from an older one of the same name;
where it can be read, both must agree.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import grpc

from berth.errors import KubernetesError
from berth.live.kubernetes.apis import POD_RESOURCES, call, open_channel, pod_resources
from berth.live.kubernetes.names import RESOURCE


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
