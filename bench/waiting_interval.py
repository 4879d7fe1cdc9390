"""How the width of predicted waits' intervals was chosen, and what the last fifth says of it.

Trees learn from what lies before the third and before the fourth fifth of a table; on each of the two fifths the ways
to move the interval are compared (window, how strongly the level follows, what makes up for few values). The last
fifth has no part in it: `--last` judges the chosen way on it, as `berth predict-wait evaluate` does. Prints coverage
(wanted: 80 %) and mean width in log10, and writes them as JSON. With --data FILE another cluster's table is used.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from berth import waiting
from berth.arrays import FloatArray
from berth.waiting.conformal import rolling_interval
from harness import data_folder, save
from polled_jobs import questions_of

DAYS = (3, 7, 14)
FEWEST = (1000, 10_000)
GAINS = (0.0, 0.1, 0.2, 0.3, 0.5)


def predicted(
    questions: waiting.Questions, fifth: int
) -> tuple[waiting.Questions, tuple[FloatArray, FloatArray, FloatArray], FloatArray]:
    """The questions of a fifth (counted from 0), the ends of their intervals, and how far outside training's lay."""
    first, last = (len(questions) * at // 5 for at in (fifth, fifth + 1))
    places = np.arange(len(questions))
    known = questions.known_before(float(questions.asked_s[first]))
    model = waiting.train(questions.at((places < first) & known))
    tested = questions.at((places >= first) & (places < last) & ~np.isnan(questions.wait_s))
    low, median, high = (model.predict(tested.values, what) for what in ("low", "median", "high"))
    return tested, (low, median, high), model.outside


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--last", action="store_true", help="judge the chosen way on the last fifth, too")
    given = parser.parse_args()
    path = given.data or data_folder() / "drac" / "drac_graham_submitday.parquet"
    questions = questions_of(path)
    fifths = [predicted(questions, fifth) for fifth in (2, 3)]
    rows: list[dict[str, Any]] = []
    for days, fewest, gain in product(DAYS, FEWEST, GAINS):
        found = []
        for tested, ends, outside in fifths:
            low, high = rolling_interval(
                tested.asked_s,
                tested.wait_s,
                ends,
                outside,
                0.8,
                window_s=days * 86_400,
                fewest=fewest,
                gain=gain,
            )
            target = np.log10(1 + tested.wait_s)
            found.append((float(np.mean((low <= target) & (target <= high))), float((high - low).mean())))
        off = sum(abs(coverage - 0.8) for coverage, _ in found)
        rows.append(
            {"days": days, "fewest": fewest, "gain": gain, "third": found[0], "fourth": found[1], "off": off}
        )
    for row in sorted(rows, key=lambda row: row["off"]):
        parts = " ".join(f"{100 * row[name][0]:6.1f} % ({row[name][1]:.2f})" for name in ("third", "fourth"))
        print(f"{row['days']:3} days, at least {row['fewest']:6}, gain {row['gain']:.2f}: {parts}")
    result: dict[str, Any] = {"table": str(path.name), "tried": rows}
    if given.last:
        result["last"] = waiting.evaluate(questions).to_dict()
        print({name: value for name, value in result["last"].items() if name not in ("bins", "calibration")})
    save("waiting_interval", result)


if __name__ == "__main__":
    main()
