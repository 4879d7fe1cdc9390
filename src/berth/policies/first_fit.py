"""First fit: the first node, and on it the first GPUs, with enough left."""

from __future__ import annotations

import numpy as np

from berth import kernels
from berth.cluster import Cluster
from berth.kernels import IntArray
from berth.policies.scored import Scored


class FirstFit(Scored):
    """The first node of the cluster with enough left, and on it the lowest-numbered GPUs with enough left.

    Johnson, "Near-optimal bin packing algorithms", PhD thesis, MIT, 1973. It is the fastest of all: nothing is
    scored. A gang takes the first nodes that fit. The cluster's rank of nodes, which settles ties, is not asked.
    """

    kernel = kernels.FIRST_FIT
    tightest = False

    @property
    def kernel_for_all(self) -> int:
        """Looks at every node, where the other stops at the first that fits."""
        return kernels.ANY_FIT

    def several(self, scores: IntArray, cluster: Cluster, wanted: int) -> list[int] | None:
        """The first nodes of the cluster that fit."""
        fitting = np.flatnonzero(scores > kernels.UNFIT)[:wanted]
        return fitting.tolist() if len(fitting) == wanted else None
