"""Claims are prepared and taken back: each part of a claim its own region, the same however often it is asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from berth.errors import KubernetesError, PartitionError
from berth.live.kubernetes.names import DRIVER
from berth.live.kubernetes.node.allotments import Allotment, Allotments, Holder, Part
from berth.live.kubernetes.node.claim_files import ClaimFiles
from berth.live.kubernetes.node.cluster_api import Claim, ClaimDevice, NodeApi
from berth.live.kubernetes.node.slices import device_index

__all__ = ["Claims"]


class Claims:
    """The claims of this node."""

    def __init__(
        self,
        node: str,
        gpus: tuple[int, ...],
        allotments: Allotments,
        files: ClaimFiles,
        api: NodeApi,
        make_room: Callable[[], Awaitable[None]],
    ) -> None:
        """`gpus` are those that the driver gives parts of; `make_room` takes back what is no longer needed."""
        self._node, self._gpus, self._allotments, self._files = node, gpus, allotments, files
        self._api, self._make_room = api, make_room

    async def prepare(self, namespace: str, name: str, uid: str) -> list[Allotment]:
        """What a claim has of this node's GPUs, made if need be; BerthError or OSError says why it cannot be."""
        held = self._held(uid)
        try:
            claim = await self._api.claim(namespace, name)
        except KubernetesError:
            if not held:
                raise
            self._make(
                uid, held
            )  # it was prepared before; a pod that restarts does not wait for the API server
            return held
        if claim is None or claim.uid != uid:
            raise KubernetesError(
                f"the claim {namespace}/{name} is gone, or another one of its name is there now"
            )
        wanted = self._wanted(claim)
        if held != wanted:
            self._take_back(held)
        try:
            self._make(uid, wanted)
        except KubernetesError:
            await self._make_room()
            self._make(uid, wanted)
        return wanted

    def unprepare(self, uid: str) -> None:
        """Take back what a claim has; PartitionError while processes use it. An unknown claim is no error."""
        self._take_back(self._held(uid))
        self._files.remove(uid)

    def _held(self, uid: str) -> list[Allotment]:
        found = [each for each in self._allotments.of_holder(uid) if not each.holder.container]
        return sorted(found, key=lambda each: int(each.name.rpartition(".")[2]))

    def _make(self, uid: str, wanted: list[Allotment]) -> None:
        made = []
        try:
            for each in wanted:
                self._allotments.give(each)
                made.append(each)
            self._files.write(uid, wanted, self._allotments)
        except (KubernetesError, PartitionError, OSError):
            self._take_back(made)
            raise

    def _take_back(self, given: list[Allotment]) -> None:
        for each in given:
            self._allotments.take_back(each.name)

    def _wanted(self, claim: Claim) -> list[Allotment]:
        said = f"the claim {claim.namespace}/{claim.name}"
        if not claim.allocated:
            raise KubernetesError(f"{said} is not allocated; the kubelet asks again when it is")
        if not claim.devices:
            raise KubernetesError(f"{said} was allocated nothing of {DRIVER}")
        holder = Holder(claim.namespace, claim.name, claim.uid)
        found = []
        for number, device in enumerate(claim.devices):
            if device.pool != self._node:
                raise KubernetesError(
                    f"{said} was allocated the device {device.device} of {device.pool}, and this is the node"
                    f" {self._node}"
                )
            part, name = self._part(claim, device), f"{claim.uid}.{number}"
            made = Allotment(name, holder, (part,), request=device.request, device=device.device)
            found.append(replace(made, share=device.share))
        return found

    def _part(self, claim: Claim, device: ClaimDevice) -> Part:
        index = device_index(device.device)
        if index is None or index not in self._gpus:
            raise KubernetesError(
                f"the claim {claim.namespace}/{claim.name} was allocated the device '{device.device}', which"
                f" {DRIVER} does not give on this node; it gives {', '.join(f'gpu-{gpu}' for gpu in self._gpus)}"
            )
        card = self._allotments.cards[index]
        mem_mib = card.mem_mib if device.mem_mib is None else device.mem_mib
        milli = 1000 if device.milli is None else device.milli
        if mem_mib < 1 or not 1 <= milli <= 1000:
            raise KubernetesError(
                f"the claim {claim.namespace}/{claim.name} was allocated {mem_mib} MiB and {milli} milli; at least"
                " 1 MiB and 1 to 1000 milli can be given"
            )
        return Part(index, mem_mib, milli, burst=claim.burst, priority=claim.priority)
