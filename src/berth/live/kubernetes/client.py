"""A thin client of the API server: JSON over one pool of TLS connections, refusals as `ApiError`.

`Informer` keeps what there is of one kind: listed once, then watched; told on as changes.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar, cast
from weakref import WeakSet

import aiohttp
import msgspec
from aiohttp.client_proto import ResponseHandler

from berth.errors import ApiError, KubernetesError
from berth.live.kubernetes.access import Access
from berth.live.kubernetes.objects import Change, Meta, OfMeta, Page, Status, decoded

T = TypeVar("T")
log = logging.getLogger(__name__)

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
METADATA_ALONE = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
"""What is answered to a patch: a whole pod took an API server 2.5 ms of processor time in place of 1.6."""
REQUEST_S = 30.0
"""How long one answer may take; a slow etcd has been seen to need 10 s."""
WATCH_S = 240
"""How long one watch lasts; the server ends it then, and the next goes on from where it was."""
REACH_S = 8.0
"""How long a command that ends by itself waits for a server that does not answer."""
PAGE = 2500
"""Objects in one part of a list: 50,000 pods at once would be 98 MB of JSON."""
MOST_MESSAGE = 500
MOST_EVENT_TEXT = 1000
"""Characters of an event or a condition; Kubernetes takes 1,024 of an event."""

_PASSING = (429, 500, 502, 503, 504)


def backoff_s(attempt: int, *, most_s: float = 10.0) -> float:
    """How long to wait before the next attempt, from 0: twice as long each time, and never two callers alike."""
    return float(min(most_s, 0.1 * 2 ** min(attempt, 10)) * random.uniform(0.5, 1.0))


def now_text() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def event(
    namespace: str,
    name: str,
    uid: str,
    reason: str,
    message: str,
    source: str,
    *,
    kind: str = "Pod",
    warning: bool = True,
) -> dict[str, object]:
    """The body of a core/v1 Event."""
    now = now_text()
    own_name = f"{name[:200]}.{time.time_ns():x}{random.randrange(4096):03x}"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": own_name, "namespace": namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": kind,
            "namespace": namespace,
            "name": name,
            "uid": uid,
        },
        "reason": reason,
        "message": message[:MOST_EVENT_TEXT],
        "type": "Warning" if warning else "Normal",
        "source": {"component": source},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


class Api:
    """An API server, asked over a pool of connections; use it as `async with Api(access) as api`."""

    def __init__(self, access: Access, *, agent: str = "berth") -> None:
        self.access = access
        self.requests = 0
        """How many requests were sent, watches included."""
        self._agent = agent
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Api:
        self._connector = _Connector(self.access.tls)
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            headers={
                "User-Agent": self._agent,
                "Accept": "application/json",
                "Accept-Encoding": "identity",  # to compress a list costs an API server a second of a core
            },
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connector.abort()
        if self._session is not None:
            await self._session.close()
            await asyncio.sleep(0)  # lets the transports close

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = "",
        patience_s: float = 0.0,
        limit_s: float = REQUEST_S,
    ) -> bytes:
        """The body of the answer, each attempt within `limit_s`. What may pass (429, 5xx, a broken connection) is
        attempted again for `patience_s`. A patch is a merge patch unless `content_type` says otherwise.

        Raises ApiError with the server's own words; of a broken connection or a time-out the status is 0.
        """
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + patience_s
        attempt = 0
        while True:
            try:
                return await self._once(method, path, body, params, content_type, limit_s)
            except ApiError as error:
                if error.retry_after_s is None:
                    raise
                wait_s = max(error.retry_after_s, backoff_s(attempt))
                if loop.time() + wait_s > give_up_s:
                    raise
                attempt += 1
                await asyncio.sleep(wait_s)

    async def change(self, method: str, path: str, body: object = None, **more: Any) -> bool:
        """Change or delete an object as `request` does; False if it is gone, or another by now."""
        try:
            await self.request(method, path, body, **more)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            return False
        return True

    async def get(self, path: str, kind: type[T], *, patience_s: float = 0.0) -> T:
        return msgspec.json.decode(await self.request("GET", path, patience_s=patience_s), type=kind)

    async def find(
        self, path: str, kind: type[T], *, missing: tuple[int, ...] = (404,), patience_s: float = 10.0
    ) -> T | None:
        """Return an object; None if the server answers with a status in `missing` (404: it is not there)."""
        try:
            return await self.get(path, kind, patience_s=patience_s)
        except ApiError as error:
            if error.status not in missing:
                raise
            return None

    async def kinds(self, version: str) -> set[str]:
        """The kinds that the server has in a version of an API group, such as `apps/v1`; none if it does not serve
        that."""
        found = await self.find(f"/apis/{version}", dict[str, Any], patience_s=30)
        return set() if found is None else {each["name"] for each in found.get("resources", ())}

    async def list(
        self, path: str, kind: type[T], params: Mapping[str, str] | None = None
    ) -> AsyncIterator[tuple[str, list[T]]]:
        """The parts of a list, each with the resource version that a watch goes on from."""
        decoder = msgspec.json.Decoder(kind)
        asked = {**(params or {}), "limit": str(PAGE)}
        while True:
            text = await self.request("GET", path, params=asked, patience_s=60)
            try:
                page = msgspec.json.decode(text, type=Page)
            except msgspec.DecodeError as error:
                raise ApiError(f"list of {path}", 0, "Garbled", str(error), 0.0) from error
            yield (
                page.metadata.resource_version,
                [found for item in page.items if (found := decoded(item, decoder)) is not None],
            )
            if not page.metadata.continue_:
                return
            asked["continue"] = page.metadata.continue_

    async def watch(self, path: str, params: Mapping[str, str]) -> AsyncIterator[Change]:
        """The lines of one watch, until the server ends it. Raises ApiError, with status 410 where the version asked
        for is too old."""
        asked = {
            **params,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(round(WATCH_S * random.uniform(0.8, 1.2))),
        }
        decoder = msgspec.json.Decoder(Change)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=WATCH_S * 1.3)
        what = f"watch of {path}"
        try:
            async with self._open("GET", path, params=asked, timeout=timeout) as response:
                if response.status != 200:
                    raise await _refused(what, response)
                async for line in _lines(response):
                    change = decoder.decode(line)
                    if change.type == "ERROR":
                        status = msgspec.json.decode(change.object, type=Status)
                        raise ApiError(what, status.code, status.reason, status.message, 0.0)
                    yield change
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(what, 0, "Unreachable", _words(error), 0.0) from error
        except msgspec.DecodeError as error:  # cut in the middle of a line
            raise ApiError(what, 0, "Garbled", str(error), 0.0) from error

    def _open(self, method: str, path: str, **keywords: Any) -> Any:
        if self._session is None:
            raise KubernetesError("the client is not open: use it as `async with Api(access) as api`")
        self.requests += 1
        headers = keywords.setdefault("headers", {})
        if token := self.access.token():
            headers["Authorization"] = f"Bearer {token}"
        return self._session.request(method, self.access.server + path, **keywords)

    async def _once(
        self,
        method: str,
        path: str,
        body: object,
        params: Mapping[str, str] | None,
        content_type: str,
        limit_s: float,
    ) -> bytes:
        data = None if body is None else msgspec.json.encode(body)
        what = f"{method} {path}"
        default = MERGE_PATCH if method == "PATCH" else "application/json"
        headers = {} if data is None else {"Content-Type": content_type or default}
        if method == "PATCH":
            headers["Accept"] = METADATA_ALONE
        timeout = aiohttp.ClientTimeout(total=limit_s, sock_connect=10)
        try:
            async with self._open(
                method, path, data=data, params=params, headers=headers, timeout=timeout
            ) as response:
                if response.status >= 300:
                    raise await _refused(what, response)
                answer: bytes = await response.read()
                return answer
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(what, 0, "Unreachable", _words(error), 0.0) from error


class _Connector(aiohttp.TCPConnector):
    """Knows all its connections until they end.

    aiohttp forgets one whose request was cancelled, which then waits up to 30 s for the server's farewell.
    """

    def __init__(self, tls: ssl.SSLContext) -> None:
        super().__init__(ssl=tls, limit=0, keepalive_timeout=60)
        connection: Callable[..., ResponseHandler] = _Connection
        self._factory = partial(connection, self, self._loop)
        self._transports: WeakSet[asyncio.Transport] = WeakSet()

    def made(self, transport: asyncio.Transport) -> None:
        """Keep a new connection in mind, or end it if this is closed."""
        self._transports.add(transport)
        if self.closed:
            transport.abort()

    def abort(self) -> None:
        """End all connections without a farewell."""
        for transport in self._transports:
            transport.abort()


class _Connection(ResponseHandler):
    def __init__(self, connector: _Connector, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._connector = connector

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connector.made(cast("asyncio.Transport", transport))


async def check_reachable(api: Api) -> None:
    """Raise ApiError unless the server answers within `REACH_S`, be it that it refuses."""
    try:
        await api.request("GET", "/version", patience_s=REACH_S / 2, limit_s=REACH_S / 2)
    except ApiError as error:
        if not error.status:
            raise


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The lines of an answer that goes on, without empty ones."""
    rest = b""
    async for chunk in response.content.iter_any():
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        for line in lines:
            if line:
                yield line


