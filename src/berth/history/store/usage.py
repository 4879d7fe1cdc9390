"""What was measured of jobs' GPUs, in the history: rows of sums, and how they become the means of an attempt.

A row is what one source saw of one job on one node over some time. A source is a stretch of a segment of a spool, of an
hour, or an hour of a GPU's series: taken over again, its rows replace those that it gave before, so that nothing
counts twice. Rows need not fit attempts: those whose middle lies within an attempt are its.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Final

import duckdb

from berth.history.store.database import add_rows, at, copy_rows, read_parquet, write_rows


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One row: a column for each field."""

    kind: str
    """`sampled` by berth, or `series` of a monitoring system; that with more GPU time counts."""
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
    use_ms: float | None = None
    mem_ms: float | None = None
    sm_ms: float | None = None
    pcie_kb: float | None = None
    energy_j: float | None = None
    use_peak: float | None = None
    mem_peak: float | None = None


_KINDS: Final = {"str": "VARCHAR", "int": "BIGINT", "float": "DOUBLE", "float | None": "DOUBLE"}
USAGE: Final = {field.name: _KINDS[str(field.type)] for field in fields(UsageRow)}
"""The columns of a file of usage, and their types."""
_COLUMNS: Final = ", ".join(USAGE)


def write_usage(rows: Iterable[UsageRow], path: Path) -> None:
    """Write rows to a Parquet file."""
    write_rows(path, USAGE, map(astuple, rows))


class UsageMerge:
    """What staged rows change of the known ones: files of which a source gives anew are written again without it.

    A source that had given more samples before than it does now keeps what it gave. With `remade`, these sources are
    replaced in any case, also those of which there are no rows any more.
    """

    def __init__(
        self,
        database: duckdb.DuckDBPyConnection,
        staged: Path,
        known: Sequence[Path],
        remade: Sequence[str] | None = None,
    ) -> None:
        self._database = database
        database.execute(f"CREATE TABLE fresh_rows AS SELECT {_COLUMNS} FROM read_parquet({at(staged)})")
        database.execute("CREATE TABLE replaced AS SELECT DISTINCT kind, source FROM fresh_rows")
        # Once a source was a whole segment, where now it is a stretch of one.
        database.execute(
            "INSERT INTO replaced SELECT DISTINCT kind, split_part(source, '@', 1) FROM replaced "
            "WHERE kind = 'sampled' AND contains(source, '@')"
        )
        if remade:
            columns = {name: USAGE[name] for name in ("kind", "source")}
            add_rows(database, "replaced", columns, (("series", source) for source in remade))
        self._touched = self._files_with_replaced(known)
        old = f"FROM {read_parquet(self._touched, USAGE)} SEMI JOIN replaced USING (kind, source)"
        database.execute(f"CREATE TABLE old_rows AS SELECT {_COLUMNS} {old}")
        if remade is None:
            sums = "SELECT kind, source, sum(samples) AS samples FROM {} GROUP BY ALL"
            database.execute(
                f"CREATE TABLE fuller AS SELECT kind, source FROM ({sums.format('old_rows')}) o "
                f"JOIN ({sums.format('fresh_rows')}) n USING (kind, source) WHERE o.samples > n.samples"
            )
            for table in ("fresh_rows", "replaced"):
                database.execute(
                    f"DELETE FROM {table} t USING fuller f WHERE t.kind = f.kind AND t.source = f.source"
                )
        key = "kind, source, cluster, job_id, begin_ms"
        found = database.execute(
            f"SELECT count(*) FILTER (o.h IS NULL), count(*) FILTER (o.h <> f.h) "
            f"FROM (SELECT {key}, hash({_COLUMNS}) AS h FROM fresh_rows) f "
            f"LEFT JOIN (SELECT {key}, hash({_COLUMNS}) AS h FROM old_rows) o USING ({key})"
        ).fetchone()
        assert found is not None
        self.new, self.changed = int(found[0]), int(found[1])

    def _files_with_replaced(self, known: Sequence[Path]) -> list[Path]:
        if not known:
            return []
        files = ", ".join(map(at, known))
        found = self._database.execute(
            f"SELECT DISTINCT filename FROM (SELECT kind, source, filename FROM read_parquet([{files}], "
            "filename = true)) SEMI JOIN replaced USING (kind, source)"
        ).fetchall()
        names = {name for (name,) in found}
        return [path for path in known if str(path) in names]

    def queries(self) -> list[tuple[Path | None, str]]:
        """For each file with rows of replaced sources, a query of its other rows; for None, of the rows that came."""
        left = (
            (path, f"SELECT {_COLUMNS} FROM {read_parquet([path])} ANTI JOIN replaced USING (kind, source)")
            for path in self._touched
        )
        return [*left, (None, f"SELECT {_COLUMNS} FROM fresh_rows")]


