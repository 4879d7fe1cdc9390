"""The GPUs that ResourceSlices tell of: shared whole, or cut into devices that consume the counters of one set.

A device that consumes counters is a part of the hardware that the set stands for, such as an instance of MIG. Of all
that are published as many may be allocated at once as the counters suffice for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from berth.errors import AskError
from berth.live.kubernetes import objects as api
from berth.live.kubernetes.gpu_labels import MOST_GPUS
from berth.live.kubernetes.names import MEMORY_SLICE
from berth.live.kubernetes.quantities import mem_mib, whole
from berth.model import Share

T = TypeVar("T")
_INDEX = re.compile(r".*?(\d+)")


@dataclass(frozen=True, slots=True)
class SliceGpu:
    """One GPU of a pool."""

    index: int
    uuid: str | None
    model: str
    mem_mib: int
    healthy: bool
    device: str
    """The name of the device; of one that is cut into devices that of its counter set."""
    parts: Mapping[str, Share] = field(default_factory=dict)
    """What each of its devices takes of it while it is allocated, by name; empty: it is one device."""


def gpus_in(slices: Iterable[api.ResourceSlice]) -> list[SliceGpu]:
    """The GPUs of a node's slices, those of the newest generation, by index. Raises AskError."""
    slices = list(slices)
    newest = max((each.spec.pool.generation for each in slices), default=0)
    there = [each.spec for each in slices if each.spec.pool.generation == newest]
    sets = {each.name: each for spec in there for each in spec.shared_counters}
    found: list[SliceGpu] = []
    cut: dict[str, list[api.Device]] = {}
    for spec in there:
        for at, device in enumerate(spec.devices):
            if device.consumes_counters:
                for consumed in device.consumes_counters:
                    cut.setdefault(consumed.counter_set, []).append(device)
            else:
                found.append(_whole(device, at))
    for name, devices in cut.items():
        if name not in sets:
            raise AskError(
                f"devices of its ResourceSlices consume counters of '{name[:63]}', a set that is not there"
            )
        found.append(_cut(sets[name], devices, len(found)))
    if len({gpu.index for gpu in found}) < len(found):
        raise AskError("two devices of its ResourceSlices have the same index")
    return sorted(found, key=lambda each: each.index)[:MOST_GPUS]


def _whole(device: api.Device, at: int) -> SliceGpu:
    said, held = _short(device.attributes), _short(device.capacity)
    index = said["index"].int_ if "index" in said else None
    mib = mem_mib(held["memory"].value, down=True) if "memory" in held else 0
    uuid = said["uuid"].string if "uuid" in said else None
    return SliceGpu(at if index is None else index, uuid, _model_in(said), mib, _healthy(device), device.name)


def _cut(counters: api.CounterSet, devices: list[api.Device], at: int) -> SliceGpu:
    said, named = _short(devices[0].attributes), _INDEX.match(counters.name)
    index = said["parentIndex"].int_ if "parentIndex" in said else None
    if index is None:
        index = int(named[1]) if named else at
    uuid = said["parentUUID"].string if "parentUUID" in said else None
    card_mib = mem_mib(counters.counters["memory"].value, down=True) if "memory" in counters.counters else 0
    parts = {device.name: _part(device, counters, card_mib) for device in devices}
    healthy = any(map(_healthy, devices))
    return SliceGpu(index, uuid, _model_in(said), card_mib, healthy, counters.name, parts)


def _part(device: api.Device, counters: api.CounterSet, card_mib: int) -> Share:
    """What a device takes: memory as its counter says, compute by the counter of which it takes the largest part."""
    takes = next(each.counters for each in device.consumes_counters if each.counter_set == counters.name)
    most = 0
    for name, counter in takes.items():
        if name in counters.counters and name != "memory" and not name.startswith(MEMORY_SLICE):
            all_of_it = whole(counters.counters[name].value)
            most = max(most, -(-1000 * whole(counter.value) // all_of_it) if all_of_it else 0)
    mib = mem_mib(takes["memory"].value, down=True) if "memory" in takes else card_mib * most // 1000
    return Share(min(1000, most), mib)


def _model_in(said: Mapping[str, api.AttributeValue]) -> str:
    return (said["model"].string if "model" in said else None) or "GPU"


def _short(named: Mapping[str, T]) -> dict[str, T]:
    """By names without the driver's."""
    return {key.rpartition("/")[2]: value for key, value in named.items()}


def _healthy(device: api.Device) -> bool:
    return not any(taint.effect in ("NoSchedule", "NoExecute") for taint in device.taints)
