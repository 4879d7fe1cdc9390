"""What a cluster has, as its accounting registered it: how many GPUs, CPUs and how much memory, from when to when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Capacity:
    """All of a cluster's nodes over some time."""

    begin_ms: int
    end_ms: int | None
    """None: until now."""
    nodes: tuple[str, ...]
    gpus: int
    cpus: int
    mem_mib: int


def capacity_at(capacities: tuple[Capacity, ...], moment_ms: int) -> Capacity | None:
    """What held at a moment; before the first the first, None if there is none."""
    held = [each for each in capacities if each.begin_ms <= moment_ms]
    return (
        max(held, key=lambda each: each.begin_ms)
        if held
        else min(capacities, key=lambda e: e.begin_ms, default=None)
    )


def capacities_to_json(capacities: Mapping[str, tuple[Capacity, ...]]) -> dict[str, Any]:
    """As `index.json` keeps them, by cluster."""
    return {cluster: [asdict(each) for each in of] for cluster, of in capacities.items()}


def capacities_from_json(capacities: Mapping[str, Any]) -> dict[str, tuple[Capacity, ...]]:
    """What `capacities_to_json` made."""
    return {
        cluster: tuple(Capacity(**{**each, "nodes": tuple(each["nodes"])}) for each in of)
        for cluster, of in capacities.items()
    }
