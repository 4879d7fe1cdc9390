"""Slurm's queue and nodes as the scheduler's: what a view of them changes, and what the policy decides then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace

from berth.cluster import Cluster
from berth.errors import BerthError, KnowledgeError, PolicyError, SchedulerError
from berth.history.values.gres import gres_list
from berth.history.values.hostlist import expand
from berth.knowledge import Knowledge
from berth.live.slurm.ahead import Ahead
from berth.live.slurm.controller import View
from berth.live.slurm.jobs import SlurmJob
from berth.live.slurm.nodes import SlurmNode
from berth.live.slurm.requests import Cards, note_of
from berth.model import NO_GPU, GpuSlot, Job, Node, Placement, RecordState, Share
from berth.policies import Setting, make_policy
from berth.scheduler import NeverFits, Refused, Scheduler

__all__ = ["World", "state_of"]

_STATES = {
    "COMPLETED": RecordState.COMPLETED, "FAILED": RecordState.FAILED, "TIMEOUT": RecordState.TIMEOUT,
    "NODE_FAIL": RecordState.NODE_FAIL, "BOOT_FAIL": RecordState.NODE_FAIL, "CANCELLED": RecordState.CANCELLED,
    "PREEMPTED": RecordState.PREEMPTED, "DEADLINE": RecordState.TIMEOUT, "REVOKED": RecordState.CANCELLED,
    "OUT_OF_MEMORY": RecordState.FAILED,
}  # fmt: skip
"""Slurm's OUT_OF_MEMORY is the node's memory; a GPU's is told by the Epilog."""


def state_of(state: str) -> RecordState:
    """How an attempt ended, by Slurm's word for it."""
    return _STATES.get(state, RecordState.CANCELLED)


