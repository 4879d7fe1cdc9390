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
    Schedule,
    Timeline,
    film,
    schedule,
    timeline,
)


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
