"""A Kubernetes cluster as a site of the driver: gated pods wait, pods whose gate was lifted start, bound pods run.

Objects of the API come in, `Step`s go out; it does no I/O and knows no clock. All of it can be learned again from the
cluster at any time, because each pod's place is in its annotation. Jobs have the uid of their pod as id.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from typing import Any

from berth.errors import AskError
from berth.knowledge.out_of_memory import NO_NEED, MemoryNeed, need_after
from berth.live.driver.driver import Settings as DriverSettings
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
from berth.live.kubernetes import names
from berth.live.kubernetes import objects as api
from berth.live.kubernetes.constraints import (
    MOST_KINDS,
    MOST_OF_ONE,
    Constraint,
    Kinds,
    has_unread_rules,
    keeps_others_away,
    required_affinity,
    required_terms,
    why_not,
)
from berth.live.kubernetes.gangs import Gangs, Key
from berth.live.kubernetes.node_table import NodeTable, Seat
from berth.live.kubernetes.nodes import View
from berth.live.kubernetes.placements import (
    GpuMemory,
    Measured,
    Placed,
    placed_by,
    places_of,
    read_annotation,
    share_words,
)
from berth.live.kubernetes.pod_requests import (
    COUNTED,
    Gang,
    PodRequest,
    created_ms,
    job_of,
    moment_ms,
    pod_resources,
    request_of,
    with_memory,
)
from berth.live.kubernetes.steps import Evict, Lift, Patch, PodEvent, Step
from berth.live.kubernetes.tenants import tenants_of
from berth.model import Job, RecordState, Share

log = logging.getLogger(__name__)

PATIENCE_MS = 10_000
"""How long kube-scheduler may refuse a pod on its node before its part is given back: what it asked for may be about
to leave, or to be made."""
SILENCE_MS = 360_000
"""How long kube-scheduler may say nothing of a pod, while it binds pods whose gates were lifted later. By then it has
looked again at all that it has put aside, which it does after five minutes."""
RELEASE_TIMES, MOST_RELEASED = 6, 20
"""How many times the patience a pod waits that no node can hold before it is released, and how many pods at once: a
node whose agent starts anew has no GPUs for a moment."""
LEAVE_MS = 600_000
"""How long a pod may take to leave its GPUs before it is evicted; the driver has half of that to move what it holds."""
AVOID_MS, MOST_AVOID_MS = 60_000, 3_600_000
"""How long pods alike avoid a node that was refused; twice as long each further time."""
MOST_OWNERS = 10_000
"""Owners of which it is known that nodes refused their pods, or that those ran out of GPU memory."""
MOST_OTHERS = 31
"""Nodes that a pod may go to instead of the first choice, if only kube-scheduler can tell which of them it may use."""
MOST_GROUPS = 6
"""Groups of nodes in one message."""
_DONE = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Settings(DriverSettings):
    """How a steerer decides.

    `quotas` are the GPUs of each namespace, or of several together (`vision+speech`); None: no quotas. With `borrow`, a
    namespace may hold more while no pod waits within its quota.
    """

    most_start_failures: int | None = None
    notes: int = 0
    advise: bool = False
    """Whether events say what would be done and nothing is done, so that pods without a gate are looked at as well."""
    patience_ms: int = PATIENCE_MS
    right_size: str = "off"
    """Whether a pod that asks for more than is enough by its profile gets what it asks for (`off`), gets a note
    of that as well (`advise`), or gets what is enough (`apply`)."""

    @property
    def why_evicted(self) -> str:
        """Why pods are evicted by this policy."""
        if self.reclaim:
            return "it borrowed GPUs beyond the quota of its namespace, and another takes back its own"
        return "a pod of a higher priority takes its place"


class State(StrEnum):
    """What has become of a pod."""

    HELD = "held"
    """It waits for others: a gate of others, its PodGroup, its user who wrote what makes no sense."""
    WAITING = "waiting"
    LIFTED = "lifted"
    """kube-scheduler may bind it."""
    STRAY = "stray"
    """The same, and it has no part of a GPU: its node refused it, no node could hold it, or it had no gate."""
    RUNS = "runs"
    """It is bound, and has its part."""
    OTHER = "other"
    """It is bound, and only counted."""
    ENDED = "ended"


@dataclass(slots=True)
class Entry:
    """A pod that matters."""

    uid: str
    namespace: str
    name: str
    state: State = State.HELD
    pod: api.Pod | None = None
    """As it was seen last; None of a pod that is only counted."""
    request: PodRequest | None = None
    why: str = ""
    """Why it is held, or why it has no part."""
    node: str = ""
    submit_ms: int = 0
    order: tuple[int, ...] = ()
    version: int = 0
    kind: Constraint | None = None
    """What it waits with."""
    label: str = ""
    gang: SiteGang | None = None
    """The gang that it waits with."""
    variant: int = 0
    """Which size of card is looked for, if it asks for a part of a card's memory."""
    start_failures: int = 0
    not_before_ms: int = 0
    leaving: bool = False
    """Whether berth evicts it."""
    taken_away: str = ""
    """Its resource version when its part was taken away last: once is enough."""
    no_room: bool = False
    """Whether it is bound, and the driver found no room for it; its node's GPUs have not changed since."""

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def key(self) -> tuple[str, str, str]:
        """What every step names it by."""
        return self.uid, self.namespace, self.name

    @property
    def of_gang(self) -> Gang | None:
        """The gang that it says it is of, whether it waits or runs."""
        return None if self.request is None else self.request.gang

    @property
    def owner(self) -> tuple[str, object]:
        """What it has in common with the pods that are made like it."""
        assert self.request is not None
        return self.namespace, self.request.owner or self.request


@dataclass(slots=True)
class _Avoided:
    """Nodes that refused pods of one owner."""

    until_ms: dict[str, int] = field(default_factory=dict)
    times: dict[str, int] = field(default_factory=dict)


