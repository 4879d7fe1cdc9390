"""When waiting jobs may start, by the model of waits that `berth predict-wait train` left in the history."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from berth.console.source import Pending
from berth.errors import BerthError
from berth.live.driver.snapshot import Snapshot

if TYPE_CHECKING:
    from berth.console.hub import Hub

Held = tuple[float, float] | None
"""In which range the share of intervals that hold lies; None where that is unknown."""

EVERY_S = 30.0
COST_FACTOR = 20.0
"""Predicting may take a twentieth of the time: it reads the history."""
MOST_JOBS = 500
"""The first jobs of the queue that are predicted."""
PATIENCE_S = 0.3
MODEL_NAME = "waiting.json"  # as in `berth.waiting.refit`, which a console without the extra cannot import


class Predictions:
    """Asks the model now and then, in a thread, and remembers what it said."""

    def __init__(self, history: Path | None) -> None:
        self._history = history
        self._found: dict[tuple[str, str], tuple[int, int]] = {}
        self._next_s = 0.0
        self._asking: asyncio.Task[None] | None = None
        self.why = ""
        """Why nothing is predicted; empty if something is."""
        self.held: Held = None
        """What the intervals that were found last promise, as `berth predict-wait` prints it."""

    async def of(self, hub: Hub, looks: Mapping[str, Snapshot]) -> Mapping[tuple[str, str], tuple[int, int]]:
        """The interval of the start of jobs, by source and id, in ms; what is known by now."""
        if self._history is None or not (self._history / MODEL_NAME).exists():
            self.why = "no model of waits; make one with: berth predict-wait train"
            return {}
        task = self._asking
        idle = task is None or task.done() or task.get_loop() is not asyncio.get_running_loop()
        if idle and time.monotonic() >= self._next_s and any(look.waiting for look in looks.values()):
            task = self._asking = asyncio.create_task(self._ask(self._history, hub, tuple(looks)))
        if task is not None and not task.done():
            await asyncio.wait([task], timeout=PATIENCE_S)
        return self._found

    async def _ask(self, history: Path, hub: Hub, names: tuple[str, ...]) -> None:
        began_s = time.monotonic()
        self._next_s = began_s + EVERY_S
        pending = {
            name: source.pending for name in names if isinstance(source := hub.seen[name].source, Pending)
        }
        try:
            self._found, self.held = await asyncio.to_thread(_predicted, history, pending)
            self.why = ""
        except (BerthError, OSError, ValueError, KeyError) as error:
            self._found, self.held, self.why = {}, None, str(error)
        self._next_s = time.monotonic() + max(EVERY_S, COST_FACTOR * (time.monotonic() - began_s))


def _predicted(
    history: Path, pending: Mapping[str, Any]
) -> tuple[dict[tuple[str, str], tuple[int, int]], Held]:
    from berth.waiting import WaitModel
    from berth.waiting.now import questions_now

    model = WaitModel.load(history / MODEL_NAME)
    found = {}
    held: Held = None
    for name, ask in pending.items():
        jobs = ask()
        now_ms = time.time_ns() // 1_000_000
        waits = [at for at, job in enumerate(jobs) if job.start_ms is None and not job.blocked][:MOST_JOBS]
        if not waits:
            continue
        asked = questions_now(history, model, jobs, now_ms)
        held = model.promised(asked.days)
        for at in waits:
            job = jobs[at]
            answer = model.answer_waiting(asked.values[at], (now_ms - job.queued_ms) / 1000, asked.offset)
            found[name, job.job_id] = (
                now_ms + round(1000 * answer.low_s),
                now_ms + round(1000 * answer.high_s),
            )
    return found, held
