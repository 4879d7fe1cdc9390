"""Teach the network over pairs that `learned` decides by on clusters; `placement.py` compares it with others.

    python bench/pair_network.py [--network former.npz] [--rounds 80] [--units 0] [--out out/pairs.npz]

It draws networks around the best so far, lets each decide in the same compiled worlds (`pair_worlds`), and moves
towards those under which jobs end sooner on average than under `pairs` (separable CMA-ES: Ros and Hansen, "A simple
modification in CMA-ES achieving linear time and space complexity", PPSN 2008). Half of what counts are all jobs, half
those that `placement.py` counts. Seeds are those from 700,000 on, and `--network` is where it begins.
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
    NO_NETWORK,
    QUEUE,
    VERSION,
    WAIT,
    PairNetwork,
    pair_network_bytes,
    read_pair_network,
)
from harness import count
from pair_worlds import Played
from placement import Cell, counted_of, jobs_of, world

LEARNT = (
    ("mixed", "mps", 2.2, 3.0), ("mixed", "mps", 3.0, 4.2), ("mixed", "mps", 4.2, 6.0),
    ("mixed", "time-sliced", 1.5, 2.2), ("mixed", "time-sliced", 2.2, 3.5),
    ("equal", "mps", 2.2, 5.0), ("equal", "time-sliced", 1.6, 3.0),
)  # fmt: skip
"""Part, mode, and the loads that a round draws from."""
GPUS, MINUTES = 20, 4.0
DRAWN, FIRST_SIZE, LEAST_SIZE = 14, 0.08, 0.03
"""Networks of a round; how far they are drawn from the best so far at first, and at least."""
FIRST_SPREAD = 9.0
"""By how much wider the weights of hidden units' inputs are drawn, as a variance."""
LONGEST_WAIT = 0.02
"""What a longer longest wait than that of `pairs` costs, as a part of its logarithm."""
TAUGHT = np.ones((INPUTS, 3), np.bool_)
"""Which of `direct` are taught. What is the same of all pairs matters only for waiting."""
TAUGHT[QUEUE:, :WAIT] = False


@cache
def by_rule(cell: Cell) -> Played:
    """What comes of the rule."""
    return world(cell.part, cell.mode, cell.gpus).play(jobs_of(cell))


def network_of(weights: FloatArray, units: int) -> PairNetwork:
    """The network of these weights."""
    direct = np.zeros((INPUTS, 3))
    direct[TAUGHT] = weights[: TAUGHT.sum()]
    first, last = np.split(weights[TAUGHT.sum() :], [INPUTS * units])
    return PairNetwork(direct, first.reshape(INPUTS, units), last.reshape(units, 2))


def weights_of(network: PairNetwork, units: int) -> FloatArray:
    """The weights of a network; units that it lacks add nothing yet."""
    more = units - len(network.last)
    first, last = np.pad(network.first, ((0, 0), (0, more))), np.pad(network.last, ((0, more), (0, 0)))
    return np.concatenate([network.direct[TAUGHT], first.ravel(), last.ravel()])


def worse(network: PairNetwork, cell: Cell) -> float:
    """By how much more time jobs take than under the rule, as the difference of logarithms."""
    found, rule = world(cell.part, cell.mode, cell.gpus).play(jobs_of(cell), network), by_rule(cell)
    all_of_them = range(len(found.wait_s))
    longer = np.log((found.wait_s.max() + 20) / (rule.wait_s.max() + 20))
    parts = [
        found.completion_s[some].mean() / rule.completion_s[some].mean()
        for some in (all_of_them, counted_of(all_of_them))
    ]
    return float(np.log(parts).mean() + LONGEST_WAIT * max(0, longer))


def train(rounds: int, units: int, out: Path, former: Path | None) -> None:
    """Teach one, from the former one of that file on, and write it; its figures include those of the former."""
    begin = NO_NETWORK if former is None else read_pair_network(former)
    units = max(units, len(begin.last))
    before = {} if former is None else read_arrays(former, FORMAT, VERSION)[0]["figures"]
    command = "python bench/pair_network.py" + (f" --network {quote(str(former))}" if former else "")
    best = weights_of(begin, units)
    size, kept = len(best), DRAWN // 2
    start = int(before.get("rounds", 0))
    draw, begun = np.random.default_rng(1 + start), time.process_time()
    share = np.log(kept + 0.5) - np.log(np.arange(1, kept + 1))
    share /= share.sum()
    many = 1 / (share**2).sum()
    to_path, to_size = (4 + many / size) / (size + 4 + 2 * many / size), (many + 2) / (size + many + 5)
    one = 2 / ((size + 1.3) ** 2 + many) * (size + 2) / 3
    rest = min(1 - one, 2 * (many - 2 + 1 / many) / ((size + 2) ** 2 + many) * (size + 2) / 3)
    damping = 1 + to_size + 2 * max(0, np.sqrt((many - 1) / (size + 1)) - 1)
    usual = np.sqrt(size) * (1 - 1 / (4 * size) + 1 / (21 * size**2))
    spread, path, steps = np.ones(size), np.zeros(size), np.zeros(size)
    spread[TAUGHT.sum() : TAUGHT.sum() + INPUTS * units] = FIRST_SPREAD
    step = FIRST_SIZE
    for number in range(rounds):
        cells = [
            Cell(
                part,
                mode,
                float(draw.uniform(low, high)),
                "",
                700_000 + 20 * (start + number) + at,
                GPUS,
                MINUTES,
            )
            for at, (part, mode, low, high) in enumerate(LEARNT)
        ]
        drawn = best + step * np.sqrt(spread) * draw.normal(size=(DRAWN, size))
        worth = np.array([np.mean([worse(network_of(one, units), cell) for cell in cells]) for one in drawn])
        first = np.argsort(worth)[:kept]
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
            f" on average over the networks drawn, {step:.3f} apart",
            flush=True,
        )
        if number % 10 == 9 or number == rounds - 1:
            figures = {"rounds": number + 1.0, "processor_s": time.process_time() - begun}
            figures = {name: before.get(name, 0) + figure for name, figure in figures.items()}
            made_by = f"{command} --rounds {number + 1} --units {units}"
            out.write_bytes(pair_network_bytes(network_of(best, units), made_by, figures))


def main() -> None:
    """Teach one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=count, default=80)
    parser.add_argument("--units", type=int, default=0, help="hidden units; never fewer than --network has")
    parser.add_argument("--out", type=Path, default=Path("out/pairs.npz"))
    parser.add_argument("--network", type=Path)
    asked = parser.parse_args()
    if asked.units < 0:
        parser.error("--units is 0 or more")
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    train(asked.rounds, asked.units, asked.out, asked.network)


if __name__ == "__main__":
    main()
