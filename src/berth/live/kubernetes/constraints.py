"""Which nodes a pod may run on, whatever is free there: selector, affinity, taints, cordons, what is not counted in
CPU, memory and GPUs.

Pods that may run on the same nodes have equal constraints, so that each is looked at once a node and not once a pod.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from berth.errors import AskError
from berth.live.kubernetes.objects import Expression, Pod, Taint, Term, Toleration

__all__ = ["PLAIN", "Constraint", "NodeTraits", "bare", "constraint_of", "lacks", "why_not"]

UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
HOST_PORT = "host-port/"
"""A port of the node counts as a resource of which there is one."""
MOST_TERMS = 64
_WHOLE = re.compile(r"-?[0-9]{1,18}")

Requirement = tuple[str, str, tuple[str, ...]]
"""Key, operator, values. A key that begins with `@` is a field of the node."""
Tolerated = tuple[str, str, str, str]
"""Key, operator, value, effect."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a node must be for a pod; equal ones are the same."""

    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[tuple[Requirement, ...], ...] = ()
    """One of these must hold; none: any node will do."""
    tolerations: tuple[Tolerated, ...] = ()
    others: tuple[tuple[str, int], ...] = ()
    """Resources other than CPU, memory and GPUs, with their amounts."""


PLAIN = Constraint()
"""Any node without taints."""


@lru_cache(maxsize=4096)
def bare(constraint: Constraint) -> Constraint:
    """The constraint without its amounts. Pods wait with this one until a node had too little for one of them, so that
    the amounts of many pods are as a rule one constraint."""
    return replace(constraint, others=()) if constraint.others else constraint


@dataclass(slots=True)
class NodeTraits:
    """What constraints ask of a node."""

    name: str
    labels: Mapping[str, str]
    taints: list[Taint]
    unschedulable: bool
    ready: bool
    others: Mapping[str, int]
    """What there is of other resources."""
    others_used: Mapping[str, int]


def constraint_of(pod: Pod, others: Mapping[str, int]) -> Constraint:
    """The constraint of a pod. Raises AskError for a selector or toleration that makes no sense."""
    spec = pod.spec
    affinity = spec.affinity.node_affinity if spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    terms = tuple(_term(term) for term in required.node_selector_terms) if required else ()
    if len(terms) > MOST_TERMS:
        raise AskError(f"node affinity has {len(terms)} terms; expected at most {MOST_TERMS}")
    ports = {
        f"{HOST_PORT}{port.host_port}": 1
        for container in spec.containers
        for port in container.ports
        if port.host_port
    }
    if not (spec.node_selector or terms or spec.tolerations or others or ports):
        return PLAIN
    return Constraint(
        tuple(sorted(spec.node_selector.items())),
        terms,
        tuple(sorted({_tolerated(each) for each in spec.tolerations if each.key not in _OF_RUNNING})),
        tuple(sorted({**others, **ports}.items())),
    )


def why_not(constraint: Constraint, node: NodeTraits) -> str:
    """Why pods of this constraint cannot run on a node; empty where they can. The words are the same for all nodes
    that are refused alike, so that they can be counted."""
    if not node.ready:
        return "not ready"
    if node.unschedulable and not _tolerates(constraint.tolerations, Taint(UNSCHEDULABLE, "", "NoSchedule")):
        return "cordoned"
    for taint in node.taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not _tolerates(constraint.tolerations, taint):
            return f"taint {taint.key}{'=' if taint.value else ''}{taint.value}:{taint.effect}"
    for key, value in constraint.selector:
        if node.labels.get(key) != value:
            return f"no label {key}={value}"
    if constraint.terms and not any(_holds(term, node) for term in constraint.terms):
        return "node affinity"
    short = lacks(constraint, node)
    return f"no free {short.replace(HOST_PORT, 'host port ')}" if short else ""


def lacks(constraint: Constraint, node: NodeTraits) -> str:
    """The first counted resource of which too little is free on a node; empty where there is enough of all."""
    for name, wanted in constraint.others:
        there = 1 if name.startswith(HOST_PORT) else node.others.get(name, 0)
        if node.others_used.get(name, 0) + wanted > there:
            return name
    return ""


_OF_RUNNING = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Added to every pod by the API server for 300 s of grace while it runs; a pod does not begin on such a node."""


def _tolerated(toleration: Toleration) -> Tolerated:
    operator = toleration.operator or "Equal"
    if operator not in ("Equal", "Exists"):
        raise AskError(f"a toleration has operator '{operator[:40]}'; expected Equal or Exists")
    return (toleration.key, operator, toleration.value, toleration.effect)


def _tolerates(tolerations: tuple[Tolerated, ...], taint: Taint) -> bool:
    for key, operator, value, effect in tolerations:
        if effect and effect != taint.effect:
            continue
        if not key:
            if operator == "Exists":
                return True
        elif key == taint.key and (operator == "Exists" or value == taint.value):
            return True
    return False


def _term(term: Term) -> tuple[Requirement, ...]:
    found = [_requirement(each, each.key) for each in term.match_expressions]
    found += [_requirement(each, f"@{each.key}") for each in term.match_fields]
    return tuple(sorted(found))


def _requirement(expression: Expression, key: str) -> Requirement:
    if expression.operator not in _OPERATORS:
        raise AskError(
            f"node affinity has operator '{expression.operator[:40]}'; expected {', '.join(_OPERATORS)}"
        )
    if expression.operator in ("Gt", "Lt") and not (
        len(expression.values) == 1 and _WHOLE.fullmatch(expression.values[0])
    ):
        raise AskError(f"node affinity {expression.operator} of '{key[:80]}' takes one whole number")
    if key.startswith("@") and key != "@metadata.name":
        raise AskError(f"node affinity asks for field '{key[1:80]}'; expected metadata.name")
    return (key, expression.operator, tuple(sorted(expression.values)))


def _holds(term: tuple[Requirement, ...], node: NodeTraits) -> bool:
    """Whether all of a term holds; a term of nothing holds nowhere."""
    return bool(term) and all(
        _OPERATORS[operator](node.name if key.startswith("@") else node.labels.get(key), values)
        for key, operator, values in term
    )


def _number(text: str | None) -> int | None:
    return int(text) if text and _WHOLE.fullmatch(text) else None


def _greater(value: str | None, values: tuple[str, ...]) -> bool:
    return (number := _number(value)) is not None and number > int(values[0])


def _less(value: str | None, values: tuple[str, ...]) -> bool:
    return (number := _number(value)) is not None and number < int(values[0])


_OPERATORS: dict[str, Callable[[str | None, tuple[str, ...]], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, values: value is not None,
    "DoesNotExist": lambda value, values: value is None,
    "Gt": _greater,
    "Lt": _less,
}
