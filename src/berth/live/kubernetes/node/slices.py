"""The GPUs of this node as a ResourceSlice: devices that many claims share by memory and milli, and what ails them.

The generation of the node's pool never goes back: a scheduler heeds only the highest. It is kept on disk and compared
with what the API server has before each write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from berth.files import whole_file
from berth.live.card_models import card_model
from berth.live.kubernetes.names import DRIVER
from berth.live.kubernetes.node.cluster_api import NodeApi
from berth.live.kubernetes.quantities import amount
from berth.live.local.cards import Card

__all__ = ["LOST", "TAINT", "SlicePublisher", "device_index", "device_name", "devices_of"]

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


def _device(card: Card, why: str | None) -> dict[str, Any]:
    model = card_model(card.model, card.mem_mib)
    attributes: dict[str, Any] = {
        "uuid": {"string": card.uuid},
        "model": {"string": model.name[:64]},
        "index": {"int": card.index},
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
    """Writes the slice of this node when it changes."""

    def __init__(self, node: str, folder: Path, api: NodeApi) -> None:
        """`folder` keeps the last generation."""
        self._node, self._api = node, api
        self._path = folder / "slice-generation"

    @property
    def name(self) -> str:
        """The slice's own name."""
        return f"{self._node}-{DRIVER}"

    async def publish(self, devices: Sequence[Mapping[str, Any]]) -> bool:
        """Have the API server tell exactly these devices; whether anything had to be written."""
        there = list(await self._api.slices())
        mine = [each for each in there if each.name == self.name]
        others = [each.name for each in there if each.name != self.name]
        spec = {"driver": DRIVER, "nodeName": self._node, "devices": list(devices)}
        same = bool(mine) and all(_plain(mine[0].spec.get(key)) == _plain(spec[key]) for key in spec)
        newest = max([self._kept(), *(each.generation for each in there)])
        written = not same or mine[0].generation < newest
        if written:
            generation = newest + 1
            self._keep(generation)
            pool = {"name": self._node, "generation": generation, "resourceSliceCount": 1}
            await self._api.write_slice(self.name, {**spec, "pool": pool})
        for name in others:
            await self._api.remove_slice(name)
        return written

    async def withdraw(self) -> None:
        """Take away what an agent with other options has published for this node."""
        for each in await self._api.slices():
            await self._api.remove_slice(each.name)

    def _kept(self) -> int:
        try:
            return int(self._path.read_text())
        except (OSError, ValueError):
            return 0

    def _keep(self, generation: int) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(self._path) as aside:
            aside.write_text(str(generation))


def _plain(told: Any) -> Any:
    """As it was sent: without what the API server adds, a taint's time, and with amounts in place of the way in which
    it writes them (`1k` for `1000`)."""
    if isinstance(told, list):
        return [_plain(each) for each in told]
    if not isinstance(told, dict):
        return told
    found = {key: _plain(value) for key, value in told.items() if key != "timeAdded"}
    if "capacity" in found:
        found["capacity"] = {name: _amounts(each) for name, each in found["capacity"].items()}
    return found


def _amounts(told: Any) -> Any:
    if isinstance(told, dict):
        return {key: _amounts(value) for key, value in told.items()}
    return [_amounts(each) for each in told] if isinstance(told, list) else amount(told)
