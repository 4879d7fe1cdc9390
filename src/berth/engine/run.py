"""One simulation under way: the heap of what is to happen, and what each thing does to queue, cluster and events."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from typing import Any

from berth.card_speeds import CardSpeeds
from berth.cluster import Cluster, Running
from berth.cluster.outages import Recovery, check_outage
from berth.cluster.work_left import WorkLeft
from berth.engine.arrivals import Arrivals
from berth.engine.dependencies import Dependencies
from berth.engine.memory import Memory, WhenFull
from berth.engine.stretch import Stretch, stretch_of
from berth.engine.suspension import Suspension
from berth.errors import PolicyError, SchedulerError, SimulationError
from berth.events import EventBatch, new
from berth.interference import Interference, KnowsMemory, KnowsProfiles, Outlook, Tenant, no_interference
from berth.interference.sharing import Sharing, tenant_of
from berth.knowledge import Knowledge, LearnsUnderWay
from berth.model import (
    FIRST_LOOK_MS,
    FOREVER_MS,
    Event,
    EventKind,
    GpuModel,
    GpuSlot,
    Job,
    Outage,
    Placement,
    Profile,
    Reason,
    RecordState,
    Reservation,
    Share,
    WakeAt,
    work_of,
)
from berth.policies import Policy, Resizing
from berth.profiles import begun, run_time_ms
from berth.scheduler import Evicted, Refused, Resized, Resumed, Scheduler, Suspended

END, LOST, DRAIN, BACK, OPEN, KEEP, CLEAR, MEMORY, RETIME, LOOK, WAKE, LEAVE = range(12)
"""What can be on the heap, in the order in which it happens at one instant; jobs arrive before LEAVE."""

SUBMIT, START, FINISH, FAIL, EVICT, REJECT, CANCEL, RESIZE, SUSPEND, RESUME = EventKind
NO_REASON = Reason.NONE
COMPLETED, TIMEOUT, OUT_OF_MEMORY = RecordState.COMPLETED, RecordState.TIMEOUT, RecordState.OUT_OF_MEMORY
_Entry = tuple[int, int, int, Any]
"""An entry of the heap: when, what happens, a serial number, and to what."""
IN_VAIN = 1_000_000
"""Instants without an event after which the run is given up."""


class Run:
    """One simulation under way."""

    def __init__(
        self,
        jobs: Iterable[Job],
        cluster: Cluster,
        policy: Policy,
        knowledge: Knowledge,
        interference: Interference,
        outages: Iterable[Outage],
        recovery: Recovery,
        speeds: CardSpeeds,
        suspension: Suspension | None,
        when_full: WhenFull | None = None,
    ) -> None:
        self.cluster = cluster
        self.alters_work = bool(speeds) or recovery.write_ms > 0
        self.scheduler = Scheduler(cluster, policy, knowledge, speeds=speeds)
        self.queue = self.scheduler.queue
        self.resizes = isinstance(policy, Resizing) and policy.resizes
        self.copies = not knowledge.certain
        self.copied: dict[str, Running] = {}
        self.truth: Mapping[str, Running] = self.copied if self.copies else cluster.running
        """What is true of each run: the cluster's own values where the knowledge is certain, else copies of them."""
        self.profiles: Mapping[str, Profile] = {}
        """What a sampler sees of each application's run alone, where not all is known."""
        if self.copies and isinstance(interference, KnowsProfiles):
            self.profiles = interference.profiles
        if isinstance(knowledge, LearnsUnderWay):
            knowledge.first_look_ms = FIRST_LOOK_MS if self.profiles else None
        self.knows_memory = interference if isinstance(interference, KnowsMemory) else None
        self.memory: Memory | None = None
        runs_on = self._true_runs_on if self.copies else None
        if when_full is not None:
            self.memory = Memory(when_full, self, self.scheduler, interference, suspension)
            interference, runs_on = partial(_never_full, interference), self._going_runs_on
        self.sharing = None if interference is no_interference else Sharing(cluster, interference, runs_on)
        self.work = WorkLeft(cluster, recovery, speeds)
        self.suspension = suspension
        self.copied_out_ms: dict[GpuSlot, int] = {}
        """Until when a suspended job's memory is being copied from each GPU."""
        self.heap: list[_Entry] = []
        self.serial = 0
        self.ends: dict[str, _Entry] = {}  # by job that runs, the entry at which it is to end, if it is
        self.leaves: dict[str, int] = {}  # waiting job -> serial of the entry at which its patience ends
        self.now_or_never: list[Job] = []  # jobs without patience that came at this instant
        # How many drains and outages of each node are under way.
        self.down: list[int] = [0] * len(cluster.nodes)
        self.jobs = jobs
        self.arrivals = Arrivals(iter(jobs))
        self.dependencies = Dependencies(self.arrivals.known)
        self.models_of: dict[tuple[object, object], dict[GpuModel | None, None]] = {}
        self.new_events: list[Event] = []  # at this instant
        self.idle_outages = 0  # since a job last started or ended
        self.outages: Iterator[Outage] = iter(())
        if isinstance(outages, Sequence):
            for outage in outages:
                self._schedule_outage(outage)
        else:
            self.outages = iter(outages)
            self._next_outage()

    def batches(self) -> Iterator[list[Event] | EventBatch]:
        """Yield the events of the whole run: those of a stretch, if it begins with one, and then of each instant."""
        new_events = self.new_events
        last_ms = in_vain = 0
        if (stretch := self._stretch()) is not None:
            yield from stretch.batches()
            self._go_on_from(stretch)
            last_ms = stretch.last_ms
        self.arrivals.draw(last_ms)
        while (now_ms := self.next_ms()) is not None:
            try:
                if self.begin_instant(now_ms):
                    self.decide(now_ms)
                self.end_instant(now_ms)
            finally:  # an error comes after what happened before it
                if new_events:
                    yield new_events.copy()
                    last_ms = now_ms
                    in_vain = 0
                    new_events.clear()
                else:
                    in_vain += 1
            if in_vain > IN_VAIN:
                self._check_goes_on(now_ms)
                in_vain = 0
        if self.scheduler.fault is not None:
            raise self.scheduler.fault
        for run in self.cluster.suspended.values():
            left = run.job, run.attempt, run.slots, run.share, Reason.LEFT_WAITING, run.shared
            yield [Event(last_ms, FAIL, *left)]
        for job in [*self.queue, *self.dependencies.held()]:
            for task in job.tasks or (job,):
                attempt = self.scheduler.attempt(task.id)
                yield [Event(last_ms, REJECT, task, attempt, (), task.share, Reason.LEFT_WAITING)]

    def _stretch(self) -> Stretch | None:
        """The stretch that it begins with, if nothing but the policy and jobs matters until further notice."""
        if (
            not isinstance(self.jobs, Sequence)
            or self.sharing is not None
            or self.memory is not None
            or self.suspension is not None
            or self.copies
            or self.alters_work
            or self.heap
        ):
            return None
        return stretch_of(self.jobs, self.cluster, self.scheduler.policy)

    def _go_on_from(self, stretch: Stretch) -> None:
        """Be ready to go on job by job where a stretch has ended."""
        self.arrivals.go_on(stretch.rest(), stretch.ids())
        for job in stretch.unfinished:
            deque(self.dependencies.never_finishes(job), maxlen=0)
        for placement, start_ms in stretch.take_off():
            self.schedule_end(self.cluster.place(placement, now_ms=start_ms), start_ms)
        for job in stretch.waiting():
            self.scheduler.submit(job)

    def next_ms(self) -> int | None:
        """When something happens next; None if nothing does any more."""
        now_ms = self.arrivals.time_ms
        if self.heap:
            next_ms, kind, _, _ = self.heap[0]
            if next_ms < now_ms:
                now_ms = next_ms
            if kind == RETIME and self._only_services():
                return None
        elif self.arrivals.job is None:
            return None
        return now_ms

    def _check_goes_on(self, now_ms: int) -> None:
        """Raise SimulationError unless a job is still to come or to end, or nodes to come back, however many instants
        pass until then."""
        if not (self.arrivals.more or self.ends or any(kind in (BACK, OPEN) for _, kind, _, _ in self.heap)):
            raise SimulationError(
                f"since {IN_VAIN:,} instants nothing happens, at {now_ms} ms: the policy asks to be woken, or"
                " the interference model to be asked again, for ever"
            )

    def _only_services(self) -> bool:
        """Whether no job is to come, to end or to leave, so that services would be looked at again for ever."""
        if self.arrivals.more or any(work_of(run.job) < FOREVER_MS for run in self.truth.values()):
            return False
        return all(entry[1] == RETIME or self._is_dead(entry) for entry in self.heap)

    def _is_dead(self, entry: _Entry) -> bool:
        """Whether an entry of the heap has been overtaken: the job left, or its end has moved."""
        _, kind, serial, what = entry
        if kind == END:
            return self.ends.get(what.job.id) is not entry
        if kind == LEAVE:
            return self.leaves.get(what.id) != serial
        return kind == RETIME and not (self.sharing and self.sharing.is_current(what, serial))

    def begin_instant(self, now_ms: int) -> bool:
        """What happens before the policy decides: jobs end, nodes are lost and come back, jobs arrive. Returns whether
        there is something to decide."""
        heap, new_events, arrivals = self.heap, self.new_events, self.arrivals
        decide = False
        while heap:
            entry = heap[0]
            time_ms, kind, _, what = entry
            if time_ms != now_ms or kind == LEAVE:
                break
            heappop(heap)
            if kind == END:
                if self.ends.get(what.job.id) is entry:
                    self._end(what, now_ms)
                    decide = True
            elif self._is_dead(entry):
                continue
            elif kind == WAKE:
                decide = True
            elif kind == MEMORY:
                decide = what(now_ms) or decide
            elif kind == LOOK:
                decide = self._look_at(what, now_ms) or decide
            elif kind == RETIME:
                if self.sharing is not None:
                    self.sharing.change((what,))
            elif kind == LOST:
                self._lose(what, now_ms)
                self._next_outage()
                decide = True
            elif kind == DRAIN:
                self.down[what] += 1
                self.scheduler.node_drained(self.cluster.nodes[what].name)
            elif kind == BACK:
                self._bring_back(what)
                decide = True
            elif kind == CLEAR:
                self._clear(what, now_ms)
                decide = True
            else:
                self._reserve(what, what.users if kind == KEEP else (), now_ms)
                decide = True
        while arrivals.time_ms == now_ms and (job := arrivals.job) is not None:
            for task in job.tasks or (job,):
                new_events.append(new(Event, (now_ms, SUBMIT, task, 1, (), task.share, NO_REASON, False)))
            if job.tasks:
                self.dependencies.gang_submitted(job)
            if (not job.after or self._has_all_before(job, now_ms)) and self._queued(job, now_ms):
                decide = True
            arrivals.draw(now_ms)
        if self.memory is not None:
            decide = self.memory.settle(now_ms) or decide
        return decide and bool(
            len(self.queue) or self.cluster.suspended or (self.resizes and self.cluster.running)
        )

    def end_instant(self, now_ms: int) -> None:
        """What happens once the policy has decided: speeds change, impatient jobs leave."""
        heap = self.heap
        if self.memory is not None and self.memory.settle(now_ms):
            self._push(now_ms, WAKE, None)
        if self.sharing is not None and self.sharing.changed:
            self._retime(self.sharing, now_ms)
        left = False
        while heap and heap[0][0] == now_ms and heap[0][1] == LEAVE:
            _, _, serial, job = heappop(heap)
            if self.leaves.get(job.id) == serial:
                del self.leaves[job.id]
                self._leave(job, now_ms)
                left = True
        if self.now_or_never and not (heap and heap[0][0] == now_ms):
            for job in self.now_or_never:
                if self.scheduler.waits(job.id):
                    self._leave(job, now_ms)
                    left = True
            self.now_or_never.clear()
        if left and len(self.queue):  # those that waited behind it may start
            self._push(now_ms, WAKE, None)

    # What happens

    def _queued(self, job: Job, now_ms: int) -> bool:
        """Queue a job for the first time, or reject one that never fits. Returns whether it waits."""
        if self.memory is not None:
            job = self.memory.come(job)
        try:
            fits = self.scheduler.submit(job)
        except SchedulerError as error:
            raise SimulationError(str(error)) from error
        if not fits or not (self.knows_memory is None or self._has_memory_for(job, self.knows_memory)):
            self.scheduler.withdraw(job.id, now_ms)
            self._reject(job, Reason.NEVER_FITS, now_ms)
            return False
        if job.patience_ms is not None:
            self._watch_patience(job, job.patience_ms, now_ms)
        return True

    def _has_memory_for(self, job: Job, memory: KnowsMemory) -> bool:
        """Whether some GPU that the job may run on has the memory that it uses alone, to its end."""
        if job.tasks:
            return all(self._has_memory_for(task, memory) for task in job.tasks)
        if not job.gpus:
            return True
        kind = job.models, job.labels
        models = self.models_of.get(kind)
        if models is None:
            models = self.models_of[kind] = {
                node.gpu_model: None
                for node, allowed in zip(self.cluster.nodes, self._of_its_kind(job), strict=True)
                if node.gpus and allowed
            }
        return any(memory.fits_alone(job, model) for model in models)

    def _of_its_kind(self, job: Job) -> list[bool]:
        """Whether each node is of a model and has the labels that a job asks for, whomever it is reserved for."""
        kind: list[bool] = (self.cluster.with_model(job) & self.cluster.with_labels(job)).tolist()
        return kind

    def decide(self, now_ms: int) -> None:
        """Ask the scheduler; a decision that cannot be applied ends the run."""
        start = self._start
        parked_mib = None if self.suspension is None else self._parked_mib
        for decision in self.scheduler.decide(now_ms, parked_mib=parked_mib):
            if isinstance(decision, Placement):
                start(decision, now_ms)
            elif isinstance(decision, Evicted):
                self._evicted(self._left_its_gpus(decision.run, now_ms), now_ms)
            elif isinstance(decision, Suspended):
                self._suspended(decision.run, now_ms)
            elif isinstance(decision, Resumed):
                self._resumed(decision.run, now_ms)
            elif isinstance(decision, Resized):
                self._resized(decision.run, now_ms)
            elif isinstance(decision, WakeAt):
                self._push(decision.time_ms, WAKE, None)
            elif isinstance(decision, Refused):
                raise PolicyError(decision.why)

    def _start(self, placement: Placement, now_ms: int) -> None:
        job = placement[0]
        job_id = job.id
        run = self.cluster.running[job_id]
        if self.leaves:
            self.leaves.pop(job_id, None)
        if self.copies:
            work_us = work_of(job) * 1000
            run = self.copied[job_id] = run.with_work(work_us)
        if self.work.left_ms or self.alters_work or job.elastic:
            self.work.begin(run)
        if self.copied_out_ms:
            self._wait_for_copies(run, now_ms)
        self.idle_outages = 0
        if self.profiles:
            self._look_later(run, now_ms)
        if self.memory is not None:
            self.memory.begin(run, now_ms)
        if self.sharing is None or job.gpus == 0:
            self.schedule_end(run, now_ms)
        else:
            self.sharing.change(run.slots)
        start = (now_ms, START, job, run.attempt, run.slots, run.share, NO_REASON, run.shared)
        self.new_events.append(new(Event, start))

    def _parked_mib(self, run: Running) -> int | None:
        """GPU memory that a run holds now on each of its GPUs; None for a job without GPUs, which stops at once."""
        if not run.job.gpus:
            return None
        known = self.knows_memory is not None
        held_mib = self._held_mib(self.truth[run.job.id]) if known else run.taken.mem_mib
        model = self.cluster.nodes[run.slots[0].node].gpu_model
        return held_mib or (model.mem_mib if model is not None else 0)

    def _wait_for_copies(self, run: Running, now_ms: int) -> None:
        """A run works only when what was on its GPUs has been copied out."""
        waits_ms = max(self.copied_out_ms.get(slot, 0) for slot in run.slots) - now_ms
        run.left_us += max(0, waits_ms) * 1000

    def _suspended(self, run: Running, now_ms: int, *, copies: bool = True) -> None:
        """A run leaves its GPUs, which copy its memory out from now on; unless `copies`, they have done so."""
        job_id = run.job.id
        if self.copies:
            true = self.copied[job_id]
            true.advance(now_ms, 0)
        self.ends.pop(job_id, None)
        if self.sharing is not None:
            self.sharing.change(run.slots)
        if self.memory is not None:
            self.memory.away(run)
        if copies and self.suspension is not None:
            free_ms = now_ms + self.suspension.takes_ms(run, run.parked_mib, self.cluster.nodes)
            self.copied_out_ms |= {slot: max(free_ms, self.copied_out_ms.get(slot, 0)) for slot in run.slots}
        self._note(SUSPEND, run, now_ms)

    def _resumed(self, run: Running, now_ms: int) -> None:
        """A suspended run is copied back, and then works on."""
        job_id, parked_mib = run.job.id, run.parked_mib
        if self.copies:
            left_us, work_us = self.copied[job_id].left_us, self.copied[job_id].work_us
            run = self.copied[job_id] = copy(run)
            run.left_us, run.work_us = left_us, work_us
        if self.memory is not None:
            self.memory.back(run)
        cost = self.suspension if self.memory is None else self.memory.suspension
        if cost is not None:
            run.left_us += cost.takes_ms(run, parked_mib, self.cluster.nodes, back=True) * 1000
        self._wait_for_copies(run, now_ms)
        self.idle_outages = 0
        if self.sharing is None:
            self.schedule_end(run, now_ms)
        else:
            self.sharing.change(run.slots)
        self._look_later(run, now_ms)
        self._note(RESUME, run, now_ms)

    def _look_later(self, run: Running, now_ms: int) -> None:
        """Have a run that the knowledge wants to see looked at for the first time since it started or came back."""
        if run.job.application in self.profiles and self.scheduler.wants_to_see(run):
            self._push(now_ms + FIRST_LOOK_MS, LOOK, run)

    def _look_at(self, run: Running, now_ms: int) -> bool:
        """Show the knowledge what was sampled of a run that goes on, and again once it has run twice as long."""
        job = run.job
        goes_on = self.copied.get(job.id) is run and job.id in self.cluster.running
        if not goes_on or not self.scheduler.wants_to_see(run):
            return False
        profile, done_ms = self.profiles[job.application], (run.work_us - run.left_us_at(now_ms)) // 1000
        self.scheduler.sampled(run, begun(profile, done_ms), now_ms)
        if done_ms < run_time_ms(profile):  # a service would be looked at for ever
            self._push(2 * now_ms - run.start_ms, LOOK, run)
        return True

    def _resized(self, run: Running, now_ms: int) -> None:
        """A run has another share: its neighbours and itself are looked at again."""
        if self.copies:
            self.copied[run.job.id].share = run.share
        if self.sharing is not None and run.job.gpus:
            self.sharing.change(run.slots)
        self._note(RESIZE, run, now_ms)

    def _end(self, run: Running, now_ms: int) -> None:
        """A run reaches the end of its work or of its time limit."""
        job = run.job
        in_time = job.time_limit_ms is None or run.left_us_at(now_ms) <= 0
        self.scheduler.ended(job.id, COMPLETED if in_time else TIMEOUT, now_ms)
        self._left_its_gpus(run, now_ms)
        if self.work.left_ms:
            self.work.forget(job.id)
        if in_time:
            finish = (now_ms, FINISH, job, run.attempt, run.slots, run.share, NO_REASON, run.shared)
            self.new_events.append(new(Event, finish))
            if self.memory is not None:
                self.memory.forget(job)
            if job.gang or self.dependencies.waited_for:
                for held in self.dependencies.finished(job):
                    self._queued(held, now_ms)
        else:
            self._failed(run, Reason.TIME_LIMIT, now_ms)
            self._never_finishes(job, now_ms)

    def _lose(self, outage: Outage, now_ms: int) -> None:
        node, drained = outage.node, outage.drain_ms > 0
        if not drained:
            self.down[node] += 1
        there = self.scheduler.node_lost(self.cluster.nodes[node].name, now_ms)
        self._evicted_with_gang(now_ms)
        for lost in there:
            run = self._left_its_gpus(lost, now_ms)
            if drained:
                self._evicted(run, now_ms)
            elif self.work.is_given_up(run):
                if self.scheduler.waits(run.job.id):
                    self._give_up(run, now_ms)
                self.work.forget(run.job.id)
                self._failed(run, Reason.LOST_TOO_OFTEN, now_ms)
                self._never_finishes(run.job, now_ms)
            else:
                self._failed(run, Reason.NODE_LOST, now_ms)
                self._queued_again(run, now_ms)

    def _give_up(self, run: Running, now_ms: int) -> None:
        """A job that waits again was lost too often: it leaves, and with it the other tasks of its gang."""
        left = self.scheduler.withdraw(run.job.id, now_ms)
        for task in left.tasks if isinstance(left, Job) else ():
            if task.id != run.job.id:
                self.work.forget(task.id)
                self._reject_task(task, self.scheduler.attempt(task.id), Reason.LOST_TOO_OFTEN, now_ms)
                self._never_finishes(task, now_ms)

    def _bring_back(self, node: int) -> None:
        self.down[node] -= 1
        if not self.down[node]:
            self.scheduler.node_back(self.cluster.nodes[node].name)

    def _reserve(self, reservation: Reservation, users: tuple[str, ...], now_ms: int) -> None:
        """Keep nodes for these users from now on, or for all users."""
        nodes = list(self.cluster.nodes)
        for node in reservation.nodes:
            nodes[node] = replace(nodes[node], reserved_for=users)
        self.scheduler.nodes_changed(nodes, now_ms)

    def _clear(self, reservation: Reservation, now_ms: int) -> None:
        """Evict what others than its users still run on reserved nodes."""
        there = set(reservation.nodes)
        others = [
            name
            for name, run in self.cluster.running.items()
            if run.job.user not in reservation.users and not there.isdisjoint(node for node, _ in run.slots)
        ]
        for run in self.scheduler.evict(others, now_ms):
            self._evicted(self._left_its_gpus(run, now_ms), now_ms)

    def _evicted_with_gang(self, now_ms: int) -> None:
        """What was evicted because its gang cannot run without one that was lost just now."""
        for run in self.scheduler.take_evicted():
            self._evicted(self._left_its_gpus(run, now_ms), now_ms)

    def _evicted(self, run: Running, now_ms: int) -> None:
        self._note(EVICT, run, now_ms)
        self._queued_again(run, now_ms)

    def _failed(self, run: Running, reason: Reason, now_ms: int) -> None:
        self._note(FAIL, run, now_ms, reason)

    def _note(self, kind: EventKind, run: Running, now_ms: int, reason: Reason = NO_REASON) -> None:
        """An event of a run."""
        self.new_events.append(
            Event(now_ms, kind, run.job, run.attempt, run.slots, run.share, reason, run.shared)
        )

    def _queued_again(self, run: Running, now_ms: int) -> None:
        """A job that was taken off its GPUs waits again: note what is left of its work."""
        job = run.job
        self.work.stop(run)
        if job.patience_ms is not None and (waiting := self.queue.named(job.id)) is not None:
            self._watch_patience(waiting, job.patience_ms, now_ms)
        submit = Event(now_ms, SUBMIT, job, run.attempt + 1, (), job.share, NO_REASON)
        self.new_events.append(submit)

    def _retime(self, sharing: Sharing, now_ms: int) -> None:
        """Look at the GPUs whose tenants have changed, and move the ends of what runs there accordingly."""
        going, failed = sharing.look(now_ms, self._call_again)
        for run in going:
            self.schedule_end(run, now_ms)
        for run in failed:
            held_mib = self._held_mib(run) if self.copies else 0
            neighbours = self._held_by_neighbours(run) if self.copies else ()
            self._out_of_memory(run, held_mib, neighbours, now_ms)
            self._push(now_ms, WAKE, None)

    def _out_of_memory(
        self, run: Running, held_mib: int, neighbours: Sequence[tuple[Job, int]], now_ms: int
    ) -> None:
        """A run ends that held this, and its neighbours that."""
        self.scheduler.ended(run.job.id, OUT_OF_MEMORY, now_ms, held_mib=held_mib, neighbours=neighbours)
        self._left_its_gpus(run, now_ms)
        self._failed(run, Reason.OUT_OF_MEMORY, now_ms)
        self._evicted_with_gang(now_ms)
        if self.scheduler.waits(run.job.id):
            self._queued_again(run, now_ms)
        else:
            self.work.forget(run.job.id)
            self._never_finishes(run.job, now_ms)

    # What the memory of runs asks for (`berth.engine.memory.Runs`)

    def later(self, time_ms: int, do: Callable[[int], bool]) -> None:
        self._push(time_ms, MEMORY, do)

    def resize(self, run: Running, share: Share, now_ms: int) -> None:
        self._resized(self.scheduler.resize(run.job.id, share, now_ms), now_ms)

    def speed_changed(self, run: Running, now_ms: int) -> None:
        stands = self.memory is not None and self.memory.stands(run)
        run.advance(now_ms, 0 if stands else run.speed_milli)
        self.schedule_end(run, now_ms)
        if self.sharing is not None:
            self.sharing.change(run.slots)

    def leave(self, run: Running, held_mib: int, now_ms: int) -> bool:
        try:
            left = self.scheduler.suspended(run.job.id, now_ms, held_mib=held_mib)
        except SchedulerError:  # others have taken the memory of its nodes meanwhile
            return False
        self._suspended(left, now_ms, copies=False)
        return True

    def ran_out(self, run: Running, held_mib: int, now_ms: int) -> None:
        self._out_of_memory(run, held_mib, (), now_ms)
        if self.memory is not None and self.scheduler.waits(run.job.id):
            self.memory.runs_again(run.job, held_mib)

    def _call_again(self, time_ms: int, slot: GpuSlot) -> int:
        return self._push(time_ms, RETIME, slot)

    # The heap and the queue

    def _push(self, time_ms: int, kind: int, what: object) -> int:
        self.serial += 1
        heappush(self.heap, (time_ms, kind, self.serial, what))
        return self.serial

    def schedule_end(self, run: Running, now_ms: int) -> None:
        """Note when it ends by its work or its time limit, if its speed stays as it is."""
        if self.memory is not None:
            self.memory.expect(run, now_ms)
        end_ms = run.end_ms()
        limit_ms = run.job.time_limit_ms
        if limit_ms is not None:
            end_ms = min(end_ms, max(now_ms, run.start_ms + limit_ms))
        job_id = run.job.id
        if (noted := self.ends.get(job_id)) is not None:
            if noted[0] == end_ms:
                return
            del self.ends[job_id]
        if end_ms < FOREVER_MS:
            self.serial = serial = self.serial + 1
            self.ends[job_id] = entry = (end_ms, END, serial, run)
            heappush(self.heap, entry)

    def _next_outage(self) -> None:
        """Draw the next outage, while jobs are to come, run, or wait with a chance to start."""
        self.idle_outages += 1
        if not (self.arrivals.more or self.cluster.running or self.cluster.suspended or len(self.queue)):
            return
        if self.idle_outages > 100 * len(self.cluster.nodes) and not (
            self.arrivals.more or self.cluster.running
        ):
            return  # nothing serves those that wait
        outage = next(self.outages, None)
        if outage is not None:
            self._schedule_outage(outage)

    def _schedule_outage(self, outage: Outage) -> None:
        check_outage(outage, len(self.cluster.nodes))
        if outage.drain_ms:
            self._push(outage.down_ms - outage.drain_ms, DRAIN, outage.node)
        self._push(outage.down_ms, LOST, outage)
        if outage.up_ms is not None:
            self._push(outage.up_ms, BACK, outage.node)

    def schedule_reservation(self, reservation: Reservation) -> None:
        """Put what becomes of its nodes on the heap."""
        self._push(reservation.start_ms - reservation.drain_ms, KEEP, reservation)
        self._push(reservation.start_ms, CLEAR, reservation)
        self._push(reservation.end_ms, OPEN, reservation)

    def _watch_patience(self, job: Job, patience_ms: int, now_ms: int) -> None:
        if not patience_ms:  # without the heap: every job of an inflation is such a one
            self.now_or_never.append(job)
            return
        self.serial = serial = self.serial + 1
        self.leaves[job.id] = serial
        heappush(self.heap, (now_ms + patience_ms, LEAVE, serial, job))

    def _leave(self, job: Job, now_ms: int) -> None:
        """A waiting job's patience has ended."""
        attempts = {task.id: self.scheduler.attempt(task.id) for task in job.tasks or (job,)}
        self.scheduler.withdraw(job.id, now_ms)
        for task in job.tasks or (job,):
            self.work.forget(task.id)
            self._reject_task(task, attempts[task.id], Reason.PATIENCE, now_ms)
        self._never_finishes(job, now_ms)

    def _reject(self, job: Job, reason: Reason, now_ms: int) -> None:
        """A job that has not run leaves for good, with all of its tasks."""
        for task in job.tasks or (job,):
            self._reject_task(task, 1, reason, now_ms)
        self._never_finishes(job, now_ms)

    def _reject_task(self, task: Job, attempt: int, reason: Reason, now_ms: int) -> None:
        self.new_events.append(Event(now_ms, REJECT, task, attempt, (), task.share, reason))

    # Jobs that wait for others

    def _has_all_before(self, job: Job, now_ms: int) -> bool:
        """Whether all jobs that a job comes after have finished; holds it if they may, and rejects it if not."""
        if not self.dependencies.can_start(job):
            self._reject(job, Reason.DEPENDENCY, now_ms)
            return False
        return not self.dependencies.hold(job, self._is_unfinished)

    def _is_unfinished(self, job_id: str) -> bool:
        return self.scheduler.waits(job_id) or self.scheduler.run_of(job_id) is not None

    def _never_finishes(self, job: Job, now_ms: int) -> None:
        """A job has ended for good without finishing: those that come after it or its gang are rejected."""
        if self.memory is not None:
            self.memory.forget(job)
        for held in self.dependencies.never_finishes(job):
            self._reject(held, Reason.DEPENDENCY, now_ms)

    def _left_its_gpus(self, run: Running, now_ms: int) -> Running:
        """A run was released: its end is no more, and those that shared its GPUs are looked at again.

        Takes the cluster's value or the true one, and returns the true one as it is now.
        """
        job = run.job
        if self.copies:
            run = self.copied.pop(job.id)
            run.advance(now_ms, run.speed_milli)
        self.ends.pop(job.id, None)
        if self.memory is not None:
            self.memory.ended(run, now_ms)
        if self.sharing is not None and job.gpus:
            self.sharing.change(run.slots)
        return run

    def _held_mib(self, run: Running) -> int:
        """The GPU memory that a run uses now, as far as the model of interference knows."""
        if self.memory is not None:
            return self.memory.held_mib(run)
        if self.knows_memory is None:
            return 0
        return self.knows_memory.used_mib(tenant_of(run), self.cluster.nodes[run.slots[0].node].gpu_model)

    def _held_by_neighbours(self, run: Running) -> list[tuple[Job, int]]:
        """The jobs that share a GPU with a run, and the memory that each uses of a GPU now."""
        there = {other.job.id: other for slot in run.slots for other in self._true_runs_on(slot)}
        return [(other.job, self._held_mib(other)) for name, other in there.items() if name != run.job.id]

    def _true_runs_on(self, slot: GpuSlot) -> tuple[Running, ...]:
        """The jobs that run on a GPU, in order of their start, as it is true of them."""
        return tuple(self.truth[run.job.id] for run in self.cluster.jobs_on(slot))

    def _going_runs_on(self, slot: GpuSlot) -> tuple[Running, ...]:
        """Those of them that advance."""
        memory = self.memory
        return tuple(run for run in self._true_runs_on(slot) if memory is None or not memory.stands(run))


def _never_full(model: Interference, tenants: Sequence[Tenant], gpu: GpuModel | None) -> Outlook:
    """What a model says of speeds; `Memory` decides when memory runs out."""
    return model(tenants, gpu)._replace(out_of_memory=None)
