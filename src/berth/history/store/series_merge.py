"""Values of GPU series into the history, and which hours of which GPUs they say something new of.

HISTORY/series/*.parquet    a row a value, in the columns of SERIES; where several files have one, the largest counts
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np

from berth.history.store.database import at, count, literal, read_parquet
from berth.history.store.gpu_hours import HOUR_MS, Gpu, Track, rows_of_hour, source_of
from berth.history.store.usage import UsageRow

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
_FETCHED: Final = 50_000


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
        found = self._database.execute(f"SELECT {_GPU}, hour FROM hours").fetchall()
        return tuple(source_of(*each) for each in found)

    def rows(self) -> Iterator[UsageRow]:
        """The rows of every hour that the new values say something of."""
        wanted: dict[tuple[str, str, str], list[int]] = {}
        for *place, hour in self._database.execute(f"SELECT {_GPU}, hour FROM hours ORDER BY ALL").fetchall():
            wanted.setdefault((place[0], place[1], place[2]), []).append(hour)
        with self._database.cursor() as reader:
            found = reader.execute(
                f"SELECT {_KEY}, max(value) AS value FROM (FROM staged UNION ALL FROM known) "
                f"GROUP BY ALL ORDER BY {_KEY}"
            )
            rows = iter(lambda: found.fetchmany(_FETCHED), [])
            values = (row for chunk in rows for row in chunk)
            for (cluster, node, index), of_gpu in groupby(values, key=lambda row: row[:3]):
                gpu = Gpu(cluster, node, index, _metrics(of_gpu))
                for hour in wanted.get((cluster, node, index), ()):
                    yield from rows_of_hour(gpu, hour)


def _metrics(rows: Iterator[tuple[Any, ...]]) -> dict[str, dict[str, Track]]:
    found: dict[str, dict[str, Track]] = {}
    for (job, metric), each in groupby(rows, key=lambda row: row[3:5]):
        own_rows = list(each)
        moments = np.fromiter((row[5] for row in own_rows), np.int64, len(own_rows))
        values = np.fromiter((row[6] for row in own_rows), np.float64, len(own_rows))
        found.setdefault(job, {})[metric] = Track(moments, values)
    return found
