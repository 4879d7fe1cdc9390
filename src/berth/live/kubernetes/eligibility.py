"""Which nodes each constraint leaves, as labels of the scheduler's cluster, which can tell 62 of them apart.

A constraint that all nodes in use satisfy needs no label. A node that satisfies no constraint is out of use.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from berth.live.kubernetes.constraints import PLAIN, Constraint, NodeTraits, why_not

__all__ = ["MOST_CONSTRAINTS", "Eligibility"]

MOST_CONSTRAINTS = 60
"""That wait at once."""


@dataclass(slots=True)
class _Group:
    misfits: set[str] = field(default_factory=set)
    """The nodes that do not satisfy it."""
    users: int = 0
    """How many pods wait with it."""
    label: str = ""
    number: int = 0


class Eligibility:
    """The constraints in use, and which nodes satisfy each."""

    def __init__(self) -> None:
        self._groups: dict[Constraint, _Group] = {PLAIN: _Group(users=1)}
        self._serial = 0
        self.is_stale = False
        """Whether `relabel` is to be called before the next decision."""
        self.down: set[str] = set()
        """Nodes out of use: nothing that waits may run there."""

    def join(self, constraint: Constraint, nodes: Iterable[NodeTraits]) -> bool:
        """One more pod waits with this constraint; False where too many different ones wait already."""
        group = self._groups.get(constraint)
        if group is None:
            if len(self._groups) >= MOST_CONSTRAINTS:
                self._drop_unused()
            if len(self._groups) >= MOST_CONSTRAINTS:
                return False
            self._serial += 1
            group = self._groups[constraint] = _Group(number=self._serial)
            group.misfits = {node.name for node in nodes if why_not(constraint, node)}
            self.is_stale = True
        group.users += 1
        return True

    @property
    def has_room(self) -> bool:
        """Whether another constraint could wait."""
        return sum(group.users > 0 for group in self._groups.values()) < MOST_CONSTRAINTS

    def leave(self, constraint: Constraint) -> None:
        """One pod fewer waits with it."""
        if (group := self._groups.get(constraint)) is not None:
            group.users -= 1

    def node_changed(self, node: NodeTraits) -> None:
        """Look at a node anew."""
        for constraint, group in self._groups.items():
            if why_not(constraint, node):
                group.misfits.add(node.name)
            else:
                group.misfits.discard(node.name)

    def node_gone(self, name: str) -> None:
        """Forget a node."""
        for group in self._groups.values():
            group.misfits.discard(name)

    def relabel(self) -> list[Constraint]:
        """Settle which constraints need a label; returns those whose label has changed."""
        self.is_stale = False
        self.down = set.intersection(*(group.misfits for group in self._groups.values()))
        changed = []
        for constraint, group in self._groups.items():
            label = f"constraint-{group.number}" if len(group.misfits) != len(self.down) else ""
            if label != group.label:
                group.label = label
                changed.append(constraint)
        return changed

    def labels_of(self, constraint: Constraint) -> tuple[str, ...]:
        """The labels that a job of this constraint asks for."""
        group = self._groups.get(constraint)
        return (group.label,) if group is not None and group.label else ()

    def labels_on(self, node: str) -> tuple[str, ...]:
        """The labels that a node carries."""
        return tuple(
            group.label for group in self._groups.values() if group.label and node not in group.misfits
        )

    def _drop_unused(self) -> None:
        self._groups = {
            constraint: group
            for constraint, group in self._groups.items()
            if group.users > 0 or constraint == PLAIN
        }
        self.is_stale = True
