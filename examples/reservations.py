"""Reserve eight GPUs for a course from hour 8 to hour 10, with and without an hour of draining before."""

import random

from berth.cluster import Cluster
from berth.engine import simulate
from berth.model import Job, Node, Reservation

HOUR_MS = 3_600_000
draw = random.Random(7)
jobs = [
    Job(f"job{number}", number * HOUR_MS // 6, draw.choice((1, 2, 3)) * HOUR_MS // 2, user="others", gpus=4)
    for number in range(90)
]
jobs += [Job(f"course{seat}", 8 * HOUR_MS, HOUR_MS // 2, user="course", gpus=1) for seat in range(16)]
jobs.sort(key=lambda job: job.submit_ms)
kept = {
    "nothing reserved": [],
    "from hour 8": [Reservation((1,), ("course",), 8 * HOUR_MS, 10 * HOUR_MS)],
    "drained before": [Reservation((1,), ("course",), 8 * HOUR_MS, 10 * HOUR_MS, drain_ms=HOUR_MS)],
}
for said, reservations in kept.items():
    cluster = Cluster([Node("n0", gpus=8), Node("n1", gpus=8)])
    waits: dict[str, list[float]] = {"course": [], "others": []}
    evicted = 0
    for event in simulate(jobs, cluster, "fifo", reservations=reservations):
        if event.kind == "start" and event.attempt == 1:
            waits[event.job.user].append((event.time_ms - event.job.submit_ms) / HOUR_MS)
        evicted += event.kind == "evict"
    course, others = (sum(hours) / len(hours) for hours in waits.values())
    print(f"{said:17} the course waits {course:4.1f} h, others {others:4.1f} h; {evicted} jobs evicted")
