"""What every site tells Prometheus of its GPUs. What was not measured is absent, never 0."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric

JOB_MEMORY = "berth_job_gpu_memory_bytes"
JOB_MEMORY_TEXT = (
    "GPU memory of a job that may grow, on each GPU: promise, limit, what that may become, and use."
)
_FAMILIES = {
    "allocated_milli": "Compute that jobs were given, per mille of the GPU.",
    "allocated_bytes": "Memory that jobs were given.",
    "memory_bytes": "Memory of the GPU.",
    "used_bytes": "Memory in use by any process; absent if it is not measured.",
    "stranger_bytes": "Memory held by processes that belong to no job.",
    "tenants": "Jobs on it.",
    "lost": "Whether it has fallen off the bus.",
}


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One GPU: what it has, what is given of it and what is used."""

    index: int
    model: str
    mem_mib: int
    given_milli: int
    given_mib: int
    tenants: int
    """Jobs on it."""
    stranger_mib: int
    """Memory that processes of no job hold."""
    used_mib: int | None
    """Memory in use by any process; None: it is not measured."""
    lost: bool = False


def gpu_metrics(gpus: Iterable[GpuUse]) -> Iterator[Metric]:
    """The metrics of GPUs, each with the labels `gpu`, its index, and `model`."""
    families = {
        name: GaugeMetricFamily(f"berth_gpu_{name}", text, labels=["gpu", "model"])
        for name, text in _FAMILIES.items()
    }
    for gpu in gpus:
        values = {
            "allocated_milli": gpu.given_milli,
            "allocated_bytes": gpu.given_mib << 20,
            "memory_bytes": gpu.mem_mib << 20,
            "used_bytes": None if gpu.used_mib is None else gpu.used_mib << 20,
            "stranger_bytes": gpu.stranger_mib << 20,
            "tenants": gpu.tenants,
            "lost": int(gpu.lost),
        }
        for name, value in values.items():
            if value is not None:
                families[name].add_metric([str(gpu.index), gpu.model], value)
    yield from families.values()
