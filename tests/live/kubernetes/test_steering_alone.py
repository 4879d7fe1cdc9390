"""The steerer on an API server on which nothing changes: it ends when it is to, and does what it decided as leader."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from berth.errors import ApiError, PolicyError
from berth.live.driver.driver import Driver, Round
from berth.live.kubernetes import steering
from berth.live.kubernetes.client import Api
from berth.live.kubernetes.names import PLACEMENT
from berth.live.kubernetes.placements import Placed, read_annotation
from berth.live.kubernetes.pod_site import Settings
from berth.live.kubernetes.steering import Options, Steering
from berth.live.kubernetes.steps import Lift, Patch, PodEvent
from tests.live.kubernetes.steered import bound, node, pod, steered

POLICY = "preempt+fifo+best-fit"
FORBIDDEN = ApiError("eviction", 429, "TooManyRequests", "it would violate the pod's disruption budget", 0.0)


class Still(Api):
    """A server with these objects, on which nothing changes, and whose budgets forbid every eviction."""

    def __init__(self, **objects: list[Any]) -> None:
        self._objects = {f"/api/v1/{kind}": there for kind, there in objects.items()}
        self.asked: list[str] = []

    async def request(self, method: str, path: str, *_: object, **__: object) -> bytes:
        """A list, or what comes of a write."""
        self.asked.append(f"{method} {path.rpartition('/')[2]}")
        if path.endswith("/eviction"):
            raise FORBIDDEN
        if method == "GET" and path not in self._objects and not path.endswith("/configmaps"):
            raise ApiError(path, 404, "NotFound", "there is none")
        found = {"metadata": {"resourceVersion": "9"}, "items": self._objects.get(path, [])}
        return msgspec.json.encode(found)

    async def watch(self, *_: object) -> AsyncIterator[Any]:
        """Nothing comes."""
        await asyncio.Event().wait()
        yield None


def once(server: Still) -> Steering:
    return Steering(server, Options(Settings(POLICY), once=True, elect=False))


def test_once_gives_up_an_eviction_that_a_budget_forbids_and_what_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steering, "backoff_s", lambda attempt, most_s=0.0: 0.0)
    there = node(gpus=1)
    low = bound(steered([there], [pod("low")]).lifts(1)["low"])
    urgent = pod("urgent", version=2)
    urgent.spec.priority = 1000
    server = Still(nodes=[there], pods=[low, urgent])

    async def run() -> Steering:
        steerer = once(server)
        await asyncio.wait_for(steerer.run(), 300)
        return steerer

    counts = asyncio.run(run()).counts
    assert (counts.placed, counts.evicted, counts.failed) == (0, 0, 2)
    assert server.asked.count("POST eviction") == steering.MOST_ATTEMPTS + 1
    assert "PATCH urgent" not in server.asked


def test_a_steerer_shows_that_it_can_decide_while_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steering, "ALIVE_S", 0.01)
    options = Options(Settings(POLICY), elect=False, alive_file=tmp_path / "alive")
    times: set[int] = set()

    async def run() -> None:
        running = asyncio.create_task(Steering(Still(nodes=[node()], pods=[]), options).run())
        async with asyncio.timeout(300):
            while len(times) < 3:
                if (tmp_path / "alive").exists():
                    times.add((tmp_path / "alive").stat().st_mtime_ns)
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())


def test_once_ends_with_the_fault_that_keeps_it_from_deciding(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Driver.step

    def broken(*args: Any, **keywords: Any) -> Round:
        return replace(step(*args, **keywords), fault=PolicyError("it decided nothing"))

    monkeypatch.setattr(Driver, "step", broken)

    async def run() -> None:
        await asyncio.wait_for(once(Still(nodes=[node()], pods=[])).run(), 300)

    with pytest.raises(PolicyError, match="it decided nothing"):
        asyncio.run(run())


class WithLease(Still):
    """The same with a place for one Lease."""

    def __init__(self, **objects: list[Any]) -> None:
        super().__init__(**objects)
        self.lease: bytes | None = None

    async def request(self, method: str, path: str, *rest: Any, **named: Any) -> bytes:
        if "/leases" not in path or (method == "GET" and self.lease is None):
            return await super().request(method, path, *rest, **named)
        if method != "GET":
            self.lease = msgspec.json.encode(rest[0])
        assert self.lease is not None
        return self.lease


def test_the_next_steerer_goes_on_with_what_start_intervals_had_learned() -> None:
    learned = {"policy": POLICY, "offset": 0.3, "judged": 4, "days": [[20_000, 3, 4]]}
    server = WithLease(nodes=[node()], pods=[])

    async def lead(identity: str, text: str = "") -> Steering:
        steerer = Steering(server, Options(Settings(POLICY), once=True, identity=identity))
        if text:
            steerer.lease.learned_starts = text
        await asyncio.wait_for(steerer.run(), 300)
        return steerer

    asyncio.run(lead("one", json.dumps(learned)))
    second = asyncio.run(lead("two"))

    assert second.driver.forecasts_held(20_000 * 86_400_000) == (3, 4)


@pytest.mark.parametrize("lost", [False, True])
def test_what_is_decided_under_a_lease_that_was_lost_is_not_done_under_the_next(
    lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, step = Still(nodes=[node()], pods=[pod("a")]), Driver.step

    async def run() -> None:
        steerer = once(server)

        def losing(*args: Any, **keywords: Any) -> Round:
            monkeypatch.setattr(Driver, "step", step)
            if lost:
                steerer._reset()
            return step(*args, **keywords)

        monkeypatch.setattr(Driver, "step", losing)
        await asyncio.wait_for(steerer.run(), 300)

    asyncio.run(run())
    assert ("PATCH a" in server.asked) is not lost


def test_a_gate_that_was_held_until_a_place_is_empty_counts_as_lifted_only_then() -> None:
    steerer = once(Still())
    decided = steered([node()], [pod("a")]).lifts(1)["a"]
    before = read_annotation({PLACEMENT: decided.placement}, Placed)
    assert before is not None
    assert before.at_ms == 1
    steerer._held = [decided._replace(after=frozenset({"uid-gone"}))]
    steerer._now_ms = lambda: 500_000
    steerer._release_held()
    released = steerer._steps.get_nowait()
    assert isinstance(released, Lift)
    assert released == decided._replace(placed=msgspec.structs.replace(decided.placed, at_ms=500_000))
    after = read_annotation({PLACEMENT: released.placement}, Placed)
    assert after == msgspec.structs.replace(before, at_ms=500_000)


@pytest.mark.parametrize("changed", [True, False])
def test_of_two_steerers_only_the_one_that_changed_a_pod_says_so(changed: bool) -> None:
    server = Still()
    steerer = once(server)

    async def change(*_: object, **__: object) -> bool:
        return changed

    server.change = change
    event = PodEvent("uid-a", "n", "a", "Overcommitted", "its part is given back")
    asyncio.run(steerer._write_once(Patch("uid-a", "n", "a", {}, event)))
    assert len(steerer._events) == changed


@pytest.mark.parametrize("turns", range(5))
def test_a_steerer_that_is_stopped_in_the_moment_of_a_wake_stops(turns: int) -> None:
    async def run() -> None:
        steerer = once(Still())
        waiting = asyncio.create_task(steerer._until_woken())
        for _ in range(3):  # until it waits
            await asyncio.sleep(0)
        steerer._wake.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        had_woken = waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled() is not had_woken

    asyncio.run(run())


def test_no_reason_to_wait_is_told_of_a_pod_that_advice_was_given_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steering, "QUIET_MS", 0)
    monkeypatch.setattr(steering, "REPORT_S", 0.01)
    told: list[tuple[str, str]] = []

    class Heard(Still):
        async def request(self, method: str, path: str, *rest: Any, **more: Any) -> bytes:
            if path.endswith("/events"):
                told.append((rest[0]["reason"], rest[0]["involvedObject"]["name"]))
            return await super().request(method, path, *rest, **more)

    async def run() -> None:
        server = Heard(nodes=[node(gpus=1)], pods=[pod("a"), pod("large", 2)])
        steerer = asyncio.create_task(Steering(server, Options(Settings(advise=True), elect=False)).run())
        async with asyncio.timeout(300):
            while len(told) < 2:
                await asyncio.sleep(0.01)
        steerer.cancel()
        await asyncio.gather(steerer, return_exceptions=True)

    asyncio.run(run())
    assert sorted(told) == [("Advised", "a"), ("Waits", "large")]
