"""Kinds of waiting pods, as labels of the nodes that are worth choosing for them.

Every constraint in use is a kind: its label is on the nodes that satisfy it, and its pods ask for that label.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from berth.live.kubernetes.constraints import PLAIN, Constraint, NodeTraits, why_not

MOST_KINDS = 512
"""Kinds in use at once: every change of a node is compared with each."""
MOST_OF_ONE = 128
"""Of those, pods of one namespace, so that it leaves some to others."""


@dataclass(slots=True)
class _Kind:
    label: str
    owner: str
    """The namespace of the pod that came with it first."""
    misfits: set[str] = field(default_factory=set)
    """The nodes that do not satisfy it."""
    users: int = 0
    """How many pods wait with it."""


class Kinds:
    """The constraints in use, and which nodes satisfy each."""

    def __init__(self) -> None:
        self._kinds: dict[Constraint, _Kind] = {}
        self._serial = 0
        self.stale = False
        """Whether there are labels that nodes have not got yet."""
        self.left = False
        """Whether a kind is out of use since somebody looked."""

    def join(self, constraint: Constraint, nodes: Iterable[NodeTraits], namespace: str) -> str:
        """One more pod of a namespace waits with this constraint. Returns the label; empty if too many different ones
        wait already."""
        kind = self._kinds.get(constraint)
        if kind is None:
            if self._is_full(namespace):
                self._drop_unused()
            if self._is_full(namespace) and constraint != PLAIN:
                return ""
            kind = self._kinds[constraint] = _Kind(f"kind-{self._serial}", namespace)
            kind.misfits = {each.name for each in nodes if why_not(constraint, each)}
            self._serial += 1
            self.stale = True
        kind.users += 1
        return kind.label

    def leave(self, constraint: Constraint) -> None:
        """One pod fewer waits with it."""
        kind = self._kinds[constraint]
        kind.users -= 1
        self.left = self.left or not kind.users

    def node_changed(self, node: NodeTraits) -> None:
        """Look at a node anew."""
        for constraint, kind in self._kinds.items():
            (kind.misfits.add if why_not(constraint, node) else kind.misfits.discard)(node.name)

    def node_gone(self, name: str) -> None:
        """Forget a node."""
        for kind in self._kinds.values():
            kind.misfits.discard(name)

    def labels_on(self, node: str) -> tuple[str, ...]:
        """The labels that a node carries."""
        return tuple(kind.label for kind in self._kinds.values() if node not in kind.misfits)

    def _is_full(self, namespace: str) -> bool:
        of_one = sum(kind.owner == namespace for kind in self._kinds.values())
        return len(self._kinds) >= MOST_KINDS or of_one >= MOST_OF_ONE

    def _drop_unused(self) -> None:
        self._kinds = {constraint: kind for constraint, kind in self._kinds.items() if kind.users}
        self.stale = True
