"""What `berth.statistics.tables` answers by SQL, worked out record by record: the oracle of its tests."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from berth.history.values.causes import cause_after, cause_before
from berth.model import Record
from berth.statistics.accounting import (
    NO_GPU,
    UNKNOWN,
    WASTED,
    Usage,
    check_dimensions,
)
from berth.statistics.spread import CDF_POINTS, Cdf, cdf_of_counts

HOUR_MS: Final = 3_600_000


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
    return None if record.start_ms is None else (record.start_ms - _eligible_ms(record)) / HOUR_MS


def _eligible_ms(record: Record) -> int:
    """When an attempt that has started could have."""
    assert record.start_ms is not None
    told = record.queued_ms if record.eligible_ms is None else record.eligible_ms
    return min(max(told, record.queued_ms), record.start_ms)


VALUES: Final[Mapping[str, Callable[[Record], float | None]]] = {
    "nNODE": lambda r: (float(r.node_count or len(r.nodes)) or None) if r.start_ms is not None else None,
    "nGPU": lambda r: r.gpus * r.share.milli / 1000 if r.start_ms is not None else None,
    "WAIT_h": _wait_hours,
    "RUN_h": lambda r: None if r.start_ms is None else run_hours(r),
    "uGPUcore": lambda r: r.gpu_use_mean,
    "uGPUmem": lambda r: r.gpu_mem_mean,
}
"""Each of VARIABLES of a try; None where it has none."""


def _utc(record: Record, form: str) -> str:
    return datetime.fromtimestamp(record.end_ms / 1000, UTC).strftime(form)


GROUPS: Final[Mapping[str, Callable[[Record], str]]] = {
    "application": lambda r: r.application or UNKNOWN,
    "user": lambda r: r.user or UNKNOWN,
    "account": lambda r: r.account or UNKNOWN,
    "server": lambda r: r.virtual_cluster or UNKNOWN,
    "gpu": lambda r: (r.gpu_model or UNKNOWN) if r.gpus else NO_GPU,
    "qos": lambda r: r.qos or UNKNOWN,
    "cluster": lambda r: r.cluster or UNKNOWN,
    "state": lambda r: r.state.value,
    "month": lambda r: _utc(r, "%Y-%m"),
    "day": lambda r: _utc(r, "%Y-%m-%d"),
}
"""The value of a try in each of DIMENSIONS."""


def usage(records: Iterable[Record], by: Sequence[str]) -> list[Usage]:
    """Use of each group that there is, most GPU-hours first, then by name."""
    check_dimensions(by)
    groups: dict[tuple[str, ...], list[Record]] = defaultdict(list)
    for record in records:
        groups[tuple(GROUPS[name](record) for name in by)].append(record)
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
        for name, of in VALUES.items():
            if (value := of(record)) is not None:
                values[record.application or UNKNOWN][name].append(value)
    return {
        application: {name: _cdf(each, points) for name, each in by_variable.items()}
        for application, by_variable in values.items()
    }


def _cdf(values: ArrayLike, points: int) -> Cdf:
    distinct, counts = np.unique(np.asarray(values, np.float64), return_counts=True)
    return cdf_of_counts(distinct, counts, points)


def waits_by_cause(records: Iterable[Record]) -> dict[str, float]:
    """Hours from the submission of tries to their start, by cause.

    The part until a job was eligible is its dependency's, its begin time's, a hold's or an array limit's; the rest
    is that of resources, priority or a limit.
    """
    hours: dict[str, list[float]] = defaultdict(list)
    for record in records:
        if record.start_ms is None:
            continue
        eligible = _eligible_ms(record)
        if eligible > record.queued_ms:
            hours[cause_before(record.wait_reason)].append((eligible - record.queued_ms) / HOUR_MS)
        if record.start_ms > eligible:
            hours[cause_after(record.wait_reason)].append((record.start_ms - eligible) / HOUR_MS)
    return {cause: math.fsum(each) for cause, each in sorted(hours.items())}