class World:
    """A scheduler that is kept as Slurm's queue is."""

    def __init__(self, policy: str, knowledge: Knowledge, cards: Cards, *, ahead_ms: int = 0) -> None:
        """What ends within `ahead_ms`, as far as is believed, has its room given away already."""
        self._policy = policy
        self._ahead_ms = ahead_ms
        self.ahead = Ahead()
        self.knowledge = knowledge
        self.cards = cards
        self._scheduler: Scheduler | None = None
        self._nodes: dict[str, SlurmNode] = {}
        self._labels: frozenset[str] = frozenset()
        self._away: set[str] = set()
        self.never: dict[str, str] = {}
        """Waiting jobs that could start on none of today's nodes, and why; they block no other job."""
        self._never_jobs: dict[str, Job] = {}
        self.unplaced: dict[str, str] = {}
        """Jobs that run, and that the cluster of the last view has no room for."""
        self.refused: list[str] = []
        """Decisions of the last call that could not be applied."""
        self.fault: BerthError | None = None
        """What the policy or the knowledge raised in the last call, after what was placed by then."""
        self.lost: set[str] = set()
        """Jobs that were handed to Slurm ahead of time, and whose room is gone."""
        self._there: Mapping[str, SlurmJob] = {}
        self._seen: Sequence[SlurmNode] = ()
        self._strange: set[GpuSlot] = set()

    @property
    def begun(self) -> bool:
        """Whether there was a view."""
        return self._scheduler is not None

    @property
    def slurm_nodes(self) -> Mapping[str, SlurmNode]:
        """Slurm's nodes of the last view, by name."""
        return self._nodes

    @property
    def scheduler(self) -> Scheduler:
        """Raises SchedulerError before the first view."""
        if self._scheduler is None:
            raise SchedulerError("there was no view of the queue yet")
        return self._scheduler

    def forget(self) -> None:
        """Begin anew with the next view."""
        self._scheduler = None
        self.ahead = Ahead()

    def restore(self, now_ms: int) -> None:
        """Go by what runs now, before what a view changes is told."""
        if self._scheduler is not None:
            self.ahead.restore(self._scheduler, now_ms)

    # What a view changes

    def take(
        self, view: View, waiting: Sequence[Job], running: Mapping[str, Job], ended: Mapping[str, RecordState],
        peaks_mib: Mapping[str, int],
    ) -> None:  # fmt: skip
        """Take in a view: the jobs that wait and may be decided on, in their order, and those that run.

        `ended` tells how jobs that are gone have ended, and `peaks_mib` what those held that ran out of GPU memory.
        """
        now_ms = view.at_ms
        self.restore(now_ms)
        self._take_nodes(view, waiting, now_ms)
        scheduler = self.scheduler
        there = {job.id: job for job in view.jobs if job.runs}
        self.unplaced = {}
        for job_id in [*scheduler.cluster.running]:
            if job_id not in there and job_id in ended:
                memory = job_id in peaks_mib
                how = RecordState.OUT_OF_MEMORY if memory else ended[job_id]
                scheduler.ended(job_id, how, now_ms, held_mib=peaks_mib.get(job_id, 0))
                if scheduler.waits(job_id):  # Slurm says whether it waits
                    scheduler.withdraw(job_id, now_ms)
        never = self._never_jobs
        wanted = {job.id: job for job in waiting if not _same_size(never.get(job.id), job)}
        waits = {job.id for job in waiting}
        for job_id in [*never]:
            if job_id in wanted or job_id not in waits:
                del never[job_id], self.never[job_id]
        for job in [*scheduler.queue]:
            if job.id not in wanted:
                scheduler.withdraw(job.id, now_ms)
        self._there = {job.id: job for job in view.jobs}
        self.lost = self.ahead.take(scheduler, self._there, now_ms)
        for job_id, slurm_job in there.items():
            if job_id in self.ahead.aside:
                continue
            if job_id in scheduler.cluster.running:
                scheduler.started(job_id)
            elif job_id in running:
                self._adopt(running[job_id], slurm_job, now_ms)
        for job in wanted.values():
            if job.id in scheduler.cluster.running:
                continue
            before = scheduler.queue.named(job.id)
            try:
                if before is None:
                    scheduler.submit(job)
                elif before != job:
                    scheduler.replace(job)
            except SchedulerError as error:  # it makes no sense, and holds up no other
                self.never[job.id], never[job.id] = str(error), job
                if before is not None:
                    scheduler.withdraw(job.id, now_ms)
        if view.nodes is not self._seen:
            self._seen = view.nodes
            self._take_strangers()

    def _take_nodes(self, view: View, waiting: Iterable[Job], now_ms: int) -> None:
        self.cards.update(view.nodes)
        self._nodes = {node.name: node for node in view.nodes}
        self._labels |= {label for job in waiting for label in job.labels}
        nodes = tuple(self._node(each) for each in sorted(view.nodes, key=lambda each: each.name))
        if self._scheduler is None:
            setting = Setting(knowledge=self.knowledge)
            policy = make_policy(self._policy, setting)
            self._scheduler = Scheduler(Cluster(nodes), policy, self.knowledge)
            self._away, self.never, self._never_jobs, self._strange = set(), {}, {}, set()
        elif nodes != tuple(self._scheduler.cluster.nodes):
            self._gone(self._scheduler.nodes_changed(nodes, now_ms), now_ms)
            self.never, self._never_jobs = {}, {}
        for node in view.nodes:
            if node.lost and node.name not in self._away:
                self._gone(self._scheduler.node_lost(node.name, now_ms), now_ms)
            elif not node.up and node.name not in self._away:
                self._scheduler.node_drained(node.name)
            elif node.up and node.name in self._away:
                self._scheduler.node_back(node.name)
        self._away = {node.name for node in view.nodes if not node.up}

    def _take_strangers(self) -> None:
        """Take GPUs for used that Slurm says are, and on which no job is known: those of jobs that cannot be read."""
        cluster = self.scheduler.cluster
        ours = {slot for run in cluster.running.values() for slot in run.slots}
        ours |= {slot for run in self.ahead.aside.values() for slot in run.slots}
        strange = set()
        for node in self._nodes.values():
            row = cluster.row_of(node.name)
            used = {at for each in node.used if each.name == "gpu" and each.count for at in each.where}
            if row is not None:
                strange |= {GpuSlot(row, at) for at in used if at < node.gpus} - ours
        for slot in self._strange - strange:
            if slot.node < len(cluster.nodes) and slot.index < cluster.nodes[slot.node].gpus:
                self.scheduler.strangers(slot, 0, 0)
        for slot in strange:
            model = cluster.nodes[slot.node].gpu_model
            self.scheduler.strangers(slot, 1000, model.mem_mib if model is not None else 0)
        self._strange = strange

    def _gone(self, runs: Iterable[object], now_ms: int) -> None:
        """What ran on nodes that are gone does not wait until Slurm says so."""
        for run in runs:
            self.scheduler.withdraw(run.job.id, now_ms)  # type: ignore[attr-defined]

    def _node(self, node: SlurmNode) -> Node:
        labels = {
            *(f"partition:{name}" for name in node.partitions), *(f"feature:{name}" for name in node.features),
            f"node:{node.name}",
        }  # fmt: skip
        return Node(
            node.name, node.gpus, self.cards.model(node.model) if node.gpus else None, 1000 * node.cpus,
            node.mem_mib, tuple(sorted(labels & self._labels)),
        )  # fmt: skip

    def _adopt(self, job: Job, slurm_job: SlurmJob, now_ms: int) -> None:
        """Note a running job, placed by berth or not."""
        scheduler = self.scheduler
        note = note_of(slurm_job.admin_comment)
        share = job.share if note is None or note.share is None else note.share
        best_effort = note is not None and note.best_effort
        slots = self._slots_of(job, slurm_job, share, best_effort)
        if slots is None:
            self.unplaced[job.id] = f"Slurm runs it on {slurm_job.node_list}, where no room is known for it"
            return
        # What it asks of its nodes may not be what it asked for; it is there, whatever labels and models say.
        here = replace(job, models=(), labels=(), nodes=len({slot.node for slot in slots}))
        start_ms = min(slurm_job.start_ms or now_ms, now_ms)
        try:
            placed = scheduler.place(Placement(here, slots, share, best_effort, best_effort), start_ms)
        except SchedulerError as error:
            self.unplaced[job.id] = str(error)
            return
        if placed:
            scheduler.started(job.id)
        else:
            self.unplaced[job.id] = f"Slurm runs it on {slurm_job.node_list}, and the cluster says it is full"

    def _slots_of(
        self, job: Job, slurm_job: SlurmJob, share: Share, best_effort: bool
    ) -> tuple[GpuSlot, ...] | None:
        """The GPUs that a running job has: told by their types, else any of its nodes that have room."""
        cluster = self.scheduler.cluster
        names = expand(slurm_job.node_list)
        rows = [row for name in names if (row := cluster.row_of(name)) is not None]
        if not rows or len(rows) < len(names):
            return None
        if not job.gpus:
            return tuple(GpuSlot(row, NO_GPU) for row in rows)
        told = [each.kind for each in gres_list(slurm_job.tres_per_node, odd=True) if each.kind]
        slots: list[GpuSlot] = []
        for name, row in zip(names, rows, strict=True):
            node = self._nodes[name]
            exact = [at for kind in told if (at := node.index_of(kind)) is not None]
            wanted = -(-job.gpus // len(names))
            if len(exact) != wanted:
                used = {at for each in node.used if each.name == "gpu" and each.count for at in each.where}
                # Those that Slurm says are in use first: they are this job's, or another's that comes after it.
                order = sorted(range(node.gpus), key=lambda at: at not in used)
                exact = [at for at in order if self._has_room(GpuSlot(row, at), share, best_effort)][:wanted]
            if len(exact) < wanted:
                return None
            slots += [GpuSlot(row, at) for at in exact]
        return tuple(slots)

    def _has_room(self, slot: GpuSlot, share: Share, best_effort: bool) -> bool:
        free = self.scheduler.cluster.free_on(slot)
        return (best_effort or free.milli >= share.milli) and free.mem_mib >= share.mem_mib

    # What is decided

    def decide(
        self, now_ms: int, out_of_time: Callable[[], bool] | None = None, free: Set[str] = frozenset()
    ) -> list[Placement]:
        """What the policy starts now, and of the jobs of `free`, which wait for no other yet, what it starts as soon as
        others have ended (`ahead`). Evictions are refused: Slurm preempts by rules of its own."""
        self.refused, self.fault = [], None
        placed = self._told(self._decided(now_ms, out_of_time), free, now_ms)
        scheduler = self.scheduler
        soon = (
            self.ahead.soon(scheduler, self._there, self._ahead_ms, now_ms) if self._ahead_ms and free else []
        )
        for job_id in soon:
            if not scheduler.queue or self.fault is not None or (out_of_time is not None and out_of_time()):
                break
            self.ahead.set_aside(scheduler, (job_id,), now_ms)
            placed += self._told(self._decided(now_ms, out_of_time), free, now_ms)
            self.ahead.tidy(scheduler, now_ms)
        return placed

    def _told(self, placements: list[Placement], free: Set[str], now_ms: int) -> list[Placement]:
        return self.ahead.sort(self.scheduler, placements, free, now_ms) if self.ahead.aside else placements

    def _decided(self, now_ms: int, out_of_time: Callable[[], bool] | None) -> list[Placement]:
        """What the policy starts."""
        placed: list[Placement] = []
        late = False

        def is_late() -> bool:
            nonlocal late
            late = late or (out_of_time is not None and out_of_time())
            return late

        try:
            for outcome in self.scheduler.decide(now_ms, out_of_time=is_late):
                if isinstance(outcome, Placement):
                    placed.append(outcome)
                elif isinstance(outcome, NeverFits):
                    self.never[outcome.job.id] = outcome.why
                    self._never_jobs[outcome.job.id] = outcome.job
                elif isinstance(outcome, Refused):
                    self.refused.append(outcome.why)
        except PolicyError as error:
            if late:  # what it has placed stands, and the next look goes on from there
                self.refused.append(str(error))
            else:
                self.fault = error
        except KnowledgeError as error:
            self.fault = error
        for job_id in self._never_jobs:
            if self.scheduler.waits(job_id):
                self.scheduler.withdraw(job_id, now_ms)
        return placed

    def undo(self, placements: Iterable[Placement], now_ms: int) -> None:
        """What was decided was advice only. All that waits is queued again with the next view, in its order."""
        for placement in placements:
            self.take_back(placement.job.id, now_ms)
        for job in [*self.scheduler.queue]:
            self.scheduler.withdraw(job.id, now_ms)

    def take_back(self, job_id: str, now_ms: int) -> None:
        """What was decided of a job was not carried out: it waits again if Slurm says so."""
        self.ahead.forget(job_id)
        if job_id in self.scheduler.cluster.running:
            self.scheduler.failed_to_start(job_id, now_ms, again=False)

    def node_named(self, row: int) -> SlurmNode:
        """Slurm's node of a row of the cluster."""
        return self._nodes[self.scheduler.cluster.nodes[row].name]


def _same_size(before: Job | None, now: Job) -> bool:
    """Whether a job asks for what it asked for before, whatever its priority is by now."""
    return before is not None and replace(before, priority=now.priority) == now
