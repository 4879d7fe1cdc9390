"""The extender over TLS on a real API server: nodes filtered, the best one named, binds with their placement."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from berth.errors import KubernetesError
from berth.live.kubernetes import names
from berth.live.kubernetes.entries import Settings
from berth.live.kubernetes.extender import Extender, tls_of
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.world import World


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and its key."""
    words = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=berth -addext subjectAltName=IP:127.0.0.1"
    made = tmp_path / "tls.crt", tmp_path / "tls.key"
    subprocess.run(
        ["openssl", *words.split(), "-out", made[0], "-keyout", made[1]], check=True, capture_output=True
    )
    return made


def test_another_scheduler_is_told_where_pods_fit_and_their_bind_is_done(
    play: Played, certificate: tuple[Path, Path]
) -> None:
    async def test(world: World) -> None:
        await world.node("full", 1)
        await world.node("half", 1)
        await world.node("none", 0)
        await world.pod("holder", scheduler="default-scheduler", annotations={}, node="full")
        # Spread is the other scheduler's to honour.
        spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
        uid = await world.pod(
            "asks", milli=500, mem=10_000, scheduler="default-scheduler", topologySpreadConstraints=[spread]
        )
        extender = Extender(world.api, Settings(scheduler_name=""))
        listening = asyncio.create_task(extender.listen())
        runner = web.AppRunner(extender.application())
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls_of(*certificate, certificate[0]))
        await site.start()
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        nameless = ssl.create_default_context(cafile=str(certificate[0]))
        trusting = ssl.create_default_context(cafile=str(certificate[0]))
        trusting.load_cert_chain(*certificate)
        async with aiohttp.ClientSession() as session:

            async def ask(what: str, body: dict[str, Any] | None = None) -> Any:
                url = f"https://127.0.0.1:{port}/{what}"
                async with session.post(url, json=body, ssl=trusting) as reply:
                    return json.loads(await reply.text())

            async def listed() -> bool:
                async with session.get(f"https://127.0.0.1:{port}/healthz", ssl=trusting) as reply:
                    return reply.status == 200

            await world.until("the extender has listed all", listed)
            pod = (await world.pods())["asks"]
            asked = {"Pod": pod, "NodeNames": ["full", "half", "none", "unknown"]}
            assert await ask("filter", asked) == {
                "NodeNames": ["half"],
                "FailedNodes": {
                    "full": "berth: GPU compute short by 500 milli",
                    "none": "berth: no GPU",
                    "unknown": "berth: not known to berth",
                },
                "Error": "",
            }
            whole = {
                "Pod": pod,
                "Nodes": {"items": [{"metadata": {"name": name}} for name in ("full", "half")]},
            }
            assert (await ask("filter", whole))["Nodes"]["items"] == [{"metadata": {"name": "half"}}]
            scores = {each["Host"]: each["Score"] for each in await ask("prioritize", asked)}
            assert scores == {"full": 0, "half": 10, "none": 0, "unknown": 0}
            bind = {"PodName": "asks", "PodNamespace": "default", "PodUID": uid, "Node": "half"}
            assert await ask("bind", bind) == {"Error": ""}
            placed = json.loads((await world.pods())["asks"]["metadata"]["annotations"][names.PLACEMENT])
            assert placed["gpus"][0] == {"index": 0, "uuid": None, "milli": 500, "mem_mib": 10_000}
            again = await world.pod("too-big", milli=600, mem=1, scheduler="default-scheduler")
            bind = {"PodName": "too-big", "PodNamespace": "default", "PodUID": again, "Node": "half"}
            assert "no longer has room" in (await ask("bind", bind))["Error"]
            bad = {**pod, "metadata": {**pod["metadata"], "annotations": {names.ASKED_MILLI: "many"}}}
            assert (
                "gpu-milli is 'many'" in (await ask("filter", {"Pod": bad, "NodeNames": ["half"]}))["Error"]
            )
            with pytest.raises(aiohttp.ClientError):  # without a certificate
                await session.post(f"https://127.0.0.1:{port}/filter", json=asked, ssl=nameless)
            with pytest.raises(aiohttp.ClientError):
                await session.post(f"http://127.0.0.1:{port}/filter", json=asked)
        await runner.cleanup()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await world.check()

    play(test)


def test_without_a_certificate_nothing_is_served(tmp_path: Path) -> None:
    with pytest.raises(KubernetesError, match="cannot be used"):
        tls_of(tmp_path / "no.crt", tmp_path / "no.key", tmp_path / "ca.crt")


def test_without_an_authority_for_clients_nothing_is_served(certificate: tuple[Path, Path]) -> None:
    with pytest.raises(KubernetesError, match=r"the clients' CA .* cannot be used"):
        tls_of(*certificate, certificate[0].with_name("no.crt"))
