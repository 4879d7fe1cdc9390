"""Run the same jobs with the true run times, with those that users state, and with the truth plus errors."""

from dataclasses import replace

import berth

trace = berth.read_trace("synthetic:demo?jobs=1000&load=1.3&seed=1")
cluster = berth.Cluster(trace.nodes or ())
# Users who are careful ask for a time limit of twice what their job takes, every third for a day.
jobs = [
    replace(job, time_limit_ms=86_400_000 if number % 3 == 0 else 2 * (job.work_ms or 0))
    for number, job in enumerate(trace.jobs())
]
for policy in ("sjf+best-fit", "sjf-expected+best-fit", "fifo+best-fit"):
    for knowledge in ("oracle", "user", "noisy?run=1"):
        events = berth.simulate(jobs, cluster, policy, knowledge=knowledge)
        waits_s = [(event.time_ms - event.job.submit_ms) / 1000 for event in events if event.kind == "start"]
        print(f"{policy:<21}  {knowledge:<11}  mean wait {sum(waits_s) / len(waits_s):5,.0f} s")
