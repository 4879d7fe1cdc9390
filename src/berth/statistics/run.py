"""What is kept of one run: small arrays that a worker can send back and plots are drawn from, among them the cluster
over time (`Timeline`, `Film`) and each GPU's jobs (`Schedule`).

In the shapes, B is the number of bins, N of nodes, G the most GPUs of any node, F of frames, C of all GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from berth.errors import SettingError
from berth.events import KINDS
from berth.model import EventKind, Node
from berth.statistics.columns import RUNNING, EventColumns, among
from berth.statistics.cost import Prices
from berth.statistics.measures import WHOLE_MILLI, completion_time_s, slots_on_gpus, waiting_time_s
from berth.statistics.real_use import RealUse
from berth.statistics.spread import Cdf, cdf
from berth.statistics.summary import Summary, summarise


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One policy on one seed, after the events are gone."""

    policy: str
    seed: int
    summary: Summary
    timeline: Timeline
    waiting: Cdf
    """Seconds from submission to the last start, of the jobs that started."""
    completion: Cdf
    """Seconds from submission to the end, of the jobs that finished."""
    film: Film | None = None
    """The GPUs over time; None for a cluster that is too large to see."""
    schedule: Schedule | None = None
    """Which job held which GPU when; None for a run that is too large to look at."""
    oracle: bool = False
    """Whether the policy chose by true run times: a bound, never the best."""

    @property
    def label(self) -> str:
        """The policy's name, and that it is an oracle if it is one."""
        return f"{self.policy} (oracle)" if self.oracle else self.policy


def run_of(
    columns: EventColumns,
    nodes: Sequence[Node],
    policy: str,
    seed: int,
    use: RealUse | None = None,
    prices: Prices | None = None,
    *,
    memory: bool = False,
    pictures: bool = True,
) -> Run:
    """Reduce the columns of one run to what is kept of it.

    `use` is what `real_use` makes of the run, where the model of interference that it ran under knows profiles;
    `prices` say what it costs. With `memory` the summary tells what became of jobs that needed more GPU memory. Without
    `pictures` the film and the schedule, which take longest, are left out.
    """
    return Run(
        policy=policy,
        seed=seed,
        summary=summarise(columns, nodes, use, prices, memory=memory),
        timeline=timeline(columns, nodes),
        waiting=cdf(waiting_time_s(columns)),
        completion=cdf(completion_time_s(columns)),
        film=film(columns, nodes) if pictures else None,
        schedule=schedule(columns, nodes) if pictures else None,
    )


TIMELINE_POINTS = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """A run over time: the time-weighted mean in each of some bins, and the peak in it.

    Half of the edges are even in time, half in events, so that a burst is seen in a run with a long tail.
    """

    edges_ms: NDArray[np.int64]  # (B + 1,)
    """Bin `b` lasts from `edges_ms[b]` to `edges_ms[b + 1]`, in the trace's own time."""
    capacity_milli: int
    """All GPUs of the cluster together."""
    allocated_milli_mean: NDArray[np.float32]  # (B,)
    waiting_mean: NDArray[np.float32]  # (B,)
    """Jobs in the queue."""
    waiting_max: NDArray[np.float32]  # (B,)


FRAMES = 70
FILMED_GPUS = 320
FILMED_ATTEMPTS = 100_000
"""Larger runs have no film: their cells would be too small to see."""


@dataclass(frozen=True, slots=True, eq=False)
class Film:
    """Every GPU of a small cluster in frames that are spread evenly over the submissions."""

    times_ms: NDArray[np.int64]  # (F,)
    held_milli: NDArray[np.int16]  # (F, C)
    """Per mille of each GPU that its jobs hold, node by node."""
    asked_milli: NDArray[np.int16]  # (F, C)
    """Per mille that these jobs asked for; less than is held where they have more than they asked for."""
    waiting: NDArray[np.int32]  # (F,)
    """Jobs in the queue."""


