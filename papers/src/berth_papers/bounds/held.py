"""The most GPU that any policy could have held over a time, from what came and what there is of each model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from berth.model import Job, Node, work_of

MOST_MODELS = 12
"""If there are more GPU models than this, `most_held_pct` ignores which of them jobs may run on."""


def most_held_pct(jobs: Sequence[Job], nodes: Sequence[Node], begin_ms: int, end_ms: int) -> float:
    """The most of all GPU capacity that any policy could hold, averaged over a time.

    A job holds GPUs from its submission at the earliest, for its work alone, and only of models that it may run on;
    no model holds more than there is of it. What these allow together is a flow from jobs to models, and no more
    than its least cut (Ford and Fulkerson, "Maximal Flow through a Network", Canadian Journal of Mathematics 8,
    1956): over all sets of models, what is in the set and what the jobs ask for that may run outside of it.
    """
    models = sorted({node.gpu_model.name for node in nodes if node.gpu_model and node.gpus})
    there = np.zeros(len(models))
    for node in nodes:
        if node.gpu_model and node.gpus:
            there[models.index(node.gpu_model.name)] += 1000.0 * node.gpus * (end_ms - begin_ms)
    everything = 1000.0 * sum(node.gpus for node in nodes) * (end_ms - begin_ms)
    asked: dict[frozenset[str], float] = {}
    for job in jobs:
        longest = min(work_of(job), end_ms - max(job.submit_ms, begin_ms))
        if job.gpus and longest > 0:
            among = frozenset(job.models).intersection(models) if job.models else frozenset(models)
            asked[among] = asked.get(among, 0.0) + float(job.gpus * job.share.milli) * longest
    most = min(everything, sum(asked.values()))
    if len(there) and there.sum() == everything and len(models) <= MOST_MODELS:
        for chosen in itertools.product((False, True), repeat=len(models)):
            within = frozenset(name for name, taken in zip(models, chosen, strict=True) if taken)
            outside = sum(milli_ms for among, milli_ms in asked.items() if not among <= within)
            most = min(most, float(there[list(chosen)].sum()) + outside)
    return 100 * most / max(everything, 1.0)
