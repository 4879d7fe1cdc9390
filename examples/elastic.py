"""Resize jobs that can run on one to eight GPUs as others come and go, and see what that gains."""

import random

import berth
from berth.cluster.outages import Recovery
from berth.model import Job

HOUR_MS = 3_600_000
# Per mille of the speed on four: each GPU more is worth less than the one before.
SPEEDS = ((1, 400), (2, 650), (4, 1000), (8, 1300))
draw = random.Random(1)
jobs = [
    Job(
        f"train{number}",
        submit_ms=number * HOUR_MS // 3,
        work_ms=draw.choice((1, 2, 4)) * HOUR_MS,
        gpus=4,
        elastic=SPEEDS,
        keeps_work=True,
    )
    for number in range(48)
]
restart = Recovery(restart_ms=60_000)  # what each change of size costs a job
result = berth.compare(jobs, ["fifo", "easy", "elastic"], cluster="2x8:V100", recovery=restart)
for run in result.runs:
    mean_h, all_h = run.summary.completion_time_s.mean / 3600, run.summary.makespan_s / 3600
    print(
        f"{run.policy:8} a job takes {mean_h:4.1f} h in the mean, all are done after {all_h:4.1f} h;"
        f" {run.summary.evictions} changes of size"
    )
