"""What the broker counts for Prometheus, since it started."""

from __future__ import annotations

from collections import Counter
from typing import Any

WAIT_S = (0.1, 1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 4 * 3600.0, 24 * 3600.0)
DECISION_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0)


class Histogram:
    """Counts of values up to bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.total += value
        at = next((at for at, bound in enumerate(self.bounds) if value <= bound), len(self.bounds))
        self.counts[at] += 1

    def to_dict(self) -> dict[str, Any]:
        """Cumulated counts, as Prometheus wants them."""
        summed, buckets = 0, []
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            summed += count
            buckets.append([str(bound), summed])
        return {"buckets": buckets, "sum": self.total}


class Counters:
    def __init__(self) -> None:
        self.ended: Counter[str] = Counter()
        self.submitted = 0
        self.refused = 0
        self.waited = Histogram(WAIT_S)
        self.decided = Histogram(DECISION_S)
