"""Run pipelines of jobs through a night of maintenance, and count the deadlines that each order misses."""

import random

import berth
from berth.model import Job, Outage

HOUR_MS = 3_600_000
draw = random.Random(4)
jobs: list[Job] = []
for number in range(48):
    submit_ms = number * HOUR_MS // 4
    hours = draw.choice((1, 2, 4))
    within_ms = (2 * hours + draw.choice((2, 8, 24))) * HOUR_MS
    work_ms = hours * HOUR_MS
    # A job without a deadline would come last: this one has to end while there is time for the next.
    prepare = Job(f"prepare{number}", submit_ms, HOUR_MS // 2, gpus=1, deadline_ms=within_ms - work_ms)
    train = Job(f"train{number}", submit_ms, work_ms, gpus=4, deadline_ms=within_ms, after=(prepare.id,))
    report = Job(f"report{number}", submit_ms, HOUR_MS // 10, gpus=1, after=(train.id,))
    jobs += [prepare, train, report]
# Node g1 is drained for an hour from hour 7 on, and away from hour 8 to hour 12.
maintenance = [Outage(1, 8 * HOUR_MS, 12 * HOUR_MS, drain_ms=HOUR_MS)]
result = berth.compare(jobs, ["fifo", "sjf", "deadline-first"], cluster="2x8:V100", outages=maintenance)
for run in result.runs:
    missed = run.summary.deadlines_missed_pct
    print(
        f"{run.policy:15} {missed:4.0f} % of deadlines missed, {run.summary.evictions} evicted by maintenance"
    )
