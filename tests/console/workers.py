"""Workers of what-ifs that do what a test says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from berth.console.what_if.question import Question
from berth.console.what_if.queue import Queue

ORIGIN = 1_700_000_000_000
ASKED = Question(("sjf",), ORIGIN - 1, ORIGIN + 10**9)


class FakeChild:
    """A worker that does what the test says."""

    def __init__(self, folder: Path, mem_mib: int) -> None:
        self.folder = folder
        self.told: list[dict[str, Any]] = []
        self.ended: int | None = None
        self.rss = 0
        self.stopped = False

    def status(self) -> int | None:
        return self.ended

    def news(self) -> list[dict[str, Any]]:
        told, self.told = self.told, []
        return told

    def rss_mib(self) -> int:
        return self.rss

    def stop(self) -> None:
        self.stopped = True


class Workers:
    """Starts fake workers, and keeps them by the id of their question."""

    def __init__(self) -> None:
        self.of: dict[str, FakeChild] = {}

    def __call__(self, folder: Path, mem_mib: int) -> FakeChild:
        self.of[folder.name] = FakeChild(folder, mem_mib)
        return self.of[folder.name]


def queue_in(folder: Path, workers: Workers, processes: int = 1) -> Queue:
    ticks = iter(range(1, 10**6))
    return Queue(folder, workers, processes, 1024, clock=lambda: float(next(ticks)))


def place(queue: Queue, question_id: str) -> tuple[str, str]:
    entry = queue.get(question_id)
    assert entry is not None
    return entry.state.place.value, entry.state.detail
