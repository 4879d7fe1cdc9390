"""The store of the queue: SQLite in WAL mode, synced at every commit, one commit for what came within a few ms.

    jobs          a row a job, its state as JSON; `ended` is 0 while it waits or runs
    attempts      a row an attempt that has ended; `recorded` is 1 once the history has it
    requests      what was asked for, once for all tasks of an array
    texts         environments and scripts, by their SHA-256
    meta          the clock, the policy, numbers

A good copy is kept beside it. A store that is broken is put aside, and the copy takes its place.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from berth.errors import StoreError
from berth.files import whole_file
from berth.live.local.entry import ENDED, Entry
from berth.live.local.request import Request, request_from_dict, to_dict

Statement = tuple[str, tuple[Any, ...]]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    id TEXT PRIMARY KEY, number INTEGER NOT NULL, serial INTEGER NOT NULL, ended INTEGER NOT NULL,
    state TEXT NOT NULL, uid INTEGER NOT NULL, body TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS jobs_live ON jobs (serial) WHERE ended = 0;
CREATE INDEX IF NOT EXISTS jobs_number ON jobs (number);
CREATE INDEX IF NOT EXISTS jobs_ended ON jobs (ended) WHERE ended > 0;
CREATE TABLE IF NOT EXISTS attempts (
    job TEXT NOT NULL, attempt INTEGER NOT NULL, recorded INTEGER NOT NULL DEFAULT 0, body TEXT NOT NULL,
    PRIMARY KEY (job, attempt)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS attempts_new ON attempts (job) WHERE recorded = 0;
CREATE TABLE IF NOT EXISTS requests (key INTEGER PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS texts (key TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


def of_entry(entry: Entry) -> Statement:
    ended = 0 if entry.state not in ENDED else max(1, entry.end_ms or 1)
    row = (entry.id, int(entry.number), entry.serial, ended, entry.state, entry.uid, _json(entry.to_dict()))
    return "INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?)", row


def of_attempt(attempt: Mapping[str, Any]) -> Statement:
    """The row of an attempt that has ended; one that is there stays as it is."""
    sql = "INSERT OR IGNORE INTO attempts (job, attempt, body) VALUES (?, ?, ?)"
    return sql, (attempt["job"], attempt["attempt"], _json(attempt))


def of_request(key: int, request: Request) -> Statement:
    return "INSERT OR REPLACE INTO requests VALUES (?, ?)", (key, _json(to_dict(request)))


def of_text(text: str) -> Statement:
    return "INSERT OR IGNORE INTO texts VALUES (?, ?)", (
        key_of_text(text),
        text.encode("utf-8", "surrogateescape"),
    )


def of_meta(key: str, value: object) -> Statement:
    return "INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, _json(value))


def of_recorded(job_id: str, attempt: int) -> Statement:
    """Note that the history has an attempt."""
    return "UPDATE attempts SET recorded = 1 WHERE job = ? AND attempt = ?", (job_id, attempt)


def of_used(number: int) -> Statement:
    """Note that the numbers of jobs up to this one are used, whatever jobs the store still knows."""
    return of_meta("used_number", number)


def of_pruning(before_ms: int, used_number: int) -> list[Statement]:
    """Forget jobs that ended before then and that the history has, and what only they named, but not which numbers
    are used."""
    old = "ended > 0 AND ended < ?"
    kept = f"SELECT job FROM attempts WHERE recorded = 0 OR job NOT IN (SELECT id FROM jobs WHERE {old})"
    gone = (before_ms,)
    return [
        of_used(used_number),
        (f"DELETE FROM attempts WHERE recorded = 1 AND job IN (SELECT id FROM jobs WHERE {old})", gone),
        (f"DELETE FROM jobs WHERE {old} AND id NOT IN ({kept})", (before_ms, before_ms)),
        ("DELETE FROM requests WHERE key NOT IN (SELECT json_extract(body, '$.request_key') FROM jobs)", ()),
        (
            "DELETE FROM texts WHERE key NOT IN (SELECT json_extract(body, '$.env') FROM requests WHERE"
            " json_extract(body, '$.env') IS NOT NULL UNION SELECT json_extract(body, '$.script') FROM requests"
            " WHERE json_extract(body, '$.script') IS NOT NULL)",
            (),
        ),
    ]


def key_of_text(text: str) -> str:
    """The name of a text: its SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


