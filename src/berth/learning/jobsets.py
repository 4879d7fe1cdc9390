"""The jobs that episodes are about: sets of jobs as arrays, and the table of their applications."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from berth.errors import SettingError
from berth.model import GpuModel, Job, Profile, work_of
from berth.network.catalogue import NEVER_MS, Catalogue, horizon_step_ms, make_catalogue
from berth.profiles import THESIS_GPU, WORKLOADS, Series, series, thesis_profiles, workload_jobs

LONGEST_SET_MS = 2**30
"""The work of a set together, 12 days: the environment counts time in 32 bits."""


class JobSets(NamedTuple):
    """N sets of J jobs each, all waiting at 0 in this order; arrays of NumPy or JAX."""

    application: Any  # int32 (N, J): row of the catalogue
    work_ms: Any  # int32 (N, J): run time alone; int64 before `Task.counted`

    def take(self, at: int) -> JobSets:
        """One of them: arrays (J,)."""
        return JobSets(self.application[at], self.work_ms[at])


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """What there is to learn about: applications on a card, as series and as the table of them."""

    applications: tuple[str, ...]
    series: tuple[Series, ...]
    gpu: GpuModel
    horizon: int
    step_ms: int

    def counted(self, *sets: JobSets) -> tuple[Task, tuple[JobSets, ...], int]:
        """The same with time in coarser units where the work of a set is too long for 32 bits: how many ms a unit is.

        Work is rounded up to whole units. Raises SettingError where the intervals of the profiles have no such unit.
        """
        longest_ms = max(int(one.work_ms.sum(axis=1, dtype=np.int64).max()) for one in sets)
        least = max(1, -(-longest_ms // LONGEST_SET_MS))
        common_ms = gcd(*(one.interval_ms for one in self.series))
        unit_ms = next((unit for unit in range(least, common_ms + 1) if common_ms % unit == 0), None)
        if unit_ms is None:
            raise SettingError(
                f"the jobs of a set have {longest_ms:,} ms of work together, more than {LONGEST_SET_MS:,} times the"
                f" {common_ms} ms that all intervals of the profiles are multiples of; take profiles of longer"
                " intervals"
            )
        coarse = tuple(Series(one.interval_ms // unit_ms, one.usage) for one in self.series)
        counted = (JobSets(one.application, (-(-one.work_ms // unit_ms)).astype(np.int32)) for one in sets)
        step_ms = max(1, self.step_ms // unit_ms)
        return replace(self, series=coarse, step_ms=step_ms), tuple(counted), unit_ms

    def catalogue(self) -> Catalogue:
        """The table."""
        usages = [one.usage for one in self.series]
        return make_catalogue(usages, [one.interval_ms for one in self.series], self.step_ms)

    def sets(self, sets: Sequence[Sequence[Job]]) -> JobSets:
        """Sets of equally many jobs as arrays; SettingError for a job that is unknown or cannot run here."""
        index = {name: at for at, name in enumerate(self.applications)}
        for job in (job for jobs in sets for job in jobs):
            if job.application not in index:
                raise SettingError(
                    f"job '{job.id}' is of application '{job.application}', which has no profile; record it alone"
                    " once, or leave it out"
                )
            if not 0 < work_of(job) < NEVER_MS:
                raise SettingError(f"job '{job.id}' has {work_of(job)} ms of work; expected 1…{NEVER_MS - 1}")
        if len({len(jobs) for jobs in sets}) != 1 or not sets[0]:
            raise SettingError("the sets of jobs to learn from must be equally large, one job or more each")
        longest_ms = max(sum(work_of(job) for job in jobs) for jobs in sets)
        if longest_ms > LONGEST_SET_MS:
            raise SettingError(
                f"the jobs of a set have {longest_ms:,} ms of work together; expected at most {LONGEST_SET_MS:,}"
            )
        application = np.array([[index[job.application] for job in jobs] for jobs in sets], np.int32)
        return JobSets(application, np.array([[work_of(job) for job in jobs] for jobs in sets], np.int32))


def make_task(
    profiles: Mapping[str, Profile], gpu: GpuModel, *, horizon: int = 20, step_ms: int | None = None
) -> Task:
    """The task of these applications on that card; by default the horizon covers the longest of them.

    Raises SettingError for an application that would run out of the card's memory even alone.
    """
    if not profiles:
        raise SettingError("there is no profile to learn from; record or import one first")
    scaled = tuple(series(profile, gpu) for profile in profiles.values())
    for name, one in zip(profiles, scaled, strict=True):
        if gpu.mem_mib and one.peak_mem_mib > gpu.mem_mib:
            raise SettingError(
                f"application '{name}' needs {one.peak_mem_mib} MiB, a {gpu.name} has {gpu.mem_mib}; leave it out"
            )
    longest_ms = max(one.run_time_ms for one in scaled)
    return Task(tuple(profiles), scaled, gpu, horizon, step_ms or horizon_step_ms(longest_ms, horizon))


def thesis_task(*, horizon: int = 20, step_ms: int | None = None) -> Task:
    """The thesis's applications on its card."""
    return make_task(thesis_profiles(), THESIS_GPU, horizon=horizon, step_ms=step_ms)


def thesis_sets(task: Task, workload: str, first_seed: int, count: int, *, jobs: int = 30) -> JobSets:
    """Sets of a workload of the thesis, or of each in turn for `all`, with seeds from `first_seed` on."""
    names = tuple(WORKLOADS) if workload == "all" else (workload,)
    chosen = [(names[at % len(names)], first_seed + at // len(names)) for at in range(count)]
    return task.sets([workload_jobs(name, jobs, seed) for name, seed in chosen])
