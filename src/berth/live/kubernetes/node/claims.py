"""Claims are prepared and taken back: each part of a claim its own region, the same however often it is asked for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from berth.errors import BerthError, KubernetesError
from berth.live.kubernetes.names import DRIVER
from berth.live.kubernetes.node.allotments import Allotment, Allotments, Holder, Part
from berth.live.kubernetes.node.api_server import ApiServer, Claim, ClaimDevice
from berth.live.kubernetes.node.claim_files import ClaimFiles
from berth.live.kubernetes.node.slices import device_index, device_name

log = logging.getLogger(__name__)

AT_ONCE = 32
"""Claims that are asked of the API server at a time."""


class Claims:
    def __init__(
        self,
        node: str,
        gpus: tuple[int, ...],
        allotments: Allotments,
        files: ClaimFiles,
        api: ApiServer,
        make_room: Callable[[], Awaitable[object]],
    ) -> None:
        """`gpus` are those that the driver gives parts of; `make_room` takes back what is no longer needed."""
        self._node, self._gpus, self._allotments, self._files = node, gpus, allotments, files
        self._api, self._make_room = api, make_room
        self.lost: frozenset[int] = frozenset()
        """GPUs that have fallen off the bus. One with an XID alone is left to its taint, which a claim may tolerate."""

    async def prepare(self, asked: Sequence[Any]) -> dict[str, list[Allotment] | str]:
        """What each claim has of this node's GPUs, made if need be, by its uid; or why it cannot be. `asked` are
        `dra.Claim`s, as the kubelet names them.

        A claim's allocation does not change while it is prepared, so that one that is prepared is answered at once.
        """
        room = asyncio.Semaphore(AT_ONCE)

        async def wanted_by(claim: Any) -> list[Allotment] | str:
            held = self._held(claim.uid)
            if held and len(held) == held[0].of:
                return held
            async with room:
                try:
                    return self._wanted(await self._allocated(claim))
                except Exception as error:  # noqa: BLE001 - it harms no other claim
                    return _message(error)

        answers = await asyncio.gather(*map(wanted_by, asked))
        wanted = {claim.uid: answer for claim, answer in zip(asked, answers, strict=True)}
        found = self._give(wanted)
        again = {
            uid: each
            for uid, each in wanted.items()
            if isinstance(found[uid], str) and not isinstance(each, str)
        }
        if again:
            await self._make_room()
            found |= self._give(again)
        return found

    async def _allocated(self, asked: Any) -> Claim:
        claim = await self._api.claim(asked.namespace, asked.name)
        if claim is None or claim.uid != asked.uid:
            raise KubernetesError(
                f"the claim {asked.namespace}/{asked.name} is gone, or another one of its name is there now"
            )
        return claim

    def _give(self, wanted: Mapping[str, list[Allotment] | str]) -> dict[str, list[Allotment] | str]:
        """Give what is wanted, each claim's for itself, and keep it by one write."""
        found: dict[str, list[Allotment] | str] = {}
        try:
            with self._allotments.batch():
                for uid, parts in wanted.items():
                    found[uid] = parts if isinstance(parts, str) else self._try(uid, parts)
        except OSError as error:  # none of them is kept: the kubelet asks again
            why = f"berth: {self._allotments.path} cannot be written: {error.strerror}"
            return dict.fromkeys(wanted, why)
        return found

    def _try(self, uid: str, wanted: list[Allotment]) -> list[Allotment] | str:
        """Give a claim its parts; what was half made of it before goes first."""
        held = self._held(uid)
        try:
            if held != wanted:
                self._take_back(held)
            self._allotments.give(*wanted)
            try:
                self._files.write(uid, wanted, self._allotments)
            except OSError:
                if held != wanted:
                    self._take_back(wanted)
                raise
        except Exception as error:  # noqa: BLE001 - it harms no other claim
            return _message(error)
        return wanted

    def unprepare(self, uid: str) -> None:
        """Take back what a claim has; PartitionError while processes use it. An unknown claim is no error."""
        with self._allotments.batch():
            self._take_back(self._held(uid))
        self._files.remove(uid)

    def unprepare_all(self, uids: Sequence[str]) -> dict[str, str]:
        """Take back what claims have; why one could not be, by its uid, else an empty text."""
        found: dict[str, str] = {}
        with self._allotments.batch():
            for uid in uids:
                try:
                    self.unprepare(uid)
                    found[uid] = ""
                except Exception as error:  # noqa: BLE001 - it harms no other claim
                    found[uid] = _message(error)
        return found

    def _held(self, uid: str) -> list[Allotment]:
        found = [each for each in self._allotments.of_holder(uid) if not each.holder.container]
        return sorted(found, key=lambda each: int(each.name.rpartition(".")[2]))

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
            found.append(
                Allotment(
                    name,
                    holder,
                    (part,),
                    request=device.request,
                    device=device.device,
                    share=device.share,
                    of=len(claim.devices),
                )
            )
        return found

    def _part(self, claim: Claim, device: ClaimDevice) -> Part:
        index = device_index(device.device)
        if index is None or index not in self._gpus:
            there = ", ".join(map(device_name, self._gpus))
            raise KubernetesError(
                f"the claim {claim.namespace}/{claim.name} was allocated the device '{device.device}', which"
                f" {DRIVER} does not give on this node; it gives {there or 'none'}"
            )
        if index in self.lost:
            raise KubernetesError(
                f"the claim {claim.namespace}/{claim.name} was allocated the device '{device.device}', which has fallen"
                " off the bus; nothing is prepared there until the machine has been restarted"
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


def _message(error: Exception) -> str:
    """Why one claim is not prepared, for whatever reason: it harms no other of its call."""
    if isinstance(error, BerthError | OSError):
        return f"berth: {error}"
    log.error("a claim was not prepared", exc_info=error)
    return f"berth: {error!r}"
