"""The chapters of the reports on genetic scheduling: utilisation, and the distance to the optimum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from berth.plots import Style, policy_styles
from berth.report.report import Chapter
from berth.statistics import Interval, best_sentence, confidence_interval_95, paired_difference_95
from berth_papers.genetic.optimality import Gap, Optimality, optimality_dict
from berth_papers.genetic.plots import (
    LEAST_SEEDS,
    completion_times,
    convergence,
    gaps,
    margins_over,
    utilisation_by_jobs,
)
from berth_papers.genetic.utilisation import Outcome, margins
from berth_papers.genetic.utilisation_run import SIZES


def utilisation_answers(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """For each case, which policy holds most of the GPUs, and what a search adds to passing over."""
    found = []
    cases = dict.fromkeys(one.case for one in outcomes)
    for case in cases:
        held: dict[str, list[float]] = {}
        for one in sorted((one for one in outcomes if one.case == case), key=lambda one: one.seed):
            held.setdefault(one.policy, []).append(one.utilisation_pct)
        sentence = best_sentence(held, "holds most of the GPUs", "% of them", least=False)
        found += [
            f"{case}: {text}" if len(cases) > 1 else text
            for text in (sentence, _against_control(held))
            if text
        ]
    return tuple(found)


def _against_control(held: Mapping[str, Sequence[float]]) -> str:
    """What the search of `genetic` is worth beside the best policy that only passes over what does not fit."""
    controls = {name: of_seeds for name, of_seeds in held.items() if name.startswith("passing+")}
    if "genetic" not in held or not controls:
        return ""
    best = max(controls, key=lambda name: fmean(controls[name]))
    points = paired_difference_95(held["genetic"], controls[best])
    half = f" ± {points.high - points.mean:.2f}" if points.count >= LEAST_SEEDS else ""
    return (
        f"Beside {best}, the best of those that pass over jobs without a search, genetic is at"
        f" {points.mean:+.2f}{half} points."
    )


def optimality_answers(found: Sequence[Optimality]) -> tuple[str, ...]:
    """Which policies reach the optimum, and which is nearest to it."""
    gaps_of: dict[str, list[float]] = {}
    for one in found:
        for gap in one.gaps:
            gaps_of.setdefault(gap.policy, []).append(gap.gap_pct)
    sentence = best_sentence(
        gaps_of, "is nearest to the optimum", "% below it on average", least=True, pairs="batches"
    )
    reached = [
        name for name, values in gaps_of.items() if all(one.proven for one in found) and max(values) == 0
    ]
    batches = f"all {len(found):,} batches" if len(found) > 1 else "the batch"
    top = f"The optimum is reached in {batches} by {', '.join(reached)}." if reached else ""
    return tuple(filter(None, (top, sentence)))


def utilisation_chapters(outcomes: Sequence[Outcome]) -> list[Chapter]:
    """Up to three chapters a case: figures 3 and 4 of the paper, waits by size, and the margins."""
    chapters = []
    for case in dict.fromkeys(one.case for one in outcomes):
        here = [one for one in outcomes if one.case == case]
        policies = tuple(dict.fromkeys(one.policy for one in here))
        seeds = tuple(sorted({one.seed for one in here}))
        styles = policy_styles(policies)
        chapters.append(_case(case, here, policies, seeds, styles))
        chapters += _waits(case, here, policies)
        chapters += _margins(case, here, styles)
    return chapters


def _case(
    case: str,
    here: Sequence[Outcome],
    policies: Sequence[str],
    seeds: Sequence[int],
    styles: Mapping[str, Style],
) -> Chapter:
    of = {policy: [one for one in here if one.policy == policy] for policy in policies}
    held = {
        policy: confidence_interval_95([one.utilisation_pct for one in of[policy]]) for policy in policies
    }
    times = {
        policy: (
            confidence_interval_95([one.run_time_s for one in of[policy]]),
            confidence_interval_95([one.completion_s for one in of[policy]]),
        )
        for policy in policies
    }
    begin, end = (np.mean([one.span_ms[at] for one in here]) / 3_600_000 for at in (0, 1))
    most = np.mean([one.most_pct for one in here])
    jobs = np.mean([one.jobs for one in here])
    never = np.mean([one.never_fitting for one in here])
    few = ", too few for intervals" if 1 < len(seeds) < LEAST_SEEDS else ""
    over = f"means over {len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
    lost = (
        f" Of {jobs:,.0f} jobs {never:,.0f} ask for what no node has, even empty: they are rejected at once, though "
        "what they ask for counts in the 130 %."
        if never
        else ""
    )
    return Chapter(
        case,
        f"Utilisation is GPU capacity held, from hour {begin:.2f} to hour {end:.2f} of the run ({over}{few}): "
        "from when 130 % of the GPUs have been asked for until the jobs that wait under some policy ask for less than "
        "10 % of them; the same time for all policies of a seed. Where that never happens it is the time from the "
        f"first submission to the last. No policy could hold more than {most:.2f} % in that time. Completion is "
        "measured from start to end as in the paper, where waiting does not show, and from submission to end, over "
        "the jobs that finished under the policy: under another they may be others, and jobs that left the queue are "
        f"in neither.{lost}",
        (
            (
                "GPU utilisation against jobs scheduled",
                utilisation_by_jobs(
                    {p: [(one.scheduled, one.after_pct) for one in of[p]] for p in policies}, styles, over
                ),
            ),
            ("Mean completion time of each policy", completion_times(times, styles, over)),
        ),
        ("Policy", "GPU utilisation, %", "start to end, h", "submission to end, h", "jobs finished", "of"),
        [
            (
                policy,
                _with_interval(held[policy]),
                _with_interval(times[policy][0], 3600),
                _with_interval(times[policy][1], 3600),
                f"{np.mean([one.finished for one in of[policy]]):,.0f}",
                f"{np.mean([one.jobs for one in of[policy]]):,.0f}",
            )
            for policy in sorted(policies, key=lambda name: -held[name].mean)
        ],
        policies,
        seeds,
    )


def _waits(case: str, here: Sequence[Outcome], policies: Sequence[str]) -> list[Chapter]:
    """How long jobs wait by the GPUs that they ask for; nothing where kept runs do not tell."""
    if not all(len(one.waits) for one in here):
        return []
    of = {policy: np.array([one.waits for one in here if one.policy == policy]) for policy in policies}
    came = next(iter(of.values()))[:, :, 0].mean(axis=0)
    sizes = np.flatnonzero(came).tolist()
    return [
        Chapter(
            f"Waits by size: {case}",
            "Mean wait in hours of the jobs that started, by the GPUs that a job asks for; in brackets how "
            "many started. A policy that passes over jobs that do not fit fills the GPUs but keeps no "
            "room free for large jobs.",
            [],
            ("Policy", *(f"{SIZES[at][0]}: {came[at]:,.0f} jobs" for at in sizes)),
            [(policy, *(_wait_text(of[policy][:, at, :]) for at in sizes)) for policy in policies],
            policies,
        )
    ]


def _wait_text(of_seeds: NDArray[np.float64]) -> str:
    """(seeds, 3) as a text: the mean wait over all jobs that started under any seed."""
    started = of_seeds[:, 1]
    if not started.any():
        return "none started"
    mean_h = float(np.sum(np.nan_to_num(of_seeds[:, 2]) * started) / started.sum()) / 3600
    return f"{mean_h:.2f} ({started.mean():,.0f})"


def _margins(case: str, here: Sequence[Outcome], styles: Mapping[str, Style]) -> list[Chapter]:
    found = margins(here, case)
    ours = dict.fromkeys(margin.policy for margin in found)
    if not found:
        return []
    return [
        Chapter(
            f"Margins: {case}",
            "Paired over seeds, with 95 % intervals from three seeds on. The paper's margins are its own figures, for "
            "its own trace; it "
            "does not say whether they are points or relative. The most there is: what no policy could exceed, since "
            "no more had come, or no more of it for GPUs of that model, less what the other one holds. No policy "
            "could be further above it, wherever the paper's margin lies.",
            [
                (
                    f"By how much {policy} uses the GPUs more than others",
                    margins_over(
                        [(m.over, m.points, m.paper_pct, m.most_points) for m in found if m.policy == policy],
                        f"{policy} above others",
                        styles[policy].colour,
                    ),
                )
                for policy in ours
            ],
            (
                "Policy",
                "above",
                "points",
                "relative, %",
                "the paper's",
                "the most there is, points",
                "relative, %",
            ),
            [
                (
                    m.policy,
                    m.over,
                    _with_interval(m.points),
                    _with_interval(m.relative_pct),
                    "" if m.paper_pct is None else f"{m.paper_pct:.1f} %",
                    f"{m.most_points:.2f}",
                    "" if m.most_relative_pct is None else f"{m.most_relative_pct:.1f}",
                )
                for m in found
            ],
        )
    ]


def optimality_chapter(found: Sequence[Optimality]) -> Chapter:
    """What each policy leaves of the optimum, the nearest first."""
    policies = _nearest_first(found)
    answer: dict[str, dict[str, float]] = optimality_dict(found)["policies"]
    proven = sum(one.proven for one in found)
    certain = (
        "HiGHS has proven it for each batch"
        if proven == len(found)
        else f"HiGHS has proven it for {proven} of {len(found)} batches; in the others the gap is to the bound"
    )
    pooled = [100 * (one.pooled_paper_milli / one.bound_milli - 1) for one in found if one.bound_milli > 0]
    return Chapter(
        f"{len(found):,} {'batch' if len(found) == 1 else 'batches'}",
        f"The optimum is the most GPU milli that can be placed at once; {certain}. Policies with the smallest mean gap "
        "come first. On pooled GPUs, where fractions fit that no device could hold, the paper's algorithm claims "
        f"{np.mean(pooled or [0]):.1f} % more than that (mean): an upper bound, never a result.",
        [
            (
                "What each policy leaves of the optimum",
                gaps(
                    {name: [_gap(one, name).gap_pct for one in found] for name in policies},
                    policy_styles(policies),
                ),
            )
        ],
        (
            "Policy",
            "gap, median %",
            "mean %",
            "worst %",
            "ms, median",
            "ms, worst",
            "processor ms, median",
        ),
        [
            (
                name,
                f"{one['gap_median_pct']:.2f}",
                f"{one['gap_mean_pct']:.2f}",
                f"{one['gap_worst_pct']:.2f}",
                f"{1000 * one['seconds_median']:.1f}",
                f"{1000 * one['seconds_worst']:.1f}",
                f"{1000 * one['processor_s_median']:.1f}",
            )
            for name, one in ((name, answer[name]) for name in policies)
        ],
        policies,
    )


def _nearest_first(found: Sequence[Optimality]) -> list[str]:
    """The policies by their mean gap: the winner comes first, where no narrow screen cuts it off."""
    mean = {gap.policy: sum(one.gaps[at].gap_pct for one in found) for at, gap in enumerate(found[0].gaps)}
    return sorted(mean, key=lambda name: mean[name])


def _gap(one: Optimality, policy: str) -> Gap:
    return next(gap for gap in one.gaps if gap.policy == policy)


SHOWN_BATCHES = 200


def batches_chapter(found: Sequence[Optimality]) -> Chapter:
    """What each policy places of each batch, the most there is, and what fits nowhere."""
    policies = _nearest_first(found)
    proven = all(one.proven for one in found)
    lost = [f"batch {one.batch}: {line}" for one in found for line in one.unplaceable]
    unplaced = f" Instances that fit on no machine: {'; '.join(lost[:20])}" if lost else ""
    more = f"; and {len(lost) - 20:,} more (result.json has all)." if len(lost) > 20 else "." if lost else ""
    cut = f" The first {SHOWN_BATCHES} of {len(found):,} batches." if len(found) > SHOWN_BATCHES else ""
    return Chapter(
        "Each batch",
        "GPUs placed. "
        + (
            ""
            if proven
            else "No placement has more than the bound, which is the optimum where that is proven. "
        )
        + f"Pooled is what would fit if all GPUs were one, an upper bound and never a result.{cut}{unplaced}{more}",
        [],
        ("Batch", "asked", "optimum", *(() if proven else ("bound", "relaxed")), "pooled", *policies),
        [
            (
                one.batch,
                _gpus(one.asked_milli),
                "" if one.optimum_milli is None else _gpus(one.optimum_milli),
                *(() if proven else (_gpus(one.bound_milli), _gpus(one.relaxed_milli))),
                _gpus(one.pooled_milli),
                *(_gpus(_gap(one, name).placed_milli) for name in policies),
            )
            for one in found[:SHOWN_BATCHES]
        ],
        policies,
    )


def _gpus(milli: float) -> str:
    return f"{milli / 1000:.2f}"


def convergence_chapter(one: Optimality) -> list[Chapter]:
    """How the searches among the policies got better over generations on a batch; nothing where there is none."""
    histories = {gap.policy: gap.history for gap in one.gaps if gap.history is not None and len(gap.history)}
    if not histories:
        return []
    styles = policy_styles(gap.policy for gap in one.gaps)
    return [
        Chapter(
            f"Convergence on batch {one.batch}",
            "The searches that were measured, with their settings, on the first batch. Each by its own measure, as "
            "the part of the way from the mean of its first solutions to the best that it ever had: genetic begins "
            "with the heuristics' solutions, genetic-paper with random ones. 100 % all along: the first were as "
            "good as the last.",
            [
                (
                    "How searches get better over generations",
                    convergence(histories, styles, "The best solution, and the mean of all"),
                )
            ],
        )
    ]


def _with_interval(interval: Interval, per: float = 1.0) -> str:
    half = f" ± {(interval.high - interval.mean) / per:.2f}" if interval.count >= LEAST_SEEDS else ""
    return f"{interval.mean / per:.2f}{half}"
