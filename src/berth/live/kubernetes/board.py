"""The board: what is on the cluster, told in the API's objects; what is to be done, decided by the scheduler.

It does no I/O and knows no clock. All that it knows can be told anew from the cluster at any time: a pod's place is in
its annotation. Jobs have the uid of their pod as id.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from berth.cluster import Cluster
from berth.errors import AskError, PlacementError, SchedulerError
from berth.knowledge import make_knowledge
from berth.live.kubernetes import names
from berth.live.kubernetes import objects as api
from berth.live.kubernetes.asks import ask_of, created_ms
from berth.live.kubernetes.eligibility import MOST_CONSTRAINTS, Eligibility
from berth.live.kubernetes.entries import Entry, Settings, version_of
from berth.live.kubernetes.foreign import Foreign
from berth.live.kubernetes.gang_offers import GangOffers
from berth.live.kubernetes.gangs import GangLine
from berth.live.kubernetes.jobs import Cards, job_of
from berth.live.kubernetes.node_book import NodeBook
from berth.live.kubernetes.nodes import View
from berth.live.kubernetes.placements import Placed, annotation_of, placed_of, slots_of
from berth.live.kubernetes.steps import Bind, Step, Stop
from berth.model import Job, Node, Placement, RecordState, Share
from berth.policies import Setting, make_policy
from berth.scheduler import Evicted, NeverFits, Refused, Scheduler

__all__ = ["Board"]

log = logging.getLogger(__name__)

MOST_GANGS_AT_ONCE = 16
"""Gangs that are offered to the policy in one decision."""
MOST_SWITCHED = 200
"""Pods that ask for a part of a card's memory and are looked at for another kind of card, in one decision."""
_DONE = ("Succeeded", "Failed")


class _Found(NamedTuple):
    """A placement as it will be bound."""

    bind: Bind
    job: Job


@dataclass(slots=True)
class _Round:
    """What one call of the policy came to."""

    rejected: list[str] = field(default_factory=list)
    full: set[str] = field(default_factory=set)


