"""What it costs to take a GPU of a model that other jobs can do without less easily.

Letters: I instances, T request types, L GPU models of the cluster and 0 for none, M typical requests.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from berth.arrays import FloatArray, IntArray
from berth.cluster import Cluster
from berth.model import Job
from berth.policies.placements.score_kernels import MODEL_BITS, MODELS
from berth.policies.placements.scored import Typical

__all__ = ["demand_by_model", "detours"]


def demand_by_model(typical: Typical, cluster: Cluster) -> FloatArray:
    """(L,): the part of each model's GPUs, from 0 to 1, that jobs naming models would fill.

    It is taken at the moment when the usual requests ask for as many GPUs as the cluster has. A request that names
    several models asks for each in proportion to its GPUs; one that may run on every model asks for none.
    """
    milli = np.maximum(cluster.capacity.milli, 0).sum(axis=1)
    supply = np.bincount(cluster.node_models, weights=milli, minlength=len(cluster.models) + 1)
    demand = np.zeros(len(supply))
    asked = typical.weight * typical.requests[:, 0] * typical.requests[:, 1]
    numbers = np.arange(len(supply))
    words = typical.requests[:, MODELS + numbers // MODEL_BITS]  # (M, L)
    named = ((words >> numbers % MODEL_BITS) & 1).astype(np.bool_) & (supply > 0)
    for allowed, amount in zip(named, asked, strict=True):
        if amount > 0 and allowed.any() and not allowed[supply > 0].all():
            demand[allowed] += amount * supply[allowed] / supply[allowed].sum()
    total = asked.sum()
    if total <= 0:
        return demand
    there = supply > 0
    demand[there] *= supply.sum() / total / supply[there]
    return np.minimum(demand, 1.0)


def detours(
    jobs: Sequence[Job], type_of: IntArray, milli: IntArray, typical: Typical, cluster: Cluster
) -> FloatArray:
    """(T, L): what a request type costs on a model, in GPUs, compared with the best model that it may run on.

    `jobs` and `type_of` are (I,), `milli` (T,) is what one instance takes of GPUs. A job that has no choice pays
    nothing: no one could put it elsewhere.
    """
    demand = demand_by_model(typical, cluster)
    cost = np.zeros((len(milli), len(demand)))
    there = np.zeros(len(demand), dtype=np.bool_)
    there[cluster.node_models] = True
    done: set[int] = set()
    for job, kind in zip(jobs, type_of.tolist(), strict=True):
        if kind in done or not milli[kind]:
            continue
        done.add(kind)
        allowed = there.copy()
        if job.models:
            allowed[:] = False
            allowed[[cluster.models[name] for name in job.models if name in cluster.models]] = True
        least = demand[allowed & (np.arange(len(demand)) > 0)].min(initial=1.0)
        cost[kind] = milli[kind] / 1000 * np.maximum(demand - least, 0)
    return cost
