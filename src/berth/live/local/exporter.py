"""Prometheus metrics of the queue: on a Unix socket, or on a port of 127.0.0.1."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from berth.live.driver.metrics import JOB_MEMORY, JOB_MEMORY_TEXT, gpu_metrics
from berth.live.driver.snapshot import gpu_of
from berth.live.local.places import check_metrics

Message = dict[str, Any]
SCRAPE_S = 10.0
"""How long a scraper may take to ask, and to read the answer."""
_COUNTERS = {
    "submitted": "Jobs that were submitted.",
    "refused_allocations": "Calls for GPU memory that partitions refused, of attempts that ended.",
    "decisions": "Times that the policy was asked.",
    "brain_restarts": "Times that the policy's process was started again.",
    "commits": "Commits of the store.",
}
_HISTOGRAMS = {
    "queue_wait_seconds": "How long attempts waited before they began.",
    "decision_seconds": "How long the policy took to decide.",
}
_WISHES = "Calls for more GPU memory than their job's limit had room for, by outcome."
_UNCOUNTED = "GPU memory that a running job holds beyond what its partition counted."


class _Answer(Collector):
    """The queue's answer to `metrics`, as Prometheus has it."""

    def __init__(self, answer: Message) -> None:
        self._answer = answer

    def collect(self) -> Iterator[Metric]:
        answer = self._answer
        gpus = [gpu_of(gpu) for gpu in answer["gpus"]]
        yield from gpu_metrics(gpus)
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        yield gauge("berth_up", "Whether the queue answers.", value=1)
        yield _by(gauge("berth_jobs", "Jobs of the queue by state.", labels=["state"]), answer["jobs"])
        ended = counter("berth_attempts_ended", "Attempts that ended, by outcome.", labels=["state"])
        yield _by(ended, answer["ended"])
        yield _by(counter("berth_growth_wishes", _WISHES, labels=["outcome"]), answer["growth"])
        for name, text in _COUNTERS.items():
            yield counter(f"berth_{name}", text, value=answer[name])
        memory = gauge(JOB_MEMORY, JOB_MEMORY_TEXT, labels=["job", "gpu", "kind"])
        for gpu in gpus:
            for tenant in gpu.tenants:
                for kind, mem_mib in tenant.sizes_mib.items():
                    memory.add_metric([tenant.job, str(gpu.index), kind], float(mem_mib << 20))
        yield memory
        held = {job_id: mem_mib << 20 for job_id, mem_mib in answer["uncounted_mib"].items()}
        yield _by(gauge("berth_uncounted_bytes", _UNCOUNTED, labels=["job"]), held)
        for name, text in _HISTOGRAMS.items():
            buckets = [(bound, float(count)) for bound, count in answer[name]["buckets"]]
            yield HistogramMetricFamily(f"berth_{name}", text, buckets, answer[name]["sum"])
        ready = gauge("berth_policy_ready", "Whether the chosen policy decides.", labels=["policy"])
        yield _by(ready, {answer["policy"]: answer["ready"]})


def _by(family: GaugeMetricFamily | CounterMetricFamily, values: dict[str, float]) -> Metric:
    for label, value in values.items():
        family.add_metric([label], value)
    return family


async def serve_metrics(where: str, measured: Callable[[], Message]) -> None:
    """Serve until cancelled. Raises LiveError for a place that is no port or socket, OSError if it is taken."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(SCRAPE_S):
                await reader.readuntil(b"\r\n\r\n")
            registry = CollectorRegistry()
            registry.register(_Answer(measured()))
            text = generate_latest(registry)
            head = f"HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len(text)}\r\n\r\n"
            writer.write(head.encode() + text)
            writer.close()
            async with asyncio.timeout(SCRAPE_S):
                await writer.wait_closed()
        except (OSError, EOFError, asyncio.LimitOverrunError):
            pass  # the scraper has gone away, reads nothing, or is none
        finally:
            writer.transport.abort()  # what is not read by now is not sent

    check_metrics(where)
    if where.isdigit():
        server = await asyncio.start_server(answer, "127.0.0.1", int(where))
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(where)
        server = await asyncio.start_unix_server(answer, where)
    async with server:
        await server.serve_forever()
