"""How fairly jobs, users and virtual clusters were served."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from berth.model import Node
from berth.statistics.columns import CANCEL, FAIL, FINISH, REJECT, SUBMIT, EventColumns
from berth.statistics.measures import WHOLE_MILLI

_ENDS = FINISH, FAIL, REJECT, CANCEL
_AT_ONCE = 1 << 16


def finish_time_fairness(columns: EventColumns, nodes: Sequence[Node]) -> NDArray[np.float64]:
    """How much longer each finished job took than on an equal share of the cluster, in order of finishing.

    ρ = completion time / (work × contention); at most 1 is fair. Mahajan, Balasubramanian, Singhvi, Venkataraman,
    Akella, Phanishayee and Chawla, "Themis: Fair and Efficient GPU Cluster Scheduling", NSDI 2020, section 3, with
    the equal share taken as in its successors: contention is what all jobs in the system ask for, over what the
    cluster has, at least 1, averaged over the job's stay. Jobs without work are left out.
    """
    at = np.flatnonzero(columns.kind == FINISH)
    job = columns.job[at]
    works = columns.work_ms[job] > 0
    at, job = at[works], job[works]
    capacity = WHOLE_MILLI * sum(node.gpus for node in nodes)
    if not len(at):
        return np.empty(0)
    area = _contention(columns, capacity)
    submits = np.flatnonzero((columns.kind == SUBMIT) & (columns.attempt == 1))  # one a job, in their order
    mean = area[at] - area[submits[job]]
    del area, submits
    stay = columns.time_ms[at] - columns.submit_ms[job]
    np.divide(mean, stay, out=mean, where=stay > 0)
    mean[stay <= 0] = 1.0
    np.maximum(mean, 1.0, out=mean)
    mean *= columns.work_ms[job]
    ratio: NDArray[np.float64] = stay / mean
    return ratio


def service(columns: EventColumns, owners: Sequence[str]) -> NDArray[np.float64]:
    """How fast each owner was served: the work of his finished jobs over the time that they took, 1 at best.

    `owners` has one name a job; jobs without one are left out, as are owners of whom no job with work finished. In the
    order of their first job.
    """
    numbers = {name: number for number, name in enumerate(dict.fromkeys(owners))}
    owner = np.fromiter(map(numbers.__getitem__, owners), np.int64, len(owners))
    at = np.flatnonzero(columns.kind == FINISH)
    job = columns.job[at]
    of = owner[job] if len(job) else np.empty(0, np.int64)
    work = np.bincount(of, columns.work_ms[job], minlength=len(numbers))
    took = np.bincount(of, columns.time_ms[at] - columns.submit_ms[job], minlength=len(numbers))
    counts = took > 0
    if "" in numbers:
        counts[numbers[""]] = False
    return np.minimum(1.0, work[counts] / took[counts])


def jain_index(values: NDArray[np.float64]) -> float:
    """(Σx)² / (n·Σx²): 1 where all have the same, 1/n if one has everything; NaN for none.

    Jain, Chiu and Hawe, "A Quantitative Measure of Fairness and Discrimination for Resource Allocation in Shared
    Computer Systems", DEC-TR-301, 1984.
    """
    squares = float((values**2).sum())
    return float(values.sum()) ** 2 / (len(values) * squares) if squares > 0 else math.nan


def _contention(columns: EventColumns, capacity: int) -> NDArray[np.float64]:
    """(E + 1,) Its integral until each event; it is at least 1 throughout. The last value is of no event."""
    asked = columns.gpus * columns.milli
    area = np.zeros(len(columns.kind) + 1)  # first the change by the event before
    area[1 + np.flatnonzero((columns.kind == SUBMIT) & (columns.attempt == 1))] = asked
    ends = np.flatnonzero(np.isin(columns.kind, _ENDS))
    last = np.zeros(len(columns.job_ids), np.int64)
    last[columns.job[ends]] = ends
    over = np.isin(columns.last_kind, _ENDS)
    area[1 + last[over]] -= asked[over]
    del asked, ends, last, over
    np.cumsum(area, out=area)
    area /= capacity or math.inf
    np.maximum(area, 1.0, out=area)
    area[0] = 0.0
    for at in range(1, len(area), _AT_ONCE):  # all of a million jobs at once would be 24 MB more
        lasted_ms = np.diff(columns.time_ms[at - 1 : at + _AT_ONCE])
        area[at : at + len(lasted_ms)] *= lasted_ms
    return np.cumsum(area, out=area)
