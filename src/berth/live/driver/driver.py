"""The driver: feeds the Scheduler from a site, has its decisions carried out, and settles what becomes of attempts.

It does no I/O of its own and knows no clock. All that it must not forget is the site's to keep: a new driver that sees
the same site decides the same.
"""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

from berth.cluster import Cluster, Running
from berth.counts import counted
from berth.errors import BerthError, KnowledgeError, PolicyError, SchedulerError, SettingError
from berth.knowledge import Knowledge, LearnsMemory, LearnsUnderWay, Spread, make_knowledge
from berth.knowledge.memory_needs import (
    MOST_KINDS,
    PROMISE_QUANTILE,
    PROMISE_STEPS,
    MemoryNeeds,
    as_needed,
    as_promised,
    asks_for_memory,
    expected_mib,
    fits,
    need_of_next_attempt,
)
from berth.knowledge.out_of_memory import MemoryNeed
from berth.live.driver.defaults import DEFAULT_KNOWLEDGE, DEFAULT_POLICY
from berth.live.driver.gangs import GangTasks, SiteGangs, gang_title
from berth.live.driver.records import record_of
from berth.live.driver.site import (
    Again,
    CanEvict,
    CanResize,
    CanSuspend,
    End,
    FailedStart,
    GiveUp,
    Gpu,
    HasGangs,
    KeepsStarts,
    KnowsInUse,
    NamesChanges,
    NodeState,
    RemembersMemory,
    SamplesRuns,
    Site,
    SiteJob,
    SiteNode,
    SiteRun,
    Start,
)
from berth.live.driver.wait_reasons import Candidate, WaitKind, WaitReason, WaitReasons
from berth.model import (
    FIRST_LOOK_MS,
    FOREVER_MS,
    NO_GPU,
    GpuSlot,
    Job,
    Node,
    Placement,
    Record,
    RecordState,
    Share,
    WakeAt,
    gang_of,
)
from berth.policies import Setting, is_oracle, make_policy
from berth.policies.protocol import Reserving
from berth.scheduler import (
    Attempts,
    Evicted,
    Held,
    Learned,
    NeverFits,
    Refused,
    Resized,
    Resumed,
    Scheduler,
    StartForecast,
    StartInterval,
    Suspended,
)

log = logging.getLogger(__name__)

PREEMPTED, OUT_OF_MEMORY = RecordState.PREEMPTED, RecordState.OUT_OF_MEMORY
MOST_NAMED = 3
"""Jobs of the queue that are named with why a job waits."""
MUCH_THE_SAME_MS = 30_000
"""Start intervals that differ by no more, or by a tenth of what is left until they end, stay as they were."""
MOST_ENDS = 10_000
"""Ended attempts that are remembered, so that an end that is reported again changes nothing."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a driver decides."""

    policy: str = DEFAULT_POLICY
    knowledge: str = DEFAULT_KNOWLEDGE
    quotas: Mapping[str, int] | None = None
    """GPUs of each virtual cluster, for an order with a placement; None: there are no quotas."""
    borrow: bool = False
    """Whether a virtual cluster may hold more while no job waits within its quota."""
    most_start_failures: int | None = 5
    """Starts in a row that may fail before the job does; None: any number."""
    start_pause_ms: int = 1000
    """How long a job waits after its first failed start; twice as long each further time."""
    most_start_pause_ms: int = 600_000
    no_room_pause_ms: int = 50
    """How long it waits if others had taken its room, or it was stopped before it began."""
    missed_steps: int = 2
    """Steps in a row in which a site does not mention a job that ran until it counts as gone."""
    promise_quantile: float = PROMISE_QUANTILE
    """A job whose memory may grow is promised what its use stays below with this probability."""
    notes: int = 1000
    """Waiting jobs whose wait reasons the site gets after each decision: the first of the queue."""
    forecast_ms: int = 10_000
    """How old start intervals may be."""
    reclaim: bool = False
    """Whether a job within its quota evicts jobs of virtual clusters that hold more than theirs."""


