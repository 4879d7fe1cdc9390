"""How well waits are predicted on each fold of a table, by a model that learns once and by one that learns each day.

Fold K learns from the rows before the Kth fifth and is judged on that fifth. The output, also as JSON, is the mean
squared error of log10(1 + seconds) and the coverage of the 80 % interval. `--data FILE` takes another cluster's table.
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    given = parser.parse_args()
    path = given.data or data_folder() / "drac" / "drac_graham_submitday.parquet"
    questions = questions_of(path)
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
