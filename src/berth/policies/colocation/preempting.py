"""Preemption with policies that share GPUs: a waiting job takes a GPU of tenants that all rank behind it."""

from __future__ import annotations

from collections.abc import Iterator

from berth.cluster import Cluster, Queue
from berth.model import Evict, Job
from berth.policies.protocol import Decision, KeepsGpus
from berth.policies.schemes.preempt import Ranks, resume, victims


class PreemptiveSharing:
    """Let the policy decide; then, for the first job that still waits, evict tenants that rank behind it.

    Evicted are as few as leave the job what it asks for, and a GPU is kept for it until it starts, so that no other job
    takes its place. Where that would make no room, none is evicted. Jobs of the same rank share as without preemption.
    """

    def __init__(self, ranks: Ranks, policy: KeepsGpus) -> None:
        self.ranks = ranks
        self.policy = policy
        self.policy.queue_order = ranks
        self.draws = policy.draws
        """Whether its decisions may depend on the seed."""

    resumes = True
    """It says when suspended jobs run on."""

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        """Yield what the policy decides, and evictions between."""
        if cluster.suspended:
            first = self._first(queue, cluster, now_ms)
            before = None if first is None else self.ranks.waiting(first)
            yield from resume(self.ranks, cluster, now_ms, before=before)
        yield from self.policy(queue, cluster, now_ms)
        while (job := self._first(queue, cluster, now_ms)) is not None:
            evicted = victims(self.ranks, job, cluster, now_ms)
            if not evicted:
                return
            for run in evicted:
                yield Evict(run.job)
            freed = [slot for run in evicted for slot in run.slots if not cluster.jobs_on(slot)]
            if freed:
                self.policy.keep(job, freed[0])
            yield from self.policy(queue, cluster, now_ms)
            if job.id not in cluster.running:
                return

    def _first(self, queue: Queue, cluster: Cluster, now_ms: int) -> Job | None:
        return next(iter(self.ranks(queue, cluster, now_ms)), None)
