"""How far the segments of spools have been read, so that an import reads only what was appended since.

The rows of a segment are told by stretches, each of lines of one hour; only the last of them grows. What comes next is
therefore read from where the last known stretch begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from berth.history.store.database import literal, read_parquet
from berth.history.store.parquet import make_table


@dataclass(frozen=True, slots=True)
class Mark:
    """How far one segment was read."""

    cluster: str
    """Under which name of a cluster."""
    size_bytes: int
    """How long it was."""
    last_at: int
    """At which byte its last stretch begins."""


def read_marks(database: duckdb.DuckDBPyConnection, files: Sequence[Path]) -> dict[str, Mark]:
    """The mark of each segment, by its name."""
    if not files:
        return {}
    found = database.execute(f"SELECT segment, cluster, size_bytes, last_at FROM {read_parquet(files)}")
    return {name: Mark(*values) for name, *values in found.fetchall()}


def write_marks(
    database: duckdb.DuckDBPyConnection, known: Sequence[Path], marks: Mapping[str, Mark], target: Path
) -> None:
    """Write the known marks with these, which replace those of the same segments."""
    schema = {"segment": "VARCHAR", "cluster": "VARCHAR", "size_bytes": "BIGINT", "last_at": "BIGINT"}
    rows = ((name, mark.cluster, mark.size_bytes, mark.last_at) for name, mark in marks.items())
    make_table(database, "marks", schema, rows)
    old = (
        f"SELECT {', '.join(schema)} FROM {read_parquet(known)} ANTI JOIN marks USING (segment) UNION ALL "
        if known
        else ""
    )
    database.execute(f"COPY ({old}FROM marks) TO {literal(target)} (FORMAT parquet, COMPRESSION zstd)")
