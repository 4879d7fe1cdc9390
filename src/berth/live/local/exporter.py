"""Prometheus metrics of the queue, in a process of its own: on a Unix socket, or on a port of 127.0.0.1.

`exporter.py QUEUE_SOCKET PORT|PATH`. It asks the broker at every scrape, and ends when that is gone.
"""

from __future__ import annotations

import contextlib
import os
import socketserver
import sys
from collections.abc import Iterator
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from berth.errors import LiveError
from berth.live.driver.metrics import GpuUse, gpu_metrics
from berth.live.driver.snapshot import Gpu, gpu_of
from berth.live.local.places import check_metrics
from berth.live.local.protocol import Connection


class QueueCollector(Collector):
    """What the broker says, as metrics."""

    def __init__(self, socket_path: str) -> None:
        self._path = socket_path

    def collect(self) -> Iterator[Metric]:
        """Ask the broker; nothing but `berth_up 0` where it does not answer."""
        up = GaugeMetricFamily("berth_up", "Whether the queue answers.")
        try:
            connection = Connection(self._path)
            try:
                answer = connection.ask({"do": "metrics"})
            finally:
                connection.close()
        except LiveError:
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield up
        yield from gpu_metrics(_use(gpu_of(gpu)) for gpu in answer["gpus"])
        jobs = GaugeMetricFamily("berth_jobs", "Jobs of the queue by state.", labels=["state"])
        for state, count in answer["jobs"].items():
            jobs.add_metric([state], count)
        yield jobs
        ended = CounterMetricFamily(
            "berth_attempts_ended", "Attempts that ended, by outcome.", labels=["state"]
        )
        for state, count in answer["ended"].items():
            ended.add_metric([state], count)
        yield ended
        for name, text in (
            ("submitted", "Jobs that were submitted."),
            ("refused_allocations", "Calls for GPU memory that partitions refused, of attempts that ended."),
            ("decisions", "Times that the policy was asked."),
            ("brain_restarts", "Times that the policy's process was started again."),
            ("commits", "Commits of the store."),
        ):
            counter = CounterMetricFamily(f"berth_{name}", text)
            counter.add_metric([], answer[name])
            yield counter
        wishes = CounterMetricFamily(
            "berth_growth_wishes",
            "Calls for more GPU memory than their job's limit had room for, by outcome.",
            labels=["outcome"],
        )
        for outcome, count in answer["growth"].items():
            wishes.add_metric([outcome], count)
        yield wishes
        memory = GaugeMetricFamily(
            "berth_job_gpu_memory_bytes",
            "GPU memory of a job that may grow, on each GPU: promise, limit, what that may become, and use.",
            labels=["job", "gpu", "kind"],
        )
        for gpu in map(gpu_of, answer["gpus"]):
            for each in gpu.tenants:
                if each.promise_mib is None:
                    continue
                sizes = {
                    "promise": each.promise_mib,
                    "limit": each.mem_mib,
                    "max": each.max_mib,
                    "used": each.used_mib,
                }
                for kind, mem_mib in sizes.items():
                    if mem_mib is not None:
                        memory.add_metric([each.job, str(gpu.index), kind], float(mem_mib << 20))
        yield memory
        uncounted = GaugeMetricFamily(
            "berth_uncounted_bytes",
            "GPU memory that a running job holds beyond what its partition counted.",
            labels=["job"],
        )
        for job_id, mem_mib in answer["uncounted_mib"].items():
            uncounted.add_metric([job_id], float(mem_mib << 20))
        yield uncounted
        for name, text in (
            ("queue_wait_seconds", "How long attempts waited before they began."),
            ("decision_seconds", "How long the policy took to decide."),
        ):
            histogram = HistogramMetricFamily(f"berth_{name}", text)
            buckets = [(bound, float(count)) for bound, count in answer[name]["buckets"]]
            histogram.add_metric([], buckets=buckets, sum_value=answer[name]["sum"])
            yield histogram
        ready = GaugeMetricFamily(
            "berth_policy_ready", "Whether the chosen policy decides.", labels=["policy"]
        )
        ready.add_metric([answer["policy"]], float(answer["ready"]))
        yield ready


def _use(gpu: Gpu) -> GpuUse:
    return GpuUse(
        gpu.index,
        gpu.model,
        gpu.mem_mib,
        sum(each.milli for each in gpu.tenants),
        sum(each.mem_mib for each in gpu.tenants),
        len(gpu.tenants),
        sum(each.mem_mib for each in gpu.strangers if each.pid is not None),
        gpu.used_mib,
        bool(gpu.health),
    )


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Scrapes are no news."""

    def address_string(self) -> str:
        """A Unix socket has no address of its client."""
        return "local"


class _OnSocket(socketserver.ThreadingMixIn, WSGIServer):
    address_family = 1  # AF_UNIX
    daemon_threads = True

    def server_bind(self) -> None:
        """As a Unix socket is bound: it has no host and port."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "localhost", 0
        self.setup_environ()

    def get_request(self) -> Any:
        """The handler wants an address in two parts."""
        request, _ = super().get_request()
        return request, ("local", 0)


class _OnPort(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


def main() -> None:
    """Serve until the parent is gone."""
    queue, where = sys.argv[1:3]
    registry = CollectorRegistry()
    registry.register(QueueCollector(queue))
    application = make_wsgi_app(registry)
    server: WSGIServer
    try:
        if where.isdigit():
            server = _OnPort(("127.0.0.1", int(where)), _Quiet)
        else:
            check_metrics(where)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(where)
            server = _OnSocket(where, _Quiet)  # type: ignore[arg-type]
    except (LiveError, OSError) as error:
        why = error if isinstance(error, LiveError) else f"--metrics {where}: {error.strerror or error}"
        print(f"{why}; change it with berth down and berth up --metrics", file=sys.stderr)
        sys.exit(2)
    server.set_app(application)
    parent = os.getppid()
    server.timeout = 2.0
    while os.getppid() == parent:
        server.handle_request()


if __name__ == "__main__":
    main()