def film(columns: EventColumns, nodes: Sequence[Node]) -> Film | None:
    """The frames of a run; None for a cluster without GPUs or larger than FILMED_GPUS, and for a long run."""
    attempts, gpus = columns.holdings, sum(node.gpus for node in nodes)
    if not 0 < gpus <= FILMED_GPUS or not 0 < len(attempts.job) <= FILMED_ATTEMPTS:
        return None
    times = np.linspace(columns.submit_ms.min(), columns.submit_ms.max(), FRAMES).astype(np.int64)
    owner, cell = slots_on_gpus(attempts, nodes)
    begin, end = (
        attempts.start_ms[owner],
        np.where(attempts.end_event == RUNNING, np.inf, attempts.end_ms)[owner],
    )
    held = np.zeros((FRAMES, gpus), np.int64)
    asked = np.zeros_like(held)
    for frame, time_ms in enumerate(times):
        here = (begin <= time_ms) & (end > time_ms)
        held[frame] = np.bincount(cell[here], attempts.milli[owner[here]], minlength=held.shape[1])
        asked[frame] = np.bincount(
            cell[here], columns.milli[attempts.job[owner[here]]], minlength=held.shape[1]
        )
    waiting = np.cumsum(_waits(columns))[np.searchsorted(columns.time_ms, times, side="right") - 1]
    return Film(
        times,
        np.minimum(held, WHOLE_MILLI).astype(np.int16),
        np.minimum(asked, WHOLE_MILLI).astype(np.int16),
        waiting.astype(np.int32),
    )


