"""How long a cluster of 5,000 nodes with 8 GPUs each and 50,000 running jobs takes to take over a changed node.

    python bench/changed_node.py [--runs 25]

Each change is one call of `nodes_changed` with all nodes: as other objects of the same values, as a driver that asks a
resource manager has, and as the same objects. Beside them the cluster is built anew and all jobs are placed on it.
An added node takes the row of one that vanished, or a new one, for which the arrays are made anew. The last rows call
the scheduler, which also asks of every waiting job whether it could still start. Processor time, medians over runs.
Writes bench/results/changed_node.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from time import process_time

from berth.cluster import Cluster
from berth.gpu_models import GPU_MODELS
from berth.knowledge import User
from berth.model import FOREVER_MS, GpuModel, GpuSlot, Job, Node, Placement, Share
from berth.policies import Setting, make_policy
from berth.scheduler import Scheduler
from harness import machine, save

NODES, GPUS, JOBS = 5_000, 8, 50_000
ASKED_MS = 5.0
AT = 2_500
"""The node that changes; jobs run on it."""


def nodes() -> list[Node]:
    """Nodes of four models and a label a rack."""
    models = [GPU_MODELS[name] for name in ("V100", "T4", "A100-80", "H100")]
    return [
        Node(f"node-{at:04d}", GPUS, models[at % 4], 96_000, 512_000, (f"rack={at % 50}",))
        for at in range(NODES)
    ]


def placements() -> list[Placement]:
    """Jobs on half a GPU each, on all of the first nodes and in part on the last."""
    share = Share(500, 2_000)
    return [
        Placement(
            Job(f"job-{at}", 0, FOREVER_MS, share=share, cpu_milli=4_000, mem_mib=10_000),
            (GpuSlot(at % NODES, at // NODES % GPUS),),
            share,
        )
        for at in range(JOBS)
    ]


def built(there: list[Node], starts: list[Placement]) -> Cluster:
    """The cluster with all jobs on it."""
    cluster = Cluster(there)
    for start in starts:
        cluster.place(start)
    return cluster


def took_ms(task: Callable[[], object]) -> float:
    """Processor time of a call."""
    begin = process_time()
    task()
    return (process_time() - begin) * 1000


def through_scheduler(
    change: Callable[[int], list[Node]],
    there: list[Node],
    starts: list[Placement],
    waiting: int,
    types: int,
    runs: int,
) -> dict[str, float]:
    """A changed node as the scheduler takes it over, while `jobs` jobs of `types` request types wait."""
    knowledge = User()
    scheduler = Scheduler(
        built(there, starts), make_policy("fifo+first-fit", Setting(knowledge=knowledge)), knowledge
    )
    for at in range(waiting):
        scheduler.submit(Job(f"waits-{at}", 0, None, cpu_milli=1 + at % types))
    times = []
    for run in range(runs):
        now = [replace(node) for node in change(run)]
        times.append(took_ms(partial(scheduler.nodes_changed, now, 0)))
    return {"median_ms": round(median(times), 2), "worst_ms": round(max(times), 2)}


def main() -> None:
    """Print a row a change."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--runs", type=int, default=25)
    runs = arguments.parse_args().runs
    there, starts = nodes(), placements()
    changes: dict[str, Callable[[int], list[Node]]] = {
        "changed memory": lambda run: [*there[:AT], replace(there[AT], mem_mib=256_000 + run), *there[AT + 1 :]],
        "added": lambda run: [*there, Node(f"new-{run}", GPUS, there[0].gpu_model)],
        "added in a new row": lambda run: [*there, *(Node(f"more-{at}", GPUS) for at in range(run + 1))],
        "removed": lambda run: [*there[:AT], *there[AT + 1 :]],
        "new model": lambda run: [
            *there[:AT], replace(there[AT], gpu_model=GpuModel(f"X{run}", mem_mib=99_000)), *there[AT + 1 :]
        ],
    }  # fmt: skip
    cluster = built(there, starts)  # and its kernels are compiled
    rows: dict[str, dict[str, float]] = {}
    for name, change in changes.items():
        for kind in ("other objects", "same objects"):
            times = []
            for run in range(runs):
                now = change(run)
                if kind == "other objects":
                    now = [replace(node) for node in now]
                times.append(took_ms(partial(cluster.nodes_changed, now)))
                if name != "added in a new row":
                    cluster.nodes_changed(there)
            cluster = built(there, starts)
            rows[f"{name}, {kind}"] = {"median_ms": round(median(times), 2), "worst_ms": round(max(times), 2)}
    for waiting, types in ((0, 1), (2_000, 1), (2_000, 100), (2_000, 2_000)):
        rows[f"changed memory, {waiting:,} wait ({types:,})"] = through_scheduler(
            changes["changed memory"], there, starts, waiting, types, runs
        )
    cluster.nodes_changed([*changes["removed"](0), Node("last")])
    cluster.nodes_changed(there)
    assert cluster.free_total_milli == NODES * GPUS * 1000 - JOBS * 500
    assert not cluster.is_indebted
    times = [took_ms(partial(built, there, starts)) for _ in range(3)]
    rows["built anew"] = {"median_ms": round(median(times), 2), "worst_ms": round(max(times), 2)}
    print(f"{'change':<40}{'median':>12}{'worst':>12}   asked")
    for name, row in rows.items():
        asked = "" if name == "built anew" else f"{ASKED_MS:g} ms"
        print(f"{name:<40}{row['median_ms']:>9.2f} ms{row['worst_ms']:>9.2f} ms   {asked}")
    save("changed_node", {"machine": machine(), "runs": runs, "rows": rows})


if __name__ == "__main__":
    main()
