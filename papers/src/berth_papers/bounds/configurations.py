"""Everything that may run together on one GPU at a moment, and how fast: the configurations of a linear program.

Letters: R rows of all jobs' profiles, S segments, n configurations, K tenants at most. A segment is a kind of moment in
an application's run: some rows of its profile. It takes the least memory that any of them takes, and its speeds are
such as none of them exceeds (`segment_speeds`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from berth.arrays import IntArray, compiled
from berth.errors import SettingError
from berth.interference import Speeds
from berth.model import GpuModel, Job, Profile, work_of
from berth.profiles import series
from berth_papers.bounds.segment_speeds import segment_speeds

MOST_CONFIGURATIONS = 400_000
MEM = 1
LATE_MS = 1.0
"""A tenant's speed is asked anew in the first whole millisecond in which it is in its next row: this much of a row's
work, at most, is done at the speed of the row before."""


@dataclass(frozen=True, slots=True, eq=False)
class Configurations:
    """What of some jobs may run together on one GPU."""

    usage: NDArray[np.int32]  # (S, 4)
    """The least that any row of a segment uses."""
    work_ms: NDArray[np.float64]  # (S,)
    """Run time alone that all jobs together spend in each segment, less `LATE_MS` for each time that a job enters it
    from another one."""
    begins_ms: NDArray[np.float64]  # (S,)
    """Work that a job has done at least when it is asked about in the segment."""
    ends_ms: NDArray[np.float64]  # (S,)
    """Work that a job has left at least while it is asked about in the segment."""
    tenants: IntArray  # (n, K): segments, ascending; S for an empty place
    speeds_milli: IntArray  # (n, K)


def configurations(
    profiles: Mapping[str, Profile],
    jobs: Sequence[Job],
    speeds: Speeds,
    gpu: GpuModel,
    *,
    most_tenants: int = 10,
    segments: int = 40,
) -> Configurations:
    """All that may run together on one GPU when there are these jobs.

    A job with less work than its profile is long ends on the way, one with more stays in the last row, as in the
    simulator. Segments are merged until the configurations can be listed. Raises SettingError for an application
    without a profile, or one that does not fit on the GPU.
    """
    kinds = Counter((job.application, work_of(job)) for job in jobs)
    names = sorted({name for name, _ in kinds})
    if missing := [name for name in names if name not in profiles]:
        raise SettingError(f"no profile of {', '.join(missing)}; a bound needs one of every application")
    capacity = gpu.mem_mib or np.iinfo(np.int32).max
    alone_ms: list[NDArray[np.float64]] = []  # of each application's rows, by all its jobs
    entered: list[NDArray[np.float64]] = []  # how many of its jobs come to the row
    usages: list[NDArray[np.int32]] = []
    done: list[NDArray[np.float64]] = []  # at least, by a job in the row
    left: list[NDArray[np.float64]] = []  # at least, of a job in the row
    many = np.zeros(len(names), dtype=np.int64)
    for number, name in enumerate(names):
        one = series(profiles[name], gpu)
        begin_ms = np.arange(len(one.usage), dtype=np.float64) * one.interval_ms
        length_ms = np.append(np.full(len(one.usage) - 1, float(one.interval_ms)), np.inf)
        row_ms, come = np.zeros(len(one.usage)), np.zeros(len(one.usage))
        rest_ms = np.full(len(one.usage), np.inf)
        for (application, work_ms), count in kinds.items():
            if application == name:
                many[number] += count
                row_ms += count * np.clip(work_ms - begin_ms, 0.0, length_ms)
                come += count * (work_ms > begin_ms)
                after_ms = np.maximum(work_ms - (begin_ms + length_ms) - LATE_MS, 0.0)
                rest_ms = np.minimum(rest_ms, np.where(work_ms > begin_ms, after_ms, np.inf))
        reached = max(1, int((come > 0).sum()))
        peak_mib = int(one.usage[:reached, MEM].max())
        if peak_mib > capacity:
            raise SettingError(f"{name} takes {peak_mib} MiB; a {gpu.name} has {gpu.mem_mib}")
        alone_ms.append(row_ms[:reached])
        entered.append(come[:reached])
        usages.append(one.usage[:reached])
        done.append(begin_ms[:reached])
        left.append(np.where(np.isfinite(rest_ms), rest_ms, 0.0)[:reached])
    rows, work = np.concatenate(usages), np.concatenate(alone_ms)
    owner = np.repeat(np.arange(len(names)), [len(one) for one in usages])
    merging = _Merging(rows, owner, work)
    limit = segments
    while True:
        usage, owners, segment = merging.down_to(limit)
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
    moved = (owner[1:] == owner[:-1]) & (segment[1:] != segment[:-1])
    late = np.append(0.0, np.where(moved, LATE_MS * np.concatenate(entered)[1:], 0.0))
    left_ms = np.bincount(segment, weights=work - late, minlength=len(usage)).astype(np.float64)
    begins_ms, ends_ms = np.full((2, len(usage)), np.inf)
    np.minimum.at(begins_ms, segment, np.concatenate(done))
    np.minimum.at(ends_ms, segment, np.concatenate(left))
    found = segment_speeds(rows, segment, tenants, speeds, gpu.mem_mib)
    return Configurations(usage, left_ms, begins_ms, ends_ms, tenants, found)


class _Merging:
    """Rows merged step by step, always the two whose merging changes least: work times how much less is used."""

    def __init__(self, rows: NDArray[np.int32], owner: IntArray, work: NDArray[np.float64]) -> None:
        usage, group = np.unique(rows, axis=0, return_inverse=True)
        self.use = usage.astype(np.float64)  # (S, 4)
        self.work: NDArray[np.float64] = np.bincount(
            group.reshape(-1), weights=work, minlength=len(usage)
        ).astype(np.float64)
        self.segment: IntArray = group.reshape(-1).astype(np.int64)  # (R,)
        self.owners: NDArray[np.bool_] = np.zeros((len(usage), int(owner.max()) + 1), dtype=np.bool_)
        self.owners[group.reshape(-1), owner] = True
        self.scale = np.maximum(rows.max(axis=0), 1)

    def down_to(self, limit: int) -> tuple[NDArray[np.int32], NDArray[np.bool_], IntArray]:
        """Use (S, 4) and owners (S, applications) of at most this many segments, and each row's segment (R,)."""
        while len(self.use) > max(1, limit):
            least = np.minimum(self.use[:, None], self.use[None, :])  # (S, S, 4)
            loss = ((self.use[:, None] - least) / self.scale).sum(axis=2) * self.work[:, None]
            loss += loss.T
            np.fill_diagonal(loss, np.inf)
            kept, gone = sorted(divmod(int(loss.argmin()), len(self.use)))
            self.use[kept] = least[kept, gone]
            self.work[kept] += self.work[gone]
            self.owners[kept] |= self.owners[gone]
            self.segment[self.segment == gone] = kept
            self.segment -= self.segment > gone
            rest = np.arange(len(self.use)) != gone
            self.use, self.work, self.owners = self.use[rest], self.work[rest], self.owners[rest]
        use: NDArray[np.int32] = self.use.astype(np.int32)
        return use, self.owners.copy(), self.segment.copy()


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
