"""GPU utilisation and completion time where more is asked for than there is: three cases, as tables.

    python bench/genetic_utilisation.py [--case a] [--seeds 10] [--keep out/use] [--data DIR]

(a) the machine list of PAI and 22,000 jobs in little time; (b) the 1,990 real rows of PAI, all at once, on a tenth of
that list, drawn by the seed; (c) openb's pods, arrivals 10,000 times as close, on three tenths of its nodes, drawn by
the seed. `passing+` is the same placement passing over jobs that do not fit, as `genetic` does. A seed takes two to
three minutes of the processor; with --keep what is finished is kept, and the same command goes on.
Writes bench/results/genetic_utilisation_CASE.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from berth.statistics import Interval, confidence_interval_95, paired_difference_95
from berth_papers.genetic.cases import case_of
from berth_papers.genetic.utilisation import (
    DEFAULT_CASE,
    PAPER_MARGINS_PCT,
    POLICIES,
    Outcome,
    measure_utilisation,
    utilisation_dict,
)
from harness import data_folder, save

SLOWER = "genetic?round_ms=10000"


def case_text(name: str, data: Path) -> str:
    """The case as the command takes it."""
    openb = data / "openb_v2023"
    return {
        "a": DEFAULT_CASE,
        "b": f"{data / 'pai_v2020/pai2020_subset_via_plebiscitotest.csv.gz'},part=0.1",
        "c": f"{openb / 'openb_pod_list_default.csv.gz'},cluster={openb / 'openb_node_list_gpu_node.csv.gz'}"
        ",part=0.3,compress=10000",
    }[name]


def table(outcomes: Sequence[Outcome], policies: Sequence[str], ours: str) -> None:
    """Print what each policy holds, and how far ours is above it."""
    of = {name: [one for one in outcomes if one.policy == name] for name in policies}
    held = {name: [one.utilisation_pct for one in of[name]] for name in policies}
    took = {name: [one.completion_s for one in of[name]] for name in policies}
    most = [one.most_pct for one in of[ours]]
    minutes = [(one.span_ms[1] - one.span_ms[0]) / 60_000 for one in of[ours]]
    print(
        f"{len(most)} seeds, measured over {np.mean(minutes):.0f} minutes (mean); no policy could hold more than"
    )
    print(f"{said(confidence_interval_95(most))} % of all GPUs then.\n")
    print(
        f"| policy | GPUs held, % | {ours} above it, points | relative, % | the paper's | submission to end, s |"
    )
    print("|---|---|---|---|---|---|")
    for name in policies:
        above = relative = "–"
        if name != ours:
            above = said(paired_difference_95(held[ours], held[name]))
            ratios = [100 * (mine / other - 1) for mine, other in zip(held[ours], held[name], strict=True)]
            relative = said(confidence_interval_95(ratios))
        paper = f"{PAPER_MARGINS_PCT[name]} %" if name in PAPER_MARGINS_PCT else ""
        print(
            f"| {name} | {said(confidence_interval_95(held[name]))} | {above} | {relative} | {paper}"
            f" | {np.mean(took[name]):,.0f} |"
        )


def said(interval: Interval) -> str:
    """Mean and half of the 95 % interval."""
    return f"{interval.mean:.2f}" + (f" ± {interval.high - interval.mean:.2f}" if interval.count > 1 else "")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=("a", "b", "c"), default="a")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--policies", default=",".join((*POLICIES, SLOWER)))
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--data", type=Path)
    asked = parser.parse_args()
    data = asked.data or (Path() if asked.case == "a" else data_folder())
    policies = asked.policies.split(",")
    outcomes = measure_utilisation(
        [case_of(case_text(asked.case, data))], policies, seeds=tuple(range(asked.seeds)), keep=asked.keep
    )
    for ours in [name for name in policies if name.startswith("genetic")]:
        table(outcomes, policies, ours)
        print()
    save(f"genetic_utilisation_{asked.case}", utilisation_dict(outcomes))


if __name__ == "__main__":
    main()
