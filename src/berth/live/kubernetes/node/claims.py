"""The DRA driver of this node: GPUs published as a ResourceSlice, claims prepared as CDI devices and taken back.

Many claims share a device by memory and milli. Each part of a claim has a region of its own, the same however often it
is asked for. The generation of the node's pool never goes back: a scheduler heeds only the highest that the API server
has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from berth.errors import BerthError, KubernetesError
from berth.files import write_whole
from berth.live.card_models import card_model
from berth.live.kubernetes.apis import DRA, PLUGIN_REGISTRATION, dra, registration, serve
from berth.live.kubernetes.names import DRIVER
from berth.live.kubernetes.node.allotments import Allotment, Allotments, Holder, Part
from berth.live.kubernetes.node.api_server import ApiServer, Claim, ClaimDevice
from berth.live.kubernetes.node.driver_files import DriverFiles
from berth.live.local.cards import Card
from berth.partition.cdi import cdi_mount
from berth.partition.gpus import plain_uuid
from berth.partition.regions import region_mounts

TAINT = f"{DRIVER}/ailing"
LOST = "lost"
"""What a GPU ails of that has fallen off the bus."""


def device_name(index: int) -> str:
    return f"gpu-{index}"


def device_index(name: str) -> int | None:
    """The GPU of a device's name; None where it is no device of berth's."""
    number = name.removeprefix("gpu-")
    return int(number) if number != name and number.isdigit() else None


def devices_of(cards: Sequence[Card], ailing: Mapping[int, str]) -> list[dict[str, Any]]:
    """The devices as `resource.k8s.io/v1` writes them; `ailing` tells of what a GPU ails: an XID or `lost`."""
    return [_device(card, ailing.get(card.index)) for card in cards]


def _device(card: Card, why: str | None) -> dict[str, Any]:
    model = card_model(card.model, card.mem_mib)
    attributes: dict[str, Any] = {
        "uuid": {"string": card.uuid},
        "index": {"int": card.index},
        "model": {"string": model.name[:64]},
    }
    if model.architecture:
        attributes["architecture"] = {"string": model.architecture[:64]}
    device: dict[str, Any] = {
        "name": device_name(card.index),
        "attributes": attributes,
        "capacity": {
            "memory": _capacity(f"{card.mem_mib}Mi", "1Mi"),
            "milli": _capacity("1000", "1"),
        },
        "allowMultipleAllocations": True,
    }
    if why is not None:
        effect = "NoExecute" if why == LOST else "NoSchedule"
        device["taints"] = [{"key": TAINT, "value": why, "effect": effect}]
    return device


def _capacity(whole: str, step: str) -> dict[str, Any]:
    """All of it where a claim does not say how much."""
    return {
        "value": whole,
        "requestPolicy": {"default": whole, "validRange": {"min": step, "max": whole, "step": step}},
    }


class SlicePublisher:
    def __init__(self, node: str, api: ApiServer) -> None:
        self._node, self._api = node, api
        self._published: list[dict[str, Any]] | None = None

    async def publish(self, devices: list[dict[str, Any]]) -> bool:
        """Have the API server tell exactly these devices; whether the slice had to be written."""
        name = f"{self._node}-{DRIVER}"
        there = await self._api.slices()
        newest = max(there.values(), default=0)
        written = devices != self._published or there != ({name: newest} if devices else {})
        self._published = None
        if written and devices:
            pool = {"name": self._node, "generation": newest + 1, "resourceSliceCount": 1}
            spec = {"driver": DRIVER, "nodeName": self._node, "pool": pool, "devices": devices}
            await self._api.write_slice(name, spec)
        for other in there.keys() - ({name} if devices else set()):
            await self._api.remove_slice(other)
        self._published = devices
        return written


KIND = f"{DRIVER}/claim"


class ClaimFiles:
    """The folder that the container runtime reads."""

    def __init__(self, folder: Path, driver: DriverFiles) -> None:
        self._folder, self._driver = folder, driver

    @staticmethod
    def device(allotment: Allotment) -> str:
        """The full name by which a container gets this allotment."""
        return f"{KIND}={allotment.name}"

    def write(self, uid: str, given: Sequence[Allotment], allotments: Allotments) -> None:
        """Write the specification of a claim, unless it is there as it should be."""
        specification = {
            "cdiVersion": "0.5.0",
            "kind": KIND,
            "containerEdits": self._shared,
            "devices": [
                {"name": each.name, "containerEdits": self._edits(each, allotments)} for each in given
            ],
        }
        text, path = msgspec.json.encode(specification), self._path(uid)
        if path.exists() and path.read_bytes() == text:
            return
        self._folder.mkdir(parents=True, exist_ok=True)  # it lies in memory
        write_whole(path, text)

    def remove(self, uid: str) -> None:
        """Take the specification of a claim away; one that is not there is no error."""
        self._path(uid).unlink(missing_ok=True)

    def _path(self, uid: str) -> Path:
        return self._folder / f"{DRIVER}-claim-{uid}.json"

    @cached_property
    def _shared(self) -> msgspec.Raw:
        edits: dict[str, Any] = {
            "mounts": [cdi_mount(*file) for file in self._driver.mounts],
            "deviceNodes": [_node(path) for path in self._driver.common],
            "env": [f"{name}={value}" for name, value in self._driver.environment.items()],
        }
        return msgspec.Raw(msgspec.json.encode({name: found for name, found in edits.items() if found}))

    def _edits(self, allotment: Allotment, allotments: Allotments) -> dict[str, Any]:
        uuids = (plain_uuid(allotments.cards[part.index].uuid) for part in allotment.parts)
        return {
            "mounts": [cdi_mount(*each) for each in region_mounts(allotments.root / allotment.name, uuids)],
            "deviceNodes": [_node(self._driver.nodes[part.index]) for part in allotment.parts],
        }


def _node(path: Path) -> dict[str, Any]:
    return {"path": f"/dev/{path.name}", "hostPath": str(path), "permissions": "rw"}


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


VERSION = "v1.DRAPlugin"
LOOK_S = 0.5


class DraDriver:
    """The sockets that the kubelet finds, and what it calls there."""

    def __init__(self, node: str, plugins: Path, registry: Path, claims: Claims) -> None:
        """`plugins` and `registry` are the kubelet's folders of that name."""
        self._node, self._claims = node, claims
        self._socket = plugins / DRIVER / "dra.sock"
        self._registry = registry / f"{DRIVER}-reg.sock"
        self.registrations = 0

    async def run(self) -> None:
        """Serve until cancelled; sockets that are taken away are made anew."""
        while True:
            servers = [
                await serve(self._socket, DRA, self),
                await serve(self._registry, PLUGIN_REGISTRATION, self),
            ]
            try:
                while self._socket.exists() and self._registry.exists():
                    await asyncio.sleep(LOOK_S)
            finally:
                for server in servers:
                    await server.stop(0)

    async def GetInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        return registration.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=str(self._socket), supported_versions=[VERSION]
        )

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        if not request.plugin_registered:
            log.warning("the kubelet refuses %s: %s", DRIVER, request.error)
        self.registrations += request.plugin_registered
        return registration.RegistrationStatusResponse()

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Prepare claims; one that fails harms no other."""
        answer = dra.NodePrepareResourcesResponse()
        asked = {each.uid: each for each in request.claims}
        for uid, given in (await self._claims.prepare([*asked.values()])).items():
            if isinstance(given, str):
                answer.claims[uid].error = given
                continue
            answer.claims[uid].SetInParent()
            for each in given:
                device = answer.claims[uid].devices.add(
                    request_names=[each.request],
                    pool_name=self._node,
                    device_name=each.device,
                    cdi_device_ids=[ClaimFiles.device(each)],
                )
                if each.share:
                    device.share_id = each.share
        return answer

    async def NodeUnprepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = dra.NodeUnprepareResourcesResponse()
        for uid, error in self._claims.unprepare_all([claim.uid for claim in request.claims]).items():
            answer.claims[uid].error = error
        return answer
