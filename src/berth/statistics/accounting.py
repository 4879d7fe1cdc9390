"""What jobs used and how they waited: pure functions over Records, and the values that they give.

A try holds `gpus` GPUs, or its part of one where it shares it, from its start to its end. What holds nobody
can tell is absent, never 0. A big history gives the same values through `berth.history.tables`, by SQL; tests
hold the two against each other.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from berth.errors import SettingError
from berth.model import Record, RecordState
from berth.statistics.spread import CDF_POINTS, Cdf, cdf_of_counts

__all__ = [
    "DIMENSIONS",
    "MEASURES",
    "UNKNOWN",
    "VARIABLES",
    "Usage",
    "Variable",
    "cdfs",
    "check_dimensions",
    "duration_text",
    "gpu_hours",
    "run_hours",
    "usage",
    "waits_by_cause",
]

UNKNOWN: Final = "unknown"
"""The application, account … of a job that does not tell."""

HOUR_MS: Final = 3_600_000

MEASURES: Final = ("gpu-hours", "run-hours", "jobs")
"""Run-hours are those of the paper's figure 3: one hour an hour, however many GPUs."""

WASTED: Final = frozenset(
    (RecordState.FAILED, RecordState.OUT_OF_MEMORY, RecordState.NODE_FAIL, RecordState.TIMEOUT)
)
"""States in which what a try held is taken to be lost."""


@dataclass(frozen=True, slots=True)
class Usage:
    """One group of tries, and what they used."""

    keys: tuple[str, ...]
    """Its value of each dimension."""
    gpu_hours: float
    run_hours: float
    jobs: int
    """Jobs, not tries."""
    users: int
    wasted_gpu_hours: float
    """Held by tries that failed, ran out of time or memory, or lost their node."""
    measured_gpu_hours: float
    """Held by tries whose use of the GPU somebody measured."""
    idle_gpu_hours: float
    """Of those, not used."""

    def measure(self, name: str) -> float:
        """One of MEASURES."""
        return {"gpu-hours": self.gpu_hours, "run-hours": self.run_hours, "jobs": float(self.jobs)}[name]


@dataclass(frozen=True, slots=True)
class Variable:
    """One of the six of the paper's table 1."""

    name: str
    unit: str
    of: Callable[[Record], float | None]
    """Its value; None where the try has none."""


def run_ms(record: Record) -> int | None:
    """How long it ran; None where it never started."""
    return None if record.start_ms is None else record.end_ms - record.start_ms


def run_hours(record: Record) -> float:
    """Hours from start to end; 0 where it never started."""
    return (run_ms(record) or 0) / HOUR_MS


def gpu_hours(record: Record) -> float:
    """GPU-hours held; half of a GPU holds half an hour in an hour."""
    return run_hours(record) * record.gpus * record.share.milli / 1000


def _wait_hours(record: Record) -> float | None:
    return None if record.start_ms is None else (record.start_ms - record.queued_ms) / HOUR_MS


VARIABLES: Final = (
    Variable(
        "nNODE", "nodes", lambda r: float(r.node_count or len(r.nodes)) if r.start_ms is not None else None
    ),
    Variable("nGPU", "GPUs", lambda r: r.gpus * r.share.milli / 1000 if r.start_ms is not None else None),
    Variable("WAIT_h", "hours", _wait_hours),
    Variable("RUN_h", "hours", lambda r: None if r.start_ms is None else run_hours(r)),
    Variable("uGPUcore", "fraction", lambda r: r.gpu_use_mean),
    Variable("uGPUmem", "fraction", lambda r: r.gpu_mem_mean),
)


def _utc(record: Record, form: str) -> str:
    return datetime.fromtimestamp(record.end_ms / 1000, UTC).strftime(form)


DIMENSIONS: Final[Mapping[str, Callable[[Record], str]]] = {
    "application": lambda r: r.application or UNKNOWN,
    "user": lambda r: r.user or UNKNOWN,
    "account": lambda r: r.account or UNKNOWN,
    "server": lambda r: r.virtual_cluster or UNKNOWN,
    "gpu": lambda r: r.gpu_model or UNKNOWN,
    "qos": lambda r: r.qos or UNKNOWN,
    "cluster": lambda r: r.cluster or UNKNOWN,
    "state": lambda r: r.state.value,
    "month": lambda r: _utc(r, "%Y-%m"),
    "day": lambda r: _utc(r, "%Y-%m-%d"),
}
"""What usage can be grouped by. `server` is the partition, which names the type of GPU server; month and day
are those in which the try ended, in UTC."""


