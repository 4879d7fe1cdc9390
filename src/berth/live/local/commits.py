"""Group commit: what comes within a few milliseconds is written in one transaction, by a thread of its own.

What has happened (rows of the book) must be written and is kept until it can be. What is asked for (a submission) is
refused where it cannot be written, and nothing has changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from berth.errors import StoreError
from berth.live.local.store import Statement, Store, of_meta

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
