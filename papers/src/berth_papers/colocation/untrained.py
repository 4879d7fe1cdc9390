"""How a network that has learned nothing fares: what `learned` owes to forecast and shield."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from berth_papers.colocation.experiment import UNTRAINED, Colocation


@dataclass(frozen=True, slots=True)
class UntrainedComparison:
    """The untrained network beside another policy, on the same sets of a workload."""

    workload: str
    over: str
    """The other policy."""
    better: int
    """Sets on which the untrained network is done sooner."""
    equal: int
    worse: int
    difference_pct: float
    """By how much its mean total time is above the other's."""

    @property
    def sets(self) -> int:
        """How many there are."""
        return self.better + self.equal + self.worse


def untrained_comparisons(result: Colocation) -> list[UntrainedComparison]:
    """One for each workload and each policy that is not the untrained network; nothing where it did not run."""
    if UNTRAINED not in result.policies:
        return []
    found = []
    for workload in result.workloads:
        ours = np.array([one.total_s for one in result.of(workload, UNTRAINED)])
        for other in result.policies:
            if other == UNTRAINED:
                continue
            theirs = np.array([one.total_s for one in result.of(workload, other)])
            found.append(
                UntrainedComparison(
                    workload,
                    other,
                    int((ours < theirs).sum()),
                    int((ours == theirs).sum()),
                    int((ours > theirs).sum()),
                    100 * float(ours.mean() / theirs.mean() - 1),
                )
            )
    return found