class PodSite:
    """Pods and nodes in, steps out."""

    name = "kubernetes"

    def __init__(self, settings: Settings, do: Callable[[Step], None]) -> None:
        """`do` is given each step as it is decided; it may be called from the thread that decides. Raises SettingError
        for a namespace with two quotas."""
        self.settings = settings
        self.entries: dict[str, Entry] = {}
        self.kinds = Kinds()
        self.table = NodeTable(self.kinds)
        self.gangs = Gangs()
        self.stirred = True
        self._now_ms = self._refreshed_ms = 0
        self.ran_out: Callable[[Job, int], None] = lambda job, held_mib: None
        """Hears of pods that were found to have run out of GPU memory after they had ended."""
        self.learned_starts = ""
        """What start intervals have learned, which the steerer keeps in its Lease."""
        self._anti_affine: dict[str, set[str]] = {}
        """Pods that are bound and keep others away, by namespace: kube-scheduler alone can tell from which nodes."""
        self.with_room: Callable[[str], Iterable[str]] = lambda job_id: ()
        """Names the nodes that a job would fit on now."""
        self.enough: Callable[[Job], Share | None] = lambda job: None
        """What is enough for a job, where it asks for more."""
        self._do = do
        self._tenants = tenants_of(settings.quotas or ())
        self._needs: dict[tuple[str, object], MemoryNeed] = {}  # of owners whose pods ran out of GPU memory
        self._vacating: dict[str, int] = {}  # pods that are to leave their GPUs -> since when
        self._ran_out_of_memory: set[str] = set()  # pods
        self._waiting: dict[str, SiteJob] = {}
        self._running: dict[str, SiteRun] = {}
        # Those in order, so that the same news lead to the same decisions.
        self._changed: dict[str, None] = {}
        self._ends: list[End | FailedStart] = []
        self._on: dict[str, dict[str, None]] = {}  # node -> pods there
        self._avoided: dict[tuple[str, object], _Avoided] = {}
        self._refused: dict[str, int] = {}  # pods that kube-scheduler refuses -> since when
        self._silent: dict[str, int] = {}  # pods that kube-scheduler says nothing of -> since when
        self._unplaceable: dict[str, int] = {}  # pods that no node can hold -> since when
        self._new_node_ms: dict[str, int | None] = {}  # pods that ask for a new node -> when, once decided on
        self._partial_gangs: dict[Key, int] = {}  # gangs that may be bound in part -> since when
        self._last_bound_lift_ms = 0  # when the gate was lifted last of those that it has bound
        self._crowded: dict[str, None] = {}  # held because too many different kinds wait

    @property
    def has_news(self) -> bool:
        """Whether a decision could differ from the last one. That a node lives, or a pod is told why it waits, is no
        reason to, and there is much of it."""
        return self.stirred or bool(self._ends) or self.table.has_news

    # What the driver asks

    def nodes(self) -> tuple[SiteNode, ...]:
        return self.table.nodes()

    def waiting(self) -> Mapping[str, SiteJob]:
        return self._waiting

    def running(self) -> Mapping[str, SiteRun]:
        return self._running

    def others(self) -> Mapping[Gpu, Share]:
        return self.table.others()

    def ended(self) -> list[End | FailedStart]:
        ends, self._ends = self._ends, []
        return ends

    def changed(self) -> Set[str]:
        changed, self._changed = self._changed, {}
        return changed.keys()

    def ended_tasks(self, gang: str) -> int:
        return self.gangs.completed(gang)

    # What the driver wants

    def start(self, start: Start) -> None:
        """Lift the gate of a pod; one that is bound already is told its part."""
        entry = self.entries.get(start.job_id)
        if entry is None or entry.pod is None:
            self.start_failed(start.job_id, "")
            return
        self._new_node_ms.pop(entry.uid, None)
        (node,) = start.nodes
        view, spec = self.table.views[node], entry.pod.spec
        lifted_ms = 0 if spec.node_name else self._refreshed_ms
        placed = placed_by(start, view, self.settings.policy, lifted_ms)
        there = (self.entries.get(uid) for uid in self._on.get(node, ()))
        after = frozenset(each.uid for each in there if each is not None and self.holds(each.uid))
        enough = None if self.settings.right_size == "off" else self.enough(self._as_asked(entry))
        words = None if enough is None else share_words(enough)
        applied = any(each.operation == "Apply" for each in entry.pod.metadata.managed_fields)
        step = Lift(*entry.key, node, placed, after=after, enough=words, is_applied=applied)
        if spec.node_name:
            self._do(step._replace(is_bound=True))
            return
        step = step._replace(terms=required_terms(spec))
        if has_unread_rules(spec, COUNTED) or self._anti_affine.get(entry.namespace):
            affinity = spec.affinity.node_affinity if spec.affinity else None
            preferred = affinity.preferred_during_scheduling_ignored_during_execution if affinity else ()
            step = step._replace(hosts=self._hosts(entry, node), preferred=tuple(preferred))
        self._do(step)

    def _hosts(self, entry: Entry, first: str) -> tuple[str, ...]:
        """Hostnames of the node chosen and of others that have room and did not refuse pods alike; empty if the node
        has none or is the only one."""
        avoided = self._avoided.get(entry.owner)
        others = {first, *(avoided.until_ms if avoided is not None else ())}
        roomy = islice((name for name in self.with_room(entry.uid) if name not in others), MOST_OTHERS)
        hosts = [self.table.views[name].node.metadata.labels.get(names.HOSTNAME) for name in (first, *roomy)]
        return tuple(filter(None, hosts)) if hosts[0] and len(hosts) > 1 else ()

    def again(self, again: Again) -> None:
        """A pod that could not be started waits for another attempt; another pod takes the place of one that ran."""
        entry = self.entries.get(again.job_id)
        if entry is not None and entry.state is State.WAITING:
            entry.start_failures, entry.not_before_ms = again.start_failures, again.not_before_ms
            entry.why = again.why
            self._look_for_node(entry)
            self._queue(entry)

    def give_up(self, given_up: GiveUp) -> None:
        """What has ended here has ended for good."""

    def note(self, job_id: str, why: str) -> None:
        """Reasons are asked of the driver, a few at a time."""

    def evict(self, job_id: str) -> None:
        """Evict a pod; its controller makes another one."""
        entry = self.entries.get(job_id)
        if entry is not None:
            self._evict(entry, self.settings.why_evicted, "Preempted")

    def parked_mib(self, job_id: str) -> int | None:
        """What a pod may hold of each of its GPUs; None if the agent of its node cannot suspend it."""
        entry = self.entries.get(job_id)
        if entry is None or entry.pod is None or entry.of_gang is not None:
            return None
        memory = read_annotation(entry.pod.metadata.annotations, GpuMemory)
        return memory.limit_mib if memory is not None and memory.leaves else None

    def suspend(self, job_id: str) -> None:
        if (entry := self.entries.get(job_id)) is not None:
            self._vacating[job_id] = self._now_ms
            self._patch(entry, {names.SUSPEND: "true"})

    def resume(self, job_id: str) -> None:
        if (entry := self.entries.get(job_id)) is not None:
            self._vacating.pop(job_id, None)
            self._patch(entry, {names.SUSPEND: None})

    def holds(self, uid: str) -> bool:
        """Whether a pod is about to leave its GPUs, evicted or suspended, and has not left them."""
        entry = self.entries.get(uid)
        return entry is not None and (entry.leaving or uid in self._vacating)

    # What the cluster says

    def pod_group_changed(
        self, api_group: str, group: api.PodGroup, now_ms: int, *, gone: bool = False
    ) -> None:
        self._look_again(self.gangs.group_changed(api_group, group, gone=gone), now_ms)

    def node_changed(self, node: api.Node, now_ms: int) -> None:
        """A node came or changed. What was refused there before may be accepted now."""
        if self.table.changed(node):
            self.stirred = True
            for avoided in self._avoided.values():
                if avoided.until_ms.get(node.metadata.name):
                    avoided.until_ms[node.metadata.name] = now_ms

    def node_gone(self, node: api.Node) -> None:
        self.table.gone(node)
        self.stirred = True

    def pod_changed(self, pod: api.Pod, now_ms: int) -> None:
        """A pod came or changed. One that makes no sense harms no other."""
        self._now_ms = now_ms
        try:
            self._pod_changed(pod, now_ms)
        except Exception:
            meta = pod.metadata
            log.exception("%s/%s is left out: berth has a fault", meta.namespace, meta.name)
            entry = self._entry(pod)
            self._become(entry, State.HELD)
            entry.why = "berth fails to read it; its log says why"

    def pod_gone(self, pod: api.Pod, now_ms: int) -> None:
        self._ran_out_of_memory.discard(pod.metadata.uid)
        self._vacating.pop(pod.metadata.uid, None)
        entry = self.entries.get(pod.metadata.uid)
        if entry is None:
            return
        if entry.state is State.RUNS:
            how = RecordState.PREEMPTED if entry.leaving else RecordState.CANCELLED
            self._ends.append(End(entry.uid, how, now_ms, waits_again=True))
        self._forget(entry)

    def refresh(self, now_ms: int) -> None:
        """Take in what the nodes have become, and what time has brought; to be called before each step."""
        self.stirred, self._refreshed_ms = False, now_ms
        moved, has_other_models = self.table.refresh()
        for name in moved:
            there = [*self._on.get(name, ())]
            for entry in (self.entries[uid] for uid in there if uid in self.entries):
                entry.no_room = False  # its GPUs may be back
            self._look_again(there, now_ms)
        if has_other_models:
            sizes = self.settings.right_size == "apply"
            self._queue_again(lambda _, asked: sizes or bool(asked.models or asked.mem_milli))
        if self.kinds.left and self._crowded:
            self.kinds.left = False
            first = [*self._crowded][: MOST_OF_ONE // 2]
            for uid in first:  # one for which there is still no room goes behind those not looked at
                del self._crowded[uid]
            self._look_again(first, now_ms)
        for uid, since_ms in [*self._refused.items()]:
            if uid in self._refused and now_ms - since_ms >= self.settings.patience_ms:
                self._give_back(self.entries[uid], now_ms)
        for uid, since_ms in [*self._silent.items()]:
            if uid in self._silent:  # else its part went with that of another pod of its gang
                self._check_silence(self.entries[uid], now_ms - since_ms)
        for key, since_ms in [*self._partial_gangs.items()]:
            self._check_partial_gang(key, since_ms, now_ms)
        for uid, since_ms in self._vacating.items():
            if uid in self.entries and now_ms - since_ms >= LEAVE_MS:
                self._evict_instead(self.entries[uid], "its node's agent does not do it")
        late_ms = now_ms - RELEASE_TIMES * self.settings.patience_ms
        due = (
            each
            for uid, since_ms in self._unplaceable.items()
            if since_ms <= late_ms and (each := self.entries.get(uid))
        )
        for entry in sorted(due, key=lambda each: each.order)[:MOST_RELEASED]:
            self._unplaceable[entry.uid] = now_ms
            self._release(entry)
        hasty = (self.entries[uid] for uid, at_ms in self._new_node_ms.items() if at_ms and at_ms <= now_ms)
        for entry in sorted(hasty, key=lambda each: each.order)[:MOST_RELEASED]:
            self._new_node_ms[entry.uid] = now_ms + RELEASE_TIMES * self.settings.patience_ms
            self._release(entry, for_room=True)
        self._forgive(now_ms)
        if moved or self.kinds.stale:
            self.table.refresh()

    def profiles_grew(self) -> None:
        """What is enough may be known of pods that wait."""
        self.stirred = True
        if self.settings.right_size == "apply":
            self._queue_again(lambda _, asked: True)

    def next_ms(self) -> int | None:
        """When `refresh` has something to do if nothing happens before."""
        times = [avoided_ms for each in self._avoided.values() for avoided_ms in each.until_ms.values()]
        times += [since_ms + self.settings.patience_ms for since_ms in self._refused.values()]
        for since_ms in self._silent.values():
            ends = (since_ms + self.settings.patience_ms, since_ms + SILENCE_MS)
            times += [end_ms for end_ms in ends if end_ms > self._refreshed_ms]
        times += [
            since_ms + RELEASE_TIMES * self.settings.patience_ms for since_ms in self._unplaceable.values()
        ]
        times += [at_ms for at_ms in self._new_node_ms.values() if at_ms]
        times += [since_ms + self.gangs.time_out_ms(key) for key, since_ms in self._partial_gangs.items()]
        staying = (uid for uid in self._vacating if uid in self.entries and not self.entries[uid].leaving)
        times += [self._vacating[uid] + LEAVE_MS for uid in staying]
        return min(times, default=None)

    # What became of steps

    def start_failed(self, uid: str, why: str) -> None:
        """A pod could not be started; without a reason it is no failure of its own."""
        self._ends.append(FailedStart(uid, why))
        self.stirred = True
        if (entry := self.entries.get(uid)) is not None:
            self._others_of_gang(entry)

    def displace(self, unplaced: Iterable[str], free: Callable[[Gpu], Share]) -> None:
        """Pods run for which the driver has no room. Those that have what was given to others, as two steerers did,
        lose it if they have not begun; all others are only counted from now on."""
        for uid in [*unplaced]:
            entry, run = self.entries.get(uid), self._running.get(uid)
            if entry is None or entry.pod is None or run is None or run.share is None or entry.leaving:
                continue
            if self.table.node_state(entry.node) is NodeState.LOST:
                continue
            share = run.share
            is_short = any(
                has.milli < share.milli or has.mem_mib < share.mem_mib for has in map(free, run.gpus)
            )
            if entry.pod.status.phase == "Pending" and is_short:
                why = f"the GPUs that it was given on node {entry.node} are other pods'"
                self._take_away(entry, why, "Overcommitted")
            elif entry.state is State.RUNS:
                entry.no_room = True
                self._only_count(entry, _placed(entry.pod))

    def cannot_hold(self, uids: Iterable[str]) -> None:
        """No node could hold these pods if nothing else of berth ran there. To be called after each step."""
        self._unplaceable = {uid: self._unplaceable.get(uid, self._refreshed_ms) for uid in uids}
        for uid in [uid for uid, at_ms in self._new_node_ms.items() if at_ms is None]:
            request = self.entries[uid].request
            wait_ms = (request.new_node_ms or 0) if request is not None else 0
            self._new_node_ms[uid] = self._refreshed_ms + max(self.settings.patience_ms, wait_ms)

    def look_for_other_card(self, job: Job, fits: Callable[[Job], bool]) -> None:
        """Have a pod that asks for a part of a card's memory wait for the first size of card that has room for it."""
        entry = self.entries.get(job.id)
        if entry is None or entry.request is None or not entry.request.mem_milli:
            return
        sizes = [*self.table.cards.variants(job, entry.request)]
        at = next((at for at, other in enumerate(sizes) if fits(other)), None)
        if at is not None and at != entry.variant:
            entry.variant = at
            self._queue(entry)

    def lacks(self, entry: Entry) -> str:
        """What nodes are short of for a pod that no node may run, as `2 no label zone=a, 5 taint gpu:NoSchedule`."""
        if entry.request is None:
            return ""
        counts: Counter[str] = Counter()
        kind = entry.kind or entry.request.constraint
        for view in self.table.views.values():
            why = "not ready" if not view.ready else "cordoned" if view.cordoned else ""
            counts[why or self._lack(entry.request, kind, view)] += 1
        del counts[""]
        most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MOST_GROUPS]
        said = ", ".join(f"{count:,} {why}" for why, count in most)
        return f"of {len(self.table.views):,} nodes, {said}" if said else ""

    def _lack(self, request: PodRequest, kind: Constraint, view: View) -> str:
        """What a node lacks for a pod if nothing else runs there; empty if nothing."""
        return why_not(kind, view.node) or _lacks(request, view, self.table.cards.called(request.models))

    # How: pods that wait

    def _pod_changed(self, pod: api.Pod, now_ms: int) -> None:
        if pod.status.phase in _DONE:
            self._has_ended(pod, now_ms)
        elif pod.spec.node_name:
            self._is_bound(pod)
        else:
            self._is_unbound(pod, now_ms)

    def _is_unbound(self, pod: api.Pod, now_ms: int) -> None:
        meta = pod.metadata
        gates = [gate.name for gate in pod.spec.scheduling_gates]
        placed, request = _placed(pod), _request_of(pod) if self.settings.advise else None
        entry = self.entries.get(meta.uid)
        if meta.deletion_timestamp is not None:
            if entry is not None:
                self._forget(entry)
        elif names.GATE in gates and entry is not None and entry.state is State.STRAY:
            entry.pod = pod  # it is about to be released
        elif names.GATE in gates:
            others = [gate for gate in gates if gate != names.GATE]
            held = f"held by scheduling gate {', '.join(others)}" if others else ""
            if meta.annotations.get(names.HOLD, "false") != "false":
                held = f"held by annotation {names.HOLD}"
            self._waits(self._entry(pod), held, now_ms)
        elif placed is not None:
            self._is_lifted(self._entry(pod), placed, now_ms)
        elif self.settings.advise and (request is None or request.gpus):
            self._waits(self._entry(pod), "", now_ms)
        elif pod.spec.scheduler_name == names.OLD_SCHEDULER:
            self._become(entry := self._entry(pod), State.HELD)
            entry.why = (
                f"it names the scheduler '{names.OLD_SCHEDULER}', which was that of berth 0.2; make it again without"
                " schedulerName"
            )
        elif any(names.RESOURCE in each.resources.requests for each in pod.spec.containers) or (
            entry is not None and entry.state in (State.LIFTED, State.STRAY)
        ):
            entry = self._entry(pod)
            if entry.state not in (State.LIFTED, State.STRAY):
                entry.why = ""
            self._become(entry, State.STRAY)
            released, words = meta.annotations.get(names.RELEASED, ""), _refusal(pod)
            if released:
                entry.why = f"{released}; kube-scheduler: {words}" if words else released
            entry.why = entry.why or words
        elif entry is not None:
            self._forget(entry)

    def _waits(self, entry: Entry, held: str, now_ms: int) -> None:
        """A gated pod is there; it waits unless something else holds it."""
        assert entry.pod is not None
        before, gang = entry.request, None
        try:
            request = self._set_request(entry, request_of(entry.pod))
            if request.gang is not None:
                gang = self.gangs.join(request.gang, entry.uid, waits=True)
            if not held and not self._joins(entry, now_ms):
                held = (
                    f"pods of {MOST_KINDS} different selectors, affinities and tolerations wait already, or of"
                    f" {MOST_OF_ONE} in this namespace; this pod is looked at again when there are fewer"
                )
        except AskError as error:
            held = f"{held}; {error}" if held else str(error)
        if held:
            self._become(entry, State.HELD)
            entry.why = held
            return
        if request != before:
            self._new_node_ms.pop(entry.uid, None)
        self._look_for_node(entry)
        if entry.state is State.WAITING and entry.request == before and entry.gang == gang:
            return
        if before is not None and before != entry.request:
            entry.version += 1
        if entry.state is not State.WAITING:
            self._become(entry, State.WAITING)
            entry.why = ""
        entry.gang = gang
        self._queue(entry)

    def _look_for_node(self, entry: Entry) -> None:
        """Have a pod that says so be released if the next decision and its wait for room bring it none."""
        if entry.request is not None and entry.request.new_node_ms is not None:
            self._new_node_ms.setdefault(entry.uid, None)

    def _set_request(self, entry: Entry, request: PodRequest) -> PodRequest:
        """Have a pod ask for this from now on; it leaves its gang if that is another."""
        if entry.of_gang is not None and request.gang != entry.of_gang:
            self.gangs.leave(entry.of_gang, entry.uid)
        entry.request = request
        return request

    def _joins(self, entry: Entry, now_ms: int) -> bool:
        """Have a pod wait with its kind; False if too many different ones wait."""
        assert entry.request is not None
        kind = entry.request.constraint
        avoided = self._avoided.get(entry.owner)
        if avoided is not None and avoided.until_ms:
            kind = replace(kind, avoids=tuple(sorted(avoided.until_ms)))
        if kind == entry.kind:
            return True
        nodes = (view.node for view in self.table.views.values())
        label = self.kinds.join(kind, nodes, entry.namespace)
        if not label:
            self._crowded[entry.uid] = None
            return False
        self._crowded.pop(entry.uid, None)
        if entry.kind is not None:
            self.kinds.leave(entry.kind)
        entry.kind, entry.label = kind, label
        return True

    def _queue(self, entry: Entry) -> None:
        """Have the driver see a waiting pod as it is now."""
        uid = entry.uid
        job = SiteJob(
            self._job(entry),
            entry.order,
            start_failures=entry.start_failures,
            not_before_ms=entry.not_before_ms,
            why=entry.why,
            version=entry.version,
            gang=entry.gang,
            only_gpus=self._gpus_of(entry.node) if entry.node else (),
        )
        self._waiting[uid] = job
        self._changed[uid] = None
        self.stirred = True

    def _queue_again(self, which: Callable[[Entry, PodRequest], bool]) -> None:
        """Have the driver see those of the waiting pods anew for which this holds."""
        for uid in [*self._waiting]:
            entry = self.entries[uid]
            if entry.request is not None and which(entry, entry.request):
                self._queue(entry)

    def _gpus_of(self, node: str) -> tuple[Gpu, ...]:
        view = self.table.views.get(node)
        return () if view is None else tuple(Gpu(node, at) for at in range(len(view.gpus)))

    def _job(self, entry: Entry) -> Job:
        """The job of a pod, on the cards of today, with what it is to get."""
        job = self._as_asked(entry)
        enough = self.enough(job) if self.settings.right_size == "apply" else None
        return job if enough is None else replace(job, share=enough)

    def _tenant(self, entry: Entry) -> str:
        return self._tenants.get(entry.namespace, entry.namespace)

    def _as_asked(self, entry: Entry) -> Job:
        assert entry.request is not None
        request, cards = entry.request, self.table.cards
        need = self._needs.get(entry.owner)
        if request.gpus and need is not None:
            request = with_memory(request, need, cards)
        labels = (entry.label,) if entry.label else ()
        job = job_of(entry.uid, entry.namespace, entry.submit_ms, request, labels, cards)
        if (tenant := self._tenant(entry)) != entry.namespace:
            job = replace(job, virtual_cluster=tenant)
        if (
            request.gpus
            and request.mem_milli
            and entry.variant
            and (sizes := [*cards.variants(job, request)])
        ):
            return sizes[entry.variant % len(sizes)]
        return job

    def _release(self, entry: Entry, *, for_room: bool = False) -> None:
        """Lift the gate of a pod that no node can hold, within the quota of its namespace; or `for_room` that of one
        that nodes could hold, if kube-scheduler counts its part too. Pods of a gang stay: they could start without the
        others."""
        if entry.state is not State.WAITING or entry.node:
            return
        assert entry.pod is not None
        assert entry.request is not None
        request = entry.request
        has_node = not all(
            self._lack(request, request.constraint, view) for view in self.table.views.values()
        )
        counts = any(names.ASKED_MILLI in each.resources.requests for each in entry.pod.spec.containers)
        if request.gang is not None or (has_node and not (for_room and counts)):
            return  # other pods may leave room
        if self.settings.quotas is not None:
            tenant, states = self._tenant(entry), (State.LIFTED, State.STRAY, State.RUNS)
            there = (each for each in self.entries.values() if self._tenant(each) == tenant)
            held = sum(
                each.request.gpus for each in there if each.request is not None and each.state in states
            )
            if held + entry.request.gpus > self.settings.quotas.get(tenant, 0):
                return
        cause = (
            "no node has room for it"
            if has_node
            else f"no node can hold it: {self.lacks(entry) or 'there are none'}"
        )
        self._become(entry, State.STRAY)
        entry.why = f"{cause}. Its gate is lifted, so that an autoscaler may make one"
        spec: dict[str, Any] = {"schedulingGates": None}
        if needs := self._needs_of(request):
            terms = required_terms(entry.pod.spec)
            spec["affinity"] = {"nodeAffinity": required_affinity(terms, api.Term(needs))}
        meta = {"uid": entry.uid, "annotations": {names.RELEASED: entry.why}}
        event = PodEvent(*entry.key, "Released", entry.why, False)
        self._do(Patch(*entry.key, {"metadata": meta, "spec": spec}, event))

    def _needs_of(self, request: PodRequest) -> tuple[api.Expression, ...]:
        """What labels a node has that can hold a pod's GPUs: kube-scheduler counts neither cards nor models."""
        needs = []
        if request.gpus:
            needs.append(api.Expression(names.LABEL_GPU_COUNT, "Gt", (str(request.gpus - 1),)))
        if request.gpus and request.mem_mib:
            needs.append(api.Expression(names.LABEL_GPU_MEMORY_MIB, "Gt", (str(request.mem_mib - 1),)))
        if request.gpus and request.models:
            needs.append(api.Expression(names.LABEL_GPU_MODEL, "In", self.table.cards.called(request.models)))
        return tuple(needs)

    # How: pods whose gate is lifted

    def _is_lifted(self, entry: Entry, placed: Placed, now_ms: int) -> None:
        """Count a pod from the patch that lifted its gate, though it is not bound yet."""
        assert entry.pod is not None
        self._move(entry, placed.node)
        if not self._runs(entry, placed, started=False):
            self._become(entry, State.STRAY)
            entry.why = f"its GPUs on node {placed.node} are not there"
            return
        self._become(entry, State.LIFTED)
        if entry.of_gang is not None:
            self._partial_gangs.setdefault(entry.of_gang.key, placed.at_ms or now_ms)
        self._silent.pop(entry.uid, None)
        words = _refusal(entry.pod)
        if words and not entry.pod.status.nominated_node_name and not entry.leaving:
            entry.why = f"kube-scheduler refuses it on node {entry.node}: {words}"
            self._refused.setdefault(entry.uid, now_ms)
            return
        entry.why = ""
        self._refused.pop(entry.uid, None)
        if placed.at_ms and _is_silent(entry.pod) and not entry.leaving:
            self._silent[entry.uid] = placed.at_ms
            self._check_silence(entry, now_ms - placed.at_ms)

    def _check_silence(self, entry: Entry, lasted_ms: int) -> None:
        """Say so if kube-scheduler says nothing of a pod, and give its part back if it will not."""
        if lasted_ms >= self.settings.patience_ms:
            entry.why = (
                "its gate is lifted, and kube-scheduler says nothing of it: it is down, or a claim is missing"
            )
        if lasted_ms >= SILENCE_MS and self._last_bound_lift_ms > self._silent[entry.uid]:
            self._take_back(entry, "Unseen")

    def _give_back(self, entry: Entry, now_ms: int) -> None:
        """kube-scheduler refuses a pod on the node that it is pinned to: pods alike go elsewhere from now on."""
        assert entry.request is not None
        avoided = self._avoided.setdefault(entry.owner, _Avoided())
        if len(self._avoided) > MOST_OWNERS:
            del self._avoided[next(iter(self._avoided))]
        assert entry.pod is not None
        for node in self._pinned(entry.pod) | {entry.node}:
            times = avoided.times[node] = avoided.times.get(node, 0) + 1
            avoided.until_ms[node] = now_ms + min(MOST_AVOID_MS, AVOID_MS << min(times - 1, 16))
        self._rejoin(entry.owner, now_ms)
        self._take_back(entry, "PinsRefused")

    def _take_back(self, entry: Entry, reason: str) -> None:
        """Take the parts away of a pod and of its gang's pods that are not bound."""
        others, why = self._others_of_gang(entry), entry.why
        self._take_away(entry, why, reason)
        for other in others:
            if other.state is State.LIFTED and not other.leaving:
                self._take_away(other, f"pod {entry.name} of its gang cannot start: {why}", reason)

    def _others_of_gang(self, entry: Entry) -> list[Entry]:
        """The other pods of a gang one of which does not start now; the gang has its time-out to be whole again."""
        if entry.of_gang is None:
            return []
        key = entry.of_gang.key
        self._partial_gangs.setdefault(key, max(self._now_ms, self._refreshed_ms))
        return [self.entries[uid] for uid in self.gangs.pods(key) if uid != entry.uid and uid in self.entries]

    def _check_partial_gang(self, key: Key, since_ms: int, now_ms: int) -> None:
        """Give all parts of a gang back that is bound in part for too long: its controller makes it anew."""
        there = [each for uid in self.gangs.pods(key) if (each := self.entries.get(uid)) and not each.leaving]
        bound = [each for each in there if each.state is State.RUNS]
        began = [ms for each in bound if each.pod and (ms := moment_ms(each.pod.status.start_time))]
        since_ms = self._partial_gangs[key] = max(since_ms, min(began, default=0))
        lifted = [each for each in there if each.state is State.LIFTED]
        if lifted and not bound:
            self._partial_gangs[key] = now_ms  # the time-out begins when the first is bound
            return
        is_late = now_ms - since_ms >= self.gangs.time_out_ms(key)
        is_half = bool(bound) and not self.gangs.is_whole(key, len(bound))
        if is_late or not is_half:
            del self._partial_gangs[key]
        if not is_late or not is_half:
            return
        why = f"only {len(bound)} pods of its gang have started after {(now_ms - since_ms) // 1000} s"
        for each in lifted:
            self._take_away(each, why, "GangTimedOut")
        for each in bound:
            if _has_controller(each):
                self._evict(each, why, "GangTimedOut")

    def _pinned(self, pod: api.Pod) -> set[str]:
        hosts = {
            host
            for term in required_terms(pod.spec)
            for each in term.match_expressions
            if (each.key, each.operator) == (names.HOSTNAME, "In")
            for host in each.values
        }
        views = self.table.views.values() if hosts else ()
        return {view.name for view in views if view.node.metadata.labels.get(names.HOSTNAME) in hosts}

    def _take_away(self, entry: Entry, why: str, reason: str) -> None:
        """Take a pod's part away: one with a controller is evicted, so that another is made; any other waits on."""
        assert entry.pod is not None
        version = entry.pod.metadata.resource_version
        if entry.taken_away == version:
            return
        entry.why, entry.taken_away = why, version
        self._refused.pop(entry.uid, None)
        self._silent.pop(entry.uid, None)
        if _has_controller(entry):
            self._evict(entry, why, reason)
            return
        entry.why = (
            f"{why}. Its part of the GPU is given back; nothing makes this pod anew, so end its wait with: kubectl"
            f" delete pod -n {entry.namespace} {entry.name}"
        )
        # Not if it has changed: it may have been bound.
        meta = {"uid": entry.uid, "annotations": dict.fromkeys(names.DECIDED), "resourceVersion": version}
        self._do(Patch(*entry.key, {"metadata": meta}, PodEvent(*entry.key, reason, entry.why)))

    def _patch(self, entry: Entry, annotations: dict[str, str | None]) -> None:
        self._do(Patch(*entry.key, {"metadata": {"uid": entry.uid, "annotations": annotations}}))

    def _evict(self, entry: Entry, why: str, reason: str) -> None:
        entry.leaving = True
        self._do(Evict(*entry.key, why, reason))

    def _forgive(self, now_ms: int) -> None:
        """Nodes that refused pods long ago, or have changed since, are looked at again."""
        for owner, avoided in self._avoided.items():
            over = [node for node, until_ms in avoided.until_ms.items() if until_ms <= now_ms]
            for node in over:
                del avoided.until_ms[node]
            if over:
                self._rejoin(owner, now_ms)

    def _rejoin(self, owner: tuple[str, object], now_ms: int) -> None:
        """Pods of one owner avoid other nodes than before."""
        self._queue_again(lambda entry, _: entry.owner == owner and self._joins(entry, now_ms))

    # How: pods that are bound

    def _is_bound(self, pod: api.Pod) -> None:
        entry, node = self._entry(pod), pod.spec.node_name
        if keeps_others_away(pod.spec):
            self._anti_affine.setdefault(entry.namespace, set()).add(entry.uid)
        self._move(entry, node)
        self._refused.pop(entry.uid, None)
        placed = _placed(pod)
        if placed is not None:
            self._last_bound_lift_ms = max(self._last_bound_lift_ms, placed.at_ms)
        if placed is not None and placed.node not in ("", node):
            placed = None  # it was meant for another node
        if entry.no_room:
            return
        if placed is not None and self._runs(entry, placed, started=True):
            self._become(entry, State.RUNS)
            entry.why = ""
            return
        request = _request_of(pod)
        pending = pod.status.phase == "Pending" and pod.metadata.deletion_timestamp is None
        gpus = self._gpus_of(node)
        if request is not None and request.gpus and pending and placed is None and gpus:
            # kube-scheduler bound it where it liked; which of the GPUs there it has is still berth's to say.
            known = self._waiting.get(entry.uid)
            if known is None or entry.request != request or known.only_gpus != gpus:
                self._set_request(entry, request)
                entry.version += 1  # a start that is under way is not this one
                self._become(entry, State.WAITING)
                entry.why = ""
                self._queue(entry)
            return
        self._only_count(entry, placed)

    def _only_count(self, entry: Entry, placed: Placed | None) -> None:
        assert entry.pod is not None
        self._become(entry, State.OTHER)
        seat = self._seat(entry.pod, placed)
        self.table.seat(entry.uid, entry.node, seat)
        if placed is None and not seat.some_gpus:
            entry.pod = None  # nothing about it depends on its node

    def _runs(self, entry: Entry, placed: Placed, *, started: bool) -> bool:
        """Have the driver see that a pod has its part; False if the GPUs are not there."""
        assert entry.pod is not None
        view = self.table.views.get(entry.node)
        at = None if view is None else places_of(placed, view)
        if view is None or at is None:
            return False
        gang, card_mib = None, view.model.mem_mib if view.model else 0
        try:
            self._set_request(entry, request_of(entry.pod))
        except AskError as error:
            if entry.request is None:
                log.warning("%s is only counted: %s", entry.title, error)
                return False
        assert entry.request is not None
        if entry.request.gang is not None:
            gang = self.gangs.join(entry.request.gang, entry.uid, waits=False)
        share = _share(entry.request, placed, card_mib, entry.pod.metadata.annotations.get(names.ENOUGH))
        asked = Share(
            max(entry.request.milli, share.milli),
            entry.request.mem_mib if placed.best_effort else share.mem_mib,
        )
        job = replace(self._as_asked(entry), models=(), labels=(), gpus=len(at), share=asked)
        of = SiteJob(job, entry.order, version=entry.version, gang=gang)
        gpus = tuple(Gpu(entry.node, place) for place in at)
        nodes = () if gpus else (entry.node,)
        memory = read_annotation(entry.pod.metadata.annotations, GpuMemory)
        if memory is not None and share.mem_mib:  # as far as it has grown
            share = share._replace(mem_mib=max(share.mem_mib, min(memory.limit_mib, card_mib)))
        run = SiteRun(
            of,
            gpus,
            nodes,
            share,
            placed.best_effort,
            started=started,
            suspended_since_ms=self._away_ms(entry, memory),
            resumes=memory is None or not memory.idle,
        )
        if self._running.get(entry.uid) != run:
            self._running[entry.uid] = run
            self._changed[entry.uid] = None
            self.stirred = True
        self.table.run(entry.uid, entry.node, dict.fromkeys(at, share))
        return True

    def _away_ms(self, entry: Entry, memory: GpuMemory | None) -> int | None:
        """Since when a pod has left its GPUs. One that was to and could not is evicted in place of that."""
        assert entry.pod is not None
        if memory is not None and memory.suspended_ms is not None:
            self._vacating.pop(entry.uid, None)
            return memory.suspended_ms
        if names.SUSPEND in entry.pod.metadata.annotations:
            self._vacating.setdefault(entry.uid, self._now_ms)
            if memory is not None and memory.why:
                self._evict_instead(entry, memory.why)
        return None

    def _evict_instead(self, entry: Entry, why: str) -> None:
        if not entry.leaving:
            self._evict(entry, f"{self.settings.why_evicted}; it cannot be suspended: {why}", "Preempted")

    def _seat(self, pod: api.Pod, placed: Placed | None) -> Seat:
        """What a pod takes of its node that berth did not place, or whose GPUs are not where they were."""
        try:
            takes = dict(pod_resources(pod))
        except AskError as error:
            log.warning("%s/%s is not counted: %s", pod.metadata.namespace, pod.metadata.name, error)
            return Seat()
        view = self.table.views.get(pod.spec.node_name)
        at = places_of(placed, view) if placed is not None and view is not None else None
        seat = Seat(takes.get("cpu", 0), takes.get("memory", 0))
        if placed is not None and at is not None:
            parts = (Share(gpu.milli, gpu.mem_mib) for gpu in placed.gpus)
            seat.gpus = dict(zip(at, parts, strict=True))
        else:
            seat.some_gpus = takes.get(names.RESOURCE, 0) or takes.get("nvidia.com/gpu", 0)
        return seat

    # How: pods that have ended

    def _has_ended(self, pod: api.Pod, now_ms: int) -> None:
        """A pod has ended: its place is free. What its node's agent measured may be written into it later."""
        meta, entry = pod.metadata, self.entries.get(pod.metadata.uid)
        self._vacating.pop(meta.uid, None)
        completed, measured = pod.status.phase == "Succeeded", read_annotation(meta.annotations, Measured)
        known = entry is not None and entry.state in (State.RUNS, State.LIFTED)
        if not completed and measured is not None and measured.refused > 0:
            if meta.uid not in self._ran_out_of_memory and _placed(pod) is not None:
                self._ran_out_of_memory.add(meta.uid)
                self._ran_out(pod, measured, is_known=known)
            how = RecordState.OUT_OF_MEMORY
        else:
            how = RecordState.COMPLETED if completed else RecordState.FAILED
            ends = (each.state.terminated for each in pod.status.container_statuses)
            if known and any(end is not None and end.reason == "OOMKilled" for end in ends) and not completed:
                why = "a container exceeded its own limit of the node's memory: raise resources.limits.memory"
                self._do(PodEvent(meta.uid, meta.namespace, meta.name, "OutOfMemory", why, False))
        if entry is None and _placed(pod) is None:
            return
        entry = self._entry(pod)
        if known:
            held_mib = 0 if measured is None else max(measured.peak_mib, measured.needed_mib)
            self._ends.append(End(meta.uid, how, now_ms, needed_mib=held_mib, waits_again=True))
        if entry.state is not State.ENDED:
            request = _request_of(pod)
            self._become(entry, State.ENDED)
            if request is not None and request.gang is not None and completed:
                self.gangs.leave(request.gang, meta.uid, completed=True)
                self._changed |= dict.fromkeys(self.gangs.pods(request.gang.key))
            entry.request = request
            self._move(entry, pod.spec.node_name)
        entry.pod = None

    def _ran_out(self, pod: api.Pod, measured: Measured, *, is_known: bool) -> None:
        """Give the next pod of the owner more than this one had, and say so. `is_known`: the driver hears of it."""
        meta = pod.metadata
        message = f"it ran out of GPU memory: {measured.refused} allocations were refused at {measured.peak_mib} MiB"
        request = _request_of(pod)
        if request is not None and request.owner:
            held_mib, owner = max(measured.peak_mib, measured.needed_mib), (meta.namespace, request.owner)
            if not is_known:
                job = job_of(meta.uid, meta.namespace, created_ms(meta), request, (), self.table.cards)
                self.ran_out(job, held_mib)
            need = self._needs[owner] = need_after(self._needs.pop(owner, NO_NEED), held_mib)
            if len(self._needs) > MOST_OWNERS:
                del self._needs[next(iter(self._needs))]
            self._queue_again(lambda other, _: other.owner == owner)
            gets = "whole GPUs" if need.alone else f"{need.mib} MiB of each GPU"
            message = f"{message}; the next pod of {request.owner} gets {gets}"
        if meta.uid in self.entries:  # else it ended before this steerer began, and another has said so
            self._do(PodEvent(meta.uid, meta.namespace, meta.name, "OutOfMemory", message, False))

    # What all of them need

    def _entry(self, pod: api.Pod) -> Entry:
        meta = pod.metadata
        entry = self.entries.get(meta.uid)
        if entry is None:
            created = min(created_ms(meta), self._now_ms)  # the API server's clock may be ahead of ours
            order = created, int(meta.resource_version) if meta.resource_version.isdigit() else 0
            entry = Entry(meta.uid, meta.namespace, meta.name, submit_ms=order[0], order=order)
            self.entries[meta.uid] = entry
        entry.pod = pod
        return entry

    def _move(self, entry: Entry, node: str) -> None:
        """Have a pod leave the node that it was on, or was meant for, if it is another."""
        if entry.node not in ("", node):
            self._running.pop(entry.uid, None)
            self.table.leave(entry.uid, entry.node)
            self._on.get(entry.node, {}).pop(entry.uid, None)
        entry.node = node

    def _become(self, entry: Entry, state: State) -> None:
        """Have a pod leave what it was for what it is."""
        uid = entry.uid
        if entry.node:
            self._on.setdefault(entry.node, {})[uid] = None
        if state is entry.state:
            return
        self.stirred = True
        self._changed[uid] = None
        if state is not State.WAITING:
            self._waiting.pop(uid, None)
            self._new_node_ms.pop(uid, None)
            if entry.kind is not None:
                self.kinds.leave(entry.kind)
                entry.kind, entry.label = None, ""
            entry.gang = None
        if state not in (State.LIFTED, State.RUNS):
            self._running.pop(uid, None)
            if entry.node:
                self.table.leave(uid, entry.node)
        if state is not State.LIFTED:
            self._refused.pop(uid, None)
            self._silent.pop(uid, None)
        if state is State.ENDED:
            self._anti_affine.get(entry.namespace, set()).discard(uid)
        if state is not State.HELD:
            self._crowded.pop(uid, None)
        if state in (State.OTHER, State.ENDED) and entry.of_gang is not None:
            self.gangs.leave(entry.of_gang, uid)
        entry.state = state

    def _forget(self, entry: Entry) -> None:
        self._become(entry, State.ENDED)
        if entry.of_gang is not None:
            self.gangs.leave(entry.of_gang, entry.uid)
        if entry.node:
            self.table.leave(entry.uid, entry.node)
            self._on.get(entry.node, {}).pop(entry.uid, None)
        del self.entries[entry.uid]

    def _look_again(self, uids: Iterable[str], now_ms: int) -> None:
        """Something that these pods depend on has changed."""
        for uid in uids:
            entry = self.entries.get(uid)
            if entry is not None and entry.pod is not None:
                self._changed[uid] = None
                self.pod_changed(entry.pod, now_ms)
        self.stirred = True

    def is_reported_silent(self, entry: Entry) -> bool:
        """Whether the pod is told that kube-scheduler is silent about it."""
        return bool(entry.why) and entry.uid in self._silent

    def waits(self) -> Iterator[Entry]:
        """The pods that wait for whatever reason."""
        there = (State.HELD, State.WAITING, State.STRAY)
        return (
            each
            for each in self.entries.values()
            if each.state in there or (each.why and each.state is State.LIFTED)
        )


