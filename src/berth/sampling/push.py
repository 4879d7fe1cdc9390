"""A node's spool to a collector: what was appended since the last time, over HTTP."""

from __future__ import annotations

import http.client
import logging
import threading
import time
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from berth.errors import SamplingError
from berth.sampling.collector import LARGEST_BODY
from berth.sampling.spool import SUFFIX, is_of_node

_log = logging.getLogger(__name__)

TIMEOUT_S: Final = 30.0
REST_S: Final = 3600.0
"""A segment to which nothing was added for this time is no longer written to."""


def push(spool: Path, node: str, url: str, token: str, *, now_s: float) -> int:
    """Send a collector what it lacks of each segment that this node has in a spool; returns how many bytes were sent.

    A segment that is whole at the collector, and to which nothing was added for REST_S, is removed here. SamplingError
    where the collector cannot be reached or refuses; what was sent until then stays sent.
    """
    where = urlsplit(url)
    if where.scheme not in ("http", "https") or not where.hostname or where.query or where.fragment:
        raise SamplingError(f"--push {url}: expected http://HOST:PORT or https://HOST[:PORT][/PATH]")
    kind = http.client.HTTPSConnection if where.scheme == "https" else http.client.HTTPConnection
    connection = kind(where.hostname, where.port, timeout=TIMEOUT_S)
    sent = 0
    try:
        for path in sorted(path for path in spool.glob(f"*{SUFFIX}") if is_of_node(path, node)):
            target = f"{where.path.rstrip('/')}/segments/{path.name}"
            there = _ask(connection, "GET", target, token, None, url)
            with path.open("rb") as file:
                file.seek(there)
                while data := file.read(LARGEST_BODY):
                    now = _ask(connection, "POST", f"{target}?at={there}", token, data, url)
                    if now != there + len(data):
                        raise SamplingError(
                            f"{url} has {now} bytes of {path.name} after {there + len(data)} were sent; "
                            "another node has the same name"
                        )
                    sent, there = sent + len(data), now
            if there == path.stat().st_size and now_s - path.stat().st_mtime > REST_S:
                path.unlink()
    except (OSError, http.client.HTTPException) as error:
        raise SamplingError(f"{url} cannot be reached: {error}") from error
    finally:
        connection.close()
    return sent


def _ask(
    connection: http.client.HTTPConnection, method: str, target: str, token: str, body: bytes | None, url: str
) -> int:
    connection.request(method, target, body, {"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    text = answer.read(4096).decode(errors="replace").strip()
    if answer.status not in (200, 409) or not text.isdecimal():
        raise SamplingError(f"{url} answers {answer.status} {answer.reason}: {text[:200]}")
    return int(text)


class Pusher:
    """Pushes a spool at intervals in a thread of its own, and at the end; a context manager.

    Where the collector is away it says so once, and the spool keeps what could not be sent.
    """

    def __init__(self, spool: Path, node: str, url: str, token: str, every_s: float) -> None:
        self._spool = spool
        self._node = node
        self._url = url
        self._token = token
        self._every_s = every_s
        self._ended = threading.Event()
        self._last_error = ""
        self._thread = threading.Thread(target=self._run, name="push", daemon=True)

    def __enter__(self) -> Pusher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=2 * TIMEOUT_S)

    def _run(self) -> None:
        while True:
            ended = self._ended.wait(self._every_s)
            try:
                push(self._spool, self._node, self._url, self._token, now_s=time.time())
            except SamplingError as error:
                if str(error) != self._last_error:
                    _log.warning("%s; the spool %s keeps what is not sent", error, self._spool)
                self._last_error = str(error)
            else:
                self._last_error = ""
            if ended:
                return
