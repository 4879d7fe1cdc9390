"""Server-sent events over a real connection: they come, end with the token, and go on after a restart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from berth.live.driver.snapshot import Snapshot
from tests.console.serving import served
from tests.console.values import ValuesSource, look_of
from tests.console.world import World


def looks(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in answer.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def test_news_come_at_once_and_end_when_the_token_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("berth.console.hub.HEARTBEAT_S", 0.05)
    source = ValuesSource(look_of(gpus=4), every_s=0.02)
    world = World(tmp_path, sources=[source])
    bearer = {"Authorization": f"Bearer {world.token('ann')}"}
    boots = []
    for _ in range(2):  # the second time as after a restart: a page connects again, and is told another boot
        with served(world) as address, httpx.stream("GET", f"{address}/events", headers=bearer) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            told = looks(answer)
            boots.append(next(told)["boot"])
            source.value = replace(source.value, gpus=source.value.gpus[:3])
            assert next(told)["counts"]["gpus"] == 3
            if len(boots) == 2:
                world.app.state.doorkeeper.tokens.remove("ann")
                assert list(told) == []
                assert httpx.get(f"{address}/events", headers=bearer).status_code == 401
        source.value = look_of(gpus=4)
        world = World(tmp_path, sources=[source])
    assert boots[0] != boots[1]


def test_a_busy_clusters_news_end_with_the_token_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("berth.console.events.RECOGNISED_S", 0.0)

    class Busy(ValuesSource):
        def look(self) -> Snapshot:
            self.value = look_of(gpus=1 + self.looks % 4)
            return super().look()

    world = World(
        tmp_path, sources=[Busy(every_s=0.01)]
    )  # no page ever waits so long that it gets a heartbeat
    bearer = {"Authorization": f"Bearer {world.token('ann')}"}
    with served(world) as address, httpx.stream("GET", f"{address}/events", headers=bearer) as answer:
        told = looks(answer)
        next(told)
        world.app.state.doorkeeper.tokens.remove("ann")
        assert len(list(islice(told, 40))) < 40
