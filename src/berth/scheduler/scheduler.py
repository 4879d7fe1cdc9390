"""The scheduler itself: it applies what happens and what the policy decides to the queue and to the cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import replace
from heapq import heappop, heappush
from typing import NamedTuple

from berth.card_speeds import ALL_ALIKE, CardSpeeds
from berth.cluster import Cluster, Queue, Running
from berth.errors import (
    BerthError,
    ClusterError,
    KnowledgeError,
    NotRunning,
    PlacementError,
    PolicyError,
    SchedulerError,
    in_one_line,
)
from berth.knowledge import Knowledge
from berth.model import (
    FOREVER_MS,
    WHOLE_GPU,
    Evict,
    GpuSlot,
    Job,
    Node,
    Placement,
    Profile,
    RecordState,
    Resize,
    Resume,
    Share,
    WakeAt,
    sized,
    slots_by_task,
)
from berth.policies import Decision, Policy, Resuming
from berth.scheduler.checkpoint import Checkpoint
from berth.scheduler.expectations import Expectations
from berth.scheduler.feedback import Feedback, error_of_knowledge
from berth.scheduler.gangs import Gangs
from berth.scheduler.outcomes import (
    Evicted,
    NeverFits,
    Outcome,
    Refused,
    Resized,
    Resumed,
    Suspended,
    malformed,
    returned_nonsense,
    why_never,
)
from berth.scheduler.sizes import check_sizes, is_resized, size_of

MOST_REQUESTS = 1 << 16
"""Request types beyond this number make those forgotten that no job uses any more."""
OUT_OF_MEMORY = RecordState.OUT_OF_MEMORY
MEDDLED = "the policy has changed the cluster or the queue that it was shown; it may only yield"


class Attempts(NamedTuple):
    """What is known of a job that was queued again."""

    number: int
    """Of the attempt that waits or runs."""
    out_of_memory: int
    """How many attempts ran out of memory."""
    done_us: int = 0
    """Work that it has done and keeps, as run time alone, as far as that is the scheduler's to believe."""
    queued_ms: int | None = None
    """When the attempt was queued; None: when the job was submitted."""


FIRST = Attempts(1, 0)


class Trial:
    """A transaction on all that a scheduler leads to: it is undone at its end, unless `commit` was called."""

    def __init__(self) -> None:
        self.committed = False
        """Whether what was tried stays."""

    def commit(self) -> None:
        """Keep what was tried, and what is tried from now on until the trial ends."""
        self.committed = True


