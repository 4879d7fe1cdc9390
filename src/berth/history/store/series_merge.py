"""Values of GPU series into the history, and which hours of which GPUs they say something new of.

HISTORY/series/*.parquet    a row a value, in the columns of SERIES; where several files have one, the largest counts
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import duckdb

from berth.history.store.database import at, count, literal, read_parquet
from berth.history.store.gpu_hours import HOUR_MS, OF_KINDS, ROWS_OF_HOURS, SOURCE

SERIES: Final = {
    "cluster": "VARCHAR",
    "node": "VARCHAR",
    "gpu": "VARCHAR",
    "job_id": "VARCHAR",
    "metric": "VARCHAR",
    "moment_ms": "BIGINT",
    "value": "DOUBLE",
}
_KEY: Final = "cluster, node, gpu, job_id, metric, moment_ms"
_GPU: Final = "cluster, node, gpu"
_HOURS_AT_ONCE: Final = 256
"""Hours of GPUs whose values are in memory together, with those of the hours next to them."""


class SeriesMerge:
    """One merge of staged values into those of some files; the tables live in the database that it was given."""

    def __init__(self, database: duckdb.DuckDBPyConnection, staged: Path, files: Sequence[Path]) -> None:
        self._database = database
        columns = ", ".join(SERIES)
        empty = ", ".join(f"NULL::{kind} AS {name}" for name, kind in SERIES.items())
        known = f"SELECT {columns} FROM {read_parquet(files)}" if files else f"SELECT {empty} WHERE false"
        self.read = count(database, f"SELECT count(*) FROM read_parquet({at(staged)})")
        database.execute(
            f"CREATE TABLE staged AS SELECT {_KEY}, max(value) AS value FROM read_parquet({at(staged)}) GROUP BY ALL"
        )
        # Values before and after an hour tell of it, so those of two hours more are looked at on both sides.
        far = 2 * HOUR_MS
        database.execute(
            f"CREATE TABLE known AS SELECT {_KEY}, max(value) AS value FROM ({known}) SEMI JOIN staged USING ({_GPU}) "
            f"WHERE moment_ms >= (SELECT min(moment_ms) // {HOUR_MS} * {HOUR_MS} - {far} FROM staged) "
            f"AND moment_ms < (SELECT (max(moment_ms) // {HOUR_MS} + 1) * {HOUR_MS} + {far} FROM staged) "
            "GROUP BY ALL"
        )
        database.execute(
            f"CREATE TABLE fresh AS SELECT s.*, k.value IS NOT NULL AS was_there FROM staged s "
            f"LEFT JOIN known k USING ({_KEY}) WHERE k.value IS NULL OR s.value > k.value"
        )
        self.changed = count(database, "SELECT count(*) FROM fresh WHERE was_there")
        self.new = count(database, "SELECT count(*) FROM fresh") - self.changed
        database.execute(
            f"CREATE TABLE hours AS SELECT DISTINCT {_GPU}, moment_ms // {HOUR_MS} + away AS hour "
            "FROM fresh, (VALUES (-1), (0), (1)) t(away)"
        )

    def write(self, target: Path) -> None:
        """Write the values that are new or larger than they were."""
        self._copy(f"SELECT {', '.join(SERIES)} FROM fresh", target)

    def compact(self, files: Sequence[Path], target: Path) -> None:
        """Write all values of some files as one."""
        self._copy(f"SELECT {_KEY}, max(value) AS value FROM {read_parquet(files)} GROUP BY ALL", target)

    def _copy(self, query: str, target: Path) -> None:
        self._database.execute(
            f"COPY (FROM ({query}) ORDER BY moment_ms // {HOUR_MS}, {_KEY}) "
            f"TO {literal(target)} (FORMAT parquet, COMPRESSION zstd)"
        )

    def sources(self) -> tuple[str, ...]:
        """The sources of all rows that are to be made anew, of some of which there are none."""
        return tuple(name for (name,) in self._database.execute(f"SELECT {SOURCE} FROM hours").fetchall())

    def write_rows(self, target: Path) -> None:
        """Write the rows of usage of every hour that the new values say something of."""
        self._database.execute(
            f"CREATE TABLE numbered_hours AS SELECT *, row_number() OVER (ORDER BY {_GPU}, hour) - 1 AS slot, "
            f"dense_rank() OVER (ORDER BY {_GPU}) AS card FROM hours"
        )
        self._database.execute(
            f"CREATE TABLE every AS {OF_KINDS} FROM (SELECT {_KEY}, max(value) AS value "
            f"FROM (FROM staged UNION ALL FROM known) GROUP BY ALL) JOIN kinds USING (metric) "
            f"JOIN (SELECT DISTINCT {_GPU}, card FROM numbered_hours) USING ({_GPU}) GROUP BY ALL ORDER BY card, ms"
        )
        for first in range(0, max(count(self._database, "SELECT count(*) FROM hours"), 1), _HOURS_AT_ONCE):
            among = f"slot BETWEEN {first} AND {first + _HOURS_AT_ONCE - 1}"
            self._database.execute(f"CREATE OR REPLACE TABLE some_hours AS FROM numbered_hours WHERE {among}")
            self._database.execute(
                f"{'INSERT INTO made' if first else 'CREATE TABLE made AS'} {ROWS_OF_HOURS}"
            )
        self._database.execute(f"COPY made TO {literal(target)} (FORMAT parquet)")
