"""Spools of many nodes in one folder, pushed there over HTTP: the side that receives them.

    GET  /segments/NAME            how many bytes of a segment are here, as text
    POST /segments/NAME?at=BYTES   append the body, which begins at this byte of the segment

Both need `Authorization: Bearer TOKEN`. A body that does not begin where the segment ends is answered 409 with the
number of bytes that are here, so that whatever is cut off and sent again is here once. What is answered 200 is on disk.
TLS is a reverse proxy's.
"""

from __future__ import annotations

import hmac
import os
import re
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

from berth.errors import SamplingError, cause_of
from berth.sampling.spool import LARGEST_BYTES, SUFFIX

LARGEST_BODY: Final = 8 << 20
"""Of one request; a node sends what is longer in parts."""
LARGEST_SEGMENT: Final = 2 * LARGEST_BYTES
"""No sampler writes a longer one."""
TIMEOUT_S: Final = 30.0
"""Time after which the connection of a silent node is closed."""
_NAME: Final = re.compile(rf"/segments/([\w][\w.-]{{0,200}}{re.escape(SUFFIX)})", re.ASCII)
_SHORTEST_TOKEN: Final = 16


def read_token(path: Path) -> str:
    """The token in a file; SamplingError if it is missing, too short or readable by all users."""
    try:
        if path.stat().st_mode & 0o007:
            raise SamplingError(f"the token in {path} can be read by everybody; `chmod o= {path}` mends that")
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SamplingError(f"the token in {path} cannot be read: {cause_of(error)}") from error
    if len(token) < _SHORTEST_TOKEN or not re.fullmatch(r"[!-~]+", token):
        raise SamplingError(
            f"the token in {path} has {len(token)} characters; expected at least {_SHORTEST_TOKEN} without spaces, "
            f"such as `openssl rand -hex 32 > {path}` makes"
        )
    return token


class Collector:
    """Listens on an address and writes to a folder; a context manager, `serve` runs until `stop` is called."""

    def __init__(self, folder: Path, token: str, host: str, port: int) -> None:
        """SamplingError where it cannot listen, or not write."""
        try:
            folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._server = _Server((host, port), folder, token)
        except OSError as error:
            raise SamplingError(f"{host}:{port} or {folder}: {error.strerror or error}") from error

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def serve(self) -> None:
        """Answer requests until `stop` is called by another thread."""
        self._server.serve_forever(poll_interval=0.2)

    def stop(self) -> None:
        """End `serve`."""
        self._server.shutdown()

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024  # nodes that were started together push together

    def __init__(self, address: tuple[str, int], folder: Path, token: str) -> None:
        self.folder = folder
        self.token = token
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()
        super().__init__(address, _Handler)

    def lock(self, name: str) -> threading.Lock:
        """One writer a segment."""
        with self._guard:
            return self._locks.setdefault(name, threading.Lock())

    def size(self, name: str) -> int:
        """How much of a segment is here."""
        try:
            return (self.folder / name).stat().st_size
        except FileNotFoundError:
            return 0

    def append(self, name: str, begin_at: int, data: bytes) -> tuple[HTTPStatus, int]:
        """Append to a segment if the data begins where it ends; how long it is then."""
        with self.lock(name):
            size = self.size(name)
            if begin_at != size:
                return HTTPStatus.CONFLICT, size
            if size + len(data) > LARGEST_SEGMENT:
                return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, size
            file = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
            try:
                written = 0
                while written < len(data):
                    written += os.write(file, data[written:])
                os.fdatasync(file)
            except OSError:
                os.ftruncate(file, size)  # half of a body would be taken for a whole one
                raise
            finally:
                os.close(file)
            return HTTPStatus.OK, size + len(data)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    server_version = "berth"
    sys_version = ""
    timeout = TIMEOUT_S

    def do_GET(self) -> None:
        """How many bytes of a segment are here."""
        if (name := self._admitted()) is not None:
            self._answer(HTTPStatus.OK, str(self.server.size(name)))

    def do_POST(self) -> None:
        """Append to a segment."""
        if (name := self._admitted()) is None:
            return
        place = parse_qs(urlsplit(self.path).query).get("at", [""])[0]
        length = self.headers.get("Content-Length", "")
        if not (place.isdecimal() and length.isdecimal()) or len(place) > 12 or len(length) > 12:
            self._refuse(HTTPStatus.BAD_REQUEST, "expected ?at=BYTES and a Content-Length")
        elif int(length) > LARGEST_BODY:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {LARGEST_BODY} bytes at once")
        else:
            data = self.rfile.read(int(length))
            if len(data) < int(length):
                self.close_connection = True
                return  # it hung up; nothing of it counts
            try:
                status, size = self.server.append(name, int(place), data)
            except OSError as error:
                self._answer(HTTPStatus.INSUFFICIENT_STORAGE, error.strerror or "cannot be written")
                return
            self._answer(status, str(size))

    def _admitted(self) -> str | None:
        """The segment's name; None where the request has been refused."""
        authorization = self.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(authorization, f"Bearer {self.server.token}".encode()):
            self._refuse(
                HTTPStatus.UNAUTHORIZED, "expected 'Authorization: Bearer TOKEN' with the collector's token"
            )
            return None
        found = _NAME.fullmatch(urlsplit(self.path).path)
        if found is None:
            self._refuse(HTTPStatus.NOT_FOUND, "expected /segments/NAME.spool")
            return None
        return found[1]

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self.close_connection = True  # its body is not read
        self._answer(status, why)

    def _answer(self, status: HTTPStatus, text: str) -> None:
        body = text.encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing of each request: a thousand nodes push every minute."""
