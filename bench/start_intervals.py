"""How often the start intervals of waiting jobs hold, and how wide they are, compared with two other ways.

A trace is replayed under EASY backfilling with run times that the history has seen. At a look, each waiting job that
has no interval yet gets one in three ways, from the same past:

- berth: trials of the scheduler on drawn run times (`StartForecast`);
- limits: from now until its start if every running job runs to its time limit, much as `squeue --start` predicts. The
  policy itself still goes by what the history believes;
- constant: the 10 % and the 90 % quantile of the last 300 waits from a look on.

A look happens when a job has to wait and the last look is `--every` hours ago. Coverage (wanted: 76 to 84 %) is judged
after the first 200 jobs. `first_pct` is the coverage of the first ones, of which there are `first`. `weeks_pct` is the
coverage of each week of starts with at least 20 of them. Widths are the mean in hours and the median.

Graham's table has time limits; those of Philly and Helios do not. There each job gets its run time times a factor drawn
log-uniformly from 1 to 20, rounded up to one of the limits that users ask for. `--trace synthetic` draws a trace with
applications. `--gpus` sets the size; Helios runs on its own nodes.
"""

from __future__ import annotations

import argparse
import os
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from random import Random
from statistics import fmean
from time import perf_counter

import numpy as np

from backtest_clusters import graham_jobs, nodes_of
from berth import traces
from berth.card_speeds import ALL_ALIKE
from berth.cluster import Cluster
from berth.cluster.outages import Recovery
from berth.engine.run import Run
from berth.engine.stretch import one_by_one
from berth.interference import no_interference
from berth.knowledge import History, Spread, User
from berth.model import EventKind, Job, Node
from berth.policies import Setting, make_policy
from berth.scheduler import StartForecast
from berth.scheduler.starts import drawn_starts
from harness import count, data_folder, save

HOUR_MS = 3_600_000
WEEK_MS = 7 * 24 * HOUR_MS
LIMITS_MS = [hours * HOUR_MS for hours in (1, 2, 4, 8, 12, 24, 48, 72, 168, 336, 720)]
SETTLED = 200
FEWEST = 20
GPUS = {"philly": 700, "graham": 80, "synthetic": 64}
"""By which jobs ask for about 80 % of the GPUs, of Philly in its eight busy weeks."""


def limited(job: Job, random: Random) -> Job:
    work_ms = job.work_ms or 0
    wanted_ms = work_ms * 20 ** random.random()
    return replace(
        job,
        time_limit_ms=max(LIMITS_MS[min(bisect_left(LIMITS_MS, wanted_ms), len(LIMITS_MS) - 1)], work_ms),
    )


def philly(random: Random, most: int) -> list[Job]:
    """Its virtual clusters as users, for it names none."""
    jobs = traces.read(data_folder() / "philly" / "sia_philly.csv.gz", nodes=())
    return [limited(replace(job, user=job.virtual_cluster), random) for job in islice(jobs, most)]


def synthetic(random: Random, most: int, gpus: int) -> list[Job]:
    """Users with applications whose run times are log-normal, in bursts, at a load of 0.9."""
    kinds = [
        (f"u{at % 20}", f"app{at}", random.lognormvariate(8.5, 1.3), random.choice((1, 1, 1, 2, 4, 8)))
        for at in range(60)
    ]
    load_s = fmean([seconds * 1.2 * size for _, _, seconds, size in kinds])
    now_s, jobs = 0.0, []
    for at in range(most):
        now_s += random.expovariate(0.9 * gpus / load_s)
        user, application, seconds, size = random.choice(kinds)
        work_ms = round(1000 * min(max(random.lognormvariate(np.log(seconds), 0.6), 10), 600 * 3600))
        jobs.append(
            limited(
                Job(f"{at}", round(1000 * now_s), work_ms, gpus=size, user=user, application=application),
                random,
            )
        )
    return jobs