def check_dimensions(names: Sequence[str]) -> None:
    """SettingError where one is none of them."""
    for name in names:
        if name not in DIMENSIONS:
            raise SettingError(f"no dimension '{name}'; there are {', '.join(DIMENSIONS)}")


def usage(records: Iterable[Record], by: Sequence[str]) -> list[Usage]:
    """Use of each group that there is, most GPU-hours first, then by name."""
    check_dimensions(by)
    groups: dict[tuple[str, ...], list[Record]] = defaultdict(list)
    for record in records:
        groups[tuple(DIMENSIONS[name](record) for name in by)].append(record)
    rows = [_usage(keys, group) for keys, group in groups.items()]
    return sorted(rows, key=lambda row: (-row.gpu_hours, row.keys))


def _usage(keys: tuple[str, ...], group: Sequence[Record]) -> Usage:
    measured = [record for record in group if record.gpu_use_mean is not None]
    return Usage(
        keys=keys,
        gpu_hours=math.fsum(map(gpu_hours, group)),
        run_hours=math.fsum(map(run_hours, group)),
        jobs=len({(record.cluster, record.job_id) for record in group}),
        users=len({record.user for record in group}),
        wasted_gpu_hours=math.fsum(gpu_hours(record) for record in group if record.state in WASTED),
        measured_gpu_hours=math.fsum(map(gpu_hours, measured)),
        idle_gpu_hours=math.fsum(gpu_hours(record) * (1 - (record.gpu_use_mean or 0)) for record in measured),
    )


def cdfs(records: Iterable[Record], points: int = CDF_POINTS) -> dict[str, dict[str, Cdf]]:
    """The empirical distributions of the six variables, by application and variable; those with any value."""
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        for variable in VARIABLES:
            if (value := variable.of(record)) is not None:
                values[record.application or UNKNOWN][variable.name].append(value)
    return {
        application: {name: _cdf(each, points) for name, each in by_variable.items()}
        for application, by_variable in values.items()
    }


def _cdf(values: ArrayLike, points: int) -> Cdf:
    distinct, counts = np.unique(np.asarray(values, np.float64), return_counts=True)
    return cdf_of_counts(distinct, counts, points)


def duration_text(seconds: float) -> str:
    """Seconds for people: `90 s`, `2.5 h`."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.0f} s"


# --- waiting ---------------------------------------------------------------------------------------

BEFORE: Final = {
    "Dependency": "dependency",
    "DependencyNeverSatisfied": "dependency",
    "BeginTime": "begin time",
    "JobHeldUser": "held by user",
    "JobHeldAdmin": "held by administrator",
    "JobArrayTaskLimit": "limit: JobArrayTaskLimit",
}
"""Reasons that keep a job from being eligible at all, and what they are called."""


def cause_after(reason: str) -> str:
    """Why an eligible job waited, from the last reason that its scheduler gave."""
    if reason in ("", "None", "Resources") or reason in BEFORE:
        return "resources"
    if reason == "Priority":
        return "priority"
    if reason.startswith(("Assoc", "QOS", "Max", "Partition", "Licenses", "JobHoldMax")):
        return f"limit: {reason}"
    if reason in ("ReqNodeNotAvail", "NodeDown", "Reservation", "BadConstraints", "ReservationDeleted"):
        return "nodes not available"
    return f"other: {reason}"


def cause_before(reason: str) -> str:
    """Why a job was not eligible; Slurm keeps the last reason only, which may be one of later."""
    return BEFORE.get(reason, "not eligible")


def waits_by_cause(records: Iterable[Record]) -> dict[str, float]:
    """Hours that tries waited before they started, by cause; their sum is all waiting.

    Waiting counts from submission. The part until a job was eligible is its dependency's, its begin time's,
    a hold's or an array limit's; the rest is that of resources, priority or a limit.
    """
    hours: dict[str, list[float]] = defaultdict(list)
    for record in records:
        if record.start_ms is None:
            continue
        eligible = record.queued_ms if record.eligible_ms is None else record.eligible_ms
        eligible = min(max(eligible, record.queued_ms), record.start_ms)
        if eligible > record.queued_ms:
            hours[cause_before(record.wait_reason)].append((eligible - record.queued_ms) / HOUR_MS)
        if record.start_ms > eligible:
            hours[cause_after(record.wait_reason)].append((record.start_ms - eligible) / HOUR_MS)
    return {cause: math.fsum(each) for cause, each in sorted(hours.items())}
