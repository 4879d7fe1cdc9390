"""Place jobs on cards of different speed by the table of Gavel's measurements, and see what that gains."""

from dataclasses import replace

import berth
from berth.card_speeds import card_speeds

speeds = card_speeds("gavel")
names = [
    "A3C",
    "CycleGAN",
    "LM (batch size 80)",
    "Recommendation (batch size 512)",
    "ResNet-50 (batch size 64)",
]
jobs = [
    replace(job, application=names[number % len(names)], models=())
    for number, job in enumerate(berth.read_trace("synthetic:demo?jobs=300&seed=4&load=2.5").jobs())
]
policies = ["fifo+first-fit", "fifo+fastest-fit", "sjf-expected+fastest-fit", "gavel+fastest-fit"]
result = berth.compare(jobs, policies, cluster="4x8:K80,2x8:P100,2x8:V100", speeds=speeds)
for run in result.runs:
    done = run.summary.completion_time_s
    print(
        f"{run.policy:26} mean completion {done.mean / 60:5.0f} min, makespan {run.summary.makespan_s / 3600:4.1f} h"
    )
