"""Writes the queue's store, and keeps besides it the good copy and the history of what has ended.

`Commits` is group commit: what comes within a few milliseconds is written in one transaction, by a thread of its own.
What has happened (rows of the book) must be written and is kept until it can be. What is asked for (a submission) is
refused where it cannot be written, and nothing has changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from berth.errors import StoreError
from berth.live.local.cards import Card
from berth.live.local.entry import Entry
from berth.live.local.places import Places
from berth.live.local.store import Statement, Store, of_meta, of_pruning, of_recorded

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

    def __init__(
        self, store: Store, commits: Commits, places: Places, cards: Sequence[Card], log: Callable[..., None], *,
        record_s: float, now_ms: Callable[[], int], used_number: Callable[[], int],
        forget: Callable[[Entry, int], None], learned: Callable[[str], None],
    ) -> None:  # fmt: skip
        """`used_number` is the last number of a job that was given out; `forget` lets go of a start's folder, and
        `learned` is called with the file of each profile that was recorded."""
        self._store, self._commits, self._places, self._cards, self._log = store, commits, places, cards, log
        self._record_s, self._now_ms, self._used_number = record_s, now_ms, used_number
        self._forget, self._learned = forget, learned
        self._changed = False
        """Whether the store has changed since its last copy."""
        self._unrecorded = store.count_unrecorded()
        """How many ended attempts the history does not have yet."""
        self._over: list[tuple[Entry, int]] = []
        """Starts whose end is written, but not in the copy yet."""
        self._child: subprocess.Popen[str] | None = None
        self.profile_notes: list[str] = []
        """What was odd about profiles lately."""
        now_s = time.monotonic()
        self._copied_s = self._pruned_s = self._recorded_s = now_s

    def written(self, over: Iterable[tuple[Entry, int]], attempts: int, *, changed: bool) -> None:
        """The store knows that these starts are over and how many attempts ended; `changed` if it was written."""
        self._over += over
        self._unrecorded += attempts
        self._changed = self._changed or changed

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self._keep()

    async def _keep(self) -> None:
        if self._changed and time.monotonic() - self._copied_s >= COPY_S:
            await self._copy()
        waited_s = time.monotonic() - self._recorded_s
        if self._unrecorded and (waited_s >= self._record_s or (self._unrecorded >= BATCH and waited_s > 5)):
            await self.record()

    async def _copy(self) -> None:
        over, self._over = self._over, []
        self._changed, self._copied_s = False, time.monotonic()
        try:
            await asyncio.to_thread(self._store.keep_copy)
        except StoreError as error:
            self._log("no-copy", why=str(error))
            self._over, self._changed = over + self._over, True
            return
        for entry, start in over:
            self._forget(entry, start)
        if time.monotonic() - self._pruned_s > PRUNE_S:
            self._pruned_s = time.monotonic()
            with contextlib.suppress(StoreError):
                await self._commits.ask(of_pruning(self._now_ms() - KEPT_MS, self._used_number()))

    async def record(self) -> None:
        """Have a child take what has ended into the history, and note what it has taken."""
        self._recorded_s = time.monotonic()
        try:
            await self._commits.flushed()
            await self._record()
        except StoreError as error:
            self._log("not-recorded", why=str(error))

    async def _record(self) -> None:
        cards = json.dumps([(card.model, card.mem_mib) for card in self._cards])
        words = [sys.executable, "-m", "berth.live.local.recording", self._places.folder, cards]
        errors = ""
        try:
            answer, errors = await asyncio.to_thread(self._output_of, words)
            found = json.loads(answer.splitlines()[-1])
        except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
            self._log("not-recorded", why=repr(error), errors=errors[-1000:])
            return
        await self._commits.ask([of_recorded(job, attempt) for job, attempt in found["recorded"]])
        self._unrecorded = max(0, self._unrecorded - len(found["recorded"]))
        for path in found["profiles"]:
            self._learned(path)
        self.profile_notes = [*self.profile_notes, *found["said"]][-5:]
        self._log(
            "recorded", attempts=len(found["recorded"]), profiles=found["profiles"], errors=found["said"]
        )

    def close(self) -> None:
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


GATHER_S = 0.002
RETRY_S = 1.0
ROOM = [of_meta("room", "x" * 16_384), of_meta("room", "")]
"""Written where nothing else is, to find out whether the store can be written again."""


class Commits:
    """Writes what `collect` hands over, and then calls what was to follow."""

    def __init__(
        self,
        store: Store,
        collect: Callable[[], tuple[list[Statement], Callable[[], None]]],
        log: Callable[..., None] = lambda event, **fields: None,
    ) -> None:
        """`collect` gives the rows that must be written and what is to be done when they are; `log` hears of a store
        that cannot be written, such as of a full disk, and of what then went wrong."""
        self._store = store
        self._collect = collect
        self._log = log
        self._asked: list[tuple[Sequence[Statement], asyncio.Future[None]]] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._due = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._unwritten: list[Statement] = []
        self._then: list[Callable[[], None]] = []
        self.commits = 0
        self.broken = ""
        """Why the store cannot be written at the moment."""

    def wake(self) -> None:
        self._due.set()

    def doubt(self, error: StoreError) -> None:
        """Something beside the store cannot be written: tell it until the store can be."""
        self.broken = str(error)
        self._due.set()

    async def ask(self, statements: Sequence[Statement]) -> None:
        """Write what a client asks for; StoreError if it cannot be, and it is not written later either."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked.append((statements, future))
        self._due.set()
        await future

    async def flushed(self) -> None:
        """Wait until all that has happened is written; StoreError where it cannot be now, and will be later."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._due.set()
        await future

    async def settled(self) -> None:
        """Wait until what has happened is written, or cannot be."""
        with contextlib.suppress(StoreError):
            await self.flushed()

    async def run(self) -> None:
        while True:
            await self._due.wait()
            await asyncio.sleep(GATHER_S)
            self._due.clear()
            if not await self._write():
                await asyncio.sleep(RETRY_S)
                self._due.set()

    async def close(self) -> None:
        self._due.clear()
        await self._write()
        self._thread.shutdown()

    async def _write(self) -> bool:
        loop = asyncio.get_running_loop()
        asked, self._asked = self._asked, []
        waiting, self._waiting = self._waiting, []
        rows, then = self._collect()
        self._unwritten += rows
        self._then.append(then)
        must = self._unwritten
        error: StoreError | None = None
        if must or asked or self.broken:
            every = [*must, *(statement for statements, _ in asked for statement in statements)]
            error = await loop.run_in_executor(self._thread, self._attempt, every or ROOM)
            refused = [error] * len(asked)
            if error is not None and asked:  # for want of room, or because of what was asked for?
                error = await loop.run_in_executor(self._thread, self._attempt, must or ROOM)
                if error is None and len(asked) > 1:  # one that cannot be written refuses no other
                    refused = [
                        await loop.run_in_executor(self._thread, self._attempt, statements)
                        for statements, _ in asked
                    ]
            self.commits += 1
            for (_, future), why in zip(asked, refused, strict=True):
                _settle(future, why)
        if error is not None:
            self.broken = str(error)
            for future in waiting:
                _settle(future, error)
            self._log("not-written", why=str(error))
            return False
        self.broken = ""
        self._unwritten, todo, self._then = [], self._then, []
        for future in waiting:
            _settle(future, None)
        for each in todo:
            try:
                each()
            except Exception as error:  # noqa: BLE001  what follows from other writes must be done
                self._log("follow-up-failed", why=repr(error), trace=traceback.format_exc()[-2000:])
        return True

    def _attempt(self, statements: Sequence[Statement]) -> StoreError | None:
        try:
            self._store.write(statements)
        except StoreError as error:
            return error
        except Exception as error:  # noqa: BLE001  a row that SQLite cannot take, such as a number of 65 bits
            return StoreError(f"the changes cannot be written: {error}")
        return None


def _settle(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
