"""One job from its first submission to now: attempts, waits and why, use, what it cost, what would have been enough.

Where the attempts come from is a `JobSource`: the history here, and whatever runs jobs live.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any, Final, Protocol

from berth.history.values.causes import cause_after, cause_before
from berth.model import Record, RecordState, Share

MARGIN: Final = 1.2
"""What is suggested is this much more than what was used."""
LITTLE: Final = 0.75
"""A suggestion is worth making where it is at most this part of what was asked for."""
LITTLE_USE: Final = 0.25
"""Mean use of GPUs below which it is worth a look."""
_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class UsePoint:
    """What one source saw of a job's GPUs on one node over some time."""

    node: str
    begin_ms: int
    end_ms: int
    gpu_use: float | None
    """Mean of the GPUs that it was seen on, as a fraction."""
    gpu_mem: float | None
    gpu_use_peak: float | None
    gpu_mem_peak: float | None


@dataclass(frozen=True, slots=True)
class Neighbour:
    """An attempt of another job that ran on the same GPU at the same time."""

    job: str
    user: str
    start_ms: int
    end_ms: int
    gpu_slots: tuple[str, ...]
    """All GPUs that it ran on, each as NODE:INDEX."""


class JobSource(Protocol):
    """Where jobs are looked up."""

    def attempts(self, job: str) -> Sequence[Record]:
        """All ended attempts of the jobs of this id or label, of every cluster, in order of their queueing."""

    def series(self, attempts: Sequence[Record]) -> Sequence[UsePoint]:
        """What was measured of one job's GPUs while these attempts ran, in order of time; empty if nothing was."""

    def refused(self, attempts: Sequence[Record]) -> int | None:
        """How many allocations were refused because the job was at its limit of GPU memory; None if unknown."""

    def neighbours(self, attempts: Sequence[Record]) -> Sequence[Neighbour]:
        """Ended attempts of other jobs that ran on GPUs of these while they did, in order of their start."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A part of the wait of one attempt."""

    seconds: float
    cause: str


@dataclass(frozen=True, slots=True)
class RightSize:
    """Something that a job asked for, what it used, and what would have been enough."""

    what: str
    unit: str
    asked: float
    used: float
    enough: float


@dataclass(frozen=True, slots=True)
class JobReport:
    """All that is known of one job."""

    attempts: tuple[Record, ...]
    series: tuple[UsePoint, ...]
    refused: int | None
    neighbours: tuple[Neighbour, ...] = ()
    """Those of all its attempts, in order of their start."""

    @property
    def name(self) -> str:
        """What people call it."""
        return self.attempts[0].label or self.attempts[0].job_id

    def neighbours_of(self, record: Record) -> tuple[Neighbour, ...] | None:
        """What ran on the GPUs of one of its attempts at the same time; None if its GPUs were not recorded."""
        if record.start_ms is None or not record.gpus:
            return ()
        if not record.gpu_slots:
            return None
        slots = set(record.gpu_slots)
        return tuple(
            each
            for each in self.neighbours
            if each.start_ms < record.end_ms and each.end_ms > record.start_ms and slots & set(each.gpu_slots)
        )

    @property
    def gpu_hours(self) -> float:
        """Held by all attempts; a suspended job keeps its GPUs."""
        return sum(_ran_ms(r, False) * r.gpus * r.share.milli for r in self.attempts) / 1000 / _HOUR_MS

    @property
    def failed_gpu_hours(self) -> float:
        """Held by attempts before the last, which had to be repeated, and by the last if it failed."""
        lost = [r for r in self.attempts if r.state not in (RecordState.COMPLETED, RecordState.CANCELLED)]
        return sum(_ran_ms(r, False) * r.gpus * r.share.milli for r in lost) / 1000 / _HOUR_MS

    @property
    def idle_gpu_hours(self) -> float | None:
        """Held and not used, of the measured attempts; None if none was measured."""
        idle = [
            _ran_ms(r, False) * r.gpus * r.share.milli * (1 - r.gpu_use_mean)
            for r in self.attempts
            if r.gpu_use_mean is not None
        ]
        return sum(idle) / 1000 / _HOUR_MS if idle else None

    @property
    def cpu_hours(self) -> float | None:
        """CPUs held times run time; None if no attempt that ran says how many it held."""
        ran = [(_ran_ms(r), r.cpu_milli) for r in self.attempts if r.start_ms is not None]
        if ran and not any(cpu_milli for _, cpu_milli in ran):
            return None
        return sum(ran_ms * cpu_milli for ran_ms, cpu_milli in ran) / 1000 / _HOUR_MS

    @property
    def energy_kwh(self) -> float | None:
        """What its nodes took for it; None if unknown."""
        measured_j = [r.energy_j for r in self.attempts if r.energy_j is not None]
        return sum(measured_j) / 3_600_000 if measured_j else None


def _ran_ms(record: Record, without_suspended: bool = True) -> int:
    if record.start_ms is None:
        return 0
    suspended = (record.suspended_ms or 0) if without_suspended else 0
    return max(record.end_ms - record.start_ms - suspended, 0)


def cpu_use(record: Record) -> float | None:
    """CPU time over CPUs held, as seff says it; None where either is not known."""
    held = _ran_ms(record) * record.cpu_milli / 1000
    return record.cpu_used_ms / held if record.cpu_used_ms is not None and held else None


def mem_use(record: Record) -> float | None:
    """Peak memory over memory held, as seff says it; None where either is not known."""
    return (
        record.mem_peak_mib / record.mem_mib if record.mem_peak_mib is not None and record.mem_mib else None
    )


