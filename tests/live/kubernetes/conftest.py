"""One real API server for all tests of this folder."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from berth.live.kubernetes.access import from_kubeconfig
from berth.live.kubernetes.client import Api
from tests.live.kubernetes.server import USERS, Server, find_assets
from tests.live.kubernetes.world import World


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real API server; without one the test skips, and in CI it fails."""
    assets = find_assets()
    if isinstance(assets, str):
        if os.environ.get("CI"):
            pytest.fail(f"CI must test against a real API server: {assets}")
        pytest.skip(assets)
    running = Server(assets, tmp_path_factory.mktemp("kubernetes"))
    try:
        running.start()
        for token in USERS:
            running.kubeconfig(token)
        yield running
    finally:
        running.stop()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """A server of this test's own, with kube-scheduler: its webhooks and CRDs are in no other test's way."""
    assets = find_assets()
    if isinstance(assets, str):
        pytest.skip(assets)
    server = Server(assets, tmp_path / "server")
    try:
        server.start()
        if why := server.start_scheduler():
            pytest.skip(why)
        yield server
    finally:
        server.stop()


@pytest.fixture
def kube_scheduler(server: Server) -> None:
    """Kubernetes' own scheduler runs on this server, from now on for all tests."""
    if why := server.start_scheduler():
        pytest.skip(why)


Played = Callable[[Callable[[World], Awaitable[None]]], None]


@pytest.fixture
def play(server: Server) -> Played:
    """Runs a test's coroutine on a clean cluster."""

    def run(test: Callable[[World], Awaitable[None]]) -> None:
        async def whole() -> None:
            kubeconfig = Path(server.kubeconfig())
            async with Api(from_kubeconfig(kubeconfig)) as api:
                world = World(api, kubeconfig)
                await world.clean()
                await test(world)

        asyncio.run(asyncio.wait_for(whole(), 600))

    return run


def pytest_report_header() -> str:
    """Which Kubernetes the tests meet."""
    assets = find_assets() if not os.environ.get("CI") else "built when it is needed"
    return f"kubernetes: {assets if isinstance(assets, str) else assets.version}"
