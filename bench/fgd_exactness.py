"""How exactly the inflation experiment gives the published curves, for every workload, policy and seed at hand.

    python bench/fgd_exactness.py [--data DIR] [--seeds 42-51]

Compares all 131 points of both curves with those that the FGD paper's own simulator published (Weng et al.,
USENIX ATC 2023) to the printed decimal. `random` cannot be exact, since the published order came from
goroutines: its mean allocation at 100 % is compared instead. Writes bench/results/fgd_exactness.json.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from statistics import mean, median

import numpy as np
from numpy.typing import NDArray

from berth.traces import read, read_nodes
from berth_papers.inflate import inflate, read_arrivals
from harness import data_folder, save

PUBLISHED = {
    "dot-product": "02-DotProd",
    "gpu-clustering": "03-GpuClustering",
    "gpu-packing": "04-GpuPacking",
    "best-fit": "05-BestFit",
    "fgd": "06-FGD",
    "random": "01-Random",
}


def curves(path: Path) -> dict[tuple[str, str, int], NDArray[np.float64]]:
    """The published curves by workload, policy and seed."""
    with path.open() as file:
        rows = csv.reader(file)
        first = next(rows).index("0")
        return {(row[0], row[1], int(row[3])): np.array(row[first:], dtype=float) for row in rows}


def main() -> None:
    """Print a row a workload and policy."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--data", type=Path)
    arguments.add_argument("--seeds", default="42-51")
    chosen = arguments.parse_args()
    data = chosen.data or data_folder()
    low, _, high = chosen.seeds.partition("-")
    seeds = range(int(low), int(high or low) + 1)
    allocation = curves(data / "fgd_expected/analysis_allo_discrete.csv")
    fragmentation = curves(data / "fgd_expected/analysis_frag_ratio_discrete.csv")
    nodes = read_nodes(data / "openb_v2023/openb_node_list_gpu_node.csv.gz")
    results = []
    print(
        f"{'workload':<26}{'policy':<16}{'points equal':>14}{'of':>7}{'at 100 %':>10}{'published':>11}{'s':>8}"
    )
    for file in sorted((data / "openb_v2023").glob("openb_pod_list_*.csv.gz")):
        workload = file.name.removesuffix(".csv.gz")
        orders = data / f"fgd_orders/{workload}.npz"
        if not orders.exists():
            print(f"{workload:<26}no arrival orders at {orders}: left out")
            continue
        pods = list(read(file, nodes=nodes, file_order=True))
        for policy, name in PUBLISHED.items():
            equal = points = 0
            ours: list[float] = []
            theirs: list[float] = []
            seconds: list[float] = []
            for seed in seeds:
                result = inflate(nodes, pods, policy, seed=seed, arrivals=read_arrivals(orders, seed))
                for mine, published in (
                    (result.curve.allocation_pct, allocation[workload, name, seed]),
                    (result.curve.fragmentation_ratio_pct, fragmentation[workload, name, seed]),
                ):
                    equal += int((mine.round(9) == published.round(9)).sum())
                    points += len(published)
                ours.append(float(result.curve.allocation_pct[100]))
                theirs.append(float(allocation[workload, name, seed][100]))
                seconds.append(result.seconds)
            row = {
                "workload": workload,
                "policy": policy,
                "seeds": len(seeds),
                "points_equal": equal,
                "points": points,
                "allocation_at_100_pct": round(mean(ours), 2),
                "published_allocation_at_100_pct": round(mean(theirs), 2),
                "median_seconds": round(median(seconds), 3),
            }
            results.append(row)
            print(
                f"{workload:<26}{policy:<16}{equal:>14,}{points:>7,}{mean(ours):>10.2f}{mean(theirs):>11.2f}"
                f"{median(seconds):>8.3f}"
            )
    save("fgd_exactness", results)


if __name__ == "__main__":
    main()