class Told:
    """The intervals that one way has told, and how they held."""

    def __init__(self) -> None:
        self.of: dict[str, tuple[int, int]] = {}
        self.late = 0
        self.first: list[bool] = []
        self.hours: list[float] = []
        self.weeks: defaultdict[int, list[bool]] = defaultdict(list)

    def started(self, job_id: str, start_ms: int, *, settled: bool) -> None:
        low_ms, high_ms = self.of.pop(job_id, (None, None))
        if low_ms is None or high_ms is None:
            return
        held = low_ms <= start_ms <= high_ms
        if not settled:
            self.first.append(held)
            return
        self.weeks[start_ms // WEEK_MS].append(held)
        self.late += start_ms > high_ms
        self.hours.append((high_ms - low_ms) / HOUR_MS)

    def row(self) -> dict[str, object]:
        held = [each for week in self.weeks.values() for each in week]
        first = (
            {"first": len(self.first), "first_pct": round(100 * fmean(self.first), 1)} if self.first else {}
        )
        if not held:
            return {"jobs": 0, **first}
        return {
            "jobs": len(held),
            "coverage_pct": round(100 * fmean(held), 1),
            "later_pct": round(100 * self.late / len(held), 1),
            **first,
            "weeks_pct": [
                round(100 * fmean(week)) for _, week in sorted(self.weeks.items()) if len(week) >= FEWEST
            ],
            "mean_hours": round(fmean(self.hours), 2),
            "median_hours": round(float(np.median(self.hours)), 3),
        }


class Limits(User):
    """Believes that every job runs to its limit."""

    certain = False

    def run_ms(self, job: Job) -> Spread | None:
        spread = super().run_ms(job)
        return None if spread is None else spread._replace(low=spread.high, expected=spread.high)


def replay(
    jobs: Sequence[Job], nodes: Sequence[Node], policy_name: str, every_hours: float
) -> dict[str, object]:
    """Replay the jobs, and look at the queue now and then."""
    knowledge = History()
    policy = make_policy(policy_name, Setting(0, knowledge=knowledge))
    cluster = Cluster(nodes).emptied(set())
    run = Run(iter(jobs), cluster, policy, knowledge, no_interference, (), Recovery(), ALL_ALIKE, None)
    scheduler, forecast, limits, waits = run.scheduler, StartForecast(), Limits(), deque[int](maxlen=300)
    ways = {name: Told() for name in ("berth", "limits", "constant")}
    asked_ms: dict[str, int] = {}
    seconds: list[float] = []
    next_ms = settled = 0
    for event in one_by_one(run.batches()):
        job_id, now_ms = event.job.id, event.time_ms
        if event.kind is EventKind.START:
            forecast.started(job_id, now_ms)
            if job_id in asked_ms:
                settled += 1
                waits.append(now_ms - asked_ms.pop(job_id))
                for told in ways.values():
                    told.started(job_id, now_ms, settled=settled > SETTLED)
        elif event.kind is EventKind.SUBMIT and now_ms >= next_ms and scheduler.waits(job_id):
            next_ms = now_ms + round(every_hours * HOUR_MS)
            for (
                other
            ) in run.new_events:  # what starts at this instant no longer waits, and would be forgotten
                if other.kind is EventKind.START:
                    forecast.started(other.job.id, now_ms)
            began = perf_counter()
            found = forecast.intervals(scheduler, now_ms)
            seconds.append(perf_counter() - began)
            scheduler.knowledge = limits
            by_limits = drawn_starts(scheduler, now_ms, Random(0), lambda: False)
            scheduler.knowledge = knowledge
            low, high = np.quantile(waits, (0.1, 0.9)).tolist() if len(waits) >= FEWEST else (0, 0)
            for job in scheduler.queue:
                if job.id in asked_ms:
                    continue
                asked_ms[job.id] = now_ms
                if job.id in found:
                    ways["berth"].of[job.id] = found[job.id]
                if job.id in by_limits:
                    ways["limits"].of[job.id] = now_ms, by_limits[job.id]
                if high:
                    ways["constant"].of[job.id] = now_ms + round(low), now_ms + round(high)
    return {
        **{name: told.row() for name, told in ways.items()},
        "looks": len(seconds),
        "median_ms_a_forecast": round(1000 * float(np.median(seconds)), 1) if seconds else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", choices=("philly", "helios", "graham", "synthetic"), default="philly")
    parser.add_argument("--jobs", type=count, default=60_000, help="the first of Philly's, or those drawn")
    parser.add_argument("--gpus", type=count, default=0, help=f"by default {GPUS}")
    parser.add_argument("--seed", type=int, default=1, help="of the jobs and time limits that are drawn")
    parser.add_argument("--policy", default="easy+fifo+best-fit")
    parser.add_argument("--every", type=float, default=3.0, help="hours from a look to the next")
    given = parser.parse_args()
    gpus = given.gpus or GPUS.get(given.trace, 0)
    random = Random(given.seed)
    nodes: Sequence[Node] = nodes_of(gpus)
    if given.trace == "helios":
        trace = traces.read_trace(data_folder() / "helios" / "helios_venus_2vc_sept.csv.gz")
        nodes, jobs = trace.nodes or (), [limited(job, random) for job in trace]
    elif given.trace == "graham":
        jobs = list(graham_jobs()[0])
    else:
        jobs = philly(random, given.jobs) if given.trace == "philly" else synthetic(random, given.jobs, gpus)
    found = replay(jobs, nodes, given.policy, given.every)
    load = round(os.getloadavg()[0], 1)
    for name in ("berth", "limits", "constant"):
        print(f"{name:9}", found[name])
    print({name: found[name] for name in ("looks", "median_ms_a_forecast")}, "load", load)
    save("start_intervals", {**vars(given), "gpus": gpus, "load": load, **found})


if __name__ == "__main__":
    main()