async def _refused(what: str, response: aiohttp.ClientResponse) -> ApiError:
    text, retry_after_s = await response.read(), None
    try:
        status = msgspec.json.decode(text, type=Status)
    except msgspec.DecodeError:
        status = Status(message=text[:MOST_MESSAGE].decode("utf-8", "replace").strip())
    if response.status in _PASSING:
        try:
            retry_after_s = float(response.headers.get("retry-after", "0"))
        except ValueError:
            retry_after_s = 1.0
    reason = status.reason or str(response.reason)
    return ApiError(what, response.status, reason, status.message[:MOST_MESSAGE], retry_after_s)


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__


REFUSED_S = 60.0
"""Seconds until what was forbidden, or is not served, is attempted again."""


class HasMeta(Protocol):
    metadata: Meta


Thing = TypeVar("Thing", bound=HasMeta)


class Informer(Generic[Thing]):
    """Lists and watches one kind, and calls `changed(object)` and `gone(object)`, each change once and in order.

    A watch that breaks goes on from the last version seen. Where the server has forgotten that version (410) all is
    listed anew, and what has vanished meanwhile is told as gone. An object that was deleted and made again under its
    name is gone first.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        kind: type[Thing],
        *,
        changed: Callable[[Thing], None],
        gone: Callable[[Thing], None],
        params: Mapping[str, str] | None = None,
        without: str = "",
    ) -> None:
        """`path` is that of the list, such as `/api/v1/pods`; `params` may have a `fieldSelector`. With a text
        `without` it counts as listed where the server forbids to list it: that text is logged once, and listing goes
        on later. A kind of an API group that the server does not serve counts as empty."""
        self.api = api
        self.path = path
        self.synced = asyncio.Event()
        """Set as soon as all was listed once."""
        self.lists = 0
        """How often all was listed."""
        self.fault: ApiError | None = None
        """What the server said last where it refuses to be listed or watched; None while all is well."""
        self._kind = kind
        self._changed, self._gone = changed, gone
        self._params = dict(params or {})
        self._without = without
        self._there: dict[tuple[str, str], Thing] = {}
        self._version = ""
        self._seen = 0  # lines of watches

    def values(self) -> list[Thing]:
        return list(self._there.values())

    async def run(self) -> None:
        """List and watch until cancelled."""
        attempt = 0
        while True:
            before = self._seen
            try:
                if not self._version:
                    await self._list()
                await self._watch()
                attempt, self.fault = 0, None
            except ApiError as error:
                if self._seen != before:  # it was well until it broke
                    attempt = 0
                unserved = is_unserved(self.path, error)
                if unserved or (error.status == 403 and self._without):
                    if self.fault is None or self.fault.status != error.status:
                        log.warning("%s; %s", error, "it counts as empty" if unserved else self._without)
                    if unserved:
                        self._take({}, "")
                    self.fault = error
                    self.synced.set()
                    await asyncio.sleep(REFUSED_S)
                    continue
                if error.status == 410:
                    log.info("%s: version %s is too old; listing anew", self.path, self._version)
                    self._version = ""
                elif error.status:
                    self.fault = error
                    log.warning("%s", error)
                await asyncio.sleep(backoff_s(attempt))
                attempt += 1

    async def _list(self) -> None:
        there: dict[tuple[str, str], Thing] = {}
        version = ""
        async for part in self.api.list(self.path, self._kind, self._params):
            version = part[0]
            for item in part[1]:
                there[_key(item)] = item
            await asyncio.sleep(0)
        self.lists += 1
        self._take(there, version)
        self.fault = None
        self.synced.set()

    def _take(self, there: dict[tuple[str, str], Thing], version: str) -> None:
        """Tell what is unlike what was there, and go on from it."""
        before = self._there
        for key, gone in before.items():
            now = there.get(key)
            if now is None or now.metadata.uid != gone.metadata.uid:
                self._gone(gone)
        self._there = there
        for key, item in there.items():
            known = before.get(key)
            if known is None or known.metadata.resource_version != item.metadata.resource_version:
                self._changed(item)
        self._version = version

    async def _watch(self) -> None:
        decoder = msgspec.json.Decoder(self._kind)
        only_meta = msgspec.json.Decoder(OfMeta)
        async for change in self.api.watch(self.path, {**self._params, "resourceVersion": self._version}):
            self._seen += 1
            if change.type == "BOOKMARK":
                self._version = only_meta.decode(change.object).metadata.resource_version
                continue
            item = decoded(change.object, decoder)
            if item is None:
                continue
            key = _key(item)
            known = self._there.get(key)
            if change.type == "DELETED":
                self._there.pop(key, None)
                self._gone(item)
            else:
                if known is not None and known.metadata.uid != item.metadata.uid:
                    self._gone(known)
                self._there[key] = item
                self._changed(item)
            self._version = item.metadata.resource_version


def is_unserved(path: str, error: ApiError) -> bool:
    """Whether the server serves no such kind of an API group. Nodes and pods are of none: every server has them."""
    return error.status == 404 and path.startswith("/apis/")


def _key(item: HasMeta) -> tuple[str, str]:
    return item.metadata.namespace, item.metadata.name
