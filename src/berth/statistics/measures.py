"""The metrics, one function each, on the columns of one run.

Measures over time weigh each state by how long it lasted, from the first submission to the last event.
Capacity is what the nodes have when all are up: a lost node counts as unused capacity.
A GPU is allocated once, however many tenants share it: where they hold more than all of it together, each holds the
part of the whole that its share is of all their shares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from berth.events import KINDS, REASONS, RESIZE
from berth.model import NO_GPU, EventKind, Node, Reason
from berth.statistics.columns import RUNNING, AttemptColumns, EventColumns, among

SLOWDOWN_BOUND_MS = 10_000
"""Shorter jobs count as this long in the slowdown, so that a second's wait of a tiny job does not rule it."""

WHOLE_MILLI = 1000
_MILLI_MS_AN_HOUR = WHOLE_MILLI * 3_600_000.0


@dataclass(frozen=True, slots=True)
class GpuHours:
    """Where the GPU time that jobs held went; a job with half of a GPU holds half an hour in an hour."""

    held: float
    """All that jobs held: useful + wasted + unfinished."""
    useful: float
    """The work, at its speed alone, of the jobs that finished."""
    wasted: float
    """Lost to failures, to evictions without a checkpoint, and to being slowed down by neighbours."""
    unfinished: float
    """Held by jobs that had not ended by the last event and had lost nothing of it so far."""


def gpu_allocation_pct(columns: EventColumns, nodes: Sequence[Node]) -> float:
    """The share of all GPU capacity that jobs held."""
    return _percent(float(_held_milli_ms(columns).sum()), _capacity_milli_ms(columns, nodes))


def gpu_allocation_arriving_pct(columns: EventColumns, nodes: Sequence[Node]) -> float:
    """The share of all GPU capacity that jobs held from the first submission to the last.

    A few long jobs at the end do not lower it, as they lower the allocation of the whole run.
    """
    last = int(columns.submit_ms.max(initial=columns.begin_ms))
    capacity = float(sum(node.gpus for node in nodes) * WHOLE_MILLI * (last - columns.begin_ms))
    return _percent(float(_held_milli_ms(columns, until_ms=last).sum()), capacity)


def gpu_busy_pct(columns: EventColumns, nodes: Sequence[Node]) -> float:
    """The share of GPUs with at least one job, however small a part of them it held."""
    return _percent(WHOLE_MILLI * busy_gpu_ms(columns), _capacity_milli_ms(columns, nodes))


def gpu_utilisation_pct(columns: EventColumns, nodes: Sequence[Node], hours: GpuHours | None = None) -> float:
    """The share of all GPU capacity that went into work of jobs that finished.

    It equals the allocation where nothing is lost, nothing slowed down and everything ends. `hours` are what
    `gpu_hours` makes of the run, as below, where they are known already.
    """
    return _percent(
        (hours or gpu_hours(columns)).useful * _MILLI_MS_AN_HOUR, _capacity_milli_ms(columns, nodes)
    )


def goodput_pct(columns: EventColumns, hours: GpuHours | None = None) -> float:
    """The share of the GPU time that jobs held which went into work of jobs that finished."""
    hours = hours or gpu_hours(columns)
    return _percent(hours.useful, hours.held)


def fragmentation_pct(columns: EventColumns, nodes: Sequence[Node]) -> float:
    """The share of idle GPU capacity that lies on GPUs which a job holds a part of.

    What is idle there can only be had by jobs that want a part of a GPU. NaN where nothing was ever idle.
    """
    busy = WHOLE_MILLI * busy_gpu_ms(columns)
    held = float(_held_milli_ms(columns).sum())
    return _percent(busy - held, _capacity_milli_ms(columns, nodes) - held)


def gpu_hours(columns: EventColumns) -> GpuHours:
    """The GPU hours held, and what became of them.

    A finished job's useful hours are its work, but not more than its run time, on the part of the GPUs that
    it held: of all its attempts where it keeps its work, of the last one where it does not.
    """
    attempts = columns.attempts
    jobs = len(columns.job_ids)
    held = _held_milli_ms(columns)
    finished = _last_kind_is(columns, EventKind.FINISH)
    gave_up = np.logical_or.reduce(
        [_last_kind_is(columns, kind) for kind in (EventKind.FAIL, EventKind.REJECT, EventKind.CANCEL)]
    )
    counts = columns.keeps_work[attempts.job] | (attempts.end_event == RUNNING)
    counts |= columns.kind[attempts.end_event] == KINDS.index(EventKind.FINISH)

    total = float(held.sum())
    held *= counts  # in place, as a million jobs have 8 MB of each array
    held_of_job = np.bincount(attempts.job, held, minlength=jobs)
    del held
    holdings = columns.holdings  # a suspended attempt does not run
    ran_ms = holdings.end_ms - holdings.start_ms
    if holdings is not attempts:
        ran_ms = np.bincount(columns.attempt_of, ran_ms, minlength=len(attempts.job)).astype(np.int64)
    ran_ms *= counts
    run_of_job = np.bincount(attempts.job, ran_ms, minlength=jobs)
    del ran_ms
    useful_of_job = np.minimum(columns.work_ms, run_of_job, dtype=np.float64)
    np.divide(useful_of_job, run_of_job, out=useful_of_job, where=run_of_job > 0)
    useful_of_job *= held_of_job
    useful = float(useful_of_job[finished].sum())
    unfinished = float(held_of_job[~finished & ~gave_up].sum())
    hours = np.array([total, useful, total - useful - unfinished, unfinished]) / _MILLI_MS_AN_HOUR
    return GpuHours(float(hours[0]), float(hours[1]), max(0.0, float(hours[2])), float(hours[3]))


