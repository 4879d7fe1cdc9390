"""What is kept of the queue besides its store: the good copy, and the history of what has ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from berth.errors import StoreError
from berth.live.local.entry import Entry
from berth.live.local.store import of_pruning, of_recorded

if TYPE_CHECKING:
    from berth.live.local.broker import Broker

__all__ = ["RECORD_S", "Keeper"]

LOOK_S = 0.5
COPY_S = 60.0
PRUNE_S = 3600.0
KEPT_MS = 30 * 86_400_000
"""The store forgets jobs this long after they have ended; the history has them."""
RECORD_S = 30.0
"""The history has an attempt this long after it has ended, or as soon as there are `BATCH` of them."""
BATCH = 500
RECORDING_S = 120.0


class Keeper:
    """Makes the store's copy anew, has ended attempts recorded, and prunes the store, each when it is due."""

    def __init__(self, broker: Broker, record_s: float) -> None:
        self._broker = broker
        self._record_s = record_s
        self.changed = False
        """Whether the store has changed since its last copy."""
        self.unrecorded = broker.store.count_unrecorded()
        """How many ended attempts the history does not have yet."""
        self.over: list[tuple[Entry, int]] = []
        """Starts whose end is written, but not in the copy yet."""
        self._child: subprocess.Popen[str] | None = None
        self.profile_notes: list[str] = []
        """What was odd about profiles lately."""
        now_s = time.monotonic()
        self._copied_s = self._pruned_s = self._recorded_s = now_s

    async def run(self) -> None:
        """Do what is due, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self._keep()

    async def _keep(self) -> None:
        if self.changed and time.monotonic() - self._copied_s >= COPY_S:
            await self._copy()
        waited_s = time.monotonic() - self._recorded_s
        if self.unrecorded and (waited_s >= self._record_s or (self.unrecorded >= BATCH and waited_s > 5)):
            await self.record()

    async def _copy(self) -> None:
        broker = self._broker
        over, self.over = self.over, []
        self.changed, self._copied_s = False, time.monotonic()
        try:
            await asyncio.to_thread(broker.store.keep_copy)
        except StoreError as error:
            broker.log("no-copy", why=str(error))
            self.over, self.changed = over + self.over, True
            return
        for entry, start in over:
            broker.runner.forget(entry, start)
        if time.monotonic() - self._pruned_s > PRUNE_S:
            self._pruned_s = time.monotonic()
            with contextlib.suppress(StoreError):
                await broker.commits.ask(of_pruning(broker.now_ms() - KEPT_MS, broker.book.next_number - 1))

    async def record(self) -> None:
        """Have a child take what has ended into the history, and note what it has taken."""
        broker = self._broker
        self._recorded_s = time.monotonic()
        try:
            await broker.commits.flushed()
            await self._record()
        except StoreError as error:
            broker.log("not-recorded", why=str(error))

    async def _record(self) -> None:
        broker = self._broker
        cards = json.dumps([(card.model, card.mem_mib) for card in broker.cards.cards])
        words = [sys.executable, "-m", "berth.live.local.recording", broker.places.folder, cards]
        said = ""
        try:
            answer, said = await asyncio.to_thread(self._output_of, words)
            told = json.loads(answer.splitlines()[-1])
        except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
            broker.log("not-recorded", why=repr(error), said=said[-1000:])
            return
        await broker.commits.ask([of_recorded(job, attempt) for job, attempt in told["recorded"]])
        self.unrecorded = max(0, self.unrecorded - len(told["recorded"]))
        for path in told["profiles"]:
            broker.book.notes.append({"note": "profile", "path": path})
        self.profile_notes = [*self.profile_notes, *told["said"]][-5:]
        broker.log("recorded", attempts=len(told["recorded"]), profiles=told["profiles"], said=told["said"])

    def close(self) -> None:
        """End the child that records, which another broker's does again."""
        if self._child is not None:
            self._child.kill()

    def _output_of(self, words: list[str]) -> tuple[str, str]:
        """What a child printed, and its errors; its exit code may have been taken by `Runner.reap`."""
        pipe = subprocess.PIPE
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True) as child:
            self._child = child
            try:
                return child.communicate(timeout=RECORDING_S)
            except subprocess.TimeoutExpired:
                child.kill()
                raise
            finally:
                self._child = None
