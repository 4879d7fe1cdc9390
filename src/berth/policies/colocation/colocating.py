"""Policies that start combinations of waiting jobs together on a GPU, whatever chooses the combination.

Oh 2019, algorithm 2, for many different GPUs: each GPU with room is offered the head of the queue, and a chooser
says which of those jobs start there now. Everybody who is asked sees the same forecasts.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from berth.arrays import IntArray
from berth.cluster import PLACE_MILLI, Cluster, Queue, Running
from berth.knowledge import LONGEST_MS, Knowledge, LimitsCompany, believed_peak_mib, believed_run
from berth.model import GpuModel, GpuSlot, Job, Placement, Profile, Share, WakeAt
from berth.policies.colocation.forecast import MOST, Candidate, Forecaster, Forecasts, Offer
from berth.policies.colocation.overtaking import Overtaking
from berth.policies.colocation.queue_prefix import QueuePrefix
from berth.policies.colocation.whole_gpus import WholeGpus
from berth.policies.protocol import Decision, Order
from berth.profiles import peak_mem_mib, run_time_ms

__all__ = ["Chooser", "Colocating", "Scene"]

MARGIN = 8
"""A job that shares a GPU and asks for no memory may have its believed peak and an eighth of it more."""

LEAD_MS, LEAD_STEP_MS = 5_000, 500
"""A GPU that declined is asked again this long before a tenant ends, and this often from then on: a job that loads
gradually may start while another ends."""


MOST_CANDIDATES = 100_000
"""Different jobs that are kept as forecasts see them."""

Room = tuple[GpuSlot, tuple[Running, ...]]
"""A GPU with room for one more, and its tenants."""


class Scene(NamedTuple):
    """GPUs of one model that are offered jobs at one moment, and what else waits."""

    forecasts: Forecasts
    gpu: GpuModel | None
    backlog_jobs: int
    """Jobs that wait, those that are offered included."""
    backlog_ms: int
    """Their run time alone, together."""
    queue: Iterable[Job]
    """All who wait, in their order."""


class Chooser(Protocol):
    """Says which combination each GPU starts."""

    def __call__(self, scene: Scene) -> IntArray:
        """(O,): a combination of each offer that `forecasts.fits`, 0 for nobody. A pure function."""


@dataclass(slots=True)
class Kept:
    """What is kept of the nodes of a cluster and of jobs on them, on the cluster's memo; empty at first."""

    models: list[GpuModel | None] = field(default_factory=list)
    """Of each node."""
    cards: set[GpuModel | None] = field(default_factory=set)
    """The models of nodes that have GPUs."""
    alike: list[int] = field(default_factory=list)
    """A number of each node; those of one number are the same to every job that shares."""
    declined: dict[GpuSlot, tuple[int, tuple[str, ...], tuple[str, ...]]] = field(default_factory=dict)
    """GPUs that declined: until when, with which tenants, and which jobs they were offered."""
    may: dict[tuple[int, str, int, int], bool] = field(default_factory=dict)
    """Whether a job may run on a node: by request type, application, work in μs and number of the node."""
    candidates: dict[tuple[str, int], Candidate] = field(default_factory=dict)
    """Waiting jobs as forecasts see them, by application and work, μs."""
    peaks: dict[tuple[str, GpuModel | None], int] = field(default_factory=dict)
    """GPU memory that an application is given on a model, MiB."""
    fits_somewhere: dict[tuple[object, ...], bool] = field(default_factory=dict)
    """Whether a job is believed to fit on any card, by application, models allowed and work, μs."""
    woken_ms: int = -1
    """The last time at which it asked to be woken."""

    @classmethod
    def of(cls, cluster: Cluster) -> Kept:
        """What is kept of a cluster that is new, or whose nodes have changed."""
        numbers: dict[tuple[object, ...], int] = {}
        return cls(
            [node.gpu_model for node in cluster.nodes],
            {node.gpu_model for node in cluster.nodes if node.gpus},
            [
                numbers.setdefault((node.gpu_model, frozenset(node.labels)), len(numbers))
                for node in cluster.nodes
            ],
        )


