"""What is on the cluster, as the scheduler knows it: objects of the API come in, binds and deletions go out.

It does no I/O and knows no clock. All of it can be learned again from the cluster at any time, because each pod's place
is in its annotation. Jobs have the uid of their pod as id.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from berth.cluster import Cluster, Running
from berth.errors import AskError
from berth.knowledge import History, make_knowledge
from berth.live.kubernetes import names
from berth.live.kubernetes import objects as api
from berth.live.kubernetes.asks import ask_of, created_ms
from berth.live.kubernetes.eligibility import Eligibility
from berth.live.kubernetes.endings import Endings
from berth.live.kubernetes.entries import WAITS, Entry, Settings, State, is_held, version_of
from berth.live.kubernetes.foreign import Foreign
from berth.live.kubernetes.gangs import GangBook
from berth.live.kubernetes.memories import Memories
from berth.live.kubernetes.node_book import NodeBook
from berth.live.kubernetes.nodes import View
from berth.live.kubernetes.placements import Placed, placed_of
from berth.live.kubernetes.pod_queue import PodQueue
from berth.live.kubernetes.restoring import Restored, Restorer
from berth.live.kubernetes.rounds import Rounds
from berth.live.kubernetes.spreading import Spreads
from berth.live.kubernetes.steps import Step
from berth.model import Node, Placement, RecordState
from berth.policies import Setting, make_policy
from berth.scheduler import Scheduler

log = logging.getLogger(__name__)

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
        self.eligibility = Eligibility(Spreads(self.entries))
        self.gangs = GangBook()
        self.nodes = NodeBook(self.eligibility, self.settings.compat)
        memories = Memories()
        self.queue = PodQueue(
            self.scheduler, self.entries, self.nodes, self.eligibility, self.gangs, memories
        )
        self.foreign = Foreign(self.scheduler, self.nodes)
        self._restorer = Restorer(self.scheduler, self.nodes, self.foreign, self.gangs, self.settings.compat)
        self._rounds = Rounds(
            self.settings, self.scheduler, self.entries, self.nodes, self.eligibility, self.gangs, self.queue
        )
        self._endings = Endings(
            self.settings,
            self.knowledge,
            self.scheduler,
            self.entries,
            self.nodes,
            self.gangs,
            memories,
            self.queue,
        )
        self.overcommitted: set[str] = set()
        """Pods of ours that hold what was given to others."""
        self._homeless: dict[str, api.Pod] = {}  # bound to a node that is not known
        self._pending: dict[str, api.Pod] | None = {}  # waiting pods until all is listed
        self.stirred = True
        """Whether something has happened since the last decision by which another could differ."""

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
        self.sync_nodes(now_ms)
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
            self._has_ended(pod, entry, now_ms)
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
        self._endings.forget(uid)
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
        if self._rounds.waits_again(entry, now_ms) and why and gang is None:
            self.queue.retry_later(entry, why, now_ms)

    def renew(self, seen: History) -> None:
        """The history has grown: pods that wait are decided on by what it knows by now."""
        if isinstance(self.knowledge, History):
            self.knowledge.renew(seen)
            self.stirred = True

    # What is decided

    def next_wake_ms(self, now_ms: int) -> int | None:
        """When to decide again whatever happens; None: not before something does."""
        if self._rounds.again:
            return now_ms
        ends = [self.scheduler.next_wake_ms, self.queue.next_retry_ms]
        times = [ms for ms in ends if ms is not None]
        return max(now_ms, min(times)) if times else None

    def has_news(self, now_ms: int) -> bool:
        """Whether to decide again: that a pod was bound as decided, or told why it waits, or that a node lives, is no
        reason to, and there is much of it."""
        wake_ms = self.next_wake_ms(now_ms)
        due = wake_ms is not None and wake_ms <= now_ms
        owed = bool(self._endings.messages or self._rounds.owed)
        return self.stirred or due or self.queue.may_admit_crowded or self.nodes.has_news or owed

    def decide_again(self) -> None:
        """What the last decision left undone is to be decided anew."""
        self.stirred = True

    def decide(self, now_ms: int) -> Iterator[Step]:
        """What is to be done now. Until the iterator is closed or at its end the caller tells of nothing else; it may
        close it after any step."""
        if self.stirred:
            self.gangs.try_again()
        self._rounds.again = self.stirred = False
        self.queue.add_retries(now_ms)
        self.sync_nodes(now_ms)
        self._run_on(now_ms)
        self._rounds.switch_cards()
        while self._endings.messages:
            yield self._endings.messages.popleft()
        yield from self._rounds.pay()
        self.queue.add_gangs(now_ms)
        try:
            unplaced = yield from self._rounds.decide(now_ms)
        finally:
            self._run_on(now_ms)
        yield from self._rounds.place_one_by_one(unplaced, now_ms)
        self._rounds.again = self._rounds.switch_cards() or self._rounds.again

    def _run_on(self, now_ms: int) -> None:
        """Return their places to pods that would have given way, and for which no other pod comes."""
        for uid in self._rounds.take_running_on():
            entry = self.entries.get(uid)
            if entry is not None and entry.state is State.DONE and entry.pod is not None:
                self._drop(entry)
                self._is_bound(entry.pod, None, now_ms)

    # What becomes of the nodes

    def sync_nodes(self, now_ms: int) -> None:
        """Tell the scheduler what has become of the nodes."""
        self.queue.admit_crowded(now_ms)
        if not self.nodes.has_news:
            return
        lost = self.nodes.read()
        for name in lost.dropped:
            gone = self.foreign.node_gone(name)
            self._without_node([self.entries[uid] for uid in gone if uid in self.entries])
        settled = self.nodes.settle()
        if settled.has_other_models or settled.relabelled:
            self.queue.nodes_relabelled(None if settled.has_other_models else settled.relabelled)
        self._push_nodes(settled.names, now_ms)
        if lost.moved:
            self.nodes.come_back(lost.moved)
        if lost.moved or self.eligibility.is_stale:  # or pods have joined that fitted nowhere before
            self.sync_nodes(now_ms)

    def _push_nodes(self, changed: Iterable[str], now_ms: int) -> None:
        cluster, scheduler = self.cluster, self.scheduler
        for run in scheduler.nodes_changed(self.nodes.nodes, now_ms):
            self._lost(run.job.id, now_ms)
        self._run_on_without(scheduler.take_evicted(), now_ms)
        down = self.nodes.down
        for name in changed:
            row = cluster.row_of(name)
            if row is None:
                continue
            if bool(cluster.up[row]) == (name in down):
                (scheduler.node_drained if name in down else scheduler.node_back)(name)
            self.foreign.note(name)
        self._nodes_are_in(now_ms)

    def _lost(self, uid: str, now_ms: int) -> None:
        """The node of a pod is gone. One that was bound is its owner's to make again; one that was not waits on."""
        entry = self.entries.get(uid)
        if entry is not None and entry.state is State.PLACED:
            if entry.ask is not None and entry.ask.gang is not None:
                self.gangs.waits(entry.ask.gang, uid)
                if self.scheduler.waits(uid):
                    self.scheduler.withdraw(uid, now_ms)
            self._rounds.waits_again(entry, now_ms)
            return
        if self.scheduler.waits(uid):
            self.scheduler.withdraw(uid, now_ms)
        if entry is not None:
            self._without_node([entry])

    def _run_on_without(self, runs: Iterable[Running], now_ms: int) -> None:
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

    def _without_node(self, entries: Iterable[Entry]) -> None:
        """Pods are bound to a node that is gone: they are not counted until it is back."""
        for entry in entries:
            self.entries.pop(entry.uid, None)
            if entry.ask is not None and entry.ask.gang is not None:
                self.gangs.leave(entry.ask.gang, entry.uid)
            if entry.pod is not None:
                self._homeless[entry.uid] = entry.pod

    def _nodes_are_in(self, now_ms: int) -> None:
        """The scheduler knows the nodes of today: pods there find their place, and some that fitted nowhere may fit."""
        self.gangs.try_again()
        for pod in [pod for pod in self._homeless.values() if pod.spec.node_name in self.views]:
            self._homeless.pop(pod.metadata.uid)
            self.pod_changed(pod, now_ms)
        self.queue.add_parked(now_ms)

    # How: pods

    def _waits(self, pod: api.Pod, entry: Entry | None, now_ms: int) -> None:
        meta = pod.metadata
        try:
            ask = ask_of(pod, self.settings.compat)
            waits = entry is not None and (
                entry.state in (State.WAITING, State.PARKED) or self.queue.is_crowded(meta.uid)
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
        if self.queue.join(entry) and ask.gang is None:
            self.queue.add(entry, now_ms)

    def _is_bound(self, pod: api.Pod, entry: Entry | None, now_ms: int) -> None:
        meta, spec = pod.metadata, pod.spec
        if entry is not None and entry.state in (State.BOUND, State.FOREIGN, State.DONE):
            entry.pod = pod
            ending = meta.deletion_timestamp is not None
            if entry.state is not State.DONE and (ending != entry.ending or meta.labels != entry.labels):
                entry.ending = entry.ending or ending
                self.nodes.pod_changed(entry, meta.labels)
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
        elif placed is None or not self._restore(pod, entry, placed, now_ms):
            self.foreign.sit(pod, entry, placed)

    def _restore(self, pod: api.Pod, entry: Entry, placed: Placed, now_ms: int) -> bool:
        """Put a pod that was bound by us back in its place; False where it cannot be there."""
        if self.cluster.row_of(entry.node) is None:
            self.sync_nodes(now_ms)
        restored = self._restorer.restore(pod, entry, placed, now_ms)
        if restored is Restored.TAKEN:
            self.overcommitted.add(entry.uid)
        return restored is Restored.IN_PLACE

    def _confirm(self, entry: Entry) -> None:
        assert entry.ask is not None
        entry.state = State.BOUND
        self.scheduler.started(entry.uid)

    def _has_ended(self, pod: api.Pod, entry: Entry | None, now_ms: int) -> None:
        """A pod has ended: its place is free. What its node's agent measured may be written into it later."""
        ending, now = self._endings.of(pod), False
        if entry is None:
            self._endings.count_in_gang(pod, ending)
        else:
            entry.pod = None
            now = entry.state is not State.DONE
            if now:
                self._release(entry, now_ms, how=ending.how, held_mib=ending.held_mib)
                entry.state = State.DONE
        self._endings.learn(pod, entry, ending, now)

    def _release(
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
                if how is RecordState.COMPLETED and (state := self.queue.gang(entry)) is not None:
                    state.done(uid)
                else:
                    self.gangs.leave(entry.ask.gang, uid)
        self._rounds.left(uid)
        self.overcommitted.discard(uid)
        self.queue.cancel_retry(uid)

    def _forget(self, entry: Entry, now_ms: int) -> None:
        self._release(entry, now_ms)
        self._drop(entry)
        self._rounds.without_place(entry.uid)

    def _drop(self, entry: Entry) -> None:
        self.entries.pop(entry.uid, None)
        self.queue.forget(entry.uid)
