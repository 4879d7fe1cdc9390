"""What is on the cluster, as the scheduler knows it: objects of the API come in, binds and deletions go out.

It does no I/O and knows no clock. All of it can be learned again from the cluster at any time, because each pod's place
is in its annotation. Jobs have the uid of their pod as id.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from berth.cluster import Cluster, Running
from berth.errors import AskError, SchedulerError
from berth.knowledge import History, make_knowledge
from berth.live.kubernetes import names
from berth.live.kubernetes import objects as api
from berth.live.kubernetes.asks import ask_of, created_ms
from berth.live.kubernetes.constraints import why_not
from berth.live.kubernetes.eligibility import MOST_CONSTRAINTS, MOST_OF_ONE, Eligibility
from berth.live.kubernetes.endings import note_end
from berth.live.kubernetes.entries import WAITS, Entry, Settings, State, is_held, version_of
from berth.live.kubernetes.foreign import Foreign
from berth.live.kubernetes.gangs import GangBook, GangState
from berth.live.kubernetes.jobs import Cards, job_of, with_memory
from berth.live.kubernetes.memories import Memories
from berth.live.kubernetes.node_book import NodeBook
from berth.live.kubernetes.nodes import View
from berth.live.kubernetes.placements import annotation_of, placed_of
from berth.live.kubernetes.restoring import restore
from berth.live.kubernetes.rounds import Rounds
from berth.live.kubernetes.spreading import Spreads
from berth.live.kubernetes.steps import Step, Tell
from berth.model import Job, Node, Placement, RecordState, gang_of
from berth.policies import Setting, make_policy
from berth.scheduler import Scheduler

__all__ = ["Board"]

log = logging.getLogger(__name__)

FIRST_WAIT_MS, MOST_WAIT_MS = 1000, 60_000
"""After a bind that failed."""
BEGUN_AT_ONCE = 500
"""Pods that are taken in before others of the process get their turn."""
_DONE = ("Succeeded", "Failed")


class Board:
    """Pods and nodes in, steps out."""

    def __init__(self, settings: Settings | None = None) -> None:
        """Raises BerthError where there is no such policy or knowledge."""
        self.settings = settings or Settings()
        self.knowledge = make_knowledge(self.settings.knowledge, grows=True)
        self.policy = make_policy(self.settings.policy, Setting(knowledge=self.knowledge))
        cluster = Cluster([Node("no node yet", 0, None, 0, 0)])
        self.scheduler = Scheduler(cluster, self.policy, self.knowledge)
        self.scheduler.nodes_changed([], 0)
        self.entries: dict[str, Entry] = {}
        self.spreads = Spreads(self.entries)
        self.eligibility = Eligibility(self.spreads)
        self.gangs = GangBook()
        self.nodes = NodeBook(self)
        self.rounds = Rounds(self)
        self.foreign = Foreign(self)
        self.cards = Cards(())
        self.overcommitted: set[str] = set()
        """Pods of ours that hold what was given to others."""
        self._parked: dict[str, None] = {}
        self._crowded: dict[str, None] = {}  # refused while too many different constraints wait
        self._homeless: dict[str, api.Pod] = {}  # bound to a node that is not known
        self._pending: dict[str, api.Pod] | None = {}  # waiting pods until all is listed
        self.later: dict[str, int] = {}  # pods whose bind failed -> when they are queued again, ms
        self.stirred = True
        """Whether something has happened since the last decision by which another could differ."""
        self.memories = Memories()
        self.learned: set[str] = set()  # pods of which it is known that they ran out of memory
        self.tells: deque[Tell] = deque()

    @property
    def views(self) -> dict[str, View]:
        """The nodes by name."""
        return self.nodes.views

    @property
    def cluster(self) -> Cluster:
        """The cluster that the scheduler decides on."""
        return self.scheduler.cluster

    # What others do

    def claim_changed(self, claim: api.Claim) -> None:
        """A ResourceClaim came or changed: what it has on our GPUs is not ours to give."""
        self.foreign.claim_changed(claim)

    def claim_gone(self, claim: api.Claim) -> None:
        """A ResourceClaim is gone."""
        self.foreign.claim_gone(claim)

    def pod_group_changed(self, api_group: str, group: api.PodGroup) -> None:
        """A PodGroup of one of the API groups that have them came or changed."""
        self.gangs.group_changed(api_group, group)
        self.stirred = True

    def pod_group_gone(self, api_group: str, group: api.PodGroup) -> None:
        """A PodGroup is gone."""
        self.gangs.group_gone(api_group, group)
        self.stirred = True

    # What pods do

    def begin(self, now_ms: int) -> None:
        """All was listed: queue what waits, in the order in which it was made."""
        for _ in self.begin_in_parts(now_ms):
            pass

    def begin_in_parts(self, now_ms: int) -> Iterator[None]:
        """The same in parts of some milliseconds each: one generator, to be followed to its end before anything else
        is told."""
        pending, self._pending = self._pending or {}, None
        self.nodes.sync(now_ms)
        yield

        def order(pod: api.Pod) -> tuple[bool, str, int]:
            meta = pod.metadata  # all times are written in one form, of one length, in UTC
            return not pod.spec.node_name, meta.creation_timestamp or "", version_of(meta.resource_version)

        for at, pod in enumerate(sorted(pending.values(), key=order)):
            self.pod_changed(pod, now_ms)
            if at % BEGUN_AT_ONCE == BEGUN_AT_ONCE - 1:
                yield

    def pod_changed(self, pod: api.Pod, now_ms: int) -> None:
        """A pod came or changed. One that makes no sense harms no other."""
        try:
            self._pod_changed(pod, now_ms)
        except Exception:
            meta = pod.metadata
            log.exception("%s/%s is refused: berth has a fault", meta.namespace, meta.name)
            entry = self.entries.get(meta.uid)
            if entry is not None and entry.state in WAITS:
                self._forget(entry, now_ms)
            if entry is None or entry.state in WAITS:
                self.entries[meta.uid] = Entry(
                    meta.uid,
                    meta.namespace,
                    meta.name,
                    state=State.REFUSED,
                    submit_ms=created_ms(meta),
                    message="berth fails to read it; its log says why",
                )

    def _pod_changed(self, pod: api.Pod, now_ms: int) -> None:
        meta, spec = pod.metadata, pod.spec
        entry = self.entries.get(meta.uid)
        if pod.status.phase in _DONE:
            note_end(self, pod, entry, now_ms)
            self.stirred = True
            return
        if spec.node_name:
            if self._pending is not None and names.PLACEMENT not in meta.annotations:
                self._pending[meta.uid] = pod  # which GPUs it has is guessed when those of our pods are known
            else:
                self._is_bound(pod, entry, now_ms)
        elif spec.scheduler_name == self.settings.scheduler_name:
            held = (entry is None or entry.state is not State.PLACED) and is_held(pod)
            if meta.deletion_timestamp is not None or held:
                if entry is not None:
                    self._forget(entry, now_ms)
                    self.stirred = True
            elif self._pending is not None:
                self._pending[meta.uid] = pod
            elif entry is None or entry.state is not State.PLACED:
                self._waits(pod, entry, now_ms)

    def pod_gone(self, pod: api.Pod, now_ms: int) -> None:
        """A pod is gone."""
        uid = pod.metadata.uid
        if self._pending is not None:
            self._pending.pop(uid, None)
        self._homeless.pop(uid, None)
        self.learned.discard(uid)
        entry = self.entries.get(uid)
        if entry is not None:
            self._forget(entry, now_ms)
            self.stirred = True

    def bound(self, uid: str, now_ms: int) -> None:
        """A pod was bound as decided."""
        entry = self.entries.get(uid)
        if entry is not None and entry.state is State.PLACED:
            self._confirm(entry)

    def bind_failed(self, uid: str, now_ms: int, *, again: bool, why: str = "") -> None:
        """A pod could not be bound: give back its place, and queue it again, or leave it to what the watch says.
        Where there is a reason `why` it fails, it is queued again after a while, twice as long each time."""
        entry = self.entries.get(uid)
        if entry is None or entry.state is not State.PLACED or entry.ask is None:
            return
        self.stirred = True
        self.nodes.unassign(entry)
        gang = entry.ask.gang
        self.scheduler.failed_to_start(uid, now_ms, again=again and gang is None and not why)
        if gang is not None and again:
            self.gangs.waits(gang, uid)
        elif gang is not None:
            self.gangs.leave(gang, uid)
        if not again:
            self._drop(entry)
            return
        if self.waits_again(entry, now_ms) and why and gang is None:
            entry.message = why
            self.later[uid] = now_ms + min(MOST_WAIT_MS, FIRST_WAIT_MS << min(entry.failures, 16))
            entry.failures += 1

    def gang(self, entry: Entry) -> GangState | None:
        """The gang of a pod."""
        return self.gangs.of(entry.ask.gang) if entry.ask is not None and entry.ask.gang is not None else None

    def waits_again(self, entry: Entry, now_ms: int) -> bool:
        """A pod that was placed waits as it did, on the nodes of today; False where it is refused by now."""
        entry.state, entry.node, entry.others, entry.placement = State.WAITING, "", (), ""
        self.rounds.without_place(entry.uid)
        there, queued = self.join(entry), self.scheduler.waits(entry.uid)
        if queued and there:
            self.job_changed(entry)
        elif queued:
            self.scheduler.withdraw(entry.uid, now_ms)
        return there

    def join(self, entry: Entry) -> bool:
        """Count a waiting pod with its constraint; False, and refused, where too many different ones wait."""
        traits = (view.traits for view in self.views.values())
        if self.eligibility.join(entry.constraint, traits, entry.namespace):
            return True
        entry.state = State.REFUSED
        self._crowded[entry.uid] = None
        entry.message = (
            f"pods of {MOST_CONSTRAINTS} different selectors, affinities, tolerations and resources wait already, or of"
            f" {MOST_OF_ONE} in this namespace; this pod is looked at again when there are fewer"
        )
        return False

    def renew(self, seen: History) -> None:
        """The history has grown: pods that wait are decided on by what it knows by now."""
        if isinstance(self.knowledge, History):
            self.knowledge.renew(seen)
            self.stirred = True

    # What is decided

    def next_wake_ms(self, now_ms: int) -> int | None:
        """When to decide again whatever happens; None: not before something does."""
        if self.rounds.again:
            return now_ms
        ends = [self.scheduler.next_wake_ms, min(self.later.values(), default=None)]
        times = [ms for ms in ends if ms is not None]
        return max(now_ms, min(times)) if times else None

    def has_news(self, now_ms: int) -> bool:
        """Whether to decide again: that a pod was bound as decided, or told why it waits, or that a node lives, is no
        reason to, and there is much of it."""
        wake_ms = self.next_wake_ms(now_ms)
        due = wake_ms is not None and wake_ms <= now_ms
        crowded = bool(self._crowded) and self.eligibility.has_room
        return self.stirred or due or crowded or self.nodes.has_news or bool(self.tells or self.rounds.owed)

    def decide(self, now_ms: int) -> Iterator[Step]:
        """What is to be done now. Until the iterator is closed or at its end the caller tells of nothing else; it may
        close it after any step."""
        if self.stirred:
            self.gangs.try_again()
        self.rounds.again = self.stirred = False
        for uid in [uid for uid, ms in self.later.items() if ms <= now_ms]:
            del self.later[uid]
            if (entry := self.entries.get(uid)) is not None and entry.state is State.WAITING:
                self.queue(entry, now_ms)
        self.nodes.sync(now_ms)
        self.rounds.run_on(now_ms)
        self.rounds.switch_cards()
        while self.tells:
            yield self.tells.popleft()
        yield from self.rounds.pay()
        self.queue_gangs(now_ms)
        yield from self.rounds.ask(now_ms)
        self.rounds.again = self.rounds.switch_cards() or self.rounds.again

    # What the nodes ask

    def lost(self, uid: str, now_ms: int) -> None:
        """The node of a pod is gone. One that was bound is its owner's to make again; one that was not waits on."""
        entry = self.entries.get(uid)
        if entry is not None and entry.state is State.PLACED:
            if entry.ask is not None and entry.ask.gang is not None:
                self.gangs.waits(entry.ask.gang, uid)
                if self.scheduler.waits(uid):
                    self.scheduler.withdraw(uid, now_ms)
            self.waits_again(entry, now_ms)
            return
        if self.scheduler.waits(uid):
            self.scheduler.withdraw(uid, now_ms)
        if entry is not None:
            self.without_node([entry])

    def run_on_without(self, runs: Iterable[Running], now_ms: int) -> None:
        """Pods run on though a pod of their gang has lost its node: its owner makes that one anew."""
        for run in runs:
            if self.scheduler.waits(run.job.id):
                self.scheduler.withdraw(run.job.id, now_ms)
        for run in runs:
            self.scheduler.place(
                Placement(run.job, run.slots, run.share, run.shared, run.best_effort), run.start_ms
            )
            if self.entries[run.job.id].state is State.BOUND:
                self.scheduler.started(run.job.id)

    def without_node(self, entries: Iterable[Entry]) -> None:
        """Pods are bound to a node that is gone: they are not counted until it is back."""
        for entry in entries:
            self.entries.pop(entry.uid, None)
            if entry.ask is not None and entry.ask.gang is not None:
                self.gangs.leave(entry.ask.gang, entry.uid)
            if entry.pod is not None:
                self._homeless[entry.uid] = entry.pod

    def admit_crowded(self, now_ms: int) -> None:
        """Look again at pods that were refused while too many different constraints waited."""
        for uid in list(self._crowded)[: MOST_OF_ONE // 2] if self.eligibility.has_room else ():
            del self._crowded[uid]
            entry = self.entries.get(uid)
            if entry is None or entry.ask is None:
                continue
            entry.state, entry.message = State.WAITING, ""
            if self.join(entry) and entry.ask.gang is None:
                self.queue(entry, now_ms)

    def nodes_are_in(self, now_ms: int) -> None:
        """The scheduler knows the nodes of today: pods there find their place, and some that fitted nowhere may fit."""
        self.gangs.try_again()
        for pod in [pod for pod in self._homeless.values() if pod.spec.node_name in self.views]:
            self._homeless.pop(pod.metadata.uid)
            self.pod_changed(pod, now_ms)
        for uid in list(self._parked):
            entry = self.entries[uid]
            if self._may_fit(entry):
                del self._parked[uid]
                entry.state = State.WAITING
                if self.join(entry):
                    self.queue(entry, now_ms)

    def _may_fit(self, entry: Entry) -> bool:
        """Whether a node satisfies the constraint of a parked pod, and nodes could hold it if nothing else ran."""
        constraint = entry.constraint
        return any(not why_not(constraint, view.traits) for view in self.views.values()) and (
            self.cluster.fits_when_empty(replace(self.job(entry), labels=()))
        )

    # How: pods

    def _waits(self, pod: api.Pod, entry: Entry | None, now_ms: int) -> None:
        meta = pod.metadata
        try:
            ask = ask_of(pod, self.settings.compat)
            waits = entry is not None and (
                entry.state in (State.WAITING, State.PARKED) or meta.uid in self._crowded
            )
            if waits and entry is not None and entry.ask == ask:
                entry.labels = meta.labels
                return
            problem = ""
        except AskError as error:
            ask, problem = None, str(error)
            if entry is not None and entry.state is State.REFUSED and entry.message == problem:
                return
        self.stirred = True
        if entry is not None:
            self._forget(entry, now_ms)
        submit_ms = min(created_ms(meta), now_ms)  # the API server's clock may be ahead of ours
        entry = Entry(meta.uid, meta.namespace, meta.name, ask, submit_ms=submit_ms, message=problem)
        entry.priority, entry.labels = pod.spec.priority, meta.labels
        self.entries[meta.uid] = entry
        if ask is None:
            entry.state = State.REFUSED
            return
        if ask.gang is not None:
            try:
                self.gangs.join(ask.gang, meta.uid)
            except AskError as error:
                entry.state, entry.message = State.REFUSED, str(error)
                return
        if self.join(entry) and ask.gang is None:
            self.queue(entry, now_ms)

    def queue(self, entry: Entry, now_ms: int) -> None:
        """Hand a pod of no gang to the scheduler; one that makes no sense to it is refused."""
        assert entry.ask is not None
        if self.gangs.changed:  # those that came before it stand before it
            self.queue_gangs(now_ms)
        try:
            self.scheduler.submit(self.job(entry))
        except SchedulerError as error:
            entry.state, entry.message = State.REFUSED, str(error)
            self.eligibility.leave(entry.constraint)

    def queue_gangs(self, now_ms: int) -> None:
        """Have the scheduler's queue hold what waits of each gang: as many pods as it lacks as one job, and further
        ones each by itself if it lacks none."""
        for state in self.gangs.take_changed():
            entries = (
                [self.entries[uid] for uid in state.next if uid in self.entries] if state.is_there else []
            )
            if any(entry.state is not State.WAITING for entry in entries):
                entries = []
            queued = self.scheduler.waiting(state.together[0]) if state.together else None
            together = entries if state.wanted > 0 else []
            jobs = [self.job(entry) for entry in together]
            gang = None
            if jobs:
                gang = gang_of(jobs, state.wanted, state.name) if len(jobs) > 1 else jobs[0]
            if queued is not None and (gang is None or gang.id != queued.id):
                self.scheduler.withdraw(queued.id, now_ms)
            state.together = tuple(entry.uid for entry in together[: state.wanted])
            try:
                if gang is not None and queued is not None and gang.id == queued.id:
                    self.scheduler.replace(gang)
                elif gang is not None:
                    self.scheduler.submit(gang)
                for entry in entries if gang is None else ():
                    if not self.scheduler.waits(entry.uid):
                        self.scheduler.submit(self.job(entry))
            except SchedulerError as error:
                for entry in entries:
                    entry.state, entry.message = State.REFUSED, str(error)
                    self.eligibility.leave(entry.constraint)

    def queued(self, uid: str) -> Job | None:
        """The job of a pod in the scheduler's queue, by itself or as a task of its gang."""
        job = self.scheduler.waiting(uid)
        return job if job is None or not job.tasks else next(task for task in job.tasks if task.id == uid)

    def job_changed(self, entry: Entry) -> None:
        """What a waiting pod asks for is other than its job in the scheduler's queue says."""
        if entry.ask is not None and entry.ask.gang is not None:
            self.gangs.changed[entry.ask.gang.key] = None
            if (job := self.scheduler.queue.named(entry.uid)) is None or job.tasks:
                return  # it is done with the rest of the gang
        self.scheduler.replace(self.job(entry))

    def job(self, entry: Entry) -> Job:
        """The job of a pod, on the nodes of today."""
        assert entry.ask is not None
        ask = entry.ask
        labels = self.eligibility.labels_of(entry.constraint)
        if ask.gpus and (memory := self.memories.of((entry.namespace, ask.owner))) is not None:
            ask = with_memory(ask, memory, self.cards)
        job = job_of(entry.uid, entry.namespace, entry.submit_ms, ask, labels, self.cards)
        if (state := self.gang(entry)) is None:
            return job
        return replace(job, gang=state.name, min_tasks=max(1, state.size))

    def _is_bound(self, pod: api.Pod, entry: Entry | None, now_ms: int) -> None:
        meta, spec = pod.metadata, pod.spec
        if entry is not None and entry.state in (State.BOUND, State.FOREIGN, State.DONE):
            entry.pod = pod
            ending = meta.deletion_timestamp is not None
            if entry.state is not State.DONE and (ending != entry.ending or meta.labels != entry.labels):
                entry.ending = entry.ending or ending
                self.nodes.told_again(entry, meta.labels)
            return
        if entry is not None and entry.state is State.PLACED:
            as_decided = meta.annotations.get(names.PLACEMENT) == entry.placement
            if as_decided and meta.annotations.get(names.PLACED_UID) == meta.uid:
                entry.pod = pod
                self._confirm(entry)
                return
            self.stirred = True
            self._forget(entry, now_ms)  # bound by another scheduler, or in the place of another of its name
        elif entry is not None:
            self._forget(entry, now_ms)
        self.stirred = True
        if spec.node_name not in self.views:
            self._homeless[meta.uid] = pod
            return
        placed = placed_of(meta.annotations)
        entry = Entry(meta.uid, meta.namespace, meta.name, state=State.FOREIGN, node=spec.node_name)
        entry.submit_ms, entry.ending = created_ms(meta), meta.deletion_timestamp is not None
        entry.priority, entry.pod, entry.labels = spec.priority, pod, meta.labels
        self.entries[meta.uid] = entry
        if meta.annotations.get(names.PLACED_UID, meta.uid) != meta.uid:
            self.overcommitted.add(meta.uid)
            self.foreign.sit(pod, entry, placed)
        elif placed is None or not restore(self, pod, entry, placed, now_ms):
            self.foreign.sit(pod, entry, placed)

    def _confirm(self, entry: Entry) -> None:
        assert entry.ask is not None
        entry.state = State.BOUND
        self.scheduler.started(entry.uid)

    def release(
        self, entry: Entry, now_ms: int, *, how: RecordState | None = None, held_mib: int = 0
    ) -> None:
        """Give back what a pod has; `how` tells how it ended, None: it was taken away."""
        uid = entry.uid
        if entry.state is State.FOREIGN:
            self.foreign.leave(entry)
        elif uid in self.cluster.running:
            self.nodes.unassign(entry)
            if how is None:
                self.scheduler.withdraw(uid, now_ms)
            else:
                self.scheduler.ended(uid, how, now_ms, held_mib=held_mib)
        elif self.scheduler.queue.holds(uid) or (
            self.scheduler.waits(uid) and (entry.ask is None or entry.ask.gang is None)
        ):
            self.scheduler.withdraw(uid, now_ms)  # of a gang: the rest of it is queued anew
        if entry.ask is not None:
            if entry.state is State.WAITING:
                self.eligibility.leave(entry.constraint)
            if entry.ask.gang is not None:
                if how is RecordState.COMPLETED and (state := self.gang(entry)) is not None:
                    state.done(uid)
                else:
                    self.gangs.leave(entry.ask.gang, uid)
        self.rounds.left(uid)
        self.overcommitted.discard(uid)
        self.later.pop(uid, None)

    def _forget(self, entry: Entry, now_ms: int) -> None:
        self.release(entry, now_ms)
        self._drop(entry)
        self.rounds.without_place(entry.uid)

    def runs_on(self, uid: str, now_ms: int) -> None:
        """The pod to which this one would have given way is gone, or elsewhere: it has its place."""
        entry = self.entries.get(uid)
        if entry is not None and entry.state is State.DONE and entry.pod is not None:
            self._drop(entry)
            self._is_bound(entry.pod, None, now_ms)

    def _drop(self, entry: Entry) -> None:
        self.entries.pop(entry.uid, None)
        self._parked.pop(entry.uid, None)
        self._crowded.pop(entry.uid, None)

    def park(self, uid: str, now_ms: int) -> None:
        """No node could hold a pod: it waits aside until one could."""
        entry = self.entries.get(uid)
        if entry is None or entry.ask is None or not self.scheduler.waits(uid):
            return
        self.scheduler.withdraw(uid, now_ms)
        if entry.ask.gang is not None:
            self.gangs.park(entry.ask.gang)
        else:
            self.eligibility.leave(entry.constraint)
            entry.state = State.PARKED
            self._parked[uid] = None

    def text_of(self, placement: Placement, node: str) -> str:
        """The annotation for a placement on a node."""
        return annotation_of(placement, self.views[node], self.settings.policy)
