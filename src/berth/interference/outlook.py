"""What a model of interference is asked about one GPU at one moment, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from berth.interference.speeds import Speeds
from berth.model import FOREVER_MS, GpuModel, Job, Profile, Share


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