def copy_usage(database: duckdb.DuckDBPyConnection, query: str, target: Path) -> None:
    """Write rows to a file in order of their jobs, so that one job is found without reading it all."""
    how = "(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 20480)"
    copy_rows(database, f"{query} ORDER BY job_id, begin_ms", target, how)


_OF_ATTEMPTS: Final = ("gpu_use_mean", "gpu_use_peak", "gpu_mem_mean", "gpu_mem_peak")
"""Measurements that replace a record's own."""


def with_usage(records: str, usage: str) -> str:
    """A query of attempts with what was measured of their GPUs; both arguments are what SQL can select from.

    The energy of the GPUs counts where Slurm measured none of the nodes.
    """
    measured = ", ".join(f"coalesce(u.{name}, r.{name}) AS {name}" for name in _OF_ATTEMPTS)
    return (
        f"(SELECT r.* REPLACE ({measured}, coalesce(nullif(r.energy_j, 0), round(u.energy_j)::BIGINT) AS energy_j) "
        f"FROM {records} r LEFT JOIN ({_best_of_attempts(records, usage)}) u "
        "ON u.job_id = r.job_id AND u.cluster = r.cluster AND u.queued_ms = r.queued_ms)"
    )


def _best_of_attempts(records: str, usage: str) -> str:
    """A query of what was measured of each attempt: its key, means, peaks and the energy of its GPUs.

    The mean is over the GPUs that the attempt held: what was in use over the time that it was watched, on every node,
    times its GPUs there; where it was known to be on more GPUs than its record says, over those. It is never above 1.
    """
    on_node = "r.gpus / greatest(r.node_count, 1)"
    held = f"greatest(sum(u.gpu_ms), sum(u.watched_ms * {on_node}))"

    def mean(name: str) -> str:
        # Where nothing was measured there is no mean; least() alone would pass over what is NULL.
        return f"CASE WHEN sum(u.{name}) IS NULL THEN NULL ELSE least(sum(u.{name}) / {held}, 1.0) END"

    return (
        "SELECT cluster, job_id, queued_ms, "
        + ", ".join(f"arg_max({name}, held) AS {name}" for name in (*_OF_ATTEMPTS, "energy_j"))
        + " FROM (SELECT r.cluster, r.job_id, r.queued_ms, u.kind, "
        f"{held} AS held, {mean('use_ms')} AS gpu_use_mean, max(u.use_peak) AS gpu_use_peak, "
        f"{mean('mem_ms')} AS gpu_mem_mean, max(u.mem_peak) AS gpu_mem_peak, sum(u.energy_j) AS energy_j "
        f"FROM {records} r JOIN {usage} u ON u.job_id = r.job_id AND (u.cluster = r.cluster OR u.cluster = '') "
        "AND (u.begin_ms + u.end_ms) // 2 BETWEEN r.start_ms AND r.end_ms "
        "WHERE r.gpus > 0 GROUP BY ALL HAVING held > 0) GROUP BY ALL"
    )
