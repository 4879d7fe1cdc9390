"""The report on co-location: chapter V of the thesis, its numbers beside ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from berth.plots import policy_styles
from berth.report.report import Chapter
from berth.statistics import best_sentence
from berth_papers.colocation.chapters_of_random import cost, not_slowed, overhead, slowdowns
from berth_papers.colocation.chapters_of_totals import claimed, pairwise, to_bound, totals, use
from berth_papers.colocation.disagreement import PAIR_APPLICATIONS, Disagreement, Pair
from berth_papers.colocation.experiment import FRONTIER_WORKLOAD, Colocation
from berth_papers.colocation.plots import pair_map
from berth_papers.colocation.thesis import CONTRADICTIONS
from berth_papers.colocation.untrained import UntrainedComparison, untrained_comparisons


def colocation_answers(result: Colocation) -> tuple[str, ...]:
    """For each workload, under which policy its jobs are done soonest."""
    found = []
    for workload in result.workloads:
        times = {name: [one.total_s for one in result.of(workload, name)] for name in result.policies}
        sentence = best_sentence(times, "is done soonest", "s from first submission to last end", least=True)
        found.append(f"{workload}: {sentence}" if sentence else "")
    return tuple(sentence for sentence in found if sentence)


def colocation_chapters(
    result: Colocation,
    disagreements: Sequence[Disagreement],
    pairs: Sequence[Pair],
    training_s: Mapping[str, float],
) -> list[Chapter]:
    """Everything that was measured, in the order of the thesis; parts without anything to show are left out."""
    styles = policy_styles(result.policies)
    chapters = [totals(result, styles), use(result, styles)]
    if "learned" in result.policies:
        chapters += [claimed(result), pairwise(result, styles)]
    if result.bounds:
        chapters.append(to_bound(result, styles))
    if FRONTIER_WORKLOAD in result.workloads:
        chapters += [slowdowns(result), *overhead(result, training_s), *cost(result)]
        if result.frontier:
            chapters.append(not_slowed(result, styles))
    if disagreements:
        chapters.append(_disagreements(disagreements))
    if comparisons := untrained_comparisons(result):
        chapters.append(_untrained(comparisons))
    chapters.append(_pairs(pairs, result.interference))
    chapters.append(_contradictions())
    return chapters


def _disagreements(disagreements: Sequence[Disagreement]) -> Chapter:
    return Chapter(
        "How often the network differs from greedy",
        f"At each decision of learned at which somebody could start, what greedy would have done; on the first "
        f"{f'{disagreements[0].seeds} sets' if disagreements[0].seeds > 1 else 'set'} of each workload.",
        (),
        (
            "Workload",
            "decisions",
            "different, %",
            "another combination",
            "holds where greedy starts",
            "starts where greedy holds",
        ),
        [
            (
                one.workload,
                f"{one.decisions:,}",
                f"{one.different_pct:.1f}",
                f"{one.other_combination:,}",
                f"{one.holds:,}",
                f"{one.starts:,}",
            )
            for one in disagreements
        ],
    )


def _untrained(comparisons: Sequence[UntrainedComparison]) -> Chapter:
    ahead = sum(one.better for one in comparisons if one.over != "learned")
    sets = sum(one.sets for one in comparisons if one.over != "learned")
    return Chapter(
        "A network that has learned nothing",
        "learned?model=untrained has random weights, but the forecast and the shield of learned: it starts nothing "
        "that would run out of memory or end later together than in turn. Much of what learned gains over running "
        "one job after the other is theirs: untrained, it is sooner done than another policy in "
        f"{ahead:,} of {sets:,} comparisons set "
        "by set, learned itself left aside. What training adds is the rows of learned.",
        (),
        ("Workload, other policy", "its mean against the other's, %", "sooner, sets", "the same", "later"),
        [
            (
                f"{one.workload}, {one.over}",
                f"{one.difference_pct:+.2f}",
                f"{one.better:,}",
                f"{one.equal:,}",
                f"{one.worse:,}",
            )
            for one in comparisons
        ],
    )


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
