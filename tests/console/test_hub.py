"""One look for all pages, and news that no slow page, jump of the clock or missing queue holds up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from berth.console.hub import Hub
from berth.live.driver.snapshot import Snapshot
from tests.console.values import ValuesSource, look_of


def told(event: bytes) -> dict[str, Any]:
    assert event.startswith(b"event: look\ndata: ")
    found: dict[str, Any] = json.loads(event.removeprefix(b"event: look\ndata: "))
    return found


async def first(watching: AsyncGenerator[bytes]) -> dict[str, Any]:
    """The event that a page gets when it opens."""
    assert (await anext(watching)).startswith(b"retry:")
    return told(await anext(watching))


def test_a_hundred_pages_cost_one_look() -> None:
    source = ValuesSource(look_of(gpus=8))

    async def story() -> None:
        hub = Hub([source])
        pages = [hub.watch() for _ in range(100)]
        events = await asyncio.gather(*(first(each) for each in pages))
        assert {each["version"] for each in events} == {1}
        assert events[0]["counts"]["gpus"] == 8
        for each in pages:
            await each.aclose()

    asyncio.run(story())
    assert source.looks == 1


def test_an_event_carries_the_gpus_that_changed_alone_and_a_slow_page_gets_the_newest() -> None:
    source = ValuesSource(look_of(gpus=8), every_s=0.01)

    async def story() -> None:
        hub = Hub([source])
        watching = hub.watch()
        await first(watching)
        for pct in (11.0, 22.0, 33.0):  # the page reads none of these meanwhile
            gpus = list(source.value.gpus)
            gpus[0] = replace(gpus[0], use_pct=pct)
            source.value = replace(source.value, gpus=tuple(gpus))
            before = hub.version
            while hub.version == before:
                await asyncio.sleep(0.005)
        event = told(await anext(watching))
        assert [(gpu["index"], gpu["use_pct"]) for gpu in event["gpus"]] == [(0, 33.0)]
        assert event["version"] == 4
        await watching.aclose()
        assert hub.watchers == 0

    asyncio.run(story())


def test_ten_thousand_events_between_two_looks_are_one() -> None:
    source = ValuesSource(look_of(gpus=8), every_s=1000)

    async def story() -> None:
        hub = Hub([source])
        watching = hub.watch()
        await first(watching)
        for number in range(10_000):
            gpu = replace(source.value.gpus[1], use_pct=number / 100)
            source.value = replace(source.value, gpus=(source.value.gpus[0], gpu, *source.value.gpus[2:]))
        hub.look_soon("local")
        await hub.fresh()
        event = told(await anext(watching))
        assert (event["version"], [gpu["use_pct"] for gpu in event["gpus"]]) == (2, [99.99])
        hub.close()
        assert [each async for each in watching] == []  # a console that ends lets its pages go at once

    asyncio.run(story())


def test_a_queue_that_goes_away_is_said_to_be_gone_and_comes_back() -> None:
    source = ValuesSource(look_of(gpus=4), every_s=0.01)

    async def story() -> None:
        hub = Hub([source, ValuesSource(look_of(gpus=2), name="slurm")])
        watching = hub.watch()
        assert (await first(watching))["counts"]["gpus"] == 6
        source.gone = "no queue is up"
        gone = told(await anext(watching))
        assert [(each["here"], each["why"]) for each in gone["sources"]] == [
            (False, "no queue is up"),
            (True, ""),
        ]
        assert (gone["counts"]["gpus"], gone["gpus"]) == (2, None)  # pages ask for all GPUs anew
        source.gone = ""
        assert told(await anext(watching))["counts"]["gpus"] == 6
        await watching.aclose()

    asyncio.run(story())


def test_a_queue_whose_answer_is_not_understood_is_said_to_be_so() -> None:
    class Odd(ValuesSource):
        def look(self) -> Snapshot:
            raise KeyError("gpus")

    async def story() -> None:
        hub = Hub([Odd(name="slurm"), ValuesSource(look_of(gpus=2))])
        seen = await hub.fresh()
        assert seen["slurm"].why.startswith("its answer is not understood (KeyError('gpus'))")
        assert hub.counts().gpus == 2

    asyncio.run(story())


def test_a_slow_queue_does_not_hold_up_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("berth.console.hub.PATIENCE_S", 0.05)

    slow = ValuesSource(look_of(gpus=4), name="slurm", slow_s=60)

    async def story() -> None:
        hub = Hub([slow, ValuesSource(look_of(gpus=2))])
        seen = await hub.fresh()
        while not hub.counts().gpus:
            seen = await hub.fresh()
        assert [(each.look is None, bool(each.why)) for each in seen.values()] == [
            (True, True),
            (False, False),
        ]
        slow.lets_go.set()

    asyncio.run(story())


def test_a_look_is_never_made_for_more_than_a_tenth_of_the_time() -> None:
    source = ValuesSource(look_of(gpus=4), slow_s=0.05, every_s=0.01)

    async def story() -> None:
        hub = Hub([source])
        await hub.fresh()
        await hub.fresh()
        assert hub.seen["local"].every_s >= 0.5

    asyncio.run(story())
    assert source.looks == 1


def test_a_clock_that_jumps_neither_stops_nor_hurries_the_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    source = ValuesSource(look_of(gpus=4), every_s=30)

    async def story() -> None:
        hub = Hub([source])
        await hub.fresh()
        for jump_s in (-10_000_000, 10_000_000):
            monkeypatch.setattr(
                "berth.console.hub.time.time_ns", lambda jump_s=jump_s: (1_800_000_000 + jump_s) * 10**9
            )
            await hub.fresh()
        hub.look_soon("local")
        await hub.fresh()

    asyncio.run(story())
    assert source.looks == 2


def test_ten_thousand_gpus_are_packed_once_for_all() -> None:
    source = ValuesSource(look_of(gpus=10_000))

    async def story() -> None:
        hub = Hub([source])
        first, second = await hub.gpus(), await hub.gpus()
        assert first is second
        assert len(json.loads(first[1])["gpus"]) == 10_000
        assert hub.last is not None
        assert len(hub.last) < 2000

    asyncio.run(story())


def test_gpus_of_a_slow_queue_are_shown_as_soon_as_the_look_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("berth.console.hub.PATIENCE_S", 0.01)

    source = ValuesSource(look_of(gpus=4), slow_s=60, every_s=1000)

    async def story() -> None:
        hub = Hub([source])
        assert json.loads((await hub.gpus())[1])["gpus"] == []
        source.lets_go.set()
        while hub.seen["local"].look is None:
            await asyncio.sleep(0.005)
        assert len(json.loads((await hub.gpus())[1])["gpus"]) == 4

    asyncio.run(story())


def test_a_change_during_a_look_is_followed_by_another_look() -> None:
    class Gated(ValuesSource):
        def look(self) -> Snapshot:
            self.looks += 1
            self.lets_go.wait(60)
            return self.value

    source = Gated(every_s=1000)

    async def story() -> None:
        hub = Hub([source])
        first = asyncio.create_task(hub.fresh())
        while not source.looks:
            await asyncio.sleep(0)
        hub.look_soon("local")
        source.lets_go.set()
        await first
        await hub.fresh()
        await hub.fresh()

    asyncio.run(story())
    assert source.looks == 2


def test_a_look_that_fails_unexpectedly_is_logged_and_not_repeated_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(ValuesSource):
        def look(self) -> Snapshot:
            self.looks += 1
            raise RuntimeError("a library's own")

    source = Broken(every_s=1000)

    async def story() -> None:
        hub = Hub([source])
        await hub.fresh()
        seen = await hub.fresh()
        assert "a library's own" in seen["local"].why

    asyncio.run(story())
    assert source.looks == 1
    assert "the look at local failed" in caplog.text
