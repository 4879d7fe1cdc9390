"""Which nodes are worth choosing for a pod: its node selector, node affinity and tolerations, as far as they say.

kube-scheduler has the last word on every node. This spares it the nodes that it would refuse for certain, and
remembers those that it refused. Pods that may run on the same nodes have equal constraints: each is looked at once a
node.

Every constraint in use is a kind: its label is on the nodes that satisfy it, and its pods ask for that label.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec.structs import replace

from berth.errors import AskError
from berth.live.kubernetes.objects import Expression, Node, Pod, PodSpec, Taint, Term, Toleration

V = TypeVar("V", str, Expression, Term, Toleration)
MOST_TERMS = 64
MOST_KINDS = 512
"""Kinds in use at once: every change of a node is compared with each."""
MOST_OF_ONE = 128
"""Of those, pods of one namespace, so that it leaves some to others."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a node must be for a pod; equal ones are the same."""

    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[Term, ...] = ()
    """One of these must hold; none: any node will do."""
    tolerations: tuple[Toleration, ...] = ()
    avoids: tuple[str, ...] = ()
    """Nodes that kube-scheduler refused for such pods."""


PLAIN = Constraint()
"""Any node without taints."""


def constraint_of(pod: Pod) -> Constraint:
    """The constraint of a pod. Raises AskError for a selector or toleration that makes no sense."""
    spec = pod.spec
    terms = required_terms(spec)
    if len(terms) > MOST_TERMS:
        raise AskError(f"node affinity has {len(terms)} terms; expected at most {MOST_TERMS}")
    for term in terms:
        _check_term(term)
    terms = _in_order(
        Term(*map(_requirements, (term.match_expressions, term.match_fields))) for term in terms
    )
    tolerations = _in_order(
        replace(each, operator=each.operator or "Equal")
        for each in spec.tolerations
        if each.key not in _OF_RUNNING
    )
    for each in tolerations:
        if each.operator not in ("Equal", "Exists"):
            raise AskError(f"a toleration has operator '{each.operator[:40]}'; expected Equal or Exists")
    if not (spec.node_selector or terms or tolerations):
        return PLAIN
    return Constraint(tuple(sorted(spec.node_selector.items())), terms, tolerations)


def _in_order(values: Iterable[V]) -> tuple[V, ...]:
    """The same whatever order and number of times they were written in."""
    return tuple(sorted(set(values)))


def _requirements(expressions: Iterable[Expression]) -> tuple[Expression, ...]:
    return _in_order(replace(each, values=_in_order(each.values)) for each in expressions)


def required_terms(spec: PodSpec) -> tuple[Term, ...]:
    """Return the terms of a pod's required node affinity. One must hold; without terms, every node will do."""
    affinity = spec.affinity.node_affinity if spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    return required.node_selector_terms if required else ()


def required_affinity(terms: Iterable[Term], needs: Term) -> dict[str, object]:
    """The required node affinity of a pod that had these terms and now needs this too."""
    all_needed = [term + needs for term in terms] or [needs]
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": all_needed}}


def has_unread_rules(spec: PodSpec, counted: Collection[str]) -> bool:
    """Whether kube-scheduler alone can tell on which nodes a pod may run: by other pods, volumes, claims,
    ports of the node, or resources that are not `counted`."""
    nearby = spec.affinity.pod_affinity if spec.affinity else None
    return bool(
        spec.resource_claims
        or (nearby is not None and nearby.required_during_scheduling_ignored_during_execution)
        or keeps_others_away(spec)
        or any(each.when_unsatisfiable == "DoNotSchedule" for each in spec.topology_spread_constraints)
        or any(each.persistent_volume_claim or each.ephemeral for each in spec.volumes)
        or any(port.host_port for each in spec.containers for port in each.ports)
        or any(
            key not in counted
            for each in (*spec.containers, *spec.init_containers)
            for key in (*each.resources.requests, *each.resources.limits)
        )
    )


def keeps_others_away(spec: PodSpec) -> bool:
    """Whether a pod requires that some others are not near it."""
    away = spec.affinity.pod_anti_affinity if spec.affinity else None
    return away is not None and bool(away.required_during_scheduling_ignored_during_execution)


