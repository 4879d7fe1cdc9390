"""One database over a history that stays open between questions, and opens anew when an import has changed it."""

from __future__ import annotations

import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import duckdb

from berth.history.store.database import connect, named_errors
from berth.history.store.reader import HistoryReader, history_is_there

REMEMBERED: Final = 256
"""At most this many answers are kept, those that were asked for last."""

T = TypeVar("T")


@dataclass(slots=True)
class _Kept:
    """The answer to one question."""

    turn: threading.Lock = field(default_factory=threading.Lock)
    """Held by the thread that works it out."""
    known: bool = False
    answer: Any = None


@dataclass(slots=True)
class _Opened:
    """A database over the files that one version of the index names."""

    version: Hashable
    database: duckdb.DuckDBPyConnection
    closing: ExitStack
    users: int = 0
    answers: OrderedDict[Hashable, _Kept] = field(default_factory=OrderedDict)


class CachedHistory:
    """A history for a process that is asked again and again, from many threads.

    Every question takes the lock of readers, looks at the index, and sees the history as it is then; what an import
    replaces meanwhile stays until the question is answered.
    """

    def __init__(self, folder: Path) -> None:
        self.reader = HistoryReader(folder)
        self._lock = threading.Lock()
        self._opened: _Opened | None = None

    @property
    def folder(self) -> Path:
        """Where the history is."""
        return self.reader.folder

    @contextmanager
    def database(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection of its own with the view `records`. Raises HistoryError if there is no history."""
        with self._entered() as opened, opened.database.cursor() as cursor, named_errors(self.folder):
            yield cursor

    def remembered(self, question: Hashable, answer: Callable[[duckdb.DuckDBPyConnection], T]) -> T:
        """The answer to a question; the same question is worked out once until the history changes.

        Threads that ask it meanwhile wait for that answer.
        """
        with self._entered() as opened:
            with self._lock:
                kept = opened.answers.setdefault(question, _Kept())
                opened.answers.move_to_end(question)
                if len(opened.answers) > REMEMBERED:
                    opened.answers.popitem(last=False)
            with kept.turn:
                if not kept.known:
                    with opened.database.cursor() as cursor, named_errors(self.folder):
                        kept.answer = answer(cursor)
                    kept.known = True
                found: T = kept.answer
                return found

    def close(self) -> None:
        """Let go of the database once it is no longer used."""
        with self._lock:
            before, self._opened = self._opened, None
        if before is not None:
            self._leave(before, 0)

    @contextmanager
    def _entered(self) -> Iterator[_Opened]:
        history_is_there(self.folder)
        with self.reader.keeping_files():
            opened = self._enter()
            try:
                yield opened
            finally:
                self._leave(opened, 1)

    def _enter(self) -> _Opened:
        """The database of the index as it is now, with one more user."""
        with self._lock:
            index = self.reader.index()
            version = (index.records, index.usage)
            before = self._opened
            if before is not None and before.version == version:
                before.users += 1
                return before
            with ExitStack() as stack:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="berth-"))
                database = stack.enter_context(connect(Path(folder)))
                with named_errors(self.folder):
                    database.execute(f"CREATE VIEW records AS SELECT * FROM {self.reader.source(database)}")
                opened = _Opened(version, database, stack.pop_all(), users=1)
            weakref.finalize(self, opened.closing.close)  # at the latest when the process ends
            self._opened = opened
        if before is not None:
            self._leave(before, 0)
        return opened

    def _leave(self, opened: _Opened, users: int) -> None:
        with self._lock:
            opened.users -= users
            done = opened.users == 0 and opened is not self._opened
        if done:
            opened.closing.close()
