"""Counts of a cluster: GPUs that are held, idle though held, or free, and jobs that run or wait."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from berth.console.schemas import GpuAnswer
from berth.live.driver.snapshot import Gpu, Snapshot

IDLE_PCT = 5.0
"""A held GPU below this use does nothing."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Sums over GPUs and jobs."""

    gpus: int = 0
    held: int = 0
    """GPUs with at least one job."""
    shared: int = 0
    """Of those, with more than one."""
    idle: int = 0
    """Of those that are held and measured, used less than `IDLE_PCT`."""
    free: int = 0
    """GPUs on which nothing is and something may start."""
    use_pct: float | None = None
    """Mean use of the GPUs that are measured; None where none is."""
    waiting: int = 0
    running: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def counts_of(snapshots: Iterable[Snapshot]) -> Counts:
    """The sums of these looks."""
    snapshots = tuple(snapshots)
    gpus = [gpu for look in snapshots for gpu in look.gpus]
    held = [gpu for gpu in gpus if gpu.tenants]
    measured = [gpu.use_pct for gpu in gpus if gpu.use_pct is not None]
    return Counts(
        gpus=len(gpus),
        held=len(held),
        shared=sum(len(gpu.tenants) > 1 for gpu in held),
        idle=sum(gpu.use_pct is not None and gpu.use_pct < IDLE_PCT for gpu in held),
        free=sum(not (gpu.tenants or gpu.strangers or gpu.health or gpu.drained) for gpu in gpus),
        use_pct=round(sum(measured) / len(measured), 1) if measured else None,
        waiting=sum(look.waiting for look in snapshots),
        running=sum(look.running for look in snapshots),
    )


def key_of(source: str, gpu: Gpu) -> tuple[str, str, int]:
    """What one GPU is known by."""
    return source, gpu.node, gpu.index


def gpu_json(source: str, gpu: Gpu) -> dict[str, Any]:
    """A GPU as every viewer may see it."""
    return {**GpuAnswer.model_validate(gpu).model_dump(), "source": source}
