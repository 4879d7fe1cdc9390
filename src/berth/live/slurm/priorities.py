"""Slurm's own priority of a job that is held: its PriorityMultifactor, from what its commands print.

A held job has priority 0 in Slurm, and `sprio` leaves it out, so it is computed here as the plugin does it: each
factor from 0 to 1 times its weight (slurm.schedmd.com/priority_multifactor.html). Job size, TRES, association and site
factors are left out; `berth slurm check` says so where the site gives them a weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from berth.history.values.durations import slurm_s
from berth.live.slurm.jobs import SlurmJob
from berth.live.slurm.nodes import SlurmPartition

LEFT_OUT = ("PriorityWeightAssoc", "PriorityWeightJobSize", "PriorityWeightTRES", "PrioritySiteFactorPlugin")


TIER = 1 << 33
"""What a tier of partitions is worth: more than any priority of Slurm's, which has 32 bits."""
HIGHEST = 1 << 60
"""The priority of a run that makes room for no other job."""


@dataclass(frozen=True, slots=True)
class Priorities:
    """The weights of a site, and the shares of its users."""

    multifactor: bool = False
    """False: priority/basic, first come, first served."""
    age: int = 0
    max_age_s: int = 7 * 86_400
    fair_share: int = 0
    partition: int = 0
    shares: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """The fair-share factor by account and user."""
    partition_factors: Mapping[str, float] = field(default_factory=dict)
    """By name, from 0 to 1."""
    tiers: Mapping[str, int] = field(default_factory=dict)
    """The PriorityTier of each partition, less the lowest."""

    @classmethod
    def of(
        cls,
        configuration: Mapping[str, str],
        shares: Mapping[tuple[str, str], float],
        partitions: Iterable[SlurmPartition],
    ) -> Priorities:
        """From `scontrol show config`, `sshare`, and the partitions."""
        partitions = tuple(partitions)
        most = max((each.priority_factor for each in partitions), default=0) or 1
        lowest = min((each.tier for each in partitions), default=0)

        def number(name: str) -> int:
            text = configuration.get(name, "0").split()[0] if configuration.get(name, "").split() else "0"
            return int(text) if text.isdecimal() else 0

        return cls(
            configuration.get("PriorityType", "").endswith("multifactor"),
            number("PriorityWeightAge"),
            slurm_s(configuration.get("PriorityMaxAge", "7-0")) or 7 * 86_400,
            number("PriorityWeightFairShare"),
            number("PriorityWeightPartition"),
            shares,
            {each.name: each.priority_factor / most for each in partitions},
            {each.name: each.tier - lowest for each in partitions},
        )

    def of_run(self, job: SlurmJob) -> int:
        """Of a job that berth started: above all that wait in its tier, and below those of the next."""
        return (self.tiers.get(job.partition, 0) + 1) * TIER - 1

    def of_job(self, job: SlurmJob, now_ms: int) -> int:
        """The higher, the sooner: by the tier of its partition first."""
        return self.tiers.get(job.partition, 0) * TIER + self._in_tier(job, now_ms)

    def _in_tier(self, job: SlurmJob, now_ms: int) -> int:
        """A job that is not held has its priority from Slurm."""
        if job.priority:
            return job.priority
        if not self.multifactor:
            return 0
        waited_s = max(0, now_ms - (job.eligible_ms or job.submit_ms)) / 1000
        aged = min(1.0, waited_s / self.max_age_s)
        share = self.shares.get((job.account, job.user), 0.0)
        sum_of = self.age * aged + self.fair_share * share
        sum_of += self.partition * self.partition_factors.get(job.partition, 0.0)
        return max(1, round(sum_of) - job.nice)
