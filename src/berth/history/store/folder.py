"""The history: a folder of Parquet files, into which imports are merged so that nothing counts twice.

    HISTORY/index.json          which files count, and how far each source has been read
    HISTORY/records/*.parquet   a row an attempt, in the columns of `berth.history.store.record_files`
    HISTORY/usage/*.parquet     what was measured of GPUs, a row a job, source and hour (see `usage.py`)
    HISTORY/series/*.parquet    the values of series that some of it was made of (see `series_merge.py`)
    HISTORY/spools/*.parquet    how far the segments of spools have been read (see `Mark`)
    HISTORY/lock                held while something is merged
    HISTORY/readers             shared by readers; while there is one, no file is removed

An attempt is known by its cluster, its job id and when it was queued. An import first stages everything; then
new files are written beside the old ones, and at last `index.json` is replaced: a reader sees all of an
import or nothing of it, and one that was cut off leaves only files that no index names. These, and those that an
import has replaced, are removed when there is no reader, at the latest by the next import that finds none. What counted
before the last UNDOABLE imports stays, so that these can be taken back.

`Merge` takes staged attempts into these files: it finds what is new, what has changed, and which attempt of its job
each is.

A requeued job has a row for each attempt. Which of them a row is, and when the job was first submitted, follows
from all rows of the job that there are, so a late row changes what is stored of its siblings: totals are the
same however an import is cut into pieces.

What a source does not know of an attempt never replaces what another knew: neither a column that it lacks, nor a
value that stands for nothing.

`Mark` says how far a segment of a spool has been read, so that an import reads only what was appended since. The rows
of a segment come in stretches, each of lines of one hour; only the last of them grows. What comes next is therefore
read from where the last known stretch begins.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import count as count_from
from pathlib import Path
from typing import Any, Final

import duckdb

from berth.errors import HistoryError
from berth.files import to_disk, whole_file
from berth.history.store.database import copy_rows, count, make_table, named_errors, read_parquet
from berth.history.store.identity import known_by_label, number_tasks, rename_in, renamed_jobs
from berth.history.store.import_result import ImportResult, Rejected, Rejections, Staged
from berth.history.store.lookups import applications_of
from berth.history.store.reader import (
    KINDS,
    UNDOABLE,
    VERSION,
    HistoryReader,
    Index,
    PastImport,
    history_is_there,
)
from berth.history.store.record_files import SCHEMA, record_table
from berth.history.store.series_merge import SeriesMerge, all_values, copy_series
from berth.history.store.usage import UsageMerge, copy_usage

FILE_MODE = 0o640
"""The owner's group may read a history, others may not: it shows who ran what."""
FOLDER_MODE = 0o750
SEGMENTS = 48
"""With more files of a kind than this, the smallest are merged into one, so that half as many are left."""


