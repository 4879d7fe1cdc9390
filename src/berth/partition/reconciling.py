"""Whether a partition's processes hold more than its counters say: the driver's word against libberth's.

A program that unloads the library, or writes into its partition's counters, is seen so. The most that was ever counted
is compared, and never more than the limit: a job that takes and gives back while both are read is no difference.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from berth.partition.sizes import size_text

ANSWERS = ("report", "throttle", "suspend")
"""What may be done about such a partition: tell of it, also cut its time, or also take it off its GPUs."""
THROTTLED_PCT = 5
"""The share of the GPU's time that it is left with."""
ALLOWED_MIB = 64
"""What a process may hold uncounted: an estimate of its context that is off."""
ALLOWED_PCT = 5
"""The same for all processes, of the partition's limit."""

OF_MEMBERS = "a process of it has unloaded libberth, or wrote into the counters"
"""Why they differ if the driver's word on members of the partition alone was looked at."""
OF_ANY = "a process of it runs without libberth, or wrote into the counters"
"""The same if other processes of the job were looked at, too."""


class Counted(NamedTuple):
    """What a partition counts on one GPU, and what NVML shows for its processes."""

    name: str
    gpu: int
    limit_mib: int
    peak_mib: int
    processes: int
    seen_mib: int


class Difference(NamedTuple):
    """What a partition holds of one GPU beyond what it counted."""

    name: str
    gpu: int
    seen_mib: int
    counted_mib: int

    @property
    def uncounted_mib(self) -> int:
        return self.seen_mib - self.counted_mib

    def text(
        self, holder: str, holds: str = "holds", throttled: str | None = None, *, cause: str = OF_MEMBERS
    ) -> str:
        """What its holder `holds` or held, for people. `throttled`: why it was also throttled; None: it was not.
        `cause`: why the two differ."""
        seen, counted = (size_text(mib << 20) for mib in (self.seen_mib, self.counted_mib))
        left = "" if throttled is None else f"; it is left {THROTTLED_PCT} % of the time{throttled}"
        return (
            f"{holder} {holds} {seen} of GPU {self.gpu}, and its partition counted {counted}: {cause}{left}"
        )


class Reconciler:
    """Compares looks with one another: a difference counts if two looks in a row show it."""

    def __init__(self) -> None:
        self._largest_limits: dict[tuple[str, int], int] = {}
        self._suspects: frozenset[tuple[str, int]] = frozenset()

    @property
    def suspects(self) -> bool:
        """Whether the last look showed a difference, so that another should follow soon."""
        return bool(self._suspects)

    def look(self, counted: Iterable[Counted]) -> list[Difference]:
        """The differences that this look and the one before it show."""
        there = list(counted)
        limits = {(one.name, one.gpu): one.limit_mib for one in there}
        self._largest_limits = {
            key: max(limit, self._largest_limits.get(key, 0)) for key, limit in limits.items()
        }
        found = [difference for one in there if (difference := self._difference(one)) is not None]
        before = self._suspects
        self._suspects = frozenset((each.name, each.gpu) for each in found)
        return [each for each in found if (each.name, each.gpu) in before]

    def _difference(self, one: Counted) -> Difference | None:
        limit_mib = self._largest_limits[one.name, one.gpu]
        counted_mib = min(one.peak_mib, limit_mib)
        allowed_mib = ALLOWED_MIB * max(1, one.processes) + limit_mib * ALLOWED_PCT // 100
        if one.seen_mib <= counted_mib + allowed_mib:
            return None
        return Difference(one.name, one.gpu, one.seen_mib, counted_mib)
