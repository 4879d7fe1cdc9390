"""Pods that wait, as the scheduler's queue holds them: alone, with their gang, parked, or refused for now."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from berth.errors import SchedulerError
from berth.live.kubernetes.constraints import Constraint, why_not
from berth.live.kubernetes.eligibility import MOST_CONSTRAINTS, MOST_OF_ONE, Eligibility
from berth.live.kubernetes.entries import Entry, State
from berth.live.kubernetes.gangs import GangBook, GangState
from berth.live.kubernetes.jobs import job_of, with_memory
from berth.live.kubernetes.memories import Memories
from berth.live.kubernetes.node_book import NodeBook
from berth.model import Job, gang_of
from berth.scheduler import Scheduler

FIRST_WAIT_MS, MOST_WAIT_MS = 1000, 60_000
"""After a bind that failed."""


class PodQueue:
    """Makes jobs of waiting pods and keeps the scheduler's queue in step with them."""

    def __init__(
        self,
        scheduler: Scheduler,
        entries: dict[str, Entry],
        nodes: NodeBook,
        eligibility: Eligibility,
        gangs: GangBook,
        memories: Memories,
    ) -> None:
        self._scheduler = scheduler
        self._entries = entries
        self._nodes = nodes
        self._eligibility = eligibility
        self._gangs = gangs
        self._memories = memories
        self._parked: dict[str, None] = {}
        self._crowded: dict[str, None] = {}  # refused while too many different constraints wait
        self._retries: dict[str, int] = {}  # pods whose bind failed -> when they are queued again, ms

    # What the scheduler's queue holds

    def gang(self, entry: Entry) -> GangState | None:
        """The gang of a pod."""
        return (
            self._gangs.of(entry.ask.gang) if entry.ask is not None and entry.ask.gang is not None else None
        )

    def job(self, entry: Entry) -> Job:
        """The job of a pod, on the nodes of today."""
        assert entry.ask is not None
        ask = entry.ask
        labels = self._eligibility.labels_of(entry.constraint)
        if ask.gpus and (memory := self._memories.of((entry.namespace, ask.owner))) is not None:
            ask = with_memory(ask, memory, self._nodes.cards)
        job = job_of(entry.uid, entry.namespace, entry.submit_ms, ask, labels, self._nodes.cards)
        if (state := self.gang(entry)) is None:
            return job
        return replace(job, gang=state.name, min_tasks=max(1, state.size))

    def add(self, entry: Entry, now_ms: int) -> None:
        """Hand a pod of no gang to the scheduler; one that makes no sense to it is refused."""
        assert entry.ask is not None
        if self._gangs.changed:  # those that came before it stand before it
            self.add_gangs(now_ms)
        try:
            self._scheduler.submit(self.job(entry))
        except SchedulerError as error:
            self._refuse(entry, error)

    def add_gangs(self, now_ms: int) -> None:
        """Have the scheduler's queue hold what waits of each gang: as many pods as it lacks as one job, and further
        ones each by itself if it lacks none."""
        for state in self._gangs.take_changed():
            entries = (
                [self._entries[uid] for uid in state.next if uid in self._entries] if state.is_there else []
            )
            if any(entry.state is not State.WAITING for entry in entries):
                entries = []
            queued = self._scheduler.waiting(state.together[0]) if state.together else None
            together = entries if state.wanted > 0 else []
            jobs = [self.job(entry) for entry in together]
            gang = None
            if jobs:
                gang = gang_of(jobs, state.wanted, state.name) if len(jobs) > 1 else jobs[0]
            if queued is not None and (gang is None or gang.id != queued.id):
                self._scheduler.withdraw(queued.id, now_ms)
            state.together = tuple(entry.uid for entry in together[: state.wanted])
            try:
                if gang is not None and queued is not None and gang.id == queued.id:
                    self._scheduler.replace(gang)
                elif gang is not None:
                    self._scheduler.submit(gang)
                for entry in entries if gang is None else ():
                    if not self._scheduler.waits(entry.uid):
                        self._scheduler.submit(self.job(entry))
            except SchedulerError as error:
                for entry in entries:
                    self._refuse(entry, error)

    def _refuse(self, entry: Entry, error: SchedulerError) -> None:
        entry.state, entry.message = State.REFUSED, str(error)
        self._eligibility.leave(entry.constraint)

    def job_changed(self, entry: Entry) -> None:
        """What a waiting pod asks for is other than its job in the scheduler's queue says."""
        if entry.ask is not None and entry.ask.gang is not None:
            self._gangs.pod_changed(entry.ask.gang)
            if (job := self._scheduler.queue.named(entry.uid)) is None or job.tasks:
                return  # it is done with the rest of the gang
        self._scheduler.replace(self.job(entry))

    def nodes_relabelled(self, changed: Set[Constraint] | None) -> None:
        """Make the jobs anew whose labels or GPU models have changed with the nodes; None: all."""
        for entry in self._entries.values():
            ask = entry.ask
            if entry.state is not State.WAITING or ask is None or not self._scheduler.waits(entry.uid):
                continue
            if (changed is None and (ask.models or ask.mem_milli)) or (
                entry.constraint in changed if changed is not None else self._label_differs(entry)
            ):
                self.job_changed(entry)

    def _label_differs(self, entry: Entry) -> bool:
        job = self._scheduler.waiting(entry.uid)
        if job is not None and job.tasks:
            job = next(task for task in job.tasks if task.id == entry.uid)
        return job is not None and job.labels != self._eligibility.labels_of(entry.constraint)

    # Pods that had a place

    def waits_again(self, entry: Entry, now_ms: int) -> bool:
        """A pod that was placed waits as it did, on the nodes of today; False where it is refused by now."""
        entry.state, entry.node, entry.others, entry.placement = State.WAITING, "", (), ""
        has_joined, queued = self.join(entry), self._scheduler.waits(entry.uid)
        if queued and has_joined:
            self.job_changed(entry)
        elif queued:
            self._scheduler.withdraw(entry.uid, now_ms)
        return has_joined

    def retry_later(self, entry: Entry, why: str, now_ms: int) -> None:
        """The bind of a pod failed: queue it again after a while, twice as long each time."""
        entry.message = why
        self._retries[entry.uid] = now_ms + min(MOST_WAIT_MS, FIRST_WAIT_MS << min(entry.failures, 16))
        entry.failures += 1

    def retries(self, uid: str) -> bool:
        """Whether the bind of a pod failed, and it is not in the queue yet."""
        return uid in self._retries

    @property
    def next_retry_ms(self) -> int | None:
        """When the first of those is queued again."""
        return min(self._retries.values(), default=None)

    def cancel_retry(self, uid: str) -> None:
        """A pod is not to be queued again."""
        self._retries.pop(uid, None)

    def add_retries(self, now_ms: int) -> None:
        """Queue those again whose time has come."""
        for uid in [uid for uid, ms in self._retries.items() if ms <= now_ms]:
            del self._retries[uid]
            if (entry := self._entries.get(uid)) is not None and entry.state is State.WAITING:
                self.add(entry, now_ms)

    # Pods that cannot be queued now

    def join(self, entry: Entry) -> bool:
        """Count a waiting pod with its constraint; False, and refused, where too many different ones wait."""
        traits = (view.traits for view in self._nodes.views.values())
        if self._eligibility.join(entry.constraint, traits, entry.namespace):
            return True
        entry.state = State.REFUSED
        self._crowded[entry.uid] = None
        entry.message = (
            f"pods of {MOST_CONSTRAINTS} different selectors, affinities, tolerations and resources wait already, or of"
            f" {MOST_OF_ONE} in this namespace; this pod is looked at again when there are fewer"
        )
        return False

    def is_crowded(self, uid: str) -> bool:
        """Whether a pod was refused because too many different constraints wait."""
        return uid in self._crowded

    @property
    def may_admit_crowded(self) -> bool:
        """Whether there is room for the constraint of one of those."""
        return bool(self._crowded) and self._eligibility.has_room

    def admit_crowded(self, now_ms: int) -> None:
        """Look again at pods that were refused while too many different constraints waited."""
        for uid in list(self._crowded)[: MOST_OF_ONE // 2] if self._eligibility.has_room else ():
            del self._crowded[uid]
            entry = self._entries.get(uid)
            if entry is None or entry.ask is None:
                continue
            entry.state, entry.message = State.WAITING, ""
            if self.join(entry) and entry.ask.gang is None:
                self.add(entry, now_ms)

    def park(self, uid: str, now_ms: int) -> None:
        """No node could hold a pod: keep it out of the queue until one could."""
        entry = self._entries.get(uid)
        if entry is None or entry.ask is None or not self._scheduler.waits(uid):
            return
        self._scheduler.withdraw(uid, now_ms)
        if entry.ask.gang is not None:
            self._gangs.park(entry.ask.gang)
        else:
            self._eligibility.leave(entry.constraint)
            entry.state = State.PARKED
            self._parked[uid] = None

    def add_parked(self, now_ms: int) -> None:
        """The nodes have changed: queue the parked pods that a node could hold now."""
        for uid in list(self._parked):
            entry = self._entries[uid]
            if self._may_fit(entry):
                del self._parked[uid]
                entry.state = State.WAITING
                if self.join(entry):
                    self.add(entry, now_ms)

    def _may_fit(self, entry: Entry) -> bool:
        """Whether a node satisfies the constraint of a parked pod, and nodes could hold it if nothing else ran."""
        constraint = entry.constraint
        return any(not why_not(constraint, view.traits) for view in self._nodes.views.values()) and (
            self._scheduler.cluster.fits_when_empty(replace(self.job(entry), labels=()))
        )

    def forget(self, uid: str) -> None:
        """A pod is known no more."""
        self._parked.pop(uid, None)
        self._crowded.pop(uid, None)
