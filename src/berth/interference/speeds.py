"""How fast jobs that share a GPU advance, from what each would use of it at this moment, in whole numbers.

A function `Speeds` is one definition for the simulator (NumPy), the learning environment (JAX) and anything else
that speaks the array API: integers only, 32 bits, so that all agree to the bit. Letters: K tenants, in any
order; `...` any number of leading axes. A row of usage is `(gpu_milli, mem_mib, cores_milli, pcie_milli)` of one
GPU (`berth.profiles.Series`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from berth.arrays import BoolArray, IntArray
from berth.model import FOREVER_MS, GpuModel, Job, Profile, Share

GPU, MEM, CORES, PCIE = range(4)
"""The columns of usage."""


class Speeds(Protocol):
    """Speeds per mille of each tenant's speed alone: a pure function of what all use at one moment.

    1000 for a tenant alone, never above, and adding a tenant never raises another's; 0 for a row that is not present.
    """

    def __call__(self, usage: Any, present: Any, capacity_mem_mib: Any, *, xp: Any = np) -> Any:
        """int32 (..., K, 4), bool (..., K) and the card's memory to int32 (..., K); `xp` is numpy or jax.numpy."""


@runtime_checkable
class OfMode(Protocol):
    """What else a function of speeds has that says in which way a GPU is shared."""

    mode: str
    """`time-sliced`, `mps` or `mig`."""

    def effective_milli(self, usage: Any) -> Any:
        """What each row of use takes of the card when it is alone: int32 (..., 4) to (...), per mille of what the card
        has. Times the speeds, it adds up to no more than the whole card."""


@runtime_checkable
class PartsMemory(Protocol):
    """What else a function of speeds has under which memory is not one for all tenants."""

    def crossed(
        self, usage_now: Any, usage_before: Any, present: Any, capacity_mem_mib: Any, *, xp: Any = np
    ) -> Any:
        """As `crossed`."""


@runtime_checkable
class KnowsApplications(Protocol):
    """What else a function of speeds has that knows more of some applications than their use."""

    names: Mapping[str, int]
    """A number of each of them."""

    def among(self, usage: Any, present: Any, centre: IntArray) -> NDArray[np.int32]:
        """The same speeds where `centre` (..., K) is the number of each tenant's application, -1 for all others."""


def effective_milli(speeds: object, usage: Any) -> Any:
    """What each row takes of the card when it is alone, in the words of these speeds: the time in which it has kernels
    to run, where they say nothing else."""
    return speeds.effective_milli(usage) if isinstance(speeds, OfMode) else usage[..., GPU]


def unhindered(usage: Any, present: Any, capacity_mem_mib: Any, *, xp: Any = np) -> Any:
    """Every job advances as if alone."""
    return xp.where(present, xp.int32(1000), xp.int32(0))


def what_is_left(wanted: Any, present: Any, *, xp: Any = np) -> Any:
    """Speeds where one resource alone slows: int32 (..., K), from what each tenant wants of it, per mille.

    A resource asked for more than it has gives each tenant the same part of what it asks for; one that uses none
    of it is not slowed. More use by a neighbour never helps.
    """
    wanted = xp.where(present, wanted, 0)
    total = xp.sum(wanted, axis=-1, keepdims=True, dtype=xp.int32)
    shared = xp.int32(1_000_000) // xp.maximum(total, xp.int32(1000))
    return xp.where(present, xp.where(wanted > 0, shared, xp.int32(1000)), xp.int32(0))


def as_sets(usage: Any, present: Any) -> tuple[NDArray[np.int32], BoolArray, tuple[int, ...]]:
    """Arguments of `Speeds` as N sets of K tenants, for compiled code: int32 (N, K, 4), bool (N, K); and the shape
    (..., K) of the answer."""
    shape = present.shape
    if usage.shape[:-1] != shape:
        shape = np.broadcast_shapes(usage.shape[:-1], shape)
        usage, present = np.broadcast_to(usage, (*shape, 4)).copy(), np.broadcast_to(present, shape).copy()
    sets = prod(shape[:-1]), shape[-1]
    rows = np.ascontiguousarray(usage, np.int32).reshape(*sets, 4)
    return rows, np.ascontiguousarray(present, np.bool_).reshape(sets), shape


