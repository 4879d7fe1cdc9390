"""What was measured of jobs' GPUs, in the history: rows of sums, and how they become the means of a try.

A row is what one source saw of one job on one node over some time. A source is a segment of a spool or an hour of a
GPU's series: taken over again, its rows replace those that it gave before, so that nothing counts twice. Rows need not
fit tries: those whose middle lies within a try are its.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Final

import duckdb

from berth.history.store.database import at, literal, read_parquet
from berth.history.store.parquet import ParquetWriter, rows_to_columns

_CHUNK_ROWS = 100_000

__all__ = ["USAGE", "UsageRow", "best_of_tries", "merged", "write_usage"]

USAGE: Final = {
    "kind": "VARCHAR",
    "source": "VARCHAR",
    "node": "VARCHAR",
    "cluster": "VARCHAR",
    "job_id": "VARCHAR",
    "begin_ms": "BIGINT",
    "end_ms": "BIGINT",
    "samples": "BIGINT",
    "watched_ms": "DOUBLE",
    "gpu_ms": "DOUBLE",
    "use_ms": "DOUBLE",
    "mem_ms": "DOUBLE",
    "sm_ms": "DOUBLE",
    "pcie_kb": "DOUBLE",
    "energy_j": "DOUBLE",
    "use_peak": "DOUBLE",
    "mem_peak": "DOUBLE",
}


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One row, its fields in the order of USAGE."""

    kind: str
    """`sampled` by berth, or `series` of a monitoring system; of both for one try that with more GPU time counts."""
    source: str
    node: str
    cluster: str
    """Empty: whichever cluster has the job."""
    job_id: str
    begin_ms: int
    end_ms: int
    samples: int
    watched_ms: float
    gpu_ms: float
    use_ms: float | None
    mem_ms: float | None
    sm_ms: float | None
    pcie_kb: float | None
    energy_j: float | None
    use_peak: float | None
    mem_peak: float | None


def write_usage(rows: Iterable[UsageRow], path: Path) -> None:
    """Write rows to a Parquet file."""
    assert tuple(field.name for field in fields(UsageRow)) == tuple(USAGE)
    left = iter(rows)
    with ParquetWriter(path, USAGE) as writer:
        while chunk := list(islice(left, _CHUNK_ROWS)):
            writer.write(rows_to_columns([astuple(row) for row in chunk], tuple(USAGE)))


def merged(
    database: duckdb.DuckDBPyConnection,
    staged: Path,
    known: Sequence[Path],
    target: Path,
    remade: Sequence[str] | None = None,
) -> tuple[int, int]:
    """Write to `target` the known rows with those of the staged file, whose sources they replace.

    A source that had given more samples before than it does now keeps what it gave. With `remade`, these sources are
    replaced in any case, also those of which there are no rows any more. Returns how many of the staged rows are new,
    and how many are otherwise than they were.
    """
    key = "kind, source, cluster, job_id, begin_ms"
    columns = ", ".join(USAGE)
    if known:
        database.execute(f"CREATE VIEW old AS SELECT {columns} FROM {read_parquet(known)}")
    else:
        empty = ", ".join(f"NULL::{kind} AS {name}" for name, kind in USAGE.items())
        database.execute(f"CREATE VIEW old AS SELECT {empty} WHERE false")
    rows = f"read_parquet({at(staged)})"
    if remade is None:
        sums = "SELECT kind, source, sum(samples) AS samples"
        fuller = f"{sums} FROM old GROUP BY ALL"
        rows = (
            f"(SELECT {columns} FROM {rows} f WHERE NOT EXISTS (FROM ({fuller}) o "
            f"JOIN ({sums} FROM {rows} GROUP BY ALL) n USING (kind, source) "
            "WHERE o.samples > n.samples AND o.kind = f.kind AND o.source = f.source))"
        )
    database.execute(f"CREATE VIEW fresh_rows AS SELECT {columns} FROM {rows}")
    database.execute("CREATE TABLE replaced AS SELECT DISTINCT kind, source FROM fresh_rows")
    if remade:
        database.register(
            "remade", rows_to_columns([("series", source) for source in remade], ("kind", "source"))
        )
        database.execute("INSERT INTO replaced SELECT kind::VARCHAR, source::VARCHAR FROM remade")
        database.unregister("remade")
    found = database.execute(
        f"SELECT count(*) FILTER (o.h IS NULL), count(*) FILTER (o.h <> f.h) "
        f"FROM (SELECT {key}, hash({columns}) AS h FROM fresh_rows) f "
        f"LEFT JOIN (SELECT {key}, hash({columns}) AS h FROM old) o USING ({key})"
    ).fetchone()
    database.execute(
        f"COPY (SELECT {columns} FROM old ANTI JOIN replaced USING (kind, source) "
        f"UNION ALL SELECT {columns} FROM fresh_rows ORDER BY job_id, begin_ms) "
        f"TO {literal(target)} (FORMAT parquet, COMPRESSION zstd)"
    )
    assert found is not None
    return int(found[0]), int(found[1])


def best_of_tries(records: str, usage: str) -> str:
    """A query of what was measured of each try: its key, means and peaks.

    The mean is over the GPUs that the try held: what was in use over the time that it was watched, on every node, times
    its GPUs there; where it was known to be on more GPUs than its record says, over those. It is never above 1.
    """
    on_node = "r.gpus / greatest(r.node_count, 1)"
    held = f"greatest(sum(u.gpu_ms), sum(u.watched_ms * {on_node}))"

    def mean(name: str) -> str:
        # Where nothing was measured there is no mean; least() alone would pass over what is NULL.
        return f"CASE WHEN sum(u.{name}) IS NULL THEN NULL ELSE least(sum(u.{name}) / {held}, 1.0) END"

    return (
        "SELECT cluster, job_id, queued_ms, "
        + ", ".join(
            f"arg_max({name}, held) AS {name}"
            for name in ("gpu_use_mean", "gpu_use_peak", "gpu_mem_mean", "gpu_mem_peak")
        )
        + " FROM (SELECT r.cluster, r.job_id, r.queued_ms, u.kind, "
        f"{held} AS held, {mean('use_ms')} AS gpu_use_mean, max(u.use_peak) AS gpu_use_peak, "
        f"{mean('mem_ms')} AS gpu_mem_mean, max(u.mem_peak) AS gpu_mem_peak "
        f"FROM {records} r JOIN {usage} u ON u.job_id = r.job_id AND (u.cluster = r.cluster OR u.cluster = '') "
        "AND (u.begin_ms + u.end_ms) // 2 BETWEEN r.start_ms AND r.end_ms "
        "WHERE r.gpus > 0 GROUP BY ALL HAVING held > 0) GROUP BY ALL"
    )
