"""Policies that start combinations of waiting jobs together on a GPU, whatever chooses the combination.

Oh 2019, algorithm 2, for many different GPUs: each GPU with room is offered the head of the queue, and a chooser
says which of those jobs start there now. Everybody who is asked sees the same forecasts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from berth.cluster import Cluster, Running
from berth.interference import Interference, Speeds, make_speeds
from berth.interference.profiled import ProfiledInterference
from berth.kernels import LABELS, MODELS, IntArray
from berth.model import GpuModel, GpuSlot, Job, Placement, Profile, Share, WakeAt
from berth.policies.forecast import MOST, Candidate, Forecaster, Forecasts, Offer
from berth.policies.protocol import Decision
from berth.profiles import thesis_profiles
from berth.queue import Queue

__all__ = ["SHARE_MILLI", "Chooser", "Colocating", "Knowledge", "Scene", "knowledge_of"]

SHARE_MILLI = 1000 // MOST
"""What a job is given of a GPU that it shares, so that so many fit. It is a place and no part of the compute, which is
shared as the model of interference says; GPU memory is not taken either, but judged over time by the profiles."""

LEAD_MS, LEAD_STEP_MS = 5_000, 500
"""So long before somebody ends, and every so often from then on, a GPU that declined is asked again: who loads little
by little may begin while another ends."""


Room = tuple[GpuSlot, tuple[Running, ...]]
"""A GPU with room for one more, and its tenants."""


class Knowledge(NamedTuple):
    """What a co-locating policy knows of applications, and of what happens on a GPU."""

    profiles: Mapping[str, Profile]
    speeds: Speeds


def knowledge_of(interference: Interference | None) -> Knowledge:
    """What a model of interference is made of; the thesis's applications and `measured` where it has no profiles."""
    if isinstance(interference, ProfiledInterference):
        return Knowledge(interference.profiles, interference.speeds)
    return Knowledge(thesis_profiles(), make_speeds("measured"))


class Scene(NamedTuple):
    """GPUs of one model that are offered jobs at one moment, and what else waits."""

    forecasts: Forecasts
    gpu: GpuModel | None
    backlog_jobs: int
    """Jobs that wait, those that are offered included."""
    backlog_ms: int
    """Their run time alone, together."""


class Chooser(Protocol):
    """Says which combination each GPU starts."""

    def __call__(self, scene: Scene) -> IntArray:
        """(O,): a combination of each offer that `forecasts.fits`, 0 for nobody. A pure function."""


