"""How long the foundation's main tasks take, as medians over runs in processes of their own.

    python bench/speed.py [--runs 7]

Inflation of openb_pod_list_default by each policy, `seconds` (the simulation alone, kernels loaded) and the
whole command from the shell; the whole Philly trace, arrivals compressed six times, on 2,490 GPUs, from
reading to result in a warm process; `berth --help`. A fixed loop of Python and NumPy is timed beside them, so
that figures of another machine, or of the same on a busy day, can be compared as ratios. Writes
bench/results/speed.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

import berth
from harness import data_folder, save

BERTH = str(Path(sys.executable).with_name("berth"))
POLICIES = ("fgd", "best-fit", "dot-product", "gpu-packing", "gpu-clustering", "first-fit", "random")


def yardstick() -> float:
    """Seconds that a fixed piece of work takes here and now: dictionaries, heaps' comparisons, small arrays."""
    begin = time.perf_counter()
    table: dict[int, tuple[int, int]] = {}
    row = np.arange(1213)
    total = 0
    for number in range(60_000):
        table[number % 997] = (number, total)
        total += table[number * 7 % 997][0] if number * 7 % 997 in table else 1
        if number % 8 == 0:
            total += int(row[number % 1213 :].argmax())
    return time.perf_counter() - begin


def several(task: Callable[[], float], runs: int) -> dict[str, float]:
    """Median seconds of the task, and its median ratio to the yardstick taken right before each run."""
    pairs = [(yardstick(), task()) for _ in range(runs)]
    return {
        "median_seconds": round(median(seconds for _, seconds in pairs), 3),
        "least_seconds": round(min(seconds for _, seconds in pairs), 3),
        "ratio_to_yardstick": round(median(seconds / unit for unit, seconds in pairs), 2),
    }


def shell(*command: str | Path) -> tuple[float, str]:
    """Wall seconds and standard output of a command."""
    begin = time.perf_counter()
    done = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    return time.perf_counter() - begin, done.stdout


def main() -> None:
    """Print a row a task."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--data", type=Path, default=data_folder())
    arguments.add_argument("--runs", type=int, default=7)
    chosen = arguments.parse_args()
    data = chosen.data
    rows: dict[str, dict[str, float]] = {}

    def show(name: str, figures: dict[str, float], asked: str) -> None:
        rows[name] = figures
        print(
            f"{name:<44}{figures['median_seconds']:>9.3f} s{figures['least_seconds']:>9.3f} s"
            f"{figures['ratio_to_yardstick']:>9.2f}   {asked}"
        )

    print(f"{'task':<44}{'median':>11}{'least':>11}{'ratio':>9}   asked")
    for policy in POLICIES:
        command = (
            BERTH, "experiment", "inflate", "--json", "--policy", policy, "--seed", "42",
            "--nodes", data / "openb_v2023/openb_node_list_gpu_node.csv.gz",
            "--pods", data / "openb_v2023/openb_pod_list_default.csv.gz",
            "--order", data / "fgd_orders/openb_pod_list_default.npz",
        )  # fmt: skip
        shell(*command)
        asked = "< 0.2 s" if policy == "fgd" else "< 0.15 s"
        alone = several(lambda c=command: float(json.loads(shell(*c)[1])["seconds"]), chosen.runs)  # type: ignore[misc]
        show(f"inflation, {policy}, simulation alone", alone, asked)
        if policy == "fgd":
            show(
                "inflation, fgd, from the shell",
                several(lambda c=command: shell(*c)[0], chosen.runs),
                "< 1.5 s",
            )  # type: ignore[misc]
    philly = data / "philly/sia_philly.csv.gz"
    for policy, asked in (("fifo+first-fit", "< 1.5 s"), ("sjf+best-fit", "< 5 s")):

        def replay(policy: str = policy) -> float:
            begin = time.perf_counter()
            berth.compare(philly, policy, compress=6)
            return time.perf_counter() - begin

        replay()
        show(f"Philly at 6x, {policy}, warm", several(replay, chosen.runs), asked)
    show("berth --help", several(lambda: shell(BERTH, "--help")[0], chosen.runs), "< 0.3 s")
    save("speed", rows)


if __name__ == "__main__":
    main()
