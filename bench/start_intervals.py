"""How often the start intervals of waiting jobs hold, and how wide they are, compared with two other ways.

A trace is replayed under EASY backfilling with run times that the history has seen. Each job that waits at its
submission gets a predicted start in three ways, from the same past:

- berth: trials of the scheduler on drawn run times (`StartForecast`);
- limits: from now until its start if every running job runs to its time limit, much as `squeue --start` predicts. The
  policy itself still goes by what the history believes;
- constant: the 10 % and the 90 % quantile of the last 300 waits.

Coverage (wanted: 76 to 84 %) is judged after the first 200 jobs that waited, and `first_200_pct` on those. Widths are
the mean in hours and the median. Philly's trace has no time limits. Each job gets its run time times a factor drawn
log-uniformly from 1 to 20, rounded up to one of the limits that users ask for. `--trace synthetic` draws a trace with
applications; `--gpus` sets the size.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import os
from bisect import bisect_left
from collections import deque
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from statistics import fmean
from time import perf_counter

import numpy as np

from berth.card_speeds import ALL_ALIKE
from berth.cluster import Cluster
from berth.cluster.outages import Recovery
from berth.engine.run import Run
from berth.interference import no_interference
from berth.knowledge import History, Spread, User
from berth.model import EventKind, Job, Node
from berth.policies import Setting, make_policy
from berth.scheduler import StartForecast
from harness import count, data_folder, save

HOUR_MS = 3_600_000
LIMITS_MS = [hours * HOUR_MS for hours in (1, 2, 4, 8, 12, 24, 48, 72, 168, 336, 720)]
SETTLED = 200


def limited(job: Job, random: Random) -> Job:
    work_ms = job.work_ms or 0
    wanted_ms = work_ms * 20 ** random.random()
    return replace(
        job,
        time_limit_ms=max(LIMITS_MS[min(bisect_left(LIMITS_MS, wanted_ms), len(LIMITS_MS) - 1)], work_ms),
    )


def philly(random: Random, most: int, compress: float) -> list[Job]:
    path = data_folder() / "philly" / "sia_philly.csv.gz"
    with gzip.open(path, "rt") as lines:
        rows = [*csv.DictReader(line for line in lines if line.strip())]
    when_ms = [
        int(datetime.fromisoformat(row["timestamp"]).replace(tzinfo=UTC).timestamp() * 1000) for row in rows
    ]
    order = sorted(range(len(rows)), key=lambda at: (when_ms[at], at))[:most]
    first_ms = when_ms[order[0]]
    jobs = []
    for at in order:
        row = rows[at]
        work_ms = max(1000, round(1000 * float(row["duration"])))
        submit_ms = round((when_ms[at] - first_ms) / compress)
        job = Job(f"{at}", submit_ms, work_ms, gpus=int(row["num_gpus"]), user=row["cluster"])
        jobs.append(limited(job, random))
    return jobs


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
    def __init__(self) -> None:
        self.of: dict[str, tuple[int, int]] = {}
        self.held: list[bool] = []
        self.late = 0
        self.first: list[bool] = []
        self.hours: list[float] = []

    def started(self, job_id: str, start_ms: int, *, settled: bool) -> None:
        interval = self.of.pop(job_id, None)
        if interval is not None and settled:
            self.held.append(interval[0] <= start_ms <= interval[1])
            self.late += start_ms > interval[1]
            self.hours.append((interval[1] - interval[0]) / HOUR_MS)
        elif interval is not None:
            self.first.append(interval[0] <= start_ms <= interval[1])

    def row(self) -> dict[str, float]:
        first = {"first_200_pct": round(100 * float(np.mean(self.first)), 1)} if self.first else {}
        if not self.held:
            return {"jobs": 0, **first}
        return {
            "jobs": len(self.held),
            "coverage_pct": round(100 * float(np.mean(self.held)), 1),
            "later_pct": round(100 * self.late / len(self.held), 1),
            **first,
            "mean_hours": round(float(np.mean(self.hours)), 2),
            "median_hours": round(float(np.median(self.hours)), 3),
        }


class Limits(User):
    """Believes that every job runs to its limit."""

    certain = False

    def run_ms(self, job: Job) -> Spread | None:
        spread = super().run_ms(job)
        return None if spread is None else spread._replace(low=spread.high, expected=spread.high)


def replay(jobs: list[Job], gpus: int, policy_name: str, every: int) -> dict[str, object]:
    """Replay the jobs, and ask at every n-th submission of a job that waits."""
    nodes = [Node(f"n{at}", 8, None, 64_000, 64_000) for at in range(gpus // 8)]
    knowledge, recovery = History(), Recovery()
    policy = make_policy(policy_name, Setting(0, knowledge=knowledge))
    cluster = Cluster(nodes).emptied(set())
    run = Run(iter(jobs), cluster, policy, knowledge, no_interference, (), recovery, ALL_ALIKE, None)
    scheduler, forecast, limits, waits = run.scheduler, StartForecast(), Limits(), deque[int](maxlen=300)
    ways = {name: Told() for name in ("berth", "limits", "constant")}
    asked_ms: dict[str, int] = {}
    seconds: list[float] = []
    waited = settled = 0
    for event in run.events():
        job_id, now_ms = event.job.id, event.time_ms
        if event.kind is EventKind.START and job_id in asked_ms:
            settled += 1
            waits.append(now_ms - asked_ms.pop(job_id))
            forecast.started(job_id, now_ms)
            for told in ways.values():
                told.started(job_id, now_ms, settled=settled > SETTLED)
        elif event.kind is EventKind.SUBMIT and scheduler.waits(job_id):
            waited += 1
            if waited % every:
                continue
            for (
                other
            ) in run.new_events:  # what starts at this instant no longer waits, and would be forgotten
                if other.kind is EventKind.START:
                    forecast.started(other.job.id, now_ms)
            began = perf_counter()
            found = forecast.intervals(scheduler, now_ms)
            seconds.append(perf_counter() - began)
            scheduler.knowledge = limits
            by_limits = StartForecast().intervals(scheduler, now_ms)
            scheduler.knowledge = knowledge
            asked_ms[job_id] = now_ms
            if job_id in found:
                ways["berth"].of[job_id] = found[job_id].from_ms, found[job_id].to_ms
            if job_id in by_limits:
                ways["limits"].of[job_id] = now_ms, by_limits[job_id].to_ms
            if len(waits) >= 20:
                low, high = np.quantile(waits, (0.1, 0.9)).tolist()
                ways["constant"].of[job_id] = now_ms + round(low), now_ms + round(high)
    return {
        **{name: told.row() for name, told in ways.items()},
        "asked": len(seconds),
        "median_ms_a_forecast": round(1000 * float(np.median(seconds)), 1) if seconds else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", choices=("philly", "synthetic"), default="philly")
    parser.add_argument("--jobs", type=count, default=20_000)
    parser.add_argument(
        "--gpus", type=count, default=0, help="by default 800 for Philly and 64 for synthetic"
    )
    parser.add_argument(
        "--compress", type=float, default=1.0, help="divide Philly's times of submission by this"
    )
    parser.add_argument("--policy", default="easy+fifo+best-fit")
    parser.add_argument(
        "--every", type=count, default=10, help="ask at every n-th submission of a job that waits"
    )
    given = parser.parse_args()
    gpus = given.gpus or (800 if given.trace == "philly" else 64)
    random = Random(1)
    jobs = (
        philly(random, given.jobs, given.compress)
        if given.trace == "philly"
        else synthetic(random, given.jobs, gpus)
    )
    found = replay(jobs, gpus, given.policy, given.every)
    load = round(os.getloadavg()[0], 1)
    for name in ("berth", "limits", "constant"):
        print(f"{name:9}", found[name])
    print({name: found[name] for name in ("asked", "median_ms_a_forecast")}, "load", load)
    save("start_intervals", {**vars(given), "gpus": gpus, "load": load, **found})


if __name__ == "__main__":
    main()
