"""GPU packing: shared GPUs first, then free GPUs of used nodes, then free nodes."""

from berth import kernels
from berth.policies.scored import Scored


class GpuPacking(Scored):
    """GPUs that are shared already first, then free GPUs of nodes in use, free nodes last.

    A node with all its n GPUs free scores max(33 − n, n). Else, over the GPUs that the job would take (the
    tightest first), f of them free and r = Σ left·100 div 1000: max(50 − f, 33) where f > 0, max(100 − r div
    10, 50) where not. Jobs without GPUs score 0 everywhere. As compared with in Weng et al., USENIX ATC 2023,
    section 6.1 (there after MLaaS in the Wild, Weng et al., NSDI 2022).
    """

    kernel = kernels.GPU_PACKING