def busy_gpu_ms(columns: EventColumns) -> float:
    """GPU milliseconds during which a GPU had at least one job, over all GPUs."""
    attempts = columns.attempts
    durations = attempts.end_ms - attempts.start_ms
    if bool((attempts.milli == WHOLE_MILLI).all()) and not attempts.shared.any():
        return float((durations * attempts.gpus).sum())
    owner, gpu = slots_on_gpus(attempts)
    # Attempts are in order of start, which a stable sort keeps; 16-bit keys sort by radix, much faster.
    narrow = int(gpu.max(initial=0)) < 2**16
    order = np.argsort(gpu.astype(np.uint16) if narrow else gpu, kind="stable")
    # Setting each GPU off by more than the whole window lets one running maximum serve all GPUs.
    stride = columns.end_ms - columns.begin_ms + 1
    shift = gpu[order] * stride - columns.begin_ms
    start, end = attempts.start_ms[owner[order]] + shift, attempts.end_ms[owner[order]] + shift
    covered = np.maximum.accumulate(end)
    begin = start.copy()
    begin[1:] = np.maximum(start[1:], covered[:-1])
    return float(np.maximum(end - begin, 0).sum())


def slots_on_gpus(
    attempts: AttemptColumns, nodes: Sequence[Node] = ()
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The attempt and the GPU's number for each GPU that an attempt holds, in order of attempts.

    With `nodes`, GPUs are numbered node by node.
    """
    owner = np.repeat(np.arange(len(attempts.job)), np.diff(attempts.slot_offsets))
    on_gpu = attempts.slot_index != NO_GPU
    node, index = attempts.slot_node[on_gpu].astype(np.int64), attempts.slot_index[on_gpu]
    if nodes:
        gpus = np.array([node.gpus for node in nodes], np.int64)
        return owner[on_gpu], (np.cumsum(gpus) - gpus)[node] + index
    return owner[on_gpu], node * (int(index.max(initial=0)) + 1) + index


def queueing_delay_s(columns: EventColumns) -> NDArray[np.float64]:
    """(T,) From entering the queue to the start, of each try that started."""
    return (columns.attempts.start_ms - columns.attempts.queued_ms) / 1000.0


def waiting_time_s(columns: EventColumns, of: NDArray[np.bool_] | None = None) -> NDArray[np.float64]:
    """From submission to the last start, of each job that ever started, in order of the jobs; `of`, (J,): whose."""
    last_start = np.full(len(columns.job_ids), -1, np.int64)
    np.maximum.at(last_start, columns.attempts.job, columns.attempts.start_ms - columns.begin_ms)
    started = last_start >= 0 if of is None else (last_start >= 0) & of
    return (last_start[started] + columns.begin_ms - columns.submit_ms[started]) / 1000.0


def completion_time_s(columns: EventColumns) -> NDArray[np.float64]:
    """From submission to the end, of each job that finished, in order of finishing."""
    at = np.flatnonzero(columns.kind == KINDS.index(EventKind.FINISH))
    return (columns.time_ms[at] - columns.submit_ms[columns.job[at]]) / 1000.0


def bounded_slowdown(columns: EventColumns) -> NDArray[np.float64]:
    """How many times as long as alone on a free cluster each finished job took, in order of finishing.

    max(1, completion time / max(work, 10 s)): Feitelson and Rudolph, Metrics and Benchmarking for Parallel
    Job Scheduling, JSSPP 1998, section 3.1. Work is the run time alone, so that slow neighbours count.
    """
    at = np.flatnonzero(columns.kind == KINDS.index(EventKind.FINISH))
    work_ms = np.maximum(columns.work_ms[columns.job[at]], SLOWDOWN_BOUND_MS)
    return np.maximum(1.0, completion_time_s(columns) * 1000.0 / work_ms)


def makespan_s(columns: EventColumns) -> float:
    """From the first submission to the last event."""
    return (columns.end_ms - columns.begin_ms) / 1000.0


def events_by_reason(columns: EventColumns, kind: EventKind) -> Mapping[Reason, int]:
    """How many events of a kind happened for each reason; reasons that never occurred are left out."""
    counts = np.bincount(columns.reason[columns.kind == KINDS.index(kind)], minlength=len(REASONS))
    return {reason: int(count) for reason, count in zip(REASONS, counts, strict=True) if count}


def deadlines_missed_pct(columns: EventColumns) -> float | None:
    """The share of jobs with a deadline that had not finished by then; None where no job has one."""
    due_ms = columns.due_ms
    if not len(due_ms):
        return None
    finished = columns.kind == KINDS.index(EventKind.FINISH)
    end_ms = np.full(len(due_ms), np.iinfo(np.int64).max)
    end_ms[columns.job[finished]] = columns.time_ms[finished]
    has = due_ms >= 0
    return _percent(float(np.count_nonzero(end_ms[has] > due_ms[has])), float(np.count_nonzero(has)))


def lost_gpu_hours(columns: EventColumns, *kinds: EventKind) -> float:
    """GPU-hours of attempts that events of these kinds ended, and that kept nothing of their work."""
    attempts = columns.attempts
    ended = among(columns.kind[attempts.end_event], *map(KINDS.index, kinds))
    ended &= (attempts.end_event != RUNNING) & ~columns.keeps_work[attempts.job]
    return float(_held_milli_ms(columns)[ended].sum()) / _MILLI_MS_AN_HOUR


def events_of(columns: EventColumns, kind: EventKind) -> int:
    """How many events of a kind happened."""
    return int(np.count_nonzero(columns.kind == KINDS.index(kind)))


def growths(columns: EventColumns) -> int:
    """How often the limit of GPU memory of an attempt grew: other resizes do not count."""
    there = columns.holdings
    order = np.argsort(columns.attempt_of, kind="stable")  # what each attempt held, one after the other
    resized = columns.kind[there.start_event[order]] == RESIZE
    return int(np.count_nonzero(resized[1:] & (np.diff(there.mem_mib[order]) > 0)))


def suspended_s(columns: EventColumns) -> float:
    """For how long attempts were suspended, all of them together."""
    here, there = columns.attempts, columns.holdings
    return float((here.end_ms - here.start_ms).sum() - (there.end_ms - there.start_ms).sum()) / 1000.0


def given_up(columns: EventColumns) -> tuple[str, ...]:
    """The ids of up to 10 jobs that were given up since their nodes were lost too often."""
    events = np.flatnonzero(columns.reason == REASONS.index(Reason.LOST_TOO_OFTEN))[:10]
    return tuple(columns.job_ids[job] for job in columns.job[events].tolist())


def ended_with(columns: EventColumns, kind: EventKind) -> int:
    """How many jobs had an event of this kind as their last."""
    return int(np.count_nonzero(_last_kind_is(columns, kind)))


def _last_kind_is(columns: EventColumns, kind: EventKind) -> NDArray[np.bool_]:
    is_last: NDArray[np.bool_] = columns.last_kind == KINDS.index(kind)
    return is_last


def _held_milli_ms(columns: EventColumns, until_ms: int | None = None) -> NDArray[np.float64 | np.int64]:
    """(T,) What each attempt held, over all its GPUs, until a time or to the end."""
    held = _held_of(columns.holdings, until_ms)
    if columns.holdings is columns.attempts:
        return held
    return np.bincount(columns.attempt_of, held, minlength=len(columns.attempts.job))


def _held_of(attempts: AttemptColumns, until_ms: int | None) -> NDArray[np.float64 | np.int64]:
    """(T,) The same of these attempts or holdings."""
    start_ms, end_ms = attempts.start_ms, attempts.end_ms
    if until_ms is not None:
        start_ms, end_ms = np.minimum(start_ms, until_ms), np.minimum(end_ms, until_ms)
    if not attempts.shared.any():
        return (end_ms - start_ms) * attempts.gpus * attempts.milli
    owner, held = held_of_each_gpu(attempts, start_ms, end_ms)
    return np.bincount(owner, held, minlength=len(attempts.job))


def held_of_each_gpu(
    attempts: AttemptColumns, start_ms: NDArray[np.int64], end_ms: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The attempts in the order of `slots_on_gpus`, and what each held of that GPU in these times, in milli × ms."""
    # On each GPU the part that is left of a share is integrated over time; an attempt held what came between.
    owner, gpu = slots_on_gpus(attempts)
    number = len(owner)
    milli = attempts.milli[owner]
    times = np.concatenate((start_ms[owner], end_ms[owner]))
    order = np.lexsort((times, np.concatenate((gpu, gpu))))
    asked = np.cumsum(np.concatenate((milli, -milli))[order])
    left = np.divide(WHOLE_MILLI, asked, out=np.ones(2 * number), where=asked > WHOLE_MILLI)
    lasted = np.where(asked[:-1] > 0, np.diff(times[order]), 0)
    passed = np.empty(2 * number)
    passed[order] = np.concatenate(([0.0], np.cumsum(left[:-1] * lasted)))
    return owner, milli * (passed[number:] - passed[:number])


def _capacity_milli_ms(columns: EventColumns, nodes: Sequence[Node]) -> float:
    gpus = sum(node.gpus for node in nodes)
    return float(gpus * WHOLE_MILLI * (columns.end_ms - columns.begin_ms))


def _percent(part: float, whole: float) -> float:
    return 100.0 * part / whole if whole > 0 else math.nan
