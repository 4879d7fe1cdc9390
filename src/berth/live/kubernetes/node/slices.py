"""The GPUs of this node as a ResourceSlice: devices that many claims share by memory and milli, and what ails them.

The generation of the node's pool never goes back: a scheduler heeds only the highest that the API server has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from berth.live.card_models import card_model
from berth.live.kubernetes.names import DRIVER
from berth.live.kubernetes.node.api_server import ApiServer
from berth.live.local.cards import Card

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
