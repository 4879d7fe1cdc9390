"""One round of `genetic`: 500 instances on 1,897 machines; asked are 1 s and 500 MiB.

    python bench/genetic_round.py [--repeats 7]

Once on the empty cluster and once on one that is nearly full. Wall time and the processor's, of both threads
together; the peak of memory is the whole process's. Writes bench/results/genetic_round.json.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

from berth.cluster import Cluster
from berth.experiments.utilisation import case_of
from berth.policies.batch import batch_of
from berth.policies.fgd import typical_requests
from berth.policies.genetic_search import packing_of, search
from berth.policies.genetic_settings import GeneticSettings
from genetic_vs_pygad import problem
from harness import save


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=7)
    asked = parser.parse_args()
    settings = GeneticSettings()
    nodes, jobs = case_of("synthetic:pai-like?jobs=500").load(1)
    _, full, workload, _ = problem(500)
    waiting = [job for job in workload if job.id not in full.running and full.fitting_nodes(job).size][:500]
    rows = []
    for name, cluster, instances in (("empty", Cluster(nodes), jobs), ("nearly full", full, waiting)):
        typical = typical_requests(workload, cluster)
        walls, processor = [], []
        for repeat in range(asked.repeats + 1):
            begin, worked = time.perf_counter(), time.process_time()
            batch = batch_of(instances, cluster)
            found = search(packing_of(batch, cluster, typical, settings), settings, seed=(repeat,))
            walls.append(time.perf_counter() - begin)
            processor.append(time.process_time() - worked)
        row = {
            "cluster": name,
            "instances": len(instances),
            "placed": int((found.node >= 0).sum()),
            "wall_s": float(np.median(walls[1:])),
            "processor_s": float(np.median(processor[1:])),
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        rows.append(row)
        print(
            f"{name}: {row['instances']} instances, {row['placed']} placed, {row['wall_s']:.2f} s"
            f" ({row['processor_s']:.2f} s of the processor), peak {row['peak_mib']:.0f} MiB",
            flush=True,
        )
    save("genetic_round", rows)


if __name__ == "__main__":
    main()
