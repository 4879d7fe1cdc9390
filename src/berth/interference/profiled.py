"""Interference from profiles: where each tenant is in its application's series tells which slows which, and when.

The simulator's face of the functions in `SPEEDS`. A tenant that has done d milliseconds of its work is in row
d ÷ interval of its series; the answer holds until the first tenant enters its next row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from berth.interference.mig import mig
from berth.interference.mps import mps
from berth.interference.named import NamedPairs, published_names
from berth.interference.speeds import (
    MEM,
    KnowsApplications,
    Outlook,
    PartsMemory,
    Speeds,
    Tenant,
    crossed,
    unhindered,
)
from berth.interference.time_sliced import time_sliced
from berth.model import FOREVER_MS, GpuModel, Job, Profile
from berth.profiles import Series, profile_text, series, thesis_profiles

NOTHING_KNOWN = GpuModel("")
"""Stands for the model of a GPU of which nothing is known: profiles are not scaled, memory is not judged."""

Rows = tuple[tuple[int, int, int, int], ...]


class ProfiledInterference:
    """How the tenants of a GPU advance together, by their applications' profiles and a model of speeds.

    An application without a profile counts as one that needs the whole GPU, and the memory of its share; where none
    of the tenants has a profile and `named` knows them all on this card, their speeds come from there. In the first
    millisecond of work in a row the tenant's memory counts as having just changed to what the row says.
    """

    def __init__(
        self, profiles: Mapping[str, Profile], speeds: Speeds, named: NamedPairs | None = None
    ) -> None:
        self.profiles = profiles
        self.speeds = speeds
        self.named = named
        self._series = lru_cache(maxsize=4096)(self._scaled)
        self._has_parts = isinstance(speeds, PartsMemory)
        self._numbers = speeds.names if isinstance(speeds, KnowsApplications) else {}
        self._answers = lru_cache(maxsize=65_536)(partial(_answer, speeds))

    def with_profiles(self, profiles: Mapping[str, Profile]) -> ProfiledInterference:
        """The same model over other profiles."""
        return ProfiledInterference(profiles, self.speeds, self.named)

    def __call__(self, tenants: Sequence[Tenant], gpu: GpuModel | None) -> Outlook:
        """The outlook for tenants in the order of their start."""
        now: list[tuple[int, int, int, int]] = []
        before: list[int] = []
        left_us: list[int] = []
        for tenant in tenants:
            found = self._series(tenant.job.application, gpu or NOTHING_KNOWN)
            if found is None:
                now.append((1000, tenant.share.mem_mib, 1000, 0))
                before.append(0 if tenant.done_ms == 0 else tenant.share.mem_mib)
                left_us.append(0)
                continue
            row = found.row_at(tenant.done_ms)
            now.append(found.rows[row])
            entered = tenant.done_ms == row * found.interval_ms
            before.append((found.rows[row - 1][MEM] if row else 0) if entered else found.rows[row][MEM])
            last = row + 1 == len(found.rows)
            done_us = tenant.done_ms * 1000 + tenant.rest_us
            left_us.append(0 if last else (row + 1) * found.interval_ms * 1000 - done_us)
        capacity_mem_mib = 0 if gpu is None else gpu.mem_mib
        # What was used before matters where memory runs out alone; else alike tenants have one answer.
        in_doubt = self._has_parts or sum(row[MEM] for row in now) > capacity_mem_mib > 0
        applications = [tenant.job.application for tenant in tenants]
        numbers = tuple([self._numbers.get(name, -1) for name in applications]) if self._numbers else ()
        speeds_milli, full = self._answers(
            tuple(now), tuple(before) if in_doubt else None, capacity_mem_mib, numbers
        )
        if self.named and gpu and not any(each in self.profiles for each in applications):
            speeds_milli = self.named.speeds_milli(applications, gpu.name) or speeds_milli
        hold_ms = min(
            (
                -(-left // speed)
                for left, speed in zip(left_us, speeds_milli, strict=True)
                if left > 0 and speed > 0
            ),
            default=FOREVER_MS,
        )
        return Outlook(speeds_milli, hold_ms, full)

    def fits_alone(self, job: Job, gpu: GpuModel | None) -> bool:
        """Whether the job never uses more memory than the card has, as far as its profile is known."""
        found = self._series(job.application, gpu or NOTHING_KNOWN)
        if found is None or not gpu or not gpu.mem_mib:
            return True
        peak_mib = found.peak_mem_mib if job.work_ms is None else found.peak_within(job.work_ms)
        return peak_mib <= gpu.mem_mib

    def used_mib(self, tenant: Tenant, gpu: GpuModel | None) -> int:
        """The memory of the row that the tenant is in; that of its share where it has no profile."""
        found = self._series(tenant.job.application, gpu or NOTHING_KNOWN)
        return tenant.share.mem_mib if found is None else found.rows[found.row_at(tenant.done_ms)][MEM]

    def memory_over_time(self, job: Job, gpu: GpuModel | None) -> Sequence[tuple[int, int]]:
        """The rows of its application in which its memory changes."""
        found = self._series(job.application, gpu or NOTHING_KNOWN)
        return () if found is None else found.memory_steps

    def _scaled(self, application: str, gpu: GpuModel) -> Series | None:
        profile = self.profiles.get(application)
        return None if profile is None else series(profile, gpu)

    def __repr__(self) -> str:
        """Tells two models apart, for results that are kept by what they were made with."""
        digest = hashlib.sha256()
        for name in sorted(self.profiles):
            digest.update(profile_text(self.profiles[name]).encode())
        speeds = getattr(self.speeds, "__qualname__", None) or repr(self.speeds)
        named = f", {self.named}" if self.named else ""
        return (
            f"ProfiledInterference({len(self.profiles)} profiles {digest.hexdigest()[:16]}, {speeds}{named})"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (ProfiledInterference, (self.profiles, self.speeds, self.named))


def _answer(
    speeds: Speeds,
    now: Rows,
    before: tuple[int, ...] | None,
    capacity_mem_mib: int,
    numbers: tuple[int, ...],
) -> tuple[tuple[int, ...], int | None]:
    """The speeds of the tenants, and which runs out of memory; `before` is None where it cannot run out.

    `numbers` are those of the applications; empty where the speeds know none.
    """
    usage: NDArray[np.int32] = np.array(now, dtype=np.int32)  # (K, 4)
    present = np.ones(len(now), dtype=np.bool_)
    full = -1
    if before is not None:
        usage_before = usage.copy()
        usage_before[:, MEM] = before
        full_of = speeds.crossed if isinstance(speeds, PartsMemory) else crossed
        full = int(full_of(usage, usage_before, present, capacity_mem_mib))
    if numbers and isinstance(speeds, KnowsApplications):
        found = speeds.among(usage, present, np.array(numbers))
    else:
        found = speeds(usage, present, capacity_mem_mib)
    return tuple(int(speed) for speed in found), None if full < 0 else full


@cache
def thesis_unhindered() -> ProfiledInterference:
    """No job slows another, and the memory of the thesis's applications is known."""
    return ProfiledInterference(thesis_profiles(), unhindered)


@cache
def thesis_mps() -> ProfiledInterference:
    """The model `mps` over the thesis's applications, and Gavel's pairs by name."""
    return ProfiledInterference(thesis_profiles(), mps(), published_names())


@cache
def thesis_mig() -> ProfiledInterference:
    """The model `mig` over the thesis's applications."""
    return ProfiledInterference(thesis_profiles(), mig())


@cache
def thesis_time_sliced() -> ProfiledInterference:
    """The model `time-sliced` over the thesis's applications."""
    return ProfiledInterference(thesis_profiles(), time_sliced)
