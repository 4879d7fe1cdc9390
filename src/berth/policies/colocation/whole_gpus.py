"""Jobs that take their GPUs whole beside those that share: on several GPUs or none, or of an unknown application."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from berth.cluster import Cluster, Queue, Running
from berth.model import GpuSlot, Job, Placement, Profile, placement_of


class WholeGpus:
    """Starts such jobs, and learns the profile of an application that has run alone.

    Oh 2019, section IV.1: what has no profile yet runs alone once and is recorded. `known` is the policy's own and is
    added to; `recorded` tells the profile of an application that has run, None where there is none.
    """

    def __init__(
        self,
        known: dict[str, Profile],
        recorded: Callable[[str], Profile | None],
        shares: Callable[[Job], bool],
        is_cold: Callable[[Job], bool],
        first_look_ms: Callable[[], int | None],
    ) -> None:
        """`is_cold` says which jobs only wait for a profile of their application, and so hold up no others. After
        `first_look_ms()` of a run alone something may be known of it; None: not before its end."""
        self.known = known
        self.recorded = recorded
        self.shares = shares
        self.is_cold = is_cold
        self.first_look_ms = first_look_ms
        self.tried: set[str] = set()
        """Applications that have run alone and have no profile all the same."""
        self._alone: dict[str, Job] = {}
        self.held: dict[str, Running] = {}
        """By application, the run whose first look waiting jobs wait for."""

    def forget(self, cluster: Cluster) -> None:
        """Keep of those that run alone only those on this cluster: it is another one, or its nodes are others."""
        running = cluster.running
        self._alone = {
            name: job for name, job in self._alone.items() if name in running and running[name].job is job
        }

    def start(self, queue: Iterable[Job], cluster: Cluster, now_ms: int) -> Iterator[Placement]:
        """Start the first jobs that take their GPUs whole, until one has no room or one that may share is next.

        One that asks for a part of a GPU has it beside others that asked for parts. One that only waits for a profile
        does so until the first look at the run that will tell it, if that is to come.
        """
        unseen = self._unseen(cluster, now_ms)
        some = False
        without_room: set[int] = set()  # request types
        for job in queue:
            if self.shares(job):
                if some:
                    return
                continue
            cold = self.is_cold(job)
            if cold and (run := unseen.get(job.application)) is not None:
                self.held[job.application] = run
                continue
            if cold and cluster.request(job) in without_room:
                continue
            placement = self.place(job, cluster)
            if placement is not None:
                some = True
                yield placement
            elif cold:
                without_room.add(cluster.request(job))
            elif job.patience_ms != 0:
                return

    def place(self, job: Job, cluster: Cluster) -> Placement | None:
        """Where a job takes its GPUs whole; None if there is no room."""
        slots = _slots(job, cluster)
        if slots is None:
            return None
        if job.gpus == 1 and not job.tasks:
            sharing = cluster.jobs_on(slots[0])
            for run in sharing:
                self._alone.pop(run.job.id, None)  # what is recorded of it from now on is not its own
            if not sharing:
                self._alone[job.id] = job
        return placement_of(job, slots)

    def alone(self, cluster: Cluster) -> set[str]:
        """Applications of which a job runs alone."""
        return {job.application for job in self._alone.values() if job.id in cluster.running}

    @property
    def held_until_ms(self) -> int | None:
        """When jobs may start that wait for the first look at a run of their application."""
        return min((run.start_ms + (self.first_look_ms() or 0) for run in self.held.values()), default=None)

    def _unseen(self, cluster: Cluster, now_ms: int) -> dict[str, Running]:
        """By application, its run alone that is to be looked at for the first time."""
        runs = [cluster.running[name] for name in self._alone if name in cluster.running]
        first = {run.job.application: run for run in reversed(runs)}
        look_ms = self.first_look_ms() or 0
        return {name: run for name, run in first.items() if run.start_ms + look_ms > now_ms}

    def record(self, queue: Queue, cluster: Cluster) -> None:
        """Learn the profiles of applications that have run alone since."""
        self.held.clear()
        for identity, job in list(self._alone.items()):
            if identity in cluster.running:
                continue
            del self._alone[identity]
            if job not in queue and job.application not in self.known:
                profile = self.recorded(job.application)
                if profile is not None:
                    self.known[job.application] = profile
                else:
                    self.tried.add(job.application)


def _slots(job: Job, cluster: Cluster) -> tuple[GpuSlot, ...] | None:
    """Where it fits: a part of a GPU where others have parts, else with none beside it; None if it does not."""
    if job.tasks:
        return cluster.slots_of_gang(job, _slots)
    nodes = cluster.fitting_nodes(job)
    if job.gpus != 1 or job.share.milli == 1000:
        return cluster.slots_for(job, nodes[np.argsort(cluster.rank[nodes])])
    idle: tuple[GpuSlot, ...] | None = None
    for node in nodes[np.argsort(cluster.rank[nodes])].tolist():
        for index in cluster.fitting_gpus(node, job):
            tenants = cluster.jobs_on(GpuSlot(node, index))
            if tenants and not any(run.best_effort for run in tenants):
                return (GpuSlot(node, index),)
            if not tenants and idle is None:
                idle = (GpuSlot(node, index),)
    return idle
