"""How long a trial of the scheduler takes: to begin it, to ask the policy in it, and to undo it.

    python bench/trials.py [--runs 25]

Clusters of several sizes with GPUs that are all taken, and a queue. Each trial releases one running job and asks
`easy+priority+best-fit`. Wall-clock time, medians over runs. Writes bench/results/trials.json.
"""

from __future__ import annotations

import argparse
from statistics import median
from time import perf_counter

from berth.cluster import Cluster
from berth.gpu_models import GPU_MODELS
from berth.knowledge import User
from berth.model import Job, Node
from berth.policies import Setting, make_policy
from berth.scheduler import Scheduler
from harness import machine, save

GPUS = 8
SIZES = ((1, 20), (10, 200), (70, 2_000), (550, 20_000))
"""Nodes, and jobs that wait."""


def busy(nodes: int, waiting: int) -> Scheduler:
    """A scheduler whose GPUs are all taken."""
    knowledge = User()
    cluster = Cluster([Node(f"n{at}", GPUS, GPU_MODELS["A100-80"]) for at in range(nodes)])
    policy = make_policy("easy+priority+best-fit", Setting(knowledge=knowledge))
    scheduler = Scheduler(cluster, policy, knowledge)
    for at in range(GPUS * nodes + waiting):
        job = Job(f"j{at}", at, None, user=f"u{at % 50}", gpus=1, priority=at % 3, estimate_ms=3_600_000 + at)
        scheduler.submit(job)
    for _ in scheduler.decide(0):
        pass
    return scheduler


def main() -> None:
    """Print a row a size."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--runs", type=int, default=25)
    runs = arguments.parse_args().runs
    rows = []
    print(f"{'running':>8}{'waiting':>8}{'begin':>12}{'ask':>12}{'undo':>12}")
    for nodes, waiting in SIZES:
        scheduler = busy(nodes, waiting)
        parts: list[tuple[float, float, float]] = []
        for run in range(runs):
            job_id = list(scheduler.cluster.running)[run % len(scheduler.cluster.running)]
            start = perf_counter()
            with scheduler.trial():
                begun = perf_counter()
                scheduler.release(job_id, 1000)
                assert len(list(scheduler.decide(1000))) >= 1
                asked = perf_counter()
            parts.append((begun - start, asked - begun, perf_counter() - asked))
        begin_ms, ask_ms, undo_ms = (round(1000 * median(part), 2) for part in zip(*parts, strict=True))
        running = len(scheduler.cluster.running)
        rows.append(
            {
                "running": running,
                "waiting": waiting,
                "begin_ms": begin_ms,
                "ask_ms": ask_ms,
                "undo_ms": undo_ms,
            }
        )
        print(f"{running:>8,}{waiting:>8,}{begin_ms:>9.2f} ms{ask_ms:>9.2f} ms{undo_ms:>9.2f} ms")
    save("trials", {"machine": machine(), "runs": runs, "rows": rows})


if __name__ == "__main__":
    main()
