"""Interference from profiles: where each tenant is in its application's series tells which slows which, and when.

The simulator's face of the functions in `SPEEDS`. A tenant that has done d milliseconds of its work is in row
d ÷ interval of its series; the answer holds until the first tenant enters its next row.

Speeds as they were measured of training jobs whose kernels overlap on one GPU: the contention model that ships.

The pairs are Lucid's (see `measurements`); what ships is the fit's coefficients, `mps.json`, and none of the data.
How good it is, what it assumes, and how to fit your own: docs/interference.md.

Speeds where the kernels of different processes take turns on the GPU, and each change of turn costs something.

That is what a GPU does with processes that do not share a context (no MPS): at any moment the kernels of one
process run. Two things slow a tenant then:

- **The card is full.** Its time, less what switching takes, is shared out evenly; one that asks for less than its part
  keeps what it asks for (max–min fairness, as round robin gives it).
- **The card is taken.** A tenant that wants the GPU for a part of the time finds another's kernel on it for a part of
  *that*, and waits out its turn, even on a card that is not full.

`SWITCH_MILLI` is calibrated, not measured: see docs/interference.md.

Speeds where a GPU is cut up by its hardware (Multi-Instance GPU), and each tenant has a slice of its own.

    time = 1 − c + c / x(slice)          speed = 1 / time

`c` is the part of its time alone in which a tenant is held up by the card, taken to be its use of the cores; `x` is
what a slice can do, fitted to MISO's measurements on an A100 (`mig_fitting`). No job slows another: a neighbour only
takes slices. Each tenant has at least the smallest slice that holds its memory; beyond that all have the largest
size that all can have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from berth.arrays import BoolArray, IntArray, compiled
from berth.interference.contention import Contention
from berth.interference.named import NamedPairs, published_names
from berth.interference.speeds import (
    CORES,
    GPU,
    MEM,
    PCIE,
    KnowsApplications,
    Outlook,
    PartsMemory,
    Speeds,
    Tenant,
    as_sets,
    blamed,
    crossed,
    pcie_shared,
    slowest,
    unhindered,
    what_is_left,
)
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


FILE = "mps.json"


@cache
def mps() -> Contention:
    """The model that ships, called as `Speeds` are; always the same object."""
    return Contention.from_json((files("berth.interference") / FILE).read_text(encoding="utf-8"), FILE)


SWITCH_MILLI = 560
"""What switching costs, per mille of the time during which a second process has kernels to run as well."""
WAIT_MILLI = 250
"""How much of another's turn is waited for, on average, by a kernel that finds the card taken, per mille."""


def time_sliced(
    usage: Any, present: Any, capacity_mem_mib: Any, *, xp: Any = np, switch_milli: int = SWITCH_MILLI
) -> Any:
    """Speeds per mille of tenants whose kernels take turns: see `Speeds` for the shapes."""
    if xp is not np:
        return plain(usage, present, xp=xp, switch_milli=switch_milli)
    rows, there, shape = as_sets(usage, present)
    found = np.empty(there.shape, np.int32)
    speeds_in_turns(rows, there, switch_milli, np.empty(shape[-1], np.int64), found)
    return found.reshape(shape)


def plain(usage: Any, present: Any, *, xp: Any, switch_milli: int = SWITCH_MILLI) -> Any:
    """`time_sliced` in NumPy or JAX; with NumPy `speeds_in_turns` is asked, which a test holds equal."""
    wanted = xp.where(present, xp.clip(usage[..., GPU], 0, 1000), 0).astype(xp.int32)
    total = xp.sum(wanted, axis=-1, keepdims=True, dtype=xp.int32)
    overlap = total - xp.max(wanted, axis=-1, keepdims=True)  # of the others, when the busiest runs
    capacity = xp.int32(1_000_000) // (1000 + switch_milli * overlap // 1000)
    level = _level(wanted, total, capacity, xp)
    fair = 1000 * xp.minimum(wanted, level) // xp.maximum(wanted, 1)
    taken = xp.minimum(total - wanted, 1000)
    waits = xp.int32(1_000_000) // (1000 + wanted * taken // 1000 * WAIT_MILLI // 1000)
    speeds = xp.minimum(xp.where(wanted > 0, fair, 1000), waits)
    shared = xp.minimum(xp.where(overlap > 0, speeds, 1000), pcie_shared(usage, present, xp=xp))
    return slowest(shared, present, xp=xp)


