"""`genetic` deciding on batches of 500 pods, against FGD's published allocation at 130 % of arrived load.

    python bench/genetic_inflation.py [--data DIR] [--seeds 10] [--policy genetic]

Weng et al., USENIX ATC 2023, published the curves of their simulator for the same orders of arrival; FGD decides
on one pod at a time. Writes bench/results/genetic_inflation.json.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

from berth.experiments.inflate import inflate, read_arrivals
from berth.traces import read, read_nodes
from harness import data_folder, save

WORKLOADS = ("default", "gpuspec10", "cpu050", "multigpu20", "gpushare40")


def published(data: Path, workload: str) -> list[float]:
    """FGD's allocation at 130 %, one a seed."""
    with (data / "fgd_expected/analysis_allo_discrete.csv").open() as file:
        rows = list(csv.DictReader(file))
    wanted = (f"openb_pod_list_{workload}", "06-FGD")
    return [float(row["130"]) for row in rows if (row["workload"], row["sc_policy"]) == wanted]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=data_folder())
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--policy", default="genetic")
    asked = parser.parse_args()
    nodes = read_nodes(asked.data / "openb_v2023/openb_node_list_gpu_node.csv.gz")
    rows = []
    print(
        f"{'workload':<12}{'FGD, published':>16}{asked.policy:>16}{'lowest':>9}{'pods placed':>13}{'s a run':>9}",
        flush=True,
    )
    for workload in WORKLOADS:
        pods = f"openb_pod_list_{workload}"
        jobs = list(read(asked.data / f"openb_v2023/{pods}.csv.gz", nodes=nodes, file_order=True))
        runs = []
        for seed in range(42, 42 + asked.seeds):
            arrivals = read_arrivals(asked.data / f"fgd_orders/{pods}.npz", seed)
            runs.append(inflate(nodes, jobs, asked.policy, seed=seed, arrivals=arrivals, batch=500))
        reached = [float(run.curve.allocation_pct[130]) for run in runs]
        row = {
            "workload": workload,
            "fgd_pct": float(np.mean(published(asked.data, workload)[: asked.seeds])),
            "reached_pct": float(np.mean(reached)),
            "reached_by_seed_pct": reached,
            "placed": float(np.mean([run.placed for run in runs])),
            "seconds": float(np.median([run.seconds for run in runs])),
        }
        rows.append(row)
        print(
            f"{workload:<12}{row['fgd_pct']:>16.2f}{row['reached_pct']:>16.2f}{min(reached):>9.2f}"
            f"{row['placed']:>13.0f}{row['seconds']:>9.1f}",
            flush=True,
        )
    save("genetic_inflation", {"policy": asked.policy, "workloads": rows})


if __name__ == "__main__":
    main()