SCHEDULED_GPUS = 64
SCHEDULED_ATTEMPTS = 2000
"""Larger runs have no schedule to look at: bars thinner than a pixel tell nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """What each GPU of a small cluster held and when: a bar for each GPU of each attempt, H in all."""

    jobs: NDArray[np.str_]  # (H,)
    """Ids."""
    users: NDArray[np.str_]  # (H,)
    cell: NDArray[np.int64]  # (H,)
    """The GPU, counted node by node."""
    begin_ms: NDArray[np.int64]  # (H,)
    end_ms: NDArray[np.int64]  # (H,)
    from_milli: NDArray[np.int64]  # (H,)
    """Where on its GPU the bar begins: tenants of one GPU lie above each other."""
    milli: NDArray[np.int64]  # (H,)
    """Per mille of the GPU that it holds."""


def schedule(columns: EventColumns, nodes: Sequence[Node]) -> Schedule | None:
    """The bars of a run; None for a cluster without GPUs, and for one or a run too large to look at."""
    held, gpus = columns.holdings, sum(node.gpus for node in nodes)
    if not 0 < gpus <= SCHEDULED_GPUS or not 0 < len(held.job) <= SCHEDULED_ATTEMPTS:
        return None
    owner, cell = slots_on_gpus(held, nodes)
    begin_ms, end_ms = held.start_ms[owner], held.end_ms[owner]
    milli = held.milli[owner].astype(np.int64)
    of_job = held.job[owner]
    return Schedule(
        np.array([columns.job_ids[at] for at in of_job.tolist()], np.str_),
        np.array([columns.users[at] for at in of_job.tolist()], np.str_),
        cell,
        begin_ms,
        end_ms,
        _stacked(cell, begin_ms, end_ms, milli),
        milli,
    )


def _stacked(
    cell: NDArray[np.int64], begin_ms: NDArray[np.int64], end_ms: NDArray[np.int64], milli: NDArray[np.int64]
) -> NDArray[np.int64]:
    """(H,) Where each bar begins on its GPU: at the lowest place that is free from its begin to its end."""
    found = np.zeros(len(cell), np.int64)
    there: dict[int, list[int]] = {}
    for bar in np.lexsort((np.arange(len(cell)), begin_ms)).tolist():
        tenants = [at for at in there.get(int(cell[bar]), []) if end_ms[at] > begin_ms[bar]]
        place = 0
        for other in sorted(tenants, key=lambda at: int(found[at])):
            if found[other] - place >= milli[bar]:
                break
            place = max(place, int(found[other] + milli[other]))
        found[bar] = place
        there[int(cell[bar])] = [*tenants, bar]
    return found


def timeline(columns: EventColumns, nodes: Sequence[Node], points: int = TIMELINE_POINTS) -> Timeline:
    """Thin what was allocated, waiting and running over time to at most `points` bins."""
    if points < 1:
        raise SettingError(f"a timeline needs at least 1 point, not {points}")
    begin, end = columns.begin_ms, columns.end_ms
    edges = _edges(columns.time_ms, begin, end, points)

    waits = _waits(columns)
    waiting_mean, waiting_max = _binned(columns.time_ms, np.cumsum(waits, dtype=np.int32), edges)
    del waits
    held = _held_deltas(columns)
    held_mean, _ = _binned(columns.time_ms, np.cumsum(held, out=held), edges)
    return Timeline(
        edges_ms=edges,
        capacity_milli=1000 * sum(node.gpus for node in nodes),
        allocated_milli_mean=held_mean,
        waiting_mean=waiting_mean,
        waiting_max=waiting_max,
    )


def _edges(time_ms: NDArray[np.int64], begin: int, end: int, points: int) -> NDArray[np.int64]:
    in_time = max(1, min(points // 2, end - begin))
    in_events = min(points - in_time, len(time_ms))
    even = begin + (end - begin) * np.arange(in_time + 1) // in_time
    busy = time_ms[np.linspace(0, len(time_ms) - 1, in_events).astype(np.int64)]
    edges = np.unique(np.concatenate((even, busy)))
    return edges if len(edges) > 1 else np.array([begin, end])


def _waits(columns: EventColumns) -> NDArray[np.int8]:
    """(E,) What each event adds to the jobs that wait."""
    never_ran = _has_kind(columns, EventKind.FAIL, EventKind.CANCEL) & ~columns.ran()
    left = _has_kind(columns, EventKind.START, EventKind.REJECT) | never_ran
    waits: NDArray[np.int8] = _has_kind(columns, EventKind.SUBMIT).astype(np.int8) - left
    return waits


def _held_deltas(columns: EventColumns) -> NDArray[np.int64]:
    """(E,) What each event adds to the per mille held of all GPUs, of each of which no more than the whole counts."""
    attempts = columns.holdings
    held = attempts.gpus * attempts.milli
    deltas = np.zeros(len(columns.time_ms), np.int64)
    if attempts.shared.any():
        owner, gpu = slots_on_gpus(attempts)
        started = attempts.start_event[owner]
        left = attempts.end_event[owner]
        milli = attempts.milli[owner]
        ends = left != RUNNING
        at = np.concatenate((started, left[ends]))
        of = np.concatenate((gpu, gpu[ends]))
        change = np.concatenate((milli, -milli[ends]))
        order = np.lexsort((at, of))
        first = np.concatenate(([True], np.diff(of[order]) != 0))
        level = np.cumsum(change[order])
        level -= np.repeat((level - change[order])[first], np.diff(np.append(np.flatnonzero(first), len(at))))
        capped = np.minimum(level, WHOLE_MILLI)
        before = np.where(first, 0, np.concatenate(([0], capped[:-1])))
        np.add.at(deltas, at[order], capped - before)
        return deltas
    deltas[attempts.start_event] = held
    ended = attempts.end_event != RUNNING
    deltas[attempts.end_event[ended]] -= held[ended]  # a resize begins what it ends
    return deltas


def _has_kind(columns: EventColumns, *kinds: EventKind) -> NDArray[np.bool_]:
    return among(columns.kind, *map(KINDS.index, kinds))


def _binned(
    time_ms: NDArray[np.int64], level: NDArray[np.int64 | np.int32], edges: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Time-weighted mean and maximum, in each bin, of a level that each event sets until the next."""
    bins = len(edges) - 1
    if not len(time_ms):
        return np.zeros(bins, np.float32), np.zeros(bins, np.float32)
    # Of several events at one time only the last lasts.
    lasts = np.concatenate((time_ms[1:] != time_ms[:-1], [True]))
    time_ms, level = time_ms[lasts], level[lasts]
    area = np.zeros(len(time_ms), np.int64)  # in place: a million jobs have 24 MB of each array
    np.multiply(level[:-1], np.diff(time_ms), out=area[1:])
    np.cumsum(area, out=area)
    at_edge = np.searchsorted(time_ms, edges, side="right") - 1
    area_at_edge = area[at_edge] + level[at_edge] * (edges - time_ms[at_edge])
    widths = np.diff(edges)
    if bins == 1 and not widths[0]:
        return level[-1:].astype(np.float32), level[-1:].astype(np.float32)
    mean = np.diff(area_at_edge) / widths
    inside = np.searchsorted(time_ms, edges[:-1], side="left")
    # What begins with the last event lasts no time; the 0 gives bins behind all events a place to begin.
    lasting = np.append(level[: np.searchsorted(time_ms, edges[-1], side="left")], 0)
    peaks = np.maximum.reduceat(lasting, np.minimum(inside, len(lasting) - 1))
    # A bin without events of its own gets from `reduceat` the next level, which is not its own.
    empty = inside == np.searchsorted(time_ms, edges[1:], side="left")
    highest = np.where(empty, level[at_edge[:-1]], np.maximum(peaks, level[at_edge[:-1]]))
    return mean.astype(np.float32), highest.astype(np.float32)
