"""Gangs: pods that start together or not at all. Those that wait are one job of the scheduler's queue.

Either the pods' annotations say the size of a gang, which then has exactly that many pods, or a PodGroup says how many
start together at least: further pods start as there is room for each.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from berth.errors import AskError
from berth.live.kubernetes.asks import MOST_GANG, Gang
from berth.live.kubernetes.objects import PodGroup


@dataclass(slots=True)
class GangState:
    """One gang: which of its pods wait, and which have a place."""

    name: str
    size: int
    at_least: bool = False
    """Whether there may be more pods than that."""
    is_known: bool = True
    """Whether the PodGroup is there that says the size."""
    waiting: dict[str, None] = field(default_factory=dict)
    """Ids of its pods that have no place, as they came."""
    bound: set[str] = field(default_factory=set)
    """Ids of its pods that have a place, bound or about to be."""
    ended: set[str] = field(default_factory=set)
    """Ids of its pods that have completed and are on the cluster still."""
    together: tuple[str, ...] = ()
    """Ids of its pods that wait in the scheduler's queue as one job and start together."""
    parked: bool = False
    """Whether no nodes of today could hold what starts together."""

    @property
    def wanted(self) -> int:
        """How many of its pods lack a place."""
        found = self.size - len(self.bound)
        # Where enough pods are there without those that have completed, those are of an earlier run.
        return found if len(self.waiting) >= found else max(0, found - len(self.ended))

    def placed(self, uid: str) -> None:
        """A pod of it has a place, and is handed out with those that start together with it."""
        self.waiting.pop(uid, None)
        self.bound.add(uid)
        self.together = ()

    def done(self, uid: str) -> None:
        """A pod of it has completed."""
        self.waiting.pop(uid, None)
        self.bound.discard(uid)
        self.ended.add(uid)

    @property
    def is_there(self) -> bool:
        """Whether enough of its pods exist, or some beyond those."""
        return self.is_known and (
            0 < self.wanted <= len(self.waiting)
            or (self.at_least and self.wanted <= 0 and bool(self.waiting))
        )

    @property
    def next(self) -> list[str]:
        """Which of its pods are to have a place next: as many as it lacks, and any beyond its least."""
        return list(self.waiting)[: None if self.at_least else self.wanted]


class GangBook:
    """The gangs of a cluster, by namespace and name."""

    def __init__(self) -> None:
        self.gangs: dict[tuple[str, str], GangState] = {}
        self.changed: dict[tuple[str, str], None] = {}
        """Those of which the scheduler's queue does not hold what waits."""
        self._groups: dict[tuple[str, str], PodGroup] = {}

    def group_changed(self, api_group: str, group: PodGroup) -> None:
        """A PodGroup came or changed."""
        key = group.metadata.namespace, f"{api_group}/{group.metadata.name}"
        self._groups[key] = group
        if (state := self.gangs.get(key)) is not None:
            _follow(state, group)
            self.changed[key] = None

    def group_gone(self, api_group: str, group: PodGroup) -> None:
        """A PodGroup is gone: what waits for it goes on waiting, what runs goes on running."""
        key = group.metadata.namespace, f"{api_group}/{group.metadata.name}"
        self._groups.pop(key, None)
        if (state := self.gangs.get(key)) is not None:
            _follow(state, None)
            self.changed[key] = None

    def join(self, gang: Gang, uid: str, *, bound: bool = False) -> GangState:
        """A pod of a gang is there. Raises AskError where the others say another size."""
        key = gang.key
        state = self.gangs.get(key)
        if state is None:
            state = self.gangs[key] = GangState("/".join(key), gang.size)
            if gang.group:
                _follow(state, self._groups.get(key))
        if not gang.group and state.size != gang.size:
            if state.bound or state.waiting:
                raise AskError(
                    f"gang '{gang.name}' has size {gang.size} here and {state.size} in its other pods; all pods of a"
                    " gang must state the same size"
                )
            state.size = gang.size
        if bound:
            state.bound.add(uid)
            state.waiting.pop(uid, None)
        else:
            state.waiting[uid] = None
        self.changed[key] = None
        return state

    def leave(self, gang: Gang, uid: str) -> None:
        """A pod of a gang is gone."""
        key = gang.key
        state = self.gangs.get(key)
        if state is None:
            return
        state.waiting.pop(uid, None)
        state.bound.discard(uid)
        state.ended.discard(uid)
        self.changed[key] = None

    def of(self, gang: Gang) -> GangState | None:
        """The state of a gang."""
        return self.gangs.get(gang.key)

    def pod_changed(self, gang: Gang) -> None:
        """A waiting pod of a gang asks for something else."""
        self.changed[gang.key] = None

    def waits(self, gang: Gang, uid: str) -> None:
        """A pod of a gang that had a place waits again."""
        state = self.gangs.get(gang.key)
        if state is not None:
            state.bound.discard(uid)
            state.waiting[uid] = None
            self.changed[gang.key] = None

    def park(self, gang: Gang) -> None:
        """A gang has no place, whatever runs: it is out of the queue until something happens."""
        if (state := self.gangs.get(gang.key)) is not None:
            state.parked, state.together = True, ()
            self.changed.pop(gang.key, None)

    def try_again(self) -> None:
        """Something has happened: gangs that no nodes could hold, or that no rule let lie, may fit."""
        for key, state in self.gangs.items():
            if state.parked:
                self.changed[key] = None

    def take_changed(self) -> list[GangState]:
        """The gangs that have changed since the last call; those without pods are forgotten."""
        found = []
        for key in self.changed:
            if (state := self.gangs.get(key)) is not None:
                state.parked = False
                found.append(state)
                if not (state.waiting or state.bound or state.ended):
                    del self.gangs[key]
        self.changed.clear()
        return found


def _follow(state: GangState, group: PodGroup | None) -> None:
    """Take over what the PodGroup of a gang says; None: there is none."""
    state.at_least, state.is_known = True, group is not None
    if group is None:
        return
    spec = group.spec
    policy = spec.scheduling_policy
    said = policy.gang.min_count if policy is not None and policy.gang is not None else spec.min_member
    state.size = min(MOST_GANG, max(1, said or 1))
