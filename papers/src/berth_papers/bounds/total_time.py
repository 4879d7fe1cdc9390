"""No schedule of jobs that share a GPU ends sooner: a linear program over all that may run together.

A schedule spends some time in each *configuration*, a set of moments of applications that run together. However
it is ordered, each job must do its work in each of its moments, at the speed that the configuration gives it. The
least total time in which that can be done, times split at will, is a bound below every schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from berth.errors import SettingError
from berth.interference import Speeds
from berth.model import GpuModel, Job, Profile, work_of
from berth_papers.bounds.configurations import configurations
from berth_papers.bounds.highs import Maximum

Floats = NDArray[np.float64]

ROUNDS = 200
NEW_ROWS = 60
TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class TimeBound:
    """What no schedule is below."""

    total_ms: float
    """The larger of `work_ms` with `ramps_ms`, and `longest_ms`."""
    work_ms: float
    """What the linear program says: all work, on all GPUs, at the best mix of configurations."""
    longest_ms: float
    """The longest job's run time alone."""
    alone_ms: float
    """All run times alone, one after the other, on this many GPUs: what sharing can improve on."""
    ramps_ms: float = 0.0
    """What is lost at the begin and the end, when the best mix of configurations cannot run."""


def time_bound(
    jobs: Sequence[Job],
    profiles: Mapping[str, Profile],
    speeds: Speeds,
    gpu: GpuModel,
    *,
    gpus: int = 1,
    segments: int = 40,
) -> TimeBound:
    """A bound below the total time of jobs, from the first start to the last end, on `gpus` GPUs of one model.

    It holds for every schedule of the simulator in which each job runs once from its beginning to its end on one GPU,
    whatever starts when and whatever waits, as long as no more than ten share a GPU. Schedules that run out of memory
    and begin again only take longer. It holds for preemption without loss, too: the program does not know the order
    of a job's moments, and that is where it is loose.

    Proof. Cut a schedule into the stretches between two questions to the model of speeds; in each, every GPU has one
    list of tenants, in segments that fit beside one another, since a segment takes the least memory of its rows. Count
    a stretch for its configuration. No tenant in it is faster than `segment_speeds` says (proof there). What a job does
    while it is asked about in a segment adds up to its work there, but for the millisecond that it may be late: it
    enters a segment by less than 1 ms of work too late and leaves it no sooner than all is done. So the work counted
    for a segment is at least `Configurations.work_ms`, and the lengths of the stretches are a solution of the program.

    Cutting planes on the dual: a price for the work of each segment such that no configuration earns more than 1;
    the prices are scaled down to where none does, so that the bound holds however exactly the program was solved.

    At the begin and the end it is tighter. Let a schedule take T, and let a job's work earn its segment's price. In
    all, Σ prices × work is earned. No moment earns more than 1 a GPU. As none is faster than alone, a job that runs t
    after the begin has done at most t of its work, and one that runs t before the end has no more than t left (of a
    segment that it is asked about, up to a millisecond less): a moment
    earns at most a(t), the most of all configurations of segments that a job can be in by then, and c(t) likewise
    from the end. A try that runs out of memory earns nothing, and a configuration less some of its tenants, which that
    does not slow, is a configuration. So for any X ≤ T ÷ 2, and T is no less than the bound without this:
    Σ prices × work ≤ gpus × (∫a + (T − 2X) + ∫c), both from 0 to X, which is
    T ≥ Σ prices × work ÷ gpus + ∫(1 − a) + ∫(1 − c).
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
    earned = (np.append(prices, 0.0)[tenants] * speed).sum(axis=1)
    most = max(1.0, float(earned.max(initial=1.0)))
    earned /= most
    least_ms = float(prices @ work) / most / gpus
    longest_ms = float(max((work_of(job) for job in jobs), default=0))
    half_ms = max(least_ms, longest_ms) / 2
    ramps_ms = sum(
        _lost_ms(np.append(least, 0.0)[tenants].max(axis=1), earned, half_ms)
        for least in (listed.begins_ms, listed.ends_ms)
    )
    alone_ms = float(sum(work_of(job) for job in jobs)) / gpus
    return TimeBound(max(least_ms + ramps_ms, longest_ms), least_ms, longest_ms, alone_ms, ramps_ms)


def _lost_ms(from_ms: Floats, earned: Floats, until_ms: float) -> float:
    """∫(1 − a) from 0 to `until_ms`, a(t) the most that is earned by configurations that there are from t on."""
    order = np.argsort(from_ms, kind="stable")
    times = np.clip(np.concatenate([[0.0], from_ms[order], [until_ms]]), 0.0, until_ms)
    most = np.maximum.accumulate(np.concatenate([[0.0], earned[order]]))
    return float(((1.0 - most) * np.diff(times)).sum())