class Reader:
    """What the store holds, for a process that must not change it; a broken store is left as it is."""

    def __init__(self, path: str) -> None:
        """StoreError where it cannot be opened."""
        self.path = path
        quoted = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        try:
            self._reader = sqlite3.connect(
                f"file:{quoted}?mode=ro", uri=True, isolation_level=None, timeout=30
            )
        except sqlite3.Error as error:
            raise StoreError(f"{path} cannot be read ({error})") from error

    def close(self) -> None:
        self._reader.close()

    def _all(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._reader.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"{self.path} cannot be read ({error})") from error

    def live(self) -> list[Entry]:
        rows = self._all("SELECT body FROM jobs WHERE ended = 0 ORDER BY serial")
        return self._entries(rows)

    def ended(self, limit: int) -> list[Entry]:
        rows = self._all("SELECT body FROM jobs WHERE ended > 0 ORDER BY ended DESC LIMIT ?", (limit,))
        return self._entries(rows[::-1])

    def named(self, job_id: str) -> list[Entry]:
        """The job of this id, or the tasks of this array, as they were written last."""
        found = self._all("SELECT body FROM jobs WHERE id = ?", (job_id,))
        if not found and job_id.isdigit():
            found = self._all("SELECT body FROM jobs WHERE number = ? ORDER BY serial", (int(job_id),))
        return self._entries(found)

    def last_of_name(self, name: str) -> list[Entry]:
        """The job of this name that was submitted last."""
        named = "SELECT key FROM requests WHERE json_extract(body, '$.name') = ?"
        if not self._all(f"{named} LIMIT 1", (name,)):
            return []
        of_those = f"SELECT body FROM jobs WHERE json_extract(body, '$.request_key') IN ({named})"
        return self._entries(self._all(f"{of_those} ORDER BY serial DESC LIMIT 1", (name,)))

    def _entries(self, rows: Iterable[tuple[Any, ...]]) -> list[Entry]:
        requests: dict[int, Request] = {}
        found = []
        for (body,) in rows:
            try:
                values = json.loads(body)
                key = values["request_key"]
                if key not in requests:
                    requests[key] = self.request(key)
                found.append(Entry.from_dict(values, requests[key]))
            except (TypeError, ValueError, KeyError) as error:
                if "unexpected keyword argument" in str(error):
                    raise StoreError(
                        f"{self.path} was written by a newer berth ({error}): run that one, or put back the copy from"
                        " before the upgrade"
                    ) from error
                raise StoreError(
                    f"{self.path} has a job that cannot be read ({error!r}): {str(body)[:200]}; stop berth and put"
                    f" back {self.path}.copy"
                ) from error
        return found

    def ended_states(self, job_id: str) -> dict[str, str]:
        """The states of a job, or of the tasks of an array, that have ended."""
        found = self._all("SELECT id, state FROM jobs WHERE id = ? AND ended > 0", (job_id,))
        if not found and job_id.isdigit():
            found = self._all("SELECT id, state FROM jobs WHERE number = ? AND ended > 0", (int(job_id),))
        return dict(found)

    def request(self, key: int) -> Request:
        found = self._all("SELECT body FROM requests WHERE key = ?", (key,))
        if not found:
            raise StoreError(f"{self.path} has lost request {key}")
        return request_from_dict(json.loads(found[0][0]))

    def text(self, key: str) -> str:
        found = self._all("SELECT body FROM texts WHERE key = ?", (key,))
        if not found:
            raise StoreError(f"{self.path} has lost text {key[:12]}")
        text = found[0][0]
        return text.decode("utf-8", "surrogateescape") if isinstance(text, bytes) else str(text)

    def attempts(self, job_id: str) -> list[dict[str, Any]]:
        found = self._all("SELECT body FROM attempts WHERE job = ? ORDER BY attempt", (job_id,))
        return [json.loads(body) for (body,) in found]

    def unrecorded(self, limit: int) -> list[dict[str, Any]]:
        """Ended attempts that the history does not have yet."""
        rows = self._all("SELECT body FROM attempts WHERE recorded = 0 LIMIT ?", (limit,))
        return [json.loads(body) for (body,) in rows]

    def count_unrecorded(self) -> int:
        return int(self._all("SELECT count(*) FROM attempts WHERE recorded = 0")[0][0])

    def meta(self, key: str, otherwise: Any = None) -> Any:
        found = self._all("SELECT value FROM meta WHERE key = ?", (key,))
        return json.loads(found[0][0]) if found else otherwise

    def largest(self) -> tuple[int, int, int]:
        """The largest number that a job had, its largest place in the order, and the largest key of a request."""
        number, serial = self._all("SELECT max(number), max(serial) FROM jobs")[0]
        (key,) = self._all("SELECT max(key) FROM requests")[0]
        return max(int(number or 0), int(self.meta("used_number", 0))), int(serial or 0), int(key or 0)


