"""Fair share among many users: processor time of 20,000 jobs of 5,000 users on 64 nodes of 8 GPUs.

`python bench/fair_share.py`; asked are at most 3 s.
"""

from __future__ import annotations

import random
import time

from berth.cluster import Cluster
from berth.engine import simulate
from berth.model import Job, Node
from harness import save

JOBS, USERS = 20_000, 5_000


def main() -> None:
    draw = random.Random(1)
    jobs = [
        Job(
            f"j{n}", 3 * n, draw.randrange(1000, 20_000), user=f"u{draw.randrange(USERS)}",
            gpus=draw.choice((1, 1, 2, 4)),
        )
        for n in range(JOBS)
    ]  # fmt: skip
    nodes = [Node(f"n{n}", 8) for n in range(64)]
    found = {}
    for policy in ("fifo", "fair-share"):
        list(simulate(jobs[:300], Cluster(nodes), policy))
        begin = time.process_time()
        list(simulate(jobs, Cluster(nodes), policy))
        found[policy] = time.process_time() - begin
        print(f"{JOBS:,} jobs of {USERS:,} users, {policy}: {found[policy]:.2f} s of CPU")
    save("fair_share", found)


if __name__ == "__main__":
    main()
