"""What is kept of one run: small arrays that a worker can send back and plots are drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from berth.model import Node
from berth.statistics.columns import EventColumns
from berth.statistics.cost import Prices
from berth.statistics.measures import completion_time_s, waiting_time_s
from berth.statistics.real_use import RealUse
from berth.statistics.spread import Cdf, cdf
from berth.statistics.summary import Summary, summarise
from berth.statistics.timeline import (
    Film,
    Occupancy,
    Schedule,
    Timeline,
    film,
    occupancy_at,
    schedule,
    timeline,
)

MAP_TIMES = 5


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
    occupancies: tuple[Occupancy, ...]
    """The cluster at a few times, in order of time."""
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
    at_ms: Sequence[int] | None = None,
    use: RealUse | None = None,
    prices: Prices | None = None,
) -> Run:
    """Reduce the columns of one run to what is kept of it.

    The cluster is kept as it was at each time of `at_ms`. By default these are five times spread over the
    submissions, and so the same for every policy on one trace. `use` is what `real_use` makes of the run, where the
    model of interference that it ran under knows profiles; `prices` say what it costs.
    """
    times = _spread_over_submissions(columns) if at_ms is None else sorted(at_ms)
    return Run(
        policy=policy,
        seed=seed,
        summary=summarise(columns, nodes, use, prices),
        timeline=timeline(columns, nodes),
        waiting=cdf(waiting_time_s(columns)),
        completion=cdf(completion_time_s(columns)),
        occupancies=tuple(occupancy_at(columns, nodes, time_ms) for time_ms in times),
        film=film(columns, nodes),
        schedule=schedule(columns, nodes),
    )


def _spread_over_submissions(columns: EventColumns) -> list[int]:
    if not len(columns.submit_ms):
        return []
    first, last = int(columns.submit_ms.min()), int(columns.submit_ms.max())
    return sorted({first + (last - first) * step // MAP_TIMES for step in range(1, MAP_TIMES + 1)})
