"""Spools of `berth sample` into the history."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from berth.errors import SamplingError
from berth.history.store.folder import History
from berth.history.store.import_result import ImportResult, Rejections
from berth.history.store.usage import UsageRow
from berth.sampling.spool import Segment, Slice, read_segment, segments

__all__ = ["import_samples"]

GAP_MS = 30_000
"""Slices of a job that lie further apart are of different tries of it."""
ROW_MS = 3_600_000
"""A row spans no more than so long, so that its middle tells the try well."""


def import_samples(history: History, spool: Path, cluster: str = "") -> ImportResult:
    """Take over all segments of a spool, finished or still written to; again as often as one likes.

    A segment that is none, and lines that a crash has cut off, are noted and left out.
    """
    rejections = Rejections()
    rows: list[UsageRow] = []
    for path in segments(spool):
        try:
            head, slices, broken = read_segment(path)
        except SamplingError as error:
            rejections.add(str(path), str(error))
            continue
        if broken:
            rejections.add(str(path), "does not fit its checksum, as what a crash cut off", broken)
        rows.extend(_rows(head, slices, head.cluster or cluster))
    return history.merge_usage(rows, rejections)


def _rows(head: Segment, slices: list[Slice], cluster: str) -> Iterator[UsageRow]:
    by_job: dict[str, list[Slice]] = {}
    for each in slices:
        by_job.setdefault(each.job_id, []).append(each)
    for job_id, every in sorted(by_job.items()):
        run: list[Slice] = []
        for each in sorted(every, key=lambda each: each.begin_ms):
            gap = max(GAP_MS, 3 * head.interval_ms)
            if run and (each.begin_ms - run[-1].end_ms > gap or each.end_ms - run[0].begin_ms > ROW_MS):
                yield _row(head, cluster, job_id, run)
                run = []
            run.append(each)
        yield _row(head, cluster, job_id, run)


def _row(head: Segment, cluster: str, job_id: str, run: list[Slice]) -> UsageRow:
    def total(name: str) -> float | None:
        values = [value for each in run if (value := getattr(each, name)) is not None]
        return sum(values) if values else None

    def peak(name: str) -> float | None:
        return max((value for each in run if (value := getattr(each, name)) is not None), default=None)

    return UsageRow(
        "sampled",
        head.name,
        head.node,
        cluster,
        job_id,
        run[0].begin_ms,
        run[-1].end_ms,
        sum(each.samples for each in run),
        sum(each.watched_ms for each in run),
        sum(each.gpu_ms for each in run),
        *(total(name) for name in ("use_ms", "mem_ms", "sm_ms", "pcie_kb", "energy_j")),
        *(peak(name) for name in ("use_peak", "mem_peak")),
    )
