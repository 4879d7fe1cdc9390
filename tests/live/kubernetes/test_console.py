"""The console beside a real API server: what it shows of pods and GPUs, and what an operator changes from it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from berth.console.roles import Role
from tests.console.world import World as Console
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.world import World

pytestmark = pytest.mark.slow
HELD = "held by annotation berth.dev/hold"


def jobs_of(client: TestClient) -> dict[str, tuple[str, str]]:
    """State of each job, and where it is or why it waits, by id."""
    rows = client.get("/api/v1/queue").json()["jobs"]
    return {row["id"]: (row["state"], row["where"] or row["why"]) for row in rows}


def drained(client: TestClient) -> list[tuple[int, list[str]]]:
    """GPUs that are drained, and the jobs on them."""
    gpus = client.get("/api/v1/gpus").json()["gpus"]
    return [(gpu["index"], [each["job"] for each in gpu["tenants"]]) for gpu in gpus if gpu["drained"]]


def do(client: TestClient, action: str, what: str) -> str:
    """The command that does the same as this action, which is done."""
    asked = {"source": "kubernetes", "action": action, "id": what}
    answer = client.post("/api/v1/actions", json=asked)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["command"])


async def until(seen: Callable[[], object], wanted: object) -> None:
    """Wait for what the console shows: it looks again a moment after each change."""
    end = time.monotonic() + 300
    while (found := await asyncio.to_thread(seen)) != wanted:
        assert time.monotonic() < end, f"{found}, not {wanted}"
        await asyncio.sleep(0.2)


@pytest.mark.usefixtures("kube_scheduler")
def test_pods_are_held_and_released_and_a_drained_gpu_keeps_what_it_has(play: Played, tmp_path: Path) -> None:
    """A pod on half a GPU keeps it while it is drained; a pod that is held waits although there is room."""

    async def story(world: World) -> None:
        await world.node("n1", 2)
        await world.pod("first", milli=500, mem=20_000)
        console = Console(tmp_path, kubeconfig=world.kubeconfig, actions=True)
        olga, ann = console.program("olga", Role.OPERATOR), console.program("ann")
        async with world.steerer():
            await world.until_bound("first")
            job = (await asyncio.to_thread(olga.get, "/api/v1/jobs/default/first")).json()
            assert (job["state"], job["milli"], job["mem_mib"]) == ("starting", 500, 20_000)
            gpu = int(job["where"].rpartition(" ")[2])
            command = await asyncio.to_thread(do, olga, "drain", f"n1:{gpu}")
            assert command == f"kubectl label node n1 berth.dev/gpu-drained-{gpu}=true --overwrite"
            await until(lambda: drained(olga), [(gpu, ["default/first"])])
            await world.pod("second")
            await world.until_bound("second")  # on the other GPU, which is full now
            await world.pod("third", milli=100, mem=1000)
            await world.until_told("third", "waits for room")
            command = await asyncio.to_thread(do, olga, "hold", "default/third")
            assert command == "kubectl annotate pod -n default third berth.dev/hold=true --overwrite"
            assert await asyncio.to_thread(do, olga, "undrain", f"n1:{gpu}")
            await world.pod("fourth", milli=100, mem=1000)
            await world.until_bound("fourth")
            await until(lambda: jobs_of(olga).get("default/third"), ("held", HELD))
            await until(lambda: jobs_of(olga).get("default/fourth"), ("starting", f"n1 GPU {gpu}"))
            assert await asyncio.to_thread(drained, olga) == []
            await asyncio.to_thread(do, olga, "release", "default/third")
            await world.until_bound("third")
            await asyncio.to_thread(do, olga, "cancel", "default/first")
            await until(lambda: jobs_of(olga).get("default/first"), None)
        await world.pod("fifth")
        await until(lambda: jobs_of(olga).get("default/fifth", ("",))[0], "waiting")
        await asyncio.to_thread(refused, olga, ann)
        for page in ("/now", "/queue", "/job/default/fourth?source=kubernetes"):
            assert (await asyncio.to_thread(olga.get, page)).status_code == 200

    def refused(olga: TestClient, ann: TestClient) -> None:
        """What Kubernetes does not have is said, and a user changes nobody's pods."""
        asked: dict[str, Any] = {
            "source": "kubernetes",
            "action": "priority",
            "id": "default/fifth",
            "value": 5,
        }
        answer = olga.post("/api/v1/actions", json=asked)
        assert (answer.status_code, "when it is made" in answer.json()["detail"]) == (400, True)
        answer = ann.post("/api/v1/actions", json=asked | {"action": "hold"})
        assert answer.status_code == 403
        assert "when it is made" in olga.get("/job/default/fifth?source=kubernetes").text

    play(story)
