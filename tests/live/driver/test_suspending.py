"""What is done about a job whose processes do not come back to their GPUs."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from berth.live.driver import suspending as module
from berth.live.driver.suspending import AGAIN_S, Suspending
from berth.partition import fake_driver_folder
from berth.partition.checkpoint import Outcome
from berth.tenants import RESUMING, SUSPENDED


@dataclass
class Job:
    """As much of a tenant as a resume asks for."""

    id: str = "blue"
    start: int = 1
    slots: tuple[int, ...] = (0,)
    suspension: str = RESUMING
    parked_mib: int = 0
    makes_way: bool = False
    going: bool = True
    idle: bool = False


class OneJob:
    """A host of one suspended job whose partition is gone, so that each resume fails with an error."""

    fake = True

    def __init__(self, folder: Path) -> None:
        self.fake_card = str(folder / "card")
        self.job, self.told, self.kept = Job(), list[tuple[str, float]](), asyncio.Event()

    def tenants(self) -> list[Job]:
        return [self.job]

    def partition_of(self, job: Job) -> str:
        return job.id

    def kept_off(self, job: Job) -> None:
        job.suspension = SUSPENDED
        self.told.append(("kept off", time.monotonic()))
        self.kept.set()

    def lost(self, job: Job) -> None:
        job.suspension = SUSPENDED
        self.kept.set()

    def log(self, event: str, /, **values: object) -> None:
        self.told.append((f"{event}: {values['why']}", time.monotonic()))

    def came_back(self, job: Job) -> None:
        job.suspension = ""
        self.kept.set()

    def moves(self, job: Job) -> None: ...
    def moved(self) -> None: ...
    def signal(self, job: Job, number: int) -> None: ...
    def left_gpus(self, job: Job, parked_mib: int) -> None: ...


def test_a_resume_that_fails_with_an_error_is_told_after_a_pause_and_not_repeated_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_driver_folder()
    monkeypatch.setenv("BERTH_ROOT", str(tmp_path / "root"))

    async def resume() -> list[tuple[str, float]]:
        host: Any = OneJob(tmp_path)
        suspending = Suspending[Any](host, leaves=lambda job: True, runs_on=lambda job: None)
        suspending.move(host.job)
        try:
            await asyncio.wait_for(host.kept.wait(), 300)
        finally:
            suspending.close()
        found: list[tuple[str, float]] = host.told
        return found

    (failed, failed_s), (kept, kept_s) = asyncio.run(resume())
    assert (failed, kept) == ("resuming: no partition 'blue'; there are: none", "kept off")
    assert kept_s - failed_s >= AGAIN_S - 0.01


def test_a_mover_that_is_killed_is_told_in_words_before_the_job_is_moved_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.0)
    monkeypatch.setattr(module, "MOST_SILENT", 2)
    monkeypatch.setattr(Suspending, "_output_of", lambda *_: "")  # as of a process that is killed
    host: Any = OneJob(tmp_path)

    async def resume() -> None:
        suspending = Suspending[Any](host, leaves=lambda job: True, runs_on=lambda job: None)
        suspending.move(host.job)
        try:
            await asyncio.wait_for(host.kept.wait(), 300)
        finally:
            suspending.close()

    asyncio.run(resume())
    silent = "no-answer: its process ended without one"
    assert [told for told, _ in host.told] == [silent, silent, "resuming: the driver gives no answer"]


@pytest.mark.parametrize(
    ("answers", "taken_over", "learned"),
    [
        ([Outcome(True)], False, True),
        ([Outcome(True)], True, False),
        ([None, Outcome(True)], False, False),
        ([Outcome(False, "busy", again=True), Outcome(True)], False, False),
    ],
)
def test_a_speed_is_learned_only_from_a_move_that_none_may_have_begun_before(
    answers: list[Outcome | None],
    taken_over: bool,
    learned: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = iter(answers)

    async def answer(*_: object) -> Outcome | None:
        return next(left)

    monkeypatch.setattr(module, "AGAIN_S", 0.0)
    monkeypatch.setattr(Suspending, "_run", answer)
    host: Any = OneJob(tmp_path)
    host.job.parked_mib = 2 * module.LEAST_MIB

    async def resume() -> dict[str, float]:
        suspending = Suspending[Any](host, leaves=lambda job: True, runs_on=lambda job: None)
        if taken_over:
            suspending.go_on()
        suspending.move(host.job)
        await asyncio.wait_for(host.kept.wait(), 300)
        return suspending.mib_per_s

    assert (asyncio.run(resume()) != module.MIB_PER_S) is learned
    assert next(left, None) is None
