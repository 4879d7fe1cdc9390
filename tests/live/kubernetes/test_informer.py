"""The informer against a server that breaks watches, forgets versions and answers garbage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import msgspec
import pytest

from berth.errors import ApiError
from berth.live.kubernetes import client as module
from berth.live.kubernetes.client import Informer
from berth.live.kubernetes.objects import Change, Meta, Node


class Server:
    """Lists one node, and ends watches as it is told: a number of changes, then an error, or None for none."""

    def __init__(self, watches: list[tuple[int, ApiError | None]], lists: list[ApiError | None]) -> None:
        self.watches, self.lists = watches, lists
        self.listed = 0

    async def list(
        self, path: str, kind: type[Node], params: Mapping[str, str] | None = None
    ) -> AsyncIterator[tuple[str, list[Node]]]:
        self.listed += 1
        if self.lists and (error := self.lists.pop(0)) is not None:
            raise error
        yield "1", [Node(Meta("n1", resource_version="1"))]

    async def watch(self, path: str, params: Mapping[str, str]) -> AsyncIterator[Change]:
        if not self.watches:
            await asyncio.sleep(3600)
        changes, error = self.watches.pop(0)
        for at in range(changes):
            body = {"metadata": {"name": "n1", "resourceVersion": str(2 + at)}}
            yield Change("MODIFIED", msgspec.Raw(msgspec.json.encode(body)))
        if error is not None:
            raise error


def run(server: Server, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[str]]:
    """Which attempts were waited for, and which versions were told."""
    waits: list[int] = []
    told: list[str] = []

    def backoff_s(attempt: int) -> float:
        waits.append(attempt)
        return 0.0

    monkeypatch.setattr(module, "backoff_s", backoff_s)

    async def whole() -> None:
        watching = Informer(
            server,  # type: ignore[arg-type]
            "/api/v1/nodes", Node, changed=lambda node: told.append(node.metadata.resource_version),
            gone=lambda node: told.append("gone"),
        )  # fmt: skip
        task = asyncio.create_task(watching.run())
        while server.watches or server.lists:
            await asyncio.sleep(0)
            if task.done():
                task.result()
        for _ in range(100):  # what follows from the last answer
            await asyncio.sleep(0)
        task.cancel()

    asyncio.run(asyncio.wait_for(whole(), 300))
    return waits, told


def broken(status: int = 0) -> ApiError:
    return ApiError("watch", status, "", "", 0.0)


def test_a_watch_that_was_well_until_it_broke_is_begun_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server([(0, broken()), (0, broken()), (0, broken()), (2, broken()), (0, broken())], [])
    waits, told = run(server, monkeypatch)
    assert waits == [0, 1, 2, 0, 1]
    assert told == ["1", "2", "3"]


def test_a_version_that_is_too_old_has_all_listed_anew_and_not_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server([(1, broken(410))], [None, broken(410), broken(410), None])
    waits, _ = run(server, monkeypatch)
    assert server.listed == 4
    assert waits == [0, 1, 2]


def test_a_page_that_is_garbled_does_not_end_the_informer(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server([], [broken(), None])
    waits, told = run(server, monkeypatch)
    assert (waits, told) == ([0], ["1"])


def test_what_may_be_missing_is_gone_on_without_where_it_is_forbidden_which_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    forbidden = ApiError("list", 403, "Forbidden", "cannot list resource podgroups")
    server = Server([], [forbidden, forbidden])
    monkeypatch.setattr(module, "REFUSED_S", 0.01)
    told: list[str] = []

    async def listen() -> None:
        informer = Informer(
            server, "/x", Node, changed=lambda node: told.append(node.metadata.name), gone=print,  # type: ignore[arg-type]
            without="pods of PodGroups wait",
        )  # fmt: skip
        task = asyncio.create_task(informer.run())
        await asyncio.wait_for(informer.synced.wait(), 300)
        assert told == []
        while not told:  # the rule has been given
            await asyncio.sleep(0.01)
        assert informer.fault is None
        task.cancel()

    asyncio.run(asyncio.wait_for(listen(), 300))
    assert [each.getMessage() for each in caplog.records] == [f"{forbidden}; pods of PodGroups wait"]


def test_a_kind_that_the_server_does_not_serve_is_empty_until_it_is_served_which_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unserved = ApiError("list", 404, "NotFound", "the server could not find the requested resource")
    server = Server([(0, unserved)], [None, unserved, unserved])
    monkeypatch.setattr(module, "REFUSED_S", 0.0)
    told: list[str] = []

    async def listen() -> None:
        informer = Informer(
            server, "/apis/x/v1/things", Node, changed=lambda node: told.append("there"),  # type: ignore[arg-type]
            gone=lambda node: told.append("gone"),
        )  # fmt: skip
        task = asyncio.create_task(informer.run())
        while len(told) < 3:
            await asyncio.sleep(0)
        assert informer.fault is None
        task.cancel()

    asyncio.run(asyncio.wait_for(listen(), 300))
    assert told == ["there", "gone", "there"]
    assert [each.getMessage() for each in caplog.records] == [f"{unserved}; it counts as empty"]


def test_a_kind_that_is_never_served_does_not_keep_the_steerer_from_starting() -> None:
    unserved = ApiError("list", 404, "NotFound", "the server could not find the requested resource")

    async def listed(path: str) -> bool:
        server = Server([], [unserved] * 1000)
        informer = Informer(server, path, Node, changed=print, gone=print)  # type: ignore[arg-type]
        task = asyncio.create_task(informer.run())
        while informer.fault is None:
            await asyncio.sleep(0)
        task.cancel()
        return informer.synced.is_set()

    assert asyncio.run(asyncio.wait_for(listed("/apis/resource.k8s.io/v1/resourceclaims"), 300))
    assert not asyncio.run(asyncio.wait_for(listed("/api/v1/pods"), 300)), "every server has pods"
