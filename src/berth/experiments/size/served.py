"""How each job of a run was served, and how a number of a run follows from that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from berth.arrays import BoolArray, FloatArray, IntArray
from berth.errors import SettingError
from berth.events import FINISH
from berth.model import Job, Node
from berth.statistics import EventColumns
from berth.statistics.measures import SLOWDOWN_BOUND_MS

NAMED = 5
"""How many of the jobs that were not served are named."""


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """The J jobs of one run, in order of their submission."""

    submit_ms: IntArray  # (J,)
    wait_s: FloatArray  # (J,)
    """To the last start; without end for a job that never started."""
    slowdown: FloatArray  # (J,)
    """Bounded slowdown; without end for a job that did not finish."""
    unserved: BoolArray  # (J,)
    """Whether the job did not finish."""
    first_unserved: tuple[str, ...]
    """The ids of the first of them."""
    group: IntArray  # (J,)
    """Place of its user or partition in `groups`; 0 where there are no groups."""
    groups: tuple[str, ...]


def served(columns: EventColumns, nodes: Sequence[Node], jobs: Sequence[Job], *, by: str = "") -> Served:
    """How the jobs of a run were served, in groups `by` user or partition."""
    count = len(columns.job_ids)
    last_start_ms = np.full(count, -1, np.int64)
    np.maximum.at(last_start_ms, columns.attempts.job, columns.attempts.start_ms)
    wait_s = np.where(last_start_ms >= 0, (last_start_ms - columns.submit_ms) / 1000.0, np.inf)
    finished = columns.kind == FINISH
    end_ms = np.full(count, -1, np.int64)
    end_ms[columns.job[finished]] = columns.time_ms[finished]
    unserved = columns.last_kind != FINISH
    took = (end_ms - columns.submit_ms) / np.maximum(columns.work_ms, SLOWDOWN_BOUND_MS)
    names = {"user": columns.users, "partition": columns.virtual_clusters}.get(by)
    groups, group = np.unique(np.array(names, dtype=str), return_inverse=True) if names else (("",), None)
    return Served(
        columns.submit_ms,
        wait_s,
        np.where(unserved, np.inf, np.maximum(took, 1.0)),
        unserved,
        tuple(columns.job_ids[at] for at in np.flatnonzero(unserved)[:NAMED].tolist()),
        np.zeros(count, np.int64) if group is None else group.astype(np.int64),
        tuple(str(name) for name in groups),
    )


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of a run that is to be kept: the smaller the better."""

    name: str
    """`p50-wait`, `p90-wait`, `mean-wait` or `slowdown`."""
    in_words: str
    quantile: float | None
    """None: the mean."""
    unit: str

    def values(self, run: Served) -> FloatArray:
        """The value of each job."""
        return run.slowdown if self.name == "slowdown" else run.wait_s

    def of(self, values: FloatArray) -> float:
        """The number; without end where too many jobs were not served."""
        return self.weighted(np.sort(values), np.ones(len(values), np.int64))

    def weighted(self, ordered: FloatArray, weights: IntArray) -> float:
        """The number of values in ascending order, each as often as its weight says."""
        until = np.cumsum(weights)
        if not len(until) or not until[-1]:
            return 0.0
        if self.quantile is None:
            return float(np.dot(ordered[weights > 0], weights[weights > 0]) / until[-1])
        place = self.quantile * (int(until[-1]) - 1)
        ranks = (int(place), min(int(place) + 1, int(until[-1]) - 1))
        low, high = ordered[np.searchsorted(until, ranks, side="right")]
        between = place - int(place)
        return float(low if between == 0 else low + (high - low) * between if np.isfinite(high) else np.inf)


MEASURES = {
    each.name: each
    for each in (
        Measure("p50-wait", "median wait", 0.5, "s"),
        Measure("p90-wait", "90th percentile of waits", 0.9, "s"),
        Measure("mean-wait", "mean wait", None, "s"),
        Measure("slowdown", "mean bounded slowdown", None, ""),
    )
}


def measure_named(name: str) -> Measure:
    """The measure of that name. Raises SettingError if there is none."""
    if name not in MEASURES:
        raise SettingError(f"no measure '{name}' to keep; there are {', '.join(MEASURES)}")
    return MEASURES[name]
