"""What the page of inflations on one workload tells."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from berth.plots import policy_styles
from berth.report import Chapter
from berth.statistics import best_sentence
from berth_papers.inflate.inflation import UP_TO_PCT, InflationCurve
from berth_papers.inflate.plots import inflation_allocation, inflation_fragmentation

FULL_PCT = 100
"""The arrived load at which jobs ask for as many GPUs as there are."""


def inflation_answers(curves: Sequence[InflationCurve]) -> tuple[str, ...]:
    """Which policy holds most of the GPUs once as much was asked for as there is, and once all has arrived."""
    sentences = (
        best_sentence(
            _held_at(curves, at_pct),
            does_best,
            f"% of the GPUs held when jobs for {at_pct} % have arrived",
            least=False,
        )
        for at_pct, does_best in ((FULL_PCT, "packs best"), (UP_TO_PCT, "holds most under overload"))
    )
    return tuple(sentence for sentence in sentences if sentence)


def _held_at(curves: Sequence[InflationCurve], at_pct: int) -> dict[str, list[float]]:
    """By policy: the GPU allocation at that arrived load, seed by seed."""
    held: dict[str, list[float]] = {}
    for curve in sorted(curves, key=lambda curve: curve.seed):
        held.setdefault(curve.policy, []).append(float(curve.allocation_pct[at_pct]))
    return held


def inflation_chapter(curves: Sequence[InflationCurve]) -> Chapter:
    """Allocation and fragmentation against arrived load, for each policy."""
    policies = tuple(dict.fromkeys(curve.policy for curve in curves))
    styles = policy_styles(policies)
    seeds = tuple(sorted({curve.seed for curve in curves}))
    full, all_arrived = (_held_at(curves, at_pct) for at_pct in (FULL_PCT, UP_TO_PCT))
    return Chapter(
        "Inflation",
        "Jobs arrive one after another, or in batches if the command says so, and none leaves. The longer a policy's "
        "allocation follows the dotted line, the better it packs. On the left, where all policies do, the axis is cut; "
        "double-click to see all of it. The fragmentation ratio is the part of the idle GPU capacity that the "
        "workload's jobs cannot use: lower is better. The line is the mean over seeds; the shade reaches from the "
        "lowest seed to the highest. The table shows the GPUs held, in % of all. A policy that decides on batches "
        "chooses among the jobs of a batch, which helps most beyond 100 %, where not all of them fit.",
        (
            ("GPU allocation against arrived load", inflation_allocation(curves, styles)),
            ("Fragmentation ratio against arrived load", inflation_fragmentation(curves, styles)),
        ),
        (
            "Policy",
            f"at {FULL_PCT} % of load",
            "lowest seed",
            f"at {UP_TO_PCT} %",
            "lowest seed",
        ),
        [
            (
                name,
                *(f"{of(held[name]):.2f}" for held in (full, all_arrived) for of in (fmean, min)),
            )
            for name in policies
        ],
        policies=policies,
        seeds=seeds,
        names=("inflation-allocation", "inflation-fragmentation"),
    )
