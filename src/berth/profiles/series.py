"""A profile in whole numbers of one GPU, scaled to the card that is asked about."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from berth.model import GpuModel, Profile
from berth.profiles.file import BEGUN

STEADY = 1.02
"""Memory that has grown by no more than this in the second half of what was seen is taken to have loaded."""
COLUMNS = ("gpu_milli", "mem_mib", "cores_milli", "pcie_milli")
"""The columns of a series."""


class Series:
    """What an application uses of one GPU, a row an interval. Read-only."""

    def __init__(self, interval_ms: int, usage: NDArray[np.int32]) -> None:
        self.interval_ms = interval_ms
        self.usage = usage.view()
        """int32 (steps, 4): gpu_milli, mem_mib, cores_milli, pcie_milli."""
        self.usage.flags.writeable = False

    @cached_property
    def rows(self) -> tuple[tuple[int, int, int, int], ...]:
        """The same as plain numbers, for looking up one row at a time."""
        return tuple(map(tuple, self.usage.tolist()))

    @cached_property
    def memory_steps(self) -> tuple[tuple[int, int], ...]:
        """From which ms on it uses how much memory, MiB: the rows in which that changes."""
        mem_mib = self.usage[:, 1]
        changed = np.flatnonzero(np.diff(mem_mib, prepend=-1))
        return tuple((row * self.interval_ms, int(mem_mib[row])) for row in changed.tolist())

    def row_at(self, done_ms: int) -> int:
        """The row of a job that has done this much of its work; the last row holds after the end."""
        return min(done_ms // self.interval_ms, len(self.usage) - 1)

    @property
    def run_time_ms(self) -> int:
        """Run time alone on the card that the profile was measured on."""
        return len(self.usage) * self.interval_ms

    @property
    def peak_mem_mib(self) -> int:
        """The most memory that it uses at any time."""
        return int(self.usage[:, 1].max())

    @cached_property
    def _peaks_mib(self) -> list[int]:
        return [int(peak) for peak in np.maximum.accumulate(self.usage[:, 1])]

    def peak_within(self, work_ms: int) -> int:
        """The most memory, in MiB, that a job with this much work uses."""
        return self._peaks_mib[self.row_at(max(0, work_ms - 1))]


def series(profile: Profile, gpu: GpuModel) -> Series:
    """The profile as it would look on a card of that model.

    GPU and cores go by the ratio of the cards' cores and PCIe by that of their bandwidth, at most the whole card:
    what keeps a small card busy half of the time keeps one with twice the cores busy for a quarter. Memory in MiB
    stays as it is. The run time is not scaled: a job's `work_ms` is its run time on the card that it asked for.
    Where either card's cores or bandwidth are not known (0) the fractions stay as they are.
    """
    measured_on = profile.hardware
    compute = _ratio(measured_on.cores, gpu.cores)
    link = _ratio(measured_on.pcie_mbps, gpu.pcie_mbps)
    scale = np.array([1000 * compute, measured_on.mem_mib, 1000 * compute, 1000 * link])
    usage = np.rint(profile.usage * scale).astype(np.int32)
    usage[:, [0, 2, 3]] = np.minimum(usage[:, [0, 2, 3]], 1000)
    return Series(profile.interval_ms, usage)


def run_time_ms(profile: Profile) -> int:
    """Run time alone on the profile's own hardware."""
    return len(profile.usage) * profile.interval_ms


def peak_mem_mib(profile: Profile) -> int:
    """The most GPU memory that the application uses at any time."""
    return int(np.rint(profile.usage[:, 1].max() * profile.hardware.mem_mib))


def begun(profile: Profile, done_ms: int) -> Profile:
    """What a profile's first `done_ms` show, at least one row."""
    rows = max(1, done_ms // profile.interval_ms)
    return replace(profile, kind=BEGUN, usage=profile.usage[:rows])


def is_steady(profile: Profile) -> bool:
    """Whether a run holds GPU memory, and has taken next to no more of it in the second half of what was seen."""
    mem = profile.usage[:, 1]
    return bool(0 < mem.max() <= STEADY * mem[: max(1, len(mem) // 2)].max())


def _ratio(measured_on: int, asked_for: int) -> float:
    return measured_on / asked_for if measured_on > 0 and asked_for > 0 else 1.0
