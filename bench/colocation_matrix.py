"""What `learned` and its network alone add over the best rule, in the worlds that it is asked about.

    python bench/colocation_matrix.py [--seeds 30] [--jobs 2] [--keep out/matrix] [--parts queues,unseen,clusters]

`queues`: five workloads × two modes × two kinds of knowledge on one GPU; `unseen`: applications outside the training
set; `clusters`: 20 and 100 GPUs of five models with arrivals, histories as knowledge. The seeds of the test sets,
from `FIRST_SEED` on, had not been looked at when they were written down here, and are used for nothing else. Those
from 200 on, of which bench/RESULTS.md has three, were chosen after the models that ship had been trained.
With `--keep` an interrupted measurement goes on where it was.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from berth.experiments.colocation.matrix import World, measure_matrix, worlds_of
from berth.experiments.colocation.matrix_chapters import matrix_dict
from berth.profiles import WORKLOADS
from berth.profiles.drawn import DRAWN
from harness import save

FIRST_SEED = 30_000
MODES = ("time-sliced", "mps")
KNOWLEDGES = ("oracle", "noisy?run=0.1&memory=0.03&pair=0.1")
RULES = ("greedy", "rule", "random-sharing", "pair-packer", "dqn", "learned?plans=0", "learned")
ON_CLUSTERS = ("fifo+best-fit", "sjf-expected+best-fit", "fgd", "greedy", "learned")


def worlds_in(part: str) -> list[World]:
    """The worlds of a part."""
    if part == "queues":
        return worlds_of(tuple(WORKLOADS), MODES, KNOWLEDGES, "1x1", 0.0)
    if part == "unseen":
        return worlds_of((DRAWN,), MODES, KNOWLEDGES, "1x1", 0.0)
    return [
        world
        for gpus in ("20", "100")
        for load in (0.9, 1.2)
        for world in worlds_of(("random",), MODES, ("history?begin=empty",), gpus, load)
    ]


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=Path("out/matrix"))
    parser.add_argument("--parts", default="queues,unseen,clusters")
    asked = parser.parse_args()
    results: dict[str, object] = {}
    for part in asked.parts.split(","):
        found = measure_matrix(
            worlds_in(part),
            policies=ON_CLUSTERS if part == "clusters" else RULES,
            seeds=tuple(range(FIRST_SEED, FIRST_SEED + asked.seeds)),
            processes=asked.jobs,
            keep=asked.keep,
        )
        answer = results[part] = matrix_dict(found)
        for world in answer["worlds"]:
            for row in world["policies"]:
                gap = row["learned_less_this_pct"]
                interval = "" if gap["low_95"] is None else f" [{gap['low_95']:+.1f}, {gap['high_95']:+.1f}]"
                print(
                    f"{world['workload']}, {world['mode']}, {world['knowledge']}, {world['gpus']},"
                    f" load {world['arrivals']:g}: {row['policy']} {row['mean_s']:,.0f} s, learned less it"
                    f" {gap['mean']:+.2f} %{interval}; {row['out_of_memory_per_100_jobs']:.1f} out of memory per 100"
                    f" jobs, {row['lost']} lost, longest wait {row['longest_wait_s']:,.0f} s",
                    flush=True,
                )
        print(f"{part}: {answer['adds']} {answer['network_adds']}", flush=True)
    save("colocation_matrix", results)


if __name__ == "__main__":
    main()