def _level(wanted: Any, total: Any, capacity: Any, xp: Any) -> Any:
    """The largest even part, per mille, that the card can give to all that want as much: (..., 1).

    With an even part p, all jobs together take the minimum over k of this sum: what the k jobs with the least demand
    want, and p for each of the others. So the card bears p if one of these sums is within its capacity.
    """
    least = xp.sort(wanted, axis=-1)
    before = xp.cumsum(least, axis=-1, dtype=xp.int32) - least
    others = xp.arange(wanted.shape[-1], 0, -1, dtype=xp.int32).reshape(*(1,) * (wanted.ndim - 1), -1)
    level = xp.max((capacity - before) // others, axis=-1, keepdims=True)
    return xp.where(total <= capacity, 1000, xp.clip(level, 0, 1000))


@compiled
def speeds_in_turns(
    usage: NDArray[np.int32],  # (N, K, 4)
    present: BoolArray,  # (N, K)
    switch_milli: int,
    least: IntArray,  # (K,): to work in
    found: NDArray[np.int32],  # (N, K), out
) -> None:
    """`plain` of N sets."""
    tenants = present.shape[1]
    for at in range(present.shape[0]):
        total, most, pcie = 0, 0, 0
        for one in range(tenants):
            wanted = min(max(usage[at, one, GPU], 0), 1000) if present[at, one] else 0
            total += wanted
            most = max(most, wanted)
            pcie += usage[at, one, PCIE] if present[at, one] else 0
            to = one  # sort them, few as they are
            while to > 0 and least[to - 1] > wanted:
                least[to] = least[to - 1]
                to -= 1
            least[to] = wanted
        overlap = total - most
        capacity = 1_000_000 // (1000 + switch_milli * overlap // 1000)
        level, before = 1000, 0
        if total > capacity:
            level = 0
            for one in range(tenants):
                level = max(level, (capacity - before) // (tenants - one))
                before += least[one]
            level = min(level, 1000)
        pcie = 1_000_000 // max(pcie, 1000)
        for one in range(tenants):
            if not present[at, one]:
                found[at, one] = 0
                continue
            wanted = min(max(usage[at, one, GPU], 0), 1000)
            speed = pcie if usage[at, one, PCIE] > 0 else 1000
            if overlap > 0:
                fair = 1000 * min(wanted, level) // wanted if wanted > 0 else 1000
                waits = 1_000_000 // (1000 + wanted * min(total - wanted, 1000) // 1000 * WAIT_MILLI // 1000)
                speed = min(speed, min(fair, waits))
            found[at, one] = max(speed, 1)


COMPUTE = (1, 2, 3, 4, 7)
"""Sevenths of the card's compute in each size of slice."""
MEMORY = (1, 2, 4, 4, 8)
"""Eighths of its memory, and of the bandwidth of that."""
WORK_MILLI = (107, 250, 470, 530, 1000)
"""What each size can do, per mille of the card, as `python bench/interference.py` fits it."""


@dataclass(frozen=True, slots=True)
class Mig:
    """A card that is cut up anew whenever a job comes or goes; called as `Speeds` are."""

    work_milli: tuple[int, ...] = WORK_MILLI
    """What each size of slice can do, per mille of the card."""
    mode = "mig"

    def __call__(self, usage: Any, present: Any, capacity_mem_mib: Any, *, xp: Any = np) -> Any:
        """Speeds per mille: see `Speeds` for the shapes. 0 for all where no slices hold the memory of all."""
        needs = self._needs(usage, present, capacity_mem_mib, xp)
        sizes = xp.zeros_like(needs)
        fits = xp.zeros(present.shape[:-1], dtype=bool)
        for level in range(len(COMPUTE)):  # ascending: the largest that fits stays
            tried = xp.maximum(needs, level)
            room = self._fits(tried, present, xp)
            sizes = xp.where(room[..., None], tried, sizes)
            fits = fits | room
        speeds = self._speeds(usage, sizes, xp)
        link = what_is_left(usage[..., 3], present, xp=xp)
        return xp.where(present & fits[..., None], xp.minimum(speeds, link), 0).astype(xp.int32)

    def at_most(self, usage: Any, present: Any, capacity_mem_mib: Any) -> Any:
        """Speeds that no job exceeds if it and its neighbours use no less than this: for bounds, NumPy only.

        Each has the largest slice that its neighbours' least ones leave.
        """
        needs = self._needs(usage, present, capacity_mem_mib, np)
        sizes = np.zeros_like(needs)
        for at in range(present.shape[-1]):
            for level in range(len(COMPUTE)):
                tried = needs.copy()
                tried[..., at] = level
                sizes[..., at] = np.where(self._fits(tried, present, np), level, sizes[..., at])
        return np.where(present, np.maximum(self._speeds(usage, sizes, np), 1), 0).astype(np.int32)

    def effective_milli(self, usage: Any) -> Any:
        """What each row takes of the card when it is alone: (..., 4) to (...), per mille of what the card has."""
        return usage[..., CORES]

    def crossed(
        self, usage_now: Any, usage_before: Any, present: Any, capacity_mem_mib: Any, *, xp: Any = np
    ) -> Any:
        """Which tenant runs out of memory now, as `speeds.crossed` tells it of a card that is not cut up."""
        full = ~self._fits(self._needs(usage_now, present, capacity_mem_mib, xp), present, xp)
        return blamed(full, usage_now, usage_before, present, xp=xp)

    def _needs(self, usage: Any, present: Any, capacity_mem_mib: Any, xp: Any) -> Any:
        """Number of the smallest size that holds each one's memory; one beyond the last where none does."""
        capacity = xp.asarray(capacity_mem_mib)
        capacity = capacity.reshape(capacity.shape + (1,) * (present.ndim - capacity.ndim))
        needs = xp.zeros(present.shape, dtype=xp.int32)
        for part in (1, 2, 4, 8):
            too_small = (usage[..., MEM] > capacity * part // 8) & (capacity > 0)
            needs = xp.where(too_small, {1: 1, 2: 2, 4: 4, 8: 5}[part], needs)
        return xp.where(present, needs, 0)

    def _fits(self, sizes: Any, present: Any, xp: Any) -> Any:
        """(..., K) to (...): whether slices of these sizes lie on one card together; any that sum up do."""
        compute = xp.asarray(np.array([*COMPUTE, 99], np.int32))[sizes]
        memory = xp.asarray(np.array([*MEMORY, 99], np.int32))[sizes]
        sums = [xp.sum(xp.where(present, part, 0), axis=-1, dtype=xp.int32) for part in (compute, memory)]
        return (sums[0] <= COMPUTE[-1]) & (sums[1] <= MEMORY[-1])

    def _speeds(self, usage: Any, sizes: Any, xp: Any) -> Any:
        cores = xp.clip(usage[..., CORES], 0, 1000)
        work = xp.asarray(np.array([*self.work_milli, 1], np.int32))[sizes]
        return xp.int32(1_000_000) // (1000 - cores + 1000 * cores // work)


@cache
def mig() -> Mig:
    """The model that ships; always the same object."""
    return Mig()
