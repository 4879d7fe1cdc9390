"""A wait that is asked for on a machine with a queue of its own is asked behind that queue."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from berth.history.importing.pending import Queued
from berth.waiting import now as of_waiting
from tests.live.local.world import World
from tests.waiting.test_waiting import a_trained_history, run

pytest.importorskip("lightgbm", reason="the extra 'account' is not installed")


@pytest.mark.slow
def test_predict_wait_asks_behind_this_machines_own_queue(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = a_trained_history(tmp_path)
    running = world.submit("sleep 300", gpus=1)
    world.until(lambda: world.state_of(running) == "running", "the first job runs")
    waiting = world.submit("true", gpus=2)
    after, held = world.submit("true", after=f"ok:{running}"), world.submit("true", gpus=2)
    world.ask("hold", ids=[held])
    asked: list[tuple[tuple[str, int, bool], ...]] = []
    real = of_waiting.questions_now

    def heard(history: Path, model: Any, jobs: Sequence[Queued], now_ms: int) -> of_waiting.Now:
        asked.append(tuple((job.job_id, job.gpus, job.start_ms is not None) for job in jobs))
        return real(history, model, jobs, now_ms)

    monkeypatch.setattr(of_waiting, "questions_now", heard)
    monkeypatch.setenv("BERTH_STATE", str(world.state))
    queue = {(running, 1, True), (waiting, 2, False), (after, 1, False), (held, 2, False)}
    assert "cases from" in run("predict-wait", "request", "--gpus", 2, "--history", history)
    assert (set(asked[0][:-1]), asked[0][-1]) == (queue, ("", 2, False))
    told = run("predict-wait", "queue", "--history", history)
    assert set(asked[1]) == queue
    first, *blocked, _ = told.splitlines()
    assert first.startswith(f"{waiting}: ")
    assert blocked == [
        f"{after}: cannot start yet (it waits for job {running} (ok))",
        f"{held}: cannot start yet (held by its user)",
    ]
