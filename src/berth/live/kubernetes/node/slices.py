"""The GPUs of this node as ResourceSlices: devices that many claims share by memory and milli, devices that are places
of instances of MIG, and what ails them.

The generation of the node's pool never goes back: a scheduler heeds only the highest that the API server has.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from berth.live.card_models import card_model
from berth.live.kubernetes.names import DRIVER
from berth.live.kubernetes.node.api_server import ApiServer
from berth.live.kubernetes.node.cut_gpus import CutDevices, CutGpu
from berth.live.local.cards import Card
from berth.partition.mig import Place

log = logging.getLogger(__name__)

MOST_SETS, MOST_DEVICES = 8, 64
"""How many sets of counters a slice may have, and devices that consume them (Kubernetes 1.35)."""
TAINT = f"{DRIVER}/ailing"
LOST = "lost"
"""What a GPU ails of that has fallen off the bus."""


def device_name(index: int) -> str:
    """The name of a GPU among the devices of its node."""
    return f"gpu-{index}"


def device_index(name: str) -> int | None:
    """The GPU of a device's name; None where it is no device of berth's."""
    number = name.removeprefix("gpu-")
    return int(number) if number != name and number.isdigit() else None


def devices_of(cards: Sequence[Card], ailing: Mapping[int, str]) -> list[dict[str, Any]]:
    """The devices as `resource.k8s.io/v1` writes them; `ailing` tells of what a GPU ails: an XID or `lost`."""
    return [_device(card, ailing.get(card.index)) for card in cards]


def cut_devices_of(
    gpu: CutGpu, ailing: Mapping[int, str], others: Iterable[Place], held: Collection[tuple[str, int]]
) -> CutDevices:
    """What is published of a GPU whose MIG is on; see `CutGpu.published`."""
    return gpu.published(_model_of(gpu.card), _taints(ailing.get(gpu.card.index)), others, held)


def _model_of(card: Card) -> dict[str, Any]:
    model = card_model(card.model, card.mem_mib)
    attributes: dict[str, Any] = {"model": {"string": model.name[:64]}}
    if model.architecture:
        attributes["architecture"] = {"string": model.architecture[:64]}
    return attributes


def _taints(why: str | None) -> list[dict[str, str]]:
    effect = "NoExecute" if why == LOST else "NoSchedule"
    return [] if why is None else [{"key": TAINT, "value": why, "effect": effect}]


def _device(card: Card, why: str | None) -> dict[str, Any]:
    attributes = {"uuid": {"string": card.uuid}, "index": {"int": card.index}, **_model_of(card)}
    device: dict[str, Any] = {
        "name": device_name(card.index),
        "attributes": attributes,
        "capacity": {
            "memory": _capacity(f"{card.mem_mib}Mi", "1Mi"),
            "milli": _capacity("1000", "1"),
        },
        "allowMultipleAllocations": True,
    }
    return {**device, "taints": _taints(why)} if why is not None else device


def _capacity(whole: str, step: str) -> dict[str, Any]:
    """All of it where a claim does not say how much."""
    return {
        "value": whole,
        "requestPolicy": {"default": whole, "validRange": {"min": step, "max": whole, "step": step}},
    }


class SlicePublisher:
    """Writes the slices of this node when they change."""

    def __init__(self, node: str, api: ApiServer) -> None:
        self._node, self._api = node, api
        self._specs_told: dict[str, dict[str, Any]] | None = None
        self._has_counters: bool | None = None

    @property
    def name(self) -> str:
        """The name of its first slice, with which those of the others begin."""
        return f"{self._node}-{DRIVER}"

    async def publish(self, devices: Sequence[Mapping[str, Any]], cut: Sequence[CutDevices] = ()) -> bool:
        """Have the API server tell exactly these devices; whether any slice had to be written.

        GPUs whose MIG is on are left out where the API server does not keep counters: without them a scheduler would
        allocate more instances than a GPU has room for.
        """
        specs = await self._specs(devices, [each for each in cut if each.devices])
        there = await self._api.slices()
        newest = max(there.values(), default=0)
        # Each tells how many there are, so that one that goes changes all.
        written = specs != self._specs_told or there != dict.fromkeys(specs, newest)
        self._specs_told = None
        if written and specs:
            pool = {"name": self._node, "generation": newest + 1, "resourceSliceCount": len(specs)}
            for name, spec in specs.items():
                await self._api.write_slice(name, {**spec, "pool": pool})
        for name in there.keys() - specs.keys():
            await self._api.remove_slice(name)
        self._specs_told = specs
        return written

    async def _specs(
        self, devices: Sequence[Mapping[str, Any]], cut: Sequence[CutDevices]
    ) -> dict[str, dict[str, Any]]:
        """The slices by their names, without their pool."""
        found: dict[str, dict[str, Any]] = {}
        if devices:
            found[self.name] = {"devices": list(devices)}
        if cut and await self._keeps_counters(cut[0]):
            for at in range(0, len(cut), MOST_SETS):
                sets = [each.counters for each in cut[at : at + MOST_SETS]]
                found[f"{self.name}-counters-{at // MOST_SETS}"] = {"sharedCounters": sets}
            for each in cut:
                for at in range(0, len(each.devices), MOST_DEVICES):
                    part = list(each.devices[at : at + MOST_DEVICES])
                    found[f"{self.name}-{each.name}-{at // MOST_DEVICES}"] = {"devices": part}
        return {name: {"driver": DRIVER, "nodeName": self._node, **spec} for name, spec in found.items()}

    async def _keeps_counters(self, cut: CutDevices) -> bool:
        """Whether this API server keeps counters in slices apart from the devices that consume them, as Kubernetes 1.35
        and later can. It is asked, since no version tells what its feature gates are."""
        pool = {"name": self._node, "generation": 1, "resourceSliceCount": 2}
        body = {"driver": DRIVER, "nodeName": self._node, "pool": pool, "devices": list(cut.devices[:1])}
        kept = await self._api.try_slice(f"{self.name}-try", body)
        found = kept is not None and bool(kept["devices"][0].get("consumesCounters"))
        if not found and self._has_counters is not found:
            log.warning(
                "GPUs whose MIG is on are not published: this API server keeps no counters of devices; turn on its"
                " feature gate DRAPartitionableDevices (on by default from Kubernetes 1.36)"
            )
        self._has_counters = found
        return found
