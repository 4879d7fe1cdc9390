"""The scheduler: a queue, a cluster and a policy, kept together whoever drives them; it knows no clock.

The simulator (`berth.engine`) and the live drivers are its callers. They tell it what happens and when, and ask it to
`decide`. What is on the cluster is what was decided; whether a process exists is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from berth.cluster import Cluster, Queue, Running
from berth.errors import BerthError, ClusterError, PlacementError, PolicyError, SchedulerError, in_one_line
from berth.interference.profiled import ProfiledInterference
from berth.interference.sharing import Sharing
from berth.knowledge import Knowledge, LearnsWork, Oracle
from berth.model import (
    FOREVER_MS,
    WHOLE_GPU,
    Evict,
    GpuSlot,
    Job,
    Node,
    Placement,
    Record,
    RecordState,
    WakeAt,
)
from berth.policies import Decision, Policy

__all__ = ["Evicted", "Outcome", "Refused", "Scheduler"]

LONGEST_MS = 1 << 50
"""A believed run time beyond this, some 35,000 years, counts as none."""
MEDDLED = "the policy has changed the cluster or the queue that it was shown; it may only yield"


class Evicted(NamedTuple):
    """A running job was stopped, and is queued again."""

    run: Running


class Refused(NamedTuple):
    """A decision that cannot be applied; nothing has changed."""

    decision: object
    why: str


Outcome = Placement | Evicted | WakeAt | Refused


class Attempts(NamedTuple):
    """What is known of a job that was queued again."""

    number: int
    """Of the attempt that waits or runs."""
    out_of_memory: int
    """How many attempts ran out of memory."""
    left_ms: int | None
    """Work believed to be left; None: all of it."""
    queued_ms: int | None = None
    """When the attempt was queued; None: when the job was submitted."""


FIRST = Attempts(1, 0, None)


class Scheduler:
    """Owns the queue, the cluster, the policy, the numbers of attempts and the times at which to ask again.

    Every method raises SchedulerError for a job or node that it cannot be about, and has changed nothing then.
    """

    def __init__(self, cluster: Cluster, policy: Policy, knowledge: Knowledge | None = None) -> None:
        """`cluster` is written to from now on; `knowledge` is told what happens, and says what runs are believed to
        have left of their work. Without one nothing is believed of live jobs."""
        self.cluster = cluster
        self.queue = Queue()
        self.policy = policy
        self.knowledge: Knowledge = Oracle() if knowledge is None else knowledge
        self.attempts: dict[str, Attempts] = {}
        """Of jobs that were queued more than once."""
        self._certain = self.knowledge.certain
        self._learns = self.knowledge.learns
        self._wakes: list[int] = []  # a heap
        self._waking: set[int] = set()
        self._confirmed: set[str] = set()
        self._beliefs: _Beliefs | None = None
        if not self._certain:
            self._beliefs = _Beliefs(cluster, self.knowledge)

    # What jobs do

    def submit(self, job: Job) -> None:
        """Queue a job behind all others."""
        self._check(job)
        if job.id in self.cluster.running or not self.queue.add(job):
            raise SchedulerError(f"job '{job.id}' waits or runs already; give each job an id of its own")

    def withdraw(self, job_id: str, now_ms: int) -> Job | Running:
        """Take out a job that waits (returns the job) or runs (returns the run, which is released)."""
        run = self.cluster.running.get(job_id)
        if run is not None:
            self._release(job_id, now_ms)
            self._forget(job_id)
            self._tell(run, RecordState.CANCELLED, now_ms)
            return run
        job = self.queue.named(job_id)
        if job is None:
            raise SchedulerError(f"job '{job_id}' cannot be withdrawn: it neither waits nor runs")
        self.queue.remove(job)
        self._forget(job_id)
        return job

    def replace(self, job: Job) -> bool:
        """Exchange a waiting job for one of the same id with another priority, limit or size, in the same place of the
        queue; of a running job, whose size stays, the same. Returns whether it could start if nothing else ran."""
        run = self.cluster.running.get(job.id)
        if run is not None:
            if self._size(run.job) != self._size(job):
                raise SchedulerError(
                    f"job '{job.id}' runs: its user, GPUs, CPU and memory stay as they are; withdraw it,"
                    " and submit it anew"
                )
            run.job = job
            self.cluster.reopen()  # what was expected of it may not hold any more
            return True
        if self.queue.named(job.id) is None:
            raise SchedulerError(f"job '{job.id}' cannot be replaced: it neither waits nor runs")
        self._check(job)
        self.queue.replace(job)
        return self.cluster.fits_when_empty(job)

    def started(self, job_id: str) -> None:
        """The job's processes exist: from now on it ends, and does not fail to start."""
        if job_id not in self.cluster.running:
            raise SchedulerError(f"job '{job_id}' cannot have started: it was given no GPU")
        self._confirmed.add(job_id)

    def failed_to_start(self, job_id: str, now_ms: int, *, again: bool = True) -> Running:
        """What was decided could not be carried out: give back what the job was given, and queue it again.

        It may be decided on again at once: tell it after `decide` has ended, and wait before the next one.
        """
        if job_id in self._confirmed:
            raise SchedulerError(f"job '{job_id}' has started already; tell how it ended")
        run = self._running(job_id, "fail to start")
        self._release(job_id, now_ms)
        if again:
            self._queue_again(run, now_ms, left_ms=self._left_of(run))
        else:
            self._forget(job_id)
        return run

    def ended(self, job_id: str, how: RecordState, now_ms: int, *, held_mib: int = 0) -> Running:
        """A running job has ended; one that ran out of memory, having held `held_mib`, is queued again while it has
        retries left. Returns the run; whether it waits again tells `waits`."""
        run = self._running(job_id, "end")
        self._release(job_id, now_ms)
        before = self.attempts.get(job_id, FIRST)
        if how is RecordState.OUT_OF_MEMORY and before.out_of_memory < run.job.retries:
            self._queue_again(run, now_ms, left_ms=self._kept_of(run), memory=True)
        else:
            self._forget(job_id)
        if self._learns:
            self._tell(run, how, now_ms, held_mib, queued_ms=before.queued_ms)
        return run

    def attempt(self, job_id: str) -> int:
        """The number of the attempt of a job that waits or runs, from 1."""
        known = self.attempts.get(job_id)
        return 1 if known is None else known.number

    def waits(self, job_id: str) -> bool:
        """Whether a job of this id waits."""
        return self.queue.holds(job_id)

    # What nodes do

    def node_lost(self, name: str, now_ms: int) -> list[Running]:
        """A node is lost: what ran there is released and queued again. Returns those runs."""
        row = self._row(name)
        self.cluster.lose(row)
        return self._clear({row}, now_ms)

    def node_back(self, name: str) -> None:
        """A lost node is back."""
        self.cluster.restore(self._row(name))

    def nodes_changed(self, nodes: Sequence[Node], now_ms: int) -> list[Running]:
        """The cluster has these nodes from now on: some are new, some are gone, some have changed.

        What ran on a node that is gone is released and queued again. Returns those runs.
        """
        nodes = tuple(nodes)
        there = {node.name for node in nodes}
        gone = {row for name, row in self.cluster.names.items() if name not in there}
        try:
            self.cluster.nodes_changed(nodes)
        except ClusterError as error:
            raise SchedulerError(f"the nodes cannot become that: {error}") from error
        return self._clear(gone, now_ms) if gone else []

    def strangers(self, slot: GpuSlot, milli: int, mem_mib: int) -> None:
        """Processes that are not the scheduler's use so much of a GPU from now on."""
        try:
            self.cluster.strangers(slot, milli, mem_mib)
        except PlacementError as error:
            raise SchedulerError(f"strangers cannot be noted: {error}") from error

    # What is decided

    def decide(self, now_ms: int, *, out_of_time: Callable[[], bool] | None = None) -> Iterator[Outcome]:
        """Ask the policy; apply each decision as it is yielded, and hand it out.

        A decision that cannot be applied comes back as `Refused`, and nothing has changed; stop iterating to take no
        more. Raises PolicyError if the policy raises (an error of berth's own passes as it is), writes to what it is
        shown, yields what is no decision, or `out_of_time()` says so; what was handed out until then is applied.
        """
        wakes = self._wakes
        while wakes and wakes[0] <= now_ms:
            self._waking.discard(heappop(wakes))
        cluster, queue = self.cluster, self.queue
        if self._beliefs is not None:
            self._beliefs.catch_up(now_ms)
        shown = cluster.changes + queue.changes  # both only ever grow
        try:
            for decision in self.policy(queue, cluster, now_ms):
                if cluster.changes + queue.changes != shown:
                    raise PolicyError(MEDDLED)
                if isinstance(decision, Placement):
                    refused = self._place(decision, now_ms)
                    yield decision if refused is None else refused
                else:
                    outcome = self._other(decision, now_ms)
                    if outcome is not None:
                        yield outcome
                shown = cluster.changes + queue.changes
                if out_of_time is not None and out_of_time():
                    raise PolicyError(
                        f"at {now_ms} ms the policy has not ended its decisions within its time"
                    )
        except BerthError:
            raise
        except Exception as error:
            raise PolicyError(f"at {now_ms} ms the policy fails: {in_one_line(error)}") from error
        if cluster.changes + queue.changes != shown:
            raise PolicyError(MEDDLED)

    @property
    def next_wake_ms(self) -> int | None:
        """When the policy wants to be asked again whatever happens; None: not before something does."""
        return self._wakes[0] if self._wakes else None

    def _place(self, placement: Placement, now_ms: int) -> Refused | None:
        job = placement[0]
        if self.queue.named(job.id) is not job:
            return Refused(
                placement, f"at {now_ms} ms the policy starts job '{job.id}', which is not waiting"
            )
        attempt, work_ms, left_ms = 1, None, None
        if self.attempts and (again := self.attempts.get(job.id)) is not None:
            attempt, left_ms = again.number, again.left_ms
        if not self._certain:
            work_ms = self._believed_ms(job)
        try:
            run = self.cluster.place(
                placement, now_ms=now_ms, work_ms=work_ms, left_ms=left_ms, attempt=attempt
            )
        except PlacementError as error:
            return Refused(placement, f"at {now_ms} ms the policy decides what cannot be: {error}")
        self.queue.remove(job)
        if self._beliefs is not None:
            self._beliefs.change(run, now_ms)
        return None

    def _other(self, decision: Decision, now_ms: int) -> Outcome | None:
        """Apply what is no placement; None where it was known already."""
        if isinstance(decision, WakeAt):
            time_ms = decision.time_ms
            if time_ms <= now_ms:
                return Refused(
                    decision, f"at {now_ms} ms the policy asks to be woken at {time_ms} ms, not later"
                )
            if time_ms in self._waking:
                return None
            self._waking.add(time_ms)
            heappush(self._wakes, time_ms)
            return decision
        if isinstance(decision, Evict):
            job_id = decision.job.id
            if job_id not in self.cluster.running:
                return Refused(
                    decision, f"at {now_ms} ms the policy evicts job '{job_id}', which is not running"
                )
            run = self._release(job_id, now_ms)
            before = self._queue_again(run, now_ms, left_ms=self._kept_of(run))
            self._tell(run, RecordState.PREEMPTED, now_ms, queued_ms=before.queued_ms)
            return Evicted(run)
        raise PolicyError(f"a policy yields Placement, Evict or WakeAt, not {decision!r}")

    # How

    def _running(self, job_id: str, what: str) -> Running:
        run = self.cluster.running.get(job_id)
        if run is None:
            raise SchedulerError(f"job '{job_id}' cannot {what}: it is not running")
        return run

    def _release(self, job_id: str, now_ms: int) -> Running:
        if self._beliefs is not None:
            self._beliefs.advance(now_ms)
        run = self.cluster.release(job_id, now_ms=now_ms)
        if self._confirmed:
            self._confirmed.discard(job_id)
        if self._beliefs is not None:
            self._beliefs.change(run, now_ms)
        return run

    def _queue_again(
        self, run: Running, now_ms: int, *, left_ms: int | None, memory: bool = False
    ) -> Attempts:
        """Queue a run's job again; returns what was known of the attempt that has ended."""
        job = run.job
        before = self.attempts.get(job.id, FIRST)
        self.attempts[job.id] = Attempts(run.attempt + 1, before.out_of_memory + memory, left_ms, now_ms)
        self.queue.add(job)
        return before

    def _forget(self, job_id: str) -> None:
        if self.attempts:
            self.attempts.pop(job_id, None)
        self.cluster.forget(job_id)

    def _kept_of(self, run: Running) -> int | None:
        """Work believed to be left of a job that was stopped; None: all of it, or what the simulator knows better."""
        if self._certain or not run.job.keeps_work:
            return None
        return max(0, -(-run.left_us // 1000)) if run.work_us < FOREVER_MS * 1000 else None

    def _left_of(self, run: Running) -> int | None:
        """Work left of a job that has done nothing."""
        before = self.attempts.get(run.job.id)
        return None if before is None else before.left_ms

    def _believed_ms(self, job: Job) -> int:
        """The work that a job is believed to have, ms; FOREVER_MS where nothing that makes sense is known."""
        spread = self.knowledge.run_ms(job)
        if spread is None or not 0 < spread.expected < LONGEST_MS:
            return FOREVER_MS
        return int(spread.expected)

    def _check(self, job: Job) -> None:
        try:
            self.cluster.request(job)
        except PlacementError as error:
            raise SchedulerError(f"a job makes no sense: {error}") from error

    def _tell(
        self,
        run: Running,
        how: RecordState,
        now_ms: int,
        held_mib: int = 0,
        *,
        queued_ms: int | None = None,
    ) -> None:
        """Tell the knowledge how an attempt ended, if it wants to know."""
        if not self._learns:
            return
        if how is RecordState.OUT_OF_MEMORY:
            self.knowledge.ran_out_of_memory(run.job, held_mib)
        if how is RecordState.COMPLETED and isinstance(self.knowledge, LearnsWork):
            work_ms = max(1, (run.work_us - run.left_us_at(now_ms)) // 1000)
            alone = not run.best_effort and (run.job.gpus > 1 or run.share.milli == WHOLE_GPU.milli)
            self.knowledge.worked(run.job, work_ms, alone=alone)
        job, model = run.job, self.cluster.nodes[run.slots[0].node].gpu_model
        self.knowledge.observe(
            Record(
                job_id=job.id, attempt=run.attempt, user=job.user, application=job.application,
                virtual_cluster=job.virtual_cluster, submit_ms=job.submit_ms,
                queued_ms=job.submit_ms if queued_ms is None else queued_ms,
                start_ms=run.start_ms, end_ms=now_ms, state=how, gpus=job.gpus, share=run.share,
                cpu_milli=job.cpu_milli, mem_mib=job.mem_mib,
                nodes=tuple(dict.fromkeys(self.cluster.nodes[slot.node].name for slot in run.slots)),
                gpu_model=model.name if model and job.gpus else "", work_ms=None,
                time_limit_ms=job.time_limit_ms,
            )
        )  # fmt: skip
        if self._beliefs is not None:
            self._beliefs.refresh()

    def _clear(self, rows: Set[int], now_ms: int) -> list[Running]:
        """Release and queue again what runs on these nodes."""
        there = [run for run in self.cluster.running.values() if any(slot[0] in rows for slot in run.slots)]
        for run in there:
            self._release(run.job.id, now_ms)
            before = self._queue_again(run, now_ms, left_ms=self._kept_of(run))
            self._tell(run, RecordState.NODE_FAIL, now_ms, queued_ms=before.queued_ms)
        return there

    def _row(self, name: str) -> int:
        row = self.cluster.row_of(name)
        if row is None:
            names = list(self.cluster.names)
            raise SchedulerError(
                f"no node '{name}'; there are {', '.join(names[:5])}{', …' if len(names) > 5 else ''}"
            )
        return row

    @staticmethod
    def _size(job: Job) -> tuple[object, ...]:
        who = (job.user, job.virtual_cluster, job.application)
        return (*who, job.gpus, job.share, job.nodes, job.cpu_milli, job.mem_mib, job.models, job.labels)


class _Beliefs:
    """How far the runs are believed to be, where nobody knows: by believed profiles, speeds and run times."""

    def __init__(self, cluster: Cluster, knowledge: Knowledge) -> None:
        self._cluster = cluster
        self._knowledge = knowledge
        self._profiles = dict(knowledge.profiles)
        self._sharing = Sharing(cluster, ProfiledInterference(self._profiles, knowledge.speeds))
        self._changed_ms = 0
        """When tenants changed that have not been looked at since."""
        self._due: list[tuple[int, int, GpuSlot]] = []  # a heap: when an outlook ends to hold
        self._ends: list[tuple[int, int, Running]] = []  # a heap: when runs are believed to end
        self._serial = 0

    def change(self, run: Running, now_ms: int) -> None:
        """A run has come to its GPUs now, or has left them; `advance` was called before."""
        self._changed_ms = now_ms
        if run.job.gpus:
            self._sharing.change(run.slots)
        if self._cluster.running.get(run.job.id) is run:
            self._expect(run)

    def refresh(self) -> None:
        """Go by the profiles that are believed now, if they have changed."""
        profiles = self._knowledge.profiles
        if len(profiles) == len(self._profiles) and all(
            self._profiles.get(name) is profile for name, profile in profiles.items()
        ):
            return
        self._profiles = dict(profiles)
        self._sharing.model = ProfiledInterference(self._profiles, self._knowledge.speeds)

    def catch_up(self, now_ms: int) -> None:
        """Advance what is believed until now; runs that were believed to be over by now are expected anew."""
        self.advance(now_ms)
        while self._ends and self._ends[0][0] <= now_ms:
            _, _, run = heappop(self._ends)
            if self._cluster.running.get(run.job.id) is run:
                self._outlive(run, now_ms)

    def advance(self, now_ms: int) -> None:
        """Look at every GPU at the moment at which something changes there, in the order of time."""
        if self._sharing.changed:
            self._look(self._changed_ms)
        while self._due and (time_ms := self._due[0][0]) <= now_ms:
            while self._due and self._due[0][0] == time_ms:
                _, serial, slot = heappop(self._due)
                if self._sharing.is_current(slot, serial):
                    self._sharing.change((slot,))
            if self._sharing.changed:
                self._look(time_ms)

    def _look(self, now_ms: int) -> None:
        going, full = self._sharing.look(now_ms, self._call_again)
        for run in (*going, *full):  # a belief that memory runs out is no reason to stop anybody
            self._expect(run)

    def _call_again(self, time_ms: int, slot: GpuSlot) -> int:
        self._serial += 1
        heappush(self._due, (time_ms, self._serial, slot))
        return self._serial

    def _expect(self, run: Running) -> None:
        end_ms = run.end_ms()
        if end_ms < FOREVER_MS:
            self._serial += 1
            heappush(self._ends, (end_ms, self._serial, run))
            if len(self._ends) > 4 * len(self._cluster.running) + 64:
                self._drop_stale()

    def _drop_stale(self) -> None:
        """Keep the last entry of each run that still runs."""
        running = self._cluster.running
        last = {
            id(run): (end_ms, serial, run) for end_ms, serial, run in sorted(self._ends, key=lambda e: e[1])
        }
        self._ends = [entry for entry in last.values() if running.get(entry[2].job.id) is entry[2]]
        heapify(self._ends)

    def _outlive(self, run: Running, now_ms: int) -> None:
        """A run that was believed to be over by now is not: it is expected anew."""
        if run.left_us_at(now_ms) > 0:
            return  # it has been slowed since, and has a later entry
        run.advance(now_ms, run.speed_milli)
        done_us = run.work_us - run.left_us
        if self._knowledge.learns:
            self._knowledge.outlived(run.job, -(-done_us // 1000))
        spread = self._knowledge.run_ms(run.job)
        if spread is not None and done_us < spread.expected * 1000 < LONGEST_MS * 1000:
            run.work_us = int(spread.expected) * 1000
        else:  # nothing was learned from it
            run.work_us = done_us + max(done_us // 2, 1_000_000)
        run.left_us = run.work_us - done_us
        self._expect(run)
