"""Fair share: the user who has used the least GPU time comes first."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from berth.cluster import Cluster
from berth.model import Job
from berth.policies.keyed import LAST, as_queued
from berth.queue import Queue
from berth.usage import Account

_NOBODY = Account()


def fair_share(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Job]:
    """By the GPU time that the job's user has used, least first; then by the GPUs held now; then as queued.

    What was used counts half as much after seven days: Kay and Lauder, "A Fair Share Scheduler", Communications of
    the ACM 31(1), 1988, with the half-life of Slurm's multifactor priority. GPUs that run count until now, so that
    a user's turn passes on as soon as one of his jobs has run for a while.
    """
    users = cluster.usage().users
    lanes = queue.lanes(_user, as_queued)

    def entry(user: str, behind: float) -> tuple[float, int, float, str, Job] | None:
        waiting = lanes.get(user, ())
        place = waiting.bisect_right((0, behind, LAST)) if waiting else 0
        if place == len(waiting):
            return None
        _, serial, job = waiting[place]
        account = users.get(user, _NOBODY)
        return (account.used(now_ms), account.held_milli, serial, user, job)

    turns = [turn for user in lanes if (turn := entry(str(user), -1))]
    heapify(turns)
    while turns:
        _, _, serial, user, job = heappop(turns)
        yield job
        if turn := entry(user, serial):
            heappush(turns, turn)


def _user(job: Job) -> str:
    return job.user
