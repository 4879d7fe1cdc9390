"""Spools of `berth sample` into the history: only what was appended to them since they were read last."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import BinaryIO, Final

import duckdb

from berth.errors import SamplingError
from berth.history.store.database import at, connect, count, literal, make_table, named_errors
from berth.history.store.folder import History, Mark
from berth.history.store.import_result import ImportResult, Rejections
from berth.history.store.usage import USAGE, UsageRow, write_usage
from berth.sampling.spool import Segment, checked_lines, first_line_of, segments

GAP_MS: Final = 30_000
"""Slices of a job that lie further apart are of different attempts of it."""
HOUR_MS: Final = 3_600_000
"""A row spans no more than an hour, so that its middle tells the attempt well."""
BATCH_BYTES: Final = 128 << 20
"""The least amount of text that is handed to DuckDB at once, but for the last."""

_LINE: Final = {
    name: kind for name, kind in USAGE.items() if name not in ("kind", "source", "node", "cluster")
}
"""What a line of a segment holds; all before `use_ms` has a value."""
_NEEDED: Final = tuple(_LINE)[: tuple(_LINE).index("use_ms")]


def import_samples(history: History, spool: Path, cluster: str = "") -> ImportResult:
    """Take over what the segments of a spool hold, finished or still written to; again as often as one likes.

    A segment is read on from the hour in which it ended when it was read last, and not at all if it is as long as then.
    One that is none, and lines that a crash has cut off, are noted and left out.
    """
    rejections = Rejections()
    with history.import_space() as space, connect(space) as database:
        known = history.marks(database)
        marks: dict[str, Mark] = {}
        with named_errors(spool), _Staging(database, space / "lines.json") as staging:
            for path in segments(spool):
                mark = known.get(path.name)
                if mark is not None and (mark.size_bytes, mark.cluster) == (path.stat().st_size, cluster):
                    continue
                try:
                    head = first_line_of(path)
                except SamplingError as error:
                    rejections.add(str(path), str(error))
                    continue
                same = mark is not None and mark.cluster == cluster
                marks[path.name] = staging.add(
                    path, head, cluster, mark.last_at if same and mark else 0, rejections
                )
            staging.flush()
            if staging.lost:
                rejections.add(str(spool), "fits its checksum and holds no use of a job", staging.lost)
            staged = space / "usage.parquet"
            staging.write(staged)
        return history.merge_usage(database, staged, rejections, marks)


def import_usage(history: History, rows: Iterable[UsageRow]) -> ImportResult:
    """Take over what was measured of jobs elsewhere, as by Slurm's Epilogs."""
    with history.import_space() as space, connect(space) as database:
        staged = space / "usage.parquet"
        write_usage(rows, staged)
        return history.merge_usage(database, staged, Rejections())


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Lines of one hour that lie one behind the other in a segment: a source of rows."""

    source: str
    node: str
    cluster: str
    gap_ms: int


class _Staging:
    """Lines of segments, added up to rows in the table `sampled`; a context manager.

    Lines whose checksum fits go into a file that DuckDB reads, each with the number of its stretch.
    """

    def __init__(self, database: duckdb.DuckDBPyConnection, path: Path) -> None:
        self._database = database
        self._path = path
        self._file: BinaryIO = path.open("wb")
        self._stretches: list[_Stretch] = []
        self._taken = 0
        columns = {**USAGE, "lines": "BIGINT"}
        database.execute(
            f"CREATE TABLE sampled ({', '.join(f'{name} {kind}' for name, kind in columns.items())})"
        )

    @property
    def lost(self) -> int:
        """How many lines that fit their checksum have gone into no row."""
        return self._taken - count(self._database, "SELECT coalesce(sum(lines), 0) FROM sampled")

    def __enter__(self) -> _Staging:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)

    def add(self, path: Path, head: Segment, cluster: str, begin_at: int, rejections: Rejections) -> Mark:
        """Take over a segment's lines from a byte on, at which a line begins; returns how far it was read."""
        gap_ms = max(GAP_MS, 3 * head.interval_ms)
        try:
            size, lines = checked_lines(path, begin_at)
        except SamplingError as error:
            rejections.add(str(path), str(error))
            return Mark(cluster, 0, 0)
        hour, number, last_at, broken = -1, -1, begin_at, 0
        taken: list[bytes] = []
        for place, end_ms, text in lines:
            if end_ms < 0:
                broken += 1
                continue
            if end_ms // HOUR_MS != hour:
                hour, number, last_at = end_ms // HOUR_MS, len(self._stretches), place
                self._stretches.append(
                    _Stretch(f"{head.name}@{place}", head.node, head.cluster or cluster, gap_ms)
                )
            taken.append(b'{"stretch":%d,%b\n' % (number, text[1:]))
        self._file.writelines(taken)
        self._taken += len(taken)
        if broken:
            rejections.add(str(path), "does not fit its checksum, as what a crash cut off", broken)
        if self._file.tell() >= BATCH_BYTES:
            self.flush()
        return Mark(cluster, size, last_at)

    def flush(self) -> None:
        """Add up what was taken over since the last time."""
        self._file.flush()
        if not self._file.tell():
            return
        database = self._database
        names = {
            "stretch": "BIGINT",
            **dict.fromkeys(("source", "node", "cluster"), "VARCHAR"),
            "gap_ms": "BIGINT",
        }
        stretches = ((number, *astuple(each)) for number, each in enumerate(self._stretches))
        make_table(database, "stretches", names, stretches)
        columns = ", ".join(f"{name}: '{kind}'" for name, kind in {"stretch": "BIGINT", **_LINE}.items())
        lines = (
            f"read_json({at(self._path)}, format = 'newline_delimited', columns = {{{columns}}}, "
            "ignore_errors = true)"
        )
        whole = " AND ".join(f"{name} IS NOT NULL" for name in ("stretch", *_NEEDED))
        database.execute(f"CREATE OR REPLACE TEMP TABLE lines AS SELECT * FROM {lines} WHERE {whole}")
        sums = ", ".join(f"sum({name}) AS {name}" for name in ("samples", "watched_ms", "gpu_ms"))
        totals = ", ".join(f"sum({name})" for name in ("use_ms", "mem_ms", "sm_ms", "pcie_kb", "energy_j"))
        columns = (
            f"min(begin_ms) AS begin_ms, max(end_ms) AS end_ms, {sums}, {totals}, max(use_peak), max(mem_peak), "
            "count(*) AS lines"
        )
        # Most stretches of a job have no gap; only the others are looked at line by line.
        database.execute(
            f"CREATE OR REPLACE TEMP TABLE added AS SELECT stretch, job_id, {columns}, "
            "max(end_ms) - min(begin_ms) - sum(end_ms - begin_ms) AS unseen_ms FROM lines GROUP BY stretch, job_id"
        )
        named = "'sampled', source, node, cluster, job_id"
        database.execute(
            f"INSERT INTO sampled SELECT {named}, a.* EXCLUDE (stretch, job_id, unseen_ms) "
            "FROM added a JOIN stretches USING (stretch) WHERE unseen_ms <= gap_ms"
        )
        of_job = "PARTITION BY stretch, job_id ORDER BY begin_ms"
        database.execute(
            f"INSERT INTO sampled SELECT {named}, {columns} FROM ("
            f"SELECT *, count(*) FILTER (apart) OVER ({of_job}) AS run FROM ("
            f"SELECT l.*, s.source, s.node, s.cluster, l.begin_ms - lag(l.end_ms) OVER ({of_job}) > s.gap_ms AS apart "
            "FROM lines l JOIN stretches s USING (stretch) "
            "JOIN (SELECT stretch, job_id, unseen_ms FROM added) USING (stretch, job_id) WHERE unseen_ms > gap_ms)) "
            "GROUP BY stretch, source, node, cluster, job_id, run"
        )
        self._stretches.clear()
        self._file.seek(0)
        self._file.truncate()

    def write(self, target: Path) -> None:
        """Write all rows to a Parquet file."""
        self._database.execute(
            f"COPY (SELECT * EXCLUDE lines FROM sampled) TO {literal(target)} (FORMAT parquet, COMPRESSION zstd)"
        )
