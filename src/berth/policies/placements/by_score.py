"""The placements that are a formula: the node with the highest score, as baselines of the literature compute it; and
`Random`, the lower baseline."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from berth.arrays import FloatArray, IntArray, numbers
from berth.cluster import Cluster, kernels
from berth.errors import PolicyError
from berth.model import NO_GPU, WHOLE_GPU, GpuSlot, Job
from berth.policies.placements import score_kernels
from berth.policies.placements.score_kernels import MODEL_BITS
from berth.policies.placements.scored import Formula, Scored, Typical
from berth.policies.protocol import Setting


class BestFit(Scored):
    """The node that would have the least CPU and GPU left, weighted equally.

    score = trunc 100·(1 − (½·(CPU left − CPU asked)/C + ½·(GPU left − GPU asked)/G)), where C and G are the
    CPU and GPU milli of the largest node (128,000 and 8,000 in the trace of Alibaba). A part of a GPU goes to
    the GPU with the least left. As compared with in Weng et al., "Beware of Fragmentation: Scheduling
    GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX ATC 2023, section 6.1.
    """

    kernel = score_kernels.BEST_FIT


class WorstFit(Scored):
    """The node that would have the most CPU and GPU left, weighted equally: load is spread.

    score = trunc 100·(½·(CPU left − CPU asked)/C + ½·(GPU left − GPU asked)/G), where C and G are the CPU and GPU
    milli of the largest node: the opposite of best fit. A part of a GPU goes to the GPU with the most left, the
    first on ties. Johnson, "Near-optimal bin packing algorithms", PhD thesis, MIT, 1973; Kubernetes calls it
    LeastAllocated.
    """

    kernel = score_kernels.WORST_FIT
    tightest = False
    by_request = True

    def __call__(self, job: Job, cluster: Cluster) -> tuple[GpuSlot, ...] | None:
        """The slots on the emptiest node that fits, on the emptiest nodes for a gang, or None."""
        slots = super().__call__(job, cluster)
        if slots is None or job.gpus != 1 or job.share.milli == 1000:
            return slots
        node = slots[0].node
        left = np.where(cluster.free.gpu_mem_mib[node] >= job.share.mem_mib, cluster.free.milli[node], -1)
        return (GpuSlot(node, int(np.argmax(left))),)


class WholeGpus(BestFit):
    """Best fit with whole GPUs, even for a job that asks for part of one: the baseline for sharing.

    The formula is that of best fit, after Weng et al., USENIX ATC 2023, section 6.1.
    """

    by_request = True

    def __call__(self, job: Job, cluster: Cluster) -> tuple[GpuSlot, ...] | None:
        """The slots on the node that whole GPUs leave with the least, or None."""
        return super().__call__(self.given(job), cluster)

    def given(self, job: Job) -> Job:
        """The job with whole GPUs; of a gang, each of its tasks."""
        if job.tasks:
            return replace(job, share=WHOLE_GPU, tasks=tuple(map(self.given, job.tasks)))
        return job if job.share == WHOLE_GPU or not job.gpus else replace(job, share=WHOLE_GPU)


class DotProduct(Scored):
    """The node with the smallest dot product of its free resources and the request.

    score = trunc 100·(1 − ½·(CPU left/C · CPU asked/C + GPU left/G · GPU asked/G)), where C and G are the CPU
    and GPU milli of the largest node. Alignment after Grandl et al., "Multi-Resource Packing for Cluster
    Schedulers", SIGCOMM 2014, in the form that Weng et al., USENIX ATC 2023, section 6.1, compare with.
    """

    kernel = score_kernels.DOT_PRODUCT


class GpuPacking(Scored):
    """Shared GPUs first, then free GPUs of nodes in use, then free nodes.

    A node with all its n GPUs free scores max(33 − n, n). Else, over the GPUs that the job would take (the
    tightest first), f of them free and r = Σ left·100 div 1000: max(50 − f, 33) where f > 0, max(100 − r div
    10, 50) where not. Jobs without GPUs score 0 everywhere. As compared with in Weng et al., USENIX ATC 2023,
    section 6.1 (there after MLaaS in the Wild, Weng et al., NSDI 2022).
    """

    kernel = score_kernels.GPU_PACKING


class GpuClustering(Scored):
    """Nodes with jobs of the same kind, where a kind is "part of a GPU" or a number of whole GPUs.

    b = 25·(G − GPU left) div G, with G the GPU milli of the largest node. A node that holds this kind alone scores
    b + 75, and b + 50 if it holds others too. A node that holds none scores b + 25, one with only others b. Jobs
    without GPUs score 0 everywhere. As compared with in Weng et al., USENIX ATC 2023, section 6.1 (after Xiao et al.,
    "Gandiva", OSDI 2018).
    """

    kernel = score_kernels.GPU_CLUSTERING


COVERED_PCT = 95
"""Percent of the workload that the typical requests cover (the authors' setting)."""


class Fgd(Scored):
    """The node and GPU that leave the least capacity unusable for typical requests.

    score = trunc 100·sigmoid((F(before) − F(after))/1000), where F(node) = Σ_m p_m·(GPU milli left on the node
    that a request of type m could not use). Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing
    Workloads with Fragmentation Gradient Descent", USENIX ATC 2023, sections 4.1 and 4.2, algorithm 1. The
    types m and their shares p come from the workload that the policy is made with.
    """

    kernel = score_kernels.FGD
    tightest = False
    by_request = True
    by_formula = True

    def __init__(self, setting: Setting | None = None) -> None:
        super().__init__(setting)
        self._learns = self.setting.knowledge.learns
        self._planned_for = 0  # usual requests that were known

    def __call__(self, job: Job, cluster: Cluster) -> tuple[GpuSlot, ...] | None:
        """The slots, or None; what is usual is asked anew when twice as much is known of it, until the knowledge keeps
        no more (`berth.knowledge.user.MOST_REQUESTS`)."""
        if self._learns and len(self.setting.knowledge.usual_requests()) > 2 * self._planned_for:
            cluster.memo.pop(self, None)
        return super().__call__(job, cluster)

    def formula(self, cluster: Cluster) -> Formula | None:
        """None if what is usual may change."""
        return None if self._learns else super().formula(cluster)

    def typical(self, cluster: Cluster) -> Typical:
        """Those that usually come, else those of what runs; PolicyError if an oracle knows of none."""
        knowledge = self.setting.knowledge
        usual = knowledge.usual_requests()
        self._planned_for = len(usual)
        usual = usual or tuple(run.job for run in cluster.running.values())
        if not usual and knowledge.certain:
            raise PolicyError(
                "fgd places by what jobs usually ask for, and knows of none: give simulate() a list of jobs, or make"
                " the policy with a workload, make_policy('fgd', Setting(knowledge=Oracle(jobs)))"
            )
        return typical_requests(usual, cluster)


def typical_requests(workload: Iterable[Job], cluster: Cluster) -> Typical:
    """The most frequent requests of a workload, enough to cover 95 % of its jobs, and their shares of it.

    Ties in frequency go to the larger tuple of CPU, milli, GPUs and models, as in the authors' simulator.
    """
    counts = Counter(
        (job.cpu_milli, job.share.milli if job.gpus else 0, job.gpus, "|".join(job.models), job.models)
        for job in workload
    )
    total = sum(counts.values())
    if not total:
        return Typical()
    sizes = sorted({key[1] for key in counts})
    taken: list[tuple[int, ...]] = []
    weights: list[float] = []
    covered = 0
    for (cpu, milli, gpus, _, models), number in sorted(
        counts.items(), key=lambda item: (item[1], item[0]), reverse=True
    ):
        taken.append((gpus, milli, cpu, sizes.index(milli), *_words_of_models(models, cluster)))
        weights.append(number / total)
        covered += number
        if covered * 100 >= COVERED_PCT * total:
            break
    weight = np.array(weights)
    if len(taken) < len(counts):
        weight = weight / (covered / total)
    return Typical(np.array(taken, dtype=np.int64), weight, np.array(sizes, dtype=np.int64))


def _words_of_models(models: Sequence[str], cluster: Cluster) -> list[int]:
    """A bit for each GPU model of the cluster that is allowed, in words; every one for no names."""
    numbers = [cluster.models[name] for name in models if name in cluster.models] if models else None
    words = []
    for first in range(0, len(cluster.models) + 1, MODEL_BITS):
        there = range(first, first + MODEL_BITS)
        words.append(sum(1 << number - first for number in there if numbers is None or number in numbers))
    return words


class Tetris:
    """The node with the largest dot product of its free resources and the request.

    score = Σ (left/capacity)·(asked/capacity) over CPU, memory and GPU of the node, each a fraction of what that node
    has; the highest wins, the smaller rank on ties. Grandl, Ananthanarayanan, Kandula, Rao and Akella,
    "Multi-resource Packing for Cluster Schedulers", SIGCOMM 2014, section 3.2 (alignment only; they mix it with the
    order of jobs, which is separate here). A part of a GPU goes to the GPU with the least left.
    """

    draws = False
    by_request = True

    def __init__(self, setting: Setting | None = None) -> None:
        """The setting does not matter to it."""

    def __call__(self, job: Job, cluster: Cluster) -> tuple[GpuSlot, ...] | None:
        """The slots on the node with the best alignment, on the best nodes for a gang, or None."""
        if job.gpus * job.share.milli > cluster.free_total_milli:
            return None
        most = cluster.memo.get(self)
        if most is None:
            most = cluster.memo[self] = _most(cluster)
        fitting = cluster.fitting_nodes(job)
        wanted = max(1, job.nodes)
        if len(fitting) < wanted:
            return cluster.spread(job) if job.nodes == 0 else None
        asked, free = cluster.row(job), cluster.free
        cpu, mem, gpu = (amounts[fitting] for amounts in most)
        gpu_left = np.maximum(free.milli[fitting], 0).sum(axis=1)
        score = (
            free.cpu_milli[fitting] / cpu * (asked.cpu_milli / cpu)
            + free.mem_mib[fitting] / mem * (asked.mem_mib / mem)
            + gpu_left / gpu * (asked.gpus * asked.milli / gpu)
        )
        best = fitting[np.lexsort((cluster.rank[fitting], -score))][:wanted]
        return tuple(slot for node in best.tolist() for slot in cluster.slots_on(node, job, tightest=True))


def _most(cluster: Cluster) -> tuple[FloatArray, FloatArray, FloatArray]:
    """CPU, memory and GPU milli that each node has, each (N,), at least 1 for a divisor."""
    amounts = (
        cluster.capacity.cpu_milli,
        cluster.capacity.mem_mib,
        np.maximum(cluster.capacity.milli, 0).sum(axis=1),
    )
    cpu, mem, gpu = (np.maximum(amount, 1).astype(np.float64) for amount in amounts)
    return cpu, mem, gpu


class Random(Scored):
    """A random node that fits, and on it random GPUs that fit, each equally likely.

    The lower baseline of Weng et al., USENIX ATC 2023, section 6.1. Its numbers come from the seed alone.
    """

    kernel = score_kernels.ANY_FIT
    draws = True
    by_request = True

    def __init__(self, setting: Setting | None = None) -> None:
        super().__init__(setting)
        self._random = random.Random(self.setting.seed)
        self._chosen: tuple[IntArray, memoryview[int]] | None = None
        """(G,): the GPUs of a node that fit, for the kernel to write and for Python to read."""

    def __call__(self, job: Job, cluster: Cluster) -> tuple[GpuSlot, ...] | None:
        """The slots on a node that fits, on as many as a gang takes, or None."""
        if job.nodes > 1:
            return super().__call__(job, cluster)
        if job.gpus * job.share[0] > cluster.free_total_milli:
            return None
        width = cluster.free.milli.shape[1]
        if self._chosen is None or len(self._chosen[0]) != width:
            chosen = np.empty(width, dtype=np.int64)
            self._chosen = chosen, numbers(chosen)
        chosen, chosen_at = self._chosen
        number, nodes = cluster.request(job), len(cluster.nodes)
        for _ in range(8):  # a node out of all, until one fits: the same chances, and soon there
            node = int(self._random.random() * nodes)
            found = kernels.fitting_on(cluster.block, cluster.requests, number, node, chosen)
            if found >= 0:
                return self._some(node, job, cluster, chosen_at[:found])
        return super().__call__(job, cluster)

    def several(self, scores: IntArray, cluster: Cluster, wanted: int) -> list[int] | None:
        """Some of the nodes that fit, ascending, or None if too few do."""
        fitting = np.flatnonzero(scores > score_kernels.UNFIT)
        if len(fitting) < wanted:
            return None
        return sorted(self._random.sample(fitting.tolist(), wanted))

    def slots(self, node: int, job: Job, cluster: Cluster) -> tuple[GpuSlot, ...]:
        """As many of the node's GPUs that fit as the job takes there, ascending."""
        return self._some(node, job, cluster, cluster.fitting_gpus(node, job))

    def _some(self, node: int, job: Job, cluster: Cluster, fitting: Sequence[int]) -> tuple[GpuSlot, ...]:
        """As many of these GPUs as the job takes on a node, ascending."""
        if job.gpus == 0:
            return (GpuSlot(node, NO_GPU),)
        wanted = job.gpus // max(1, job.nodes)
        if wanted == 1:
            return cluster.singles[node, fitting[int(self._random.random() * len(fitting))]]
        return tuple(GpuSlot(node, index) for index in sorted(self._random.sample(list(fitting), wanted)))
