"""Files of tries that come whole: which of them a history can take over as they are.

A part holds each try as if it were its job's only one. That is so where no other row, of the import or of the history,
is of one of its jobs; such a part becomes a file of the history. The rest goes through the merge, row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import duckdb

from berth.history.store.database import at
from berth.history.store.record_files import SCHEMA
from berth.history.store.staged import Staged

__all__ = ["part_rows", "set_apart"]

_JOB = "hash(cluster, job_id)"
_KEYS = "cluster, job_id, queued_ms, end_ms"


def set_apart(
    database: duckdb.DuckDBPyConnection, staged: Staged, segments: Sequence[Path]
) -> tuple[tuple[Path, ...], Staged]:
    """The parts that can be taken over as they are, and what is to be merged."""
    if not staged.parts:
        return (), staged
    others = database.execute(f"SELECT count(*) FROM {staged.keys}").fetchone() != (0,)
    if staged.distinct and not others and not segments:
        return staged.parts, staged
    database.execute("CREATE TABLE part_jobs (h UBIGINT, part INTEGER)")
    for number, path in enumerate(staged.parts):
        database.execute(f"INSERT INTO part_jobs SELECT {_JOB}, {number} FROM read_parquet({at(path)})")
    met = f"SELECT {_JOB} FROM {staged.keys}"
    if not staged.distinct:
        met += " UNION ALL SELECT h FROM part_jobs GROUP BY h HAVING count(*) > 1"
    if segments:
        files = ", ".join(at(path) for path in segments)
        met += f" UNION ALL SELECT {_JOB} FROM read_parquet([{files}])"
    found = database.execute(f"SELECT DISTINCT part FROM part_jobs WHERE h IN ({met})").fetchall()
    database.execute("DROP TABLE part_jobs")
    touched = {number for (number,) in found}
    clean = tuple(path for number, path in enumerate(staged.parts) if number not in touched)
    if not touched:
        return clean, staged
    files = ", ".join(at(staged.parts[number]) for number in sorted(touched))
    own = ", ".join(f'"{name}"' for name in SCHEMA if name not in ("attempt", "submit_ms"))
    for view, columns, source in (("merged_keys", _KEYS, staged.keys), ("merged_tries", own, staged.tries)):
        database.execute(
            f"CREATE VIEW {view} AS SELECT {columns} FROM {source} "
            f"UNION ALL SELECT {columns} FROM read_parquet([{files}])"
        )
    return clean, replace(staged, keys="merged_keys", tries="merged_tries", parts=())


def part_rows(database: duckdb.DuckDBPyConnection, parts: Sequence[Path]) -> int:
    """How many tries there are in parts."""
    if not parts:
        return 0
    files = ", ".join(at(path) for path in parts)
    found = database.execute(f"SELECT count(*) FROM read_parquet([{files}])").fetchone()
    return int(found[0]) if found else 0
