"""The truth as knowledge, which no scheduler of a real cluster has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from berth.interference import Interference, KnowsProfiles, Speeds, no_interference
from berth.interference.speeds import unhindered
from berth.knowledge.belief import Spread
from berth.model import GpuModel, Job, Profile, Record
from berth.profiles import peak_mem_mib

_NO_PROFILES: Mapping[str, Profile] = {}


class Oracle:
    """Knows the truth of a simulation: work of jobs, profiles and speeds of its model of interference, jobs to come."""

    certain = True
    learns = False

    def __init__(self, workload: Sequence[Job] = (), interference: Interference = no_interference) -> None:
        """`workload` are the jobs to come, or a history like them, for policies that plan for the usual request."""
        self._workload = workload
        self.profiles: Mapping[str, Profile] = _NO_PROFILES
        self.speeds: Speeds = unhindered
        if isinstance(interference, KnowsProfiles):
            self.profiles, self.speeds = interference.profiles, interference.speeds

    def run_ms(self, job: Job) -> Spread | None:
        """Its work."""
        return None if job.work_ms is None else Spread.exactly(job.work_ms)

    def profile(self, job: Job, gpu: GpuModel | None) -> Profile | None:
        """The profile that the simulator goes by."""
        return self.profiles.get(job.application)

    def peak_mem_mib(self, job: Job, gpu: GpuModel | None = None) -> Spread | None:
        """The peak of its profile."""
        profile = self.profiles.get(job.application)
        return None if profile is None else Spread.exactly(peak_mem_mib(profile))

    def usual_requests(self) -> Sequence[Job]:
        """The workload."""
        return self._workload

    def observe(self, record: Record) -> None:
        """Learn nothing: all is known."""

    def ran_out_of_memory(self, job: Job, held_mib: int) -> None:
        """Learn nothing: all is known."""

    def outlived(self, job: Job, ran_ms: int) -> None:
        """Learn nothing: all is known."""
