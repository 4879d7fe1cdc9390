"""What a claim was allocated of a device, as Kubernetes writes it; read alike by the scheduler and by the node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from berth.live.kubernetes import names
from berth.live.kubernetes.quantities import mem_mib, whole


class Consumed(NamedTuple):
    """A part of a device."""

    mem_mib: int | None
    """None: all that the device has."""
    milli: int | None
    """None: all of it."""


def consumed_of(capacity: Mapping[str, str | int | float]) -> Consumed:
    """What `consumedCapacity` says, by short names or by those of the driver. Memory is rounded down, so that the
    scheduler counts what the node gives. Raises AskError for an amount that is no quantity."""
    mem = capacity.get("memory", capacity.get(f"{names.DRIVER}/memory"))
    milli = capacity.get("milli", capacity.get(f"{names.DRIVER}/milli"))
    return Consumed(None if mem is None else mem_mib(mem, down=True), None if milli is None else whole(milli))
