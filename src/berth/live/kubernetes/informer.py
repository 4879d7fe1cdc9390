"""What there is of one kind on the cluster: listed once, then watched; told on as changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

import msgspec

from berth.errors import ApiError
from berth.live.kubernetes.client import Api, backoff_s
from berth.live.kubernetes.objects import Meta, OfMeta, decoded

log = logging.getLogger(__name__)

REFUSED_S = 60.0
"""Seconds until what was forbidden, or is not served, is attempted again."""


class HasMeta(Protocol):
    metadata: Meta


T = TypeVar("T", bound=HasMeta)


class Informer(Generic[T]):
    """Lists and watches one kind, and calls `changed(object)` and `gone(object)`, each change once and in order.

    A watch that breaks goes on from the last version seen. Where the server has forgotten that version (410) all is
    listed anew, and what has vanished meanwhile is told as gone. An object that was deleted and made again under its
    name is gone first.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        kind: type[T],
        *,
        changed: Callable[[T], None],
        gone: Callable[[T], None],
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
        self._there: dict[tuple[str, str], T] = {}
        self._version = ""
        self._seen = 0  # lines of watches

    def values(self) -> list[T]:
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
        there: dict[tuple[str, str], T] = {}
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

    def _take(self, there: dict[tuple[str, str], T], version: str) -> None:
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