class Board:
    """Pods and nodes in, steps out."""

    def __init__(self, settings: Settings | None = None) -> None:
        """Raises BerthError where there is no such policy or knowledge."""
        self.settings = settings or Settings()
        self.knowledge = make_knowledge(self.settings.knowledge)
        self.policy = make_policy(self.settings.policy, Setting(knowledge=self.knowledge))
        cluster = Cluster([Node("no node yet", 0, None, 0, 0)])
        self.scheduler = Scheduler(cluster, self.policy, self.knowledge)
        self.scheduler.nodes_changed([], 0)
        self.entries: dict[str, Entry] = {}
        self.eligibility = Eligibility()
        self.gangs = GangLine()
        self.nodes = NodeBook(self)
        self._offers = GangOffers(self)
        self.foreign = Foreign(self)
        self.cards = Cards(())
        self.overcommitted: set[str] = set()
        """Pods of ours that hold what was given to others."""
        self._leaving: dict[str, set[str]] = {}  # node -> pods that were stopped and are there still
        self._owed: deque[Bind] = deque()  # of a gang that is whole, and not handed out yet
        self._parked: dict[str, None] = {}
        self._crowded: dict[str, api.Pod] = {}  # refused while too many different constraints wait
        self._homeless: dict[str, api.Pod] = {}  # bound to a node that is not known
        self._pending: dict[str, api.Pod] | None = {}  # waiting pods until all is listed

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

    # What pods do

    def begin(self, now_ms: int) -> None:
        """All was listed: queue what waits, in the order in which it was made."""
        pending, self._pending = self._pending or {}, None
        self.nodes.sync(now_ms)
        for pod in sorted(
            pending.values(),
            key=lambda pod: (
                not pod.spec.node_name,
                created_ms(pod.metadata),
                version_of(pod.metadata.resource_version),
            ),
        ):
            self.pod_changed(pod, now_ms)

    def pod_changed(self, pod: api.Pod, now_ms: int) -> None:
        """A pod came or changed."""
        meta, spec = pod.metadata, pod.spec
        entry = self.entries.get(meta.uid)
        if pod.status.phase in _DONE:
            if entry is not None and entry.state != "done":
                self._release(entry, now_ms, completed=pod.status.phase == "Succeeded")
                entry.state = "done"
            return
        if spec.node_name:
            if self._pending is not None and names.PLACEMENT not in meta.annotations:
                self._pending[meta.uid] = pod  # which GPUs it has is guessed when those of our pods are known
            else:
                self._is_bound(pod, entry, now_ms)
        elif spec.scheduler_name == self.settings.scheduler_name:
            if meta.deletion_timestamp is not None or spec.scheduling_gates:
                if entry is not None:
                    self._forget(entry, now_ms)
            elif self._pending is not None:
                self._pending[meta.uid] = pod
            elif entry is None or entry.state != "placed":
                self._waits(pod, entry, now_ms)

    def pod_gone(self, pod: api.Pod, now_ms: int) -> None:
        """A pod is gone."""
        uid = pod.metadata.uid
        if self._pending is not None:
            self._pending.pop(uid, None)
        self._homeless.pop(uid, None)
        entry = self.entries.get(uid)
        if entry is not None:
            self._forget(entry, now_ms)

    def bound(self, uid: str, now_ms: int) -> None:
        """A pod was bound as decided."""
        entry = self.entries.get(uid)
        if entry is not None and entry.state == "placed":
            self._confirm(entry)

    def bind_failed(self, uid: str, now_ms: int, *, again: bool) -> None:
        """A pod could not be bound: give back its place, and queue it again or leave it to what the watch says."""
        entry = self.entries.get(uid)
        if entry is None or entry.state != "placed" or entry.ask is None:
            return
        self.nodes.unassign(entry)
        if gang := entry.ask.gang:
            if (state := self.gangs.of(gang)) is not None:
                state.placed.pop(uid, None)
                state.bound.discard(uid)
                if again:
                    state.waiting[uid] = None
            again_in_queue = False
        else:
            again_in_queue = again
        self.scheduler.failed_to_start(uid, now_ms, again=again_in_queue)
        if again:
            entry.state = "waiting"
            self.eligibility.join(entry.ask.constraint, ())
        else:
            self._drop(entry)

    # What is decided

    def next_wake_ms(self, now_ms: int) -> int | None:
        """When to decide again whatever happens; None: not before something does."""
        ends = [ms for ms in (self._offers.next_ms(), self.scheduler.next_wake_ms) if ms is not None]
        return max(now_ms, min(ends)) if ends else None

    def decide(self, now_ms: int) -> Iterator[Step]:
        """What is to be done now. Between two steps the caller may tell of nothing else; it may stop at any."""
        self.nodes.sync(now_ms)
        self._switch_cards()
        yield from self._pay()
        yield from self._offers.steps(now_ms, first=True)
        yield from self.round(now_ms)
        yield from self._offers.steps(now_ms, first=False)

    # What the nodes ask

    def lost(self, uid: str, now_ms: int) -> None:
        """The node of a pod is gone: the pod is not ours to start again, its owner makes another."""
        entry = self.entries.pop(uid, None)
        if self.scheduler.waits(uid):
            self.scheduler.withdraw(uid, now_ms)
        if entry is None:
            return
        if entry.ask is not None and entry.ask.gang is not None:
            self.gangs.leave(entry.ask.gang, uid)
        if entry.pod is not None:
            self._homeless[uid] = entry.pod

    def admit_crowded(self, now_ms: int) -> None:
        """Look again at pods that were refused while too many different constraints waited."""
        if not (self._crowded and self.eligibility.has_room):
            return
        for uid, pod in list(self._crowded.items())[: MOST_CONSTRAINTS // 2]:
            if (entry := self.entries.get(uid)) is not None:
                self._drop(entry)
            self.pod_changed(pod, now_ms)

    def nodes_are_in(self, now_ms: int) -> None:
        """The scheduler knows the nodes of today: pods there find their place, and some that fitted nowhere may fit."""
        for pod in [pod for pod in self._homeless.values() if pod.spec.node_name in self.views]:
            self._homeless.pop(pod.metadata.uid)
            self.pod_changed(pod, now_ms)
        for uid in list(self._parked):
            entry = self.entries[uid]
            if self.cluster.fits_when_empty(self.job(entry)):
                del self._parked[uid]
                entry.state = "waiting"
                self.queue(entry, now_ms)

    # How: pods

    def _waits(self, pod: api.Pod, entry: Entry | None, now_ms: int) -> None:
        meta = pod.metadata
        try:
            ask = ask_of(pod, self.settings.compat)
            if entry is not None and entry.ask == ask and entry.state in ("waiting", "parked"):
                return
            problem = ""
        except AskError as error:
            ask, problem = None, str(error)
            if entry is not None and entry.state == "refused" and entry.message == problem:
                return
        if entry is not None:
            self._forget(entry, now_ms)
        entry = Entry(meta.uid, meta.namespace, meta.name, ask, submit_ms=created_ms(meta), message=problem)
        entry.priority = pod.spec.priority
        self.entries[meta.uid] = entry
        if ask is None:
            entry.state = "refused"
            return
        if ask.gang is not None:
            try:
                self.gangs.join(ask.gang, meta.uid)
            except AskError as error:
                entry.state, entry.message = "refused", str(error)
                return
        if not self.eligibility.join(ask.constraint, (view.traits for view in self.views.values())):
            if ask.gang is not None:
                self.gangs.leave(ask.gang, meta.uid)
            entry.state, entry.ask = "refused", None
            self._crowded[meta.uid] = pod
            entry.message = (
                f"{MOST_CONSTRAINTS} different sets of selectors, affinities, tolerations and resources wait already;"
                " this pod is looked at again when one of them waits no more"
            )
            return
        if ask.gang is None:
            self.queue(entry, now_ms)

    def queue(self, entry: Entry, now_ms: int) -> None:
        """Hand a pod to the scheduler; one that makes no sense to it is refused."""
        assert entry.ask is not None
        try:
            self.scheduler.submit(self.job(entry))
        except SchedulerError as error:
            entry.state, entry.message = "refused", str(error)
            self.eligibility.leave(entry.ask.constraint)

    def job(self, entry: Entry) -> Job:
        """The job of a pod, on the nodes of today."""
        assert entry.ask is not None
        labels = self.eligibility.labels_of(entry.ask.constraint)
        return job_of(entry.uid, entry.namespace, entry.submit_ms, entry.ask, labels, self.cards)

    def _is_bound(self, pod: api.Pod, entry: Entry | None, now_ms: int) -> None:
        meta, spec = pod.metadata, pod.spec
        if entry is not None and entry.state in ("bound", "foreign", "done"):
            entry.pod = pod
            entry.ending = entry.ending or meta.deletion_timestamp is not None
            return
        placed = placed_of(meta.annotations)
        if entry is not None and entry.state == "placed":
            as_decided = meta.annotations.get(names.PLACEMENT) == entry.placement
            if as_decided and meta.annotations.get(names.PLACED_UID) == meta.uid:
                entry.pod = pod
                self._confirm(entry)
                return
            self._forget(entry, now_ms)  # somebody else bound it, or it has the place of another of its name
        elif entry is not None:
            self._forget(entry, now_ms)
        if spec.node_name not in self.views:
            self._homeless[meta.uid] = pod
            return
        entry = Entry(meta.uid, meta.namespace, meta.name, state="foreign", node=spec.node_name)
        entry.submit_ms, entry.ending = created_ms(meta), meta.deletion_timestamp is not None
        entry.priority, entry.pod = spec.priority, pod
        self.entries[meta.uid] = entry
        if meta.annotations.get(names.PLACED_UID, meta.uid) != meta.uid:
            self.overcommitted.add(meta.uid)
            self.foreign.sit(pod, entry, placed)
        elif placed is None or not self._restore(pod, entry, placed, now_ms):
            self.foreign.sit(pod, entry, placed)

    def _restore(self, pod: api.Pod, entry: Entry, placed: Placed, now_ms: int) -> bool:
        """Put a pod that was bound by us back in its place; False where it cannot be there."""
        if self.cluster.row_of(entry.node) is None:
            self.nodes.sync(now_ms)
        view, row = self.views[entry.node], self.cluster.row_of(entry.node)
        try:
            ask = ask_of(pod, self.settings.compat)
        except AskError:
            return False
        slots = None if row is None else slots_of(placed, view, row)
        if slots is None or row is None or len(placed.gpus) != ask.gpus:
            return False
        share = Share(ask.milli, ask.mem_mib)
        if placed.gpus:
            first = placed.gpus[0]
            card_mib = view.model.mem_mib if view.model else 0
            mem_mib = (
                0 if ask.milli == 1000 and not ask.mem_mib and first.mem_mib == card_mib else first.mem_mib
            )
            share = Share(first.milli, mem_mib)
        ask = replace(ask, models=())
        job = replace(
            job_of(entry.uid, entry.namespace, entry.submit_ms, ask, (), self.cards), models=(),
            share=Share(max(ask.milli, share.milli), ask.mem_mib if placed.best_effort else share.mem_mib),
        )  # fmt: skip
        if not slots:
            from berth.model import NO_GPU, GpuSlot

            slots = (GpuSlot(row, NO_GPU),)
        placement = Placement(job, slots, share, placed.shared, placed.best_effort)
        if not self._place_now(placement, now_ms):
            if ask.gpus and any(_is_short(self.cluster.free_on(slot), share) for slot in slots):
                self.overcommitted.add(entry.uid)
            return False
        entry.ask, entry.state, entry.others = ask, "bound", ask.constraint.others
        self.nodes.assign(entry)
        self.scheduler.started(entry.uid)
        if ask.gang is not None:
            try:
                self.gangs.join(ask.gang, entry.uid, bound=True)
            except AskError as error:
                log.warning("%s/%s: %s", entry.namespace, entry.name, error)
        return True

    def _place_now(self, placement: Placement, now_ms: int) -> bool:
        """Have a job placed as said and nowhere else, whether its node is up or not."""
        scheduler, row = self.scheduler, placement.slots[0].node
        up = bool(self.cluster.up[row])
        name = self.cluster.nodes[row].name
        if not up:
            scheduler.node_back(name)
        try:
            scheduler.submit(placement.job)
            scheduler.policy = lambda queue, cluster, now: iter((placement,))
            for _ in scheduler.decide(now_ms):
                pass
        except (SchedulerError, PlacementError):
            return False
        finally:
            scheduler.policy = self.policy
            if not up:
                scheduler.node_drained(name)
        if placement.job.id in self.cluster.running:
            return True
        scheduler.withdraw(placement.job.id, now_ms)
        return False

    def _confirm(self, entry: Entry) -> None:
        assert entry.ask is not None
        entry.state = "bound"
        self.scheduler.started(entry.uid)
        if entry.ask.gang and (state := self.gangs.of(entry.ask.gang)) is not None:
            state.placed.pop(entry.uid, None)
            state.bound.add(entry.uid)

    def _release(self, entry: Entry, now_ms: int, *, completed: bool | None = None) -> None:
        """Give back what a pod has; `completed` tells how it ended, None: it was taken away."""
        uid = entry.uid
        if entry.state == "foreign":
            self.foreign.leave(entry)
        elif uid in self.cluster.running:
            self.nodes.unassign(entry)
            if completed is None:
                self.scheduler.withdraw(uid, now_ms)
            else:
                self.scheduler.ended(uid, RecordState.COMPLETED if completed else RecordState.FAILED, now_ms)
        elif self.scheduler.waits(uid):
            self.scheduler.withdraw(uid, now_ms)
        if entry.ask is not None:
            if entry.state in ("waiting", "parked"):
                self.eligibility.leave(entry.ask.constraint)
            if entry.ask.gang is not None and not completed:
                self.gangs.leave(entry.ask.gang, uid)
        for pods in self._leaving.values():
            pods.discard(uid)
        self.overcommitted.discard(uid)

    def _forget(self, entry: Entry, now_ms: int) -> None:
        self._release(entry, now_ms)
        self._drop(entry)

    def _drop(self, entry: Entry) -> None:
        self.entries.pop(entry.uid, None)
        self._parked.pop(entry.uid, None)
        self._crowded.pop(entry.uid, None)

    # How: decisions

    def round(self, now_ms: int) -> Iterator[Step]:
        """Ask the policy once."""
        rejected: list[str] = []
        outcomes = self.scheduler.decide(now_ms)
        try:
            for outcome in outcomes:
                if isinstance(outcome, Placement):
                    found = self._placed(outcome)
                    if found is None:
                        rejected.append(outcome.job.id)
                    else:
                        yield from self._bind_or_hold(found, now_ms)
                elif isinstance(outcome, Evicted):
                    yield from self._evicted(outcome.run.job.id, now_ms)
                elif isinstance(outcome, NeverFits):
                    self._park(outcome.job.id, now_ms)
                elif isinstance(outcome, Refused):
                    log.warning("%s", outcome.why)
        finally:
            outcomes.close()  # type: ignore[attr-defined]
            for uid in rejected:
                self.scheduler.failed_to_start(uid, now_ms)

    def _placed(self, placement: Placement) -> _Found | None:
        """How a placement is bound; None where its node has no room for another pod or for what else it needs."""
        job = placement.job
        entry = self.entries[job.id]
        assert entry.ask is not None
        name = self.cluster.nodes[placement.slots[0].node].name
        view = self.views[name]
        used, there = view.traits.others_used, view.traits.others
        if view.pods >= view.pods_most or any(
            used.get(key, 0) + amount > there.get(key, 1 if key.startswith("host-port/") else 0)
            for key, amount in entry.ask.constraint.others
        ):
            self.nodes.dirty(name)
            return None
        entry.state, entry.node, entry.others = "placed", name, entry.ask.constraint.others
        self.eligibility.leave(entry.ask.constraint)
        self.nodes.assign(entry)
        after = frozenset(self._leaving.get(name, ()))
        text = entry.placement = self.text_of(placement, name)
        return _Found(Bind(job.id, entry.namespace, entry.name, name, text, after), job)

    def text_of(self, placement: Placement, node: str) -> str:
        """The annotation for a placement on a node."""
        return annotation_of(placement, self.views[node], self.settings.policy)

    def _bind_or_hold(self, found: _Found, now_ms: int) -> Iterator[Step]:
        """Bind a pod; one of a gang when all of it have a place."""
        entry = self.entries[found.bind.uid]
        assert entry.ask is not None
        if entry.ask.gang is None:
            yield found.bind
            return
        state = self.gangs.of(entry.ask.gang)
        assert state is not None
        state.waiting.pop(entry.uid, None)
        state.placed[entry.uid] = found.bind
        if state.is_whole:
            binds = [bind for bind in state.placed.values() if isinstance(bind, Bind)]
            state.since_ms, state.message = None, ""
            state.bound |= state.placed.keys()
            state.placed.clear()
            self._owed.extend(binds)
            yield from self._pay()

    def _pay(self) -> Iterator[Step]:
        """What was decided as a whole, handed out one by one; the rest stays owed where the caller stops."""
        while self._owed:
            yield self._owed.popleft()

    def _evicted(self, uid: str, now_ms: int) -> Iterator[Step]:
        """A pod gives way: it is not queued again, for its owner makes another."""
        entry = self.entries[uid]
        self.scheduler.withdraw(uid, now_ms)
        self._leaving.setdefault(entry.node, set()).add(uid)
        if entry.state == "placed":
            log.warning("%s/%s gives way before it was bound", entry.namespace, entry.name)
        self.nodes.unassign(entry)
        entry.state = "done"
        yield Stop(uid, entry.namespace, entry.name, "it gives way to a pod of a higher priority")

    def _park(self, uid: str, now_ms: int) -> None:
        entry = self.entries.get(uid)
        if entry is None or entry.ask is None or not self.scheduler.waits(uid):
            return
        self.scheduler.withdraw(uid, now_ms)
        if entry.ask.gang is None:
            entry.state = "parked"
            self._parked[uid] = None

    def _switch_cards(self) -> None:
        """Let pods that ask for a part of a card's memory go to another kind of card where theirs has no room."""
        if len(self.cards.sizes_mib) < 2:
            return
        for at, job in enumerate(self.scheduler.queue):
            if at >= MOST_SWITCHED:
                break
            entry = self.entries[job.id]
            if entry.ask is None or not entry.ask.mem_milli or len(self.cluster.fitting_nodes(job)):
                continue
            for other in self.cards.variants(job, entry.ask):
                if len(self.cluster.fitting_nodes(other)):
                    self.scheduler.replace(other)
                    break


def _is_short(free: Share, wanted: Share) -> bool:
    return free.milli < wanted.milli or free.mem_mib < wanted.mem_mib
