"""`/metrics`: the live cluster for Prometheus; a scraper sends a token as a bearer's.

Metrics of a source or of the console come through prometheus_client. Those of each GPU are written as text here: as
the client's objects, 10,000 GPUs would hold up all pages for seconds at each scrape.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from berth.console.hub import Hub
from berth.console.identity import viewer
from berth.console.roles import Viewer
from berth.live.driver.metrics import JOB_MEMORY, JOB_MEMORY_TEXT
from berth.live.driver.snapshot import Gpu

router = APIRouter()
_OF_GPU: tuple[tuple[str, str, Callable[[Gpu], float | None]], ...] = (
    (
        "allocated_milli",
        "Compute that jobs were promised, per mille of the GPU.",
        lambda gpu: sum(each.milli for each in gpu.tenants),
    ),
    (
        "allocated_bytes",
        "Memory that jobs were promised.",
        lambda gpu: sum(each.mem_mib for each in gpu.tenants) << 20,
    ),
    ("memory_bytes", "Memory of the GPU.", lambda gpu: gpu.mem_mib << 20),
    (
        "used_bytes",
        "Memory in use; absent where it is not measured.",
        lambda gpu: None if gpu.used_mib is None else gpu.used_mib << 20,
    ),
    (
        "utilization_ratio",
        "Part of the time in which the GPU works; absent where it is not measured.",
        lambda gpu: None if gpu.use_pct is None else gpu.use_pct / 100,
    ),
    (
        "stranger_bytes",
        "Memory held by processes that belong to no job.",
        lambda gpu: sum(each.mem_mib for each in gpu.strangers) << 20,
    ),
    ("tenants", "Jobs on it.", lambda gpu: len(gpu.tenants)),
    (
        "drained",
        "Whether nothing new starts there because an operator said so.",
        lambda gpu: int(gpu.drained),
    ),
    ("healthy", "Whether nothing is wrong with it.", lambda gpu: int(not gpu.health)),
)
_JOB = "Compute of each job on the GPU, per mille; hpc_job joins DCGM's exporter, jobid that of Jobstats and Slurm's."


class _SourceMetrics(Collector):
    """Metrics of each source and of the console."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def collect(self) -> Iterator[Metric]:
        """The families."""
        up = GaugeMetricFamily("berth_source_up", "Whether the queue answers.", labels=["source"])
        jobs = GaugeMetricFamily("berth_jobs", "Jobs by state.", labels=["source", "state"])
        labels = ["source", "model"]
        cards = GaugeMetricFamily(
            "berth_more_cards", "Cards that would start jobs which wait for room.", labels=labels
        )
        started = GaugeMetricFamily("berth_more_cards_jobs", "Jobs that these would start.", labels=labels)
        for name, seen in self._hub.seen.items():
            up.add_metric([name], float(seen.look is not None))
            if seen.look is not None:
                jobs.add_metric([name, "waiting"], seen.look.waiting)
                jobs.add_metric([name, "running"], seen.look.running)
                for more in seen.look.more_cards:
                    cards.add_metric([name, more.model], more.cards)
                    started.add_metric([name, more.model], more.jobs)
        watchers = GaugeMetricFamily("berth_console_pages", "Pages that are being told what happens.")
        watchers.add_metric([], self._hub.watchers)
        yield from (up, jobs, cards, started, watchers)


def _gpu_text(gpus: list[tuple[str, Gpu]]) -> str:
    """Each family of the GPUs in Prometheus' text format."""
    labels = [
        f'{{gpu="{gpu.index}",model="{_escaped(gpu.model)}",node="{_escaped(gpu.node)}",source="{_escaped(name)}"}}'
        for name, gpu in gpus
    ]
    lines = []
    for name, text, value_of in _OF_GPU:
        lines.append(f"# HELP berth_gpu_{name} {text}\n# TYPE berth_gpu_{name} gauge\n")
        for label, (_, gpu) in zip(labels, gpus, strict=True):
            value = value_of(gpu)
            if value is not None:
                lines.append(f"berth_gpu_{name}{label} {value}\n")
    lines.append(f"# HELP berth_gpu_job {_JOB}\n# TYPE berth_gpu_job gauge\n")
    for label, (_, gpu) in zip(labels, gpus, strict=True):
        for each in gpu.tenants:
            names = (
                f'hpc_job="{_escaped(each.job)}",jobid="{_escaped(each.job)}",user="{_escaped(each.user)}"'
            )
            lines.append(f"berth_gpu_job{label[:-1]},{names}}} {each.milli}\n")
    lines.append(f"# HELP {JOB_MEMORY} {JOB_MEMORY_TEXT}\n# TYPE {JOB_MEMORY} gauge\n")
    for label, (_, gpu) in zip(labels, gpus, strict=True):
        for each in gpu.tenants:
            for kind, mem_mib in each.sizes_mib.items():
                names = f'job="{_escaped(each.job)}",kind="{kind}"'
                lines.append(f"{JOB_MEMORY}{label[:-1]},{names}}} {mem_mib << 20}\n")
    return "".join(lines)


def _escaped(text: str) -> str:
    """A label's value: the three signs that the format escapes, and nothing that UTF-8 cannot hold."""
    plain = text.encode("utf-8", "replace").decode()
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request, who: Annotated[Viewer, Depends(viewer)]) -> Response:
    """Metrics in Prometheus' text format."""
    hub: Hub = request.app.state.hub
    seen = await hub.fresh()
    gpus = [(name, gpu) for name, each in seen.items() if each.look for gpu in each.look.gpus]
    registry = CollectorRegistry()
    registry.register(_SourceMetrics(hub))
    text = generate_latest(registry) + (await asyncio.to_thread(_gpu_text, gpus)).encode()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
