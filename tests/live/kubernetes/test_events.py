"""Events: warnings first, none lost to a server that is away for a moment, none in the way of others."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from berth.errors import ApiError
from berth.live.kubernetes.placements import Placed, PlacedGpu
from berth.live.kubernetes.steps import Lift, PodEvent
from berth.live.kubernetes.writing import Events, in_words

PLACED = Placed([PlacedGpu(index=1, milli=500, mem_mib=8000)], policy="fifo")


class Server:
    """Takes events, or raises what it is told to, once each."""

    def __init__(self, *errors: ApiError) -> None:
        self.errors = list(errors)
        self.written: list[tuple[str, str, str]] = []

    async def request(self, method: str, path: str, body: dict[str, Any]) -> bytes:
        if self.errors:
            raise self.errors.pop(0)
        self.written.append((body["type"], body["involvedObject"]["name"], body["message"]))
        return b"{}"


def events_of(server: Server) -> Events:
    return Events(server, "berth")  # type: ignore[arg-type]


def placed(name: str) -> PodEvent:
    lift = Lift(f"uid-{name}", "n", name, "n1", PLACED)
    return PodEvent(*lift[:3], "Placed", in_words(lift), False)


def test_a_flood_of_pods_that_were_placed_drops_no_warning() -> None:
    server = Server()
    events = events_of(server)
    events.add(PodEvent("u", "n", "waits", "Waits", "0/1 nodes"))
    for at in range(5000):
        events.add(placed(f"p{at}"))
    asyncio.run(events.write(2))
    assert server.written == [
        ("Warning", "waits", "0/1 nodes"),
        ("Normal", "p3000", "fifo places it on node n1, GPU 1: 500 milli, 8000 MiB"),
    ]


def test_an_event_is_written_again_after_a_fault_and_dropped_if_it_is_refused() -> None:
    server = Server(ApiError("POST", 500, "InternalError", "", 0.0), ApiError("POST", 403, "Forbidden", ""))
    events = events_of(server)
    events.add(placed("a"))
    events.add(placed("b"))

    async def write() -> list[int]:
        left = []
        for _ in range(3):
            with contextlib.suppress(ApiError):
                await events.write(1)
            left.append(len(events))
        return left

    assert asyncio.run(write()) == [2, 1, 0]
    assert [name for _, name, _ in server.written] == ["b"]
