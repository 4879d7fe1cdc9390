"""Teach the network over pairs that `learned` decides by on clusters, and compare it with `pairs`, which it corrects.

    python bench/pair_network.py train [--network former.npz] [--rounds 80] [--out pairs.npz]
    python bench/pair_network.py compare [--network pairs.npz] [--gpus 20] [--seeds 10] [--first-seed 31000]
    python bench/pair_network.py check [--seeds 1]

All play in `pair_worlds`. `train` draws networks around the best so far, lets each decide in the same worlds, and moves
towards those under which jobs end sooner on average than under `pairs` (separable CMA-ES: Ros and Hansen, "A simple
modification in CMA-ES achieving linear time and space complexity", PPSN 2008). Half of what counts are all jobs, half
those that `placement.py` counts. Seeds are those from 700,000 on, and `--network` is where it begins. `compare` counts
jobs as `placement.py` does, on its seeds. `check` plays the same jobs with `simulate`.
"""

from __future__ import annotations

import argparse
import time
from functools import cache
from pathlib import Path
from shlex import quote

import numpy as np

from berth.arrays import FloatArray
from berth.network.model_file import read_arrays
from berth.network.pair_network import (
    FORMAT,
    INPUTS,
    LONG_QUEUE,
    NO_NETWORK,
    QUEUE,
    SCORE,
    VERSION,
    WAIT,
    PairNetwork,
    pair_network_bytes,
    read_pair_network,
)
from berth.policies.colocation.learned import pair_network_named
from berth.statistics.spread import confidence_interval_95
from harness import count, save
from pair_worlds import Cluster, Played
from placement import CARDS, FIRST_SEED, Cell, jobs_of, run

LEARNT = (
    ("mixed", "mps", 2.5), ("mixed", "mps", 3.5), ("mixed", "mps", 5.0), ("mixed", "time-sliced", 1.6),
    ("mixed", "time-sliced", 2.5), ("equal", "mps", 3.5), ("equal", "time-sliced", 2.5),
)  # fmt: skip
COMPARED = [
    (part, mode, load)
    for mode, loads in (("mps", (1.6, 2.5, 3.5, 5.0)), ("time-sliced", (1.6, 2.5, 3.5)))
    for load in loads
    for part in ("mixed", "equal")
]
GPUS, MINUTES = 20, 4.0
DRAWN, FIRST_SIZE, LEAST_SIZE = 14, 0.08, 0.03
"""Networks of a round; how far they are drawn from the best so far at first, and at least."""
LONGEST_WAIT = 0.02
"""What a longer longest wait than that of `pairs` costs, as a part of its logarithm."""
WEIGHTS = [
    *((at, SCORE) for at in range(QUEUE)),
    *((at, LONG_QUEUE) for at in range(QUEUE)),
    *((at, WAIT) for at in range(INPUTS)),
]
PLACES = tuple(zip(*WEIGHTS, strict=True))
"""Those that are taught. What is the same of all pairs matters only for waiting."""


@cache
def cluster(part: str, mode: str, gpus: int) -> Cluster:
    """One of these worlds' clusters."""
    return Cluster(mode, CARDS if part == "mixed" else ("V100",) * len(CARDS), gpus)


@cache
def by_rule(cell: Cell) -> Played:
    """What comes of the rule."""
    return cluster(cell.part, cell.mode, cell.gpus).play(jobs_of(cell), None)


def middle(cell: Cell) -> slice:
    """The jobs that `placement.py` counts."""
    fifth = len(jobs_of(cell)) // 5
    return slice(fifth, len(jobs_of(cell)) - fifth)


def network_of(weights: FloatArray) -> PairNetwork:
    """The network of these weights, of no units."""
    direct = np.zeros((INPUTS, 3))
    direct[PLACES] = weights
    return PairNetwork(direct, np.zeros((INPUTS, 0)), np.zeros((0, 2)))


def worse(network: PairNetwork, cell: Cell) -> float:
    """By how much more time jobs take than under the rule, as the difference of logarithms."""
    found, rule = cluster(cell.part, cell.mode, cell.gpus).play(jobs_of(cell), network), by_rule(cell)
    longer = np.log((found.wait_s.max() + 20) / (rule.wait_s.max() + 20))
    parts = [
        found.completion_s[some].mean() / rule.completion_s[some].mean()
        for some in (slice(None), middle(cell))
    ]
    return float(np.log(parts).mean() + LONGEST_WAIT * max(0, longer))


