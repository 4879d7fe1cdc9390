"""Speeds as they were measured of training jobs that share a GPU: a contention model fitted to published pairs."""

from __future__ import annotations

from typing import Any

import numpy as np

from berth.interference.speeds import CORES, GPU, pcie_shared

__all__ = ["measured"]


def measured(usage: Any, present: Any, capacity_mem_mib: Any, *, xp: Any = np) -> Any:
    """Speeds per mille of tenants as the fitted model has them: see `Speeds` for the shapes."""
    gpu = xp.where(present, xp.clip(usage[..., GPU], 0, 1000), 0).astype(xp.int32)
    cores = xp.where(present, xp.clip(usage[..., CORES], 0, 1000), 0).astype(xp.int32)
    others = xp.sum(gpu, axis=-1, keepdims=True, dtype=xp.int32) - gpu
    busy = xp.sum(cores, axis=-1, keepdims=True, dtype=xp.int32) - cores
    stress = (gpu * xp.minimum(others, 4000) // 1000 + cores * xp.minimum(busy, 4000) // 1000) // 2
    speeds = xp.int32(1_000_000) // (1000 + stress)
    return xp.minimum(speeds, pcie_shared(usage, present, xp=xp)).astype(xp.int32)