class History(HistoryReader):
    """A history in a folder, into which imports are merged; `open_history` makes one."""

    def __init__(self, folder: Path, importing: str = "", dry_run: bool = False) -> None:
        super().__init__(folder)
        self._importing = importing
        self._dry_run = dry_run
        self._import_id = secrets.token_hex(8) if importing else ""

    @contextmanager
    def import_space(self, wait: bool = True) -> Iterator[Path]:
        """A folder to stage an import in, while no other import runs; HistoryError where one does."""
        try:
            self.folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            with (self.folder / "lock").open("a") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise HistoryError(f"another import into {self.folder} is running") from error
                self._sweep()
                space = self.folder / "staging"
                shutil.rmtree(space, ignore_errors=True)  # a dead import's: we hold the lock
                space.mkdir(mode=FOLDER_MODE)
                try:
                    yield space
                finally:
                    shutil.rmtree(space, ignore_errors=True)
                    if self._dry_run:
                        self._sweep()
        except OSError as error:
            raise HistoryError(f"{self.folder} cannot be written: {error.strerror or error}") from error

    def merge(
        self,
        database: duckdb.DuckDBPyConnection,
        staged: Staged,
        rejections: Rejections,
        cursors: Mapping[str, int] | None = None,
    ) -> ImportResult:
        """Take over what was staged in this database; to be called inside `import_space`."""
        index = self.index()
        if index.records and index.key_mark not in (None, staged.key_mark):
            hidden = "has pseudonyms by another key, or real names" if staged.key_mark else "has pseudonyms"
            raise HistoryError(
                f"{self.folder} {hidden}; import with the key that it began with, or into another"
            )
        with named_errors(self.folder):
            segments = self.paths(index.records)
            staged = known_by_label(database, staged, segments)
            if renamed_jobs(database, staged, segments):
                renamed = [(path, query) for path in segments if (query := rename_in(database, path))]
                index = self._renewed(database, index, "records", renamed)
                segments = self.paths(index.records)
            numbered = 0
            if staged.tasks:
                staged, numbered = number_tasks(database, staged, segments)
            merge = Merge(database, staged, segments)
            imported, updated = merge.counts()
            _check_names(*merge.other_names(), self.folder)
            for job, rows in merge.superseded:
                why = "another row of the same attempt is otherwise, and ended later or as late; that one counts"
                rejections.extend([Rejected(f"job {job}", why)] * rows)
            if imported or updated:
                index = self._renewed(database, index, "records", merge.queries())
        cursors = {**index.cursors, **(cursors or {})}
        self._publish(replace(index, cursors=cursors, key_mark=staged.key_mark), imported, updated)
        return rejections.result(staged.read, imported, updated, numbered)

    def merge_usage(
        self,
        database: duckdb.DuckDBPyConnection,
        staged: Path,
        rejections: Rejections,
        marks: Mapping[str, Mark] | None = None,
    ) -> ImportResult:
        """Take over staged rows of what was measured; rows of a source that had given some replace those.

        `marks` say how far the segments of spools have been read. To be called inside `import_space`.
        """
        index = self.index()
        with named_errors(self.folder):
            after, new, changed = self._merged_usage(database, index, staged, None)
            if marks:
                known = self.paths(index.spools)
                query = _with_marks(database, known, marks)
                after = self._renewed(database, after, "spools", [(known[0] if known else None, query)])
            rows = count(database, f"SELECT count(*) FROM {read_parquet([staged])}")
        if after != index:
            self._publish(after, new, changed)
        return rejections.result(rows + rejections.count, new, changed)

    def marks(self, database: duckdb.DuckDBPyConnection) -> dict[str, Mark]:
        """How far each segment of spools has been read, by its name."""
        if not (names := self.index().spools):
            return {}
        found = database.execute(
            f"SELECT segment, cluster, size_bytes, last_at FROM {read_parquet(self.paths(names))}"
        )
        return {name: Mark(*values) for name, *values in found.fetchall()}

    def merge_series(
        self, database: duckdb.DuckDBPyConnection, staged: Path, rejections: Rejections
    ) -> ImportResult:
        """Take over staged values of series, and what they say of jobs; to be called inside `import_space`."""
        index = self.index()
        with named_errors(self.folder):
            merge = SeriesMerge(database, staged, self.paths(index.series))
            if merge.new or merge.changed:
                rows = staged.with_name("usage.parquet")
                merge.write_rows(rows)
                index, _, _ = self._merged_usage(database, index, rows, merge.sources())
                index = self._renewed(database, index, "series", [(None, merge.fresh)])
                self._publish(index, merge.new, merge.changed)
        return rejections.result(merge.read + rejections.count, merge.new, merge.changed)

    def _merged_usage(
        self,
        database: duckdb.DuckDBPyConnection,
        index: Index,
        rows: Path,
        remade: Sequence[str] | None,
    ) -> tuple[Index, int, int]:
        """Write the files of usage that these rows change; returns the index with them, not yet written, and how many
        of the rows are new and changed."""
        merge = UsageMerge(database, rows, self.paths(index.usage), remade)
        if remade is None and not merge.new and not merge.changed:
            return index, 0, 0
        return self._renewed(database, index, "usage", merge.queries()), merge.new, merge.changed

    def _renewed(
        self,
        database: duckdb.DuckDBPyConnection,
        index: Index,
        kind: str,
        queries: Sequence[tuple[Path | None, str]],
    ) -> Index:
        """The index, not yet written, with new files of a kind.

        The rows of a query replace the file it comes with; with None, they become a new last file. Files without rows
        are left out. If there are too many files, the smallest are merged.
        """
        (self.folder / kind).mkdir(mode=FOLDER_MODE, exist_ok=True)
        numbers, (copy, whole) = count_from(index.next_number), _FILES[kind]
        files = list(getattr(index, kind))

        def written(query: str) -> list[str]:
            name = f"{kind}/{next(numbers):06d}.parquet"
            copy(database, query, self.folder / name)
            return [name] if (self.folder / name).exists() else []

        for path, query in queries:
            place = len(files) if path is None else files.index(f"{kind}/{path.name}")
            files[place : place + 1] = written(query)
        if len(files) > SEGMENTS:
            by_size = sorted(files, key=lambda name: (self.folder / name).stat().st_size)
            small = by_size[: len(files) - SEGMENTS // 2]
            one = written(f"FROM {whole(self.paths(small))}")
            files = [*(name for name in files if name not in small), *one]
        changed: dict[str, Any] = {kind: tuple(files), "next_number": next(numbers)}
        return replace(index, **changed)

    def undo(self) -> PastImport:
        """Take back the last import that changed something, and return it; HistoryError where none is known."""
        with self.import_space():
            index = self.index()
            if not index.imports:
                raise HistoryError(
                    f"{self.folder} knows of no import to take back; it keeps what was before its last {UNDOABLE}"
                )
            *others, last = index.imports
            before = {**last.before, "next_number": index.next_number}
            self._write_index(replace(Index.of(before), imports=tuple(others)))
        return last

    def _publish(self, index: Index, imported: int, updated: int) -> None:
        """Make this index the one that counts, and remember what was before it, if files have changed."""
        before = self.index()
        if (before.records, before.usage, before.series) != (index.records, index.usage, index.series):
            index = replace(index, imports=self._with_this(before, imported, updated))
        self._write_index(index)

    def _with_this(self, before: Index, imported: int, updated: int) -> tuple[PastImport, ...]:
        """The last imports with this one; what comes in parts, such as a database's windows, is one import."""
        past = before.imports
        if past and past[-1].id == self._import_id:
            last = replace(
                past[-1], imported=past[-1].imported + imported, updated=past[-1].updated + updated
            )
            return (*past[:-1], last)
        last = PastImport(
            self._import_id or secrets.token_hex(8),
            self._importing or "import",
            time.time_ns() // 1_000_000,
            imported,
            updated,
            {name: getattr(before, name) for name in (*KINDS, "cursors", "key_mark")},
        )
        return (*past, last)[-UNDOABLE:]

    def _write_index(self, index: Index) -> None:
        if self._dry_run:
            return  # the files that were written for it are removed with the space of the import
        path = self.folder / "index.json"
        new = [self.folder / name for name in index.files() - self.index().files()]
        for file in new:
            file.chmod(FILE_MODE)
        for named in (*new, *{file.parent for file in new}):
            to_disk(named)  # before the index names them
        with whole_file(path, durable=True) as temporary:
            temporary.touch(mode=FILE_MODE)
            temporary.chmod(FILE_MODE)
            temporary.write_text(
                json.dumps({"version": VERSION, **asdict(index)}, indent=1), encoding="utf-8"
            )
        self._sweep()

    def _sweep(self) -> None:
        """Remove what a cut-off import left, and files that nothing names any more; not while there is a reader."""
        with (self.folder / "readers").open("a") as readers:
            try:
                fcntl.flock(readers, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            counting = self.index().files()
            for kind in KINDS:
                for path in (self.folder / kind).glob("*"):
                    if f"{kind}/{path.name}" not in counting:
                        path.unlink(missing_ok=True)


def _check_names(twice: int, cluster: str, folder: Path) -> None:
    """HistoryError where attempts would count twice: for a cluster with a name, and without."""
    if twice:
        named, there = f"--cluster {cluster}", f"{'is' if twice == 1 else 'are'} in {folder} already"
        raise HistoryError(
            f"{twice:,} of these jobs {there}, once with the cluster's name '{cluster}' and once "
            "without, and would count twice; nothing was imported. If they are the same, import what names no cluster "
            f"with {named} (what is in the history without a name is taken back with `berth history undo`); if not, "
            "give it another --cluster NAME"
        )


def open_history(
    folder: str | os.PathLike[str], *, must_exist: bool = False, importing: str = "", dry_run: bool = False
) -> History:
    """The history in a folder, which is made by its first import.

    With `importing`, a name for the import, all that is merged through this object is one import, which is taken
    back as a whole. With `dry_run` all is done but the last step, so that the history stays as it is.
    """
    path = Path(folder)
    if must_exist:
        history_is_there(path)
    return History(path, importing, dry_run)


_DERIVED = ("attempt", "submit_ms")
_OWN = tuple(name for name in SCHEMA if name not in _DERIVED)
_KEY = "cluster, job_id, queued_ms"
_JOB = "cluster, job_id"


_NEVER_0 = ("cpu_milli", "mem_mib")
_OF_RESOURCES = ("gpus", "share_milli")


def _merged_value(name: str, staged: Staged) -> str:
    """The value of an attempt that comes (f), or that it had (o, NULL where it was not there) where none comes."""
    new, old = f'f."{name}"', f'o."{name}"'
    kind = SCHEMA[name]
    if name in staged.absent:
        nothing = "true"
    elif name in ("state", "start_ms", "end_ms") or (name == "application" and staged.rules):
        return new
    elif name in _OF_RESOURCES:
        nothing = "silent IS NOT NULL"
    elif name in _NEVER_0:
        nothing = f"{new} = 0"
    elif name == "node_count":
        nothing = f"{new} = 0 AND f.start_ms IS NOT NULL"
    elif kind == "VARCHAR":
        nothing = f"{new} = ''"
    elif kind == "VARCHAR[]":
        nothing = f"len({new}) = 0"
    else:
        nothing = f"{new} IS NULL"
    return f"CASE WHEN {nothing} AND o.row_hash IS NOT NULL THEN {old} ELSE {new} END"


class Merge:
    """One merge; the tables live in the database that it was given."""

    def __init__(self, database: duckdb.DuckDBPyConnection, staged: Staged, segments: Sequence[Path]) -> None:
        self._database = database
        self._segments = tuple(segments)
        self._staged = staged.keys
        own = ", ".join(f'"{name}"' for name in _OWN)
        # Hashes find the few rows that need care, cheaply: what comes twice, and jobs of several attempts.
        database.execute(
            f"CREATE TABLE twice AS SELECT hash({_KEY}) AS h FROM {staged.keys} GROUP BY 1 HAVING count(*) > 1"
        )
        self._fresh = f"SELECT {own} FROM {staged.attempts}"
        self._keys = f"SELECT {_KEY} FROM {staged.keys}"
        self.superseded: list[tuple[str, int]] = []
        """Jobs, and how many rows of one of their attempts that differ from another that ended later."""
        if count(self._database, "SELECT count(*) FROM twice"):
            several = f"FROM {staged.attempts} WHERE hash({_KEY}) IN (SELECT h FROM twice)"
            self.superseded = database.execute(
                f"SELECT job_id, count(*) - 1 FROM (SELECT DISTINCT {own} {several}) "
                f"GROUP BY {_KEY} HAVING count(*) > 1 ORDER BY ALL"
            ).fetchall()
            # Two rows of one attempt in one import: the one that ended later is the truth.
            self._fresh = (
                f"{self._fresh} WHERE hash({_KEY}) NOT IN (SELECT h FROM twice) UNION ALL SELECT {own} {several} "
                f"QUALIFY row_number() OVER (PARTITION BY {_KEY} ORDER BY end_ms DESC, hash({own})) = 1"
            )
            self._keys = f"SELECT DISTINCT {_KEY} FROM {staged.keys}"
        self._store(own, staged)
        self._rank(own)

    def _store(self, own: str, staged: Staged) -> None:
        """Make the table `old` of stored attempts of the jobs that come, and `write` of what is new or other."""
        columns = ", ".join(f'"{name}"' for name in SCHEMA)
        self._database.execute(
            f"CREATE TABLE old AS SELECT {columns}, hash({own}) AS row_hash "
            f"FROM {record_table(self._segments)} WHERE hash({_JOB}) IN (SELECT hash({_JOB}) FROM {staged.keys})"
        )
        self._known = bool(count(self._database, "SELECT count(*) FROM old"))
        if self._known:
            merged = ", ".join(f'{_merged_value(name, staged)} AS "{name}"' for name in _OWN)
            silent = staged.silent or f"(SELECT {_KEY} FROM old WHERE false)"
            self._database.execute(
                f"CREATE TABLE changed AS FROM (SELECT {merged}, o.row_hash AS row_hash, "
                "o.row_hash IS NOT NULL AS was_there, "
                f"f.name = '' AS nameless, o.application AS was FROM ({self._fresh}) f LEFT JOIN old o USING ({_KEY}) "
                f"LEFT JOIN (SELECT DISTINCT {_KEY}, true AS silent FROM {silent}) USING ({_KEY})) "
                f"WHERE row_hash IS DISTINCT FROM hash({own})"
            )
            self._applications(staged)
            self._database.execute(f"DELETE FROM changed WHERE row_hash = hash({own})")
            self._fresh = f"SELECT {own} FROM changed"

    def _applications(self, staged: Staged) -> None:
        """Set the applications of changed attempts that were there from all that is known of them now."""
        if staged.rules is None or staged.key_mark:
            # The source names them, or their texts are hidden now. What was found from more texts, or at all, stays.
            less = {"name", "comment", "command"} & set(staged.absent) if staged.rules else ()
            merged = "was <> ''" if less else ("nameless" if staged.rules else "application = ''")
            self._database.execute(f"UPDATE changed SET application = was WHERE was_there AND {merged}")
            return
        others = "(SELECT name, comment, command FROM changed WHERE was_there)"
        applications_of(self._database, "changed_apps", others, staged.rules)
        self._database.execute(
            "UPDATE changed SET application = CASE concat(a.name, a.comment, a.command) WHEN '' THEN was "
            "ELSE a.application END FROM changed_apps a WHERE was_there "
            "AND a.name = changed.name AND a.comment = changed.comment AND a.command = changed.command"
        )

    def _rank(self, own: str) -> None:
        """Make the view `attempts` of all that is to be written, with its number among its job's attempts."""
        siblings, keys = "", self._keys
        if self._known:
            left = f"FROM old ANTI JOIN changed USING ({_KEY})"
            siblings = f" UNION ALL SELECT {own}, attempt AS was_attempt, submit_ms AS was_submit_ms {left}"
            keys = f"SELECT {_KEY} FROM changed UNION ALL SELECT {_KEY} {left}"
        everything = (
            f"SELECT {own}, NULL::INTEGER AS was_attempt, NULL::BIGINT AS was_submit_ms "
            f"FROM ({self._fresh}){siblings}"
        )
        self._database.execute(
            f"CREATE TABLE several AS SELECT hash({_JOB}) AS h FROM ({keys}) GROUP BY 1 HAVING count(*) > 1"
        )
        alone = f"SELECT *, 1::INTEGER AS attempt, queued_ms AS submit_ms FROM ({everything})"
        if count(self._database, "SELECT count(*) FROM several"):
            alone += (
                f" WHERE hash({_JOB}) NOT IN (SELECT h FROM several) "
                f"UNION ALL SELECT *, row_number() OVER (job ORDER BY queued_ms)::INTEGER AS attempt, "
                f"min(queued_ms) OVER (job) AS submit_ms FROM ({everything}) "
                f"WHERE hash({_JOB}) IN (SELECT h FROM several) WINDOW job AS (PARTITION BY {_JOB})"
            )
        self._database.execute(f"CREATE VIEW attempts AS {alone}")
        self._write = (
            "SELECT * FROM attempts WHERE was_attempt IS DISTINCT FROM attempt "
            "OR was_submit_ms IS DISTINCT FROM submit_ms"
        )

    def counts(self) -> tuple[int, int]:
        """How many attempts come, and how many that were there are otherwise."""
        if not self._known:
            return count(self._database, f"SELECT count(*) FROM ({self._keys})"), 0
        updated = count(self._database, "SELECT count(*) FROM changed WHERE was_there")
        return count(self._database, "SELECT count(*) FROM changed") - updated, updated

    def other_names(self) -> tuple[int, str]:
        """How many attempts that come are there with a cluster's name and come without, or the reverse; and a name.

        The same id, moment of submission and end are the same attempt.
        """
        found = self._database.execute(
            "SELECT count(DISTINCT (k.job_id, k.queued_ms)), any_value(o.cluster || k.cluster) "
            f"FROM {self._staged} k JOIN {read_parquet(self._segments, SCHEMA)} o USING (job_id, queued_ms, end_ms) "
            "WHERE (k.cluster = '') <> (o.cluster = '')"
        ).fetchone()
        return (int(found[0]), found[1] or "") if found else (0, "")

    def queries(self) -> list[tuple[Path | None, str]]:
        """For each file with rows to write anew, a query of its other rows; for None, one of the rows to write."""
        self._database.execute(
            f"CREATE TABLE gone AS SELECT {_KEY} FROM ({self._write}) SEMI JOIN old USING ({_KEY})"
        )
        known = self._segments if count(self._database, "SELECT count(*) FROM gone") else ()
        left = (
            (path, f"SELECT * FROM {record_table([path])} ANTI JOIN gone USING ({_KEY})")
            for path in known
            if count(
                self._database, f"SELECT count(*) FROM {read_parquet([path])} SEMI JOIN gone USING ({_KEY})"
            )
        )
        return [*left, (None, self._write)]


def _copy_records(database: duckdb.DuckDBPyConnection, query: str, target: Path) -> None:
    """Write rows with the columns of a record to a file."""
    columns = ", ".join(f'"{name}"::{kind} AS "{name}"' for name, kind in SCHEMA.items())
    copy_rows(database, f"SELECT {columns} FROM ({query})", target)


_FILES: Final = {
    "records": (_copy_records, record_table),
    "usage": (copy_usage, read_parquet),
    "series": (copy_series, all_values),
    "spools": (copy_rows, read_parquet),
}
"""For each kind of files, the function that writes rows to a file, and the one that reads several files as a table."""


@dataclass(frozen=True, slots=True)
class Mark:
    """How far one segment was read."""

    cluster: str
    """Under which name of a cluster."""
    size_bytes: int
    """How long it was."""
    last_at: int
    """At which byte its last stretch begins."""


def _with_marks(database: duckdb.DuckDBPyConnection, known: Sequence[Path], marks: Mapping[str, Mark]) -> str:
    """A query of the known marks with these, which replace those of the same segments."""
    schema = {"segment": "VARCHAR", "cluster": "VARCHAR", "size_bytes": "BIGINT", "last_at": "BIGINT"}
    rows = ((name, mark.cluster, mark.size_bytes, mark.last_at) for name, mark in marks.items())
    make_table(database, "marks", schema, rows)
    old = f"SELECT {', '.join(schema)} FROM {read_parquet(known, schema)} ANTI JOIN marks USING (segment)"
    return f"{old} UNION ALL FROM marks"
