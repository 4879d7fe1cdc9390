"""Before Kubernetes 1.36 a webhook adds the gate: as the policy does, and no pod waits for one that is dead."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from berth.console.certificate import own_certificate
from berth.errors import SettingError
from berth.live.kubernetes import gating, names
from berth.live.kubernetes.gating import changes, serve
from berth.live.kubernetes.installing import apply, take_away
from berth.live.kubernetes.manifests import Install, manifests
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.server import Server
from tests.live.kubernetes.world import World
from tests.ports import free_ports

PODS: dict[str, dict[str, Any]] = {
    "whole": {},
    "part": {"gpus": 2, "milli": 300, "mem": 8000},
    "memory": {"mem": 8000},
    "own": {"resources": {names.ASKED_MILLI: "700"}},
    "size": {"gpus": 2, "resources": {names.ASKED_MEM_MIB: "16000"}},
    "wrong": {"milli": "half"},
    "gated": {"gates": (names.GATE,), "milli": 500},
    "others": {"gates": ("kueue.x-k8s.io/admission",)},
    "old": {"scheduler": names.OLD_SCHEDULER},
    "sidecar": {
        "milli": 250,
        "initContainers": [
            {
                "name": "side",
                "image": "busybox",
                "restartPolicy": "Always",
                "resources": {"limits": {names.RESOURCE: "1"}},
            },
            {"name": "plain", "image": "busybox"},
        ],
    },
    "plain": {"gpus": 0},
    "bound": {"node": "n1"},
}


async def made(world: World) -> dict[str, Any]:
    """The specs that these pods have once they are made."""
    for name, asks in PODS.items():
        await world.pod(name, **{"gates": (), **asks})
    specs = {name: pod["spec"] for name, pod in (await world.pods()).items()}
    for name, spec in specs.items():
        await world.delete(name)
        spec.get("schedulingGates", []).sort(key=lambda gate: gate["name"])
    return specs


@contextlib.asynccontextmanager
async def webhook(world: World, folder: Path, *, alive: bool = True) -> AsyncIterator[None]:
    """The webhook that `install` makes, served by this process; while it is not alive nothing listens."""
    (port,) = free_ports(1)
    tls = own_certificate(folder, "localhost")
    assert tls is not None
    bundle = base64.b64encode(tls[0].read_bytes()).decode()
    body = manifests(Install("", tls=(bundle, "")))["gate-webhook"][-1]
    body["webhooks"][0]["clientConfig"] = {"url": f"https://localhost:{port}/", "caBundle": bundle}
    await apply(world.api, body)
    task = asyncio.create_task(serve(port, *tls)) if alive else None
    try:
        yield
    finally:
        await take_away(world.api, body)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def is_gated(world: World) -> bool:
    """Whether a new pod that asks for a GPU gets a gate."""
    await world.pod("asks", gates=())
    there = (await world.pods())["asks"]["spec"].get("schedulingGates")
    await world.delete("asks")
    return bool(there)


@pytest.mark.slow
def test_the_webhook_changes_pods_as_the_policy_does(play: Played, server: Server, tmp_path: Path) -> None:
    if not server.is_at_least(36):
        pytest.skip(f"{server.assets.version} has no MutatingAdmissionPolicy")

    async def test(world: World) -> None:
        policy = manifests(Install(""))["gate"]
        for each in policy:
            await apply(world.api, each)
        await world.until("the policy is in force", lambda: is_gated(world))
        by_policy = await made(world)
        for each in reversed(policy):
            await take_away(world.api, each)

        async def ungated() -> bool:
            return not await is_gated(world)

        await world.until("the policy is gone", ungated)
        async with webhook(world, tmp_path):
            await world.until("the webhook is in force", lambda: is_gated(world))
            by_webhook = await made(world)
        assert by_webhook == by_policy
        assert [name for name, spec in by_webhook.items() if "schedulingGates" not in spec] == [
            "bound",
            "plain",
        ]

    play(test)


def test_no_pod_waits_for_a_webhook_that_is_dead(play: Played, tmp_path: Path) -> None:
    async def test(world: World) -> None:
        async with webhook(world, tmp_path, alive=False):
            specs = await made(world)
        assert "schedulingGates" not in specs["plain"]
        assert "schedulingGates" not in specs["whole"]  # it gets its part where it is bound

    play(test)


def test_with_right_sizes_parts_are_not_asked_for_as_resources() -> None:
    container = {"name": "main", "resources": {"limits": {names.RESOURCE: "1"}}}
    pod = {"metadata": {"annotations": {names.ASKED_MILLI: "300"}}, "spec": {"containers": [container]}}
    gate = {"op": "add", "path": "/spec/schedulingGates", "value": [{"name": names.GATE}]}
    assert changes(pod, parts=False) == [gate]
    gated, parts = changes(pod, parts=True)
    amounts = {names.ASKED_MILLI: "300"}
    resources = {"limits": {names.RESOURCE: "1", **amounts}, "requests": amounts}
    assert (gated, parts["value"]) == (gate, resources)


def test_requests_are_answered_for_a_while_after_the_end_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gating, "DRAIN_S", 1e9)
    (port,) = free_ports(1)
    tls = own_certificate(tmp_path, "localhost")
    assert tls is not None
    review = {"request": {"uid": "u", "object": {"metadata": {}, "spec": {}}}}

    async def run() -> None:
        async def answered() -> str:
            connector = aiohttp.TCPConnector(ssl=False)
            async with (
                aiohttp.ClientSession(connector=connector) as session,
                session.post(f"https://localhost:{port}/", json=review) as reply,
            ):
                uid: str = (await reply.json())["response"]["uid"]
                return uid

        serving = asyncio.create_task(serve(port, *tls))
        async with asyncio.timeout(300):
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    assert await answered() == "u"
                    break
                await asyncio.sleep(0.05)
        serving.cancel()
        await asyncio.sleep(0)
        assert await answered() == "u"
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        with pytest.raises(aiohttp.ClientError):
            await answered()

    asyncio.run(run())


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_a_certificate_that_cannot_be_read_is_named(text: str | None, tmp_path: Path) -> None:
    certificate = tmp_path / "tls.crt"
    if text is not None:
        certificate.write_text(text)
    with pytest.raises(SettingError, match=rf"^{certificate} and {certificate}: .*expected a certificate"):
        asyncio.run(serve(1, certificate, certificate))