def why_not(constraint: Constraint, node: Node) -> str:
    """Why a node is not chosen for pods of this constraint; empty if it may be. The words are the same for all nodes
    that are refused alike, so that they can be counted."""
    for taint in node.spec.taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not _tolerates(constraint.tolerations, taint):
            return f"taint {taint.key}{'=' if taint.value else ''}{taint.value}:{taint.effect}"
    for key, value in constraint.selector:
        if node.metadata.labels.get(key) != value:
            return f"no label {key}={value}"
    if constraint.terms and not any(_holds(term, node) for term in constraint.terms):
        return "node affinity"
    return "refused by kube-scheduler before" if node.metadata.name in constraint.avoids else ""


_OF_RUNNING = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Added to every pod by the API server for 300 s of grace while it runs; a pod does not begin on such a node."""


def _tolerates(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    """Whether one of them is of the taint; one without a key is of all if it says `Exists`."""
    return any(
        each.effect in ("", taint.effect)
        and (each.key == taint.key or (not each.key and each.operator == "Exists"))
        and (each.operator == "Exists" or each.value == taint.value)
        for each in tolerations
    )


def _check_term(term: Term) -> None:
    """Raise AskError if a term makes no sense."""
    for each in (*term.match_expressions, *term.match_fields):
        if each.operator not in OPERATORS:
            raise AskError(
                f"node affinity has operator '{each.operator[:40]}'; expected {', '.join(OPERATORS)}"
            )
        if each.operator in ("Gt", "Lt") and not (len(each.values) == 1 and _WHOLE.fullmatch(each.values[0])):
            raise AskError(f"node affinity {each.operator} of '{each.key[:80]}' takes one whole number")
    for each in term.match_fields:
        if each.key != "metadata.name":
            raise AskError(f"node affinity asks for field '{each.key[:80]}'; expected metadata.name")


def _holds(term: Term, node: Node) -> bool:
    """Whether all of a term holds; a term of nothing holds nowhere."""
    meta = node.metadata
    return bool(term.match_expressions or term.match_fields) and all(
        OPERATORS[each.operator](value, each.values)
        for each, value in (
            *((each, meta.labels.get(each.key)) for each in term.match_expressions),
            *((each, meta.name) for each in term.match_fields),
        )
    )


_WHOLE = re.compile(r"-?[0-9]{1,18}")


def _number(text: str | None) -> float:
    """A label's number; one that is no number is more and less than none."""
    return int(text) if text and _WHOLE.fullmatch(text) else math.nan


OPERATORS: dict[str, Callable[[str | None, tuple[str, ...]], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, values: value is not None,
    "DoesNotExist": lambda value, values: value is None,
    "Gt": lambda value, values: _number(value) > int(values[0]),
    "Lt": lambda value, values: _number(value) < int(values[0]),
}


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
    def __init__(self) -> None:
        self._kinds: dict[Constraint, _Kind] = {}
        self._serial = 0
        self.stale = False
        """Whether there are labels that nodes have not got yet."""
        self.left = False
        """Whether a kind went out of use after the last look."""

    def join(self, constraint: Constraint, nodes: Iterable[Node], namespace: str) -> str:
        """One more pod of a namespace waits with this constraint. Returns the label; empty if too many different ones
        wait already."""
        kind = self._kinds.get(constraint)
        if kind is None:
            if self._is_full(namespace):
                self._drop_unused()
            if self._is_full(namespace) and constraint != PLAIN:
                return ""
            kind = self._kinds[constraint] = _Kind(f"kind-{self._serial}", namespace)
            kind.misfits = {each.metadata.name for each in nodes if why_not(constraint, each)}
            self._serial += 1
            self.stale = True
        kind.users += 1
        return kind.label

    def leave(self, constraint: Constraint) -> None:
        kind = self._kinds[constraint]
        kind.users -= 1
        self.left = self.left or not kind.users

    def node_changed(self, node: Node) -> None:
        for constraint, kind in self._kinds.items():
            (kind.misfits.add if why_not(constraint, node) else kind.misfits.discard)(node.metadata.name)

    def node_gone(self, name: str) -> None:
        for kind in self._kinds.values():
            kind.misfits.discard(name)

    def labels_on(self, node: str) -> tuple[str, ...]:
        return tuple(kind.label for kind in self._kinds.values() if node not in kind.misfits)

    def _is_full(self, namespace: str) -> bool:
        of_one = sum(kind.owner == namespace for kind in self._kinds.values())
        return len(self._kinds) >= MOST_KINDS or of_one >= MOST_OF_ONE

    def _drop_unused(self) -> None:
        self._kinds = {constraint: kind for constraint, kind in self._kinds.items() if kind.users}
        self.stale = True
