"""Policies that start combinations of waiting jobs together on a GPU, whatever chooses the combination.

Oh 2019, algorithm 2, for many different GPUs: each GPU with room is offered the head of the queue, and a chooser
says which of those jobs start there now. All choosers see the same forecasts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import cast

import numpy as np

from berth.cluster import Cluster, Queue, Running
from berth.interference.known_speeds import MOST
from berth.knowledge import (
    LONGEST_MS,
    Knowledge,
    LearnsUnderWay,
    Spread,
    believed_peak_mib,
    believed_run,
)
from berth.model import GpuModel, GpuSlot, Job, Placement, Profile, Share, WakeAt
from berth.policies.colocation.cluster_cache import MOST_CANDIDATES, ClusterCache
from berth.policies.colocation.doubts import Doubts
from berth.policies.colocation.forecast import Candidate, Forecaster, Forecasts, Offer
from berth.policies.colocation.open_gpus import (
    LEAD_STEP_MS,
    Room,
    all_have_room,
    has_room,
    look_again_ms,
)
from berth.policies.colocation.overtaking import Overtaking
from berth.policies.colocation.queue_prefix import Kinds, QueuePrefix
from berth.policies.colocation.scene import Chooser, Offered, Scene
from berth.policies.colocation.whole_gpus import WholeGpus
from berth.policies.protocol import Decision, Order
from berth.policies.sort_keys import as_queued
from berth.profiles import peak_mem_mib, run_time_ms

MARGIN = 8
"""A job that shares a GPU and asks for no memory may have its believed peak and an eighth of it more."""

MOST_AT_ONCE = 512
"""GPUs that are forecast before the first of them starts a job: on many, what starts jobs need not wait for all."""


class Colocating:
    """Offer each GPU with room the head of the queue, and start what the chooser says.

    GPUs with fewer tenants come first; those that are offered jobs at once see different ones, `window` each. While
    GPUs are idle no combination takes more than its part of the waiting jobs. A GPU that declines is asked again when
    one of its tenants ends, is about to, or enters a new row of its profile, or when it would be offered other jobs; of
    the last, on clusters of more than 64 GPUs, 64 at each decision, and of all with tenants at most 512 that decline
    (`OpenGpus`).

    Jobs on several GPUs or none, and jobs of applications without a profile, take theirs whole, after those before them
    in the queue have been offered; one that has no room yet holds up those behind it. What has run alone once is
    `recorded`, and then shares as all others do.
    """

    draws = False
    run_times = "believed"
    """What all choosers' forecasts go by."""

    def __init__(
        self,
        choose: Chooser,
        knowledge: Knowledge,
        *,
        window: int = 5,
    ) -> None:
        self.choose = choose
        self.window = window
        self.knowledge = knowledge
        self._certain = knowledge.certain
        self.queue_order: Order | None = None
        """In which order the waiting jobs are looked at; None: as they were queued."""
        self.next_decision_ms: int | None = None
        """What choosers set: the longest time until a GPU that declines now is asked again."""
        self._overtaking = Overtaking()
        self._due: Job | None = None
        self._promised: tuple[Job, GpuSlot] | None = None
        self._now_ms = 0
        self._cluster: Cluster | None = None
        self._doubts = Doubts(knowledge)
        self._sources: dict[str, Profile] = {}
        self._at_first = frozenset(knowledge.profiles)
        self.known = {name: self._cautious(name, profile) for name, profile in knowledge.profiles.items()}
        under_way = knowledge if isinstance(knowledge, LearnsUnderWay) else None
        self.whole = WholeGpus(
            self.known,
            lambda name: (found := knowledge.profiles.get(name)) and self._cautious(name, found),
            self._shares,
            self._is_cold,
            lambda: None if under_way is None else under_way.first_look_ms,
        )
        self.forecaster = Forecaster(self.known, knowledge.speeds)
        self._cache: ClusterCache  # of the cluster of the decision that it is at

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
        self._cache.open_gpus.begin()
        closed: set[GpuSlot] = set()
        goes_on = True
        while goes_on:
            yield from self._shared(queue, cluster, now_ms, closed)
            goes_on = False
            if not self._some_take_whole(queue):
                break
            for placement in self.whole.start(self._in_order(queue), cluster, now_ms):
                goes_on = True  # those behind it are next
                yield placement
                self._noted(placement.job, cluster)
        kept, due_ms = self._cache, self._next_ms(now_ms)
        if (look_ms := self.whole.held_until_ms) is not None:
            due_ms = min(look_ms, due_ms or look_ms)
        if len(queue) and due_ms is not None and due_ms != kept.woken_ms:
            kept.woken_ms = due_ms
            yield WakeAt(due_ms)

    def _next_ms(self, now_ms: int) -> int | None:
        """When it is to be asked again if nothing happens."""
        open_gpus = self._cache.open_gpus
        due_ms = open_gpus.next_ms(now_ms)
        if open_gpus.postponed:
            due_ms = min(due_ms or now_ms + LEAD_STEP_MS, now_ms + LEAD_STEP_MS)
        return due_ms

    def keep(self, job: Job, slot: GpuSlot) -> None:
        """Start no other job on a GPU until this one, which waits, has started."""
        self._promised = job, slot

    def _shared(
        self, queue: Queue, cluster: Cluster, now_ms: int, closed: set[GpuSlot]
    ) -> Iterator[Placement]:
        """Start what the chooser says of those before the first job that takes its GPUs whole."""
        head = self._head(queue)
        while len(queue):
            some, idle, more = self._cache.open_gpus.open(
                cluster,
                now_ms,
                queue.changes,
                closed=closed,
                waiting=len(queue),
                always=self._overtaking.kept,
                most=MOST_AT_ONCE,
            )
            offered = self._offers(some, head, cluster, now_ms, closed)
            if not offered:
                if not more:
                    break
                closed.update(slot for slot, _ in some)
                continue
            # While GPUs are idle, none takes more than its part of the waiting jobs.
            largest = min(MOST, -(-len(queue) // idle)) if idle else MOST
            yield from self._started(offered, largest, head, cluster, now_ms, closed)

    def _noted(self, job: Job, cluster: Cluster) -> None:
        """A job has started, if it was not refused."""
        if job.id in cluster.running:
            self._has_started(job)

    def _has_started(self, job: Job) -> None:
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
        learned = self.knowledge.learns and self._learned(cluster)
        kept = cluster.memo.get(self)
        if kept is None:
            self.whole.forget(cluster)
        if kept is None or learned:
            kept = cluster.memo[self] = ClusterCache.of(cluster)
        self._cache = kept

    def _cautious(self, name: str, profile: Profile) -> Profile:
        """A profile with the memory that the application may need, which is more than is expected where that is in
        doubt; a belief that makes no sense is none."""
        self._sources[name] = profile
        if self._certain:
            return profile
        needs_mib = self._needed_mib(Job("", 0, None, application=name))
        peak_mib = peak_mem_mib(profile)
        if needs_mib is None or not 0 < peak_mib < needs_mib:
            return profile
        return replace(profile, usage=profile.usage * np.array([1.0, needs_mib / peak_mib, 1.0, 1.0]))

    def _needed_mib(self, job: Job) -> int | None:
        """GPU memory that forecasts count with where it is in doubt, MiB: the upper tenth of what is believed."""
        return believed_peak_mib(job, self.knowledge)

    def _learned(self, cluster: Cluster) -> bool:
        """Take over profiles that were learned since, or learned better; whether there are any. One that is gone is
        forgotten once no job of its application shares a GPU, of which forecasts are still made."""
        profiles = self.knowledge.profiles
        gone = self._sources.keys() & self.known.keys() - profiles.keys()
        if gone:
            gone -= {run.job.application for run in cluster.running.values() if run.best_effort}
        self._at_first -= gone
        for name in gone:
            del self.known[name], self._sources[name]
        better = {
            name: found
            for name, source in self._sources.items()
            if name in self.known and (found := profiles.get(name)) is not None and found is not source
        }
        # Of runs that ended before their profile was there, or elsewhere.
        if len(profiles) > len(self._at_first):
            new = profiles.keys() - self._at_first - self.known.keys()
            better |= {name: profiles[name] for name in new}
        if not better and not gone:
            return False
        self.known.update({name: self._cautious(name, profile) for name, profile in better.items()})
        self.forecaster = Forecaster(self.known, self.knowledge.speeds)
        self._profiles_changed()
        return True

    def _profiles_changed(self) -> None:
        """For policies that keep more of what profiles say."""

    def work_us(self, job: Job, done_us: int = 0) -> int:
        """The work of a job that has done part of it, as a forecast counts it, μs: what is believed, and where that is
        in doubt at least as long as its profile, so that no forecast of memory is cut at a guessed end. Services still
        fit in 64 bits."""
        if self._certain and job.work_ms is not None:
            return max(1, min(job.work_ms, LONGEST_MS) * 1000)
        spread = believed_run(job, self.knowledge)
        if spread is not None and spread.certain:
            return int(spread.expected) * 1000
        profile = self.known.get(job.application)
        length_ms = 1 if profile is None else run_time_ms(profile)
        if spread is None:
            return length_ms * 1000
        expected_ms = int(spread.expected)
        if profile is not None and length_ms * 1000 > done_us:
            expected_ms = self._expected_ms(spread, profile)
        return max(expected_ms, length_ms) * 1000

    def _expected_ms(self, spread: Spread, profile: Profile) -> int:
        """The run time to count with where it is in doubt and no longer than the profile so far, ms."""
        return int(spread.expected)

    # Those that share

    def _offers(
        self, rooms: Sequence[Room], head: QueuePrefix, cluster: Cluster, now_ms: int, closed: set[GpuSlot]
    ) -> list[Offered]:
        """GPUs with room, their tenants, and the jobs that each is offered, which are different ones.

        Each is offered the first that it may run, however far behind they are. Nodes of one number may run the same
        jobs, so that the next of them goes on where the one before came to.
        """
        head.look()
        if (missing := self.window * len(rooms) - len(head.jobs)) > 0:
            head.read(missing)
        taken: set[int] = set()
        begins: dict[int, int] = {}
        may: dict[int, Kinds] = {}
        offered: list[Offered] = []
        alike = self._cache.alike
        declines_still = partial(
            self._cache.open_gpus.declines_still, now_ms=now_ms, queue_changes=head.queue.changes
        )
        for room in rooms:
            slot, tenants = room
            number = alike[slot.node]
            kinds = may.get(number)
            if kinds is None:
                kinds = may[number] = Kinds(partial(self._may_run, slot=slot, cluster=cluster), head.kinds)
            kept_for = self._due if slot == self._overtaking.kept and 0 not in taken else None
            if kept_for is not None and head.jobs and head.jobs[0] is kept_for:
                if declines_still(room, [kept_for]):
                    closed.add(slot)
                elif kinds[head.places[0]]:
                    offered.append(self._offer(room, [0], head, cluster))
                    taken.add(0)
                continue
            places, end = head.window(begins.get(number, 0), self.window, taken, kinds)
            if tenants and places and declines_still(room, [head.jobs[at] for at in places]):
                closed.add(slot)
                continue
            begins[number] = end
            taken.update(places)
            if places:
                offered.append(self._offer(room, places, head, cluster))
        return offered

    def _offer(self, room: Room, places: Sequence[int], head: QueuePrefix, cluster: Cluster) -> Offered:
        """A GPU that is offered the waiting jobs with these numbers."""
        slot, tenants = room
        window = [head.jobs[at] for at in places]
        candidates = tuple([head.candidates[head.places[at]] for at in places])
        short = not all_have_room(window, slot, cluster)
        return Offered(slot, tenants, window, candidates, short, places)

    def _started(
        self,
        offered: Sequence[Offered],
        largest: int,
        head: QueuePrefix,
        cluster: Cluster,
        now_ms: int,
        closed: set[GpuSlot],
    ) -> Iterator[Placement]:
        """Start what the chooser says on each GPU; one that declines is not asked again at this moment."""
        chosen, next_ms = self._picks(offered, largest, head.queue, cluster, now_ms)
        for number, (slot, tenants, window, _, short, _) in enumerate(offered):
            combination = chosen[number]
            if not combination:
                closed.add(slot)
                self._cache.open_gpus.decline(
                    (slot, tenants),
                    window,
                    hold_ms=next_ms[number],
                    now_ms=now_ms,
                    queue_changes=head.queue.changes,
                    short_on=cluster if short else None,
                )
                continue
            members = [job for at, job in enumerate(window) if combination >> at & 1]
            # Another GPU of its node may have taken what they need: then it is offered jobs again.
            if not all_have_room(members, slot, cluster):
                continue
            self._cache.open_gpus.forget(slot)
            slots = (slot,)
            for job in members:
                head.started.add(job.id)
                yield self.shared_placement(job, slots)
                if job.id not in cluster.running:  # refused: this GPU is not asked again now
                    closed.add(slot)
                    break
                self._has_started(job)

    def _picks(
        self, offered: Sequence[Offered], largest: int, queue: Queue, cluster: Cluster, now_ms: int
    ) -> tuple[list[int], list[int]]:
        """What the chooser says for each GPU, and how long one that declines is not asked again."""
        waiting = len(queue)
        backlog_ms = sum(min(self.work_us(job) // 1000, 1 << 40) for job in queue) if waiting <= 1000 else 0
        if not backlog_ms:
            seen = [one.left_us // 1000 for offer in offered for one in offer.candidates]
            backlog_ms = sum(seen) * waiting // max(1, len(seen))
        by_card: dict[int, list[int]] = {}
        for at, offer in enumerate(offered):
            by_card.setdefault(self._cache.card_numbers[offer.slot.node], []).append(at)
        chosen = [0] * len(offered)
        next_ms = [0] * len(offered)
        for group in by_card.values():
            some = [offered[at] for at in group]
            gpu = self._cache.models[some[0].slot.node]
            offers = [
                Offer(tuple([self._tenant(run, now_ms) for run in one.tenants]), one.candidates, largest)
                for one in some
            ]
            forecasts = self._foreseen(offers, some, cluster)
            self.next_decision_ms = None
            waits = partial(
                self._cache.empty.waits,
                some,
                cluster,
                now_ms,
                waiting=waiting,
                mean_ms=backlog_ms // max(1, waiting),
                may_run=self._may_run,
                kept=None if self._due is None else (self._due, self._overtaking.kept),
            )
            picked = self.choose(Scene(forecasts, gpu, waiting, backlog_ms, queue, waits))
            picks = picked.tolist()
            empty_ms = now_ms + forecasts.ends_ms[np.arange(len(group)), picked].max(axis=1)
            self._cache.empty.expect([one.slot for one in some], empty_ms.tolist())
            again_ms = LONGEST_MS if self.next_decision_ms is None else self.next_decision_ms
            for at, pick, hold_ms in zip(group, picks, look_again_ms(forecasts).tolist(), strict=True):
                chosen[at], next_ms[at] = pick, min(hold_ms, again_ms)
        return chosen, next_ms

    def _foreseen(
        self,
        offers: Sequence[Offer],
        offered: Sequence[Offered],
        cluster: Cluster,
    ) -> Forecasts:
        """What becomes of combinations on GPUs of one model. Those that the node has no room for, or that are in
        doubt (`Doubts`), do not fit."""
        gpu = self._cache.models[offered[0].slot.node]
        forecasts = self.forecaster.forecasts(offers, gpu)
        jobs = [([run.job for run in one.tenants], one.window) for one in offered]
        for row, one in enumerate(offered):
            if one.short:
                forecasts.fits[row] &= has_room(one.window, one.slot, cluster, forecasts.fits.shape[1])
        self._doubts.rule_out(forecasts, jobs, self.forecaster, gpu)
        return forecasts

    def _candidate(self, job: Job) -> Candidate:
        """A waiting job as a forecast sees it, the same one for all that are alike."""
        work_us = self.work_us(job)
        if len(self._cache.candidates) > MOST_CANDIDATES:
            self._cache.candidates.clear()
        key = job.application, work_us
        found = self._cache.candidates.get(key)
        if found is None:
            found = self._cache.candidates[key] = Candidate(job.application, work_us, work_us)
        return found

    def _tenant(self, run: Running, now_ms: int) -> Candidate:
        """A running job as a forecast sees it."""
        left_us = run.left_us_at(now_ms)
        done_us = run.work_us - left_us
        work_us = self.work_us(run.job, done_us)
        if not self._certain:  # its end is in doubt: what it has done is not
            left_us = work_us - done_us
        left_us = min(max(1, left_us), work_us)
        # In half of the time that a NamedTuple's constructor takes.
        return tuple.__new__(Candidate, (run.job.application, left_us, work_us, now_ms - run.start_ms))

    def shared_placement(self, job: Job, slots: tuple[GpuSlot]) -> Placement:
        """A job on a GPU that it shares by best effort, with what is enforced there."""
        node = slots[0].node
        key = job.application, job.share, self._cache.alike[node]
        share = self._cache.shares.get(key)
        if share is None:
            share = Share(job.share.milli, self._enforced_mib(job, self._cache.models[node]))
            if len(self._cache.shares) > MOST_CANDIDATES:
                self._cache.shares.clear()
            if not self.knowledge.learns:
                self._cache.shares[key] = share
        # In half of the time that a NamedTuple's constructor takes.
        return tuple.__new__(Placement, (job, slots, share, True, True))

    def _enforced_mib(self, job: Job, gpu: GpuModel | None) -> int:
        """GPU memory that the job may have, MiB: what it asks for, else what it is believed to need and a margin, at
        most the card."""
        if job.share.mem_mib:
            return job.share.mem_mib
        expected_mib = believed_peak_mib(job, self.knowledge, gpu)
        peak_mib = peak_mem_mib(self.known[job.application]) if expected_mib is None else expected_mib
        mem_mib = peak_mib + -(-peak_mib // MARGIN)
        return min(mem_mib, gpu.mem_mib) if gpu is not None and gpu.mem_mib else mem_mib

    def _head(self, queue: Queue) -> QueuePrefix:
        """The jobs that may share, up to one that has no room yet and must have a GPU for itself."""
        return QueuePrefix(queue, self._in_order, self._candidate_of, certain=self._certain)

    def _candidate_of(self, job: Job) -> Candidate | None:
        """A waiting job as a forecast sees it; None if it does not share."""
        return self._candidate(job) if self._shares(job) else None

    def _shares(self, job: Job) -> bool:
        """Whether the job is one that shares: of one task on one GPU, with a profile, and believed to fit on a card.

        One that is believed to need more than any card has runs by itself, for beliefs may be wrong.
        """
        if (
            job.gpus != 1
            or job.tasks
            or job.application not in self.known
            or self._doubts.most_together(job.application) <= 1
        ):
            return False
        if self._certain:
            return True
        return self._fits_somewhere(job.application, job.models, self.work_us(job))

    def _is_cold(self, job: Job) -> bool:
        """Whether a job that may not share only waits until its application has run alone."""
        return False

    def waits_for(self, job: Job) -> str:
        """The id of the run whose first look a waiting job waits for; empty if it does not."""
        run = self.whole.held.get(job.application)
        return run.job.id if run is not None and self._is_cold(job) and not self._shares(job) else ""

    def _some_take_whole(self, queue: Queue) -> bool:
        """Whether a job waits that may not share; on a long queue of a few applications this is faster than to look at
        each job. Where work is in doubt, a job counts as one that may not share unless it fits whatever its work."""
        for lane in queue.lanes(_lane, as_queued):
            application, models, gpus, tasks = cast(tuple[str, tuple[str, ...], int, tuple[Job, ...]], lane)
            if (
                gpus != 1
                or tasks
                or application not in self.known
                or self._doubts.most_together(application) <= 1
            ):
                return True
            if not self._certain and not self._fits_somewhere(application, models, LONGEST_MS * 1000):
                return True
        return False

    def _fits_somewhere(self, application: str, models: tuple[str, ...], work_us: int) -> bool:
        """Whether that work of the application is believed to fit alone on any card of these models, any if none."""
        key = application, models, work_us
        fits = self._cache.fits_somewhere.get(key)
        if fits is None:
            if len(self._cache.fits_somewhere) > MOST_CANDIDATES:
                self._cache.fits_somewhere.clear()
            allowed = {model for model in self._cache.cards if not models or (model and model.name in models)}
            fits = self._cache.fits_somewhere[key] = any(
                self.forecaster.fits_alone(application, model, work_us // 1000) for model in allowed
            )
        return fits

    def _may_run(self, job: Job, slot: GpuSlot, cluster: Cluster) -> bool:
        """Whether the GPU is of a model, and its node of labels, that the job allows, and it fits there alone."""
        kept, number = self._cache, cluster.request(job)
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


_lane = attrgetter("application", "models", "gpus", "tasks")
"""What decides whether a job may share, but for its work."""
