"""The event loop: jobs, a cluster and a policy in, events out.

There is one `simulate`; every experiment, command and replay goes through it. At one instant, in this order:
jobs end, nodes are lost, nodes come back, jobs arrive, the policy decides, impatient jobs leave. What is left
in a tie is settled by the order in which things were scheduled, so that the same input gives the same events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

from berth.cluster import Cluster, Queue, Running
from berth.cluster.outages import Recovery
from berth.errors import BerthError, PlacementError, PolicyError, SimulationError
from berth.interference import Interference, no_interference
from berth.interference.sharing import Sharing, told
from berth.model import (
    FOREVER_MS,
    Event,
    EventKind,
    Evict,
    GpuModel,
    GpuSlot,
    Job,
    Outage,
    Placement,
    Reason,
    WakeAt,
)
from berth.policies import Policy, Setting, make_policy

__all__ = ["simulate"]

END, LOST, BACK, RETIME, WAKE, LEAVE = range(6)
"""What can be on the heap, in the order in which it happens at one instant; jobs arrive before LEAVE."""

SUBMIT, START, FINISH, FAIL, EVICT, REJECT = EventKind
NO_REASON = Reason.NONE
AS_THE_JOB_SAYS = Recovery()
_Entry = tuple[int, int, int, Any]
"""Of the heap: when, what happens, a serial number, and to whom."""
new = tuple.__new__
"""Makes an Event in half of the time that it takes itself, which is a function of Python: `new(Event, (…))`."""
NO_ARRIVAL_MS = 2**80
"""Later than anything."""
IN_VAIN = 1_000_000
"""After so many instants in which nothing happened nothing ever will."""
MEDDLED = "the policy has changed the cluster or the queue that it was shown; it may only yield"


def simulate(
    jobs: Iterable[Job],
    cluster: Cluster,
    policy: Policy | str,
    *,
    interference: Interference = no_interference,
    outages: Iterable[Outage] = (),
    recovery: Recovery = AS_THE_JOB_SAYS,
    seed: int = 0,
) -> Iterator[Event]:
    """Replay jobs on a cluster under a policy; yield what happens, in order of time.

    `jobs` come in order of submission and are read as time reaches them; `cluster` is left as it is, the run
    begins with its nodes empty. `policy` may be a name (`sjf+best-fit`): it is made with `seed`, and with
    `jobs` as its workload where they are a sequence. A job that could not start on the empty cluster is
    rejected at once, one whose patience ends when it ends, and one that is still waiting when nothing is left
    to happen is rejected then; every other job starts and ends once a try. `outages` may be an iterator without
    end, in order of time, such as `FailureRate.outages` gives; it is drawn from while there is something to do.
    `recovery` tells what a stopped job that keeps its work has left of it, and what a restart costs.

    Raises SimulationError for jobs out of order, a duplicate id or an outage of no node, PolicyError for a
    decision that cannot be applied.
    """
    if isinstance(policy, str):
        workload = jobs if isinstance(jobs, Sequence) else ()
        policy = make_policy(policy, Setting(seed, workload, interference=interference))
    return _Run(cluster.emptied(), policy, interference, outages, recovery).events(iter(jobs))


class _Again(NamedTuple):
    """What is known of a job that is queued again."""

    attempt: int
    """The number of the try that waits or runs."""
    left_ms: int
    """The work that was left when this try was queued."""
    out_of_memory: int
    """How many of its tries ran out of memory."""


class _Run:
    """One simulation under way."""

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        interference: Interference,
        outages: Iterable[Outage],
        recovery: Recovery,
    ) -> None:
        self.cluster = cluster
        self.policy = policy
        self.sharing = None if interference is no_interference else Sharing(cluster, interference)
        self.fits_alone: Callable[[Job, GpuModel | None], bool] | None = getattr(
            interference, "fits_alone", None
        )
        self.recovery = recovery
        self.queue = Queue()
        self.heap: list[_Entry] = []
        self.serial = 0
        self.leaves: dict[str, int] = {}  # waiting job -> serial of the entry at which its patience ends
        self.wakes: set[int] = set()
        self.again: dict[str, _Again] = {}
        self.down: list[int] = [0] * len(cluster.nodes)  # how many outages of each node are under way
        self.known: set[str] = set()
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
        for job in list(self.queue):
            yield Event(last_ms, REJECT, job, self._attempt(job), (), job.share, Reason.LEFT_WAITING)

    def _will_go_on(self) -> bool:
        """Whether somebody is to come or to end, however many instants pass until then."""
        return self.more_jobs or any(run.ends is not None for run in self.cluster.running.values())

    def _only_services(self) -> bool:
        """Whether nobody is to come, to end or to leave, so that services would be looked at again for ever."""
        if self.more_jobs or any(run.job.work_ms < FOREVER_MS for run in self.cluster.running.values()):
            return False
        return all(entry[1] == RETIME or self._is_dead(entry) for entry in self.heap)

    def _is_dead(self, entry: _Entry) -> bool:
        """Whether an entry of the heap has been overtaken: the job left, or its end has moved."""
        _, kind, serial, what = entry
        if kind == END:
            return what.ends is not entry
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
                if what.ends is entry:
                    self._end(what, now_ms)
                    decide = True
            elif self._is_dead(entry):
                continue
            elif kind == WAKE:
                self.wakes.discard(now_ms)
                decide = True
            elif kind == RETIME:
                if self.sharing is not None:
                    self.sharing.change((what,))
            elif kind == LOST:
                self._lose(what, now_ms)
                self._next_outage()
                decide = True
            else:
                self._bring_back(what)
                decide = True
        while self.arrival_ms == now_ms and (job := self.arrival) is not None:
            happened.append(new(Event, (now_ms, SUBMIT, job, 1, (), job.share, NO_REASON)))
            if self._fits_when_empty(job):
                self._enqueue(job, now_ms)
                decide = True
            else:
                happened.append(Event(now_ms, REJECT, job, 1, (), job.share, Reason.NEVER_FITS))
            self._next_arrival(jobs, now_ms)
        if decide and len(self.queue):
            self._decide(now_ms)
        if self.sharing is not None and self.sharing.changed:
            self._retime(self.sharing, now_ms)
        while heap and heap[0][0] == now_ms and heap[0][1] == LEAVE:
            entry = heappop(heap)
            if not self._is_dead(entry):
                job = entry[3]
                attempt = self._attempt(job)
                self._unqueue(job)
                self.again.pop(job.id, None)
                happened.append(Event(now_ms, REJECT, job, attempt, (), job.share, Reason.PATIENCE))

    # What happens

    def _fits_when_empty(self, job: Job) -> bool:
        """Whether the job could start at all, and its memory, where that is known, fits somewhere to the end."""
        try:
            fits = self.cluster.fits_when_empty(job)
        except PlacementError as error:
            raise SimulationError(f"a job makes no sense: {error}") from error
        fits_alone = self.fits_alone
        if not fits or fits_alone is None or not job.gpus:
            return fits
        kind = job.models, job.labels
        models = self.models_of.get(kind)
        if models is None:
            models = self.models_of[kind] = {
                node.gpu_model: None
                for number, node in enumerate(self.cluster.nodes)
                if node.gpus and self.cluster.allows(job, number)
            }
        return any(fits_alone(job, model) for model in models)

    def _decide(self, now_ms: int) -> None:
        """Ask the policy, applying each decision before the next is asked for."""
        cluster, queue = self.cluster, self.queue
        shown = cluster.changes + queue.changes  # both only ever grow
        try:
            for decision in self.policy(queue, cluster, now_ms):
                if cluster.changes + queue.changes != shown:
                    raise PolicyError(MEDDLED)
                if isinstance(decision, Placement):
                    self._start(decision, now_ms)
                elif isinstance(decision, Evict):
                    self._evict(decision.job, now_ms)
                elif isinstance(decision, WakeAt):
                    self._wake_at(decision.time_ms, now_ms)
                else:
                    raise PolicyError(f"a policy yields Placement, Evict or WakeAt, not {decision!r}")
                shown = cluster.changes + queue.changes
        except BerthError:
            raise
        except Exception as error:
            raise PolicyError(f"at {now_ms} ms the policy fails: {told(error)}") from error
        if cluster.changes + queue.changes != shown:
            raise PolicyError(MEDDLED)

    def _evict(self, job: Job, now_ms: int) -> None:
        if job.id not in self.cluster.running:
            raise PolicyError(f"at {now_ms} ms the policy evicts job '{job.id}', which is not running")
        run = self._take_off(job.id, now_ms)
        self.happened.append(Event(now_ms, EVICT, run.job, run.attempt, run.slots, run.share, NO_REASON))
        self._queue_again(run, now_ms)

    def _wake_at(self, time_ms: int, now_ms: int) -> None:
        if time_ms <= now_ms:
            raise PolicyError(f"at {now_ms} ms the policy asks to be woken at {time_ms} ms, not later")
        if time_ms not in self.wakes:
            self.wakes.add(time_ms)
            self._push(time_ms, WAKE, None)

    def _start(self, placement: Placement, now_ms: int) -> None:
        job = placement[0]
        if not self.queue.remove(job):
            raise PolicyError(f"at {now_ms} ms the policy starts job '{job.id}', which is not waiting")
        if job.patience_ms is not None:
            self.leaves.pop(job.id, None)
        work_ms, attempt = job.work_ms, 1
        if self.again and (again := self.again.get(job.id)) is not None:
            attempt = again.attempt
            work_ms = again.left_ms + (0 if job.work_ms >= FOREVER_MS else self.recovery.restart_ms)
        try:
            run = self.cluster.place(placement, now_ms=now_ms, work_ms=work_ms, attempt=attempt)
        except PlacementError as error:
            raise PolicyError(f"at {now_ms} ms the policy decides what cannot be: {error}") from error
        self.idle_outages = 0
        if self.sharing is None or job.gpus == 0:
            self._schedule_end(run, now_ms)
        else:
            self.sharing.change(run.slots)
        self.happened.append(new(Event, (now_ms, START, job, attempt, run.slots, run.share, NO_REASON)))

    def _end(self, run: Running, now_ms: int) -> None:
        """A run reaches the end of its work or of its time limit."""
        self._take_off(run.job.id, now_ms)
        if self.again:
            self.again.pop(run.job.id, None)
        if run.left_us > 0:
            self._failed(run, Reason.TIME_LIMIT, now_ms)
        else:
            finish = new(Event, (now_ms, FINISH, run.job, run.attempt, run.slots, run.share, NO_REASON))
            self.happened.append(finish)

    def _lose(self, node: int, now_ms: int) -> None:
        self.down[node] += 1
        if self.down[node] > 1:
            return
        self.cluster.lose(node)
        running = self.cluster.running.values()
        for run in [run for run in running if any(part.node == node for part in run.parts)]:
            self._take_off(run.job.id, now_ms)
            self._failed(run, Reason.NODE_LOST, now_ms)
            self._queue_again(run, now_ms)

    def _bring_back(self, node: int) -> None:
        self.down[node] -= 1
        if not self.down[node]:
            self.cluster.restore(node)

    def _failed(self, run: Running, reason: Reason, now_ms: int) -> None:
        self.happened.append(Event(now_ms, FAIL, run.job, run.attempt, run.slots, run.share, reason))

    def _queue_again(self, run: Running, now_ms: int, *, out_of_memory: int = 0) -> None:
        """Queue again a job that was taken off its GPUs."""
        job = run.job
        before = self.again.get(job.id) or _Again(1, job.work_ms, 0)
        left_ms = job.work_ms
        if job.keeps_work and job.work_ms < FOREVER_MS:
            done_ms = job.work_ms - min(run.left_ms, before.left_ms)  # who was still loading has done nothing
            left_ms -= self.recovery.kept_ms(done_ms)
        self.again[job.id] = _Again(run.attempt + 1, left_ms, before.out_of_memory + out_of_memory)
        self._enqueue(job, now_ms)
        self.happened.append(Event(now_ms, SUBMIT, job, run.attempt + 1, (), job.share, NO_REASON))

    def _retime(self, sharing: Sharing, now_ms: int) -> None:
        """Look at the GPUs whose tenants have changed, and move the ends of who runs there accordingly."""
        going, failed = sharing.look(now_ms, self._call_again)
        for run in going:
            self._schedule_end(run, now_ms)
        for run in failed:
            self._take_off(run.job.id, now_ms)
            self._failed(run, Reason.OUT_OF_MEMORY, now_ms)
            before = self.again.get(run.job.id)
            if (before.out_of_memory if before else 0) < run.job.retries:
                self._queue_again(run, now_ms, out_of_memory=1)
            else:
                self.again.pop(run.job.id, None)
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
                f"job '{job.id}' has {job.work_ms} ms of work; expected a whole number, 0 or more"
            )
        known.add(job.id)

    def _schedule_end(self, run: Running, now_ms: int) -> None:
        """Note when it ends by its work or its time limit, if its speed stays as it is."""
        end_ms = run.end_ms()
        limit_ms = run.job.time_limit_ms
        if limit_ms is not None:
            end_ms = min(end_ms, max(now_ms, run.start_ms + limit_ms))
        if run.ends is not None and run.ends[0] == end_ms:
            return
        run.ends = None
        if end_ms < FOREVER_MS:
            self.serial = serial = self.serial + 1
            run.ends = entry = (end_ms, END, serial, run)
            heappush(self.heap, entry)

    def _next_outage(self) -> None:
        """Draw the next outage, while jobs are to come, run, or wait with a chance to start."""
        self.idle_outages += 1
        if not (self.more_jobs or self.cluster.running or len(self.queue)):
            return
        if self.idle_outages > 100 * len(self.cluster.nodes) and not (self.more_jobs or self.cluster.running):
            return  # nobody serves those that wait
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
        self._push(outage.down_ms, LOST, outage.node)
        if outage.up_ms is not None:
            self._push(outage.up_ms, BACK, outage.node)

    def _attempt(self, job: Job) -> int:
        again = self.again.get(job.id)
        return 1 if again is None else again.attempt

    def _enqueue(self, job: Job, now_ms: int) -> None:
        self.queue.add(job)
        if job.patience_ms is not None:
            self.leaves[job.id] = self._push(now_ms + job.patience_ms, LEAVE, job)

    def _unqueue(self, job: Job) -> None:
        self.queue.remove(job)
        if job.patience_ms is not None:
            self.leaves.pop(job.id, None)

    def _take_off(self, job_id: str, now_ms: int) -> Running:
        """Release a running job; those that shared its GPUs are looked at again."""
        run = self.cluster.release(job_id, now_ms=now_ms)
        run.ends = None
        if self.sharing is not None and run.job.gpus:
            self.sharing.change(run.slots)
        return run
