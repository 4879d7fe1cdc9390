"""Everything that may run together on one GPU at a moment, and how fast: the configurations of a linear program.

Letters: S segments, n configurations, K tenants at most. A segment is a kind of moment in an application's run: some
rows of its profile, taken as one that uses the least that any of them uses of each resource.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from berth.errors import SettingError
from berth.interference import Speeds
from berth.kernels import IntArray, compiled
from berth.model import GpuModel, Profile
from berth.profiles import series

__all__ = ["ROUNDING_MILLI", "Configurations", "configurations"]

ROUNDING_MILLI = 2
"""Added to every speed below 1000: what whole numbers may lose when use that is rounded differently is compared."""

MOST_CONFIGURATIONS = 400_000
MEM = 1


@dataclass(frozen=True, slots=True, eq=False)
class Configurations:
    """What of some jobs may run together on one GPU."""

    usage: NDArray[np.int32]  # (S, 4)
    work_ms: NDArray[np.float64]  # (S,)
    """Run time alone that all jobs together spend in each segment."""
    begins_ms: NDArray[np.float64]  # (S,)
    """Work that a job has done at least when it comes to be in the segment."""
    ends_ms: NDArray[np.float64]  # (S,)
    """Work that a job has left at least when it is in the segment."""
    tenants: IntArray  # (n, K): segments, ascending; S where there is nobody
    speeds_milli: IntArray  # (n, K)


def configurations(
    profiles: Mapping[str, Profile],
    counts: Mapping[str, int],
    speeds: Speeds,
    gpu: GpuModel,
    *,
    most_tenants: int = 10,
    segments: int = 40,
) -> Configurations:
    """All that may run together on one GPU when there are so many jobs of each application.

    Segments are merged until the configurations can be listed. Raises SettingError for an application without a
    profile, or one that does not fit on the GPU.
    """
    names = sorted(counts)
    if missing := [name for name in names if name not in profiles]:
        raise SettingError(f"no profile of {', '.join(missing)}; a bound needs one of every application")
    scaled = [series(profiles[name], gpu) for name in names]
    capacity = gpu.mem_mib or np.iinfo(np.int32).max
    for name, one in zip(names, scaled, strict=True):
        if one.peak_mem_mib > capacity:
            raise SettingError(f"{name} takes {one.peak_mem_mib} MiB; a {gpu.name} has {gpu.mem_mib}")
    many = np.array([counts[name] for name in names], dtype=np.int64)
    lengths = [len(one.usage) for one in scaled]
    rows = np.concatenate([one.usage for one in scaled])
    owner = np.repeat(np.arange(len(names)), lengths)
    work = np.repeat(
        [count * one.interval_ms for count, one in zip(many.tolist(), scaled, strict=True)], lengths
    )
    done = np.concatenate(
        [np.arange(length) * one.interval_ms for length, one in zip(lengths, scaled, strict=True)]
    )
    left = np.concatenate(
        [np.arange(length)[::-1] * one.interval_ms for length, one in zip(lengths, scaled, strict=True)]
    )
    merging = _Merging(
        rows, owner, work.astype(np.float64), np.stack([done, left], axis=1).astype(np.float64)
    )
    limit = segments
    while True:
        usage, alone_ms, owners, from_ms = merging.down_to(limit)
        most = np.where(owners, many, 0).sum(axis=1)  # (S,): how many jobs can be in it at once
        exclusive = np.where(owners.sum(axis=1) == 1, owners.argmax(axis=1), -1)
        tenants = np.full((MOST_CONFIGURATIONS + 1, most_tenants), len(usage), dtype=np.int64)
        count = _listed(
            usage[:, MEM].astype(np.int64), capacity, most, exclusive, many, np.zeros_like(many), tenants
        )
        if count <= MOST_CONFIGURATIONS:
            break
        if limit == 1:
            raise SettingError(
                f"more than {MOST_CONFIGURATIONS:,} combinations fit on a {gpu.name}; lower most_tenants"
            )
        limit -= 1
    tenants = tenants[:count].copy()
    begins_ms, ends_ms = from_ms.T
    return Configurations(
        usage, alone_ms, begins_ms, ends_ms, tenants, _speeds(usage, tenants, speeds, gpu.mem_mib)
    )


class _Merging:
    """Rows merged step by step, always the two whose merging changes least: work times how much less is used."""

    def __init__(
        self,
        rows: NDArray[np.int32],
        owner: IntArray,
        work: NDArray[np.float64],
        from_ms: NDArray[np.float64],
    ) -> None:
        usage, group = np.unique(rows, axis=0, return_inverse=True)
        self.use = usage.astype(np.float64)  # (S, 4)
        self.work: NDArray[np.float64] = np.bincount(
            group.reshape(-1), weights=work, minlength=len(usage)
        ).astype(np.float64)
        self.owners: NDArray[np.bool_] = np.zeros((len(usage), int(owner.max()) + 1), dtype=np.bool_)
        self.owners[group.reshape(-1), owner] = True
        self.from_ms: NDArray[np.float64] = np.full((len(usage), 2), np.inf)
        np.minimum.at(self.from_ms, group.reshape(-1), from_ms)  # the least of both: done, and left
        self.scale = np.maximum(rows.max(axis=0), 1)

    def down_to(
        self, limit: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64]]:
        """Use (S, 4), work in ms (S,), owners (S, applications) and least work done and left in ms (S, 2) of so many
        segments at most."""
        while len(self.use) > max(1, limit):
            least = np.minimum(self.use[:, None], self.use[None, :])  # (S, S, 4)
            loss = ((self.use[:, None] - least) / self.scale).sum(axis=2) * self.work[:, None]
            loss += loss.T
            np.fill_diagonal(loss, np.inf)
            kept, gone = sorted(divmod(int(loss.argmin()), len(self.use)))
            self.use[kept] = least[kept, gone]
            self.work[kept] += self.work[gone]
            self.owners[kept] |= self.owners[gone]
            self.from_ms[kept] = np.minimum(self.from_ms[kept], self.from_ms[gone])
            rest = np.arange(len(self.use)) != gone
            self.use, self.work, self.owners = self.use[rest], self.work[rest], self.owners[rest]
            self.from_ms = self.from_ms[rest]
        use: NDArray[np.int32] = self.use.astype(np.int32)
        return use, self.work.copy(), self.owners.copy(), self.from_ms.copy()


@compiled
def _listed(
    mem: IntArray,  # (S,)
    capacity: int,
    most: IntArray,  # (S,): how many can be in the segment at once
    exclusive: IntArray,  # (S,): whose it is alone, −1 where it is several applications'
    many: IntArray,  # (A,): jobs of each application
    busy: IntArray,  # (A,): to work in, zeros
    tenants: IntArray,  # (n, K), out
) -> int:
    """List the multisets of segments that fit; how many there are, n or more where some are left out."""
    count: int = 0
    depth, used, row, following, same = 0, 0, 0, 0, 0
    while True:
        if depth < tenants.shape[1] and following < mem.shape[0]:
            whose = exclusive[following]
            same = 0
            while same < depth and tenants[row, depth - 1 - same] == following:
                same += 1
            if (
                used + mem[following] <= capacity
                and same < most[following]
                and (whose < 0 or busy[whose] < many[whose])
            ):
                if row + 1 >= tenants.shape[0]:
                    return int(tenants.shape[0])
                tenants[row, depth] = following
                used += mem[following]
                if whose >= 0:
                    busy[whose] += 1
                depth += 1
                count += 1
                for at in range(depth):
                    tenants[row + 1, at] = tenants[row, at]
                row += 1
            else:
                following += 1
            continue
        if depth == 0:
            return count
        depth -= 1
        following = tenants[row, depth]
        used -= mem[following]
        if exclusive[following] >= 0:
            busy[exclusive[following]] -= 1
        tenants[row, depth] = mem.shape[0]
        following += 1


def _speeds(usage: NDArray[np.int32], tenants: IntArray, speeds: Speeds, capacity_mem_mib: int) -> IntArray:
    padded = np.concatenate([usage, np.zeros((1, 4), np.int32)])
    found = np.zeros(tenants.shape, dtype=np.int64)
    for begin in range(0, len(tenants), 50_000):
        part = tenants[begin : begin + 50_000]
        present = part < len(usage)
        speed = np.asarray(speeds(padded[part], present, capacity_mem_mib)).astype(np.int64)
        found[begin : begin + len(part)] = np.where(present, np.minimum(speed + ROUNDING_MILLI, 1000), 0)
    return found
