"""The nodes that a search looks at: for each type of request those that cost it least to begin with.

Letters as in `packing_kernels`.
"""

from __future__ import annotations

import numpy as np

from berth.arrays import IntArray
from berth.policies.genetic.packing_kernels import Packing, Solution

NODES_A_JOB, MORE_NODES = 2, 32
"""For each type this many nodes a job, and this many more, are looked at, those that cost it least to begin with."""


def worth_a_look(packing: Packing, empty: Solution) -> tuple[Solution, IntArray]:
    """The empty solution on the nodes that matter, and their numbers: for each type those that cost it least."""
    counts = np.bincount(packing.type_of, minlength=len(packing.requests))
    chosen = np.zeros(len(empty.version), dtype=np.bool_)
    for count, cost in zip(counts.tolist(), empty.cost, strict=True):
        wanted = NODES_A_JOB * count + MORE_NODES
        if wanted >= len(cost):
            chosen |= cost < 1e299
            continue
        best = np.argpartition(cost, wanted)[:wanted]
        chosen[best[cost[best] < 1e299]] = True
    kept = np.flatnonzero(chosen)
    if len(kept) == len(chosen):
        return empty, kept
    by_node = {name: getattr(empty, name)[kept] for name in ("cpu", "mem", "milli", "gpu_mem", "used")}
    by_node |= {name: getattr(empty, name)[kept] for name in ("burden", "version")}
    by_type = {
        name: np.ascontiguousarray(getattr(empty, name)[:, kept]) for name in ("seen", "cost", "device")
    }
    return empty._replace(**by_node, **by_type), kept


def on_nodes(packing: Packing, kept: IntArray) -> Packing:
    """The same batch on these nodes alone."""
    if len(kept) == len(packing.cpu):
        return packing
    by_node = {
        name: getattr(packing, name)[kept]
        for name in ("cpu", "mem", "milli", "gpu_mem", "used", "models", "kinds")
    }
    return packing._replace(fit=np.ascontiguousarray(packing.fit[:, kept]), **by_node)


def numbers_of(kept: IntArray, node: IntArray) -> IntArray:
    """Numbers among the kept nodes as numbers among all; −1 stays."""
    return np.append(kept, -1)[node]


def numbers_among(kept: IntArray, node: IntArray) -> IntArray:
    """Numbers among all nodes as numbers among the kept ones, −1 where they are not among them."""
    place = np.full(max(kept.max(initial=-1), node.max(initial=-1)) + 2, -1, dtype=np.int64)
    place[kept] = np.arange(len(kept))
    return place[node]
