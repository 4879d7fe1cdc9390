"""Slurm as a site of the driver: what waits, runs and has ended there, and changes that are made at once for all jobs.

Slurm keeps what must not be forgotten: the notes in AdminComment. What berth placed and Slurm has not started yet is
known to this process alone; a berth that begins anew holds such jobs again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from berth.errors import LiveError
from berth.history.values.causes import cause_after
from berth.history.values.hostlist import expand
from berth.history.values.tres import gres_list
from berth.knowledge.out_of_memory import MemoryNeed
from berth.live.driver.site import (
    Again,
    End,
    FailedStart,
    GiveUp,
    Gpu,
    NodeState,
    SiteGang,
    SiteJob,
    SiteNode,
    SiteRun,
    Start,
)
from berth.live.slurm.attempts import Attempts, EndedAttempt, Journal
from berth.live.slurm.candidates import HIGHEST, Candidates, Priorities, Reader, place_of
from berth.live.slurm.controller import Change, View
from berth.live.slurm.decisions import ADVISED, GIVEN_BACK, GIVEN_UP, PLACED, STATES, TAKEN_BACK, Decision
from berth.live.slurm.jobs import SlurmJob
from berth.live.slurm.measured_use import MeasuredUse, kind_of
from berth.live.slurm.nodes import SlurmNode
from berth.live.slurm.requests import Cards, LeftToSlurmError, Note, asks_for_compute, note_of
from berth.model import NO_GPU, WHOLE_GPU, Job, Node, RecordState, Share

MOST_PAUSE_MS = 600_000
SLOW = 4
"""Multiplies the patience while Slurm names only resources or priority."""
MOST_NOTED = 300
"""Letters of why no node can hold a job, in its note."""
FAILED = frozenset({"FAILED", "OUT_OF_MEMORY", "NODE_FAIL"})

Apply = Callable[[Iterable[Change]], dict[str, str]]
"""Makes changes; what went wrong, by the job's id."""


@dataclass(slots=True)
class _Placed:
    """A job that was released on its GPUs and that Slurm has not started yet."""

    at_ms: int
    note: Note
    where: str
    run: SiteRun