def _request_of(pod: api.Pod) -> PodRequest | None:
    """What a pod asks for; None if that makes no sense."""
    try:
        return request_of(pod)
    except AskError:
        return None


def _has_controller(entry: Entry) -> bool:
    """Whether another pod is made in place of one that is evicted."""
    return entry.pod is not None and any(each.controller for each in entry.pod.metadata.owner_references)


def _placed(pod: api.Pod) -> Placed | None:
    """The placement of a pod; None if it has none, or that of another pod."""
    said = pod.metadata.annotations
    placed = read_annotation(said, Placed)
    if placed is None or said.get(names.PLACED_UID, pod.metadata.uid) != pod.metadata.uid:
        return None
    return placed


def _refusal(pod: api.Pod) -> str:
    """kube-scheduler's words on why a pod cannot be bound now; empty if it has none."""
    for each in pod.status.conditions:
        if each.type == "PodScheduled" and each.status == "False" and each.reason == "Unschedulable":
            return each.message
    return ""


def _is_silent(pod: api.Pod) -> bool:
    """Whether kube-scheduler has written nothing of a pod: what it says now was said of its gate."""
    return all(each.reason == names.GATED for each in pod.status.conditions if each.type == "PodScheduled")


def _lacks(request: PodRequest, view: View, models: Collection[str]) -> str:
    """What a node is short of for a pod if nothing else runs there; empty if nothing is."""
    if request.gpus and not view.gpus:
        return "no GPU for pods"
    if models and (view.model is None or view.model.name not in models):
        return f"no model {', '.join(request.models)}"
    if len(view.gpus) < request.gpus:
        return f"fewer than {request.gpus} GPUs"
    if request.gpus and view.model is not None and 0 < view.model.mem_mib < request.mem_mib:
        return f"less than {request.mem_mib} MiB on a GPU"
    if view.cpu_milli < request.cpu_milli:
        return f"fewer than {request.cpu_milli / 1000:g} CPUs"
    return f"less than {request.host_mem_mib} MiB of memory" if view.mem_mib < request.host_mem_mib else ""


def _share(request: PodRequest, placed: Placed, card_mib: int, enough: str | None) -> Share:
    """What a placement gives of each GPU, the largest of its parts. An annotation may have been edited: a promised part
    counts as no less than the pod asks for, unless it is what was written down as enough."""
    if not placed.gpus:
        return Share(request.milli, request.mem_mib)
    milli, mem_mib = max(gpu.milli for gpu in placed.gpus), max(gpu.mem_mib for gpu in placed.gpus)
    is_enough = enough == share_words(Share(milli, mem_mib))
    if not (placed.shared or placed.best_effort or is_enough):
        asked_mib = request.mem_mib or card_mib * request.mem_milli // 1000
        milli, mem_mib = max(milli, request.milli), max(mem_mib, asked_mib)
    if request.milli == 1000 and not request.mem_mib and mem_mib == card_mib and not is_enough:
        mem_mib = 0  # the whole card, as it was asked for
    return Share(milli, min(mem_mib, card_mib) if card_mib else mem_mib)
