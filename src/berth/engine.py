"""The simulator: clock, arrivals, outages and the truth; jobs, a cluster and a policy in, events out.

There is one `simulate`; every experiment, command and replay goes through it. At one instant, in this order:
jobs end, nodes are lost, nodes come back, jobs arrive, the policy decides, impatient jobs leave. What is left
in a tie is settled by the order in which things were scheduled, so that the same input gives the same events.
What is decided is `berth.scheduler`'s business, as it is where real jobs run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any

from berth.card_speeds import ALL_ALIKE, CardSpeeds, card_us
from berth.cluster import Cluster, Running
from berth.cluster.outages import Recovery
from berth.cluster.reservations import check_reservations
from berth.errors import PolicyError, SchedulerError, SimulationError
from berth.interference import Interference, KnowsMemory, no_interference
from berth.interference.sharing import Sharing, tenant_of
from berth.knowledge import Knowledge, make_knowledge
from berth.model import (
    FOREVER_MS,
    Event,
    EventKind,
    GpuModel,
    GpuSlot,
    Job,
    Outage,
    Placement,
    Reason,
    RecordState,
    Reservation,
    WakeAt,
    work_of,
)
from berth.policies import Policy, Resizing, Setting, make_policy
from berth.scheduler import Evicted, Refused, Scheduler

__all__ = ["simulate"]

END, LOST, DRAIN, BACK, OPEN, KEEP, CLEAR, RETIME, WAKE, LEAVE = range(10)
"""What can be on the heap, in the order in which it happens at one instant; jobs arrive before LEAVE."""

SUBMIT, START, FINISH, FAIL, EVICT, REJECT, CANCEL = EventKind
NO_REASON = Reason.NONE
COMPLETED, TIMEOUT, OUT_OF_MEMORY = RecordState.COMPLETED, RecordState.TIMEOUT, RecordState.OUT_OF_MEMORY
AS_THE_JOB_SAYS = Recovery()
_Entry = tuple[int, int, int, Any]
"""Of the heap: when, what happens, a serial number, and to whom."""
new = tuple.__new__
"""Makes an Event in half of the time that it takes itself, which is a function of Python: `new(Event, (…))`."""
NO_ARRIVAL_MS = 2**80
"""Later than anything."""
IN_VAIN = 1_000_000
"""Instants without an event after which the run is given up."""


def simulate(
    jobs: Iterable[Job],
    cluster: Cluster,
    policy: Policy | str,
    *,
    knowledge: Knowledge | str | None = None,
    interference: Interference = no_interference,
    outages: Iterable[Outage] = (),
    recovery: Recovery = AS_THE_JOB_SAYS,
    reservations: Iterable[Reservation] = (),
    speeds: CardSpeeds = ALL_ALIKE,
    seed: int = 0,
) -> Iterator[Event]:
    """Replay jobs on a cluster under a policy; yield what happens, in order of time.

    `jobs` come in order of submission and are read as time reaches them; `cluster` is left as it is, the run
    begins with its nodes empty. `policy` may be a name (`sjf+best-fit`): it is made with `seed` and `knowledge`.
    `knowledge` is what is believed of the jobs, or its name: by default an oracle, which knows the truth, and the
    future where `jobs` are a sequence. A policy that was made already has its own, which is to be the same. A job
    that could not start on the empty cluster is rejected at once, one whose patience ends when it ends, and one that
    is still waiting when nothing is left to happen is rejected then; every other job starts and ends once an attempt.
    `outages` may be an iterator without end, in order of time, such as `FailureRate.outages` gives; it is drawn from
    while there is something to do. `recovery` tells what a stopped job that keeps its work has left of it, and what a
    restart costs. `reservations` keep nodes for jobs of some users at some times. `speeds` tells how fast applications
    are on each GPU model; jobs that span models go by the slowest.

    Raises SimulationError for jobs out of order, a duplicate id, a job whose work is not known or an outage of no
    node, SettingError for reservations that the cluster cannot have, PolicyError for a decision that cannot be applied.
    """
    if knowledge is None or isinstance(knowledge, str):
        workload = jobs if isinstance(jobs, Sequence) else ()
        knowledge = make_knowledge(knowledge or "oracle", workload, interference, seed)
    if isinstance(policy, str):
        policy = make_policy(policy, Setting(seed, knowledge=knowledge, speeds=speeds))
    speeds.check(cluster.nodes)
    reserved = tuple(reservations)
    check_reservations(reserved, cluster.nodes)
    empty = cluster.emptied({user for reservation in reserved for user in reservation.users})
    run = _Run(empty, policy, knowledge, interference, outages, recovery, speeds)
    for reservation in reserved:
        run.schedule_reservation(reservation)
    return run.events(iter(jobs))


class _Run:
    """One simulation under way."""

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        knowledge: Knowledge,
        interference: Interference,
        outages: Iterable[Outage],
        recovery: Recovery,
        speeds: CardSpeeds,
    ) -> None:
        self.cluster = cluster
        self.speeds = speeds
        self.scheduler = Scheduler(cluster, policy, knowledge, speeds=speeds)
        self.queue = self.scheduler.queue
        self.resizes = isinstance(policy, Resizing) and policy.resizes
        self.copies = not knowledge.certain
        self.copied: dict[str, Running] = {}
        self.truth: Mapping[str, Running] = self.copied if self.copies else cluster.running
        """What is true of each run: the cluster's own values where the knowledge is certain, else copies of them."""
        self.sharing = (
            None
            if interference is no_interference
            else Sharing(cluster, interference, self._true_runs_on if self.copies else None)
        )
        self.memory = interference if isinstance(interference, KnowsMemory) else None
        self.recovery = recovery
        self.heap: list[_Entry] = []
        self.serial = 0
        self.ends: dict[str, _Entry] = {}  # running job -> the entry at which it ends
        self.leaves: dict[str, int] = {}  # waiting job -> serial of the entry at which its patience ends
        self.now_or_never: list[Job] = []  # jobs without patience that came at this instant
        self.left_ms: dict[str, int] = {}  # job that is queued again -> the work that was left then
        self.lost_in_vain: dict[str, int] = {}  # job -> attempts lost with nodes since it last kept any work
        self.down: list[int] = [0] * len(
            cluster.nodes
        )  # how many drains and outages of each node are under way
        self.known: set[str] = set()
        self.never: set[str] = set()  # jobs that ended for good and did not finish
        self.held: dict[str, tuple[Job, set[str]]] = {}  # job that has come -> jobs that it waits for
        self.held_by: dict[str, list[str]] = {}  # and the other way round
        self.models_of: dict[tuple[object, object], dict[GpuModel | None, None]] = {}
        self.arrival: Job | None = None  # the next job to come, which is not on the heap
        self.arrival_ms = NO_ARRIVAL_MS
        self.more_jobs = True
        self.happened: list[Event] = []  # at this instant
        self.idle_outages = 0  # since a job last started or ended
        self.outages: Iterator[Outage] = iter(())
        if isinstance(outages, Sequence):
            for outage in outages:
                self._schedule_outage(outage)
        else:
            self.outages = iter(outages)
            self._next_outage()

    def events(self, jobs: Iterator[Job]) -> Iterator[Event]:
        """Yield the events of the whole run."""
        heap, happened = self.heap, self.happened
        last_ms = in_vain = 0
        self._next_arrival(jobs, 0)
        while heap or self.arrival is not None:
            now_ms = self.arrival_ms
            if heap:
                next_ms, kind, _, _ = heap[0]
                if next_ms < now_ms:
                    now_ms = next_ms
                if kind == RETIME and self._only_services():
                    break
            try:
                self._instant(jobs, now_ms)
            finally:  # an error comes after what happened before it
                if happened:
                    yield from happened
                    last_ms = now_ms
                    in_vain = 0
                    happened.clear()
                else:
                    in_vain += 1
            if in_vain > IN_VAIN:
                if not self._will_go_on():
                    raise SimulationError(
                        f"since {IN_VAIN:,} instants nothing happens, at {now_ms} ms: the policy asks to be woken, or"
                        " the interference model to be asked again, for ever"
                    )
                in_vain = 0
        if self.scheduler.fault is not None:
            raise self.scheduler.fault
        for job in [*self.queue, *(job for job, _ in self.held.values())]:
            yield Event(
                last_ms, REJECT, job, self.scheduler.attempt(job.id), (), job.share, Reason.LEFT_WAITING
            )

    def _will_go_on(self) -> bool:
        """Whether a job is still to come or to end, or nodes to come back, however many instants pass until then."""
        return self.more_jobs or bool(self.ends) or any(kind in (BACK, OPEN) for _, kind, _, _ in self.heap)

    def _only_services(self) -> bool:
        """Whether no job is to come, to end or to leave, so that services would be looked at again for ever."""
        if self.more_jobs or any(work_of(run.job) < FOREVER_MS for run in self.truth.values()):
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

    def _instant(self, jobs: Iterator[Job], now_ms: int) -> None:
        """Everything that happens at one instant, in its order; its events are in `happened` then."""
        heap, happened = self.heap, self.happened
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
        while self.arrival_ms == now_ms and (job := self.arrival) is not None:
            happened.append(new(Event, (now_ms, SUBMIT, job, 1, (), job.share, NO_REASON, False)))
            if not job.after or self._has_all_before(job, now_ms):
                try:
                    fits = self.scheduler.submit(job)
                except SchedulerError as error:
                    raise SimulationError(str(error)) from error
                if fits and (self.memory is None or self._has_memory_for(job, self.memory)):
                    if job.patience_ms is not None:
                        self._watch_patience(job, job.patience_ms, now_ms)
                    decide = True
                else:
                    self.scheduler.withdraw(job.id, now_ms)
                    self._reject(job, 1, Reason.NEVER_FITS, now_ms)
            self._next_arrival(jobs, now_ms)
        if decide and (len(self.queue) or (self.resizes and self.cluster.running)):
            self._decide(now_ms)
        if self.sharing is not None and self.sharing.changed:
            self._retime(self.sharing, now_ms)
        while heap and heap[0][0] == now_ms and heap[0][1] == LEAVE:
            _, _, serial, job = heappop(heap)
            if self.leaves.get(job.id) == serial:
                del self.leaves[job.id]
                self._leave(job, now_ms)
        if self.now_or_never and not (heap and heap[0][0] == now_ms):
            for job in self.now_or_never:
                if self.scheduler.waits(job.id):
                    self._leave(job, now_ms)
            self.now_or_never.clear()

    # What happens

    def _has_memory_for(self, job: Job, memory: KnowsMemory) -> bool:
        """Whether some GPU that the job may run on has the memory that it uses alone, to its end."""
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

    def _decide(self, now_ms: int) -> None:
        """Ask the scheduler; a decision that cannot be applied ends the run."""
        start = self._start
        for decision in self.scheduler.decide(now_ms):
            if isinstance(decision, Placement):
                start(decision, now_ms)
            elif isinstance(decision, Evicted):
                self._evicted(self._left_its_gpus(decision.run, now_ms), now_ms)
            elif isinstance(decision, WakeAt):
                self._push(decision.time_ms, WAKE, None)
            elif isinstance(decision, Refused):
                raise PolicyError(decision.why)

    def _start(self, placement: Placement, now_ms: int) -> None:
        job, slots, share, shared, _ = placement
        job_id = job.id
        run = self.cluster.running[job_id]
        if self.leaves:
            self.leaves.pop(job_id, None)
        if self.copies:
            work_us = work_of(job) * 1000
            run = self.copied[job_id] = run.with_work(work_us)
        if self.left_ms and (left_ms := self.left_ms.get(job_id)) is not None:
            restart_ms = 0 if work_of(job) >= FOREVER_MS else self.recovery.restart_ms
            run.left_us = (left_ms + restart_ms) * 1000
        if (job.elastic or self.speeds) and (milli := self.speeds.on(job, slots, self.cluster.nodes)) != 1000:
            run.work_us, run.left_us = card_us(run.work_us, milli), card_us(run.left_us, milli)
        self.idle_outages = 0
        if self.sharing is None or job.gpus == 0:
            self._schedule_end(run, now_ms)
        else:
            self.sharing.change(slots)
        self.happened.append(new(Event, (now_ms, START, job, run.attempt, slots, share, NO_REASON, shared)))

    def _end(self, run: Running, now_ms: int) -> None:
        """A run reaches the end of its work or of its time limit."""
        in_time = run.left_us_at(now_ms) <= 0
        self.scheduler.ended(run.job.id, COMPLETED if in_time else TIMEOUT, now_ms)
        self._left_its_gpus(run, now_ms)
        if self.left_ms:
            self.left_ms.pop(run.job.id, None)
        if in_time:
            finish = (now_ms, FINISH, run.job, run.attempt, run.slots, run.share, NO_REASON, run.shared)
            self.happened.append(new(Event, finish))
            if self.held_by:
                self._release(run.job.id, now_ms)
        else:
            self._failed(run, Reason.TIME_LIMIT, now_ms)
            self._never_finishes(run.job.id, now_ms)

    def _lose(self, outage: Outage, now_ms: int) -> None:
        node, drained = outage.node, outage.drain_ms > 0
        if not drained:
            self.down[node] += 1
        for lost in self.scheduler.node_lost(self.cluster.nodes[node].name, now_ms):
            run = self._left_its_gpus(lost, now_ms)
            if drained:
                self._evicted(run, now_ms)
            elif self._is_given_up(run):
                self.scheduler.withdraw(run.job.id, now_ms)
                self.left_ms.pop(run.job.id, None)
                self._failed(run, Reason.LOST_TOO_OFTEN, now_ms)
                self._never_finishes(run.job.id, now_ms)
            else:
                self._failed(run, Reason.NODE_LOST, now_ms)
                self._queued_again(run, now_ms)

    def _is_given_up(self, run: Running) -> bool:
        """Whether too many attempts of a job in a row were lost with their nodes and kept nothing."""
        job = run.job
        if self._left_ms_of(run) < self.left_ms.get(job.id, work_of(job)):
            self.lost_in_vain.pop(job.id, None)
            return False
        lost = self.lost_in_vain[job.id] = self.lost_in_vain.get(job.id, 0) + 1
        return lost >= self.recovery.most_lost

    def _bring_back(self, node: int) -> None:
        self.down[node] -= 1
        if not self.down[node]:
            self.scheduler.node_back(self.cluster.nodes[node].name)

    def _reserve(self, reservation: Reservation, users: tuple[str, ...], now_ms: int) -> None:
        """Keep nodes for these users from now on, or for anybody."""
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

    def _evicted(self, run: Running, now_ms: int) -> None:
        self.happened.append(
            Event(now_ms, EVICT, run.job, run.attempt, run.slots, run.share, NO_REASON, run.shared)
        )
        self._queued_again(run, now_ms)

    def _failed(self, run: Running, reason: Reason, now_ms: int) -> None:
        self.happened.append(
            Event(now_ms, FAIL, run.job, run.attempt, run.slots, run.share, reason, run.shared)
        )

    def _queued_again(self, run: Running, now_ms: int) -> None:
        """A job that was taken off its GPUs waits again: note what is left of its work."""
        job = run.job
        self.left_ms[job.id] = self._left_ms_of(run)
        if job.patience_ms is not None:
            self._watch_patience(job, job.patience_ms, now_ms)
        submit = Event(now_ms, SUBMIT, job, run.attempt + 1, (), job.share, NO_REASON)
        self.happened.append(submit)

    def _left_ms_of(self, run: Running) -> int:
        """The work that is left of a job that was taken off its GPUs, with what it keeps."""
        job = run.job
        work_ms = work_of(job)
        if not job.keeps_work or work_ms >= FOREVER_MS:
            return work_ms
        before_ms = self.left_ms.get(job.id, work_ms)
        left_ms = run.left_ms
        if job.elastic or self.speeds:  # the run counts in time on its cards
            left_ms = -(-left_ms * self.speeds.on(job, run.slots, self.cluster.nodes) // 1000)
        done_ms = work_ms - min(left_ms, before_ms)  # one that was still loading has done nothing
        return work_ms - self.recovery.kept_ms(done_ms)

    def _retime(self, sharing: Sharing, now_ms: int) -> None:
        """Look at the GPUs whose tenants have changed, and move the ends of what runs there accordingly."""
        going, failed = sharing.look(now_ms, self._call_again)
        for run in going:
            self._schedule_end(run, now_ms)
        for run in failed:
            held_mib = self._held_mib(run) if self.copies else 0
            self.scheduler.ended(run.job.id, OUT_OF_MEMORY, now_ms, held_mib=held_mib)
            self._left_its_gpus(run, now_ms)
            self._failed(run, Reason.OUT_OF_MEMORY, now_ms)
            if self.scheduler.waits(run.job.id):
                self._queued_again(run, now_ms)
            else:
                self.left_ms.pop(run.job.id, None)
                self._never_finishes(run.job.id, now_ms)
            self._push(now_ms, WAKE, None)

    def _call_again(self, time_ms: int, slot: GpuSlot) -> int:
        return self._push(time_ms, RETIME, slot)

    # The heap and the queue

    def _push(self, time_ms: int, kind: int, what: object) -> int:
        self.serial += 1
        heappush(self.heap, (time_ms, kind, self.serial, what))
        return self.serial

    def _next_arrival(self, jobs: Iterator[Job], now_ms: int) -> None:
        job = self.arrival = next(jobs, None)
        if job is None:
            self.arrival_ms = NO_ARRIVAL_MS
            self.more_jobs = False
            return
        submit_ms = self.arrival_ms = job.submit_ms
        if not isinstance(submit_ms, int) or submit_ms < now_ms:
            if not isinstance(submit_ms, int) or submit_ms < 0:
                raise SimulationError(
                    f"job '{job.id}' was submitted at {submit_ms} ms; expected a whole number, 0 or more"
                )
            raise SimulationError(
                f"job '{job.id}' was submitted at {submit_ms} ms, before the one that stands before it"
                f" ({now_ms} ms); give the jobs in order of submission"
            )
        known = self.known
        if job.id in known:
            raise SimulationError(f"two jobs have the id '{job.id}'; give each its own")
        if not isinstance(job.work_ms, int) or job.work_ms < 0:
            raise SimulationError(
                f"job '{job.id}' has {job.work_ms} ms of work; a simulation needs a whole number, 0 or more"
            )
        known.add(job.id)

    def _schedule_end(self, run: Running, now_ms: int) -> None:
        """Note when it ends by its work or its time limit, if its speed stays as it is."""
        end_ms = run.end_ms()
        limit_ms = run.job.time_limit_ms
        if limit_ms is not None:
            end_ms = min(end_ms, max(now_ms, run.start_ms + limit_ms))
        ends, job_id = self.ends, run.job.id
        if (noted := ends.get(job_id)) is not None:
            if noted[0] == end_ms:
                return
            del ends[job_id]
        if end_ms < FOREVER_MS:
            self.serial = serial = self.serial + 1
            ends[job_id] = entry = (end_ms, END, serial, run)
            heappush(self.heap, entry)

    def _next_outage(self) -> None:
        """Draw the next outage, while jobs are to come, run, or wait with a chance to start."""
        self.idle_outages += 1
        if not (self.more_jobs or self.cluster.running or len(self.queue)):
            return
        if self.idle_outages > 100 * len(self.cluster.nodes) and not (self.more_jobs or self.cluster.running):
            return  # nothing serves those that wait
        outage = next(self.outages, None)
        if outage is not None:
            self._schedule_outage(outage)

    def _schedule_outage(self, outage: Outage) -> None:
        nodes = len(self.cluster.nodes)
        if not 0 <= outage.node < nodes:
            raise SimulationError(f"an outage names node {outage.node}; the cluster has nodes 0…{nodes - 1}")
        if outage.down_ms < 0:
            raise SimulationError(
                f"an outage of node {outage.node} begins at {outage.down_ms} ms; expected 0 or more"
            )
        if outage.up_ms is not None and outage.up_ms <= outage.down_ms:
            raise SimulationError(
                f"an outage of node {outage.node} ends at {outage.up_ms} ms, before {outage.down_ms}"
            )
        if not 0 <= outage.drain_ms <= outage.down_ms:
            raise SimulationError(
                f"an outage of node {outage.node} at {outage.down_ms} ms is announced {outage.drain_ms} ms before;"
                " expected 0 or more, and not before time 0"
            )
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
        attempt = self.scheduler.attempt(job.id)
        self.scheduler.withdraw(job.id, now_ms)
        self.left_ms.pop(job.id, None)
        self._reject(job, attempt, Reason.PATIENCE, now_ms)

    def _reject(self, job: Job, attempt: int, reason: Reason, now_ms: int) -> None:
        self.happened.append(Event(now_ms, REJECT, job, attempt, (), job.share, reason))
        self._never_finishes(job.id, now_ms)

    # Jobs that wait for others

    def _has_all_before(self, job: Job, now_ms: int) -> bool:
        """Whether all jobs that a job comes after have finished; holds it if they may, and rejects it if not."""
        missing: set[str] = set()
        for name in job.after:
            if name == job.id or name not in self.known:
                raise SimulationError(
                    f"job '{job.id}' comes after job '{name}', which was not submitted before it; a job can wait for"
                    " earlier ones alone, so that none waits for itself in a circle"
                )
            if name in self.never:
                self._reject(job, 1, Reason.DEPENDENCY, now_ms)
                return False
            if name in self.held or self.scheduler.waits(name) or name in self.cluster.running:
                missing.add(name)
        if missing:
            self.held[job.id] = job, missing
            for name in missing:
                self.held_by.setdefault(name, []).append(job.id)
        return not missing

    def _release(self, finished: str, now_ms: int) -> None:
        """Queue the jobs that waited for this one alone."""
        for name in self.held_by.pop(finished, ()):
            job, missing = self.held.get(name, (None, set()))
            missing.discard(finished)
            if job is None or missing:
                continue
            del self.held[name]
            try:
                fits = self.scheduler.submit(job)
            except SchedulerError as error:
                raise SimulationError(str(error)) from error
            if not fits or not (self.memory is None or self._has_memory_for(job, self.memory)):
                self.scheduler.withdraw(name, now_ms)
                self._reject(job, 1, Reason.NEVER_FITS, now_ms)
            elif job.patience_ms is not None:
                self._watch_patience(job, job.patience_ms, now_ms)

    def _never_finishes(self, job_id: str, now_ms: int) -> None:
        """A job has ended for good without finishing: those that come after it are rejected."""
        self.never.add(job_id)
        for name in self.held_by.pop(job_id, ()):
            job, _ = self.held.pop(name, (None, set()))
            if job is not None:
                self._reject(job, 1, Reason.DEPENDENCY, now_ms)

    def _left_its_gpus(self, run: Running, now_ms: int) -> Running:
        """A run was released: its end is no more, and those that shared its GPUs are looked at again.

        Takes the cluster's value or the true one, and returns the true one as it is now.
        """
        job = run.job
        if self.copies:
            run = self.copied.pop(job.id)
            run.advance(now_ms, run.speed_milli)
        self.ends.pop(job.id, None)
        if self.sharing is not None and job.gpus:
            self.sharing.change(run.slots)
        return run

    def _held_mib(self, run: Running) -> int:
        """The GPU memory that a run uses now, as far as the model of interference knows."""
        if self.memory is None:
            return 0
        return self.memory.used_mib(tenant_of(run), self.cluster.nodes[run.slots[0].node].gpu_model)

    def _true_runs_on(self, slot: GpuSlot) -> tuple[Running, ...]:
        """The jobs that run on a GPU, in order of their start, as it is true of them."""
        return tuple(self.truth[run.job.id] for run in self.cluster.jobs_on(slot))
