"""Gangs: pods that start together or not at all. One after the other they are offered to the policy."""

from __future__ import annotations

from dataclasses import dataclass, field

from berth.errors import AskError
from berth.live.kubernetes.asks import Gang

__all__ = ["GangLine", "GangState"]


@dataclass(slots=True)
class GangState:
    """One gang: who waits, who has a place, who is bound."""

    size: int
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
        """Whether enough of its pods exist."""
        return 0 < self.wanted <= len(self.waiting)

    @property
    def is_whole(self) -> bool:
        """Whether all of its pods have a place."""
        return bool(self.placed) and self.wanted <= 0


class GangLine:
    """The gangs of a cluster, by namespace and name: the first in line may hold places while others leave."""

    def __init__(self) -> None:
        self.gangs: dict[tuple[str, str], GangState] = {}

    def join(self, gang: Gang, uid: str, *, bound: bool = False) -> GangState:
        """A pod of a gang is there. Raises AskError where the others say another size."""
        key = (gang.namespace, gang.name)
        state = self.gangs.get(key)
        if state is None:
            state = self.gangs[key] = GangState(gang.size)
        if state.size != gang.size:
            if state.bound or state.waiting or state.placed:
                raise AskError(
                    f"gang '{gang.name}' has size {gang.size} here and {state.size} in its other pods; all of a gang"
                    " say the same"
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
        key = (gang.namespace, gang.name)
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
        return self.gangs.get((gang.namespace, gang.name))

    def line(self) -> list[tuple[tuple[str, str], GangState]]:
        """The gangs that could start, as they came or were sent to the end."""
        return [(key, state) for key, state in self.gangs.items() if state.is_there or state.placed]

    def to_the_end(self, key: tuple[str, str]) -> None:
        """Let all others go first."""
        self.gangs[key] = self.gangs.pop(key)
