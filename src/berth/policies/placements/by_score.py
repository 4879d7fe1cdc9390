"""The placements that are a formula: the node with the highest score, as baselines of the literature compute it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from berth.cluster import Cluster
from berth.model import WHOLE_GPU, GpuSlot, Job
from berth.policies.placements import score_kernels
from berth.policies.placements.scored import Scored


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