@dataclass(slots=True)
class Round:
    """What came of one step."""

    placed: list[Placement] = field(default_factory=list)
    evicted: list[str] = field(default_factory=list)
    suspended: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Decisions that could not be applied, and why."""
    records: list[Record] = field(default_factory=list)
    """Attempts that ended, without what only samples tell."""
    fault: BerthError | None = None
    """What the policy or the knowledge raised, after what was placed by then."""
    out_of_time: bool = False
    """Whether the policy was stopped; what it placed stands."""


@dataclass(frozen=True, slots=True)
class Why:
    """Why one job waits, in full."""

    job: Job
    """With what it turned out to need."""
    reason: WaitReason
    candidates: Sequence[Candidate]
    nodes_lack: Sequence[str]
    """What all nodes that may run it are short of, other than GPUs."""
    never: str
    """Why no node could hold it if nothing else ran; empty if one could."""
    waiting: int
    """How many jobs wait."""
    first: Sequence[str]
    """The first of the queue."""
    run_ms: Spread | None
    """How long it is expected to run."""
    peak_mib: Spread | None


class _Leaving(NamedTuple):
    """A run that was evicted or lost with its node, and whose end the site has not reported yet."""

    run: Running
    gpus: tuple[Gpu, ...]
    state: RecordState
    """How it is taken to end if the site does not report it."""


class Driver:
    """One scheduler that is kept as a site is."""

    def __init__(
        self, site: Site, settings: Settings | None = None, knowledge: Knowledge | None = None
    ) -> None:
        """Raises BerthError if there is no such policy or knowledge."""
        self.site = site
        self.settings = settings or Settings()
        self.knowledge = knowledge or make_knowledge(self.settings.knowledge, grows=True)
        # Asked once: whether an object has all methods of a protocol takes a tenth of a decision.
        self._learns_memory = self.knowledge if isinstance(self.knowledge, LearnsMemory) else None
        self._names_changes = site if isinstance(site, NamesChanges) else None
        self._remembers = site if isinstance(site, RemembersMemory) else None
        self._can_suspend = site if isinstance(site, CanSuspend) else None
        self._keeps_starts = site if isinstance(site, KeepsStarts) else None
        self._samples = site if isinstance(site, SamplesRuns) else None
        if isinstance(self.knowledge, LearnsUnderWay):
            self.knowledge.first_look_ms = FIRST_LOOK_MS if self._samples is not None else None
        self._ordered: dict[str, bool] = {}  # job -> suspend (True) or resume, until the site has done it
        quotas = self.settings.quotas
        setting = Setting(
            quotas=quotas,
            borrow=self.settings.borrow,
            reclaim=self.settings.reclaim,
            knowledge=self.knowledge,
        )
        self._policy = make_policy(self.settings.policy, setting)
        self._reserves = self._policy if isinstance(self._policy, Reserving) else None
        self._by_run_times = is_oracle(self.settings.policy)  # it would be one if its beliefs were true
        self._reserved_ms: Mapping[str, int] = {}
        self._forecast = StartForecast()
        self._judged = 0  # starts that the site has kept what was learned of
        self._starts: Mapping[str, StartInterval] = {}
        self._startless: Set[str] = frozenset()
        """Waiting jobs that the last forecast found no start of."""
        self._forecast_of = (FOREVER_MS, 0)  # when the start intervals were made, and the changes until then
        self._scheduler: Scheduler | None = None
        self._nodes: tuple[Node, ...] = ()
        self._seen_nodes: Sequence[SiteNode] | None = None
        self._away: dict[str, NodeState] = {}
        self._others: dict[GpuSlot, Share] = {}
        self._in_use: Set[Gpu] = frozenset()
        self._unexplained: dict[Gpu, Share] = {}  # in use, and by no job that is known
        self._needs = MemoryNeeds()
        self._believed: dict[Hashable, tuple[int, int]] = {}
        """Of jobs that are alike: how many attempts ended, and what waiting ones are promised, MiB."""
        self._known: dict[str, SiteJob] = {}  # of jobs that wait or run
        self._last_order: tuple[int, ...] = ()
        self._on_named_gpus: dict[str, SiteJob] = {}  # waiting jobs whose users named the GPUs, in order
        self._misfits: dict[str, WaitReason] = {}
        self._wakes_ms: set[int] = (
            set()
        )  # when the policy wants to be asked again; a trial undoes the scheduler's
        self._later: dict[str, int] = {}  # waiting jobs that are not to start before then
        self._starting: dict[str, int] = {}  # the versions of jobs that were started and do not run yet
        self._leaving: dict[str, _Leaving] = {}
        self._looks_ms: dict[str, int] = {}
        """When each running job of an unknown application is looked at next."""
        self._has_gangs = site if isinstance(site, HasGangs) else None
        self._gangs = SiteGangs()
        self._compares_all = False  # even where the site names what changed
        self._missed: dict[str, int] = {}  # steps in which the site did not mention them
        self._ends: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._untaken: deque[End | FailedStart] = deque()
        """Ends that the site reported and that are not taken in yet, as one before them raised."""
        self._noted: dict[str, str] = {}
        self.unplaced: dict[str, str] = {}
        """Jobs that run and for which no room is known, and why."""

    @property
    def begun(self) -> bool:
        return self._scheduler is not None

    @property
    def scheduler(self) -> Scheduler:
        """Raises SchedulerError before the first step."""
        if self._scheduler is None:
            raise SchedulerError("the driver has not looked at its site yet")
        return self._scheduler

    @property
    def misfits(self) -> Mapping[str, str]:
        """Waiting jobs that no node of today could hold, and why; they hold up no others."""
        return {job_id: reason.obstacle for job_id, reason in self._misfits.items()}

    def next_ms(self, now_ms: int) -> int | None:
        """When to step again if nothing happens before; None: not before something does."""
        times = (*self._later.values(), *self._wakes_ms, *self._looks_ms.values())
        return min((time_ms for time_ms in times if time_ms > now_ms), default=None)

    # One step

    def step(
        self, now_ms: int, *, out_of_time: Callable[[], bool] | None = None, for_real: bool = True
    ) -> Round:
        """Take in what the site has now, decide, and have it carried out; unless `for_real`, only say what would be.

        An error of berth's own ends the step and is its fault; what came of it by then is returned all the same.
        """
        done = Round()
        try:
            self._take_in(now_ms, done.records)
            self._decide(done, now_ms, out_of_time or (lambda: False), for_real=for_real)
            self._keep_starts()
            self._note(now_ms)
        except BerthError as error:
            done.fault = done.fault or error
            self._compares_all = True  # what the site named as changed may not have been taken in
        return done

    # What the site has

    def _take_in(self, now_ms: int, records: list[Record]) -> None:
        changed = self._names_changes.changed() if self._names_changes is not None else None
        if self._compares_all:
            self._compares_all, changed = False, None
        self._wakes_ms = {wake_ms for wake_ms in self._wakes_ms if wake_ms > now_ms}
        back = self._take_nodes(now_ms)
        self._take_ends(now_ms, records)
        self._end_lost(back, now_ms, records)
        self._hold_for_others(self.site.others(), now_ms)
        self._take_runs(changed, now_ms, records)
        self._take_in_use(now_ms)
        self._look_at_runs(now_ms)
        self._take_waiting(changed, now_ms)
        self._queue_gangs(now_ms)

    def _take_nodes(self, now_ms: int) -> set[str]:
        """Make the nodes those of the site; returns which are back."""
        listed, back = self.site.nodes(), set[str]()
        if listed is self._seen_nodes and isinstance(listed, tuple):
            return back  # to compare 5,000 nodes cost 1.5 of the 1.8 ms that a pod took a steerer
        nodes = tuple(each.node for each in listed)
        if self._scheduler is None:
            cluster = Cluster(nodes or [Node("no node yet", 0, None, 0, 0)])
            self._scheduler = Scheduler(cluster, self._policy, self.knowledge)
            if not nodes:
                self._scheduler.nodes_changed([], now_ms)
            self._nodes = nodes
            self._recall_starts()
        elif nodes != self._nodes:
            self._nodes = nodes
            self._has_left(self.scheduler.nodes_changed(nodes, now_ms), now_ms)
            self._reconsider_misfits(now_ms)
        for node, state in listed:
            before = self._away.get(node.name, NodeState.UP)
            if state is before:
                continue
            if state is NodeState.LOST:
                self._has_left(self.scheduler.node_lost(node.name, now_ms), now_ms)
            elif before is NodeState.UP:
                self.scheduler.node_drained(node.name)
            elif state is NodeState.UP:
                self.scheduler.node_back(node.name)
                back.add(node.name)
        self._away = {node.name: state for node, state in listed if state is not NodeState.UP}
        self._seen_nodes = listed
        return back

    def _has_left(self, runs: Iterable[Running], now_ms: int) -> None:
        """What was on a node that is gone waits again when the site says so."""
        for run in runs:
            self._unqueue(run.job.id, now_ms)
            self._starting.pop(run.job.id, None)
            self._leaving[run.job.id] = _Leaving(run, self._gpus(run.slots), RecordState.NODE_FAIL)
        self._keep_rest_of_gangs()

    def _end_lost(self, back: Set[str], now_ms: int, records: list[Record]) -> None:
        """What a site still runs on a node that is back was not lost with it; the rest was, whatever comes later."""
        for job_id, gone in [*self._leaving.items()]:
            if gone.state is not RecordState.NODE_FAIL or back.isdisjoint(gpu.node for gpu in gone.gpus):
                continue
            if job_id in self.site.running():
                del self._leaving[job_id]
            else:
                self._end(End(job_id, gone.state, now_ms, waits_again=True), now_ms, records)

    def _look_at_runs(self, now_ms: int) -> None:
        """Learn from runs of unknown applications before they end: at first after `FIRST_LOOK_MS`, and again each time
        one has run twice as long."""
        if self._samples is None:
            return
        before, self._looks_ms = self._looks_ms, {}
        for run in self.measured.values():
            look_ms = before.get(run.job.id, run.start_ms + FIRST_LOOK_MS)
            if look_ms <= now_ms:
                look_ms = max(now_ms, 2 * now_ms - run.start_ms)
                profile = self._samples.sampled(run.job.id)
                if profile is not None:
                    self.scheduler.sampled(run, profile, now_ms)
            self._looks_ms[run.job.id] = look_ms

    def _take_in_use(self, now_ms: int) -> None:
        """A GPU that is in use and on which no job is known is others', until the site looks at its GPUs again."""
        cluster, site = self.scheduler.cluster, self.site
        if not isinstance(site, KnowsInUse) or (in_use := site.in_use()) is self._in_use:
            return
        self._in_use, self._unexplained = in_use, {}
        ours = {slot for run in cluster.running.values() for slot in run.slots}
        ours |= {
            slot
            for job_id in self._ordered
            if job_id in cluster.suspended
            for slot in cluster.suspended[job_id].slots
        }
        ours |= {slot for gone in self._leaving.values() for slot in gone.run.slots}
        for gpu in in_use:
            slot = self._slot(gpu)
            if slot is not None and slot not in ours:
                model = cluster.nodes[slot.node].gpu_model
                self._unexplained[gpu] = Share(1000, model.mem_mib if model is not None else 0)
        self._hold_for_others(site.others(), now_ms)

    def _hold_for_others(self, others: Mapping[Gpu, Share], now_ms: int) -> None:
        """What others hold is not given away."""
        scheduler, cluster = self.scheduler, self.scheduler.cluster
        held = {
            slot: share
            for gpu, share in {**self._unexplained, **others}.items()
            if (slot := self._slot(gpu)) is not None
        }
        if held == self._others:
            return
        for slot in self._others.keys() - held.keys():
            if slot.node < len(cluster.nodes) and slot.index < cluster.nodes[slot.node].gpus:
                scheduler.strangers(slot, 0, 0)
        for slot, share in held.items():
            if self._others.get(slot) != share:
                scheduler.strangers(slot, *share)
        self._others = held
        self._reconsider_misfits(now_ms)

    def _take_runs(self, changed: Collection[str] | None, now_ms: int, records: list[Record]) -> None:
        """Adopt what runs that is not known, confirm what has begun, and let go of what the site no longer has."""
        cluster, running, waiting = self.scheduler.cluster, self.site.running(), self.site.waiting()
        reported = list(running) if changed is None else [*changed, *self.unplaced]
        # What one left, another may have grown by.
        reported.sort(key=lambda job_id: job_id not in running or not running[job_id].suspended)
        for job_id in reported:
            run = running.get(job_id)
            if run is None or job_id in self._leaving:
                continue
            self._missed.pop(job_id, None)
            known = self.scheduler.run_of(job_id)
            if known is not None and self._is_elsewhere(run, known):
                self._release(job_id, now_ms)
                known = None
            if known is None:
                self._adopt(run, now_ms)
            elif run.suspended or job_id in cluster.suspended:
                self._keep_suspension(run, known, now_ms)
            else:
                if self._ordered.get(job_id) is False:
                    del self._ordered[job_id]  # it comes back, as ordered
                if run.share not in (None, known.share):
                    self._take_size(run, now_ms)
                if run.started and job_id in self._starting:
                    self._starting.pop(job_id)
                    self.scheduler.started(job_id)
            if (known := self.scheduler.run_of(job_id)) is not None:
                self._known[job_id] = run.of
                self._keep_limits(known, run.of.job)
        for job_id in self.unplaced.keys() - running.keys():
            del self.unplaced[job_id]
        patience = self.settings.missed_steps if changed is None else 1
        for job_id in [*cluster.running, *cluster.suspended] if changed is None else list(changed):
            if self.scheduler.run_of(job_id) is None or job_id in running:
                continue
            starts = job_id in self._starting
            if starts and (job := waiting.get(job_id)) is not None and job.version == self._starting[job_id]:
                continue  # the site has not come to it yet
            self._missed[job_id] = self._missed.get(job_id, 0) + (patience if job_id in waiting else 1)
            if self._missed[job_id] < patience:
                continue
            del self._missed[job_id]
            if starts:
                self._release(job_id, now_ms)
            else:
                state = PREEMPTED if job_id in waiting else RecordState.CANCELLED
                self._end(End(job_id, state, now_ms, waits_again=True), now_ms, records)
        for job_id, gone in [*self._leaving.items()]:
            if job_id in waiting and job_id not in running:  # the site queued it again and reported no end
                self._end(End(job_id, gone.state, now_ms, waits_again=True), now_ms, records)

    def _keep_suspension(self, run: SiteRun, known: Running, now_ms: int) -> None:
        """Make a job suspended or running as the site has it, unless the site has not come yet to what was ordered."""
        scheduler, job_id = self.scheduler, known.job.id
        suspended = job_id in scheduler.cluster.suspended
        if self._ordered.get(job_id) is run.suspended:
            del self._ordered[job_id]
        if suspended and run.suspended:
            known.resumes = run.resumes
        if suspended is run.suspended or job_id in self._ordered:
            return
        try:
            if run.suspended:
                scheduler.suspended(job_id, now_ms, held_mib=run.parked_mib, resumes=run.resumes)
            else:
                scheduler.resumed(job_id, now_ms)
        except SchedulerError:  # there is no such room, and it is so all the same
            self._release(job_id, now_ms)
            self._adopt(run, now_ms)

    def _is_elsewhere(self, run: SiteRun, known: Running) -> bool:
        """Whether a site runs a job on other GPUs than ordered."""
        slots = [self._slot(gpu) for gpu in run.gpus]
        if slots:
            return None not in slots and set(slots) != set(known.slots)
        rows = {self.scheduler.cluster.row_of(name) for name in run.nodes}
        return bool(rows) and None not in rows and rows != {slot.node for slot in known.slots}

    def _take_size(self, run: SiteRun, now_ms: int) -> None:
        """A site has changed what a running job has; if no room is known for that, it is tried again at each step."""
        assert run.share is not None
        job_id = run.of.job.id
        try:
            self.scheduler.resize(job_id, run.share, now_ms)
            self.unplaced.pop(job_id, None)
        except SchedulerError as error:
            self.unplaced[job_id] = str(error)

    def _keep_limits(self, run: Running, job: Job) -> None:
        """The time limit and the priority of a running job are its user's to change."""
        if (run.job.time_limit_ms, run.job.priority) != (job.time_limit_ms, job.priority):
            self.scheduler.replace(replace(run.job, time_limit_ms=job.time_limit_ms, priority=job.priority))

    def _adopt(self, run: SiteRun, now_ms: int) -> bool:
        """Note a running job, started by berth or not; whether there is room for it where it runs."""
        scheduler, job = self.scheduler, as_needed(run.of.job, run.of.memory)
        share = job.share if run.share is None else run.share
        slots = self._slots_of_run(run, job, share)
        if slots is None:
            where = ", ".join(map(str, run.gpus or run.nodes)) or "nowhere"
            self.unplaced[job.id] = f"it runs on {where}, where no room is known for it"
            return False
        # What it asks of its nodes may not be what it asked for: it is there, whatever labels and models say.
        here = replace(job, models=(), labels=(), nodes=len({slot.node for slot in slots}))
        if share.mem_mib > job.share.mem_mib and job.share.mem_mib:  # it has grown, or was promised more
            here = replace(here, share=Share(job.share.milli, share.mem_mib))
        if run.of.gang is not None:
            here = self._as_task(run.of, here)
            self._unqueue(job.id, now_ms)
            self._gangs.touch(run.of)
        start_ms = min(now_ms if run.start_ms is None else run.start_ms + run.suspended_ms, now_ms)
        self._number(run.of)
        names = {scheduler.cluster.nodes[slot.node].name for slot in slots}
        drained = [name for name in names if self._away.get(name) is NodeState.DRAINED]
        for name in drained:  # nothing new starts there, and this is not new
            scheduler.node_back(name)
        wish = Placement(here, slots, share, run.best_effort, run.best_effort)
        try:
            if run.suspended_since_ms is not None:
                self._unqueue(job.id, now_ms)
                scheduler.adopt_suspended(
                    wish, start_ms, run.suspended_since_ms, held_mib=run.parked_mib, resumes=run.resumes
                )
                placed = True
            else:
                placed = scheduler.place(wish, start_ms)
            why = "" if placed else f"it runs on {', '.join(map(str, run.gpus or run.nodes))}, which is full"
        except BerthError as error:
            why = str(error)
        finally:
            for name in drained:
                scheduler.node_drained(name)
        if why:
            self.unplaced[job.id] = why
            return False
        self.unplaced.pop(job.id, None)
        self._on_named_gpus.pop(job.id, None)
        self._misfits.pop(job.id, None)
        self._needs.learn(run.of.alike, run.of.memory)
        self._known[job.id] = run.of
        if run.suspended:
            pass
        elif run.started:
            scheduler.started(job.id)
        else:
            self._starting[job.id] = run.of.version
        return True

    def _slots_of_run(self, run: SiteRun, job: Job, share: Share) -> tuple[GpuSlot, ...] | None:
        """The slots that a running job has; if only its nodes are known, GPUs there that have room, those that are in
        use first."""
        cluster = self.scheduler.cluster
        if run.gpus:
            found = [self._slot(gpu) for gpu in run.gpus]
            known = tuple(slot for slot in found if slot is not None)
            return known if len(known) == len(found) else None
        rows = [row for name in run.nodes if (row := cluster.row_of(name)) is not None]
        if not rows or len(rows) < len(run.nodes):
            return None
        if not job.gpus:
            return tuple(GpuSlot(row, NO_GPU) for row in rows)
        in_use = self.site.in_use() if isinstance(self.site, KnowsInUse) else frozenset()
        slots: list[GpuSlot] = []
        for name, row in zip(run.nodes, rows, strict=True):
            wanted = -(-job.gpus // len(rows))
            order = sorted(range(cluster.nodes[row].gpus), key=lambda at: Gpu(name, at) not in in_use)
            roomy = [
                GpuSlot(row, at) for at in order if self._has_room(GpuSlot(row, at), share, run.best_effort)
            ]
            if len(roomy) < wanted:
                return None
            slots += roomy[:wanted]
        return tuple(slots)

    def _has_room(self, slot: GpuSlot, share: Share, best_effort: bool = False) -> bool:
        free = self.scheduler.cluster.free_on(slot)
        return (best_effort or free.milli >= share.milli) and free.mem_mib >= share.mem_mib

    def _take_waiting(self, changed: Collection[str] | None, now_ms: int) -> None:
        """Make the queue that of the site."""
        scheduler, waiting = self.scheduler, self.site.waiting()
        if changed is None:
            queued = (task.id for job in scheduler.queue for task in job.tasks or (job,))
            gone = [job_id for job_id in queued if job_id not in waiting]
            others = (*self._on_named_gpus, *self._misfits)
            gone += [job_id for job_id in others if job_id not in waiting]
            for job_id in gone:
                self._leave_queue(job_id, now_ms, comes_again=False)
            ids = list(waiting)
        else:
            for job_id in changed:
                if job_id not in waiting:
                    self._leave_queue(job_id, now_ms, comes_again=False)
            due = [job_id for job_id, later_ms in self._later.items() if later_ms <= now_ms]
            ids = sorted(
                (job_id for job_id in {*changed, *due} if job_id in waiting),
                key=lambda job_id: waiting[job_id].order,
            )
        for job_id in ids:
            self._queue(waiting[job_id], now_ms)
        for job_id in list(self._known) if changed is None else changed:
            if job_id not in waiting and scheduler.run_of(job_id) is None and job_id not in self._leaving:
                self._known.pop(job_id, None)
                self._noted.pop(job_id, None)

    def _queue(self, job: SiteJob, now_ms: int) -> None:
        """Let a job wait, or wait as its user changed it."""
        job_id, before = job.job.id, self._known.get(job.job.id)
        if self.scheduler.run_of(job_id) is not None:
            if self._starting.get(job_id, job.version) == job.version:
                return  # it was started, and the site has not come to it yet
            self._release(job_id, now_ms)
        queued = self.scheduler.waits(job_id) or job_id in self._on_named_gpus or job_id in self._misfits
        if before is not None and before != job and _is_resized(before, job):
            self._needs.forget(job.alike)
        self._needs.learn(job.alike, job.memory)
        self._known[job_id] = job
        if job.not_before_ms > now_ms:
            self._leave_queue(job_id, now_ms)
            self._later[job_id] = job.not_before_ms
            return
        self._later.pop(job_id, None)
        if queued and before == job:
            return
        if queued and (before is None or before.order != job.order or job.only_gpus != before.only_gpus):
            self._leave_queue(job_id, now_ms)
        self._offer(job, now_ms)

    def _offer(self, job: SiteJob, now_ms: int, *, anew: bool = False) -> None:
        """Have the scheduler decide on a job as it is now; `anew`: also if only what is believed of it is another."""
        job_id = job.job.id
        needs = self._need_of(job)
        asked = as_needed(self._as_promised(job), needs)
        if needs != job.memory and self._remembers is not None:
            self._remembers.remember(job_id, needs)
        self._misfits.pop(job_id, None)
        self._number(job)
        if job.only_gpus:
            self._on_named_gpus[job_id] = job
            if job.order < self._last_order:
                self._on_named_gpus = dict(
                    sorted(self._on_named_gpus.items(), key=lambda item: item[1].order)
                )
            self._last_order = max(job.order, self._last_order)
            return
        if job.gang is not None:
            self._gangs.touch(job)
            return
        self._submit(asked, job.order, now_ms, anew=anew)

    def _submit(self, asked: Job, order: tuple[int, ...], now_ms: int, *, anew: bool = False) -> None:
        """Have a job or a gang wait in its place, or as it is now."""
        scheduler = self.scheduler
        try:
            if (queued := scheduler.queue.named(asked.id)) is not None:
                if anew or queued != asked:
                    scheduler.replace(asked)
                return
            ahead_of = None
            if order < self._last_order:  # it keeps a place among those that wait already
                ahead_of = next(
                    (each for each in scheduler.queue if self._known[each.id].order > order), None
                )
            self._last_order = max(order, self._last_order)
            scheduler.submit(asked, ahead_of=ahead_of)
        except SchedulerError as error:  # it makes no sense, and holds up no other
            self._is_misfit(asked, str(error), now_ms)

    def _is_misfit(self, job: Job, why: str, now_ms: int) -> None:
        """A job or a gang that could not start if nothing else ran waits without holding up others."""
        for task in job.tasks or (job,):
            self._leave_queue(task.id, now_ms)
            self._misfits[task.id] = WaitReason(WaitKind.MISFIT, why)
        if job.gang:
            self._gangs.leave(job.gang)

    # Gangs

    def _queue_gangs(self, now_ms: int) -> None:
        """Have each gang that has changed wait or run by one rule."""
        if self._has_gangs is None:
            return
        ended = {name: self._has_gangs.ended_tasks(name) for name in self._gangs.names}
        for name in self._gangs.take_touched(ended):
            tasks = self._tasks_of(name)
            if tasks is not None:
                self._queue_gang(tasks, now_ms)

    def _tasks_of(self, name: str) -> GangTasks | None:
        return self._gangs.tasks(name, self._known, self.scheduler.cluster.running, self._leaving)

    def _queue_gang(self, tasks: GangTasks, now_ms: int) -> None:
        """Queue the tasks as one gang if as many are there as are missing, and once it is whole each by itself.

        If a task waits again and too few are left, the others are stopped, and all wait as one gang again.
        """
        stops = isinstance(self.site, CanEvict) and not tasks.gang.whole
        if stops and tasks.missing > 0 and tasks.running and tasks.waiting:
            for run in self.scheduler.evict(tasks.running, now_ms):
                self._stop_for_others(run, now_ms)
            tasks = tasks._replace(running=[])
        ready = [job for job in tasks.waiting if job.job.id not in self._later]
        asked = [self._as_task(job, self._as_needed(job)) for job in ready]
        wanted = [(task, job.order) for task, job in zip(asked, ready, strict=True)]
        if tasks.missing > len(ready):
            wanted = []
        elif tasks.missing > 1:
            wanted = [(gang_of(asked, tasks.missing, tasks.gang.name), ready[0].order)]
        wanted_by_id = {job.id: job for job, _ in wanted}
        for job in tasks.waiting:
            self._misfits.pop(job.job.id, None)
            queued = self.scheduler.waiting(job.job.id)
            if queued is not None:
                instead = wanted_by_id.get(queued.id)
                if instead is None or (instead != queued and (instead.tasks or queued.tasks)):
                    self._unqueue(queued.id, now_ms)
        for job in ready:
            self._number(job)
        for each, order in wanted:
            self._submit(each, order, now_ms)

    def _as_task(self, job: SiteJob, asked: Job) -> Job:
        """A job as a task of its gang."""
        if job.gang is None:
            return asked
        ended = self._has_gangs.ended_tasks(job.gang.name) if self._has_gangs is not None else 0
        return replace(asked, gang=job.gang.name, min_tasks=max(1, job.gang.min_tasks - ended))

    def _keep_rest_of_gangs(self) -> None:
        """The scheduler stops the others as soon as a task is lost. They run on here until the site says that the task
        waits again, which may never be."""
        for run in self.scheduler.take_evicted():
            self._put_back(run)

    def _put_back(self, run: Running) -> None:
        """A run that the scheduler gave up goes on."""
        job_id = run.job.id
        job = self._known.get(job_id)
        times, queued_ms = (job.memory.times, job.queued_ms) if job is not None else (0, None)
        self.scheduler.number(job_id, Attempts(run.attempt, times, 0, queued_ms))
        wish = Placement(run.job, run.slots, run.share, run.shared, run.best_effort)
        if self.scheduler.place(wish, run.start_ms) and job_id not in self._starting:
            self.scheduler.started(job_id)

    def _gang_reason(self, job: SiteJob) -> WaitReason | None:
        """Why a task waits that is not in the scheduler's queue."""
        tasks = self._tasks_of(job.gang.name) if job.gang is not None else None
        if tasks is None:
            return None
        lacking = tasks.missing - sum(each.job.id not in self._later for each in tasks.waiting)
        if lacking <= 0:
            return None
        more = f"{lacking} more {'task' if lacking == 1 else 'tasks'}"
        return WaitReason(WaitKind.GANG, f"waits for {more} of gang {gang_title(tasks.gang.name)}")

    def _number(self, job: SiteJob) -> None:
        if job.attempt > 1:
            times = job.memory.times
            self.scheduler.number(job.job.id, Attempts(job.attempt, times, 0, job.queued_ms))

    def _unqueue(self, job_id: str, now_ms: int, *, comes_again: bool = True) -> None:
        """Take a job out of the scheduler's queue if it waits there, with its gang if it waits in one."""
        queued = self.scheduler.waiting(job_id)
        if queued is not None:  # the rest of a gang waits on
            self.scheduler.withdraw(job_id, now_ms, comes_again=comes_again or bool(queued.tasks))

    def _leave_queue(self, job_id: str, now_ms: int, *, comes_again: bool = True) -> None:
        self._on_named_gpus.pop(job_id, None)
        self._misfits.pop(job_id, None)
        self._later.pop(job_id, None)
        self._unqueue(job_id, now_ms, comes_again=comes_again)
        if (job := self._known.get(job_id)) is not None:
            self._gangs.touch(job)

    def _reconsider_misfits(self, now_ms: int) -> None:
        """Nodes or others changed, so that what fitted nowhere may fit."""
        misfits, self._misfits = self._misfits, {}
        for job_id in misfits:
            if (job := self._known.get(job_id)) is not None:
                self._offer(job, now_ms)

    def _release(self, job_id: str, now_ms: int) -> None:
        """Take a job off the cluster that does not run there after all; it is no end of it."""
        self._starting.pop(job_id, None)
        self._ordered.pop(job_id, None)
        self.scheduler.release(job_id, now_ms)

    # What ended

    def _take_ends(self, now_ms: int, records: list[Record]) -> None:
        self._untaken.extend(self.site.ended())
        while self._untaken:
            end = self._untaken.popleft()
            if isinstance(end, FailedStart):
                self._failed_start(end, now_ms)
            else:
                self._end(end, now_ms, records)

    def _end(self, end: End, now_ms: int, records: list[Record]) -> None:
        """An attempt ended: release it, learn from it, record it, and say whether its job waits again."""
        scheduler, job_id = self.scheduler, end.job_id
        gone = self._leaving.get(job_id)
        run = scheduler.run_of(job_id) or (gone.run if gone is not None else None)
        ran, waits = end.ran or self.site.running().get(job_id), self.site.waiting().get(job_id)
        of = self._known.get(job_id) or (ran.of if ran is not None else waits)
        now = (
            run.attempt if run is not None else max((each.attempt for each in (of, waits) if each), default=0)
        )
        attempt = end.attempt or now
        if of is None or attempt < now:
            return  # it was reported before
        if (job_id, attempt) in self._ends:
            if scheduler.run_of(job_id) is not None and job_id not in self._starting:
                scheduler.release(job_id, now_ms)  # the site forgot that it had ended, and reports it again
            return
        if run is None and ran is not None:
            self._adopt(ran, now_ms)
            run = scheduler.run_of(job_id)
        if run is None and ran is None and not end.attempt:
            return
        self._ends[job_id, attempt] = None
        if len(self._ends) > MOST_ENDS:
            self._ends.popitem(last=False)
        if job_id in scheduler.cluster.suspended and run is not None:
            run.wake(now_ms)
        records.append(self._record(of, end, run, ran, attempt))
        held_mib = 0
        if end.state is OUT_OF_MEMORY:
            given_mib = run.share.mem_mib if run is not None else 0
            held_mib = max(end.needed_mib, end.peak_mib or 0) or given_mib
        self._starting.pop(job_id, None)
        self._missed.pop(job_id, None)
        self._leaving.pop(job_id, None)
        self._ordered.pop(job_id, None)
        if run is not None and scheduler.run_of(job_id) is not None:
            if job_id in scheduler.cluster.running:
                scheduler.started(job_id)
            scheduler.ended(job_id, end.state, now_ms, held_mib=held_mib)
            self._unqueue(job_id, now_ms)  # the site says whether it waits, and what it asks for then
            self._keep_rest_of_gangs()
        if run is not None and end.peak_mib and self._learns_memory is not None:
            self._learns_memory.measured(run.job, end.peak_mib)
        if run is not None:
            self._believe_anew(of, now_ms)
        self._known.pop(job_id, None)
        self._gangs.touch(of)
        if not end.waits_again:
            self._settle(of, end, held_mib, now_ms)

    def _settle(self, job: SiteJob, end: End, held_mib: int, now_ms: int) -> None:
        """Say whether a job waits for another attempt. One that completed, failed, was cancelled or ran out of time is
        over, which its site knows."""
        job_id, attempt = end.job_id, job.attempt + 1
        if end.state is OUT_OF_MEMORY:
            cards_mib = self._cards_mib(job)
            need = need_of_next_attempt(job.memory, held_mib, cards_mib)
            names_memory = asks_for_memory(job.job)
            if need.times > job.job.retries or not fits(
                job.job, need.mib if names_memory else held_mib, cards_mib
            ):
                why = f"it ran out of GPU memory {counted(need.times, 'time')}, and needs {held_mib} MiB of each GPU"
                self.site.give_up(GiveUp(job_id, end.state, why))
                return
            gets = "whole GPUs" if need.alone or not names_memory else f"{need.mib} MiB of each GPU"
            why = f"its last attempt ran out of GPU memory; the next one gets {gets}"
            self.site.again(Again(job_id, why, attempt, need))
            # Those like it get what it needs, so that they do not run out too.
            self._needs.learn(job.alike, need)
            self._offer_alike(job, now_ms)
        elif end.state is PREEMPTED:
            why = end.why or "stopped, and queued again"
            self.site.again(Again(job_id, why, attempt, job.memory, keeps_place=False))
        elif end.cut_short and job.reruns:
            self.site.again(Again(job_id, f"its last attempt: {end.why or end.state}", attempt, job.memory))
        elif end.cut_short:
            self.site.give_up(GiveUp(job_id, end.state, end.why))

    def _believe_anew(self, job: SiteJob, now_ms: int) -> None:
        """Have the waiting jobs that are like one which ended count with what is believed of them by now: if what they
        are promised has moved, and after 1, 2, 4, 8 … ends where the policy sorts them by their run times."""
        if job.alike is None:
            return
        ends, before_mib = self._believed.get(job.alike, (0, 0))
        mem_mib = self._as_promised(job).share.mem_mib
        moved = bool(job.mem_max_mib) and abs(mem_mib - before_mib) * PROMISE_STEPS > mem_mib
        ends += 1
        if len(self._believed) >= MOST_KINDS:
            self._believed.clear()
        self._believed[job.alike] = ends, mem_mib if moved else before_mib
        if moved or (self._by_run_times and ends & (ends - 1) == 0):
            self._offer_alike(job, now_ms)

    def _offer_alike(self, job: SiteJob, now_ms: int) -> None:
        if job.alike is None:
            return
        for other in list(self._known.values()):
            if other.alike == job.alike and self.scheduler.waits(other.job.id):
                self._offer(other, now_ms, anew=True)

    def _failed_start(self, failed: FailedStart, now_ms: int) -> None:
        """Nothing of an attempt ran: it waits again, longer each time, and fails after several times."""
        job_id, settings = failed.job_id, self.settings
        of = self._known.get(job_id)
        run = self.site.running().get(job_id)
        of = of or (run.of if run is not None else self.site.waiting().get(job_id))
        if job_id in self.scheduler.cluster.running and job_id in self._starting:
            self._release(job_id, now_ms)
        elif job_id in self.scheduler.cluster.running or (run is not None and run.started):
            return  # it runs: the report is old
        self._leaving.pop(job_id, None)
        if of is None:
            return
        counts = bool(failed.why) and not failed.no_room
        failures = of.start_failures + counts
        if settings.most_start_failures is not None and failures >= settings.most_start_failures:
            why = f"it could not be started {failures} times: {failed.why}"
            self._known.pop(job_id, None)
            self.site.give_up(GiveUp(job_id, RecordState.FAILED, why))
            return
        pause_ms = settings.no_room_pause_ms
        if counts:
            pause_ms = min(settings.start_pause_ms << (failures - 1), settings.most_start_pause_ms)
        why = f"it could not be started: {failed.why}" if failed.why else ""
        again = Again(job_id, why, of.attempt, of.memory, failures, now_ms + pause_ms)
        self._known.pop(job_id, None)
        self.site.again(again)

    def _record(
        self, of: SiteJob, end: End, run: Running | None, ran: SiteRun | None, attempt: int
    ) -> Record:
        """The record of an attempt, of which the scheduler or the site says where it ran."""
        nodes = self.scheduler.cluster.nodes
        gpus: tuple[Gpu, ...] = ()
        start_ms, share, suspended_ms = None, of.job.share, 0
        if run is not None:
            gpus, share, suspended_ms = self._gpus(run.slots), run.share, run.suspended_ms
            start_ms = run.start_ms - suspended_ms
        if ran is not None:
            gpus, share = gpus or ran.gpus, share if run is not None else ran.share or share
            start_ms = start_ms if ran.start_ms is None else ran.start_ms
            suspended_ms = ran.suspended_ms
            if ran.suspended_since_ms is not None:
                suspended_ms += max(0, end.end_ms - ran.suspended_since_ms)
        row = self.scheduler.cluster.row_of(gpus[0].node) if gpus else None
        model = nodes[row].gpu_model if row is not None else None
        return record_of(
            of.job, end, attempt=attempt, queued_ms=of.queued_ms, start_ms=start_ms, gpus=gpus, share=share,
            gpu_model=model.name if model else "", card_mib=model.mem_mib if model else 0, suspended_ms=suspended_ms,
        )  # fmt: skip

    # What is decided

    def _decide(self, done: Round, now_ms: int, out_of_time: Callable[[], bool], *, for_real: bool) -> None:
        misfits: list[NeverFits] = []
        with contextlib.nullcontext() if for_real else self.scheduler.trial():
            for placement in self._place_on_named_gpus(misfits, now_ms):
                done.placed.append(placement)
                if for_real:
                    self._start(placement)
            self._ask(done, misfits, now_ms, out_of_time, for_real=for_real)
        for misfit in misfits:
            self._is_misfit(misfit.job, misfit.why, now_ms)

    def _ask(
        self,
        done: Round,
        misfits: list[NeverFits],
        now_ms: int,
        out_of_time: Callable[[], bool],
        *,
        for_real: bool,
    ) -> None:
        """Note what the policy decides; for real, the site acts at once."""
        can_evict = isinstance(self.site, CanEvict)
        parked_mib = self._parked_mib if self._can_suspend is not None else None

        def is_late() -> bool:
            done.out_of_time = done.out_of_time or out_of_time()
            return done.out_of_time

        try:
            for outcome in self.scheduler.decide(
                now_ms, out_of_time=is_late, can_evict=can_evict, parked_mib=parked_mib
            ):
                if isinstance(outcome, Placement):
                    done.placed.append(outcome)
                    if for_real:
                        self._forecast.started(outcome.job.id, now_ms)
                        self._start(outcome)
                elif isinstance(outcome, Evicted):
                    done.evicted.append(outcome.run.job.id)
                    if for_real:
                        self._stop_for_others(outcome.run, now_ms)
                elif isinstance(outcome, Suspended | Resumed):
                    leaves = isinstance(outcome, Suspended)
                    (done.suspended if leaves else done.resumed).append(outcome.run.job.id)
                    if for_real:
                        self._order_to_leave(outcome.run, leaves=leaves)
                elif isinstance(outcome, Resized):
                    job_id = outcome.run.job.id
                    if not for_real:
                        done.refused.append(f"job '{job_id}' would be resized, which a trial does not do")
                    elif not self._resize(outcome, now_ms):
                        done.refused.append(f"{self.site.name} cannot resize job '{job_id}'")
                elif isinstance(outcome, WakeAt):
                    self._wakes_ms.add(outcome.time_ms)
                elif isinstance(outcome, Refused):
                    done.refused.append(outcome.why)
                elif isinstance(outcome, NeverFits):
                    misfits.append(outcome)
                    self._unqueue(outcome.job.id, now_ms)
        except PolicyError as error:
            if done.out_of_time:  # what it has placed stands, and the next step goes on from there
                done.refused.append(str(error))
            else:
                done.fault = error
        except KnowledgeError as error:
            done.fault = error
        if self._reserves is not None:  # a trial undoes them
            self._reserved_ms = dict(self._reserves.reserved_ms)

    def _start(self, placement: Placement) -> None:
        job_id = placement.job.id
        self._starting[job_id] = self._known[job_id].version
        self._gangs.touch(self._known[job_id])
        self._on_named_gpus.pop(job_id, None)
        self.site.start(self._order(placement))

    def _order_to_leave(self, run: Running, *, leaves: bool) -> None:
        """Have the site suspend a run, or let it run on."""
        if self._can_suspend is None:
            return
        self._ordered[run.job.id] = leaves
        if leaves:
            run.resumes = False  # until the site tells that it has left (`_keep_suspension`)
        (self._can_suspend.suspend if leaves else self._can_suspend.resume)(run.job.id)

    def _order(self, placement: Placement) -> Start:
        of = self._known[placement.job.id]
        return Start(
            placement.job.id, self._gpus(placement.slots), placement.share, placement.best_effort, of.version,
            of.attempt, of.memory, expected_mib(placement.job, self.knowledge),
        )  # fmt: skip

    def _stop_for_others(self, run: Running, now_ms: int) -> None:
        """Stop a run that the scheduler has released; its job waits when its processes are gone."""
        job_id = run.job.id
        self._unqueue(job_id, now_ms)
        if isinstance(self.site, CanEvict):
            self._leaving[job_id] = _Leaving(run, self._gpus(run.slots), PREEMPTED)
            self._starting.pop(job_id, None)
            self.site.evict(job_id)

    def _parked_mib(self, run: Running) -> int | None:
        """What the site says a run would take of its node's memory; None for one that it has not seen running."""
        job_id = run.job.id
        if self._can_suspend is None or job_id in self._starting or job_id in self._ordered:
            return None
        return self._can_suspend.parked_mib(job_id)

    def _resize(self, resized: Resized, now_ms: int) -> bool:
        """Give a running job its new share; where the site cannot, it keeps the one before."""
        job_id = resized.run.job.id
        if isinstance(self.site, CanResize):
            self.site.resize(job_id, resized.run.share)
            return True
        self.scheduler.resize(job_id, resized.before, now_ms)
        return False

    def _place_on_named_gpus(self, misfits: list[NeverFits], now_ms: int) -> Iterable[Placement]:
        """Place jobs whose users named the GPUs, in order, where these have room. One of which the knowledge fails is a
        misfit and holds up no other."""
        for job in list(self._on_named_gpus.values()):
            asked = self._as_needed(job)
            slots = [slot for gpu in job.only_gpus if (slot := self._slot(gpu)) is not None]
            roomy = tuple(slot for slot in slots if self._has_room(slot, asked.share))
            for at in range(len(roomy) - asked.gpus + 1):  # the first may be on a node that lacks CPUs
                wish = Placement(asked, roomy[at : at + asked.gpus], asked.share)
                try:
                    if self.scheduler.place(wish, now_ms):
                        yield wish
                        break
                except BerthError as error:
                    misfits.append(NeverFits(wish.job, str(error)))

    def take_back(self, job_id: str, now_ms: int) -> None:
        """A job that was to start does not, or one that was to stop: its site's user stopped it, or nothing was to be
        done. It waits again, or runs on, if the site says so."""
        self._leaving.pop(job_id, None)
        if job_id in self._starting and job_id in self.scheduler.cluster.running:
            self._release(job_id, now_ms)
        if job_id not in self.scheduler.cluster.running:
            self._leave_queue(job_id, now_ms)
            self._known.pop(job_id, None)

    # When, and why not yet

    def forecast(self, now_ms: int, *, out_of_time: Callable[[], bool] = lambda: False) -> None:
        """Bring the start intervals of waiting jobs up to date.

        Nothing is done if they are no older than `forecast_ms`, or than a tenth of it if something has changed. It may
        take some hundred milliseconds, so it is no part of a step; reasons tell the intervals from then on.
        """
        if self._scheduler is None:
            return
        state = self._scheduler.queue.changes + self._scheduler.cluster.changes
        at_ms, before = self._forecast_of
        fresh_ms = self.settings.forecast_ms if state == before else self.settings.forecast_ms // 10
        if at_ms <= now_ms < at_ms + fresh_ms:
            return
        self._forecast_of = now_ms, state
        found = self._forecast.intervals(self._scheduler, now_ms, out_of_time=out_of_time)
        self._startless = {job.id for job in self._scheduler.queue} - found.keys()
        self._starts = {
            job_id: _unless_close(interval, self._starts.get(job_id), now_ms)
            for job_id, interval in found.items()
        }

    @property
    def starts(self) -> Mapping[str, StartInterval]:
        """The start intervals of waiting jobs and of gangs, by id, as of the last `forecast`."""
        return self._starts

    def _recall_starts(self) -> None:
        """Go on with what start intervals had learned under this policy, if the site keeps it. What cannot be read is
        logged and ignored."""
        if self._keeps_starts is None or not self._keeps_starts.learned_starts:
            return
        try:
            learned = Learned.from_json(self._keeps_starts.learned_starts)
        except SettingError as error:
            log.warning("start intervals begin anew: what they had learned cannot be read (%s)", error)
            return
        if learned.policy == self.settings.policy:
            self._forecast.recall(learned)
            self._judged = learned.judged

    def _keep_starts(self) -> None:
        """Have the site keep what start intervals have learned, if that has changed."""
        if self._keeps_starts is not None and self._forecast.judged != self._judged:
            self._judged = self._forecast.judged
            self._keeps_starts.learned_starts = self._forecast.learned(self.settings.policy).to_json()

    @property
    def measured(self) -> dict[str, Running]:
        """The runs whose use is measured because their application is unknown."""
        if self._samples is None:
            return {}
        running = self.scheduler.cluster.running
        return {name: run for name, run in running.items() if self.scheduler.wants_to_see(run)}

    def forecasts_held(self, now_ms: int) -> Held:
        """How many of the jobs that started in the last 30 days did so within their first start intervals."""
        return self._forecast.held(now_ms)

    def reasons(self, job_ids: Iterable[str] | None = None) -> dict[str, WaitReason]:
        """Why waiting jobs wait; of these, or of all."""
        if self._scheduler is None:
            return {}
        explain = self._wait_reasons()
        found = {}
        for job_id in self._known if job_ids is None else job_ids:
            job = self._known.get(job_id)
            if job is None or self._scheduler.run_of(job_id) is not None:
                continue
            found[job_id] = self._reason(job, explain)
        return found

    def why(self, job_id: str) -> Why | None:
        """All that is known of why a job waits; None if it does not."""
        known = self._known.get(job_id)
        if known is None or self._scheduler is None or self._scheduler.run_of(job_id) is not None:
            return None
        explain, job, queue = (
            self._wait_reasons(),
            self._as_needed(known),
            self._scheduler.queue,
        )
        return Why(
            job,
            self._reason(known, explain),
            explain.candidates(known, job),
            [lacks for _, lacks in explain.lacks_of_nodes(job)],
            self.misfits.get(job_id, ""),
            len(queue) + len(self._on_named_gpus),
            [each.id for each in islice(queue, MOST_NAMED)],
            self.knowledge.run_ms(job),
            self.knowledge.peak_mem_mib(job),
        )

    def _wait_reasons(self) -> WaitReasons:
        return WaitReasons(self.scheduler, self._reserved_ms, self._starts, self._startless)

    def _reason(self, job: SiteJob, explain: WaitReasons) -> WaitReason:
        job_id = job.job.id
        if (misfit := self._misfits.get(job_id)) is not None:
            return misfit
        queued = self.scheduler.waiting(job_id) or (
            self._as_needed(job) if job_id in self._on_named_gpus else None
        )
        if queued is None and job_id not in self._later and (reason := self._gang_reason(job)) is not None:
            return reason
        if queued is None:
            return WaitReason(WaitKind.START, job.why or "waits for its next start")
        return explain.of(job, queued)

    def _note(self, now_ms: int) -> None:
        """Tell the site why the first jobs of the queue wait, where that has changed."""
        if not self.settings.notes:
            return
        waiting = [job for job in self._known.values() if self.scheduler.run_of(job.job.id) is None]
        explain = self._wait_reasons()
        for job in sorted(waiting, key=lambda job: job.order)[: self.settings.notes]:
            reason = self._reason(job, explain)
            if reason.starts is not None:
                reason = reason._replace(starts=reason.starts.from_now(now_ms))
            text = reason.text
            if self._noted.get(job.job.id) != text:
                self._noted[job.job.id] = text
                self.site.note(job.job.id, text)

    # Values

    def free_on(self, gpu: Gpu) -> Share:
        """What is free of a GPU; nothing if the cluster has none of that name."""
        slot = self._slot(gpu)
        return Share(0, 0) if slot is None else self.scheduler.cluster.free_on(slot)

    def job(self, job_id: str) -> Job | None:
        """A waiting job as the scheduler knows it, with what it turned out to need."""
        known = self._known.get(job_id)
        return None if known is None else self._as_needed(known)

    def _as_needed(self, job: SiteJob) -> Job:
        return as_needed(self._as_promised(job), self._need_of(job))

    def _as_promised(self, job: SiteJob) -> Job:
        return as_promised(job.job, job.mem_max_mib, self.knowledge, self.settings.promise_quantile)

    def _need_of(self, job: SiteJob) -> MemoryNeed:
        return self._needs.of(job.job, job.alike, job.memory, lambda: self._cards_mib(job))

    def _cards_mib(self, job: SiteJob) -> list[int]:
        if job.only_gpus:
            return [self._card_mib(gpu) for gpu in job.only_gpus]
        return [
            node.gpu_model.mem_mib
            for node in self._nodes
            if node.gpu_model is not None and (not job.job.models or node.gpu_model.name in job.job.models)
            for _ in range(node.gpus)
        ]

    def _card_mib(self, gpu: Gpu) -> int:
        row = self.scheduler.cluster.row_of(gpu.node)
        model = self.scheduler.cluster.nodes[row].gpu_model if row is not None else None
        return model.mem_mib if model is not None else 0

    def _slot(self, gpu: Gpu) -> GpuSlot | None:
        row = self.scheduler.cluster.row_of(gpu.node)
        if row is None or gpu.index >= self.scheduler.cluster.nodes[row].gpus:
            return None
        return GpuSlot(row, gpu.index)

    def _gpus(self, slots: Sequence[GpuSlot]) -> tuple[Gpu, ...]:
        nodes = self.scheduler.cluster.nodes
        return tuple(Gpu(nodes[slot.node].name, slot.index) for slot in slots)


def _unless_close(interval: StartInterval, before: StartInterval | None, now_ms: int) -> StartInterval:
    """The interval before if the new one says much the same, so that sites need not write it again."""
    if before is None:
        return interval
    most_ms = max(MUCH_THE_SAME_MS, (interval.to_ms - now_ms) // 10)
    moved_ms = max(abs(new - old) for new, old in zip(interval, before, strict=True))
    return before if moved_ms <= most_ms and before.to_ms > now_ms else interval


def _is_resized(before: SiteJob, now: SiteJob) -> bool:
    return (before.job.gpus, before.job.share) != (now.job.gpus, now.job.share)
