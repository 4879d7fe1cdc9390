"""Which job a row is of, if its source does not say so plainly: array tasks named by their label, or not at all.

Slurm has a number for each task of an array and shows another name of it: job 127 is `12_3`. A text that has only the
name, and a database that has both, tell of the same job. Other sources give all tasks of an array one id: their rows
are numbered, the first `77`, the others `77_2`, `77_3` and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import duckdb

from berth.history.store.database import count
from berth.history.store.import_result import Staged
from berth.history.store.record_files import SCHEMA, record_table

IS_LABEL = r"((contains({0}, '_') OR contains({0}, '+')) AND regexp_full_match({0}, '\d+[_+]\d+'))"
"""Whether an id is what Slurm shows of an array's task (`12_3`) or of a part of a heterogeneous job (`12+1`)."""

_KEY = "cluster, job_id, queued_ms"
_OWN = tuple(name for name in SCHEMA if name not in ("attempt", "submit_ms"))
_NEAR_MS = 90 * 86_400_000
"""Ids begin anew after millions of jobs: one label is the same job within this time."""


def known_by_label(database: duckdb.DuckDBPyConnection, staged: Staged, segments: Sequence[Path]) -> Staged:
    """Staged attempts under their ids, where the history knows the ids of what they name by a label."""
    labels = (
        f"SELECT DISTINCT cluster, job_id, queued_ms FROM {staged.keys} WHERE {IS_LABEL.format('job_id')}"
    )
    if not segments or not count(database, f"SELECT count(*) FROM ({labels})"):
        return staged
    database.execute(
        "CREATE TABLE ids AS SELECT k.cluster, k.job_id AS label, k.queued_ms, "
        "arg_min(o.job_id, abs(o.queued_ms - k.queued_ms)) AS job_id "
        f"FROM ({labels}) k JOIN {record_table(segments)} o ON o.cluster = k.cluster AND o.label = k.job_id "
        f"WHERE o.job_id <> o.label AND abs(o.queued_ms - k.queued_ms) < {_NEAR_MS} GROUP BY ALL"
    )
    if not count(database, "SELECT count(*) FROM ids"):
        return staged
    for view, source in (("keys", staged.keys), ("attempts", staged.attempts), ("silent", staged.silent)):
        if source:
            database.execute(
                f"CREATE VIEW known_{view} AS SELECT s.* REPLACE (coalesce(ids.job_id, s.job_id) AS job_id) "
                f"FROM {source} s LEFT JOIN ids ON ids.cluster = s.cluster AND ids.label = s.job_id "
                "AND ids.queued_ms = s.queued_ms"
            )
    silent = "known_silent" if staged.silent else ""
    return replace(staged, keys="known_keys", attempts="known_attempts", silent=silent)


def renamed_jobs(database: duckdb.DuckDBPyConnection, staged: Staged, segments: Sequence[Path]) -> int:
    """Make the table `renamed` of jobs that the history has under a label and the import under an id; how many."""
    if not segments or not staged.labels:
        return 0
    stored = f"SELECT DISTINCT cluster, job_id, queued_ms FROM {record_table(segments)}"
    stored += f" WHERE {IS_LABEL.format('job_id')}"
    if not count(database, f"SELECT count(*) FROM ({stored} LIMIT 1)"):
        return 0
    coming = f"SELECT cluster, job_id, label, queued_ms FROM {staged.labels}"
    database.execute(
        "CREATE TABLE renamed AS SELECT o.cluster, o.job_id AS label, o.queued_ms, "
        "arg_min(c.job_id, abs(c.queued_ms - o.queued_ms)) AS job_id "
        f"FROM ({stored}) o JOIN ({coming}) c ON c.cluster = o.cluster AND c.label = o.job_id "
        f"WHERE c.label <> c.job_id AND abs(c.queued_ms - o.queued_ms) < {_NEAR_MS} GROUP BY ALL"
    )
    return count(database, "SELECT count(*) FROM renamed")


def rename_in(database: duckdb.DuckDBPyConnection, segment: Path) -> str:
    """A query of a file's rows under their new ids; empty where it holds none of `renamed`."""
    source = record_table([segment])
    among = "r.cluster = s.cluster AND r.label = s.job_id AND r.queued_ms = s.queued_ms"
    if not count(database, f"SELECT count(*) FROM {source} s JOIN renamed r ON {among}"):
        return ""
    return (
        f"SELECT s.* REPLACE (coalesce(r.job_id, s.job_id) AS job_id) FROM {source} s "
        f"LEFT JOIN renamed r ON {among}"
    )