def train(rounds: int, out: Path, former: Path | None) -> None:
    """Teach one, from the former one of that file on, and write it; its figures include those of the former."""
    begin = NO_NETWORK if former is None else read_pair_network(former)
    before = {} if former is None else read_arrays(former, FORMAT, VERSION)[0]["figures"]
    command = "python bench/pair_network.py train" + (f" --network {quote(str(former))}" if former else "")
    size, kept = len(WEIGHTS), DRAWN // 2
    draw, begun = np.random.default_rng(1), time.process_time()
    share = np.log(kept + 0.5) - np.log(np.arange(1, kept + 1))
    share /= share.sum()
    many = 1 / (share**2).sum()
    to_path, to_size = (4 + many / size) / (size + 4 + 2 * many / size), (many + 2) / (size + many + 5)
    one = 2 / ((size + 1.3) ** 2 + many) * (size + 2) / 3
    rest = min(1 - one, 2 * (many - 2 + 1 / many) / ((size + 2) ** 2 + many) * (size + 2) / 3)
    damping = 1 + to_size + 2 * max(0, np.sqrt((many - 1) / (size + 1)) - 1)
    usual = np.sqrt(size) * (1 - 1 / (4 * size) + 1 / (21 * size**2))
    best, spread, path, steps = begin.direct[PLACES].copy(), np.ones(size), np.zeros(size), np.zeros(size)
    step = FIRST_SIZE
    for number in range(rounds):
        cells = [
            Cell(part, mode, load, "", 700_000 + 20 * number + at, GPUS, MINUTES)
            for at, (part, mode, load) in enumerate(LEARNT)
        ]
        drawn = best + step * np.sqrt(spread) * draw.normal(size=(DRAWN, size))
        worth = np.array([np.mean([worse(network_of(one), cell) for cell in cells]) for one in drawn])
        first = np.argsort(worth + 1e-5 * (drawn**2).sum(axis=1))[:kept]
        moved = (drawn[first] - best) / step
        towards = share @ moved
        best = share @ drawn[first]
        steps = (1 - to_size) * steps + np.sqrt(to_size * (2 - to_size) * many) * towards / np.sqrt(spread)
        length = np.linalg.norm(steps)
        straight = length / np.sqrt(1 - (1 - to_size) ** (2 * (number + 1))) < (1.4 + 2 / (size + 1)) * usual
        path = (1 - to_path) * path + straight * np.sqrt(to_path * (2 - to_path) * many) * towards
        spread = (1 - one - rest) * spread + one * path**2 + rest * (share @ moved**2)
        step = min(max(step * np.exp(to_size / damping * (length / usual - 1)), LEAST_SIZE), 0.6)
        print(
            f"round {number + 1}, {time.process_time() - begun:.0f} s of processor time: {100 * worth.mean():+.2f} %"
            " on average over the networks drawn",
            flush=True,
        )
        if number % 10 == 9 or number == rounds - 1:
            figures = {"rounds": number + 1.0, "processor_s": time.process_time() - begun}
            figures = {name: before.get(name, 0) + figure for name, figure in figures.items()}
            made_by = f"{command} --rounds {number + 1}"
            out.write_bytes(pair_network_bytes(network_of(best), made_by, figures))


def compare(network: PairNetwork, gpus: int, seeds: range) -> list[dict[str, object]]:
    """Mean completion of the jobs that count, against that under the rule, paired by seed."""
    rows: list[dict[str, object]] = []
    for part, mode, load in COMPARED:
        cells = [Cell(part, mode, load, "", seed, gpus, 6.0) for seed in seeds]
        counted, all_of_them, rule_s, longest_s = [], [], [], []
        for cell in cells:
            jobs = jobs_of(cell)
            found, rule = cluster(part, mode, gpus).play(jobs, network), by_rule(cell)
            rule_s.append(rule.completion_s[middle(cell)].mean())
            counted.append(100 * (found.completion_s[middle(cell)].mean() / rule_s[-1] - 1))
            all_of_them.append(100 * (found.completion_s.mean() / rule.completion_s.mean() - 1))
            longest_s.append((rule.wait_s.max(), found.wait_s.max()))
        mine, every = confidence_interval_95(counted), confidence_interval_95(all_of_them)
        longest = [float(one) for one in np.max(longest_s, axis=0)]
        rows.append(
            {
                "part": part,
                "mode": mode,
                "load": load,
                "rule_s": float(np.mean(rule_s)),
                "less_pct": mine.mean,
            }
            | {"low_95": mine.low, "high_95": mine.high, "of_all_jobs_pct": every.mean, "longest_s": longest}
        )
        print(
            f"{part}, {mode}, load {load:g}, {gpus} GPUs: pairs {np.mean(rule_s):.1f} s, with the network"
            f" {mine.mean:+.1f} % [{mine.low:+.1f}, {mine.high:+.1f}], of all jobs {every.mean:+.1f} %"
            f" [{every.low:+.1f}, {every.high:+.1f}]; longest wait {longest[0]:.0f}, {longest[1]:.0f} s",
            flush=True,
        )
    return rows


def check(seeds: range) -> None:
    """How far mean completions are from those of `simulate`."""
    for part, mode, load in COMPARED:
        for policy in ("pairs", "learned"):
            gaps = []
            for seed in seeds:
                cell = Cell(part, mode, load, policy, seed, GPUS, MINUTES)
                jobs = jobs_of(cell)
                network = pair_network_named("pairs") if policy == "learned" else None
                played = cluster(part, mode, GPUS).play(jobs, network).completion_s
                found = played[middle(cell)].mean()
                gaps.append(100 * (found / run(cell)[1].completion_s - 1))
            print(
                f"{part}, {mode}, load {load:g}, {policy}: {np.mean(gaps):+.2f} % of simulate's", flush=True
            )


def main() -> None:
    """Run what is asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("train", "compare", "check"))
    parser.add_argument("--rounds", type=count, default=80)
    parser.add_argument("--out", type=Path, default=Path("pairs.npz"))
    parser.add_argument("--network", type=Path)
    parser.add_argument("--gpus", type=count, default=GPUS)
    parser.add_argument("--seeds", type=count, default=10)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    asked = parser.parse_args()
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    if asked.what == "train":
        train(asked.rounds, asked.out, asked.network)
    elif asked.what == "check":
        check(seeds)
    else:
        network = read_pair_network(asked.network) if asked.network else pair_network_named("pairs")
        save("pair_network", compare(network, asked.gpus, seeds))


if __name__ == "__main__":
    main()
