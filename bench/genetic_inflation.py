"""`genetic` deciding on batches of 500 pods, against FGD, at 100 % and at 130 % of arrived load.

    python bench/genetic_inflation.py [--data DIR] [--seeds 10] [--policy genetic] [--only WORKLOAD,…]
                                      [--control POLICY]

FGD decides on one pod at a time. It is berth's, whose curves are those that Weng et al., USENIX ATC 2023, published for
the same orders of arrival (`bench/fgd_exactness.py`). Two more lists are `default` drawn again, with replacement, so
that a third of the GPU requests name a model (those of `gpuspec10`, as `default` has none), or two fifths ask for
several GPUs; their pods arrive in an order of berth's own. The control decides on the same batches without a search: it
passes over what does not fit, in an order that knows the batch. Seconds are of the processor. Writes
bench/results/genetic_inflation.json.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from berth.model import Job
from berth.traces import read, read_nodes
from berth_papers.inflate import inflate, read_arrivals
from harness import data_folder, save

WORKLOADS = ("default", "gpuspec10", "cpu050", "multigpu20", "gpushare40")
RESAMPLED: dict[str, tuple[str, Callable[[Job], bool], float]] = {
    "models33": ("gpuspec10", lambda job: bool(job.models), 0.33),
    "several40": ("default", lambda job: job.gpus > 1, 0.40),
}
"""Which requests of which list are to be how much of all that ask for GPUs; the others are of `default`."""
AT_PCT = (100, 130)


def resampled(
    jobs: Sequence[Job], source: Sequence[Job], wanted: Callable[[Job], bool], part: float
) -> list[Job]:
    """As many jobs, drawn again: this part of those that ask for GPUs is wanted."""
    draw = random.Random(0)
    chosen = [job for job in source if job.gpus and wanted(job)]
    others = [job for job in jobs if job.gpus and not wanted(job)]
    total = sum(job.gpus > 0 for job in jobs)
    many = round(part * total)
    drawn = draw.choices(chosen, k=many) + draw.choices(others, k=total - many)
    return drawn + [job for job in jobs if not job.gpus]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--policy", default="genetic")
    parser.add_argument(
        "--only", default=",".join((*WORKLOADS, *RESAMPLED)), help="workloads, split by commas"
    )
    parser.add_argument("--control", default="passing+largest-first+fgd")
    asked = parser.parse_args()
    data = asked.data or data_folder()
    nodes = read_nodes(data / "openb_v2023/openb_node_list_gpu_node.csv.gz")
    rows = []

    def pods(workload: str) -> list[Job]:
        path = data / f"openb_v2023/openb_pod_list_{workload}.csv.gz"
        return list(read(path, nodes=nodes, file_order=True))

    print(
        f"{'workload':<12}{'fgd, 100 %':>12}{asked.policy + ', 100 %':>20}{'least more':>12}"
        f"{'fgd, 130 %':>12}{asked.policy + ', 130 %':>20}{'least more':>12}{'CPU s a run':>12}"
        f"   {asked.control}, 100 and 130 %",
        flush=True,
    )
    for workload in asked.only.split(","):
        if workload in RESAMPLED:
            source, wanted, part = RESAMPLED[workload]
            jobs = resampled(pods("default"), pods(source), wanted, part)
        else:
            jobs = pods(workload)
        reached: dict[str, list[list[float]]] = {}  # by policy: of each seed, the allocation at `AT_PCT`
        seconds = []
        for seed in range(42, 42 + asked.seeds):
            arrivals = None
            if workload in WORKLOADS:
                arrivals = read_arrivals(data / f"fgd_orders/openb_pod_list_{workload}.npz", seed)
            for policy, batch in (("fgd", 1), (asked.control, 500), (asked.policy, 500)):
                begin = time.process_time()
                run = inflate(nodes, jobs, policy, seed=seed, arrivals=arrivals, batch=batch)
                reached.setdefault(policy, []).append([float(run.curve.allocation_pct[at]) for at in AT_PCT])
            seconds.append(time.process_time() - begin)
        fgd, mine, control = (np.array(reached[name]) for name in ("fgd", asked.policy, asked.control))
        row = {
            "workload": workload,
            "at_pct": AT_PCT,
            "fgd_by_seed_pct": fgd.tolist(),
            "reached_by_seed_pct": mine.tolist(),
            "control_by_seed_pct": control.tolist(),
            "seconds": float(np.median(seconds)),
        }
        rows.append(row)
        columns = [workload.ljust(12)]
        for at in range(len(AT_PCT)):
            least = (mine - fgd)[:, at].min()
            columns += [
                f"{fgd[:, at].mean():12.2f}", f"{mine[:, at].mean():20.2f}", f"{least:12.2f}",
            ]  # fmt: skip
        of_control = ", ".join(f"{pct:.2f}" for pct in control.mean(axis=0))
        print("".join(columns) + f"{row['seconds']:12.1f}   {of_control}", flush=True)
    save("genetic_inflation", {"policy": asked.policy, "control": asked.control, "workloads": rows})


if __name__ == "__main__":
    main()
