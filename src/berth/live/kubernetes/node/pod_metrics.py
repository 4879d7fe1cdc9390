"""Prometheus metrics of a node's GPUs and the pods on them; those of GPUs are the same as the local queue's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from berth.live.driver.metrics import GpuUse, gpu_metrics
from berth.live.kubernetes.node.agent import Agent, View
from berth.live.local.cards import Card

LABELS = ("namespace", "pod", "container", "gpu")


class NodeCollector(Collector):
    """What the agent last saw, as metrics."""

    def __init__(
        self, agent: Agent, cards: tuple[Card, ...], registrations: Callable[[], dict[str, int]]
    ) -> None:
        """`registrations` tells how often the kubelet took each plugin."""
        self._agent, self._cards, self._registrations = agent, cards, registrations

    def collect(self) -> Iterator[Metric]:
        """The metrics of now."""
        view = self._agent.view
        yield from gpu_metrics(self._gpu(card, view) for card in self._cards)
        yield from self._parts(view)
        for name, text, value in (
            ("escaped_processes", "Processes that use a GPU outside their pod's limit.", len(view.escaped)),
            (
                "ailing_gpus",
                "GPUs that are not allocated because of an error, or because they are lost.",
                len(view.ailing),
            ),
        ):
            gauge = GaugeMetricFamily(f"berth_{name}", text)
            gauge.add_metric([], value)
            yield gauge
        for name, text, value in (
            ("evicted_pods", "Pods that were evicted, because their limit was lost.", self._agent.evicted),
            (
                "out_of_memory_pods",
                "Pods that failed after they were refused memory.",
                self._agent.out_of_memory,
            ),
        ):
            counter = CounterMetricFamily(f"berth_{name}", text)
            counter.add_metric([], value)
            yield counter
        registered = CounterMetricFamily(
            "berth_registrations", "How often the kubelet took a plugin.", labels=["plugin"]
        )
        for plugin, count in self._registrations().items():
            registered.add_metric([plugin], count)
        yield registered

    def _gpu(self, card: Card, view: View) -> GpuUse:
        look = next((look for look in view.looks if look.index == card.index), None)
        milli, mem_mib = view.allotted.get(card.index, (0, 0))
        tenants = sum(part.part.index == card.index for part in view.parts)
        stranger_mib = sum(each.mem_mib for each in look.strangers) if look else 0
        return GpuUse(
            card.index,
            card.model,
            card.mem_mib,
            milli,
            mem_mib,
            tenants,
            stranger_mib,
            look.used_mib if look else None,
            bool(look and look.lost),
        )

    def _parts(self, view: View) -> Iterator[Metric]:
        gauges = {
            name: GaugeMetricFamily(f"berth_pod_gpu_{name}", text, labels=LABELS)
            for name, text in (
                ("promise_bytes", "GPU memory that a container is promised."),
                ("limit_bytes", "GPU memory that a container may have now."),
                ("used_bytes", "GPU memory that a container has."),
                ("peak_bytes", "The most GPU memory that a container had."),
                ("milli", "The share of the GPU's time that a container was given, per mille."),
            )
        }
        counters = {
            name: CounterMetricFamily(f"berth_pod_gpu_{name}", text, labels=LABELS)
            for name, text in (
                ("seconds", "GPU time that a container used; counted where its share is limited."),
                ("refused_calls", "Calls for GPU memory that were refused, because the limit was reached."),
                (
                    "asked_calls",
                    "Calls for more GPU memory than the limit had room for, which asked to grow.",
                ),
                ("granted_calls", "Those of them for which the limit grew."),
            )
        }
        for each in view.parts:
            region = each.region
            of = [each.pod.namespace, each.pod.name, each.container, str(each.part.index)]
            for name, value in (
                ("promise_bytes", each.part.mem_mib << 20),
                ("limit_bytes", region.limit_bytes),
                ("used_bytes", region.used_bytes),
                ("peak_bytes", region.peak_bytes),
                ("milli", each.part.milli),
            ):
                gauges[name].add_metric(of, value)
            counters["seconds"].add_metric(of, region.gpu_ns / 1e9)
            for name in ("refused", "asked", "granted"):
                counters[f"{name}_calls"].add_metric(of, getattr(region, name))
        yield from (*gauges.values(), *counters.values())
