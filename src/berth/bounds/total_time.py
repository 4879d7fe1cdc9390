"""No schedule of jobs that share a GPU ends sooner: a linear program over all that may run together.

A schedule spends so much time in each *configuration*, a set of moments of applications that run together. However
it is ordered, each job must do its work in each of its moments, at the speed that the configuration gives it. The
least total time in which that can be done, times split at will, is a bound below every schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from berth.bounds.configurations import configurations
from berth.bounds.highs import Maximum
from berth.errors import SettingError
from berth.interference import Speeds
from berth.model import GpuModel, Job, Profile

__all__ = ["TimeBound", "time_bound"]

ROUNDS = 200
NEW_ROWS = 60
TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class TimeBound:
    """What no schedule is below."""

    total_ms: float
    """The larger of the next two."""
    work_ms: float
    """What the linear program says: all work, on all GPUs, at the best mix of configurations."""
    longest_ms: float
    """The longest job's run time alone."""
    alone_ms: float
    """All run times alone, one after the other, on so many GPUs: what there is to win from."""


def time_bound(
    jobs: Sequence[Job],
    profiles: Mapping[str, Profile],
    speeds: Speeds,
    gpu: GpuModel,
    *,
    gpus: int = 1,
    segments: int = 40,
) -> TimeBound:
    """A bound below the total time of jobs, from the first start to the last end, on so many GPUs of one model.

    It holds for every schedule of the simulator in which each job runs once from its beginning to its end on one GPU,
    whatever starts when and whoever waits, as long as no more than ten share a GPU. Schedules that run out of memory
    and begin again only take longer. It holds for preemption without loss, too: the program does not know the order
    of a job's moments, and that is where it is loose.

    Proof. Cut a schedule into the stretches between two questions to the model of speeds; in each, every GPU has one
    list of tenants, in segments that fit beside one another, since a segment takes the least memory of its rows. Count
    a stretch for its configuration. Nobody in it is faster than `segment_speeds` says (proof there). What a job does
    while it is asked about in a segment adds up to its work there, but for the millisecond that it may be late: it
    enters a segment by less than 1 ms of work too late and leaves it no sooner than all is done. So the work counted
    for a segment is at least `Configurations.work_ms`, and the lengths of the stretches are a solution of the program.

    Cutting planes on the dual: a price for the work of each segment such that no configuration earns more than 1;
    the prices are scaled down to where none does, so that the bound holds however exactly the program was solved.
    """
    if gpus < 1 or not jobs:
        raise SettingError(f"a bound for {len(jobs)} jobs on {gpus} GPUs; expected 1 or more of each")
    listed = configurations(profiles, jobs, speeds, gpu, segments=segments)
    work, tenants, speed = listed.work_ms, listed.tenants, listed.speeds_milli / 1000
    number = len(listed.usage)
    cuts: list[int] = []
    known: set[int] = set()
    prices = np.zeros(number)
    for _ in range(ROUNDS):
        model = Maximum()
        for segment in range(number):
            model.variable(1.0, float(work[segment]))
        for row in cuts:
            entries: dict[int, float] = {}
            for segment, part in zip(tenants[row].tolist(), speed[row].tolist(), strict=True):
                if segment < number:
                    entries[segment] = entries.get(segment, 0.0) + part
            model.row(sorted(entries.items()), upper=1.0)
        prices = np.clip(model.solve(60.0, 1, integer=False)[0], 0.0, 1.0)
        earned = (np.append(prices, 0.0)[tenants] * speed).sum(axis=1)
        worst = np.argsort(-earned, kind="stable")[:NEW_ROWS]
        new = [int(row) for row in worst if earned[row] > 1 + TOLERANCE and int(row) not in known]
        if not new:
            break
        cuts += new
        known.update(new)
    earned_most = float((np.append(prices, 0.0)[tenants] * speed).sum(axis=1).max(initial=1.0))
    least_ms = float(prices @ work) / max(1.0, earned_most) / gpus
    longest_ms = float(max((job.work_ms for job in jobs), default=0))
    return TimeBound(
        max(least_ms, longest_ms), least_ms, longest_ms, float(sum(job.work_ms for job in jobs)) / gpus
    )