class Store(Reader):
    """The open store. `write` may be called in a thread of its own; everything else in the one that opened it."""

    def __init__(
        self,
        path: str,
        *,
        fault: Callable[[str], None] = lambda step: None,
        report: Callable[[str], None] = print,
    ) -> None:
        """Open or make it. `fault` is called before each step of a write, for tests; `report` with what was mended.

        StoreError where it cannot be opened and there is no copy to go back to.
        """
        self.path = path
        self.mended = ""
        """What was done about a broken store."""
        self._fault = fault
        try:
            self._open()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError) and "malformed" not in str(error):
                raise StoreError(
                    f"{path} cannot be opened: {error}; name another folder with BERTH_STATE"
                ) from error
            self._mend(str(error))
            # A start that fails after this must not be the only one that says so.
            repair = {"text": self.mended, "at_ms": time.time_ns() // 1_000_000, "reconciled": False}
            self.write([of_meta("mended", repair)])
            report(self.mended)
        if not os.path.exists(f"{path}.copy"):
            with contextlib.suppress(StoreError):
                self.keep_copy()

    def _open(self) -> None:
        os.close(
            os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        )  # environments hold passwords
        # Not from several threads at once: writes have a connection of their own.
        self._writer = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=30)
        try:
            found = self._writer.execute("PRAGMA quick_check(1)").fetchone()
            if found is None or found[0] != "ok":
                raise sqlite3.DatabaseError(f"it is damaged: {found and found[0]}")
            for pragma in (
                "journal_mode = WAL",
                "synchronous = FULL",
                "wal_autocheckpoint = 2000",
                "cache_size = -500",
            ):
                self._writer.execute(f"PRAGMA {pragma}")
            self._writer.executescript(_SCHEMA)
            self._reader = sqlite3.connect(self.path, isolation_level=None, timeout=30)
            self._reader.execute("PRAGMA query_only = ON")
            self._reader.execute("PRAGMA cache_size = -250")
        except BaseException:
            self._writer.close()
            raise

    def _mend(self, why: str) -> None:
        """Put a broken store aside and go on with the last good copy."""
        broken = f"{self.path}.broken-{time.strftime('%Y%m%d-%H%M%S')}"
        copy = f"{self.path}.copy"
        for end in ("", "-wal", "-shm"):
            if os.path.exists(self.path + end):
                os.replace(self.path + end, broken + end)
        if os.path.exists(copy):
            made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(os.path.getmtime(copy)))
            with open(copy, "rb") as source, open(f"{self.path}.draft", "wb", opener=_private) as draft:
                while part := source.read(1 << 20):
                    draft.write(part)
                draft.flush()
                os.fsync(draft.fileno())
            os.replace(f"{self.path}.draft", self.path)
            what = f"the last good copy, of {made}, takes its place; jobs since then are lost if they had not started"
        else:
            what = "there is no copy of it: jobs that waited are lost, and those that had started are found again"
        self.mended = f"the store {self.path} is broken ({why}); it is kept as {broken}, and {what}"
        try:
            self._open()
        except sqlite3.DatabaseError as error:
            raise StoreError(
                f"{copy} is broken, too ({error}); remove it to start with an empty queue"
            ) from error

    def close(self) -> None:
        self._reader.close()
        self._writer.close()

    # Writing

    def write(self, statements: Iterable[Statement]) -> None:
        """Write all of these durably, or none: StoreError says why."""
        self._fault("begin")
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            for sql, values in statements:
                self._fault("row")
                self._writer.execute(sql, values)
            self._fault("commit")
            self._writer.execute("COMMIT")
        except BaseException as error:
            with contextlib.suppress(sqlite3.Error):
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise StoreError(
                    f"{self.path} cannot be written ({error}); free some room on its disk"
                ) from error
            raise
        self._fault("written")

    def keep_copy(self) -> None:
        """Make the good copy anew: whole and synced, or the old one stays."""
        copy = f"{self.path}.copy"
        source = sqlite3.connect(self.path, timeout=30)
        try:
            found = source.execute("PRAGMA quick_check(1)").fetchone()
            if found is None or found[0] != "ok":
                raise StoreError(
                    f"{self.path} is damaged ({found and found[0]}); its last good copy stays as it is"
                )
            with whole_file(Path(copy), durable=True) as draft:
                draft.unlink(missing_ok=True)
                os.close(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
                with contextlib.closing(sqlite3.connect(draft)) as target:
                    source.backup(target, pages=256)
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"{copy} cannot be written ({error})") from error
        finally:
            source.close()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