def waits_of(record: Record) -> tuple[Wait, ...]:
    """Why an attempt waited: before it was eligible, and after that; until its end if it never started."""
    until = record.end_ms if record.start_ms is None else record.start_ms
    parts = (
        Wait((record.ready_ms - record.queued_ms) / 1000, cause_before(record.wait_reason)),
        Wait((until - record.ready_ms) / 1000, cause_after(record.wait_reason)),
    )
    return tuple(part for part in parts if part.seconds)


def job_reports(source: JobSource, job: str) -> tuple[JobReport, ...]:
    """The jobs of this id or label, one for each cluster that has it."""
    by_job: dict[tuple[str, str], list[Record]] = {}
    for record in source.attempts(job):
        by_job.setdefault((record.cluster, record.job_id), []).append(record)
    return tuple(
        JobReport(
            tuple(each), tuple(source.series(each)), source.refused(each), tuple(source.neighbours(each))
        )
        for each in by_job.values()
    )


def right_sizes(report: JobReport) -> tuple[RightSize, ...]:
    """What the job should have asked for: what its attempts used at most, and a fifth more, where that is much less.

    Only what completed tells what a run takes; what was cut off may have needed more.
    """
    done = [r for r in report.attempts if r.state is RecordState.COMPLETED and _ran_ms(r)]
    if not done:
        return ()
    last = done[-1]
    found = []
    longest_min = max(_ran_ms(r, False) for r in done) / 60_000
    if last.time_limit_ms:
        found.append(
            RightSize(
                "time limit", "min", last.time_limit_ms / 60_000, longest_min, ceil(longest_min * MARGIN)
            )
        )
    memory = max((r.mem_peak_mib for r in done if r.mem_peak_mib is not None), default=None)
    if last.mem_mib and memory:
        found.append(RightSize("memory", "MiB", last.mem_mib, memory, _enough_mib(memory)))
    cores = max((r.cpu_used_ms / _ran_ms(r) for r in done if r.cpu_used_ms is not None), default=None)
    if last.cpu_milli and cores is not None:
        found.append(RightSize("CPUs", "", last.cpu_milli / 1000, cores, max(ceil(cores * MARGIN), 1)))
    if last.gpus and last.share.milli == 1000:
        busy = max((r.gpu_use_mean * r.gpus for r in done if r.gpu_use_mean is not None), default=None)
        peak = max((r.gpu_mem_peak * r.gpus for r in done if r.gpu_mem_peak is not None), default=None)
        if busy is not None and peak is not None:
            wanted = max(busy, peak) * MARGIN
            # Less than one GPU is told in tenths: a part of one, where GPUs are shared.
            found.append(
                RightSize(
                    "GPUs",
                    "",
                    last.gpus,
                    max(busy, peak),
                    ceil(wanted) if wanted > 1 else ceil(wanted * 10) / 10,
                )
            )
    return tuple(each for each in found if each.enough <= LITTLE * each.asked)


def enough_share(promised: Share, use: float | None, peak_mib: int) -> Share:
    """The part of each GPU that would have been enough for a run: what it used and a fifth, at most what was promised.

    `use` is the mean use of a whole GPU, as a fraction; the compute stays as promised where it was not measured.
    """
    milli = promised.milli if use is None else min(promised.milli, max(100, ceil(use * MARGIN * 10) * 100))
    return Share(milli, min(promised.mem_mib, _enough_mib(peak_mib)))


def little_used(report: JobReport) -> float | None:
    """The mean use of the GPUs of all its measured attempts, if that is little and `enough` suggests no fewer GPUs."""
    measured = [
        (_ran_ms(r, False) * r.gpus, r.gpu_use_mean) for r in report.attempts if r.gpu_use_mean is not None
    ]
    held = sum(held for held, _ in measured)
    use = sum(held * use for held, use in measured) / held if held else 1.0
    return use if use < LITTLE_USE and not any(each.what == "GPUs" for each in right_sizes(report)) else None


def _enough_mib(peak_mib: float) -> int:
    """A peak and a fifth, rounded up to 128 MiB, and above a peak of 4 GiB to whole GiB."""
    step = 1024 if peak_mib > 4096 else 128
    return ceil(peak_mib * MARGIN / step) * step


def report_json(report: JobReport) -> dict[str, Any]:
    """A report as JSON has it."""
    first = report.attempts[0]
    return {
        "job": report.name,
        "id": first.job_id,
        "cluster": first.cluster,
        "attempts": [
            {
                **asdict(record),
                "state": record.state.value,
                "share": {"milli": record.share.milli, "mem_mib": record.share.mem_mib},
                "waits": [asdict(wait) for wait in waits_of(record)],
                "ready_ms": record.ready_ms,
                "cpu_use": cpu_use(record),
                "mem_use": mem_use(record),
                "neighbours": _neighbours_json(report, record),
            }
            for record in report.attempts
        ],
        "series": [asdict(point) for point in report.series],
        "refused": report.refused,
        "cost": {
            "gpu_hours": report.gpu_hours,
            "failed_gpu_hours": report.failed_gpu_hours,
            "idle_gpu_hours": report.idle_gpu_hours,
            "cpu_hours": report.cpu_hours,
            "energy_kwh": report.energy_kwh,
        },
        "enough": [asdict(each) for each in right_sizes(report)],
        "little_used": little_used(report),
    }


def _neighbours_json(report: JobReport, record: Record) -> list[dict[str, Any]] | None:
    """Jobs that shared GPUs with an attempt, each once, with the GPUs that it shared; None if they are not known."""
    found = report.neighbours_of(record)
    if found is None:
        return None
    shared: dict[tuple[str, str], set[str]] = {}
    for each in found:
        shared.setdefault((each.job, each.user), set()).update({*each.gpu_slots} & {*record.gpu_slots})
    return [{"job": job, "user": user, "gpus": sorted(gpus)} for (job, user), gpus in shared.items()]
