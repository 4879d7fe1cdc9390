"""The most GPU that a batch of jobs can be given at once, exactly or as a bound.

Both are mixed-integer models solved by HiGHS (Huangfu and Hall, "Parallelizing the dual revised simplex method",
Mathematical Programming Computation 10, 2018), which the extra `optimum` brings. The exact one knows every GPU;
its relaxation knows each node's sums.
Letters as in `policies.batch`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from berth.arrays import IntArray
from berth.cluster.kernels import CPU, GPU_MEM, GPUS, MEM, MILLI
from berth.policies.genetic.batch import Batch
from berth_papers.bounds.highs import Maximum

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Optimum:
    """The most GPU milli that a batch can be given."""

    milli: int
    """Of the best placement that was found."""
    bound_milli: float
    """No placement has more."""
    proven: bool
    """Whether the two are the same."""
    node: IntArray  # (I,): −1 where the instance is not placed
    devices: IntArray  # (I,): bits of its GPUs


def optimum(batch: Batch, *, time_limit_s: float = 60.0, threads: int = 1) -> Optimum:
    """The placement with the most GPU milli, jobs without GPUs left out; the best so far at the time limit.

    Whole numbers: how many GPUs d of node v instances of type t take, and how many instances on v that is. No
    more than the GPU, its memory, the node's CPU and memory, and as many instances as there are.
    """
    model = Maximum()
    requests, caps = batch.requests, _caps(batch)
    counts = np.bincount(batch.type_of, minlength=len(requests))
    on_device: dict[tuple[int, int, int], int] = {}
    on_node: dict[tuple[int, int], int] = {}
    for kind in np.flatnonzero(requests[:, GPUS] * requests[:, MILLI] > 0).tolist():
        gpus, milli, gpu_mem = (int(requests[kind, at]) for at in (GPUS, MILLI, GPU_MEM))
        for node in np.flatnonzero(batch.fit[kind]).tolist():
            usable = (batch.free_milli[node] >= milli) & (batch.free_gpu_mem[node] >= gpu_mem)
            most = int(counts[kind])
            instances = model.variable(most, float(gpus * milli))
            on_node[kind, node] = instances
            takes = [(instances, -float(gpus))]
            for device in np.flatnonzero(usable).tolist():
                here = min(most, int(batch.free_milli[node, device]) // milli)
                taken = on_device[kind, node, device] = model.variable(here, 0.0)
                takes.append((taken, 1.0))
                if gpus > 1:
                    model.row([(taken, 1.0), (instances, -1.0)], upper=0.0)
            model.row(takes, lower=0.0, upper=0.0)
    for kind in range(len(requests)):
        model.row([(v, 1.0) for (t, _), v in on_node.items() if t == kind], upper=float(counts[kind]))
    for node in range(len(batch.nodes)):
        here_of = [(t, v) for (t, n), v in on_node.items() if n == node]
        for column, free in ((CPU, batch.free_cpu), (MEM, batch.free_mem)):
            model.row([(v, float(requests[t, column])) for t, v in here_of], upper=float(free[node]))
        loads = []
        for device in range(batch.free_milli.shape[1]):
            there = [(t, v) for (t, n, d), v in on_device.items() if n == node and d == device]
            load = [(v, float(requests[t, MILLI])) for t, v in there]
            model.row(load, upper=float(caps[node, device]))
            if any(requests[t, GPU_MEM] for t, _ in there):
                memory = [(v, float(requests[t, GPU_MEM])) for t, v in there]
                model.row(memory, upper=float(batch.free_gpu_mem[node, device]))
            loads.append((batch.free_milli[node, device], batch.free_gpu_mem[node, device], load))
        for (milli, mem, load), (next_milli, next_mem, next_load) in pairwise(loads):
            if milli == next_milli and mem == next_mem and load:  # equal GPUs: the fuller one first
                model.row(load + [(v, -weight) for v, weight in next_load], lower=0.0)
    values, bound = model.solve(time_limit_s, threads, integer=True)
    node_of, devices = _assign(batch, values, on_device)
    milli = int(batch.milli[node_of >= 0].sum())
    return Optimum(milli, bound, bound < milli + 1.0, node_of, devices)


def relaxed_milli(batch: Batch, *, time_limit_s: float = 60.0) -> float:
    """No placement of the batch has more GPU milli: a linear program on the nodes' sums.

    Nodes in the same state are one, and instances may be split. Kept of single GPUs is how much of each one the
    requests can fill at all, and that two requests for more than half of a GPU need two GPUs.
    """
    model = Maximum()
    requests, caps = batch.requests, _caps(batch)
    counts = np.bincount(batch.type_of, minlength=len(requests))
    states = np.concatenate(
        [
            batch.free_cpu[:, None],
            batch.free_mem[:, None],
            batch.free_milli,
            np.where(batch.free_milli < 0, 0, batch.free_gpu_mem),
            batch.fit.T,
        ],
        axis=1,
    )
    _, first, group = np.unique(states, axis=0, return_index=True, return_inverse=True)
    alike = np.bincount(group.reshape(-1))
    milli = requests[:, GPUS] * requests[:, MILLI]
    of_type: list[list[tuple[int, float]]] = [[] for _ in requests]
    for node, many in zip(first.tolist(), alike.tolist(), strict=True):
        kinds = np.flatnonzero(batch.fit[:, node] & (milli > 0)).tolist()
        here = {kind: model.variable(float(counts[kind]), float(milli[kind])) for kind in kinds}
        for kind, variable in here.items():
            of_type[kind].append((variable, 1.0))
        for column, free in ((CPU, batch.free_cpu), (MEM, batch.free_mem)):
            model.row(
                [(v, float(requests[t, column])) for t, v in here.items()], upper=float(many * free[node])
            )
        model.row([(v, float(milli[t])) for t, v in here.items()], upper=float(many * caps[node].sum()))
        half = 500
        large = [(v, float(requests[t, GPUS])) for t, v in here.items() if requests[t, MILLI] > half]
        model.row(large, upper=float(many * (batch.free_milli[node] > half).sum()))
        for size in {int(requests[t, MILLI]) for t in here if requests[t, MILLI] > half}:
            least = [(v, float(requests[t, GPUS])) for t, v in here.items() if requests[t, MILLI] >= size]
            model.row(least, upper=float(many * (batch.free_milli[node] >= size).sum()))
    for kind, entries in enumerate(of_type):
        model.row(entries, upper=float(counts[kind]))
    return model.solve(time_limit_s, 1, integer=False)[1]


def pooled_milli(batch: Batch) -> int:
    """What would fit if all GPUs were one: the most, within what is free, that some of the requests add up to.

    `batch` is one of `pooled`. CPU and memory are left aside, so it is an upper bound all the same.
    """
    free, sizes = int(batch.free_milli[batch.free_milli > 0].sum()), batch.milli[batch.milli > 0]
    step = math.gcd(*sizes.tolist()) or 1
    most = free // step
    reached, within = 1, (1 << (most + 1)) - 1  # bit b: some of them add up to b steps
    for size in sizes.tolist():
        if reached >> most:
            break
        reached |= (reached << (size // step)) & within
    return step * (reached.bit_length() - 1)


def reachable(sizes: IntArray, limit: int) -> IntArray:
    """(limit + 1,): the most that requests of these sizes, any number of each, can fill of each capacity."""
    filled = np.zeros(limit + 1, dtype=np.bool_)
    filled[0] = True
    for size in np.unique(sizes[(sizes > 0) & (sizes <= limit)]).tolist():
        for capacity in range(size, limit + 1):
            if filled[capacity - size]:
                filled[capacity] = True
    return np.maximum.accumulate(np.where(filled, np.arange(limit + 1), 0))


def _caps(batch: Batch) -> IntArray:
    """(N, G): what of each GPU the batch's requests can fill at most, given what their sizes add up to."""
    sizes = batch.requests[batch.requests[:, GPUS] > 0, MILLI]
    free = np.maximum(batch.free_milli, 0)
    return reachable(sizes, max(1, int(free.max(initial=1))))[free]


def _assign(
    batch: Batch, values: Floats, on_device: dict[tuple[int, int, int], int]
) -> tuple[IntArray, IntArray]:
    """Give the instances of each type the GPUs that the solution takes for them."""
    node_of = np.full(len(batch.jobs), -1, dtype=np.int64)
    devices = np.zeros(len(batch.jobs), dtype=np.int64)
    waiting: dict[int, list[int]] = {}
    for at, kind in enumerate(batch.type_of.tolist()):
        waiting.setdefault(kind, []).append(at)
    takes: dict[tuple[int, int], list[list[int]]] = {}
    for (kind, node, device), variable in on_device.items():
        number = round(values[variable])
        if number:
            takes.setdefault((kind, node), []).append([number, device])
    for (kind, node), left in takes.items():
        gpus = int(batch.requests[kind, GPUS])
        while left:
            left.sort(key=lambda entry: (-entry[0], entry[1]))  # an instance takes different GPUs
            chosen = left[:gpus]
            for entry in chosen:
                entry[0] -= 1
            at = waiting[kind].pop(0)
            node_of[at] = node
            devices[at] = sum(1 << device for _, device in chosen)
            left = [entry for entry in left if entry[0]]
    return node_of, devices
