"""How well waits are predicted on each fold of a table, by a model that learns once and by one that learns each day.

Fold K learns from the rows before the Kth fifth and is judged on that fifth. The output, also as JSON, is the mean
squared error of log10(1 + seconds) and the coverage of the 80 % interval. `--data FILE` takes another cluster's table.

`--bound` prints instead how far jobs of one account that were asked for at one moment differ from their own mean, which
is known only afterwards: of all of them, and of those with the same partition and request (unbiased, groups of two or
more).
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np

from berth import waiting
from berth.waiting.model import judged_on
from harness import data_folder, save
from polled_jobs import questions_of


def folds(questions: waiting.Questions) -> list[tuple[int, waiting.Questions, waiting.Questions]]:
    """The number of each fold, what its model first learns from, and what it is judged on."""
    found = []
    places = np.arange(len(questions))
    for fifth in range(1, 5):
        first, last = (len(questions) * at // 5 for at in (fifth, fifth + 1))
        known = questions.known_before(float(questions.asked_s[first]))
        tested = (places >= first) & (places < last) & ~np.isnan(questions.wait_s)
        found.append((fifth + 1, questions.at((places < first) & known), questions.at(tested)))
    return found


REQUEST = ("partition_id_x", "time_limit_sec", "req_cpus", "req_mem_total", "t_gres/gpu", "t_node")


def variance_within(tested: waiting.Questions, names: tuple[str, ...]) -> tuple[float, float]:
    """The variance of log10(1 + seconds) within groups of like jobs, and which part of the jobs is in such a group."""
    chosen = [tested.names.index(name) for name in names]
    keys = np.column_stack((np.nan_to_num(tested.values[:, chosen], nan=-1.0), tested.asked_s))
    group = np.unique(keys, axis=0, return_inverse=True)[1].ravel()
    target = np.log10(1 + tested.wait_s)
    count = np.bincount(group)
    squares = np.bincount(group, (target - (np.bincount(group, target) / count)[group]) ** 2)
    many = count > 1
    return float(squares[many].sum() / (count[many] - 1).sum()), float(count[many].sum() / len(target))


def bounds(questions: waiting.Questions) -> None:
    """Print the variance within like jobs of each fold."""
    for fold, _, tested in folds(questions):
        for name, keys in (("one account", ("account_id",)), ("one request", ("account_id", *REQUEST))):
            variance, part = variance_within(tested, keys)
            print(f"fold {fold}, {name}: {variance:.3f} within {100 * part:.0f} % of the jobs")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument(
        "--bound", action="store_true", help="how far like jobs differ, which no model can foresee"
    )
    given = parser.parse_args()
    path = given.data or data_folder() / "drac" / "drac_graham_submitday.parquet"
    questions = questions_of(path)
    if given.bound:
        bounds(questions)
        return
    rows = []
    for fold, learned, tested in folds(questions):
        for name, refits in (("once", 0), ("each day", 1000)):
            judged = judged_on(questions, learned, tested, refits=refits)
            row = {"fold": fold, "learns": name, "mse": judged.mse_log10, "coverage": judged.coverage_80}
            rows.append(row)
            print(
                f"fold {fold}, learns {name:8}: MSE {judged.mse_log10:.4f}, 80 % interval held"
                f" {100 * judged.coverage_80:.1f} %",
                flush=True,
            )
    save("waiting_refit", {"table": path.name, "load": round(os.getloadavg()[0], 1), "folds": rows})


if __name__ == "__main__":
    main()
