"""Small requests over kept TLS connections, one at a time on each.

A bind is a few hundred bytes each way, and a general client spends more processor time on it than the server. Only what
an API server answers is understood: a status line, a length or chunks. Anything else closes the connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import urlsplit

from berth.live.kubernetes.access import Access

MOST_IDLE = 64
"""Connections that are kept while nothing is asked."""
MOST_CONNECTING = 4
"""Connections that are made at once. To make one costs both sides as much as several requests, so that the others of a
burst wait for the first to be free."""
MOST_BYTES = 16 << 20
"""Of one answer."""
CONNECT_S = 10.0


class Answer(NamedTuple):
    """What the server said."""

    status: int
    reason: str
    headers: dict[str, str]
    """By their names in small letters."""
    body: bytes


class Wire:
    """Connections to one API server, made as they are needed."""

    def __init__(self, access: Access, *, agent: str) -> None:
        where = urlsplit(access.server)
        self._access = access
        self._host, self._port = where.hostname or "", where.port or 443
        self._prefix = where.path.rstrip("/")
        self._fixed = f"Host: {where.netloc}\r\nUser-Agent: {agent}\r\nAccept: application/json\r\n"
        self._idle: deque[_Connection] = deque()
        self._open: set[_Connection] = set()
        self._connecting = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def ask(self, method: str, target: str, data: bytes, content_type: str, limit_s: float) -> Answer:
        """Send one request and return its answer, whatever its status. Raises OSError or TimeoutError where the
        connection breaks or `limit_s` is over: whether the request was carried out is then not known."""
        token = self._access.token()
        head = (
            f"{method} {self._prefix}{target} HTTP/1.1\r\n{self._fixed}"
            f"{f'Authorization: Bearer {token}{CRLF}' if token else ''}"
            f"Content-Type: {content_type}\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        async with asyncio.timeout(limit_s):
            connection = await self._connection()
            try:
                answer = await connection.ask(head.encode("latin-1") + data)
            except BaseException:
                connection.close()
                self._wake_one()
                raise
        if connection.usable and len(self._idle) < MOST_IDLE:
            self._idle.append(connection)
        else:
            connection.close()
        self._wake_one()
        return answer

    async def _connection(self) -> _Connection:
        """One that is idle; where there is none, a new one, or the next that another request is done with."""
        while True:
            while self._idle:
                connection = self._idle.pop()
                if connection.usable:
                    return connection
            if self._connecting < MOST_CONNECTING:
                return await self._connected()
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake_one()
                raise

    async def _connected(self) -> _Connection:
        self._connecting += 1
        try:
            _, made = await asyncio.get_running_loop().create_connection(
                _Connection,
                self._host,
                self._port,
                ssl=self._access.tls,
                server_hostname=self._host,
                ssl_handshake_timeout=CONNECT_S,
            )
        finally:
            self._connecting -= 1
            self._wake_one()
        self._open.add(made)
        made.at_end = self._open.discard
        return made

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def close(self) -> None:
        """Close all, and return when they are closed."""
        self._idle.clear()
        there = list(self._open)
        for connection in there:
            connection.close()
        for connection in there:
            await connection.closed.wait()


CRLF = "\r\n"


class _Connection(asyncio.Protocol):
    """One connection, and the answer that it waits for."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._read = bytearray()
        self._waits: asyncio.Future[Answer] | None = None
        self.usable = True
        self.closed = asyncio.Event()
        self.at_end: Callable[[_Connection], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        self.closed.set()
        if self.at_end is not None:
            self.at_end(self)
        self._fail(exc or ConnectionResetError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        self._read += data
        try:
            if len(self._read) > MOST_BYTES:
                raise ValueError(f"an answer of more than {MOST_BYTES} bytes")
            answer = self._parsed()
        except (ValueError, IndexError) as error:
            self.close()
            self._fail(ConnectionError(f"the answer is not HTTP as an API server sends it: {error}"))
            return
        if answer is not None:
            self._read.clear()
            if self._waits is None or self._waits.done():
                self.close()  # no request was made
            else:
                self._waits.set_result(answer)

    async def ask(self, request: bytes) -> Answer:
        """Send a request and wait for its answer."""
        if self._transport is None or not self.usable:
            raise ConnectionResetError("the connection is closed")
        self._waits = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waits

    def close(self) -> None:
        """Close it."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()  # what was asked is answered, or given up

    def _fail(self, error: Exception) -> None:
        if self._waits is not None and not self._waits.done():
            self._waits.set_exception(error)

    def _parsed(self) -> Answer | None:
        """The answer, if all of it is there. Raises ValueError for what is none."""
        end = self._read.find(b"\r\n\r\n")
        if end < 0:
            return None
        first, *lines = self._read[:end].decode("latin-1").split(CRLF)
        version, status, *reason = first.split(" ", 2)
        if version != "HTTP/1.1" or not status.isdecimal():
            raise ValueError(first[:80])
        headers = {
            key.strip().lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)
        }
        body: bytes | None
        if headers.get("transfer-encoding", "").lower() == "chunked":
            body = _joined(self._read, end + 4)
        else:
            length = int(headers["content-length"]) if "content-length" in headers else 0
            there = len(self._read) - end - 4
            body = bytes(self._read[end + 4 :]) if there >= length else None
            if there > length:
                raise ValueError("more than its length says")
        if body is None:
            return None
        if headers.get("connection", "").lower() == "close":
            self.usable = False
        return Answer(int(status), reason[0] if reason else "", headers, body)


def _joined(read: bytearray, at: int) -> bytes | None:
    """The chunks from `at` on, put together; None while some are missing."""
    found = bytearray()
    while True:
        end = read.find(b"\r\n", at)
        if end < 0:
            return None
        size = int(read[at:end].split(b";")[0], 16)
        if len(read) < end + 2 + size + 2:
            return None
        if not size:
            return bytes(found)
        found += read[end + 2 : end + 2 + size]
        at = end + 2 + size + 2
