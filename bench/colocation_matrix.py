"""What `learned` and its network alone add over the best rule, in the worlds that it is asked about.

    python bench/colocation_matrix.py [--seeds 30] [--jobs 2] [--keep out/matrix] [--bounds] [--parts queues,clusters]
        [--policies greedy,learned] [--first-seed 30010]

`queues`: five workloads × two modes × two kinds of knowledge on one GPU; `doubt`: those whose beliefs are wrong;
`unseen`: applications outside the training set; `clusters`: 20 and 100 GPUs of five models with arrivals, histories as
knowledge. The seeds of the test sets, from `FIRST_SEED` on, had not been looked at when they were written down here,
and are used for nothing else. Those from 200 on, of which bench/RESULTS.md has three, were chosen after the models that
ship had been trained.
With `--bounds` each cell says how far it is above the time before which no schedule ends, which takes long and needs
the extra `optimum`. With `--keep` an interrupted measurement goes on where it was.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean

from berth.profiles import WORKLOADS
from berth.profiles.drawn import DRAWN
from berth_papers.colocation.matrix import Matrix, World, bounds_s, measure_matrix, worlds_of
from berth_papers.colocation.matrix_chapters import ALONE, added, matrix_dict
from harness import count, save

FIRST_SEED = 30_000
MODES = ("time-sliced", "mps")
KNOWLEDGES = ("oracle", "noisy?run=0.1&memory=0.03&pair=0.1")
RULES = (
    "greedy", "rule", "random-sharing", "pair-packer", "rollouts", "dqn", "learned?plans=0", "learned",
)  # fmt: skip
ON_CLUSTERS = ("fifo+best-fit", "sjf-expected+best-fit", "fgd", "greedy", "random-sharing", "learned")


def worlds_in(part: str) -> list[World]:
    """The worlds of a part."""
    if part == "queues":
        return worlds_of(tuple(WORKLOADS), MODES, KNOWLEDGES, "1x1", 0.0)
    if part == "doubt":
        return worlds_of(tuple(WORKLOADS), MODES, KNOWLEDGES[1:], "1x1", 0.0)
    if part == "unseen":
        return worlds_of((DRAWN,), MODES, KNOWLEDGES, "1x1", 0.0)
    return [
        world
        for gpus in ("20", "100")
        for load in (0.9, 1.2)
        for world in worlds_of(("random",), MODES, ("history?begin=empty",), gpus, load)
    ]


def above_bound_pct(found: Matrix, keep: Path) -> dict[tuple[World, str], float]:
    """How far the runs of each cell are above the bounds of their sets, mean; empty where there are none."""
    above = {}
    for world in found.worlds:
        bounds = bounds_s(world, found.seeds, keep)
        if bounds:
            for policy in found.policies:
                runs = found.of(world, policy)
                above[world, policy] = fmean(100 * (one.total_s / bounds[one.seed] - 1) for one in runs)
    return above


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=count, default=30)
    parser.add_argument("--first-seed", type=count, default=FIRST_SEED)
    parser.add_argument("--jobs", type=count, default=1)
    parser.add_argument("--keep", type=Path, default=Path("out/matrix"))
    parser.add_argument("--parts", default="queues,unseen,clusters")
    parser.add_argument("--policies", help="by default those of each part")
    parser.add_argument("--bounds", action="store_true")
    asked = parser.parse_args()
    results: dict[str, object] = {}
    for part in asked.parts.split(","):
        usual = ON_CLUSTERS if part == "clusters" else RULES
        found = measure_matrix(
            worlds_in(part),
            policies=asked.policies.split(",") if asked.policies else usual,
            seeds=tuple(range(asked.first_seed, asked.first_seed + asked.seeds)),
            processes=asked.jobs,
            keep=asked.keep,
        )
        answer = results[part] = matrix_dict(found)
        above = above_bound_pct(found, asked.keep) if asked.bounds else {}
        for of, world in zip(found.worlds, answer["worlds"], strict=True):
            for row in world["policies"]:
                row["above_bound_pct"] = above.get((of, row["policy"]))
                to_bound = f", {above[of, row['policy']]:.1f} % above the bound" if above else ""
                gap = row["learned_less_this_pct"]
                less = "" if gap["mean"] is None else f", learned less it {gap['mean']:+.2f} %"
                less += "" if gap["low_95"] is None else f" [{gap['low_95']:+.1f}, {gap['high_95']:+.1f}]"
                print(
                    f"{world['workload']}, {world['mode']}, {world['knowledge']}, {world['gpus']},"
                    f" load {world['arrivals']:g}: {row['policy']} {row['mean_s']:,.0f} s{to_bound}{less};"
                    f" {row['out_of_memory_per_100_jobs']:.1f} out of memory per 100"
                    f" jobs, {row['lost']} lost, longest wait {row['longest_wait_s']:,.0f} s",
                    flush=True,
                )
        for one in added(found, ALONE):
            print(
                f"{one.world.workload}, {one.world.mode}, {one.world.knowledge}: network alone less {one.rule}"
                f" {one.mean_pct:+.2f} % [{one.low_pct:+.2f}, {one.high_pct:+.2f}]"
            )
        print(f"{part}: {answer['adds']} {answer['network_adds']}", flush=True)
    save("colocation_matrix", results)


if __name__ == "__main__":
    main()
