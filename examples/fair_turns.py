"""Compare the waits of two users under three policies: one submits fifty jobs, then the other five."""

from statistics import fmean

import berth

MINUTE_MS = 60_000
flood = [berth.Job(f"ann-{n}", 0, 10 * MINUTE_MS, user="ann") for n in range(50)]
few = [berth.Job(f"bob-{n}", MINUTE_MS, 10 * MINUTE_MS, user="bob") for n in range(5)]
cluster = berth.Cluster(berth.read_nodes("1x4:V100"))
for policy in ("fifo", "fair-share", "limits?user_running=3+fifo"):
    waits: dict[str, list[float]] = {"ann": [], "bob": []}
    for event in berth.simulate([*flood, *few], cluster, policy):
        if event.kind == "start":
            waits[event.job.user].append((event.time_ms - event.job.submit_ms) / MINUTE_MS)
    print(f"{policy:26} ann waits {fmean(waits['ann']):5.1f} minutes, bob {fmean(waits['bob']):5.1f}")
