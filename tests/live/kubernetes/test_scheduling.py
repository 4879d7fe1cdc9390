"""The scheduler on a real API server: pods of all kinds get their place, and those that do not are told why."""

from __future__ import annotations

import json

from berth.live.kubernetes import names
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.world import World


def test_pods_that_ask_for_parts_share_a_gpu_and_carry_their_placement(play: Played) -> None:
    async def test(world: World) -> None:
        await world.node("n1", 1)
        await world.pod("a", milli=500, mem=20_000)
        await world.pod("b", milli=500, mem=30_000)
        await world.pod("cpu", 0)
        async with world.scheduler():
            assert await world.until_bound("a", "b", "cpu") == {"a": "n1", "b": "n1", "cpu": "n1"}
        pods = await world.pods()
        assert json.loads(pods["b"]["metadata"]["annotations"][names.PLACEMENT]) == {
            "gpus": [{"index": 0, "uuid": None, "milli": 500, "mem_mib": 30_000}],
            "shared": False,
            "best_effort": False,
            "policy": "fifo+best-fit",
        }
        assert json.loads(pods["cpu"]["metadata"]["annotations"][names.PLACEMENT])["gpus"] == []
        await world.check()

    play(test)
