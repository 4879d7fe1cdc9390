"""Best fit: the node that would be left with the least CPU and GPU."""

from berth import kernels
from berth.policies.scored import Scored


class BestFit(Scored):
    """The node that would be left with the least CPU and GPU, both weighing the same.

    score = trunc 100·(1 − (½·(CPU left − CPU asked)/C + ½·(GPU left − GPU asked)/G)), where C and G are the
    CPU and GPU milli of the largest node (128,000 and 8,000 in the trace of Alibaba). A part of a GPU goes to
    the GPU with the least left. As compared with in Weng et al., "Beware of Fragmentation: Scheduling
    GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX ATC 2023, section 6.1.
    """

    kernel = kernels.BEST_FIT
