"""One run in numbers: every metric of a run in one value, and how fairly jobs and owners were served."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
from numpy.typing import NDArray

from berth.events import CANCEL, FAIL, FINISH, REJECT, SUBMIT
from berth.model import EventKind, Node, Reason
from berth.statistics import measures
from berth.statistics.columns import EventColumns, among
from berth.statistics.cost import Prices, run_cost
from berth.statistics.measures import WHOLE_MILLI, GpuHours
from berth.statistics.real_use import RealUse
from berth.statistics.spread import Distribution, distribution


@dataclass(frozen=True, slots=True)
class Summary:
    """The metrics of one run; docs/metrics.md and metrics.csv define each. Names end in the unit."""

    jobs: int
    """Jobs that were submitted: finished + failed + rejected + cancelled + waiting + running."""
    finished: int
    failed: int
    rejected: int
    cancelled: int
    waiting: int
    running: int
    tries: int
    evictions: int
    failures: Mapping[Reason, int]
    """Attempts that failed, by reason; reasons that never occurred are left out."""
    rejections: Mapping[Reason, int]
    gpu_allocation_pct: float
    """Capacity held by jobs; NaN, like those after it up to the hours, where the run lasted no time."""
    gpu_allocation_arriving_pct: float
    gpu_busy_pct: float
    gpu_utilisation_pct: float
    gpu_use_pct: float | None
    """What jobs really used of all GPUs; None, like the next, where no model of the run knows profiles."""
    gpu_mem_use_pct: float | None
    fragmentation_pct: float
    gpu_hours: GpuHours
    makespan_s: float
    queueing_delay_s: Distribution
    """From entering the queue to the start, over tries that started."""
    waiting_time_s: Distribution
    completion_time_s: Distribution
    bounded_slowdown: Distribution
    """Completion time over work, over jobs that finished; 1 is best. No unit."""
    goodput_pct: float
    """GPU time that jobs held and that went into work of jobs that finished; NaN where nothing was held."""
    finish_time_fairness: Distribution
    """Completion time over that on an equal share of the cluster, over jobs that finished; at most 1 is fair."""
    jain_users: float
    """Jain's index of how fast users were served; 1 where all alike, NaN where the trace names none."""
    jain_virtual_clusters: float
    """The same of virtual clusters."""
    deadlines_missed_pct: float | None = None
    """Of the jobs with a deadline those that had not finished by then; None where no job has one."""
    evicted_gpu_hours: float | None = None
    """Held by attempts that were evicted and kept nothing; None, like the next two, where jobs are of one tier."""
    urgent_waiting_time_s: Distribution | None = None
    """`waiting_time_s` over the jobs of a priority above 0."""
    other_waiting_time_s: Distribution | None = None
    lost_gpu_hours: float | None = None
    """Held by attempts that failed or were evicted and kept nothing; None, like the next three, without `when_full`."""
    growths: int | None = None
    """How often a limit of GPU memory grew."""
    suspensions: int | None = None
    suspended_s: float | None = None
    """For how long jobs were suspended, all of them together."""
    cost: float | None = None
    """What the GPU-hours held and the energy cost; None, like the next two, where no price list says."""
    energy_kwh: float | None = None
    co2_kg: float | None = None
    currency: str = ""
    """Of `cost`, as the price list says."""
    own: Mapping[str, float] = field(default_factory=dict)
    """The user's own metrics of a sweep by name; NaN where undefined."""
    given_up: tuple[str, ...] = ()
    """Ids of up to 10 jobs that were given up since their nodes were lost too often."""

    @property
    def unfinished(self) -> int:
        """Jobs that did not finish."""
        return self.jobs - self.finished


