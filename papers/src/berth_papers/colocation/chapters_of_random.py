"""The chapters on what the thesis shows of the workload `random` alone: slowdown, training, cost; and the frontier."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from berth.plots import Style
from berth.report.report import Chapter
from berth_papers.colocation.answer import costs, frontier_points, jobs_by_class, weight_of
from berth_papers.colocation.experiment import FRONTIER_WORKLOAD, LEARNED, SJF, UNTRAINED, Colocation
from berth_papers.colocation.outcome import CLASSES
from berth_papers.colocation.plots import frontier, slowdown_classes, stacked
from berth_papers.colocation.thesis import COST_SAVED_PCT, COSTS, NORMALISED, NOT_SLOWED


def slowdowns(result: Colocation) -> Chapter:
    """How many jobs of a set are slowed, and by how much."""
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


def overhead(result: Colocation, training_s: Mapping[str, float]) -> list[Chapter]:
    """Run and training together; nothing without SJF, over which it is normalised."""
    if SJF not in result.policies:
        return []
    sjf_s = float(np.mean([one.total_s for one in result.of(FRONTIER_WORKLOAD, SJF)]))
    parts: dict[str, dict[str, float]] = {}
    for policy in result.policies:
        if policy == UNTRAINED:
            continue
        mean_s = float(np.mean([one.total_s for one in result.of(FRONTIER_WORKLOAD, policy)]))
        parts[policy] = {"run": mean_s / sjf_s}
        if training_s:
            parts[policy]["training"] = training_s.get(policy, 0.0) / sjf_s
    published = {policy: value for policy, (value, _) in NORMALISED.items() if policy in parts}
    return [
        Chapter(
            "Time with training, over SJF's, on random (figure 16)",
            "The run and the training that the model needed, over SJF's total time. A model that ships is trained "
            "once, so its first placement waits for no training; where the model's file does not say how long its "
            "training took, it is left out and said. The thesis: Tetris 1.294, DqnGPU 1.081 of which "
            "0.054 (123 s) is training (1.027 without, which is doubtful: see the last section), DeepRM Max 1.303 of "
            "which 0.048, DeepRM Mean 1.346.",
            [
                (
                    "Time with training, over SJF's",
                    stacked(parts, "Total time over SJF's", "", thesis=published),
                )
            ],
            ("Policy", "run", "training", "together", "the thesis's", "of which training"),
            [
                (
                    policy,
                    f"{one['run']:.3f}",
                    _training_ours(policy, training_s, one.get("training", 0.0)),
                    f"{sum(one.values()):.3f}",
                    f"{NORMALISED[policy][0]:.3f}" if policy in NORMALISED else "",
                    _training_published(policy),
                )
                for policy, one in parts.items()
            ],
        )
    ]


def _training_ours(policy: str, training_s: Mapping[str, float], part: float) -> str:
    if policy in training_s:
        return f"{part:.3f}"
    return "not recorded" if policy in LEARNED else ""


def _training_published(policy: str) -> str:
    published = NORMALISED.get(policy, (0.0, None))[1]
    return "" if published is None else f"{published:.3f}"


def cost(result: Colocation) -> list[Chapter]:
    """What a set costs alone and shared; nothing without SJF and `learned`."""
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
                    "Cost of SJF alone and of learned shared",
                    stacked(
                        {
                            f"{one.model.name}, {who}": {"cost": usd}
                            for one in found
                            for who, usd in (("SJF", one.sjf_usd), ("learned", one.learned_usd))
                        },
                        "Cost of a set of jobs",
                        " $",
                        thesis={
                            f"{one.model.name}, learned": one.sjf_usd
                            * (1 - COST_SAVED_PCT[one.model.name] / 100)
                            for one in found
                        },
                        reported_as="what the thesis saves, of our SJF's cost",
                    ),
                )
            ],
            ("Cost model", "alone, $/h", "shared, $/h", "SJF, $", "learned, $", "saved, %", "the thesis's"),
            [
                (
                    one.model.name,
                    f"{one.model.alone_usd:.3f}",
                    f"{one.model.shared_usd:.3f}",
                    f"{one.sjf_usd:.3f}",
                    f"{one.learned_usd:.3f}",
                    f"{one.saved_pct:.2f}",
                    f"{COST_SAVED_PCT[one.model.name]:.2f}",
                )
                for one in found
            ],
        )
    ]


def not_slowed(result: Colocation, styles: Mapping[str, Style]) -> Chapter:
    """What sparing jobs of slowdown costs in total time."""
    points = frontier_points(result)
    line = [
        (f"{weight_of(policy)} s", jobs_by_class(runs)[0], float(np.mean([one.total_s for one in runs])))
        for policy, runs in points.items()
    ]
    others = {
        policy: (jobs_by_class(runs)[0], float(np.mean([one.total_s for one in runs])))
        for policy in result.policies
        if policy != "learned"
        for runs in [result.of(FRONTIER_WORKLOAD, policy)]
    }
    return Chapter(
        "Total time against jobs that are not slowed, on random",
        "One weight, the setting unslowed of learned, says how many seconds of total time a job is worth that is not "
        "slowed by more than 2 %. At 0 only the total time counts.",
        [
            (
                "Total time against jobs not slowed",
                frontier(line, others, styles, "Total time, mean over sets"),
            )
        ],
        ("A job not slowed is worth", "jobs not slowed", "total time, s"),
        [(name, f"{jobs:.1f}", f"{seconds:,.0f}") for name, jobs, seconds in line],
    )
