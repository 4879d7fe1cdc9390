"""What came of one run of the co-location experiment, from its events alone.

Letters: E events of a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from berth.errors import HistoryError
from berth.interference import Interference, Tenant
from berth.model import EventKind, GpuModel, Job, Profile, Reason, Share, work_of
from berth.profiles import series

__all__ = ["CLASSES", "Outcome", "Stay", "outcome_of", "read_stays"]

CLASSES = ("not slowed (≤ 2 %)", "< 10 %", "10–20 %", "≥ 20 %")
"""Figure 15: by how much a job took longer than alone."""
EDGES = (1.02, 1.10, 1.20)


class Stay(NamedTuple):
    """One try of a job on the GPU."""

    job: Job
    start_ms: int
    end_ms: int
    out_of_memory: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """One policy on one job set of a workload."""

    workload: str
    policy: str
    seed: int
    total_s: float
    """From the first submission to the last end."""
    gpu_use_pct: float
    """Mean over the total time of what the tenants use of the GPU at the speeds that they have, at most all of it."""
    gpu_mem_pct: float
    """Mean over the total time of the GPU memory in use."""
    gpu_mem_peak_mib: int
    finished: int
    out_of_memory: int
    """Tries that ran out of memory."""
    slowdown: tuple[int, int, int, int]
    """Jobs in each of `CLASSES`: from the first start to the end, over the run time alone."""


def outcome_of(
    workload: str,
    policy: str,
    seed: int,
    stays: Sequence[Stay],
    profiles: Mapping[str, Profile],
    interference: Interference,
    gpu: GpuModel,
) -> Outcome:
    """Measure a run on one GPU of that model."""
    first: dict[str, int] = {}
    last: dict[str, tuple[int, Job]] = {}
    for stay in stays:
        first[stay.job.id] = min(stay.start_ms, first.get(stay.job.id, stay.start_ms))
        if not stay.out_of_memory:
            last[stay.job.id] = stay.end_ms, stay.job
    total_ms = max((stay.end_ms for stay in stays), default=0)
    ratios = [(end_ms - first[identity]) / work_of(job) for identity, (end_ms, job) in last.items()]
    least, middle, most = EDGES
    slowed = sum(ratio > least for ratio in ratios)
    badly, worst = (sum(ratio >= edge for ratio in ratios) for edge in (middle, most))
    use, memory, peak_mib = _use(stays, profiles, interference, gpu)
    return Outcome(
        workload, policy, seed, total_ms / 1000,
        100 * use / max(total_ms, 1), 100 * memory / max(total_ms * gpu.mem_mib, 1), peak_mib,
        len(last), sum(stay.out_of_memory for stay in stays),
        (len(ratios) - slowed, slowed - badly, badly - worst, worst),
    )  # fmt: skip


def read_stays(path: Path, jobs: Sequence[Job]) -> list[Stay]:
    """The stays of a run whose events were written to a Parquet file, in the order of their start."""
    import duckdb

    of = {job.id: job for job in jobs}
    with duckdb.connect() as database:
        try:
            rows = database.execute(
                "SELECT time_ms, kind, job_id, reason FROM read_parquet(?) WHERE kind IN ('start', 'finish', 'fail')",
                [str(path)],
            ).fetchall()
        except duckdb.Error as error:
            raise HistoryError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    begun: dict[str, int] = {}
    stays: list[Stay] = []
    for time_ms, kind, identity, reason in rows:
        if kind == EventKind.START:
            begun[identity] = time_ms
        else:
            stays.append(Stay(of[identity], begun.pop(identity), time_ms, reason == Reason.OUT_OF_MEMORY))
    return sorted(stays, key=lambda stay: stay.start_ms)


def _use(
    stays: Sequence[Stay], profiles: Mapping[str, Profile], interference: Interference, gpu: GpuModel
) -> tuple[float, float, int]:
    """GPU use (GPUs × ms), memory in use (MiB × ms) and its peak, by going through the run again."""
    scaled = {stay.job.application: series(profiles[stay.job.application], gpu) for stay in stays}
    moments = sorted({stay.start_ms for stay in stays} | {stay.end_ms for stay in stays})
    left_us: dict[Stay, int] = {}
    use = memory = 0.0
    peak_mib = 0
    for begin_ms, end_ms in pairwise(moments):
        there = [stay for stay in stays if stay.start_ms <= begin_ms < stay.end_ms]
        for stay in there:
            left_us.setdefault(stay, work_of(stay.job) * 1000)
        now_ms = begin_ms
        while there and now_ms < end_ms:
            done = [work_of(stay.job) * 1000 - left_us[stay] for stay in there]
            tenants = [
                Tenant(stay.job, Share(), *divmod(min(max(us, 0), work_of(stay.job) * 1000), 1000))
                for stay, us in zip(there, done, strict=True)
            ]
            outlook = interference(tenants, gpu)
            dt_ms = min(outlook.hold_ms, end_ms - now_ms)
            rows = [
                scaled[one.job.application].rows[scaled[one.job.application].row_at(one.done_ms)]
                for one in tenants
            ]
            in_use = sum(row[0] * speed for row, speed in zip(rows, outlook.speeds_milli, strict=True))
            use += min(in_use / 1_000_000, 1.0) * dt_ms
            held_mib = sum(row[1] for row in rows)
            memory += held_mib * dt_ms
            peak_mib = max(peak_mib, held_mib)
            for stay, speed in zip(there, outlook.speeds_milli, strict=True):
                left_us[stay] -= dt_ms * speed
            now_ms += dt_ms
    return use, memory, peak_mib
