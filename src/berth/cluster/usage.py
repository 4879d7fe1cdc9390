"""GPU time used by each user, virtual cluster and job.

The cluster keeps it for orders that share fairly. Time is GPU milli × milliseconds: a whole GPU for a second is
1,000,000. With a half-life, what was used counts half as much after that time, as in Slurm's multifactor priority.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log

from berth.model import Job, Share

HALF_LIFE_MS = 7 * 86_400_000
"""Slurm's default, PriorityDecayHalfLife = 7 days."""


@dataclass(slots=True)
class Account:
    """What a user or virtual cluster holds now, and what it used until `as_of_ms`."""

    past: float = 0.0
    """GPU milli × ms, decayed."""
    as_of_ms: int = 0
    held_milli: int = 0

    def used(self, now_ms: int) -> float:
        """GPU milli × ms until now, decayed."""
        passed = now_ms - self.as_of_ms
        if passed <= 0:
            return self.past
        decay: float = 0.5 ** (passed / HALF_LIFE_MS)
        return self.past * decay + self.held_milli * (1 - decay) * (HALF_LIFE_MS / log(2))

    def change(self, now_ms: int, milli: int) -> None:
        """Settle until now, and hold this much more from now on."""
        self.past = self.used(now_ms)
        self.as_of_ms = max(self.as_of_ms, now_ms)
        self.held_milli += milli


@dataclass(slots=True)
class Usage:
    """Accounts of all users that ever held a GPU; there to be read."""

    users: dict[str, Account] = field(default_factory=dict)
    virtual_clusters: dict[str, Account] = field(default_factory=dict)
    jobs: dict[str, int] = field(default_factory=dict)
    """GPU milli × ms of the attempts of each job that have ended, not decayed."""

    _watching: list[set[str]] = field(default_factory=list)

    def watched(self) -> set[str]:
        """A new set, to which each user is added that starts or ends something; take out what you have seen."""
        self._watching.append(set())
        return self._watching[-1]

    def start(self, job: Job, share: Share, now_ms: int) -> None:
        """A job starts to hold its GPUs. For the cluster alone."""
        milli = job.gpus * share.milli
        self.users.setdefault(job.user, Account()).change(now_ms, milli)
        self.virtual_clusters.setdefault(job.virtual_cluster, Account()).change(now_ms, milli)
        for users in self._watching:
            users.add(job.user)

    def resize(self, job: Job, before: Share, share: Share, start_ms: int, now_ms: int) -> None:
        """A job holds another share of its GPUs from now on. For the cluster alone."""
        more = job.gpus * (share.milli - before.milli)
        self.users[job.user].change(now_ms, more)
        self.virtual_clusters[job.virtual_cluster].change(now_ms, more)
        for users in self._watching:
            users.add(job.user)
        # At its end the last share counts from the start.
        self.jobs[job.id] = self.jobs.get(job.id, 0) - more * max(0, now_ms - start_ms)

    def go_on(self, job: Job, share: Share, start_ms: int, now_ms: int) -> None:
        """A suspended job holds its GPUs again, having run from `start_ms` until now. For the cluster alone."""
        self.start(job, share, now_ms)
        # At its end all of its run time counts.
        self.jobs[job.id] = self.jobs.get(job.id, 0) - job.gpus * share.milli * max(0, now_ms - start_ms)

    def stop(self, job: Job, share: Share, start_ms: int, now_ms: int) -> None:
        """A job gives its GPUs back. For the cluster alone."""
        milli = job.gpus * share.milli
        self.users[job.user].change(now_ms, -milli)
        self.virtual_clusters[job.virtual_cluster].change(now_ms, -milli)
        for users in self._watching:
            users.add(job.user)
        self.jobs[job.id] = self.jobs.get(job.id, 0) + milli * max(0, now_ms - start_ms)
