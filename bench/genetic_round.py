"""One round of `genetic`: 500 instances on 1,897 machines; asked are 1 s and 500 MiB.

    python bench/genetic_round.py [--repeats 7]

On the empty cluster and on one that is nearly full, without a budget and with one of a second. Wall time and the
processor's, of both threads together; the peak of memory is the whole process's. Writes
bench/results/genetic_round.json.
"""

from __future__ import annotations

import argparse
import resource
import time
from itertools import product

import numpy as np

from berth.cluster import Cluster
from berth.policies.genetic.batch import batch_of
from berth.policies.genetic.search import packing_of, search
from berth.policies.genetic.settings import GeneticSettings, TimeBudget
from berth.policies.placements.by_score import typical_requests
from berth_papers.genetic.cases import case_of
from genetic_vs_pygad import problem
from harness import save


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    asked = parser.parse_args()
    nodes, jobs = case_of("synthetic:pai-like?jobs=500").load(1)
    _, full, workload, _ = problem(500)
    waiting = [job for job in workload if job.id not in full.running and full.fitting_nodes(job).size][:500]
    rows = []
    clusters = (("empty", Cluster(nodes), jobs), ("nearly full", full, waiting))
    for (name, cluster, instances), budget_ms in product(clusters, (None, 1000)):
        settings = GeneticSettings(budget_ms=budget_ms)
        typical = typical_requests(workload, cluster)
        walls, processor = [], []
        for repeat in range(asked.repeats + 1):
            begin, worked = time.perf_counter(), time.process_time()
            budget = TimeBudget(budget_ms)
            packing = packing_of(batch_of(instances, cluster), cluster, typical, settings)
            found = search(packing, settings, seed=(repeat,), budget=budget)
            walls.append(time.perf_counter() - begin)
            processor.append(time.process_time() - worked)
        row = {
            "cluster": name,
            "budget_ms": budget_ms,
            "instances": len(instances),
            "placed": int((found.node >= 0).sum()),
            "value": found.value,
            "wall_s": float(np.median(walls[1:])),
            "worst_wall_s": max(walls[1:]),
            "processor_s": float(np.median(processor[1:])),
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        rows.append(row)
        print(
            f"{name}, budget {budget_ms}: {row['instances']} instances, {row['placed']} placed, {row['wall_s']:.2f} s,"
            f" the worst {row['worst_wall_s']:.2f} s ({row['processor_s']:.2f} s of the processor),"
            f" peak {row['peak_mib']:.0f} MiB",
            flush=True,
        )
    save("genetic_round", rows)


if __name__ == "__main__":
    main()
