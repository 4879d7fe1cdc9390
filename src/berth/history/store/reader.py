"""Reads a history and its index, without what imports need, so that a single job is shown quickly."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import duckdb

from berth.errors import HistoryError, cause_of
from berth.history.store.database import connect, named_errors, quoted_name, read_parquet
from berth.history.store.record_files import SCHEMA, plain_table, record_of, record_table
from berth.history.store.usage import with_usage
from berth.model import Record


def history_is_there(folder: Path) -> None:
    """HistoryError where no import has made a history of this folder."""
    if not (folder / "index.json").exists():
        if (folder.parent / "queue.db").exists():
            raise HistoryError(
                f"there is no history in {folder} yet; jobs of the queue come into it within half a minute of their"
                " end, while the queue is up"
            )
        raise HistoryError(
            f"there is no history in {folder}; make one with `berth import … --history {folder}`, or collect a"
            f" Kubernetes cluster's with `berth k8s history {folder}`"
        )


class HistoryReader:
    """What is in a history now, whatever is imported meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def index(self) -> Index:
        """What counts now."""
        path = self.folder / "index.json"
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return Index()
        except (OSError, ValueError) as error:
            raise HistoryError(f"{path} cannot be read: {cause_of(error)}") from error
        if not isinstance(read, dict) or read.get("version") != VERSION:
            raise HistoryError(f"{path} is not of version {VERSION} of berth's history")
        mark = read["cursors"].pop("key", None)  # where it once was
        return Index.of({"key_mark": mark, **read})

    def paths(self, names: Iterable[str]) -> list[Path]:
        """Where the files of these names are."""
        return [self.folder / name for name in names]

    def source(self, database: duckdb.DuckDBPyConnection | None = None) -> str:
        """All records as something that SQL can select from, with what was measured of their GPUs.

        With a database that stays open, after a look at the files: questions are then answered faster.
        """
        index = self.index()
        records = (
            record_table(self.paths(index.records))
            if database is None or not index.records
            else plain_table(database, self.paths(index.records))
        )
        return with_usage(records, read_parquet(self.paths(index.usage))) if index.usage else records

    @contextmanager
    def reading(self) -> Iterator[tuple[duckdb.DuckDBPyConnection, Index]]:
        """A database without any view that spills nothing, and the index whose files stay while this lasts."""
        with self.keeping_files(), connect(None) as database, named_errors(self.folder):
            yield database, self.index()

    @contextmanager
    def database(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A database with the view `records`: as they are now, whatever is imported meanwhile."""
        import tempfile  # here, because `berth job` does without it

        with (
            self.keeping_files(),
            tempfile.TemporaryDirectory(prefix="berth-") as folder,
            connect(Path(folder)) as database,
            named_errors(self.folder),
        ):
            database.execute(f"CREATE VIEW records AS SELECT * FROM {self.source()}")
            yield database

    @contextmanager
    def keeping_files(self) -> Iterator[None]:
        """Keep the files that the index names now from being removed."""
        try:
            file = os.open(self.folder / "readers", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            yield  # no import has made it: there is nothing to remove yet
            return
        try:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield
        finally:
            os.close(file)

    def records(self, where: str = "true", values: list[Any] | None = None) -> Iterator[Record]:
        """Yield records in order of submission; `where` is a condition of SQL with `?` for each value."""
        columns = ", ".join(quoted_name(name) for name in SCHEMA)
        with self.database() as database:
            found = database.execute(
                f"SELECT {columns} FROM records WHERE {where} ORDER BY queued_ms, cluster, job_id",
                values or [],
            )
            while rows := found.fetchmany(4096):
                for row in rows:
                    yield record_of(row)

    def __len__(self) -> int:
        with self.database() as database:
            found = database.execute("SELECT count(*) FROM records").fetchone()
        return int(found[0]) if found else 0


LISTED: Final = 20


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that no attempt of the history has."""

    column: str
    """Of a record."""
    value: str
    known: tuple[str, ...]
    """What there is instead, those of most attempts first; at most LISTED of them."""
    more: int
    """How many there are besides."""


def unknown_values(database: duckdb.DuckDBPyConnection, asked: Mapping[str, str]) -> tuple[Unknown, ...]:
    """Which of these values, by column, no attempt of the view `records` has; nothing asked for is no value."""
    found = []
    for column, value in asked.items():
        name = quoted_name(column)
        if (
            not value
            or database.execute(f"SELECT 1 FROM records WHERE {name} = ? LIMIT 1", [value]).fetchone()
        ):
            continue
        rows = database.execute(
            f"SELECT {name} FROM records WHERE {name} <> '' GROUP BY 1 ORDER BY count(*) DESC, 1"
        ).fetchall()
        known = tuple(row[0] for row in rows[:LISTED])
        found.append(Unknown(column, value, known, len(rows) - len(known)))
    return tuple(found)


def most_gpus(database: duckdb.DuckDBPyConnection) -> int:
    """The most GPUs that an attempt of the view `records` had; 0 for no attempt."""
    row = database.execute("SELECT max(gpus) FROM records").fetchone()
    return int(row[0] or 0) if row else 0


VERSION: Final = 1
UNDOABLE: Final = 3
"""The number of imports that can be taken back; their files stay until then."""
KINDS: Final = ("records", "usage", "series", "spools")
"""The folders of a history's files."""


@dataclass(frozen=True, slots=True)
class PastImport:
    """An import, and what `index.json` said before it."""

    id: str
    what: str
    at_ms: int
    imported: int
    updated: int
    before: Mapping[str, Any]

    def files(self) -> set[str]:
        """The files that counted before it."""
        return {name for kind in KINDS for name in self.before.get(kind, ())}


@dataclass(frozen=True, slots=True)
class Index:
    """What `index.json` says."""

    records: tuple[str, ...] = ()
    usage: tuple[str, ...] = ()
    series: tuple[str, ...] = ()
    spools: tuple[str, ...] = ()
    """How far the segments of spools have been read (see `folder.Mark`)."""
    cursors: Mapping[str, int] = field(default_factory=dict)
    """How far each source has been read."""
    next_number: int = 1
    key_mark: int | None = None
    """Of the key to the pseudonyms, 0 for real names (see `pseudonyms.key_mark`); None before any record."""
    imports: tuple[PastImport, ...] = ()
    """The last imports that changed something, the newest last; at most UNDOABLE."""

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Index:
        """The index of what `index.json` holds, which may lack what later versions added."""
        known: dict[str, Any] = {
            field.name: content[field.name] for field in fields(cls) if field.name in content
        }
        known |= {name: tuple(known[name]) for name in KINDS if name in known}
        known["imports"] = tuple(PastImport(**each) for each in known.get("imports", ()))
        return cls(**known)

    def files(self) -> set[str]:
        """Every file that counts, or that would count again if imports were taken back."""
        files = {*self.records, *self.usage, *self.series, *self.spools}
        return files.union(*(past.files() for past in self.imports))
