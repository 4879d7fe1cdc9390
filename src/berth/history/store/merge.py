"""Staged attempts into the files of a history: what is new, what has changed, and which attempt of its job each is.

A requeued job has a row for each attempt. Which of them a row is, and when the job was first submitted, follows
from all rows of the job that there are, so a late row changes what is stored of its siblings: totals are the
same however an import is cut into pieces.

What a source does not know of an attempt never replaces what another knew: neither a column that it lacks, nor a
value that stands for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from berth.history.store.database import at, count, literal, read_parquet
from berth.history.store.import_result import Staged
from berth.history.store.lookups import applications_of
from berth.history.store.record_files import SCHEMA, record_table

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


@dataclass(frozen=True, slots=True)
class Counts:
    """What an import changes."""

    imported: int
    updated: int


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
        if count(self._database, "SELECT count(*) FROM twice"):
            # Two rows of one attempt in one import: the one that ended later is the truth.
            self._fresh = (
                f"SELECT {own} FROM {staged.attempts} WHERE hash({_KEY}) NOT IN (SELECT h FROM twice) UNION ALL "
                f"SELECT {own} FROM {staged.attempts} WHERE hash({_KEY}) IN (SELECT h FROM twice) "
                f"QUALIFY row_number() OVER (PARTITION BY {_KEY} ORDER BY end_ms DESC, hash({own})) = 1"
            )
        self.superseded: list[tuple[str, int]] = []
        """Jobs, and how many rows of one of their attempts that differ from another that ended later."""
        if count(self._database, "SELECT count(*) FROM twice"):
            self.superseded = database.execute(
                f"SELECT job_id, count(*) - 1 FROM (SELECT DISTINCT {own} FROM {staged.attempts} "
                f"WHERE hash({_KEY}) IN (SELECT h FROM twice)) GROUP BY {_KEY} HAVING count(*) > 1 ORDER BY ALL"
            ).fetchall()
        distinct = "DISTINCT " if count(self._database, "SELECT count(*) FROM twice") else ""
        self._keys = f"SELECT {distinct}{_KEY} FROM {staged.keys}"
        self._store(own, staged)
        self._rank(own)

    def _store(self, own: str, staged: Staged) -> None:
        """Make the table `old` of stored attempts of the jobs that come, and `write` of what is new or other."""
        if self._segments:
            columns = ", ".join(f'"{name}"' for name in SCHEMA)
            self._database.execute(
                f"CREATE TABLE old AS SELECT {columns}, hash({own}) AS row_hash "
                f"FROM {record_table(self._segments)} WHERE hash({_JOB}) IN (SELECT hash({_JOB}) FROM {staged.keys})"
            )
        else:
            columns = ", ".join(f'"{name}" {kind}' for name, kind in SCHEMA.items())
            self._database.execute(f"CREATE TABLE old ({columns}, row_hash UBIGINT)")
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
        """Tell the applications of changed attempts that were there from all that is known of them now."""
        if staged.rules is None or staged.key_mark:
            # Told as such, or from texts that are hidden now: what was told from more, or at all, stays.
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

    def counts(self) -> Counts:
        """How many attempts come, and how many that were there are otherwise."""
        if not self._known:
            return Counts(count(self._database, f"SELECT count(*) FROM ({self._keys})"), 0)
        updated = count(self._database, "SELECT count(*) FROM changed WHERE was_there")
        return Counts(count(self._database, "SELECT count(*) FROM changed") - updated, updated)

    def other_names(self) -> tuple[int, str]:
        """How many attempts that come are there with a cluster's name and come without, or the reverse; and a name.

        The same id, moment of submission and end are the same attempt.
        """
        if not self._segments:
            return 0, ""
        found = self._database.execute(
            "SELECT count(DISTINCT (k.job_id, k.queued_ms)), any_value(o.cluster || k.cluster) "
            f"FROM {self._staged} k JOIN {read_parquet(self._segments)} o USING (job_id, queued_ms, end_ms) "
            "WHERE (k.cluster = '') <> (o.cluster = '')"
        ).fetchone()
        return (int(found[0]), found[1] or "") if found else (0, "")

    def segments_to_rewrite(self) -> tuple[Path, ...]:
        """The files that hold something which is written anew."""
        if not self._known:
            return ()
        self._database.execute(
            f"CREATE TABLE gone AS SELECT {_KEY} FROM ({self._write}) SEMI JOIN old USING ({_KEY})"
        )
        if not count(self._database, "SELECT count(*) FROM gone"):
            return ()
        return tuple(
            path
            for path in self._segments
            if count(
                self._database, f"SELECT count(*) FROM read_parquet({at(path)}) SEMI JOIN gone USING ({_KEY})"
            )
        )

    def rewrite(self, segment: Path, target: Path) -> int:
        """Copy a file without what is written anew; returns how many rows are left, and writes none for 0."""
        left = f"FROM {record_table([segment])} ANTI JOIN gone USING ({_KEY})"
        rows = count(self._database, f"SELECT count(*) {left}")
        if rows:
            copy_records(self._database, f"SELECT * {left}", target)
        return rows

    def write(self, target: Path) -> None:
        """Write what is new or otherwise than it was."""
        copy_records(self._database, self._write, target)


def copy_records(database: duckdb.DuckDBPyConnection, query: str, target: Path) -> None:
    """Write rows with the columns of a record to a file."""
    columns = ", ".join(f'"{name}"::{kind} AS "{name}"' for name, kind in SCHEMA.items())
    database.execute(
        f"COPY (SELECT {columns} FROM ({query})) TO {literal(target)} (FORMAT parquet, COMPRESSION zstd)"
    )