def pcie_shared(usage: Any, present: Any, *, xp: Any = np) -> Any:
    """Speeds where only the PCIe link slows: int32 (..., K)."""
    return what_is_left(usage[..., PCIE], present, xp=xp)


def slowest(speeds: Any, present: Any, *, xp: Any = np) -> Any:
    """The same speeds, at least 1 per mille for each tenant present: none stands still for good. 0 for the others."""
    return xp.where(present, xp.maximum(speeds, 1), 0).astype(xp.int32)


def crossed(usage_now: Any, usage_before: Any, present: Any, capacity_mem_mib: Any, *, xp: Any = np) -> Any:
    """Which tenant runs out of GPU memory now: int32 index (...), −1 where all fit.

    `usage_before` is what each used until this moment; a newcomer's memory there is 0. Where the memory in use is
    more than the card has, the tenant whose memory has just grown fails; of several the last, which is the last
    started where tenants come in the order of their start (of none, the last present). A card whose memory is not
    known (0) is never full.
    """
    now = xp.where(present, usage_now[..., MEM], 0)
    full = (xp.sum(now, axis=-1, dtype=xp.int32) > capacity_mem_mib) & (xp.asarray(capacity_mem_mib) > 0)
    return blamed(full, usage_now, usage_before, present, xp=xp)


def blamed(full: Any, usage_now: Any, usage_before: Any, present: Any, *, xp: Any = np) -> Any:
    """Which tenant fails where memory runs out: bool (...) and use as for `crossed` to int32 (...), −1 where it does
    not."""
    grown = present & (usage_now[..., MEM] > usage_before[..., MEM])
    candidates = xp.where(xp.any(grown, axis=-1, keepdims=True), grown, present)
    number = xp.arange(1, present.shape[-1] + 1, dtype=xp.int32)
    last = xp.max(xp.where(candidates, number, 0), axis=-1)
    return xp.where(full, last - 1, -1).astype(xp.int32)


class Tenant(NamedTuple):
    """A job on a GPU at one moment."""

    job: Job
    share: Share
    done_ms: int
    """How much of its work is done, as run time alone."""
    rest_us: int = 0
    """What it has done beyond that: 0…999 µs."""


class Outlook(NamedTuple):
    """What happens on a GPU as long as no job comes or goes."""

    speeds_milli: tuple[int, ...]
    """Of each tenant, per mille of its speed alone."""
    hold_ms: int = FOREVER_MS
    """How long this holds, at least 1 ms; then the model is asked again."""
    out_of_memory: int | None = None
    """Which tenant runs out of memory now; None where all fit."""


class Interference(Protocol):
    """Tells how the tenants of one GPU advance together."""

    def __call__(self, tenants: Sequence[Tenant], gpu: GpuModel | None) -> Outlook:
        """The outlook for at least one tenant, given in order of their start. A pure function."""


@runtime_checkable
class KnowsMemory(Protocol):
    """What else a model of interference has that knows how much memory jobs will use."""

    def fits_alone(self, job: Job, gpu: GpuModel | None) -> bool:
        """Whether the job never uses more memory than the card has; one that fits on no GPU that it may run on is
        rejected when it comes."""

    def used_mib(self, tenant: Tenant, gpu: GpuModel | None) -> int:
        """The GPU memory that a tenant uses at this moment, MiB; 0 if unknown."""


@runtime_checkable
class KnowsMemoryOverTime(Protocol):
    """What else a model of interference has that knows when jobs use how much memory."""

    def memory_over_time(self, job: Job, gpu: GpuModel | None) -> Sequence[tuple[int, int]]:
        """From which ms of its work on a job uses how much of each GPU, MiB, from 0 on; empty: what its share says."""


@runtime_checkable
class KnowsProfiles(Protocol):
    """What else a model of interference has that is made of applications' profiles."""

    profiles: Mapping[str, Profile]
    speeds: Speeds

    def with_profiles(self, profiles: Mapping[str, Profile]) -> Interference:
        """The same model over other profiles."""


def no_interference(tenants: Sequence[Tenant], gpu: GpuModel | None) -> Outlook:
    """Every job advances as if alone."""
    return Outlook((1000,) * len(tenants))
