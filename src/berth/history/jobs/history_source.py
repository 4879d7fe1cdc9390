"""Jobs looked up in the history: one out of millions, without reading all the rest."""

from __future__ import annotations

from collections.abc import Sequence

from berth.history.jobs.job_report import Neighbour, UsePoint
from berth.history.store.database import read_parquet
from berth.history.store.reader import HistoryReader
from berth.history.store.record_files import SCHEMA, record_of, record_table
from berth.history.store.usage import USAGE, with_usage
from berth.model import Record

MOST_NEIGHBOURS = 1000


class HistoryJobs:
    """A `JobSource`: what has ended and was imported."""

    def __init__(self, history: HistoryReader, owner: str | None = None) -> None:
        """`owner` is the user whose jobs are found by name: None for all users, empty for no user."""
        self.history, self._owner = history, owner

    def attempts(self, job: str) -> Sequence[Record]:
        """The attempts of the jobs of this id or label, of every cluster, with what was measured of their GPUs.

        What is neither is a name: of the last job of that name in each cluster.
        """
        with self.history.reading() as (database, index):
            columns = ", ".join(f'"{name}"' for name in SCHEMA)
            source = record_table(self.history.paths(index.records))
            # One condition each: what files say of their smallest and largest ids and labels then spares most of them.
            found = f"SELECT {columns} FROM {source} WHERE"
            both = f"{found} job_id = ? UNION ALL {found} label = ? AND job_id <> label"
            if set(job) & set("_+"):
                database.execute(f"CREATE TEMP TABLE found AS {both}", [job, job])
            else:
                database.execute(f"CREATE TEMP TABLE found AS {found} job_id = ?", [job])
            if not database.execute("SELECT 1 FROM found LIMIT 1").fetchall() and self._owner != "":
                named = 'name = $1 AND ($2 IS NULL OR "user" = $2)'
                last = (
                    f"SELECT cluster, arg_max(job_id, queued_ms) FROM {source} WHERE {named} GROUP BY cluster"
                )
                of_name = f"{found} name = $1 AND (cluster, job_id) IN ({last})"
                database.execute(f"INSERT INTO found {of_name}", [job, self._owner])
            measured = "found"
            if index.usage:
                usage = read_parquet(self.history.paths(index.usage))
                ids = database.execute("SELECT DISTINCT job_id FROM found").fetchall()
                database.execute(
                    f"CREATE TEMP TABLE measured AS SELECT * FROM {usage} WHERE list_contains(?, job_id)",
                    [[row[0] for row in ids]],
                )
                measured = with_usage("found", "measured")
            rows = database.execute(
                f"SELECT {columns} FROM {measured} ORDER BY queued_ms, cluster, job_id"
            ).fetchall()
            return tuple(record_of(row) for row in rows)

    def series(self, attempts: Sequence[Record]) -> Sequence[UsePoint]:
        """What was measured of the GPUs of one job while these attempts ran, in order of time."""
        ran = [(r.start_ms, r.end_ms) for r in attempts if r.start_ms is not None]
        if not ran or not self.history.index().usage:
            return ()
        with self.history.reading() as (database, index):
            usage = read_parquet(self.history.paths(index.usage), USAGE)
            middle = "(begin_ms + end_ms) // 2"
            within = " OR ".join(f"{middle} BETWEEN ? AND ?" for _ in ran)
            rows = database.execute(
                "SELECT kind, node, begin_ms, end_ms, use_ms / nullif(gpu_ms, 0), mem_ms / nullif(gpu_ms, 0), "
                f"use_peak, mem_peak, gpu_ms FROM {usage} WHERE job_id = ? AND (cluster = ? OR cluster = '') "
                f"AND ({within}) ORDER BY begin_ms, node",
                [attempts[0].job_id, attempts[0].cluster, *(moment for pair in ran for moment in pair)],
            ).fetchall()
        # If two kinds of source saw the same, the one that saw more of it counts.
        seen: dict[str, float] = {}
        for row in rows:
            seen[row[0]] = seen.get(row[0], 0.0) + (row[8] or 0.0)
        best = max(seen, key=lambda kind: seen[kind], default="")
        return [UsePoint(*row[1:8]) for row in rows if row[0] == best]

    def neighbours(self, attempts: Sequence[Record]) -> Sequence[Neighbour]:
        """Attempts of other jobs that ran on GPUs of one job while any of these attempts did, the first
        `MOST_NEIGHBOURS` in order of their start."""
        ran = [(r.start_ms, r.end_ms) for r in attempts if r.start_ms is not None and r.gpu_slots]
        if not ran:
            return ()
        slots = sorted({slot for record in attempts for slot in record.gpu_slots})
        with self.history.reading() as (database, index):
            source = record_table(self.history.paths(index.records))
            during = " OR ".join("start_ms < ? AND end_ms > ?" for _ in ran)
            rows = database.execute(
                "SELECT coalesce(nullif(label, ''), job_id), \"user\", start_ms, end_ms, gpu_slots "
                f"FROM {source} WHERE cluster = ? AND job_id <> ? AND start_ms < ? AND end_ms > ? AND ({during}) "
                f"AND list_has_any(gpu_slots, ?) ORDER BY start_ms, job_id, attempt LIMIT {MOST_NEIGHBOURS}",
                [
                    *(
                        attempts[0].cluster,
                        attempts[0].job_id,
                        max(end for _, end in ran),
                        min(begin for begin, _ in ran),
                    ),
                    *(moment for begin, end in ran for moment in (end, begin)),
                    slots,
                ],
            ).fetchall()
        return [
            Neighbour(job, user, start_ms, end_ms, tuple(gpus)) for job, user, start_ms, end_ms, gpus in rows
        ]

    def refused(self, attempts: Sequence[Record]) -> int | None:
        """Unknown: accounting keeps no refused allocations."""
        return None
