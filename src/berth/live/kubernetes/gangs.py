"""Gangs: pods that start together or not at all. One after the other they are offered to the policy.

Either the pods' annotations say the size of a gang, which then has exactly that many pods, or a PodGroup says how many
start together at least: further pods start as there is room for each.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from berth.errors import AskError
from berth.live.kubernetes.asks import MOST_GANG, Gang
from berth.live.kubernetes.objects import PodGroup

__all__ = ["GangLine", "GangState"]

LONGEST_HOLD_S = 3600
"""A longer time-out of a PodGroup is taken for this."""


@dataclass(slots=True)
class GangState:
    """One gang: which of its pods wait, have a place, and are bound."""

    size: int
    at_least: bool = False
    """Whether there may be more pods than that."""
    is_known: bool = True
    """Whether the PodGroup is there that says the size."""
    hold_ms: int | None = None
    """How long it may hold places, where its PodGroup says so."""
    waiting: dict[str, None] = field(default_factory=dict)
    """Ids of its pods that have no place, as they came."""
    placed: dict[str, object] = field(default_factory=dict)
    """Ids of its pods that have a place and are not bound, with what binds them."""
    bound: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    """Ids of its pods that have completed and are on the cluster still."""
    since_ms: int | None = None
    """Since when it holds places without being whole."""
    message: str = ""
    """Why it waits."""

    @property
    def wanted(self) -> int:
        """How many of its pods lack a place."""
        found = self.size - len(self.bound) - len(self.placed)
        # Where enough pods are there without those that have completed, those are of an earlier run.
        return found if len(self.waiting) >= found else max(0, found - len(self.ended))

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

    @property
    def is_whole(self) -> bool:
        """Whether all of its pods have a place."""
        return self.is_known and bool(self.placed) and self.wanted <= 0


class GangLine:
    """The gangs of a cluster, by namespace and name: the first in line may hold places while others leave."""

    def __init__(self) -> None:
        self.gangs: dict[tuple[str, str], GangState] = {}
        self._groups: dict[tuple[str, str], PodGroup] = {}

    def group_changed(self, api_group: str, group: PodGroup) -> None:
        """A PodGroup came or changed."""
        key = group.metadata.namespace, f"{api_group}/{group.metadata.name}"
        self._groups[key] = group
        if (state := self.gangs.get(key)) is not None:
            _follow(state, group)

    def group_gone(self, api_group: str, group: PodGroup) -> None:
        """A PodGroup is gone: what waits for it goes on waiting, what runs goes on running."""
        key = group.metadata.namespace, f"{api_group}/{group.metadata.name}"
        self._groups.pop(key, None)
        if (state := self.gangs.get(key)) is not None:
            _follow(state, None)

    def join(self, gang: Gang, uid: str, *, bound: bool = False) -> GangState:
        """A pod of a gang is there. Raises AskError where the others say another size."""
        key = gang.key
        state = self.gangs.get(key)
        if state is None:
            state = self.gangs[key] = GangState(gang.size)
            if gang.group:
                _follow(state, self._groups.get(key))
        if not gang.group and state.size != gang.size:
            if state.bound or state.waiting or state.placed:
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
        return state

    def leave(self, gang: Gang, uid: str) -> None:
        """A pod of a gang is gone."""
        key = gang.key
        state = self.gangs.get(key)
        if state is None:
            return
        state.waiting.pop(uid, None)
        state.placed.pop(uid, None)
        state.bound.discard(uid)
        state.ended.discard(uid)
        if not (state.waiting or state.placed or state.bound or state.ended):
            del self.gangs[key]

    def of(self, gang: Gang) -> GangState | None:
        """The state of a gang."""
        return self.gangs.get(gang.key)

    def line(self) -> list[tuple[tuple[str, str], GangState]]:
        """The gangs that could start, as they came or were sent to the end."""
        return [(key, state) for key, state in self.gangs.items() if state.is_there or state.placed]

    def to_the_end(self, key: tuple[str, str]) -> None:
        """Let all others go first."""
        self.gangs[key] = self.gangs.pop(key)


def _follow(state: GangState, group: PodGroup | None) -> None:
    """Take over what the PodGroup of a gang says; None: there is none."""
    state.at_least, state.is_known, state.hold_ms = True, group is not None, None
    if group is None:
        return
    spec = group.spec
    policy = spec.scheduling_policy
    said = policy.gang.min_count if policy is not None and policy.gang is not None else spec.min_member
    state.size = min(MOST_GANG, max(1, said or 1))
    if spec.schedule_timeout_seconds is not None:
        state.hold_ms = 1000 * min(LONGEST_HOLD_S, max(1, spec.schedule_timeout_seconds))
