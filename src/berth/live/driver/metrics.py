"""What every site tells Prometheus of its GPUs. What was not measured is absent, never 0."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from berth.live.driver.snapshot import Gpu

JOB_MEMORY = "berth_job_gpu_memory_bytes"
JOB_MEMORY_TEXT = (
    "GPU memory of a job that may grow, on each GPU: promise, limit, what that may become, and use."
)
OfGpus = dict[str, tuple[str, Callable[[Gpu], float | None]]]
"""By the name of a metric: what it is, and its value for a GPU; None: it was not measured."""
OF_GPUS: OfGpus = {
    "allocated_milli": (
        "Compute that jobs were given, per mille of the GPU.",
        lambda gpu: sum(each.milli for each in gpu.tenants),
    ),
    "allocated_bytes": (
        "Memory that jobs were given.",
        lambda gpu: sum(each.mem_mib for each in gpu.tenants) << 20,
    ),
    "memory_bytes": ("Memory of the GPU.", lambda gpu: gpu.mem_mib << 20),
    "used_bytes": (
        "Memory in use by any process; absent if it is not measured.",
        lambda gpu: None if gpu.used_mib is None else gpu.used_mib << 20,
    ),
    "stranger_bytes": (
        "Memory held by processes of no job, or promised to partitions of no job, whichever is larger.",
        lambda gpu: gpu.stranger_mib << 20,
    ),
    "tenants": ("Jobs on it.", lambda gpu: len(gpu.tenants)),
}
_LOST: OfGpus = {"lost": ("Whether it has fallen off the bus.", lambda gpu: bool(gpu.health))}


def gpu_metrics(gpus: Iterable[Gpu]) -> Iterator[Metric]:
    """The metrics of a machine's GPUs, each with the labels `gpu`, its index, and `model`."""
    there = list(gpus)
    for name, (text, value_of) in {**OF_GPUS, **_LOST}.items():
        family = GaugeMetricFamily(f"berth_gpu_{name}", text, labels=["gpu", "model"])
        for gpu in there:
            if (value := value_of(gpu)) is not None:
                family.add_metric([str(gpu.index), gpu.model], float(value))
        yield family
