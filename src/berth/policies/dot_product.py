"""Dot product: the node whose free resources align best with the request."""

from berth import kernels
from berth.policies.scored import Scored


class DotProduct(Scored):
    """The node with the smallest dot product of what it has free and what is asked for.

    score = trunc 100·(1 − ½·(CPU left/C · CPU asked/C + GPU left/G · GPU asked/G)), where C and G are the CPU
    and GPU milli of the largest node. Alignment after Grandl et al., "Multi-Resource Packing for Cluster
    Schedulers", SIGCOMM 2014, in the form that Weng et al., USENIX ATC 2023, section 6.1, compare with.
    """

    kernel = kernels.DOT_PRODUCT
