"""A batch of waiting jobs and the nodes that any of them fits on, as the arrays that the searches work on.

Letters: I instances (a job on one node is one, a gang as many as it takes nodes), T request types among them,
N nodes, G GPU slots of the largest node. The instances of a gang follow each other and go to nodes of their own, all
of them or none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from berth.arrays import IntArray
from berth.cluster import Cluster
from berth.cluster.kernels import CPU, GPU_MEM, GPUS, MEM, MILLI
from berth.counts import counted
from berth.errors import SettingError
from berth.model import NO_GPU, GpuSlot, Job, Placement
from berth.tenants import WHOLE_MILLI

MOST_GPUS = 63
"""Of a node: those of an instance are bits of a signed number of 64."""
UNPLACED = -1
"""The node of an instance that is not placed."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """A job that fits on no node now, and what it is short of."""

    job: Job
    resource: str
    """GPU model, label, node up, GPUs, GPU memory, CPU, memory, nodes of a gang, or "together" where none is short
    alone."""
    detail: str

    def __str__(self) -> str:
        return f"job '{self.job.id}' fits on no node: {self.detail}"


def grouped(shortages: Iterable[Shortage]) -> list[str]:
    """One line for each shortage: the jobs that have it, and what they lack."""
    jobs: dict[str, list[str]] = {}
    for each in shortages:
        jobs.setdefault(each.detail, []).append(each.job.id)
    return [f"{', '.join(ids)}: {detail}" for detail, ids in jobs.items()]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """What is to be placed and what is free for it. Nothing writes to it."""

    jobs: tuple[Job, ...]
    """(I,): the job of each instance, in the order of the queue; those that there are nodes enough with room for."""
    parts: IntArray  # (I,): how many instances the job has, at its first one; 0 at the others
    type_of: IntArray  # (I,)
    requests: IntArray  # (T, 5): columns as in `Request`
    nodes: IntArray  # (N,): their numbers in the cluster
    free_cpu: IntArray  # (N,)
    free_mem: IntArray  # (N,)
    free_milli: IntArray  # (N, G); −1 where there is no GPU
    free_gpu_mem: IntArray  # (N, G)
    models: IntArray  # (N,): the number of each node's GPU model
    fit: NDArray[np.bool_]  # (T, N): whether the type fits on the node as it is now
    capacity_milli: int
    """Of all GPUs of the cluster, taken or not: what utilisation is measured by."""
    lost: tuple[Job, ...]
    """The jobs that no node has room for, or too few nodes; `shortage_of` says why."""

    @property
    def milli(self) -> IntArray:
        """(I,): GPU milli that each instance takes."""
        wanted = self.requests[self.type_of]
        return wanted[:, GPUS] * wanted[:, MILLI]

    def candidates(self) -> tuple[IntArray, IntArray]:
        """The nodes that each type fits on: (T + 1,) where they begin, and all of them one after another."""
        starts = np.zeros(len(self.requests) + 1, dtype=np.int64)
        np.cumsum(self.fit.sum(axis=1), out=starts[1:])
        return starts, np.nonzero(self.fit)[1].astype(np.int64)

    def placements(self, node: IntArray, devices: IntArray) -> Iterator[Placement]:
        """Instances as placements: `node` (I,) as a number of this batch, `devices` (I,) as bits."""
        for at in np.flatnonzero((node != UNPLACED) & (self.parts > 0)).tolist():
            slots: list[GpuSlot] = []
            for part in range(at, at + int(self.parts[at])):
                number, bits = int(self.nodes[node[part]]), int(devices[part])
                indices = [index for index in range(bits.bit_length()) if bits >> index & 1] or [NO_GPU]
                slots += [GpuSlot(number, index) for index in indices]
            yield Placement(self.jobs[at], tuple(slots), self.jobs[at].share)


def batch_of(jobs: Sequence[Job], cluster: Cluster) -> Batch:
    """The jobs and the cluster as it is now, as arrays of their own; a job that may spread is to go to one node.

    Raises SettingError for a node of more GPUs than a number has bits.
    """
    if (width := cluster.free.milli.shape[1]) > MOST_GPUS:
        raise SettingError(
            f"a node has {width} GPUs; policies that decide on many jobs at once handle at most {MOST_GPUS} per"
            " node: take ORDER+PLACEMENT, or smaller nodes"
        )
    numbers = [cluster.request(job) for job in jobs]
    kinds = dict(zip(numbers, jobs, strict=True))
    wanted = {number: max(1, job.nodes) for number, job in kinds.items()}
    types = list(wanted)
    fit = np.zeros((len(types), len(cluster.nodes)), dtype=np.bool_)
    for row, job in enumerate(kinds.values()):
        fit[row, cluster.fitting_nodes(job)] = True
    enough = fit.sum(axis=1) >= np.array(list(wanted.values()), dtype=np.int64)
    of_batch = [number for number, fitting in zip(types, enough, strict=True) if fitting]
    place = {number: at for at, number in enumerate(of_batch)}
    kept = [(job, number) for job, number in zip(jobs, numbers, strict=True) if number in place]
    lost = [job for job, number in zip(jobs, numbers, strict=True) if number not in place]
    instances = [
        (job, place[number], 0 if part else wanted[number])
        for job, number in kept
        for part in range(wanted[number])
    ]
    fit = fit[enough]
    nodes = np.flatnonzero(fit.any(axis=0))
    return Batch(
        jobs=tuple(job for job, _, _ in instances),
        parts=np.array([parts for _, _, parts in instances], dtype=np.int64),
        type_of=np.array([at for _, at, _ in instances], dtype=np.int64),
        requests=cluster.request_rows(of_batch),
        nodes=nodes,
        free_cpu=cluster.free.cpu_milli[nodes],
        free_mem=cluster.free.mem_mib[nodes],
        free_milli=cluster.free.milli[nodes],
        free_gpu_mem=cluster.free.gpu_mem_mib[nodes],
        models=cluster.node_models[nodes],
        fit=np.ascontiguousarray(fit[:, nodes]),
        capacity_milli=int(np.maximum(cluster.capacity.milli, 0).sum()),
        lost=tuple(lost),
    )


def pooled(jobs: Sequence[Job], cluster: Cluster) -> Batch:
    """A batch with all nodes that are up as one logical machine, and all GPUs as one device of it.

    The first model of Kwon and Bahn 2024, section I. What "fits" so need not fit on any device: an upper bound
    on what the queue's order can place, never a placement. Models and labels are forgotten: the machine has all.
    A gang is one instance here. Jobs that no node has room for are in it: together the rests may do.
    """
    up = cluster.up
    types: dict[int, int] = {}
    parts_of: list[int] = []
    type_of = []
    for job in jobs:
        number = cluster.request(job)
        if number not in types:
            types[number] = len(types)
            parts_of.append(max(1, job.nodes))
        type_of.append(types[number])
    requests = cluster.request_rows(list(types))
    requests[:, [GPUS, CPU, MEM]] *= np.array(parts_of, dtype=np.int64)[:, None]
    requests[:, MILLI] *= requests[:, GPUS]
    requests[:, GPU_MEM] *= requests[:, GPUS]
    requests[:, GPUS] = np.minimum(requests[:, GPUS], 1)
    return Batch(
        jobs=tuple(jobs),
        parts=np.ones(len(jobs), dtype=np.int64),
        type_of=np.array(type_of, dtype=np.int64),
        requests=requests,
        nodes=np.array([-1]),
        free_cpu=np.array([cluster.free.cpu_milli[up].sum()], dtype=np.int64),
        free_mem=np.array([cluster.free.mem_mib[up].sum()], dtype=np.int64),
        free_milli=np.array([[np.maximum(cluster.free.milli[up], 0).sum()]], dtype=np.int64),
        free_gpu_mem=np.array([[np.maximum(cluster.free.gpu_mem_mib[up], 0).sum()]], dtype=np.int64),
        models=np.zeros(1, dtype=np.int64),
        fit=np.ones((len(requests), 1), dtype=np.bool_),
        capacity_milli=int(np.maximum(cluster.capacity.milli, 0).sum()),
        lost=(),
    )


def shortage_of(job: Job, cluster: Cluster) -> Shortage:
    """What a job that fits nowhere is short of: the first thing that no node left has enough of."""
    gpus, milli, gpu_mem, cpu, mem = cluster.row(job)
    left = np.maximum(cluster.free.milli, 0)
    able = (cluster.free.milli >= milli).sum(axis=1)
    with_mem = ((cluster.free.milli >= milli) & (cluster.free.gpu_mem_mib >= gpu_mem)).sum(axis=1)
    each = "1 GPU" if gpus == 1 else f"each of {gpus} GPUs"
    shared = milli < WHOLE_MILLI
    wanted = f"{milli / 10:g} % of {each}" if shared else counted(gpus, "GPU")
    if job.models:
        wanted += f" of model {' or '.join(job.models)}"
    checks = (
        (
            "GPU model",
            cluster.with_model(job) if gpus else None,
            f"no node has GPU model {' or '.join(job.models)}",
        ),
        ("label", cluster.with_labels(job), f"no such node carries the labels {', '.join(job.labels)}"),
        ("node up", cluster.up, "every such node is lost"),
        (
            "GPUs",
            able >= gpus if gpus else None,
            f"{wanted} wanted; no such node has more than {{0}} {'with that much free' if shared else 'free'}",
        ),
        (
            "GPU memory",
            with_mem >= gpus if gpus else None,
            f"{gpu_mem} MiB of GPU memory on {each} wanted; no such node has more than {{1}} with that much, and the"
            " most free on one is {4} MiB",
        ),
        (
            "CPU",
            cluster.free.cpu_milli >= cpu,
            f"{counted(cpu / 1000, 'CPU core')} wanted; no such node has more than {{2:g}} free",
        ),
        (
            "memory",
            cluster.free.mem_mib >= mem,
            f"{mem} MiB of memory wanted; no such node has more than {{3}} free",
        ),
    )
    among = np.ones(len(left), dtype=np.bool_)
    for resource, passed, text in checks:
        if passed is None:
            continue
        if not (among & passed).any():
            most = (
                able[among].max(),
                with_mem[among].max(),
                cluster.free.cpu_milli[among].max() / 1000,
                cluster.free.mem_mib[among].max(),
                cluster.free.gpu_mem_mib[among].max(initial=0),
            )
            return Shortage(job, resource, text.format(*most))
        among &= passed
    if job.nodes > 1:
        detail = f"{job.nodes} nodes wanted at once; only {among.sum()} with room for its part"
        return Shortage(job, "nodes", detail)
    return Shortage(job, "together", "each resource is there, but not on one node")