def number_tasks(
    database: duckdb.DuckDBPyConnection, staged: Staged, segments: Sequence[Path]
) -> tuple[Staged, int]:
    """Staged attempts with rows of one key and different times as jobs of their own; how many got a number.

    A row with the times of one that is known is that one, so that an import may be repeated or come in pieces. A lone
    row whose end alone differs from that of the lone known one is a correction.
    """
    stored = record_table(segments)
    database.execute(
        f"CREATE TABLE shared AS SELECT {_KEY} FROM {staged.keys} GROUP BY ALL HAVING count(*) > 1 "
        f"UNION SELECT k.cluster, k.job_id, k.queued_ms FROM (SELECT {_KEY}, start_ms FROM {staged.attempts}) k "
        f"JOIN {stored} o USING ({_KEY}) WHERE o.start_ms IS DISTINCT FROM k.start_ms OR EXISTS (FROM {stored} f "
        "WHERE f.cluster = k.cluster AND f.queued_ms = k.queued_ms AND f.job_id = k.job_id || '_2')"
    )
    if not count(database, "SELECT count(*) FROM shared"):
        return staged, 0
    known = (
        "SELECT o.cluster, s.job_id AS base, o.job_id, o.queued_ms, o.start_ms, o.end_ms, o.nodes "
        f"FROM {stored} o JOIN shared s ON o.cluster = s.cluster AND o.queued_ms = s.queued_ms "
        r"AND (o.job_id = s.job_id OR regexp_replace(o.job_id, '_\d+$', '') = s.job_id)"
    )
    own = ", ".join(f'"{name}"' for name in _OWN)
    times = "cluster, {0}, queued_ms, coalesce(start_ms, -1), end_ms"
    database.execute(
        f"CREATE TABLE known_tasks AS SELECT *, row_number() OVER (PARTITION BY {times.format('base')} "
        f"ORDER BY nodes, job_id) AS nth FROM ({known})"
    )
    # Rows that are equal in everything are one.
    database.execute(
        f"CREATE TABLE tasks AS SELECT *, row_number() OVER (PARTITION BY {times.format('job_id')} "
        f"ORDER BY nodes, hash({own})) AS nth "
        f"FROM (SELECT DISTINCT {own} FROM {staged.attempts} SEMI JOIN shared USING ({_KEY}))"
    )
    same = "ON {0}.cluster = t.cluster AND {0}.base = t.job_id AND {0}.queued_ms = t.queued_ms"
    place = (
        r"CASE WHEN job_id = base THEN 1 ELSE try_cast(regexp_extract(job_id, '_(\d+)$', 1) AS BIGINT) END"
    )
    database.execute(
        "CREATE TABLE numbered AS SELECT t.*, k.job_id AS known_id, coalesce(most, 0) + row_number() "
        "OVER (PARTITION BY t.cluster, t.job_id, t.queued_ms, k.job_id IS NULL "
        "ORDER BY t.start_ms, t.end_ms, t.nodes, t.nth) AS number FROM tasks t "
        f"LEFT JOIN known_tasks k {same.format('k')} AND coalesce(k.start_ms, -1) = coalesce(t.start_ms, -1) "
        "AND k.end_ms = t.end_ms AND k.nth = t.nth "
        f"LEFT JOIN (SELECT cluster, base, queued_ms, max({place}) AS most FROM known_tasks GROUP BY ALL) m "
        f"{same.format('m')}"
    )
    name = "CASE WHEN known_id IS NOT NULL THEN known_id WHEN number = 1 THEN job_id ELSE job_id || '_' || number END"
    database.execute(
        f"CREATE VIEW task_attempts AS SELECT {own} FROM {staged.attempts} ANTI JOIN shared USING ({_KEY}) "
        f"UNION ALL SELECT {own} FROM (SELECT * REPLACE ({name} AS job_id) FROM numbered)"
    )
    database.execute("CREATE VIEW task_keys AS SELECT cluster, job_id, queued_ms, end_ms FROM task_attempts")
    silent = staged.silent
    if silent:
        database.execute(
            f"CREATE VIEW task_silent AS SELECT {_KEY} FROM {silent} UNION ALL SELECT cluster, {name}, queued_ms "
            f"FROM numbered SEMI JOIN {silent} USING ({_KEY})"
        )
        silent = "task_silent"
    new = count(database, f"SELECT count(*) FROM numbered WHERE {name} <> job_id")
    return replace(staged, keys="task_keys", attempts="task_attempts", silent=silent), new
