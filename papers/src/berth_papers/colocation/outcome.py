"""What came of one run of the co-location experiment, from its events alone.

Letters: E events of a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from berth.errors import HistoryError
from berth.history.store.database import first_line
from berth.interference import Interference
from berth.model import WHOLE_GPU, EventKind, GpuModel, GpuSlot, Job, Node, Profile, Reason, work_of
from berth.statistics.real_use import Attempt, RealUse, real_use

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
    """Mean over the total time of what the tenants use of the GPU at the speeds that they have; not cut at 100 %."""
    gpu_mem_pct: float
    """Mean over the total time of the GPU memory in use."""
    gpu_mem_peak_mib: int
    finished: int
    out_of_memory: int
    """Attempts that ran out of memory."""
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
    use = _use(stays, profiles, interference, gpu)
    return Outcome(
        workload,
        policy,
        seed,
        total_ms / 1000,
        100 * use.gpu_ms / max(total_ms, 1),
        100 * use.mem_mib_ms / max(total_ms * gpu.mem_mib, 1),
        use.peak_mem_mib,
        len(last),
        sum(stay.out_of_memory for stay in stays),
        (len(ratios) - slowed, slowed - badly, badly - worst, worst),
    )


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
            raise HistoryError(f"{path} cannot be read: {first_line(error)}") from error
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
) -> RealUse:
    """What the stays used of the one GPU."""
    only = (GpuSlot(0, 0),)
    attempts = (Attempt(stay.job, WHOLE_GPU, only, stay.start_ms, stay.end_ms) for stay in stays)
    return real_use(attempts, (Node("", 1, gpu),), interference, profiles)
