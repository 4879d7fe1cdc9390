"""What it costs to take a GPU of a kind of node that other jobs can do without less easily.

Nodes of one kind have the same GPU model, as many GPUs and as much CPU. A job has a choice among the kinds that it fits
on when they are empty. Letters: I instances, T request types, N nodes of the cluster, L kinds of them, M typical
requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from berth.arrays import BoolArray, FloatArray, IntArray
from berth.cluster import Cluster
from berth.cluster.kernels import CPU, GPUS, MILLI
from berth.model import Job
from berth.policies.placements.score_kernels import MODEL_BITS, MODELS
from berth.policies.placements.scored import Typical


class Kinds(NamedTuple):
    """The kinds of a cluster's nodes."""

    of_node: IntArray  # (N,)
    models: IntArray  # (L,): the number of the GPU model
    gpus: IntArray  # (L,): of one node
    cpu_milli: IntArray  # (L,): of one node
    supply: FloatArray  # (L,): GPU milli of all of them


def kinds_of(cluster: Cluster) -> Kinds:
    """The kinds of its nodes."""
    milli = cluster.capacity.milli
    gpus = (milli >= 0).sum(axis=1)
    traits = np.stack([cluster.node_models, gpus, cluster.capacity.cpu_milli])
    kinds, of_node = np.unique(traits, axis=1, return_inverse=True)
    of_node = of_node.reshape(-1)
    supply = np.zeros(kinds.shape[1])
    np.add.at(supply, of_node, np.maximum(milli, 0).sum(axis=1))
    return Kinds(of_node, kinds[0], kinds[1], kinds[2], supply)


def demand_by_kind(typical: Typical, kinds: Kinds) -> FloatArray:
    """(L,): the part of each kind's GPUs, from 0 to 1, that jobs which cannot run elsewhere would fill.

    It is taken at the moment when the usual requests ask for as many GPUs as the cluster has. A request that names
    several models asks for each in proportion to its GPUs; one that may run on every model asks for none. Kinds whose
    CPU or number of GPUs a request needs are all wanted, if the requests that need them ask for more than there is,
    and not at all otherwise: others find room there in time.
    """
    there = kinds.supply > 0
    asked = typical.weight * typical.requests[:, 0] * typical.requests[:, 1]
    total = asked.sum()
    demand = np.zeros(len(there))
    if total <= 0:
        return demand
    asked = asked * (kinds.supply.sum() / total)
    words = typical.requests[:, MODELS + kinds.models // MODEL_BITS]  # (M, L)
    named = ((words >> kinds.models % MODEL_BITS) & 1).astype(np.bool_) & there
    room = _has_room(kinds, typical.requests[:, 0], typical.requests[:, 2])
    wanted: dict[bytes, float] = {}  # by which kinds have room
    for allowed, fits, amount in zip(named, named & room, asked, strict=True):
        if amount > 0 and allowed.any() and not allowed[there].all():
            demand[allowed] += amount * kinds.supply[allowed] / kinds.supply[allowed].sum()
        if amount > 0 and fits.any() and not fits[allowed].all():
            wanted[fits.tobytes()] = wanted.get(fits.tobytes(), 0.0) + amount
    demand[there] /= kinds.supply[there]
    sets = {key: np.frombuffer(key, dtype=np.bool_) for key in wanted}
    for fits in sets.values():
        within = sum(wanted[key] for key, other in sets.items() if not (other & ~fits).any())
        if within >= kinds.supply[fits].sum():
            demand[fits] = 1.0
    return np.minimum(demand, 1.0)


def detours(
    jobs: Sequence[Job],
    type_of: IntArray,
    requests: IntArray,
    typical: Typical,
    cluster: Cluster,
    kinds: Kinds,
) -> FloatArray:
    """(T, L): what a request type costs on a kind of node, in GPUs, compared with the best kind that it fits on.

    `jobs` and `type_of` are (I,), `requests` (T, 5) is what one instance takes. A job that has no choice pays nothing:
    it could go nowhere else.
    """
    demand = demand_by_kind(typical, kinds)
    milli = requests[:, GPUS] * requests[:, MILLI]
    room = _has_room(kinds, requests[:, GPUS], requests[:, CPU]) & (kinds.supply > 0)
    cost = np.zeros(room.shape)
    done: set[int] = set()
    for job, kind in zip(jobs, type_of.tolist(), strict=True):
        if kind in done or not milli[kind]:
            continue
        done.add(kind)
        allowed = room[kind]
        if job.models:
            named = [cluster.models[name] for name in job.models if name in cluster.models]
            allowed = allowed & np.isin(kinds.models, named)
        least = demand[allowed].min(initial=1.0)
        cost[kind] = milli[kind] / 1000 * np.maximum(demand - least, 0)
    return cost


def _has_room(kinds: Kinds, gpus: IntArray, cpu_milli: IntArray) -> BoolArray:
    """(T, L): whether an empty node of each kind has the GPUs and the CPU of each request."""
    return (kinds.cpu_milli >= cpu_milli[:, None]) & (kinds.gpus >= gpus[:, None])
