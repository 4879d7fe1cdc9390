"""Compare three policies on a synthetic workload, as a table."""

import berth

trace = berth.read_trace("synthetic:demo?jobs=200")
result = berth.compare(trace, policies=["fifo+first-fit", "easy+fifo+best-fit", "fgd"], seeds=3)
print(result.table())
