"""Heuristics that suit some sets of jobs, found by trying."""

from __future__ import annotations

import numpy as np

from berth.arrays import FloatArray
from berth.learning.jobsets import JobSets
from berth.learning.queue_kernels import NETWORK
from berth.learning.rollouts import Rollouts, as_heuristic, heuristic


def tuned_heuristics(
    model: Rollouts, sets: JobSets, count: int, tries: int, tuned_on: int, seed: int
) -> FloatArray:
    """The two heuristics of every world (mean speeds; joint progress), and `count` others: (2 + count, 2, F).

    Each of these is changed at random. A change is kept if the least total time over all heuristics falls on `tuned_on`
    of the sets.
    """
    heuristics = [heuristic((1, 1.0)), heuristic((0, 1.0))]
    if not count:
        return np.stack(heuristics)
    draw = np.random.default_rng([seed, 1])
    rows = draw.choice(len(sets.work_ms), min(tuned_on, len(sets.work_ms)), replace=False)
    sets = JobSets(sets.application[rows], sets.work_ms[rows])
    alone_ms = sets.work_ms.sum(axis=1)
    least = np.min([model.heuristic_ms(one, sets) / alone_ms for one in heuristics], axis=0)
    for _ in range(count):
        chosen, size = heuristics[0], 0.5
        worth = np.minimum(least, model.heuristic_ms(chosen, sets) / alone_ms)
        for _ in range(tries):
            tried = chosen + as_heuristic(
                draw.normal(0, size, (2, NETWORK)) * (draw.random((2, NETWORK)) < 0.3)
            )
            found = np.minimum(least, model.heuristic_ms(tried, sets) / alone_ms)
            better = found.mean() < worth.mean()
            size = min(size * 1.3, 1.0) if better else max(size * 0.985, 0.05)
            chosen, worth = (tried, found) if better else (chosen, worth)
        heuristics.append(chosen)
        least = worth
    return np.stack(heuristics)
