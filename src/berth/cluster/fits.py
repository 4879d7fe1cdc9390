"""Which request types fit on which nodes, kept up from one decision to the next."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from berth.arrays import BoolArray
from berth.cluster import kernels
from berth.cluster.cluster import Cluster


class Fits:
    """Which request types fit on which nodes, kept up with a cluster: only nodes that change are looked at."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._rows: dict[int, int] = {}
        self._fit = np.zeros((16, len(cluster.nodes)), dtype=np.bool_)
        self._marks = cluster.marks()

    def of(self, types: Sequence[int]) -> BoolArray:
        """(types, N): whether each fits on each node as it is now."""
        cluster = self.cluster
        changed = cluster.changed_since(self._marks)
        if len(changed) and self._rows:
            known = np.fromiter(self._rows, dtype=np.int64, count=len(self._rows))
            kernels.fit_on(cluster.block, cluster.requests, known, changed, self._fit)
        for number in types:
            if number not in self._rows:
                row = self._rows[number] = len(self._rows)
                if row == len(self._fit):
                    self._fit = np.concatenate([self._fit, np.zeros_like(self._fit)])
                asked, everywhere = np.array([number]), np.arange(len(cluster.nodes))
                kernels.fit_on(cluster.block, cluster.requests, asked, everywhere, self._fit[row : row + 1])
        return self._fit[[self._rows[number] for number in types]]