class Colocating:
    """Offer each GPU with room the head of the queue, and start what the chooser says.

    GPUs with fewer tenants come first; those that are offered jobs at once see different ones, `window` each. While
    GPUs are idle no combination takes more than its part of the waiting jobs. A GPU that declines is asked again when
    one of its tenants ends, is about to, or enters a new row of its profile, or when it would be offered other jobs.

    Jobs on several GPUs or none, and jobs of applications without a profile, take theirs whole, after those before them
    in the queue have been offered; one that has no room yet holds up those behind it. What has run alone once is
    `recorded`, and then shares as all others do.
    """

    draws = False

    def __init__(
        self,
        choose: Chooser,
        knowledge: Knowledge,
        *,
        window: int = 5,
        known: Mapping[str, Profile] | None = None,
        recorded: Callable[[str], Profile | None] | None = None,
    ) -> None:
        """`known` are the profiles that it begins with, by default all that the knowledge has; what `recorded` tells of
        an application that has run alone is by default what the knowledge has of it by then."""
        self.choose = choose
        self.window = window
        self.knowledge = knowledge
        self._certain = knowledge.certain
        self.queue_order: Order | None = None
        """In which order the waiting jobs are looked at; None: as they were queued."""
        self._overtaking = Overtaking()
        self._due: Job | None = None
        self._promised: tuple[Job, GpuSlot] | None = None
        self._now_ms = 0
        self._cluster: Cluster | None = None
        self._company = knowledge if isinstance(knowledge, LimitsCompany) else None
        self._sources: dict[str, Profile] = {}
        begins = knowledge.profiles if known is None else known
        self.known = {name: self._cautious(name, profile) for name, profile in begins.items()}
        asked = recorded or knowledge.profiles.get
        self.whole = WholeGpus(
            self.known, lambda name: (found := asked(name)) and self._cautious(name, found), self._shares
        )
        self.forecaster = Forecaster(self.known, knowledge.speeds)
        self._kept = Kept()

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        """Yield placements, and when to be asked again."""
        self._begin(cluster)
        self._now_ms = now_ms
        self.whole.record(queue, cluster)
        self._due = self._overtaking.due(
            queue, cluster, lambda job, slot: not self._shares(job) or self._may_run(job, slot, cluster)
        )
        if self._promised is not None:
            waiting, self._overtaking.kept = self._promised
            self._due = waiting if waiting in queue else self._due
            self._promised = self._promised if waiting in queue else None
        closed: set[GpuSlot] = set()
        goes_on = True
        while goes_on:
            yield from self._shared(queue, cluster, now_ms, closed)
            goes_on = False
            for placement in self.whole.start(self._in_order(queue), cluster):
                goes_on = True  # those behind it are next
                yield placement
                self._noted(placement.job, cluster)
        kept = self._kept
        due_ms = min((due for due, _, _ in kept.declined.values() if due > now_ms), default=None)
        if len(queue) and due_ms is not None and due_ms != kept.woken_ms:
            kept.woken_ms = due_ms
            yield WakeAt(due_ms)

    def keep(self, job: Job, slot: GpuSlot) -> None:
        """Start no other job on a GPU until this one, which waits, has started."""
        self._promised = job, slot

    def _shared(
        self, queue: Queue, cluster: Cluster, now_ms: int, closed: set[GpuSlot]
    ) -> Iterator[Placement]:
        """Start what the chooser says of those before the first job that takes its GPUs whole."""
        head = QueuePrefix(queue, self._sharing, self.work_us)
        while len(queue):
            rooms = self._rooms(cluster, closed)
            offered = self._offers(rooms, head, cluster, now_ms, closed)
            if not offered:
                break
            idle = sum(not tenants for _, tenants in rooms)
            # While GPUs are idle, none takes more than its part of the waiting jobs.
            largest = min(MOST, -(-len(queue) // idle)) if idle else MOST
            for placement in self._started(offered, largest, queue, cluster, now_ms, closed):
                head.started.add(placement.job.id)
                yield placement
                self._noted(placement.job, cluster)

    def _noted(self, job: Job, cluster: Cluster) -> None:
        """A job has started, if it was not refused."""
        if job.id in cluster.running:
            self._overtaking.started(job)
            if self._due is job:
                self._due = None

    def _in_order(self, queue: Queue) -> Iterable[Job]:
        """The waiting jobs: one whose turn it is first, then as the order has them."""
        if self.queue_order is None or self._cluster is None:
            return queue  # the first of the queue is first
        ordered = list(self.queue_order(queue, self._cluster, self._now_ms))
        if self._due is not None:
            ordered = [self._due, *(job for job in ordered if job is not self._due)]
        return ordered

    def _begin(self, cluster: Cluster) -> None:
        """Go by what is kept on this cluster's memo; nothing is, if its nodes or the profiles have changed."""
        if self._cluster is not cluster:
            self._cluster, self._overtaking = cluster, Overtaking()
        learned = self.knowledge.learns and self._learned()
        kept = cluster.memo.get(self)
        if kept is None:
            self.whole.forget(cluster)
        if kept is None or learned:
            kept = cluster.memo[self] = Kept.of(cluster)
        self._kept = kept

    def _cautious(self, name: str, profile: Profile) -> Profile:
        """A profile with the memory that the application may need, which is more than is expected where that is in
        doubt; a belief that makes no sense is none."""
        self._sources[name] = profile
        if self._certain:
            return profile
        needs_mib = believed_peak_mib(Job("", 0, None, application=name), self.knowledge)
        peak_mib = peak_mem_mib(profile)
        if needs_mib is None or not 0 < peak_mib < needs_mib:
            return profile
        return replace(profile, usage=profile.usage * np.array([1.0, needs_mib / peak_mib, 1.0, 1.0]))

    def _learned(self) -> bool:
        """Take over profiles that were learned better since; whether there are any."""
        profiles = self.knowledge.profiles
        better = {
            name: found
            for name, source in self._sources.items()
            if name in self.known and (found := profiles.get(name)) is not None and found is not source
        }
        if not better:
            return False
        self.known.update({name: self._cautious(name, profile) for name, profile in better.items()})
        self.forecaster = Forecaster(self.known, self.knowledge.speeds)
        self._profiles_changed()
        return True

    def _profiles_changed(self) -> None:
        """For policies that keep more of what profiles say."""

    def work_us(self, job: Job) -> int:
        """The work of a job as a forecast counts it, μs: what is believed, and where that is in doubt at least as long
        as its profile, so that no forecast of memory is cut at a guessed end. Services still fit in 64 bits."""
        if self._certain and job.work_ms is not None:
            return max(1, min(job.work_ms, LONGEST_MS) * 1000)
        spread = believed_run(job, self.knowledge)
        if spread is not None and spread.certain:
            return int(spread.expected) * 1000
        profile = self.known.get(job.application)
        length_ms = 1 if profile is None else run_time_ms(profile)
        return max(0 if spread is None else int(spread.expected), length_ms) * 1000

    # Those that share

    def _rooms(self, cluster: Cluster, closed: Container[GpuSlot]) -> list[Room]:
        """GPUs with room for one more who shares, those with the fewest tenants first."""
        rooms: list[tuple[int, int, GpuSlot, tuple[Running, ...]]] = []
        free, up = cluster.free.milli, cluster.up
        for node, index in np.argwhere((free >= PLACE_MILLI) & up[:, None]).tolist():
            slot = GpuSlot(node, index)
            if slot in closed:
                continue
            tenants = cluster.jobs_on(slot)
            if len(tenants) < MOST and all(run.best_effort for run in tenants):
                rooms.append((len(tenants), int(cluster.rank[node]), slot, tenants))
        rooms.sort(key=lambda room: room[:3])
        return [room[2:] for room in rooms]

    def _offers(
        self, rooms: Sequence[Room], head: QueuePrefix, cluster: Cluster, now_ms: int, closed: set[GpuSlot]
    ) -> list[tuple[GpuSlot, tuple[Running, ...], list[Job]]]:
        """GPUs with room, their tenants, and the jobs that each is offered, which are different ones.

        Each is offered the first that it may run, however far behind they are. Nodes of one number may run the same
        jobs, so that the next of them goes on where the one before came to.
        """
        head.look()
        taken: set[int] = set()
        begins: dict[int, int] = {}
        may: dict[tuple[int, int], bool] = {}
        offered = []
        alike = self._kept.alike
        for slot, tenants in rooms:
            number = alike[slot.node]
            at = begins.get(number, 0)
            window: list[Job] = []
            places: list[int] = []
            if self._due is not None and slot == self._overtaking.kept:
                first = head.at(0)
                if 0 not in taken and first is not None and first[0] is self._due:
                    if self._declines_still(slot, tenants, [self._due], now_ms):
                        closed.add(slot)
                    elif self._may_run(self._due, slot, cluster):
                        offered.append((slot, tenants, [self._due]))
                        taken.add(0)
                    continue
            while len(window) < self.window and (one := head.at(at)) is not None:
                job, kind = one
                allowed = may.get((number, kind))
                if allowed is None:
                    allowed = may[number, kind] = self._may_run(head.kinds[kind], slot, cluster)
                if allowed and at not in taken:
                    window.append(job)
                    places.append(at)
                at += 1
            if window and self._declines_still(slot, tenants, window, now_ms):
                closed.add(slot)
                continue
            begins[number] = at
            taken.update(places)
            if window:
                offered.append((slot, tenants, window))
        return offered

    def _declines_still(
        self, slot: GpuSlot, tenants: Sequence[Running], window: Sequence[Job], now_ms: int
    ) -> bool:
        """Whether the GPU has declined the same jobs beside the same tenants, and is not asked again yet."""
        declined = self._kept.declined.get(slot)
        if declined is None or now_ms >= declined[0]:
            return False
        return declined[1:] == (tuple(run.job.id for run in tenants), tuple(job.id for job in window))

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
        backlog_ms = sum(min(self.work_us(job) // 1000, 1 << 40) for job in queue) if waiting <= 1000 else 0
        if not backlog_ms:
            seen = [self.work_us(job) // 1000 for _, _, window in offered for job in window]
            backlog_ms = sum(seen) * waiting // max(1, len(seen))
        by_model: dict[GpuModel | None, list[int]] = {}
        for at, (slot, _, _) in enumerate(offered):
            by_model.setdefault(self._kept.models[slot.node], []).append(at)
        chosen = [0] * len(offered)
        next_ms = [0] * len(offered)
        short = [False] * len(offered)  # of CPU or memory of the node, which others may give back
        known = self._kept.candidates
        for gpu, group in by_model.items():
            offers = []
            for at in group:
                _, tenants, window = offered[at]
                wait = [
                    known.get((job.application, self.work_us(job))) or self._candidate(job) for job in window
                ]
                run = tuple([self._tenant(run, now_ms) for run in tenants]) if tenants else ()
                offers.append(Offer(run, tuple(wait), largest))
            forecasts = self.forecaster.forecasts(offers, gpu)
            for row, at in enumerate(group):
                slot, _, window = offered[at]
                room = self._has_room(window, slot, cluster, forecasts.fits.shape[1])
                short[at] = not room.all()
                forecasts.fits[row] &= room
                if self._company is not None:
                    forecasts.fits[row] &= self._trusted(offered[at][1], window, forecasts.fits.shape[1])
            picks = self.choose(Scene(forecasts, gpu, waiting, backlog_ms, queue)).tolist()
            for at, pick, hold_ms in zip(group, picks, _look_again_ms(forecasts).tolist(), strict=True):
                chosen[at], next_ms[at] = pick, hold_ms
        for number, (slot, tenants, window) in enumerate(offered):
            combination, hold_ms = chosen[number], next_ms[number]
            members = [job for at, job in enumerate(window) if combination >> at & 1]
            if members:
                # Another GPU of its node may have taken what they need: then it is offered jobs again.
                if self._has_room(members, slot, cluster)[-1]:
                    self._kept.declined.pop(slot, None)
                    for job in members:
                        yield self.shared_placement(job, slot)
                        if job.id not in cluster.running:  # refused: this GPU is not asked again now
                            closed.add(slot)
                            break
            else:
                closed.add(slot)
                if short[number]:
                    self._kept.declined.pop(slot, None)
                    continue
                offered_to = tuple(run.job.id for run in tenants), tuple(job.id for job in window)
                self._kept.declined[slot] = (now_ms + hold_ms if tenants else -1, *offered_to)

    def _trusted(self, tenants: Sequence[Running], window: Sequence[Job], count: int) -> NDArray[np.bool_]:
        """(C,): which combinations are of no more jobs than each of them is trusted to run beside."""
        member = np.arange(count)[:, None] >> np.arange(len(window)) & 1  # (C, M)
        together = len(tenants) + member.sum(axis=1)
        most = [self._most_beside(job) for job in window]
        least = np.where(member.astype(bool), most, MOST).min(axis=1, initial=MOST)
        least = np.minimum(least, min((self._most_beside(run.job) for run in tenants), default=MOST))
        return np.asarray((together <= least) | (np.arange(count) == 0))

    def _most_beside(self, job: Job) -> int:
        """How many jobs may be on its GPU, itself included."""
        most = None if self._company is None else self._company.company(job.application)
        return MOST if most is None else most

    def _candidate(self, job: Job) -> Candidate:
        """A waiting job as a forecast sees it, the same one for all that are alike."""
        work_us = self.work_us(job)
        if len(self._kept.candidates) > MOST_CANDIDATES:
            self._kept.candidates.clear()
        made = Candidate(job.application, work_us, work_us)
        return self._kept.candidates.setdefault((job.application, work_us), made)

    def _tenant(self, run: Running, now_ms: int) -> Candidate:
        """A running job as a forecast sees it."""
        left_us, work_us = run.left_us_at(now_ms), self.work_us(run.job)
        if not self._certain:  # its end is in doubt: what it has done is not
            left_us = work_us - (run.work_us - left_us)
        return Candidate(run.job.application, min(max(1, left_us), work_us), work_us, now_ms - run.start_ms)

    def shared_placement(self, job: Job, slot: GpuSlot) -> Placement:
        """A job on a GPU that it shares by best effort, with what is enforced there."""
        return Placement(
            job,
            (slot,),
            Share(job.share.milli, self._enforced_mib(job, self._kept.models[slot.node])),
            True,
            True,
        )

    def _enforced_mib(self, job: Job, gpu: GpuModel | None) -> int:
        """GPU memory that the job may have, MiB: what it asks for, else what it is believed to need and a margin, at
        most the card."""
        if job.share.mem_mib:
            return job.share.mem_mib
        key = job.application, gpu
        mem_mib = self._kept.peaks.get(key)
        if mem_mib is None:
            believed_mib = believed_peak_mib(job, self.knowledge, gpu)
            peak_mib = peak_mem_mib(self.known[job.application]) if believed_mib is None else believed_mib
            mem_mib = peak_mib + -(-peak_mib // MARGIN)
            if gpu is not None and gpu.mem_mib:
                mem_mib = min(mem_mib, gpu.mem_mib)
            if not self.knowledge.learns:
                self._kept.peaks[key] = mem_mib
        return mem_mib

    def _sharing(self, queue: Queue) -> Iterator[Job]:
        """The jobs that may share, up to one that has no room yet and must have a GPU for itself."""
        for job in self._in_order(queue):
            if self._shares(job):
                yield job
            elif job.patience_ms != 0:
                return

    def _shares(self, job: Job) -> bool:
        """Whether the job is one that shares: on one GPU, with a profile, and believed to fit on a card at all; one
        that is believed to need more than any card has runs by itself, for beliefs may be wrong."""
        if job.gpus != 1 or job.application not in self.known or self._most_beside(job) <= 1:
            return False
        if self._certain:
            return True
        key = job.application, job.models, self.work_us(job)
        fits = self._kept.fits_somewhere.get(key)
        if fits is None:
            if len(self._kept.fits_somewhere) > MOST_CANDIDATES:
                self._kept.fits_somewhere.clear()
            models = {
                model for model in self._kept.cards if not job.models or (model and model.name in job.models)
            }
            fits = self._kept.fits_somewhere[key] = any(
                self.forecaster.fits_alone(job.application, model, key[2] // 1000) for model in models
            )
        return fits

    def _may_run(self, job: Job, slot: GpuSlot, cluster: Cluster) -> bool:
        """Whether the GPU is of a model, and its node of labels, that the job allows, and it fits there alone."""
        kept, number = self._kept, cluster.request(job)
        work_us = self.work_us(job)
        key = number, job.application, work_us, kept.alike[slot.node]
        may = kept.may.get(key)
        if may is None:
            if len(kept.may) > MOST_CANDIDATES:
                kept.may.clear()
            may = kept.may[key] = cluster.allows(job, slot.node) and self.forecaster.fits_alone(
                job.application, kept.models[slot.node], work_us // 1000
            )
        return may

    def _has_room(
        self, window: Sequence[Job], slot: GpuSlot, cluster: Cluster, count: int = 0
    ) -> NDArray[np.bool_]:
        """Which combinations of these jobs have room on the node and on the GPU: bool (C,), or one for `count`.

        A job that is forecast with others is never started without them: beside fewer, it would be elsewhere in its
        run when memory is short.
        """
        node, index = slot
        combinations = count or 1 << len(window)
        left = (
            int(cluster.free.milli[node, index]),
            int(cluster.free.cpu_milli[node]),
            int(cluster.free.mem_mib[node]),
            int(cluster.free.gpu_mem_mib[node, index]),
        )
        asked = [
            (min(PLACE_MILLI, job.share.milli), job.cpu_milli, job.mem_mib, job.share.mem_mib)
            for job in window
        ]
        if all(sum(of) <= most for of, most in zip(zip(*asked, strict=True), left, strict=True)):
            return np.ones(combinations, dtype=np.bool_)
        member = np.arange(combinations)[:, None] >> np.arange(len(window)) & 1  # (C, M)
        return np.asarray((member @ np.array(asked, dtype=np.int64) <= np.array(left)).all(axis=1))


def _look_again_ms(forecasts: Forecasts) -> IntArray:
    """(O,): after how long a GPU that declines is asked again, if no tenant ends until then. A tenant that has outlived
    its forecast is due at every moment: beside it no GPU is asked more often than every `LEAD_STEP_MS`."""
    due_ms, ends_ms = forecasts.next_ms, forecasts.ends_ms[:, 0]
    first_ms = np.where(ends_ms > 0, ends_ms, due_ms[:, None] + LEAD_MS + 1).min(axis=1)
    again_ms = np.minimum(due_ms, np.where(first_ms > LEAD_MS, first_ms - LEAD_MS, LEAD_STEP_MS))
    tenant = np.arange(forecasts.left_us.shape[1]) < forecasts.tenants[:, None]
    outlived = (tenant & (forecasts.left_us <= 1)).any(axis=1)
    return np.where(outlived, np.maximum(again_ms, LEAD_STEP_MS), again_ms)
