"""Compare EASY backfilling with a strict queue: what backfilling gains and what it costs."""

import berth

trace = berth.read_trace("synthetic:demo?jobs=300&seed=4&load=1.6")
result = berth.compare(trace, policies=["fifo+best-fit", "easy+best-fit", "easy+sjf+best-fit"])
for run in result.runs:
    waits = run.summary.waiting_time_s
    print(f"{run.policy:18} mean wait {waits.mean:6.0f} s, longest {waits.maximum:6.0f} s")
