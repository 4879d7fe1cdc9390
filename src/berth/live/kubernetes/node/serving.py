"""What a node serves over HTTP: metrics of its GPUs and pods for Prometheus, and its history for `berth k8s history`.

Metrics of GPUs are the same as the local queue's.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from berth.errors import KubernetesError, SettingError
from berth.live.driver.metrics import gpu_metrics
from berth.live.driver.snapshot import Gpu, Stranger, Tenant
from berth.live.kubernetes.node.agent import Agent, PodPart, View
from berth.live.local.cards import Card

LABELS = ("namespace", "pod", "container", "gpu")
_OF_PARTS = (
    (Gauge, "promise_bytes", "GPU memory that a container is promised."),
    (Gauge, "limit_bytes", "GPU memory that a container may have now."),
    (Gauge, "used_bytes", "GPU memory that a container has."),
    (Gauge, "peak_bytes", "The most GPU memory that a container had."),
    (Gauge, "milli", "The share of the GPU's time that a container was given, per mille."),
    (Counter, "seconds", "GPU time that a container used; counted where its share is limited."),
    (
        Counter,
        "refused_calls",
        "Calls for GPU memory that were refused, because the limit was reached.",
    ),
    (
        Counter,
        "asked_calls",
        "Calls for more GPU memory than the limit had room for, which asked to grow.",
    ),
    (Counter, "granted_calls", "Those of them for which the limit grew."),
)
"""Of each part of a GPU; their values are those of `_values`."""


class NodeCollector(Collector):
    def __init__(
        self, agent: Agent, cards: tuple[Card, ...], registrations: Callable[[], dict[str, int]]
    ) -> None:
        self._agent, self._cards, self._registrations = agent, cards, registrations

    def collect(self) -> Iterator[Metric]:
        agent, view = self._agent, self._agent.view
        yield from gpu_metrics(self._gpu(card, view) for card in self._cards)
        families = [kind(f"berth_pod_gpu_{name}", text, labels=LABELS) for kind, name, text in _OF_PARTS]
        for each in view.parts:
            of = [each.pod.namespace, each.pod.name, each.container, str(each.part.index)]
            for family, value in zip(families, _values(each), strict=True):
                family.add_metric(of, value)
        yield from families
        yield Gauge(
            "berth_escaped_processes",
            "Processes that use a GPU outside their pod's limit.",
            value=len(view.escaped),
        )
        uncounted = Gauge(
            "berth_pod_uncounted_bytes",
            "GPU memory that a pod holds and its regions do not count.",
            labels=["namespace", "pod", "gpu"],
        )
        pods = {pod.uid: pod for pod in agent.pods}
        for more in view.uncounted:
            if (pod := pods.get(more.name)) is not None:
                uncounted.add_metric([pod.namespace, pod.name, str(more.gpu)], more.uncounted_mib << 20)
        yield uncounted
        yield Gauge(
            "berth_ailing_gpus",
            "GPUs that are not allocated because of an error, or because they are lost.",
            value=len(view.ailing),
        )
        yield Counter(
            "berth_out_of_memory_pods",
            "Pods that failed after they were refused memory.",
            value=agent.out_of_memory,
        )
        registered = Counter("berth_registrations", "How often the kubelet took a plugin.", labels=["plugin"])
        for plugin, count in self._registrations().items():
            registered.add_metric([plugin], count)
        yield registered

    def _gpu(self, card: Card, view: View) -> Gpu:
        reading = next((each for each in view.readings if each.index == card.index), None)
        tenants = tuple(
            Tenant(allotment.holder.name, allotment.holder.namespace, "", part.milli, part.mem_mib)
            for allotment, part in view.given
            if part.index == card.index
        )
        there = Gpu("", card.index, card.model, card.mem_mib, tenants)
        if reading is None:
            return there
        strangers = tuple(Stranger(each.command, each.mem_mib, pid=each.pid) for each in reading.strangers)
        health = "lost" if reading.lost else ""
        return replace(there, strangers=strangers, used_mib=reading.used_mib, health=health)


def _values(of: PodPart) -> tuple[float, ...]:
    part, region = of.part, of.region
    memory = part.mem_mib << 20, region.limit_bytes, region.used_bytes, region.peak_bytes
    return *memory, part.milli, region.gpu_ns / 1e9, region.refused, region.asked, region.granted


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of an address such as `:9400`; SettingError for what is no address."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise SettingError(f"--metrics '{address}'; write HOST:PORT or :PORT, such as :9400")
    return host or "0.0.0.0", int(port)


async def serve_node(
    address: str, collector: Collector, archive: Path, hangs: Callable[[], bool] = lambda: False
) -> None:
    """Serve at an address such as `:9400` until cancelled; `archive` is there once a pod has ended, and is not sent to
    a client that has it (`?known=SHA256`). While the agent `hangs`, metrics are an error: they are old, and the
    kubelet's probe asks for them. SettingError for what is no address, KubernetesError if it is taken."""
    host, port = host_and_port(address)
    registry = CollectorRegistry()
    registry.register(collector)

    async def metrics(request: web.Request) -> web.Response:
        if hangs():
            return web.Response(status=503, text="the agent's last look has not ended")
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def history(request: web.Request) -> web.Response:
        body = archive.read_bytes() if archive.exists() else b""
        if not body or hashlib.sha256(body).hexdigest() == request.query.get("known"):
            return web.Response(status=204)
        return web.Response(body=body, content_type="application/gzip")

    app = web.Application()
    app.add_routes([web.get("/history", history), web.get("/{path:.*}", metrics)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        await asyncio.Event().wait()
    except OSError as error:
        raise KubernetesError(
            f"metrics cannot be served on {address} ({error.strerror}); name another port by --metrics"
        ) from error
    finally:
        await runner.cleanup()