class SlurmSite:
    """One Slurm; `take` a view of it before each step of the driver, and `carry_out` what came of it after."""

    name = "slurm"

    def __init__(
        self,
        reader: Reader,
        cards: Cards,
        attempts: Attempts,
        journal: Journal,
        apply: Apply,
        *,
        places: bool,
        patience_ms: int,
        use: MeasuredUse | None = None,
    ) -> None:
        """`patience_ms` is how long Slurm may take to start a job. `use` is what is known of applications at the
        start."""
        self._reader, self._cards, self._attempts = reader, cards, attempts
        self._journal, self._apply, self._places = journal, apply, places
        self._patience_ms = patience_ms
        self.use = use or MeasuredUse()
        self.counts: dict[str, str] = {}
        """What waiting jobs that ask for memory alone count for, in words."""
        self.learned_starts = ""
        """What the service keeps of start intervals."""
        self.again_after_s = 0
        """How long a job that is queued again may not begin."""
        self.limits_mib: Mapping[str, int] = {}
        """What running jobs may hold of each GPU now, as the nodes' agents say, by the jobs' numbers."""
        self.idle: Set[str] = frozenset()
        """Running jobs that have left their GPUs until their next call of CUDA, by the jobs' numbers."""
        self.found = Candidates()
        """The jobs of the last view."""
        self.reasons: dict[str, str] = {}
        """Why waiting jobs were not started, in the driver's words."""
        self._now_ms = 0
        self._nodes: dict[str, SlurmNode] = {}
        self._queried: Sequence[SlurmNode] = ()
        self._in_use: frozenset[Gpu] = frozenset()
        self.leaked: dict[Gpu, int] = {}
        """Shards of each GPU that Slurm counts as used though no job has them."""
        self._components: Counter[str] = Counter()
        """How many components each heterogeneous job has."""
        self._labels: frozenset[str] = frozenset()
        self._waiting: dict[str, SiteJob] = {}
        self._running: dict[str, SiteRun] = {}
        self._placed: dict[str, _Placed] = {}
        self._ends: list[End | FailedStart] = []
        self._failures: dict[str, Again] = {}
        """What the driver said of jobs whose start failed; their notes have it for a berth that begins anew."""
        self._gone: dict[str, SlurmJob] = {}
        """Jobs whose attempts have ended since the last view, and components of which others have."""
        self._out_of_memory: dict[str, tuple[SlurmJob, int]] = {}
        """Attempts that ran out of GPU memory, with what they needed, until the driver has said what comes of it."""
        self._advised: set[str] = set()
        self._stays: set[str] = set()
        """Running jobs that Slurm does not queue again (--no-requeue)."""
        self._priorities = Priorities()
        self._given_back: dict[str, tuple[int, int]] = {}
        """Jobs whose request Slurm did not take back: until when they are left alone, and for how long."""
        self._changes: list[Change] = []
        self._orders: dict[str, tuple[Change, Decision]] = {}
        self._not_started: set[str] = set()
        self._not_whole: set[str] = set()
        """Heterogeneous jobs of which berth cannot start a component."""
        self._refused: dict[str, str] = {}
        """What was logged last of jobs of which Slurm refused a change."""

    # What Slurm has

    def take(self, view: View, priorities: Priorities) -> None:
        """Take in what Slurm has now. LiveError if it does not answer a further query: nothing is lost then."""
        now_ms = view.at_ms
        found = self._reader.read(view, priorities, self._placed.keys())
        if view.nodes is not self._queried:
            self._queried, self._in_use = view.nodes, _in_use(view.nodes)
            # The nodes were queried before these jobs: what ran at the last view may have ended since.
            self.leaked = leaked_shards(view.nodes, (*self.found.jobs.values(), *found.jobs.values()))
            self._nodes = {node.name: node for node in view.nodes}
        ends, starts = self._attempts.update(view.ended, found, self._placed.keys(), now_ms)
        self._now_ms, self.found, self._priorities = now_ms, found, priorities
        self._components = Counter(job.het_id for job in found.jobs.values() if job.het)
        self._labels |= {label for job in found.waiting for label in job.labels}
        gone = {end.job.id: end.job for end in ends}
        partly = {job.het_id for job in (*found.jobs.values(), *gone.values()) if job.het}
        self._gone = {job_id: job for job_id, job in self._gone.items() if job.het_id in partly} | gone
        for end in ends:
            self._take_end(end)
        for job in starts:
            self._failures.pop(job.id, None)
            ours = found.running[job.id]
            self._journal.started(now_ms, job, ours, self._where(job, ours), self._planned(job))
        self._forget({job.user for job in gone.values()})
        self._give_back()
        self._take_back()
        self.counts = {}
        self._waiting = {
            job.id: self._site_job(self._as_measured(job), found.jobs[job.id])
            for job in found.waiting
            if job.id not in self._placed
        }
        self._take_runs()

    def _take_end(self, end: EndedAttempt) -> None:
        job, result, now_ms = end.job, end.result, self._now_ms
        ours = self._reader.taken_as(job)
        if end.start_unseen:
            self._journal.started(now_ms, job, ours, self._where(job, ours), self._planned(job))
        if not end.logged:
            first = next(iter(expand(job.node_list)), "")
            self._journal.ended(now_ms, end, self._card_mib(first))
        if not end.logged and result is not None and ours.gpus == 1:
            self.use.ended(
                kind_of(ours),
                end.end_ms - (job.start_ms or end.end_ms),
                max(result.peak_mib, result.needs_mib if result.refused else 0),
                result.gpu_ms,
                completed=end.state == "COMPLETED",
            )
        self._placed.pop(job.id, None)
        needed_mib = peak_mib = 0
        state = STATES.get(end.state, RecordState.CANCELLED)
        if state is RecordState.PREEMPTED and self._is_lost(job):
            state = RecordState.NODE_FAIL  # and Slurm queues it again
        if result is not None:
            needed_mib, peak_mib = result.needs_mib if result.refused else 0, result.peak_mib
            if result.refused and end.state in FAILED:
                state = RecordState.OUT_OF_MEMORY
                self._out_of_memory[job.id] = job, max(needed_mib, peak_mib)
        self._ends.append(
            End(
                job.id,
                state,
                end.end_ms,
                waits_again=end.state == "PREEMPTED",
                needed_mib=needed_mib,
                peak_mib=peak_mib or None,
                ran=self._run_of(job, ours),
            )
        )

    def _is_lost(self, job: SlurmJob) -> bool:
        """Whether a node of a job is lost."""
        there = (self._nodes.get(name) for name in expand(job.node_list))
        return any(node is None or node.lost for node in there)

    def _planned(self, job: SlurmJob) -> str:
        """Where berth had placed a job that has started."""
        placed = self._placed.get(job.id)
        return placed.where if placed is not None else self._attempts.placed_before(job)

    def _forget(self, users: Set[str]) -> None:
        """What kept a job back may be over now that another of its user's has ended, so that it need not wait long."""
        jobs = self.found.jobs
        for job_id, failed in [*self._failures.items()]:
            if job_id not in jobs:
                del self._failures[job_id]
            elif jobs[job_id].user in users:
                self._failures[job_id] = failed._replace(start_failures=0, not_before_ms=0)
        self._given_back = {job_id: times for job_id, times in self._given_back.items() if job_id in jobs}
        self._advised &= jobs.keys()
        self._stays &= jobs.keys()
        self._refused = {job_id: why for job_id, why in self._refused.items() if job_id in jobs}
        self.reasons = {job_id: why for job_id, why in self.reasons.items() if job_id in jobs}

    def _give_back(self) -> None:
        """Let go of jobs that berth does not decide on after all, and hold those again that were released by others."""
        found, now_ms = self.found, self._now_ms
        for job_id, (note, why) in found.to_give_back.items():
            if self._given_back.get(job_id, (0, 0))[0] <= now_ms:
                self._let_go(job_id, note, why)
        for job_id in found.unheld:
            note, job = found.notes[job_id], found.jobs[job_id]
            self._changes.append(taken_back(job_id, note))
            self._journal.add(now_ms, TAKEN_BACK, job, why=found.kept_back[job_id])

    def _let_go(self, job_id: str, note: Note, why: str) -> None:
        job = self.found.jobs[job_id]
        self._changes.append(given_back(job_id, note, job.tres_per_node))
        self._journal.add(self._now_ms, GIVEN_BACK, job, why=why)

    def _take_back(self) -> None:
        """Hold the placed jobs again that Slurm does not start, and forget those that it has started or lost."""
        found, now_ms = self.found, self._now_ms
        for job_id, placed in [*self._placed.items()]:
            job = found.jobs.get(job_id)
            if job is None or not job.waits:
                del self._placed[job_id]
                if job is None:
                    self._ends.append(FailedStart(job_id))
                continue
            slow = cause_after(job.reason) in ("resources", "priority")  # Slurm has not come to it yet
            if job.held or now_ms - placed.at_ms > self._patience_ms * (SLOW if slow else 1):
                del self._placed[job_id]
                self._changes.append(taken_back(job_id, placed.note))
                self._journal.add(now_ms, TAKEN_BACK, job, why=f"Slurm: {job.reason}")
                self._ends.append(FailedStart(job_id, job.reason))

    def _as_measured(self, job: Job) -> Job:
        """A waiting job that asks for memory alone, with what such jobs were measured to take of a GPU."""
        if job.gpus != 1 or not 0 < job.share.milli < WHOLE_GPU.milli:
            return job
        if asks_for_compute(self.found.jobs[job.id]):
            return job
        share, seen = self.use.share(job), self.use.of(kind_of(job))
        self.counts[job.id] = (
            f"{share.mem_mib} MiB and {share.milli / 10:g} % of a GPU; such jobs took"
            f" {seen or 'nothing that was measured'}"
        )
        return replace(job, share=share)

    def _site_job(self, job: Job, slurm_job: SlurmJob) -> SiteJob:
        note = note_of(slurm_job.admin_comment) or Note()
        memory, attempt = MemoryNeed(note.retries, note.needs_mib), slurm_job.restarts + 1
        if (
            slurm_job.waits and note.failures and job.id not in self._failures
        ):  # a berth before this one noted it
            self._failures[job.id] = Again(
                job.id, note.why, attempt, memory, note.failures, not_before_ms=note.until_ms
            )
        failed = self._failures.get(job.id)
        return SiteJob(
            job,
            order=place_of(job),
            attempt=attempt,
            memory=memory,
            start_failures=failed.start_failures if failed is not None else 0,
            not_before_ms=failed.not_before_ms if failed is not None else 0,
            why=failed.why if failed is not None else "",
            only_gpus=self._gpus_before(slurm_job),
            gang=SiteGang(slurm_job.het_id, self._components[slurm_job.het_id], whole=True)
            if slurm_job.het
            else None,
        )

    def _gpus_before(self, job: SlurmJob) -> tuple[Gpu, ...]:
        """The GPUs of the types that a waiting job was given before, to which alone Slurm keeps it; empty: any."""
        if job.het or not job.waits or not self._places or note_of(job.admin_comment) is None:
            return ()
        kinds = {each.kind for each in gres_list(job.tres_per_node, odd=True)} - {""}
        return tuple(
            Gpu(name, at)
            for name, node in sorted(self._nodes.items())
            for at, kind in enumerate(node.gpu_kinds)
            if kind in kinds and node.typed and job.partition in node.partitions
        )

    def _take_runs(self) -> None:
        """What runs, and what was placed and starts at any moment."""
        found = self.found
        self._running = {
            job_id: self._run_of(found.jobs[job_id], ours) for job_id, ours in found.running.items()
        }
        self._running |= {job_id: _makes_no_room(placed.run) for job_id, placed in self._placed.items()}
        self._running |= self._grown()

    def _grown(self) -> dict[str, SiteRun]:
        """The runs that have grown, as far as all promises leave room on their GPUs, and those that are away while they
        idle. Where it is not known which GPUs a job has, it counts as promised."""
        jobs, limits = self.found.jobs, self.limits_mib
        if not limits:
            return {}
        grown = {
            job_id: replace(run, share=run.share._replace(mem_mib=1))
            for job_id, run in self._running.items()
            if jobs[job_id].raw_id in self.idle and run.gpus and run.share is not None
        }
        left: dict[Gpu, int] = {}
        for run in ({**self._running, **grown}).values():
            promised_mib = (run.share or run.of.job.share).mem_mib
            for gpu in run.gpus:
                card_mib = self._card_mib(gpu.node)
                left[gpu] = left.get(gpu, card_mib) - (promised_mib or card_mib)
        for job_id, run in self._running.items():
            share, limit_mib = run.share, limits.get(jobs[job_id].raw_id, 0)
            if job_id in grown or not run.gpus or share is None or not 0 < share.mem_mib < limit_mib:
                continue
            more_mib = max(0, min(limit_mib - share.mem_mib, *(left[gpu] for gpu in run.gpus)))
            for gpu in run.gpus:
                left[gpu] -= more_mib
            grown[job_id] = replace(run, share=share._replace(mem_mib=share.mem_mib + more_mib))
        return grown

    def _run_of(self, job: SlurmJob, ours: Job) -> SiteRun:
        note = note_of(job.admin_comment)
        gpus = self._gpus_of(job, ours)
        if (
            note is not None and note.share is not None and note.best_effort
        ):  # as it was taken while it waited
            ours = replace(ours, share=note.share)
        priority = self._priorities.of_run(job) if self._can_requeue(job) else HIGHEST
        return SiteRun(
            self._site_job(replace(ours, priority=priority), job),
            gpus,
            () if gpus else expand(job.node_list),
            share=note.share if note is not None else None,
            best_effort=note is not None and note.best_effort,
            start_ms=job.start_ms,
        )

    def _can_requeue(self, job: SlurmJob) -> bool:
        """Whether a running job may make room for another: only one that berth started, and that Slurm queues again."""
        note = note_of(job.admin_comment)
        return note is not None and note.share is not None and not job.het and job.id not in self._stays

    def _gpus_of(self, job: SlurmJob, ours: Job) -> tuple[Gpu, ...]:
        """The GPUs of a job that runs, if their types name them."""
        names = expand(job.node_list)
        kinds = [each.kind for each in gres_list(job.tres_per_node, odd=True) if each.kind]
        gpus: list[Gpu] = []
        for name in names:
            node = self._nodes.get(name)
            exact = [at for kind in kinds if node is not None and (at := node.index_of(kind)) is not None]
            if not ours.gpus or len(exact) != -(-ours.gpus // len(names)):
                return ()
            gpus += [Gpu(name, at) for at in exact]
        return tuple(gpus)

    def _where(self, job: SlurmJob, ours: Job) -> str:
        """Slurm's nodes of a job, with the indices of its GPUs if their types name them."""
        gpus = self._gpus_of(job, ours)
        return where_of(gpus) if gpus else ",".join(sorted(expand(job.node_list)))

    def _card_mib(self, name: str) -> int:
        """The memory of a GPU of a node; 0: unknown."""
        node = self._nodes.get(name)
        return 0 if node is None else self._cards.model(node.model).mem_mib

    # What the driver asks

    def nodes(self) -> Sequence[SiteNode]:
        """Slurm's nodes, with the labels that waiting jobs ask for."""
        return [self._site_node(node) for _, node in sorted(self._nodes.items())]

    def nodes_by_partition(self) -> list[Node]:
        """Slurm's nodes, each with a label for each of its partitions."""
        return [
            replace(self._site_node(node).node, labels=tuple(f"partition:{name}" for name in node.partitions))
            for _, node in sorted(self._nodes.items())
        ]

    def _site_node(self, node: SlurmNode) -> SiteNode:
        labels = {
            *(f"partition:{name}" for name in node.partitions),
            *(f"feature:{name}" for name in node.features),
            f"node:{node.name}",
        }
        state = NodeState.UP if node.up else NodeState.LOST if node.lost else NodeState.DRAINED
        model = self._cards.model(node.model) if node.gpus else None
        wanted = tuple(sorted(labels & self._labels))
        return SiteNode(Node(node.name, node.gpus, model, 1000 * node.cpus, node.mem_mib, wanted), state)

    def waiting(self) -> Mapping[str, SiteJob]:
        """The jobs that Slurm's own rules do not keep back."""
        return self._waiting

    def running(self) -> Mapping[str, SiteRun]:
        """What Slurm runs, decided by berth or not, and what it is to start."""
        return self._running

    def others(self) -> Mapping[Gpu, Share]:
        """The shards that Slurm counts though no job has them; it knows no processes that are no job's."""
        held = {}
        for gpu, count in self.leaked.items():
            node, card_mib = self._nodes[gpu.node], self._card_mib(gpu.node)
            held[gpu] = Share(1000 * count // node.shards_a_gpu, card_mib * count // node.shards_a_gpu)
        return held

    def in_use(self) -> Set[Gpu]:
        """The GPUs that were in use when Slurm's nodes were last queried."""
        return self._in_use

    def ended(self) -> Sequence[End | FailedStart]:
        """What ended or did not start since this was asked last."""
        ends, self._ends = self._ends, []
        return ends

    def ended_tasks(self, gang: str) -> int:
        """None: the components of a heterogeneous job end together."""
        return 0

    # What is done

    def start(self, start: Start) -> None:
        """Release a job on these GPUs."""
        job_id, note, waits = start.job_id, self.found.notes[start.job_id], self._waiting[start.job_id]
        job, where = self.found.jobs[job_id], where_of(start.gpus)
        if start.share.milli < WHOLE_GPU.milli and not asks_for_compute(job):
            start = start._replace(best_effort=True)
        try:
            order = order_of(start, note, self._nodes, job.tres_per_node)
        except LeftToSlurmError as why:
            self._let_go(job_id, note, str(why))
            self._not_started.add(job_id)
            if job.het:
                self._not_whole.add(job.het_id)
            return
        line = self._journal.decided(
            self._now_ms,
            PLACED,
            job,
            waits.job,
            start.share,
            where,
            best_effort=start.best_effort,
        )
        self._orders[job_id] = order, line
        gpus = tuple(gpu for gpu in start.gpus if gpu.index != NO_GPU)
        run = SiteRun(waits, gpus, start.nodes, start.share, start.best_effort, started=False)
        now_noted = note_of(order.admin_comment or "") or note
        self._placed[job_id] = _Placed(self._now_ms, now_noted, where, run)

    def advise(self, job_id: str, gpus: Sequence[Gpu], share: Share) -> None:
        """Log where a job would start, once."""
        if job_id not in self._advised:
            self._advised.add(job_id)
            job, ours = self.found.jobs[job_id], self._waiting[job_id].job
            self._journal.decided(self._now_ms, ADVISED, job, ours, share, where_of(gpus))

    def again(self, again: Again) -> None:
        """Queue a job again that ran out of GPU memory; of one that did not start, remember when to try again."""
        job_id = again.job_id
        job, _ = self._out_of_memory.pop(job_id, (None, 0))
        if job is None:
            self._remember(again)
            return
        note = note_of(job.admin_comment)
        if note is None or not self._places:
            return
        memory = again.memory
        self._journal.add(self._now_ms, TAKEN_BACK, job, why=again.why)
        needs = replace(note, retries=memory.times, needs_mib=memory.mib)
        self._changes = [change for change in self._changes if change.job_id != job_id]
        self._changes.append(self._requeue(job_id, needs))
        requeued = {change.job_id for change in self._changes}
        others = {**self.found.jobs, **self._gone}.values() if job.het else ()
        for other in others:  # the components of a heterogeneous job are queued again together
            its = note_of(other.admin_comment)
            if other.het_id == job.het_id and other.id not in requeued and its is not None:
                self._changes.append(self._requeue(other.id, its))

    def _requeue(self, job_id: str, note: Note) -> Change:
        waits = str(replace(note, share=None, best_effort=False, failures=0, why=""))
        return Change(
            job_id, requeue=True, after_s=self.again_after_s, hold=True, node_list="", admin_comment=waits
        )

    def _remember(self, again: Again) -> None:
        """Remember a failed start, here and in the job's note."""
        job_id = again.job_id
        self._failures[job_id] = again
        if again.why:
            self.reasons[job_id] = again.why
        waits, note = self._waiting.get(job_id), self.found.notes.get(job_id)
        if waits is not None:
            self._waiting[job_id] = self._site_job(waits.job, self.found.jobs[job_id])
        if not self._places or note is None or not again.start_failures:
            return
        noted = replace(
            note,
            share=None,
            best_effort=False,
            failures=again.start_failures,
            until_ms=again.not_before_ms,
            why=again.why,
        )
        for at, change in enumerate(self._changes):
            if change.job_id == job_id and change.hold:  # it is held again anyway
                self._changes[at] = replace(change, admin_comment=str(noted))
                return
        if waits is not None:
            self._changes.append(Change(job_id, admin_comment=str(noted)))

    def evict(self, job_id: str) -> None:
        """Have Slurm stop a job that berth started, and hold it until it starts anew."""
        if job_id in self._orders:  # it was to start in this round, and is not released
            self._journal.withdraw([self._orders.pop(job_id)[1]])
            self._drop([job_id])
            return
        job = self.found.jobs[job_id]
        note = note_of(job.admin_comment)
        if note is None or not self._can_requeue(job):  # its rank forbids that any policy chooses it
            self._not_started.add(job_id)
            return
        self._journal.add(self._now_ms, TAKEN_BACK, job, why="it makes room for a more urgent job")
        self._changes.append(self._requeue(job_id, note))

    def give_up(self, given_up: GiveUp) -> None:
        """Log that berth can do no more for a job which ran out of GPU memory, or leave one to Slurm that waits."""
        job_id, note = given_up.job_id, self.found.notes.get(given_up.job_id)
        if job_id in self._waiting and note is not None:
            del self._waiting[job_id]
            self._let_go(job_id, note, given_up.why)
        job, needs_mib = self._out_of_memory.pop(job_id, (None, 0))
        if job is not None and self._places and note_of(job.admin_comment) is not None:
            why = f"{given_up.why}: ask for gpu_mem={needs_mib}M"
            self._journal.add(self._now_ms, GIVEN_UP, job, why=why)

    def note(self, job_id: str, why: str) -> None:
        """Keep why a job waits, for `berth slurm why`."""
        self.reasons[job_id] = why

    def cannot_hold(self, misfits: Mapping[str, str]) -> None:
        """Note at waiting jobs why no node can hold them, where their users see it, until one can; of the tasks of an
        array at the first."""
        if not self._places:
            return
        arrays, changed = set[str](), {change.job_id for change in self._changes} | self._placed.keys()
        for job_id in self._waiting:
            note, array_id = self.found.notes.get(job_id), self.found.jobs[job_id].array_id
            why = "" if array_id in arrays else misfits.get(job_id, "")[:MOST_NOTED]
            if why and array_id:
                arrays.add(array_id)
            if note is not None and not note.failures and note.why != why and job_id not in changed:
                self._changes.append(Change(job_id, admin_comment=str(replace(note, why=why))))

    # What is sent to Slurm

    def placed(self) -> dict[str, str]:
        """The jobs that were placed and have not started yet, with what is said of them."""
        return {
            job_id: f"placed on {placed.where}, and Slurm has not started it yet"
            for job_id, placed in self._placed.items()
        }

    def forget_placed(self) -> None:
        """Hold the jobs again that were placed and have not started, with the next view."""
        self._placed.clear()

    def not_started(self) -> set[str]:
        """The jobs that the driver has started since this was asked last, and that were not released after all."""
        job_ids, self._not_started = self._not_started, set()
        return job_ids

    def carry_out(self) -> None:
        """Write the log, and then make all changes: what is not in the log is not done. LiveError if it cannot be
        written."""
        orders, self._orders = self._orders, {}
        for job_id in [each for each in orders if self.found.jobs[each].het_id in self._not_whole]:
            self._journal.withdraw([orders.pop(job_id)[1]])
            self._drop([job_id])
            self._let_go(job_id, self.found.notes[job_id], "berth cannot start another of its components")
        self._not_whole.clear()
        try:
            self._journal.save()
        except LiveError:
            self._journal.withdraw([line for _, line in orders.values()])
            self._drop(orders)
            raise
        found, holds = self.found, [Change(job_id, hold=True) for job_id in self._to_hold(orders)]
        changes = [*holds, *self._changes, *(order for order, _ in orders.values())]
        whole = [*self._whole(holds), *self._whole(self._changes)]
        requeued = [change.job_id for change in self._changes if change.requeue]
        self._changes = []
        failed = self._change(whole) if requeued else {}
        runs = {
            job_id: self._running[job_id]
            for job_id in requeued
            if job_id in failed and job_id in self._running
        }
        stay = {gpu: job_id for job_id, run in runs.items() for gpu in run.gpus}
        for job_id in orders if stay else ():  # once released there, it could have no other GPUs
            for gpu in self._placed[job_id].run.gpus:
                if gpu in stay:
                    failed[job_id] = f"job {stay[gpu]} keeps its GPU"
        torn = {found.jobs[job_id].het_id: why for job_id, why in failed.items() if job_id in orders}
        torn.pop("", None)  # jobs without components
        failed |= {job_id: torn[het] for job_id in orders if (het := found.jobs[job_id].het_id) in torn}
        released = self._whole(order for job_id, (order, _) in orders.items() if job_id not in failed)
        failed |= self._change(released if requeued else [*whole, *released])
        for change in changes:
            why = failed.get(change.job_id)
            if why is not None and change.admin_comment is not None:  # a hold is repeated with the next view
                self._was_refused(change, why)
        refused = orders.keys() & failed.keys()
        self._ends += [FailedStart(job_id, failed[job_id]) for job_id in sorted(refused)]
        self._drop(refused)
        self._journal.save()

    def _change(self, whole: Sequence[Change]) -> dict[str, str]:
        """Make changes; what went wrong, by the id of each job that was to change."""
        failed = self._apply(whole) if whole else {}
        return failed | {
            each.job_id: failed[change.job_id]
            for change in whole
            if change.job_id in failed
            for each in change.components
        }

    def _whole(self, changes: Iterable[Change]) -> list[Change]:
        """The changes, of which each job has one, with those of components as one of the first of them."""
        found: list[Change] = []
        components: dict[str, list[tuple[SlurmJob, Change]]] = {}
        for change in changes:
            job = self.found.jobs.get(change.job_id) or self._gone.get(change.job_id)
            if job is not None and job.het:
                components.setdefault(job.het_id, []).append((job, change))
            else:
                found.append(change)
        for its in components.values():
            (first, change), *rest = sorted(its, key=lambda each: int(each[0].id.partition("+")[2]))
            change = replace(change, number=first.raw_id)
            others = tuple(
                replace(
                    each, number=job.raw_id, exclude=None if each.node_list is None else "", requeue=False
                )
                for job, each in rest
            )
            if first.raw_id == first.het_id and change.node_list is not None:
                change = replace(change, node_list=None, exclude=self._all_but(first, change.node_list))
            found.append(replace(change, components=others))
        return found

    def _all_but(self, job: SlurmJob, names: str) -> str:
        """The nodes of a job's partition but these; none if these are none."""
        chosen = set(names.split(","))
        if not names:
            return ""
        return ",".join(
            name
            for name, node in sorted(self._nodes.items())
            if job.partition in node.partitions and name not in chosen
        )

    def _drop(self, job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            del self._placed[job_id]
            self._not_started.add(job_id)

    def _to_hold(self, orders: Iterable[str]) -> list[str]:
        """The jobs, and arrays, that need an administrator's hold."""
        found = self.found
        held = [job_id for job_id in found.to_hold if job_id not in {*orders, *found.to_give_back}]
        return list(dict.fromkeys(found.jobs[job_id].array_id or job_id for job_id in held))

    def _was_refused(self, change: Change, why: str) -> None:
        """Log a change that Slurm refused, once; it is tried again later."""
        job_id = change.job_id
        if change.clears:
            wait_ms = min(MOST_PAUSE_MS, 2 * self._given_back.get(job_id, (0, self._patience_ms // 2))[1])
            self._given_back[job_id] = self._now_ms + wait_ms, wait_ms
        job = self.found.jobs.get(job_id) or self._gone.get(job_id)
        if job is None or self._refused.get(job_id) == why:
            return
        self._refused[job_id] = why
        event = GIVEN_UP if change.requeue or change.clears else TAKEN_BACK
        if change.requeue and job_id in self.found.running:
            self._stays.add(job_id)
            self._not_started.add(job_id)
            why = f"it makes no room: Slurm does not queue it again: {why}"
        elif change.requeue:
            why = f"Slurm does not queue it again: {why}"
        elif change.clears:
            why = f"its request cannot be given back, and it is tried again later: {why}"
        self._journal.add(self._now_ms, event, job, why=why)


def _makes_no_room(run: SiteRun) -> SiteRun:
    """A run that starts, and that no other takes the place of."""
    return replace(run, of=replace(run.of, job=replace(run.of.job, priority=HIGHEST)))


def _in_use(nodes: Iterable[SlurmNode]) -> frozenset[Gpu]:
    return frozenset(
        Gpu(node.name, at)
        for node in nodes
        for gres in node.used
        if gres.name == "gpu" and gres.count
        for at in gres.where
        if at < node.gpus
    )


def leaked_shards(nodes: Iterable[SlurmNode], jobs: Iterable[SlurmJob]) -> dict[Gpu, int]:
    """The GPUs of which Slurm counts more shards as used than running jobs have, and how many more: Slurm 22.05 at
    times goes on counting a shard of a job that has ended. None of a node where some job's shards are of any GPU. GPUs
    whose shards it has lost count as full."""
    on_node: dict[str, dict[str, SlurmJob]] = {}
    for job in jobs:
        for name in expand(job.node_list) if job.runs else ():
            on_node.setdefault(name, {})[job.id] = job
    found: dict[Gpu, int] = {}
    for node in nodes:
        lost = (at for kind in node.without if (at := node.index_of(kind)) is not None)
        if node.shards_a_gpu:  # else it has fewer shards than GPUs, and jobs take its GPUs whole
            found |= {Gpu(node.name, at): node.shards_a_gpu for at in lost}
        used = [gres for gres in node.used if gres.name == "shard" and gres.count]
        countable = used and node.typed and node.shards_a_gpu  # else a count says nothing of a GPU
        had = _shards_of_jobs(node, on_node.get(node.name, {}).values()) if countable else None
        if had is None:
            continue
        for gres in used:
            at = node.index_of(gres.kind)
            if at is not None and gres.count > had[gres.kind]:
                found[Gpu(node.name, at)] = min(gres.count - had[gres.kind], node.shards_a_gpu)
    return found


def _shards_of_jobs(node: SlurmNode, jobs: Iterable[SlurmJob]) -> Counter[str] | None:
    """How many shards jobs have of each type of GPU, a whole GPU as all of its own; None if a job does not say."""
    had: Counter[str] = Counter()
    for job in jobs:
        asked = gres_list(job.tres_per_node, odd=True)
        others = job.tres_per_job + job.tres_per_task + job.tres_per_socket
        if "gpu" in others or "shard" in others or not all(gres.kind for gres in asked):
            return None
        for gres in asked:
            had[gres.kind] += gres.count if gres.name == "shard" else node.shards_a_gpu
    return had


def gpus_by_node(gpus: Iterable[Gpu]) -> dict[str, tuple[int, ...]]:
    """The indices of the GPUs on each node, by its name."""
    found: dict[str, tuple[int, ...]] = {}
    for gpu in gpus:
        found[gpu.node] = (*found.get(gpu.node, ()), gpu.index)
    return {name: tuple(sorted(at)) for name, at in sorted(found.items())}


def where_of(gpus: Iterable[Gpu]) -> str:
    """Nodes and GPUs as the log has them: `node1:0+1,node2:0`."""
    return ",".join(
        f"{name}:{'+'.join(map(str, at))}" if at != (NO_GPU,) else name
        for name, at in gpus_by_node(gpus).items()
    )


def order_of(start: Start, note: Note, nodes: Mapping[str, SlurmNode], before: str = "") -> Change:
    """What is to be changed so that the job runs there, its release included.

    Slurm takes one request for all nodes of a job: where their GPUs' types differ, or nodes give none, it is asked for
    the nodes alone and chooses the GPUs itself. `before` is what the job asked for on each node when it was placed
    before. It keeps that, because Slurm takes no type back: it adds others to it (`gres_job_state_validate`), and 22.05
    then never frees some of them. Raises LeftToSlurmError where the GPUs have other types.
    """
    by_node = gpus_by_node(start.gpus)
    noted = replace(note, share=start.share, best_effort=start.best_effort, failures=0, why="")
    if {NO_GPU} == {gpu.index for gpu in start.gpus}:
        return Change(start.job_id, node_list=",".join(by_node), admin_comment=str(noted), hold=False)
    kinds = {tuple(nodes[name].gpu_kinds[at] for at in where) for name, where in by_node.items()}
    kinds_before = {each.kind for each in gres_list(before, odd=True)}
    typed = len(kinds) == 1 and all(nodes[name].typed for name in by_node) and "" not in kinds_before
    first = nodes[next(iter(by_node))]
    each = len(next(iter(by_node.values())))
    shared = start.share.milli < 1000 or start.best_effort
    by_shards = bool(first.shards_a_gpu) and (shared or "shard" in before) and "gpu:" not in before
    if by_shards:
        count = first.shards_a_gpu if not shared else _shards(start, first)
        items = [f"shard:{kind}:{count}" for kind in kinds.pop()] if typed else [f"shard:{count * each}"]
    else:
        items = [f"gpu:{kind}:1" for kind in kinds.pop()] if typed else [f"gpu:{each}"]
    # As the site's Slurm writes what was asked for: `gres/` in later versions.
    asked = f"{note.per_node},{note.per_job},{note.per_task}"
    mark = "gres/" if "gres/" in asked else "gres:"
    gres = ",".join(f"{mark}{item}" for item in items)
    if before and kinds_before != {each.kind for each in gres_list(gres)}:
        raise LeftToSlurmError("Slurm does not exchange the GPUs that it was given before")
    return Change(
        start.job_id,
        node_list=",".join(by_node),
        gres=gres,
        admin_comment=str(noted),
        hold=False,
    )


def _shards(start: Start, node: SlurmNode) -> int:
    """How many shards stand for a part of a GPU in Slurm's accounts: rounded down, so that jobs that fit with one
    another have room there. What is enforced is the partition."""
    milli = start.share.milli
    if start.best_effort:  # compute is not promised, so that memory alone counts
        return 1
    return max(1, node.shards_a_gpu * milli // 1000)


def given_back(job_id: str, note: Note, before: str = "") -> Change:
    """The job with the request that it was submitted with, for Slurm to decide on; one that was placed `before` keeps
    the types of the GPUs or shards that it was placed on, on any node, because Slurm does not take them off again."""
    if before:
        return Change(job_id, node_list="", admin_comment="", hold=False)
    return Change(
        job_id,
        node_list="",
        gres=note.per_node or None,
        per_job=note.per_job or None,
        per_task=note.per_task or None,
        admin_comment="",
        hold=False,
    )


def taken_back(job_id: str, note: Note) -> Change:
    """The job as it waited before it was placed."""
    waits = str(replace(note, share=None, best_effort=False))
    return Change(job_id, hold=True, node_list="", admin_comment=waits)
