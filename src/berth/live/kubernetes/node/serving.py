"""What a node serves over HTTP: metrics for Prometheus, and its history for `berth k8s history`."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.registry import Collector

from berth.errors import KubernetesError, SettingError

HISTORY_PATH = "/history"


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Silent(WSGIRequestHandler):
    def log_message(self, *words: Any) -> None:
        """Say nothing."""


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of an address such as `:9400`; SettingError for what is no address."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise SettingError(f"--metrics '{address}'; write HOST:PORT or :PORT, such as :9400")
    return host or "0.0.0.0", int(port)


def serve_node(address: str, collector: Collector, archive: Path) -> Callable[[], None]:
    """Serve at an address such as `:9400` until the returned function is called; `archive` is there once a pod has
    ended, and is not sent to a client that has it (`?known=SHA256`). SettingError for what is no address,
    KubernetesError where it cannot be had."""
    host, port = host_and_port(address)
    registry = CollectorRegistry()
    registry.register(collector)
    metrics: Callable[[Any, Any], Iterable[bytes]] = make_wsgi_app(registry)

    def answer(environ: Any, start: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] != HISTORY_PATH:
            return metrics(environ, start)
        known = parse_qs(environ.get("QUERY_STRING", "")).get("known", [""])[-1]
        try:
            body = archive.read_bytes()
        except FileNotFoundError:
            body = b""
        if not body or hashlib.sha256(body).hexdigest() == known:
            start("204 No Content", [])
            return []
        start("200 OK", [("Content-Type", "application/gzip"), ("Content-Length", str(len(body)))])
        return [body]

    try:
        server = make_server(host, port, answer, _Server, _Silent)
    except OSError as error:
        raise KubernetesError(
            f"metrics cannot be served on {address} ({error.strerror}); name another port by --metrics"
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    ending = contextlib.ExitStack()
    ending.callback(thread.join)
    ending.callback(server.server_close)
    ending.callback(server.shutdown)
    return ending.close