def summarise(
    columns: EventColumns,
    nodes: Sequence[Node],
    use: RealUse | None = None,
    prices: Prices | None = None,
    *,
    memory: bool = False,
) -> Summary:
    """Compute every metric of a run on a cluster of these nodes, including real use where it is known and, with
    `memory`, what became of jobs that needed more GPU memory."""
    priced = None if prices is None else run_cost(columns, nodes, prices)
    hours = measures.gpu_hours(columns)
    urgent = columns.urgent
    tiers = bool(urgent.any() and not urgent.all())
    lasted_ms = columns.end_ms - columns.begin_ms
    return Summary(
        jobs=len(columns.job_ids),
        finished=measures.ended_with(columns, EventKind.FINISH),
        failed=measures.ended_with(columns, EventKind.FAIL),
        rejected=measures.ended_with(columns, EventKind.REJECT),
        cancelled=measures.ended_with(columns, EventKind.CANCEL),
        waiting=measures.ended_with(columns, EventKind.SUBMIT)
        + measures.ended_with(columns, EventKind.EVICT),
        running=measures.ended_with(columns, EventKind.START),
        tries=len(columns.attempts.job),
        evictions=measures.events_of(columns, EventKind.EVICT),
        failures=measures.events_by_reason(columns, EventKind.FAIL),
        rejections=measures.events_by_reason(columns, EventKind.REJECT),
        gpu_allocation_pct=measures.gpu_allocation_pct(columns, nodes),
        gpu_allocation_arriving_pct=measures.gpu_allocation_arriving_pct(columns, nodes),
        gpu_busy_pct=measures.gpu_busy_pct(columns, nodes),
        gpu_utilisation_pct=measures.gpu_utilisation_pct(columns, nodes, hours),
        gpu_use_pct=None if use is None else use.gpu_pct(nodes, lasted_ms),
        gpu_mem_use_pct=None if use is None else use.mem_pct(nodes, lasted_ms),
        fragmentation_pct=measures.fragmentation_pct(columns, nodes),
        gpu_hours=hours,
        makespan_s=measures.makespan_s(columns),
        queueing_delay_s=distribution(measures.queueing_delay_s(columns)),
        waiting_time_s=distribution(measures.waiting_time_s(columns)),
        completion_time_s=distribution(measures.completion_time_s(columns)),
        bounded_slowdown=distribution(measures.bounded_slowdown(columns)),
        goodput_pct=measures.goodput_pct(columns, hours),
        finish_time_fairness=distribution(finish_time_fairness(columns, nodes)),
        jain_users=jain_index(service(columns, columns.users)),
        jain_virtual_clusters=jain_index(service(columns, columns.virtual_clusters)),
        deadlines_missed_pct=measures.deadlines_missed_pct(columns),
        evicted_gpu_hours=measures.lost_gpu_hours(columns, EventKind.EVICT) if tiers else None,
        lost_gpu_hours=measures.lost_gpu_hours(columns, EventKind.EVICT, EventKind.FAIL) if memory else None,
        growths=measures.growths(columns) if memory else None,
        suspensions=measures.events_of(columns, EventKind.SUSPEND) if memory else None,
        suspended_s=measures.suspended_s(columns) if memory else None,
        urgent_waiting_time_s=distribution(measures.waiting_time_s(columns, urgent)) if tiers else None,
        other_waiting_time_s=distribution(measures.waiting_time_s(columns, ~urgent)) if tiers else None,
        cost=None if priced is None else priced.cost,
        energy_kwh=None if priced is None else priced.energy_kwh,
        co2_kg=None if priced is None else priced.co2_kg,
        currency="" if prices is None else prices.currency,
        given_up=measures.given_up(columns),
    )


def summary_dict(summary: Summary) -> dict[str, object]:
    """The summary as JSON has it: the fields' own names, nested alike, and null for what is not defined."""
    return {key: _plain(value) for key, value in asdict(summary).items()}


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


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
    """How fast each owner was served: the work of their finished jobs over the time that they took, 1 at best.

    `owners` has one name a job; jobs without one are left out, as are owners of whom no job with work finished. In the
    order of their first job.
    """
    if not any(owners):
        return np.empty(0)
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
    ends = np.flatnonzero(among(columns.kind, *_ENDS))
    last = np.zeros(len(columns.job_ids), np.int64)
    last[columns.job[ends]] = ends
    over = among(columns.last_kind, *_ENDS)
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