class Colocating:
    """Offer each GPU with room the head of the queue, and start what the chooser says.

    GPUs with fewer tenants come first; those that are offered jobs at once see different ones, `window` each. While
    GPUs are idle no combination takes more than its part of the waiting jobs. A GPU that declines is asked again when
    one of its tenants ends, is about to, or enters a new row of its profile, or when it would be offered other jobs.

    Jobs on several GPUs or none, and jobs of applications without a profile, take theirs whole, in the queue's order;
    one that has no room yet holds up those behind it. What has run alone once is `recorded`, and then shares as all
    others do. Jobs whose profile does not fit on any GPU are passed over.
    """

    draws = False

    def __init__(
        self,
        choose: Chooser,
        knowledge: Knowledge,
        *,
        window: int = 5,
        recorded: Callable[[str], Profile | None] | None = None,
    ) -> None:
        self.choose = choose
        self.window = window
        self.known = dict(knowledge.profiles)
        self.recorded = recorded or (lambda application: None)
        self.forecaster = Forecaster(self.known, knowledge.speeds)
        self._cluster: Cluster | None = None
        self._models: list[GpuModel | None] = []
        self._alone: dict[str, Job] = {}
        self._declined: dict[GpuSlot, tuple[int, tuple[str, ...], tuple[str, ...]]] = {}
        self._may: dict[tuple[int, str, int], bool] = {}
        self._candidates: dict[tuple[str, int], Candidate] = {}
        self._woken_ms = -1

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        """Yield placements, and when to be asked again."""
        self._begin(cluster)
        self._record(queue, cluster)
        yield from self._whole(queue, cluster)
        closed: set[GpuSlot] = set()
        while len(queue):
            rooms = self._rooms(cluster, closed)
            offered = self._offers(rooms, queue, cluster, now_ms, closed)
            if not offered:
                break
            idle = sum(not tenants for _, tenants in rooms)
            # While GPUs are idle, none takes more than its part of those who wait.
            largest = min(MOST, -(-len(queue) // idle)) if idle else MOST
            yield from self._started(offered, largest, queue, cluster, now_ms, closed)
        due_ms = min((due for due, _, _ in self._declined.values() if due > now_ms), default=None)
        if len(queue) and due_ms is not None and due_ms != self._woken_ms:
            self._woken_ms = due_ms
            yield WakeAt(due_ms)

    def _begin(self, cluster: Cluster) -> None:
        """Forget what was noted of another cluster."""
        if cluster is not self._cluster:
            self._cluster = cluster
            self._alone, self._declined, self._may, self._candidates = {}, {}, {}, {}
            self._woken_ms = -1
            self._models = [node.gpu_model for node in cluster.nodes]

    # Those that share

    def _rooms(self, cluster: Cluster, closed: Container[GpuSlot]) -> list[Room]:
        """GPUs with room for one more who shares, those with the fewest tenants first."""
        rooms: list[tuple[int, int, GpuSlot, tuple[Running, ...]]] = []
        free, up = cluster.free_milli, cluster.traits[:, 2]
        for node, index in np.argwhere((free >= SHARE_MILLI) & (up[:, None] != 0)).tolist():
            slot = GpuSlot(node, index)
            if slot in closed:
                continue
            tenants = cluster.jobs_on(slot)
            if len(tenants) < MOST and all(self._shares(run.job) for run in tenants):
                rooms.append((len(tenants), int(cluster.rank[node]), slot, tenants))
        rooms.sort(key=lambda room: room[:3])
        return [room[2:] for room in rooms]

    def _offers(
        self, rooms: Sequence[Room], queue: Queue, cluster: Cluster, now_ms: int, closed: set[GpuSlot]
    ) -> list[tuple[GpuSlot, tuple[Running, ...], list[Job]]]:
        """GPUs with room, their tenants, and the jobs that each is offered, which are different ones."""
        pending = deque(self._head(queue, cluster, self.window * len(rooms)))
        offered = []
        for slot, tenants in rooms:
            window: list[Job] = []
            seen: list[Job] = []
            while pending and len(window) < self.window:
                job = pending.popleft()
                seen.append(job)
                if self._may_run(job, slot, cluster):
                    window.append(job)
            due_ms, *before = self._declined.get(slot, (-1, (), ()))
            same = [tuple(run.job.id for run in tenants), tuple(job.id for job in window)]
            if not window or (now_ms < due_ms and before == same):
                if window:
                    closed.add(slot)
                pending.extendleft(reversed(seen))
                continue
            if len(seen) > len(window):
                taken = set(map(id, window))
                pending.extendleft(job for job in reversed(seen) if id(job) not in taken)
            offered.append((slot, tenants, window))
        return offered

    def _started(
        self,
        offered: Sequence[tuple[GpuSlot, tuple[Running, ...], list[Job]]],
        largest: int,
        queue: Queue,
        cluster: Cluster,
        now_ms: int,
        closed: set[GpuSlot],
    ) -> Iterator[Placement]:
        """Start what the chooser says on each GPU; one that declines is not asked again at this moment."""
        waiting = len(queue)
        backlog_ms = sum(min(job.work_ms, 1 << 40) for job in queue) if waiting <= 1000 else 0
        if not backlog_ms:
            seen = [job.work_ms for _, _, window in offered for job in window]
            backlog_ms = sum(seen) * waiting // max(1, len(seen))
        by_model: dict[GpuModel | None, list[int]] = {}
        for at, (slot, _, _) in enumerate(offered):
            by_model.setdefault(self._models[slot.node], []).append(at)
        chosen = [0] * len(offered)
        next_ms = [0] * len(offered)
        for gpu, group in by_model.items():
            offers = [
                Offer(
                    tuple(_tenant(run, now_ms) for run in offered[at][1]),
                    tuple(map(self._candidate, offered[at][2])),
                    largest,
                )
                for at in group
            ]
            forecasts = self.forecaster.forecasts(offers, gpu)
            picks = self.choose(Scene(forecasts, gpu, waiting, backlog_ms))
            for number, at in enumerate(group):
                chosen[at], next_ms[at] = int(picks[number]), _look_again_ms(forecasts, number)
        for (slot, tenants, window), combination, hold_ms in zip(offered, chosen, next_ms, strict=True):
            started = [job for at, job in enumerate(window) if combination >> at & 1]
            some = False
            for job in started:
                placement = Placement(job, (slot,), Share(min(SHARE_MILLI, job.share.milli), 0))
                if self._has_room(placement, cluster):
                    some = True
                    yield placement
            if some:
                self._declined.pop(slot, None)
            else:
                closed.add(slot)
                who = tuple(run.job.id for run in tenants), tuple(job.id for job in window)
                self._declined[slot] = (now_ms + hold_ms if tenants else -1, *who)

    def _candidate(self, job: Job) -> Candidate:
        """A waiting job as a forecast sees it."""
        key = job.application, job.work_ms
        known = self._candidates.get(key)
        if known is None:
            work_us = job.work_ms * 1000
            known = self._candidates[key] = Candidate(job.application, work_us, work_us)
        return known

    def _head(self, queue: Queue, cluster: Cluster, most: int) -> list[Job]:
        """The first jobs that may share, up to one that has no room yet and must have a GPU for itself."""
        jobs: list[Job] = []
        for job in queue:
            if len(jobs) == most:
                break
            if self._shares(job):
                jobs.append(job)
            elif job.patience_ms != 0:
                break
        return jobs

    def _shares(self, job: Job) -> bool:
        return job.gpus == 1 and job.application in self.known

    def _may_run(self, job: Job, slot: GpuSlot, cluster: Cluster) -> bool:
        """Whether the GPU is of a model, and its node of labels, that the job allows, and it fits there alone."""
        number = cluster.request(job)
        key = number, job.application, slot.node
        known = self._may.get(key)
        if known is None:
            request, traits = cluster.requests[number], cluster.traits[slot.node]
            known = self._may[key] = (
                bool(traits[0] & request[MODELS])
                and bool((traits[1] & request[LABELS]) == request[LABELS])
                and self.forecaster.fits_alone(job.application, self._models[slot.node])
            )
        return known

    def _has_room(self, placement: Placement, cluster: Cluster) -> bool:
        node, index = placement.slots[0]
        job = placement.job
        return bool(
            cluster.free_milli[node, index] >= placement.share.milli
            and cluster.free_cpu_milli[node] >= job.cpu_milli
            and cluster.free_mem_mib[node] >= job.mem_mib
        )

    # Those that do not

    def _whole(self, queue: Queue, cluster: Cluster) -> Iterator[Placement]:
        """Start the jobs that take their GPUs whole, in the queue's order, until one has no room."""
        for job in queue:
            if self._shares(job):
                continue
            slots = self._whole_slots(job, cluster)
            if slots is not None:
                if job.gpus == 1:
                    self._alone[job.id] = job
                yield Placement(job, slots, job.share)
            elif job.patience_ms != 0:
                return

    def _whole_slots(self, job: Job, cluster: Cluster) -> tuple[GpuSlot, ...] | None:
        nodes = cluster.fitting_nodes(job)
        if job.gpus != 1 or job.share.milli == 1000:
            return cluster.slots_for(job, nodes[np.argsort(cluster.rank[nodes])])
        for node in nodes[np.argsort(cluster.rank[nodes])].tolist():
            for index in cluster.fitting_gpus(node, job):
                if not cluster.jobs_on(GpuSlot(node, index)):
                    return (GpuSlot(node, index),)
        return None

    def _record(self, queue: Queue, cluster: Cluster) -> None:
        """Learn the profiles of applications that have run alone since."""
        for identity, job in list(self._alone.items()):
            if identity in cluster.running:
                continue
            del self._alone[identity]
            if job not in queue and job.application not in self.known:
                profile = self.recorded(job.application)
                if profile is not None:
                    self.known[job.application] = profile


def _look_again_ms(forecasts: Forecasts, offer: int) -> int:
    """After how long a GPU that declines is asked again, if nobody ends until then."""
    due_ms = int(forecasts.next_ms[offer])
    ends_ms = forecasts.ends_ms[offer, 0]
    first_ms = int(ends_ms[ends_ms > 0].min(initial=due_ms + LEAD_MS + 1))
    return min(due_ms, first_ms - LEAD_MS if first_ms > LEAD_MS else LEAD_STEP_MS)


def _tenant(run: Running, now_ms: int) -> Candidate:
    """A running job as a forecast sees it."""
    left_us = run.left_us - (now_ms - run.as_of_ms) * run.speed_milli
    return Candidate(run.job.application, max(1, left_us), run.job.work_ms * 1000, now_ms - run.start_ms)