class Scheduler:
    """Owns the queue, the cluster, the policy, the numbers of attempts and the times at which to ask again.

    Every method raises SchedulerError for a job or node that it cannot be about, and has changed nothing then.
    """

    def __init__(
        self, cluster: Cluster, policy: Policy, knowledge: Knowledge, *, speeds: CardSpeeds = ALL_ALIKE
    ) -> None:
        """`cluster` is written to from now on; `knowledge` is told what happens, and says what runs are believed to
        have left of their work. An `Oracle` is for the simulator, where the jobs' work is the truth, and never for
        live jobs. `speeds` tells how fast applications are on each GPU model."""
        self.cluster = cluster
        self._speeds = speeds
        self.queue = Queue()
        self.policy = policy
        self.knowledge = knowledge
        self.attempts: dict[str, Attempts] = {}
        """Of jobs that were queued more than once."""
        self._resumes_itself = isinstance(policy, Resuming) and policy.resumes
        self._certain = self.knowledge.certain
        self._learns = self.knowledge.learns
        self._most_requests = MOST_REQUESTS
        self._wakes: list[int] = []  # a heap
        self._waking: set[int] = set()
        self._confirmed: set[str] = set()
        self._never_fit: dict[str, Job] = {}  # waiting jobs of which the caller is to be told
        self._gangs = Gangs()
        self._gang_of: dict[str, str] = {}  # task of a waiting gang -> the gang's id in the queue
        self._due: deque[Outcome] = deque()  # what was decided at once, and is handed out one by one
        self._feedback = Feedback(knowledge, cluster)
        self._expectations: Expectations | None = None
        if not self._certain:
            self._expectations = Expectations(cluster, self.knowledge, self._feedback, speeds)

    # What jobs do

    def submit(self, job: Job, *, ahead_of: Job | None = None) -> bool:
        """Queue a job behind all others, or right before a waiting one; an elastic one on as many GPUs as could be if
        its own number could not. Returns whether it could start if nothing else ran; one that could not waits all the
        same, and the next `decide` says why (`NeverFits`). A gang (`gang_of`) waits as one job, by the id of its first
        task; `decide` hands out a placement of each of its tasks."""
        if job.elastic:
            check_sizes(job)
        if job.tasks:
            self._check_tasks(job)
        fits = self._fits(job)
        if not fits and job.elastic:
            fitting = [size for size, _ in job.elastic if self._fits(sized(job, size))]
            job, fits = sized(job, max(fitting, default=job.gpus)), bool(fitting)
        queue = self.queue
        if ahead_of is None:
            queued = not self._is_placed(job.id) and job.id not in self._gang_of and queue.add(job)
        elif ahead_of in queue:
            queued = not self._is_placed(job.id) and queue.insert(job, ahead_of)
        else:
            raise SchedulerError(
                f"job '{job.id}' cannot go ahead of job '{ahead_of.id}', which does not wait"
            )
        if not queued:
            raise SchedulerError(f"job '{job.id}' waits or runs already; give each job an id of its own")
        if job.tasks:
            self._gang_of.update((task.id, job.id) for task in job.tasks)
        if not fits:
            self._never_fit[job.id] = job
        return fits

    def withdraw(self, job_id: str, now_ms: int, *, comes_again: bool = False) -> Job | Running:
        """Take out a job that waits (returns the job), or runs or is suspended (returns the run, which is released).

        By the id of any task of a waiting gang the whole gang leaves. A task that runs leaves alone: the others run on.
        With `comes_again` the caller submits the job again later: nothing has ended, and the knowledge is told nothing.
        """
        run = self.run_of(job_id)
        if run is not None:
            self._release(job_id, now_ms, "be withdrawn")
            queued_ms = self.attempts.get(job_id, FIRST).queued_ms
            self._forget(job_id)
            self._gangs.leave(run.job)
            if not comes_again:
                self._tell(run, RecordState.CANCELLED, now_ms, queued_ms=queued_ms)
            return run
        job = self.waiting(job_id)
        if job is None:
            raise SchedulerError(f"job '{job_id}' cannot be withdrawn: it neither waits nor runs")
        self._unqueue(job)
        if job.gang:
            self._gangs.leave(job)
        for task in job.tasks or (job,):
            if comes_again:
                self._forget(task.id)
            else:
                self._leaves_waiting(task, now_ms)
        return job

    def number(self, job_id: str, attempts: Attempts) -> None:
        """Note what is known of the earlier attempts of a job that the caller submits or places next, or that waits."""
        if self._is_placed(job_id):
            raise SchedulerError(f"job '{job_id}' runs: its attempt has a number already")
        self.attempts[job_id] = attempts

    def replace(self, job: Job) -> bool:
        """Exchange a waiting job for one of the same id with another priority, limit or size, in the same place of the
        queue; of a running job, whose size stays, the same. Returns whether it could start if nothing else ran."""
        run = self.run_of(job.id)
        if run is not None:
            if size_of(run.job) != size_of(job):
                raise SchedulerError(
                    f"job '{job.id}' runs: its user, GPUs, CPU and memory stay as they are; withdraw it,"
                    " and submit it anew"
                )
            run.job = replace(job, gang=run.job.gang, min_tasks=run.job.min_tasks) if run.job.gang else job
            self.cluster.reopen()  # what was expected of it may not hold any more
            return True
        before = self.queue.named(job.id)
        if before is None:
            raise SchedulerError(f"job '{job.id}' cannot be replaced: it neither waits nor runs")
        fits = self._fits(job)
        if job.tasks or before.tasks:
            self._check_tasks(job, instead_of=before)
            self._know_tasks(before, job)
        self.queue.replace(job)
        if not fits:
            self._never_fit[job.id] = job
        return fits

    def started(self, job_id: str) -> None:
        """The job's processes exist: from now on it ends, and does not fail to start."""
        if job_id not in self.cluster.running:
            raise SchedulerError(f"job '{job_id}' cannot have started: it was given no GPU")
        self._confirmed.add(job_id)

    def failed_to_start(self, job_id: str, now_ms: int, *, again: bool = True) -> Running:
        """What was decided could not be carried out: give back what the job was given, and queue it again.

        It may be decided on again at once: tell it after `decide` has ended, and wait before the next one. If its gang
        is queued again for that, the next `decide` hands out the others as `Evicted`, or `take_evicted` before it.
        """
        if job_id in self._confirmed:
            raise SchedulerError(f"job '{job_id}' has started already; tell how it ended")
        run = self._release(job_id, now_ms, "fail to start")
        if again:
            self._queue_again(run, now_ms, done_us=self.attempts.get(job_id, FIRST).done_us)
        else:
            self._gangs.leave(run.job)
            self._leaves_waiting(run.job, now_ms)
        return run

    def ended(
        self,
        job_id: str,
        how: RecordState,
        now_ms: int,
        *,
        held_mib: int = 0,
        neighbours: Sequence[tuple[Job, int]] = (),
    ) -> Running:
        """A running job has ended. Returns the run.

        One that ran out of memory, having held `held_mib` while its neighbours held what `neighbours` lists, is queued
        again while it has retries left: `waits` tells. If its gang is queued again too, `take_evicted` has the others.
        """
        run = self._release(job_id, now_ms, "end")
        before = self.attempts.get(job_id, FIRST) if self.attempts else FIRST
        if how is OUT_OF_MEMORY and before.out_of_memory < run.job.retries:
            self._queue_again(run, now_ms, done_us=self._saved_us(run), memory=True)
        else:
            self._forget(job_id)
            if run.job.gang:
                self._gangs.end(run.job)
        if self._learns:
            self._tell(run, how, now_ms, held_mib=held_mib, neighbours=neighbours, queued_ms=before.queued_ms)
        return run

    def wants_to_see(self, run: Running) -> bool:
        """Whether the knowledge would learn from the first minutes of a run."""
        return self._feedback.wants_to_see(run)

    def sampled(self, run: Running, profile: Profile, now_ms: int) -> None:
        """A run that the knowledge wants to see goes on, and this was sampled of it so far (`begun`)."""
        self._feedback.sampled(run, profile, now_ms)
        if self._expectations is not None:
            self._feedback.keep_errors_of(self._expectations.refresh, run.job.id, now_ms)

    def run_of(self, job_id: str) -> Running | None:
        """The run of a job that runs or is suspended; None if it does neither."""
        return self.cluster.running.get(job_id) or self.cluster.suspended.get(job_id)

    def attempt(self, job_id: str) -> int:
        """The number of the attempt of a job that waits or runs, from 1."""
        return self.attempts.get(job_id, FIRST).number

    def waits(self, job_id: str) -> bool:
        """Whether a job of this id waits, or a gang with a task of this id."""
        return self.queue.holds(job_id) or job_id in self._gang_of

    def waiting(self, job_id: str) -> Job | None:
        """The waiting job of this id, or the waiting gang that has a task of this id; None if there is none."""
        return self.queue.named(self._gang_of.get(job_id, job_id))

    def take_evicted(self) -> list[Running]:
        """The runs that were evicted since the last call because their gang cannot run without one that was lost; the
        next `decide` does not hand them out then."""
        evicted = [outcome.run for outcome in self._due if isinstance(outcome, Evicted)]
        self._due = deque(outcome for outcome in self._due if not isinstance(outcome, Evicted))
        return evicted

    # What nodes do

    def node_lost(self, name: str, now_ms: int) -> list[Running]:
        """A node is lost: what ran there is released and queued again. Returns those runs; `take_evicted` has others of
        their gangs."""
        row = self._row(name)
        self.cluster.lose(row)
        return self._clear({row}, now_ms)

    def evict(self, job_ids: Iterable[str], now_ms: int) -> list[Running]:
        """Stop running jobs and queue them again, whatever the policy would do. Returns those runs, and those of their
        gangs that cannot run without them."""
        runs = [self._running(job_id, "be evicted") for job_id in job_ids]
        for run in runs:
            if self.cluster.running.get(run.job.id) is run:  # not evicted with one before it
                self._evict(run.job.id, now_ms)
        named = {id(run) for run in runs}
        return [*runs, *(run for run in self.take_evicted() if id(run) not in named)]

    def resize(self, job_id: str, share: Share, now_ms: int) -> Running:
        """Give a running job this share of each of its GPUs from now on, whatever it asked for.

        Its speed changes only as the model of interference says. A placement by best effort keeps its place of the GPU,
        and the memory that it may use changes. Refused if the cards have too little left to grow by. If the job is
        queued again, it asks for what it asked for at first.
        """
        run = self._running(job_id, "be resized")
        with self._changing(job_id, now_ms):
            self.cluster.resize(job_id, share, now_ms=now_ms)
        return run

    def suspended(
        self, job_id: str, now_ms: int, *, held_mib: int | None = None, resumes: bool = True
    ) -> Running:
        """A running job has left its GPUs, and keeps its attempt and what it has done. Its nodes keep its memory, and
        `held_mib` for each of its GPUs: by default what it was given.

        Unless `resumes`, it runs on only when `resumed` says so. Refused for a task of a gang, and if the nodes have
        too little memory left.
        """
        run = self._running(job_id, "be suspended")
        if run.job.gang:
            raise SchedulerError(f"job '{job_id}' cannot be suspended: it is a task of a gang")
        with self._changing(job_id, now_ms):
            self.cluster.suspend(job_id, now_ms=now_ms, held_mib=held_mib)
        run.resumes = resumes
        return run

    def adopt_suspended(
        self,
        wish: Placement,
        start_ms: int,
        now_ms: int,
        *,
        held_mib: int | None = None,
        resumes: bool = True,
    ) -> Running:
        """Note a job that was suspended before this scheduler was made. It ran from `start_ms` until now."""
        job = wish.job
        if self.waits(job.id) or self._is_placed(job.id):
            raise SchedulerError(f"job '{job.id}' waits or runs already; give each job an id of its own")
        known = self.attempts.get(job.id, FIRST)
        work_ms, left_ms = FOREVER_MS if job.work_ms is None else job.work_ms, None
        if self._expectations is not None:
            work_ms, left_ms = self._expectations.expected(
                wish, known.done_us + max(0, now_ms - start_ms) * 1000
            )
        try:
            run = self.cluster.adopt_suspended(
                wish,
                start_ms=start_ms,
                now_ms=now_ms,
                work_ms=work_ms,
                left_ms=left_ms,
                attempt=known.number,
                held_mib=held_mib,
            )
        except PlacementError as error:
            raise SchedulerError(str(error)) from error
        run.resumes = resumes
        self._confirmed.add(job.id)
        return run

    def resumed(self, job_id: str, now_ms: int) -> Running:
        """A suspended job runs on, on the GPUs that it had. Refused if there is too little room, and for a job that is
        not suspended."""
        if job_id not in self.cluster.suspended:
            raise SchedulerError(f"job '{job_id}' cannot be resumed: it is not suspended")
        with self._changing(job_id, now_ms):
            return self.cluster.resume(job_id, now_ms=now_ms)

    def node_drained(self, name: str) -> None:
        """Nothing starts on a node from now on, until it is back; what runs there runs on."""
        self.cluster.lose(self._row(name))

    def node_back(self, name: str) -> None:
        """A lost node is back."""
        self.cluster.restore(self._row(name))

    def nodes_changed(self, nodes: Sequence[Node], now_ms: int) -> list[Running]:
        """The cluster has these nodes from now on: some are new, some are gone, some have changed.

        What ran on a node that is gone is released and queued again. Returns those runs.
        """
        try:
            changes = self.cluster.nodes_changed(nodes)
        except ClusterError as error:
            raise SchedulerError(f"the nodes cannot become that: {error}") from error
        if not any(changes):
            return []
        cleared = self._clear(set(changes.vanished), now_ms) if changes.vanished else []
        fits = self.cluster.fits_when_empty
        self._never_fit = {job.id: job for job in self.queue if not fits(job)}
        return cleared

    def strangers(self, slot: GpuSlot, milli: int, mem_mib: int) -> None:
        """Note how much of a GPU processes that are not the scheduler's use from now on."""
        try:
            self.cluster.strangers(slot, milli, mem_mib)
        except PlacementError as error:
            raise SchedulerError(f"strangers cannot be noted: {error}") from error

    # What is tried

    @contextmanager
    def trial(self) -> Iterator[Trial]:
        """Try something: whatever is done by this scheduler's methods in the `with` block is undone at its end, unless
        `trial.commit()` was called in it. Trials may be nested.

            with scheduler.trial() as trial:
                scheduler.release("train", now_ms)  # as if it had ended
                starts = list(scheduler.decide(now_ms))
                if wanted(starts):
                    trial.commit()

        All that the scheduler leads to is put back as it was: cluster, queue, attempts, wakes, expectations, all
        counters, and what the policy remembers. The knowledge is told of what happened when the outermost trial ends
        committed; until then it is only asked, so that decisions in a trial go by what was known before it. Begin no
        trial while a `decide` is being iterated, and end a `decide` that was begun in a trial there. How far a
        generator or another iterator has come cannot be put back, so a policy that keeps one from call to call is not
        for trials; SchedulerError if it keeps an `itertools.count`.

        To begin one costs time in proportion to what runs and waits: `bench/trials.py` measures it.
        """
        checkpoint = Checkpoint([self], without=[self.knowledge])
        trial = Trial()
        self._feedback.hold()
        try:
            yield trial
        finally:
            if not trial.committed:
                checkpoint.restore()
            elif self._feedback.report_held() and self._expectations is not None:
                self._expectations.refresh()

    def release(self, job_id: str, now_ms: int) -> Running:
        """Take a running job off its GPUs for good without telling the knowledge: in a trial, as if it had ended."""
        run = self._release(job_id, now_ms, "be released")
        self._forget(job_id)
        self._gangs.end(run.job)
        return run

    # What is decided

    def decide(
        self,
        now_ms: int,
        *,
        out_of_time: Callable[[], bool] | None = None,
        can_evict: bool = True,
        parked_mib: Callable[[Running], int | None] | None = None,
    ) -> Iterator[Outcome]:
        """Ask the policy; apply each decision as it is yielded, and hand it out.

        Before that come the waiting jobs that could not start if nothing else ran: each once when it was submitted or
        replaced, and again after every change of the nodes.

        A decision that cannot be applied comes back as `Refused`, and nothing has changed; stop iterating to take no
        more. Without `can_evict` each eviction is such a decision. `parked_mib` tells how much memory of its nodes a
        run would take for each of its GPUs if it were suspended, or None if it cannot be: what can is suspended rather
        than evicted. Suspended jobs run on before others start if there is room for them where they were, unless the
        policy says when (`Resuming`).

        Raises PolicyError if the policy raises (an error of berth's own passes as it is), writes to what it is shown,
        yields what is no decision, or `out_of_time()` says so. Raises KnowledgeError if the knowledge raises, whether
        the policy or the scheduler asked it, or has raised since the last call. What was handed out until then is
        applied.
        """
        cluster, queue, expectations = self.cluster, self.queue, self._expectations
        if cluster.request_types > self._most_requests:
            cluster.keep_requests(queue)
            queue.forget_lanes(cluster.request)
            self._most_requests = max(MOST_REQUESTS, 2 * cluster.request_types)
        if self._feedback.fault is not None and (fault := self._feedback.take_fault()) is not None:
            raise fault
        while self._never_fit:  # one at a time: the caller may stop before the last
            job = self._never_fit.pop(next(iter(self._never_fit)))
            if queue.named(job.id) is job:
                yield NeverFits(job, why_never(job))
        while self._due:
            yield self._due.popleft()
        wakes = self._wakes
        while wakes and wakes[0] <= now_ms:  # only now: until here the call may end without asking the policy
            self._waking.discard(heappop(wakes))
        try:
            if expectations is not None:
                expectations.catch_up(now_ms)
            if cluster.suspended and not self._resumes_itself:
                yield from self._resume_where_room(now_ms)
            again = True
            while again:
                again = False
                shown = cluster.changes + queue.changes
                for decision in self.policy(queue, cluster, now_ms):
                    if cluster.changes + queue.changes != shown:
                        raise PolicyError(MEDDLED)
                    if not isinstance(decision, Placement):
                        outcome = self._other(decision, now_ms, can_evict, parked_mib)
                        if outcome is not None:
                            yield outcome
                    elif decision[0].tasks:
                        again = self._start_gang(decision, now_ms)
                    else:
                        yield self._start(decision, now_ms)
                    while self._due:
                        yield self._due.popleft()
                    shown = cluster.changes + queue.changes
                    if again:  # the gang's further tasks wait in its place: nobody overtakes them
                        break
                    if out_of_time is not None and out_of_time():
                        raise PolicyError(
                            f"at {now_ms} ms the policy has not ended its decisions within its time"
                        )
                if cluster.changes + queue.changes != shown:
                    raise PolicyError(MEDDLED)
        except BerthError:
            raise
        except Exception as error:
            if (of_knowledge := error_of_knowledge(error, self.knowledge, now_ms)) is not None:
                raise of_knowledge from error
            if isinstance(error, TypeError) and getattr(error.__traceback__, "tb_next", None) is None:
                raise PolicyError(f"at {now_ms} ms {returned_nonsense(self.policy, error)}") from error
            raise PolicyError(f"at {now_ms} ms the policy fails: {in_one_line(error)}") from error

    def place(self, wish: Placement, now_ms: int) -> bool:
        """Start a job where it is said, whatever the policy would do: it runs there, or its user named its GPUs.

        It may wait already, by its id. Returns whether it could be, and else has changed nothing. No trial does that:
        a driver that starts places thousands of jobs, and each trial would take milliseconds.
        """
        job = wish.job
        waited = self.queue.named(job.id)
        if waited is None:
            self.submit(job)
        elif waited is not job:
            self.replace(job)
        known_misfit = self._never_fit.pop(job.id, None)
        placed = False
        try:
            if self._expectations is not None:
                self._expectations.catch_up(now_ms)
            if job.tasks:
                due, self._due = self._due, deque()
                try:
                    self._start_gang(wish, now_ms)
                    placed = isinstance(self._due[0], Placement)
                finally:
                    self._due = due
            else:
                placed = isinstance(self._start(wish, now_ms), Placement)
        finally:
            if not placed and waited is None:
                self._unqueue(job)
            elif not placed and waited is not None:
                self.queue.replace(waited)
                self._know_tasks(job, waited)
                if known_misfit is not None:
                    self._never_fit[job.id] = waited
        return placed

    @property
    def fault(self) -> KnowledgeError | None:
        """What the knowledge raised first since the last `decide`, which was told what had happened: the next one
        raises it, so that what has ended is released whatever is believed of it."""
        return self._feedback.fault

    @property
    def next_wake_ms(self) -> int | None:
        """When the policy wants to be asked again whatever happens; None: not before something does."""
        return self._wakes[0] if self._wakes else None

    def _start(self, wish: Placement, now_ms: int) -> Placement | Refused:
        """Start a waiting job; where that cannot be, nothing has changed."""
        queue, job = self.queue, wish[0]
        waited = queue.named(job.id)
        if waited is None or not (waited is job or (job.elastic and is_resized(job, waited))):
            return Refused(wish, f"at {now_ms} ms the policy starts job '{job.id}', which is not waiting")
        known = self.attempts.get(job.id, FIRST) if self.attempts else FIRST
        work_ms: int | None = None
        left_ms: int | None = None
        if self._expectations is not None:
            work_ms, left_ms = self._expectations.expected(wish, known.done_us)
        try:
            run = self.cluster.place(wish, now_ms=now_ms, work_ms=work_ms, left_ms=left_ms, attempt=known[0])
        except PlacementError as error:
            return Refused(wish, f"at {now_ms} ms the policy decides what cannot be: {error}")
        except Exception as error:  # noqa: BLE001  values that are no slots or no share
            return Refused(wish, malformed(wish, error, now_ms))
        queue.remove(waited)
        if self._expectations is not None:
            self._expectations.change(run, now_ms)
        if job.gang:
            self._gangs.start_task(job)
        return wish

    def _start_gang(self, wish: Placement, now_ms: int) -> bool:
        """Start the tasks of a waiting gang that start together, all or none; what became of it is due then. Returns
        whether further tasks wait now, of which the policy may not have heard."""
        queue, job = self.queue, wish.job
        if job not in queue:
            why = f"at {now_ms} ms the policy starts job '{job.id}', which is not waiting"
            self._due.append(Refused(wish, why))
            return False
        parts: list[Placement] = []
        expected: list[tuple[int | None, int | None]] = []
        try:
            whole = wish.share == WHOLE_GPU  # each task has whole GPUs, whatever part it asks for
            parts = [
                Placement(task, slots, WHOLE_GPU if whole else task.share)
                for task, slots in slots_by_task(job, wish.slots)
            ]
            slots_of = {part.job.id: part.slots for part in parts}
            given = (
                replace(job, tasks=tuple(replace(task, share=WHOLE_GPU) for task in job.tasks))
                if whole
                else job
            )
            fits = self.cluster.slots_of_gang(given, lambda task, _: slots_of[task.id]) is not None
            refusal = (
                f"at {now_ms} ms the policy starts the tasks of gang '{job.id}' on {wish.slots!r}, and they do not"
                " all fit there"
            )
            if fits and self._expectations is not None:
                for part in parts:
                    done_us = self.attempts.get(part.job.id, FIRST).done_us
                    expected.append(self._expectations.expected(part, done_us))
        except (KnowledgeError, KeyError):
            raise
        except Exception as error:
            if error_of_knowledge(error, self.knowledge, now_ms) is not None:
                raise
            fits, refusal = False, malformed(wish, error, now_ms)
        if not fits:
            self._due.append(Refused(wish, refusal))
            return False
        serial = queue.serial_of(job)
        self._unqueue(job)
        self._gangs.start(job)
        for at, part in enumerate(parts):
            work_ms, left_ms = expected[at] if expected else (None, None)
            attempt = self.attempts.get(part.job.id, FIRST).number
            run = self.cluster.place(part, now_ms=now_ms, work_ms=work_ms, left_ms=left_ms, attempt=attempt)
            if self._expectations is not None:
                self._expectations.change(run, now_ms)
        for task in job.tasks[len(parts) :]:
            serial = queue.insert_behind(task, serial)
        self._due.extend(parts)
        return len(job.tasks) > len(parts)

    def _resume_where_room(self, now_ms: int) -> Iterator[Resumed]:
        """Let suspended jobs run on if there is room, those of a higher priority first."""
        suspended = sorted(self.cluster.suspended.values(), key=lambda run: -run.job.priority)
        for run in suspended:
            if run.resumes and self.cluster.can_resume(run.job.id):
                yield Resumed(self.resumed(run.job.id, now_ms))

    def _other(
        self,
        decision: Decision,
        now_ms: int,
        can_evict: bool,
        parked_mib: Callable[[Running], int | None] | None,
    ) -> Outcome | None:
        """Apply what is no placement; None where it was known already."""
        if isinstance(decision, WakeAt):
            time_ms = decision.time_ms
            if not isinstance(time_ms, int) or time_ms <= now_ms:
                why = f"at {now_ms} ms the policy asks to be woken at {time_ms} ms; expected a later whole number"
                return Refused(decision, why)
            if time_ms in self._waking:
                return None
            self._waking.add(time_ms)
            heappush(self._wakes, time_ms)
            return decision
        if isinstance(decision, Evict):
            job_id = decision.job.id
            if job_id not in self.cluster.running:
                if job_id in self._gang_of:
                    return None  # it was evicted with its gang
                return Refused(
                    decision, f"at {now_ms} ms the policy evicts job '{job_id}', which is not running"
                )
            if not can_evict:
                return Refused(
                    decision,
                    f"at {now_ms} ms the policy evicts job '{job_id}', and running jobs cannot be evicted here",
                )
            held_mib = parked_mib(self.cluster.running[job_id]) if parked_mib is not None else None
            if held_mib is not None:
                with suppress(SchedulerError):  # its nodes have too little memory, or it is a task of a gang
                    return Suspended(self.suspended(job_id, now_ms, held_mib=held_mib))
            return Evicted(self._evict(job_id, now_ms))
        if isinstance(decision, Resume):
            try:
                return Resumed(self.resumed(decision.job.id, now_ms))
            except SchedulerError as error:
                return Refused(decision, f"at {now_ms} ms the policy decides what cannot be: {error}")
        if isinstance(decision, Resize):
            run = self.cluster.running.get(decision.job.id)
            before = decision.share if run is None else run.share
            try:
                return Resized(self.resize(decision.job.id, decision.share, now_ms), before)
            except SchedulerError as error:
                return Refused(decision, f"at {now_ms} ms the policy decides what cannot be: {error}")
        raise PolicyError(f"a policy yields Placement, Evict, Resume, Resize or WakeAt, not {decision!r}")

    # How

    def _running(self, job_id: str, what: str) -> Running:
        if (run := self.cluster.running.get(job_id)) is None:
            raise _not_running(job_id, what)
        return run

    @contextmanager
    def _changing(self, job_id: str, now_ms: int) -> Iterator[None]:
        """Change how a job is placed. What the cluster refuses is raised as SchedulerError."""
        if self._expectations is not None:
            self._expectations.advance(now_ms)
        try:
            yield
        except PlacementError as error:
            raise SchedulerError(str(error)) from error
        run = self.run_of(job_id)
        if self._expectations is not None and run is not None:
            self._expectations.change(run, now_ms)

    def _is_placed(self, job_id: str) -> bool:
        return job_id in self.cluster.running or job_id in self.cluster.suspended

    def _release(self, job_id: str, now_ms: int, what: str) -> Running:
        if self._expectations is not None:
            if not self._is_placed(job_id):
                raise _not_running(job_id, what)
            try:
                self._expectations.advance(now_ms)
            except KnowledgeError as error:  # what has ended has ended, whatever is believed of it
                self._feedback.keep(error)
        try:
            run = self.cluster.release(job_id, now_ms=now_ms)
        except NotRunning:
            raise _not_running(job_id, what) from None
        if self._confirmed:
            self._confirmed.discard(job_id)
        if self._expectations is not None:
            self._expectations.change(run, now_ms)
        return run

    def _evict(self, job_id: str, now_ms: int) -> Running:
        run = self._release(job_id, now_ms, "be evicted")
        before = self._queue_again(run, now_ms, done_us=self._saved_us(run))
        self._tell(run, RecordState.PREEMPTED, now_ms, queued_ms=before.queued_ms)
        return run

    def _queue_again(
        self,
        run: Running,
        now_ms: int,
        *,
        done_us: int,
        memory: bool = False,
        lost_rows: Set[int] = frozenset(),
    ) -> Attempts:
        """Queue a run's job again; returns what was known of the attempt that has ended. `lost_rows` are the nodes that
        were lost with it."""
        job = run.job
        before = self.attempts.get(job.id, FIRST)
        self.attempts[job.id] = Attempts(run.attempt + 1, before.out_of_memory + memory, done_us, now_ms)
        others = self._gangs.lose(job) if job.gang else None
        if others is None:
            self.queue.add(job)
        else:
            self._queue_gang_again(job, others, now_ms, lost_rows)
        return before

    def _queue_gang_again(self, lost: Job, others: Iterable[str], now_ms: int, lost_rows: Set[int]) -> None:
        """Queue a gang again that has lost this task: the other tasks that run are evicted, or were lost with their
        node, and those that wait by themselves wait with it."""
        for job_id in others:
            run = self._release(job_id, now_ms, "be evicted")
            before = self.attempts.get(job_id, FIRST)
            self.attempts[job_id] = Attempts(
                run.attempt + 1, before.out_of_memory, self._saved_us(run), now_ms
            )
            is_lost = any(slot.node in lost_rows for slot in run.slots)
            how = RecordState.NODE_FAIL if is_lost else RecordState.PREEMPTED
            self._tell(run, how, now_ms, queued_ms=before.queued_ms)
            self._due.append(Evicted(run))
        gang = self._gangs.take_apart(lost.gang)
        for task in gang.tasks:
            if (waiting := self.queue.named(task.id)) is not None:
                self.queue.remove(waiting)
            self._gang_of[task.id] = gang.id
        if not gang.tasks:
            self._gang_of.pop(gang.id, None)
        self.queue.add(gang)

    def _unqueue(self, job: Job) -> None:
        """Take a waiting job out of the queue."""
        self.queue.remove(job)
        for task in job.tasks:
            self._gang_of.pop(task.id, None)

    def _know_tasks(self, before: Job, job: Job) -> None:
        """A waiting job has been exchanged for another: the tasks of that one wait now."""
        for task in before.tasks:
            self._gang_of.pop(task.id, None)
        self._gang_of.update((task.id, job.id) for task in job.tasks)

    def _check_tasks(self, job: Job, instead_of: Job | None = None) -> None:
        """Refuse a gang of which a task waits or runs already, or that `gang_of` did not make."""
        if job.min_tasks < 1 or len(job.tasks) < max(2, job.min_tasks) or job.id != job.tasks[0].id:
            raise SchedulerError(
                f"gang '{job.id}' has {len(job.tasks)} tasks of which {job.min_tasks} start together; make it with"
                " `gang_of`"
            )
        known = {task.id for task in instead_of.tasks or (instead_of,)} if instead_of is not None else set()
        for task in job.tasks:
            if task.id not in known and (self._is_placed(task.id) or self.waits(task.id)):
                raise SchedulerError(
                    f"task '{task.id}' waits or runs already; give each task an id of its own"
                )

    def _leaves_waiting(self, job: Job, now_ms: int) -> None:
        """A job leaves for good without a run: what was learned of its earlier attempts is of no use any more."""
        known = self.attempts.get(job.id)
        self._forget(job.id)
        if known is not None:
            self._feedback.never_started(job, known.number, known.queued_ms, now_ms)

    def _forget(self, job_id: str) -> None:
        if self.attempts:
            self.attempts.pop(job_id, None)
        self.cluster.forget(job_id)

    def _saved_us(self, run: Running) -> int:
        """Work, μs, that a job which was stopped is believed to have done and keeps; 0 where the simulator knows."""
        if not run.job.keeps_work or self._certain:
            return 0
        return self._work_us(run, max(0, run.work_us - run.left_us))

    def _work_us(self, run: Running, card_time_us: int) -> int:
        """The work that a run does in that time on its cards."""
        job = run.job
        milli = self._speeds.on(job, run.slots, self.cluster.nodes) if self._speeds or job.elastic else 1000
        return card_time_us if milli == 1000 else card_time_us * milli // 1000

    def _fits(self, job: Job) -> bool:
        """Whether it could start if nothing else ran; SchedulerError for a job that makes no sense."""
        try:
            return self.cluster.fits_when_empty(job)
        except PlacementError as error:
            raise SchedulerError(f"a job makes no sense: {error}") from error
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise SchedulerError(f"job '{job.id}' makes no sense: {in_one_line(error)}") from error

    def _tell(
        self,
        run: Running,
        how: RecordState,
        now_ms: int,
        *,
        held_mib: int = 0,
        neighbours: Sequence[tuple[Job, int]] = (),
        queued_ms: int | None = None,
    ) -> None:
        """Tell the knowledge how an attempt ended, and go by what it believes then."""
        done_us = self._work_us(run, run.work_us - run.left_us_at(now_ms))
        self._feedback.ended(
            run, how, now_ms, done_us, held_mib=held_mib, neighbours=neighbours, queued_ms=queued_ms
        )
        if self._learns and self._expectations is not None:
            self._feedback.keep_errors_of(self._expectations.refresh, run.job.id, now_ms)

    def _clear(self, rows: Set[int], now_ms: int) -> list[Running]:
        """Release and queue again what runs on these nodes."""
        placed = (*self.cluster.running.values(), *self.cluster.suspended.values())
        there = [run for run in placed if any(slot[0] in rows for slot in run.slots)]
        for run in there:
            if self.run_of(run.job.id) is not run:
                continue  # it was evicted with its gang
            self._release(run.job.id, now_ms, "be cleared away")
            before = self._queue_again(run, now_ms, done_us=self._saved_us(run), lost_rows=rows)
            self._tell(run, RecordState.NODE_FAIL, now_ms, queued_ms=before.queued_ms)
        lost = {id(run) for run in there}
        self._due = deque(
            outcome for outcome in self._due if not (isinstance(outcome, Evicted) and id(outcome.run) in lost)
        )
        return there

    def _row(self, name: str) -> int:
        row = self.cluster.row_of(name)
        if row is None:
            names = list(self.cluster.names)
            raise SchedulerError(
                f"no node '{name}'; there are {', '.join(names[:5])}{', …' if len(names) > 5 else ''}"
            )
        return row


def _not_running(job_id: str, what: str) -> SchedulerError:
    return SchedulerError(f"job '{job_id}' cannot {what}: it is not running")
