"""GPU clustering: jobs of one kind together on a node."""

from berth import kernels
from berth.policies.scored import Scored


class GpuClustering(Scored):
    """Nodes that hold jobs of the same kind, where a kind is "part of a GPU" or a number of whole GPUs.

    With b = 25·(G − GPU left) div G, G the GPU milli of the largest node: b + 75 on a node that holds this
    kind alone, b + 50 where it holds others too, b + 25 on a node that holds none, b where it holds only
    others. Jobs without GPUs score 0 everywhere. As compared with in Weng et al., USENIX ATC 2023, section 6.1
    (after Xiao et al., "Gandiva", OSDI 2018).
    """

    kernel = kernels.GPU_CLUSTERING
