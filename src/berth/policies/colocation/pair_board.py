"""The matrix of kinds of waiting jobs and classes of GPUs, kept from decision to decision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from berth.arrays import BoolArray, FloatArray, IntArray
from berth.cluster import PLACE_MILLI, Cluster, Running
from berth.interference.known_speeds import MOST
from berth.model import FOREVER_MS, GpuSlot, Job
from berth.policies.colocation.forecast import Candidate
from berth.policies.colocation.pair_kernels import LATER, NONE, UNKNOWN, Classes, Gpus, line_up

MOST_KINDS = 256
"""Kinds of jobs that are kept; with more, scores are found anew."""
MOST_RENEWED = 16
"""GPUs whose tenants' use has changed, and nothing else, that are looked at anew at one decision, those first that have
waited longest; the others take no job until it is their turn. On 1,000 GPUs the 99th percentile of decisions is 205 ms
without."""
LEAST_USE = 0.01
"""Of a card's compute, where a job's use is compared with that of other cards."""
MOST_CLASSES = 4096
"""Classes of GPUs whose tenants have all just started that are kept."""


class Member(NamedTuple):
    """A job, and how forecasts see it."""

    job: Job
    seen: Candidate


class _Fresh(NamedTuple):
    """A class of GPUs whose tenants start now: none, or those that a decision starts together."""

    alike: int
    """The number of their nodes."""
    tenants: tuple[Member, ...]


class PairBoard:
    """The classes of a cluster's GPUs, and what is known of starting jobs there.

    A GPU whose tenants have worked is a class of its own, which has the GPU's number. Idle GPUs of nodes that are alike
    are one class, and so are those on which a decision starts the same jobs. What is known of a class holds until its
    tenants change, or a tenant's use of the GPU does.
    """

    def __init__(
        self, cluster: Cluster, alike: Sequence[int], uses: Callable[[str, GpuSlot], tuple[float, float]]
    ) -> None:
        """`alike` is a number of each node; those of one number may run the same jobs. `uses` says which parts of a
        card's compute, on average, and of its memory, at most, an application uses."""
        self._uses = uses
        rows = sorted(range(len(cluster.nodes)), key=lambda row: int(cluster.rank[row]))
        self.slots = [GpuSlot(row, index) for row in rows for index in range(cluster.nodes[row].gpus)]
        self.numbers = {slot: at for at, slot in enumerate(self.slots)}
        self.first_of: dict[int, GpuSlot] = {}
        """A GPU on a node of each number."""
        for slot in self.slots:
            self.first_of.setdefault(alike[slot.node], slot)
        self._alike_of: IntArray = np.array([alike[slot.node] for slot in self.slots], np.int64)
        self.of_node: dict[int, list[int]] = {}
        """The GPUs of each node."""
        for at, slot in enumerate(self.slots):
            self.of_node.setdefault(slot.node, []).append(at)
        self._marks = cluster.marks() - 1  # none is up to date
        gpus = len(self.slots)
        self.tenants: list[tuple[Running, ...]] = [()] * gpus
        self.of: IntArray = np.full(gpus, NONE, np.int64)
        """(G,): the class of each GPU, NONE if it takes no job."""
        self.until_ms: IntArray = np.zeros(gpus, np.int64)
        """(G,): until when what is known of its own class holds."""
        self.later: BoolArray = np.zeros(gpus, np.bool_)
        """(G,): which GPUs are looked at anew at a later decision."""
        self.empty_ms: IntArray = np.zeros(gpus, np.int64)
        """(G,): when it is expected to be empty."""
        self._node: IntArray = np.array([slot.node for slot in self.slots], np.int64)
        self._index: IntArray = np.array([slot.index for slot in self.slots], np.int64)
        self.kept: dict[str, int] = {}
        """By application without a profile, the GPU that is kept until it is empty for its first run."""
        self.head: Job | None = None
        """The first job that takes whole GPUs, if GPUs are kept for it until they are empty."""
        self.reserved: list[int] = []
        """These GPUs, which are of one node."""
        self._fresh_ms = -1
        self._forget()

    def _forget(self) -> None:
        """Know nothing of any pair."""
        gpus = len(self.slots)
        self.kinds: dict[tuple[object, ...], int] = {}
        self.members: list[Member] = []
        """One job of each kind."""
        self.fresh: list[_Fresh] = []
        self._numbers: dict[tuple[int, tuple[Candidate, ...]], int] = {}
        self.classes = _classes(gpus + 16, 8)
        self.classes.after[:gpus] = LATER
        self.classes.alike[:gpus] = self._alike_of
        self.needs: FloatArray = np.zeros((max(self.first_of, default=0) + 1, 8, 3))
        """(alike, K, 3): what a job of each kind uses of cards on nodes of each number."""
        self.hold_ms: IntArray = np.zeros(gpus + 16, np.int64)
        """(C,): for how long what is known of a class whose tenants start now will hold."""
        self.lasts_ms: IntArray = np.zeros(gpus + 16, np.int64)
        """(C,): after how long its tenants will have ended; if that is not forecast yet, as if none slowed another."""
        self.of[:] = NONE
        self.tenants = [()] * gpus
        self._marks -= 1

    # Kinds and classes

    def kind(self, key: tuple[object, ...], make: Callable[[], Member]) -> int:
        """The number of a kind of jobs."""
        found = self.kinds.get(key)
        if found is None:
            found = self.kinds[key] = len(self.members)
            self.members.append(make())
            if found == self.classes.state.shape[1]:
                self._grow(self.classes.state.shape[0], 2 * found)
            application = self.members[found].seen.application
            for alike, slot in self.first_of.items():
                self.needs[alike, found, :2] = self._uses(application, slot)
            numbers = list(self.first_of)
            use = np.maximum(self.needs[numbers, found, 0], LEAST_USE)
            self.needs[numbers, found, 2] = np.log(use / use.min())
        return found

    def make_room(self) -> None:
        """Forget all where too much is kept."""
        if len(self.members) > MOST_KINDS or len(self.fresh) > MOST_CLASSES:
            self._forget()

    def fresh_class(self, alike: int, tenants: Iterable[Member]) -> int:
        """The class of GPUs on nodes of this number whose tenants start now."""
        ordered = tuple(sorted(tenants, key=lambda one: one.seen))
        key = alike, tuple([one.seen for one in ordered])
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.slots) + len(self.fresh)
            self.fresh.append(_Fresh(alike, ordered))
            if found == self.classes.state.shape[0]:
                self._grow(2 * found, self.classes.state.shape[1])
            self.classes.idle[found] = not ordered
            self.classes.alike[found] = alike
            self.lasts_ms[found] = max([-(-one.seen.work_us // 1000) for one in ordered], default=0)
        return found

    def class_after(self, of: int, kind: int) -> int:
        """The class of a GPU of a class whose tenants start now, after one more job starts there."""
        here = self.fresh[of - len(self.slots)]
        full = len(here.tenants) + 1 >= MOST
        found = LATER if full else self.fresh_class(here.alike, (*here.tenants, self.members[kind]))
        self.classes.after[of, kind] = found
        return found

    def slot_of(self, of: int) -> GpuSlot:
        """A GPU that stands for a class."""
        gpus = len(self.slots)
        return self.slots[of] if of < gpus else self.first_of[self.fresh[of - gpus].alike]

    def fresh_tenants(self, of: int) -> tuple[Member, ...]:
        """The tenants of a class that start now."""
        return self.fresh[of - len(self.slots)].tenants

    def occupied(self, of: int, applications: Sequence[str]) -> None:
        """Note of which applications the tenants of a class are."""
        slot = self.slot_of(of)
        uses = [self._uses(application, slot) for application in applications]
        self.classes.tenants[of] = len(uses), sum(use for use, _ in uses), sum(mem for _, mem in uses), 0.0

    def holds(self, of: IntArray, hold_ms: IntArray, lasts_ms: IntArray, now_ms: int) -> None:
        """Note for how long what is known of classes holds, and after how long their tenants have ended."""
        self.hold_ms[of], self.lasts_ms[of] = hold_ms, lasts_ms
        self.classes.tenants[of, 3] = lasts_ms
        own = of[of < len(self.slots)]
        self.until_ms[own] = now_ms + self.hold_ms[own]
        self.empty_ms[own] = now_ms + self.lasts_ms[own]

    # What has changed

    def look(
        self, cluster: Cluster, now_ms: int, left_ms: Callable[[Running], int], *, certain: bool
    ) -> None:
        """See which GPUs have other tenants than before, and whose time is over. `left_ms` says how long a run takes if
        nothing slows it, until that is forecast. Unless beliefs are `certain`, nothing is kept of classes whose tenants
        start now."""
        gpus, classes = len(self.slots), self.classes
        if now_ms != self._fresh_ms:
            self._settle(now_ms)
            if not certain:
                classes.state[gpus:] = UNKNOWN
            self._fresh_ms = now_ms
            over = np.flatnonzero((self.of == np.arange(gpus)) & (self.until_ms <= now_ms))
            self.later[:] = False
            if len(over) > MOST_RENEWED:
                over = over[np.argsort(self.until_ms[over], kind="stable")]
                self.later[over[MOST_RENEWED:]] = True
                over = over[:MOST_RENEWED]
            classes.state[over] = UNKNOWN
        changed = cluster.changed_since(self._marks)
        free, up = cluster.free.milli, cluster.up
        for node in changed.tolist():
            there = bool(up[node])
            for at in self.of_node.get(node, ()):
                slot = self.slots[at]
                runs = cluster.jobs_on(slot)
                if (
                    not there
                    or free[slot] < PLACE_MILLI
                    or len(runs) >= MOST
                    or not all(run.best_effort for run in runs)
                ):
                    self.of[at], self.tenants[at] = NONE, ()
                elif self.of[at] != NONE and self.tenants[at] == runs:  # runs are equal only to themselves
                    continue
                else:
                    self._seat(at, runs)
                if len(runs) < MOST:  # of more, what was forecast before the last of them
                    self.empty_ms[at] = now_ms + max(map(left_ms, runs), default=0)
                self.empty_ms[at] *= there

    def forget(self, at: int) -> None:
        """A job was refused on a GPU: look at it again."""
        self.of[at], self.tenants[at] = NONE, ()
        self._marks[self.slots[at].node] -= 1

    def started(self, at: int, runs: tuple[Running, ...], of: int) -> None:
        """A job has started on a GPU, which is of this class now."""
        if of == LATER:
            self.forget(at)
        else:
            self.of[at], self.tenants[at] = of, runs
            self.empty_ms[at] = self._fresh_ms + self.lasts_ms[of]

    def _seat(self, at: int, runs: tuple[Running, ...]) -> None:
        self.tenants[at], self.later[at] = runs, False
        if not runs:
            self.of[at] = self.fresh_class(int(self._alike_of[at]), ())
            return
        self.of[at] = at
        self.classes.state[at] = UNKNOWN
        self.until_ms[at] = 0

    def _settle(self, now_ms: int) -> None:
        """Each GPU whose tenants started at the last decision is a class of its own from now on."""
        gpus, classes = len(self.slots), self.classes
        begun = np.flatnonzero((self.of >= gpus) & ~classes.idle[self.of])
        if not len(begun):
            return
        of = self.of[begun]
        for part in (classes.cost_ms, classes.extra_ms, classes.state, classes.tenants):
            part[begun] = part[of]
        self.until_ms[begun] = self._fresh_ms + self.hold_ms[of]
        self.empty_ms[begun] = self._fresh_ms + self.lasts_ms[of]
        self.of[begun] = begun

    # GPUs for the first job that takes them whole

    def reserve(self, job: Job | None, cluster: Cluster, now_ms: int) -> bool:
        """Keep for a job the GPUs of one node that are empty first; whether there can be such."""
        self.head, self.reserved = None, []
        if job is None or not job.gpus or job.tasks or job.nodes > 1:
            return False
        could = cluster.fitting_nodes_when_empty(job)
        could = could[cluster.up[could]]
        if not len(could):
            return False
        ends_ms = np.full(cluster.free.milli.shape, FOREVER_MS, np.int64)
        ends_ms[self._node, self._index] = np.maximum(self.empty_ms, now_ms)
        for slot in self.slots:
            if cluster.strangers_on(slot) != (0, 0):  # nobody knows when they leave
                ends_ms[slot] = FOREVER_MS
        last_ms = np.sort(ends_ms[could], axis=1)[:, job.gpus - 1]
        best = int(could[last_ms.argmin()])
        if last_ms.min() >= FOREVER_MS:
            return False
        first = sorted(self.of_node[best], key=lambda at: int(ends_ms[best, self._index[at]]))
        self.head, self.reserved = job, first[: job.gpus]
        return True

    def _hold_back(self, gpus: Gpus, cluster: Cluster) -> None:
        """Take from what is free of the node what the head will need beyond what ends on its GPUs."""
        if self.head is None:
            return
        node = self._node[self.reserved[0]]
        runs = [run.job for at in self.reserved for run in cluster.jobs_on(self.slots[at])]
        for free, need in (
            (gpus.cpu_milli, self.head.cpu_milli - sum(run.cpu_milli for run in runs)),
            (gpus.node_mem_mib, self.head.mem_mib - sum(run.mem_mib for run in runs)),
        ):
            free[node] = max(0, free[node] - max(0, need))

    # For the kernel

    def gpus(self, cluster: Cluster) -> Gpus:
        """What is left of each GPU and node, less what the head will need."""
        free = cluster.free
        found = Gpus(
            np.full(len(self.slots), NONE, np.int64),
            self._node,
            free.milli[self._node, self._index],
            free.gpu_mem_mib[self._node, self._index],
            free.cpu_milli.copy(),
            free.mem_mib.copy(),
        )
        self._hold_back(found, cluster)
        return found

    def line(self, now_ms: int, alike: tuple[int, ...]) -> IntArray:
        """After how long each GPU with tenants on nodes of these numbers is empty, ascending."""
        busy = self.empty_ms > now_ms
        if len(alike) < len(self.first_of):
            busy &= np.isin(self._alike_of, alike)
        return np.sort(self.empty_ms[busy] - now_ms)

    def lists(self, gpus: Gpus, counts: IntArray, closed: Sequence[int]) -> None:
        """Put each GPU in the list of its class, except those that are closed or looked at later."""
        of = np.where(self.later, NONE, self.of)
        of[list(closed)] = NONE
        of[self.reserved] = NONE
        line_up(of, self.classes, gpus, counts)

    def _grow(self, classes: int, kinds: int) -> None:
        old = self.classes
        new = _classes(classes, kinds)
        for mine, others in zip(new, old, strict=True):
            mine[tuple([slice(0, size) for size in others.shape])] = others
        self.classes = new
        needs = np.zeros((len(self.needs), kinds, 3))
        needs[:, : self.needs.shape[1]] = self.needs
        self.needs = needs
        more = np.zeros((2, classes), np.int64)
        more[0, : len(self.hold_ms)], more[1, : len(self.lasts_ms)] = self.hold_ms, self.lasts_ms
        self.hold_ms, self.lasts_ms = more
        new.after[: len(self.slots)] = LATER


def _classes(classes: int, kinds: int) -> Classes:
    """No class has a GPU, and nothing is known of any."""
    cost_ms, extra_ms, state = np.zeros((3, classes, kinds), np.int64)
    many, used, place = np.zeros((3, classes), np.int64)
    idle, first = np.zeros(classes, np.bool_), np.full(classes, NONE, np.int64)
    alike, tenants = np.zeros(classes, np.int64), np.zeros((classes, 4))
    after = np.full((classes, kinds), NONE, np.int64)
    return Classes(cost_ms, extra_ms, state, after, idle, alike, tenants, first, many, used, place)
