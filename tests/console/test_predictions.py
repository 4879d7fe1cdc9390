"""The predicted start of jobs that wait, where a model of waits is there."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from berth.console.sources.values import ValuesSource, look_of
from berth.history.importing.pending import Queued
from tests.console.world import World
from tests.waiting.test_waiting import a_trained_history


@dataclass(slots=True)
class WithPending(ValuesSource):
    """A source that tells the model of waits what it asks."""

    def pending(self) -> tuple[Any, ...]:
        return tuple(
            Queued(
                job_id=job.id, user=job.user, account="", virtual_cluster="", application="", qos="", gpu_model="",
                gpus=job.gpus, share_milli=1000, cpu_milli=0, mem_mib=0, time_limit_ms=3_600_000, node_count=1,
                queued_ms=job.submit_ms, start_ms=job.start_ms,
            )
            for job in self.value.jobs
        )  # fmt: skip


def test_waiting_jobs_have_an_interval_and_running_ones_have_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("berth.console.predictions.PATIENCE_S", 60.0)
    now_ms = time.time_ns() // 1_000_000
    source = WithPending(look_of(gpus=4, waiting=3, at_ms=now_ms))
    world = World(tmp_path / "state", sources=[source], history=a_trained_history(tmp_path))
    jobs = world.program("ann").get("/api/v1/queue").json()["jobs"]
    for job in jobs:
        told = job["starts_from_ms"], job["starts_to_ms"]
        if job["start_ms"] is None:
            assert now_ms <= told[0] <= told[1]
        else:
            assert told == (None, None)
    assert "<time" in world.browser("ann").get("/queue?state=waiting").text


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ((0.8, 0.8), "Predicted start, in 80 of 100 cases"),
        ((0.62, 0.9), "Predicted start, in 62 to 90 of 100 cases"),
        (None, "Predicted start, in an unknown share of cases"),
    ],
)
def test_the_queue_promises_what_predict_wait_promises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: tuple[float, float] | None, words: str
) -> None:
    monkeypatch.setattr("berth.console.predictions.PATIENCE_S", 60.0)
    monkeypatch.setattr("berth.waiting.model.WaitModel.promised", lambda self, days: held)
    source = WithPending(look_of(gpus=4, waiting=3, at_ms=time.time_ns() // 1_000_000))
    world = World(tmp_path / "state", sources=[source], history=a_trained_history(tmp_path))
    assert words in world.browser("ann").get("/queue").text
    for job in world.program("ann").get("/api/v1/queue").json()["jobs"]:
        expected = None if job["start_ms"] is not None or held is None else list(held)
        assert job["starts_held"] == expected


def test_without_a_model_the_page_says_how_to_make_one(tmp_path: Path) -> None:
    world = World(tmp_path, sources=[ValuesSource()], history=tmp_path)
    assert "make one with: berth predict-wait train" in world.browser("ann").get("/queue").text


def test_starts_that_the_queue_tells_need_no_model(tmp_path: Path) -> None:
    look = look_of(gpus=8, waiting=2)
    jobs = tuple(replace(each, starts_from_ms=5000, starts_to_ms=9000) for each in look.jobs)
    world = World(tmp_path, sources=[ValuesSource(replace(look, jobs=jobs))], history=tmp_path)
    text = world.browser("ann").get("/queue").text
    assert '<th scope="col">Predicted start</th>' in text
    assert "No start is predicted" not in text
