"""What a node serves over HTTP: metrics for Prometheus, and its history for `berth k8s history`."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from berth.errors import KubernetesError, SettingError


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of an address such as `:9400`; SettingError for what is no address."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise SettingError(f"--metrics '{address}'; write HOST:PORT or :PORT, such as :9400")
    return host or "0.0.0.0", int(port)


async def serve_node(address: str, collector: Collector, archive: Path) -> None:
    """Serve at an address such as `:9400` until cancelled; `archive` is there once a pod has ended, and is not sent to
    a client that has it (`?known=SHA256`). SettingError for what is no address, KubernetesError if it is taken."""
    host, port = host_and_port(address)
    registry = CollectorRegistry()
    registry.register(collector)

    async def metrics(request: web.Request) -> web.Response:
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
