"""The chapters of the report on co-location: chapter V of the thesis, its numbers beside ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from berth.experiments.colocation import FRONTIER_WORKLOAD, LEARNED, SJF, UNTRAINED, Colocation
from berth.experiments.colocation_answer import (
    RIVALS,
    above_bound_pct,
    claims,
    costs,
    difference_pct,
    frontier_points,
    jobs_by_class,
    weight_of,
)
from berth.experiments.colocation_looks import PAIR_APPLICATIONS, Disagreement, Pair
from berth.experiments.colocation_outcome import CLASSES, Outcome
from berth.experiments.colocation_thesis import (
    CONTRADICTIONS,
    COST_SAVED_PCT,
    COSTS,
    NORMALISED,
    NOT_SLOWED,
    PUBLISHED,
    Published,
)
from berth.plots import Style, policy_styles
from berth.plots.colocation import (
    above_bound,
    bars_by_workload,
    frontier,
    pair_map,
    paired_differences,
    slowdown_classes,
    stacked,
)
from berth.report.report import Chapter
from berth.statistics import Interval, confidence_interval_95

__all__ = ["colocation_chapters"]


def colocation_chapters(
    result: Colocation, looks: Sequence[Disagreement], pairs: Sequence[Pair], training_s: Mapping[str, float]
) -> list[Chapter]:
    """Everything that was measured, in the order of the thesis; parts without anything to show are left out."""
    styles = policy_styles(result.policies)
    chapters = [_totals(result, styles), _use(result, styles)]
    if "dqn" in result.policies:
        chapters += [_claims(result), _pairwise(result, styles)]
    if result.bounds:
        chapters.append(_to_bound(result, styles))
    if FRONTIER_WORKLOAD in result.workloads:
        chapters += [_slowdowns(result), *_overhead(result, training_s), *_costs(result)]
        if result.frontier:
            chapters.append(_frontier(result, styles))
    if looks:
        chapters.append(_looks(looks))
    chapters.append(_pairs(pairs, result.interference))
    chapters.append(_contradictions())
    return chapters


def _totals(result: Colocation, styles: Mapping[str, Style]) -> Chapter:
    least = {
        workload: float(np.mean([result.bounds[workload, seed].total_ms for seed in result.seeds])) / 1000
        for workload in result.workloads
        if result.bounds
    }
    rows = []
    for workload in result.workloads:
        for policy in result.policies:
            runs = result.of(workload, policy)
            told = PUBLISHED.get((workload, policy), Published())
            rows.append(
                (
                    f"{workload}, {policy}",
                    _beside(_said(confidence_interval_95([one.total_s for one in runs]), 0), told.total_s, 0),
                    _beside(f"{np.mean([one.gpu_use_pct for one in runs]):.1f}", told.gpu_use_pct, 2),
                    _beside(f"{np.mean([one.gpu_mem_pct for one in runs]):.1f}", told.gpu_mem_pct, 2),
                    f"{max(one.gpu_mem_peak_mib for one in runs):,}",
                    f"{sum(one.out_of_memory for one in runs):,}",
                )
            )
    return Chapter(
        "Total time on the five workloads (figures 10–14)",
        "From the first submission to the last end of 30 jobs on one GPU, the mean over sets with its 95 % interval. "
        "Crosses are the thesis's own numbers, measured on real jobs: compare their order, not their size. The line "
        "is the mean of the lower bounds: no schedule ends below. GPU use counts what tenants use at the speed that "
        "they have. In brackets: the thesis's; what it prints for GPUmemory_heavy repeats GPU_light, as said at the "
        "end of this page.",
        [
            (
                "Total time of each policy on each workload",
                bars_by_workload(
                    _by_policy(result, lambda one: one.total_s), styles, "Total time", "s",
                    thesis=_told(lambda told: told.total_s), least=least,
                ),
            )
        ],
        ("Workload, policy", "total time, s", "GPU use, %", "GPU memory, %", "its peak, MiB", "out of memory"),
        rows,
        result.policies,
        result.seeds,
    )  # fmt: skip


def _use(result: Colocation, styles: Mapping[str, Style]) -> Chapter:
    return Chapter(
        "Use of the GPU and of its memory (figures 10–14)",
        "Means over the total time; crosses are the thesis's own numbers.",
        [
            (
                "Mean GPU use of each policy on each workload",
                bars_by_workload(
                    _by_policy(result, lambda one: one.gpu_use_pct), styles, "Mean GPU use", "%",
                    thesis=_told(lambda told: told.gpu_use_pct),
                ),
            ),
            (
                "Mean use of GPU memory of each policy on each workload",
                bars_by_workload(
                    _by_policy(result, lambda one: one.gpu_mem_pct), styles, "Mean use of GPU memory", "%",
                    thesis=_told(lambda told: told.gpu_mem_pct),
                ),
            ),
        ],
    )  # fmt: skip


ASKED = {
    "lowest_mean_total_time": "dqn has the lowest mean total time",
    "paired_interval_below_zero": "95 % interval of dqn's paired difference, against zero",
    "no_out_of_memory": "dqn never ran out of memory",
    "above_bound_pct": "dqn above the lower bound, %",
    "within_5_pct_of_bound_on_average": "dqn within 5 % of the lower bound on average",
    "untrained_loses": "an untrained network is slower than dqn",
    "24_of_30_not_slowed_below_sjf": "a point of the frontier with 24 of 30 not slowed, faster than SJF",
}


def _claims(result: Colocation) -> Chapter:
    rows = []
    for key, value in claims(result).items():
        if isinstance(value, dict):
            rows += [(f"{ASKED[key]}: {where}", _found(one)) for where, one in value.items()]
        else:
            rows.append((ASKED[key], _found(value)))
    return Chapter(
        "What is asked of dqn, and what was found",
        f"The same as “claims” in result.json, over {len(result.seeds)} sets a workload.",
        (),
        ("Asked", "found"),
        rows,
    )


def _found(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _pairwise(result: Colocation, styles: Mapping[str, Style]) -> Chapter:
    rows = [
        (workload, other, difference_pct(result, workload, "dqn", other))
        for workload in result.workloads
        for other in result.policies
        if other != "dqn" and "dqn" in result.policies
    ]
    shown = [row for row in rows if row[1] in RIVALS]
    return Chapter(
        "dqn against the others, set by set",
        "The difference of total times on the same sets, in per cent of the other's mean, with its 95 % interval: "
        "below 0 dqn is faster. The figure shows SJF, Tetris and greedy; the table all.",
        [
            (
                "Paired differences of total time",
                paired_differences(shown, styles, "dqn's total time against others'"),
            )
        ]
        if shown
        else [],
        ("Workload, other policy", "difference, %", "from", "to"),
        [
            (f"{workload}, {other}", f"{one.mean:+.2f}", f"{one.low:+.2f}", f"{one.high:+.2f}")
            for workload, other, one in rows
        ],
    )


def _to_bound(result: Colocation, styles: Mapping[str, Style]) -> Chapter:
    shown = [policy for policy in result.policies if policy != UNTRAINED]
    above = {
        policy: {workload: above_bound_pct(result, workload, policy) for workload in result.workloads}
        for policy in result.policies
    }
    return Chapter(
        "Distance to the lower bound",
        "The bound is a linear program over all that may run together: every schedule of whole jobs is above it, and "
        "so is every one that may stop and go on at will, for it does not know in which order a job needs what. The "
        "part of the distance that no schedule can close is therefore not zero.",
        [
            (
                "How far each policy is above the lower bound",
                above_bound({policy: above[policy] for policy in shown}, styles, "Above the lower bound"),
            )
        ],
        ("Policy", *(f"{workload}, %" for workload in result.workloads), "mean, %"),
        [
            (
                policy,
                *(f"{np.mean(above[policy][workload]):.2f}" for workload in result.workloads),
                f"{np.mean([np.mean(values) for values in above[policy].values()]):.2f}",
            )
            for policy in result.policies
        ],
    )


def _slowdowns(result: Colocation) -> Chapter:
    shares = {policy: jobs_by_class(result.of(FRONTIER_WORKLOAD, policy)) for policy in result.policies}
    return Chapter(
        "How much jobs are slowed on random (figure 15)",
        "Jobs of 30 by how much longer they took than alone, from the first start to the end, so that a try that ran "
        "out of memory counts. The thesis: 20 jobs not slowed under DqnGPU, 14 under Tetris and DeepRM Max; 12 slowed "
        "by 10 % or more under DeepRM Mean.",
        [
            (
                "Jobs by slowdown under each policy",
                slowdown_classes(shares, CLASSES, "Jobs by slowdown, mean over sets", thesis=NOT_SLOWED),
            )
        ],
        ("Policy", *CLASSES, "not slowed, the thesis's"),
        [
            (policy, *(f"{value:.1f}" for value in values), str(NOT_SLOWED.get(policy, "")))
            for policy, values in shares.items()
        ],
    )


def _overhead(result: Colocation, training_s: Mapping[str, float]) -> list[Chapter]:
    if SJF not in result.policies:
        return []
    sjf_s = float(np.mean([one.total_s for one in result.of(FRONTIER_WORKLOAD, SJF)]))
    parts: dict[str, dict[str, float]] = {}
    for policy in result.policies:
        if policy == UNTRAINED:
            continue
        mean_s = float(np.mean([one.total_s for one in result.of(FRONTIER_WORKLOAD, policy)]))
        parts[policy] = {"run": mean_s / sjf_s, "training": training_s.get(policy, 0.0) / sjf_s}
    told = {policy: value for policy, (value, _) in NORMALISED.items() if policy in parts}
    return [
        Chapter(
            "Time with training, over SJF's, on random (figure 16)",
            "The run and the training that the model needed, over SJF's total time. A model that ships is trained "
            "once, so its first placement waits for no training; where the model's file does not say how long its "
            "training took, it is left out and said. The thesis: Tetris 1.294, DqnGPU 1.081 of which "
            "0.054 (123 s) is training, DeepRM Max 1.303 of which 0.048, DeepRM Mean 1.346.",
            [("Time with training, over SJF's", stacked(parts, "Total time over SJF's", "", thesis=told))],
            ("Policy", "run", "training", "together", "the thesis's", "of which training"),
            [
                (
                    policy,
                    f"{one['run']:.3f}",
                    _training_ours(policy, training_s, one["training"]),
                    f"{one['run'] + one['training']:.3f}",
                    f"{NORMALISED[policy][0]:.3f}" if policy in NORMALISED else "",
                    _training_told(policy),
                )
                for policy, one in parts.items()
            ],
        )
    ]


def _training_ours(policy: str, training_s: Mapping[str, float], part: float) -> str:
    if policy in training_s:
        return f"{part:.3f}"
    return "not recorded" if policy in LEARNED else ""


def _training_told(policy: str) -> str:
    told = NORMALISED.get(policy, (0.0, None))[1]
    return "" if told is None else f"{told:.3f}"


def _costs(result: Colocation) -> list[Chapter]:
    found = costs(result)
    if not found:
        return []
    return [
        Chapter(
            "Cost, alone against shared, on random (figure 17)",
            "Total time at the hourly price of Amazon EC2 in 2019, after section V.3.4: an instance for each job "
            "against a place on a shared one. " + " ".join(f"{one.name}: {one.shared}." for one in COSTS),
            [
                (
                    "Cost of SJF alone and of dqn shared",
                    stacked(
                        {
                            f"{one.model.name}, {who}": {"cost": usd}
                            for one in found
                            for who, usd in (("SJF", one.sjf_usd), ("dqn", one.dqn_usd))
                        },
                        "Cost of a set of jobs",
                        " $",
                    ),
                )
            ],
            ("Cost model", "alone, $/h", "shared, $/h", "SJF, $", "dqn, $", "saved, %", "the thesis's"),
            [
                (
                    one.model.name,
                    f"{one.model.alone_usd:.3f}",
                    f"{one.model.shared_usd:.3f}",
                    f"{one.sjf_usd:.3f}",
                    f"{one.dqn_usd:.3f}",
                    f"{one.saved_pct:.2f}",
                    f"{COST_SAVED_PCT[one.model.name]:.2f}",
                )
                for one in found
            ],
        )
    ]


def _frontier(result: Colocation, styles: Mapping[str, Style]) -> Chapter:
    points = frontier_points(result)
    line = [
        (f"{weight_of(policy)} s", jobs_by_class(runs)[0], float(np.mean([one.total_s for one in runs])))
        for policy, runs in points.items()
    ]
    others = {
        policy: (jobs_by_class(runs)[0], float(np.mean([one.total_s for one in runs])))
        for policy in result.policies
        if policy != "dqn"
        for runs in [result.of(FRONTIER_WORKLOAD, policy)]
    }
    return Chapter(
        "Total time against jobs that are not slowed, on random",
        "One weight, dqn?unslowed=…, says how many seconds of total time a job is worth that is not slowed by more "
        "than 2 %. At 0 only the total time counts.",
        [
            (
                "Total time against jobs not slowed",
                frontier(line, others, styles, "Total time, mean over sets"),
            )
        ],
        ("A job not slowed is worth", "jobs not slowed", "total time, s"),
        [(name, f"{jobs:.1f}", f"{seconds:,.0f}") for name, jobs, seconds in line],
    )


def _looks(looks: Sequence[Disagreement]) -> Chapter:
    return Chapter(
        "How often the network differs from greedy",
        f"At each decision of dqn at which somebody could start, what greedy would have done; on the first "
        f"{looks[0].seeds} sets of each workload.",
        (),
        (
            "Workload", "decisions", "different, %", "another combination", "holds where greedy starts",
            "starts where greedy holds",
        ),
        [
            (
                one.workload, f"{one.decisions:,}", f"{one.different_pct:.1f}", f"{one.other_combination:,}",
                f"{one.holds:,}", f"{one.starts:,}",
            )
            for one in looks
        ],
    )  # fmt: skip


def _pairs(found: Sequence[Pair], interference: str) -> Chapter:
    names = PAIR_APPLICATIONS
    of = {(pair.first, pair.second): pair for pair in found}

    def square(value: Callable[[Pair], float | None]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        values = [[value(of[one, other]) for other in names] for one in names]
        return np.array([[np.nan if one is None else one for one in row] for row in values])

    full = sorted({tuple(sorted((p.first, p.second))) for p in found if p.slowdown_pct is None})
    return Chapter(
        "Pairs that start together (figure 3)",
        f"As the model '{interference}' has it. Out of memory: {', '.join(' with '.join(pair) for pair in full)}. The "
        "thesis names LAMMPS with LAMMPS, vgg16 with CNN and vgg16 with vgg16.",
        [
            (title, pair_map(names, square(value), title, unit))
            for title, unit, value in (
                ("Run time together, over alone", "% longer", lambda pair: pair.slowdown_pct),
                ("GPU memory at the most", "%", lambda pair: pair.mem_pct),
                ("GPU cores, means added", "%", lambda pair: pair.cores_pct),
                ("PCIe, means added", "%", lambda pair: pair.pcie_pct),
            )
        ],
    )


def _contradictions() -> Chapter:
    return Chapter(
        "Where the thesis contradicts itself",
        " ".join(f"({number}) {text}" for number, text in enumerate(CONTRADICTIONS, 1)),
    )


def _by_policy(result: Colocation, of: Callable[[Outcome], float]) -> dict[str, dict[str, Interval]]:
    return {
        policy: {
            workload: confidence_interval_95([of(one) for one in result.of(workload, policy)])
            for workload in result.workloads
        }
        for policy in result.policies
    }


def _told(of: Callable[[Published], float | None]) -> dict[tuple[str, str], float]:
    return {key: value for key, told in PUBLISHED.items() if (value := of(told)) is not None}


def _beside(ours: str, told: float | None, decimals: int) -> str:
    """Our number, and the thesis's in brackets where it prints one."""
    return ours if told is None else f"{ours} [{told:,.{decimals}f}]"


def _said(interval: Interval, decimals: int) -> str:
    half = f" ± {interval.high - interval.mean:,.{decimals}f}" if interval.count > 1 else ""
    return f"{interval.mean:,.{decimals}f}{half}"
