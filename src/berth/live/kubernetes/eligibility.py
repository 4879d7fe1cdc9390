"""Which nodes each constraint leaves, as labels of the nodes of the scheduler's cluster.

A constraint that all nodes in use satisfy needs no label, and those that the same nodes satisfy share one. A
node that satisfies no constraint is out of use.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from berth.live.kubernetes.constraints import PLAIN, Constraint, NodeTraits, domain_of, why_not
from berth.live.kubernetes.spreading import Spreads

NOWHERE = "constraint-nowhere"
"""The label of constraints that no node satisfies; no node carries it."""
MOST_CONSTRAINTS = 512
"""Constraints that wait at once: every change of a node is compared with each."""
MOST_OF_ONE = 128
"""Of those, pods of one namespace, so that it leaves some to others."""


@dataclass(slots=True)
class _Group:
    misfits: set[str] = field(default_factory=set)
    """The nodes that do not satisfy it."""
    uneven: set[str] = field(default_factory=set)
    """Those on which one more pod would break its rules on how pods are to lie."""
    users: int = 0
    """How many pods wait with it."""
    owner: str = ""
    """The namespace of the pod that came with it first."""
    label: str = ""
    number: int = 0

    @property
    def excluded(self) -> set[str]:
        return self.misfits | self.uneven if self.uneven else self.misfits


class Eligibility:
    """The constraints in use, and which nodes satisfy each."""

    def __init__(self, spreads: Spreads) -> None:
        self.spreads = spreads
        self._groups: dict[Constraint, _Group] = {PLAIN: _Group(users=1)}
        self._nodes: dict[str, NodeTraits] = {}
        self._serial = 0
        self.is_stale = False
        """Whether `relabel` is to be called before the next decision."""
        self.has_room = False
        """Whether something has changed since a constraint was last refused, so that another may be taken."""
        self._labels: dict[str, frozenset[str]] = {}  # label -> the nodes that do not carry it
        self.down: set[str] = set()
        """Nodes out of use: nothing that waits may run there."""
        self.moved: set[str] = set()
        """Nodes that became even or uneven for some pods in the last `relabel`: their labels are to be set anew."""

    def join(self, constraint: Constraint, nodes: Iterable[NodeTraits], namespace: str = "") -> bool:
        """One more pod of a namespace waits with this constraint; False where too many different ones wait already."""
        group = self._groups.get(constraint)
        if group is None:
            if self._is_full(namespace):
                self._drop_unused()
            if self._is_full(namespace):
                self.has_room = False
                return False
            misfits = {each.name for each in nodes if why_not(constraint, each)}
            self._serial += 1
            group = self._groups[constraint] = _Group(misfits, owner=namespace, number=self._serial)
            self.is_stale = True
        elif constraint.spread and group.users <= 0:
            self.is_stale = True  # its counts were not kept meanwhile
        group.users += 1
        return True

    def leave(self, constraint: Constraint) -> None:
        """One pod fewer waits with it."""
        if (group := self._groups.get(constraint)) is not None:
            group.users -= 1
            self.has_room = self.has_room or group.users <= 0

    def node_changed(self, node: NodeTraits) -> None:
        """Look at a node anew."""
        self._nodes[node.name] = node
        self.has_room = True
        for constraint, group in self._groups.items():
            self.is_stale = self.is_stale or bool(constraint.spread)
            if why_not(constraint, node):
                group.misfits.add(node.name)
            else:
                group.misfits.discard(node.name)

    def node_gone(self, name: str) -> None:
        """Forget a node."""
        self._nodes.pop(name, None)
        self.spreads.node_gone(name)
        for constraint, group in self._groups.items():
            group.misfits.discard(name)
            group.uneven.discard(name)
            self.is_stale = self.is_stale or bool(constraint.spread)

    def pods_moved(self) -> None:
        """Pods that rules on how they are to lie count are on other nodes: labels are to be settled anew."""
        self.is_stale = True

    def allows(self, constraint: Constraint, node: str) -> bool:
        """Whether the rules on how pods are to lie allow one more on a node, as of now."""
        return not constraint.spread or node not in self._uneven(constraint)

    def is_uneven(self, constraint: Constraint, node: str) -> bool:
        """Whether they did not when labels were settled last."""
        group = self._groups.get(constraint)
        return group is not None and node in group.uneven

    def _uneven(self, constraint: Constraint) -> set[str]:
        domains = (domain_of(constraint, node) for node in self._nodes.values())
        return self.spreads.uneven(constraint.spread, domains)

    def relabel(self) -> list[Constraint]:
        """Settle which constraints need a label; returns those whose label has changed."""
        self.is_stale = False
        self.moved = set()
        for constraint, group in self._groups.items():
            if constraint.spread and group.users > 0:
                before, group.uneven = group.uneven, self._uneven(constraint)
                self.moved |= before ^ group.uneven
        excluded = {constraint: group.excluded for constraint, group in self._groups.items()}
        self.down = set.intersection(*excluded.values())
        labels: dict[frozenset[str], str] = {}
        changed = []
        for constraint, group in self._groups.items():
            label = ""
            misfits = excluded[constraint]
            if len(misfits) >= len(self._nodes) > 0:
                label = NOWHERE
            elif len(misfits) != len(self.down):
                nodes = frozenset(misfits)
                if nodes not in labels:
                    labels[nodes] = f"constraint-{group.number}"
                label = labels[nodes]
            if label != group.label:
                group.label = label
                changed.append(constraint)
        self._labels = {label: nodes for nodes, label in labels.items()}
        return changed

    def counts(self, resources: Set[str]) -> bool:
        """Whether pods wait with an amount of one of these resources: nodes where it is used are to be looked at."""
        return any(name in resources for constraint in self._groups for name, _ in constraint.others)

    def labels_of(self, constraint: Constraint) -> tuple[str, ...]:
        """The labels that a job of this constraint asks for."""
        group = self._groups.get(constraint)
        return (group.label,) if group is not None and group.label else ()

    def labels_on(self, node: str) -> tuple[str, ...]:
        """The labels that a node carries."""
        return tuple(label for label, misfits in self._labels.items() if node not in misfits)

    def _is_full(self, namespace: str) -> bool:
        """Whether no further constraint of this namespace is compared with the nodes."""
        return (
            len(self._groups) >= MOST_CONSTRAINTS
            or sum(group.owner == namespace for group in self._groups.values()) >= MOST_OF_ONE
        )

    def _drop_unused(self) -> None:
        self._groups = {
            constraint: group
            for constraint, group in self._groups.items()
            if group.users > 0 or constraint == PLAIN
        }
        self.spreads.keep(rule for constraint in self._groups for rule in constraint.spread)
        self.is_stale = True
