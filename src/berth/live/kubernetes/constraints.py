"""Which nodes a pod may run on, whatever is free there: selector, affinity, taints, cordons, what is not counted in
CPU, memory and GPUs.

Pods that may run on the same nodes have equal constraints, so that each is looked at once a node and not once a pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from berth.errors import AskError
from berth.live.kubernetes.objects import Pod, Taint, Term, Toleration
from berth.live.kubernetes.selectors import OPERATORS, Requirement, requirement_of
from berth.live.kubernetes.spreads import Domain, SpreadRule

UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
HOST_PORT = "host-port/"
"""A port of the node counts as a resource of which there is one."""
MOST_TERMS = 64
Tolerated = tuple[str, str, str, str]
"""Key, operator, value, effect."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a node must be for a pod; equal ones are the same."""

    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[tuple[Requirement, ...], ...] = ()
    """One of these must hold; none: any node will do. A key that begins with `@` is a field of the node."""
    tolerations: tuple[Tolerated, ...] = ()
    others: tuple[tuple[str, int], ...] = ()
    """Resources other than CPU, memory and GPUs, with their amounts."""
    spread: tuple[SpreadRule, ...] = ()
    """How it and others are to lie over the nodes; see `Eligibility`, which alone knows where they are."""


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


def constraint_of(pod: Pod, others: Mapping[str, int], spread: tuple[SpreadRule, ...] = ()) -> Constraint:
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
    if not (spec.node_selector or terms or spec.tolerations or others or ports or spread):
        return PLAIN
    return Constraint(
        tuple(sorted(spec.node_selector.items())),
        terms,
        tuple(sorted({_tolerated(each) for each in spec.tolerations if each.key not in _OF_RUNNING})),
        tuple(sorted({**others, **ports}.items())),
        spread,
    )


def why_not(constraint: Constraint, node: NodeTraits) -> str:
    """Why pods of this constraint cannot run on a node; empty where they can. The words are the same for all nodes
    that are refused alike, so that they can be counted."""
    if not node.ready:
        return "not ready"
    if node.unschedulable and not _tolerates(constraint.tolerations, Taint(UNSCHEDULABLE, "", "NoSchedule")):
        return "cordoned"
    if (taint := _kept_out_by(constraint, node)) is not None:
        return f"taint {taint.key}{'=' if taint.value else ''}{taint.value}:{taint.effect}"
    if why := _unwanted(constraint, node):
        return why
    short = lacks(constraint, node)
    return f"no free {short.replace(HOST_PORT, 'host port ')}" if short else ""


def domain_of(constraint: Constraint, node: NodeTraits) -> Domain:
    """A node as the spread rules of a pod see it."""
    tolerated = _kept_out_by(constraint, node) is None
    return Domain(node.name, node.labels, not _unwanted(constraint, node), tolerated)


def _kept_out_by(constraint: Constraint, node: NodeTraits) -> Taint | None:
    for taint in node.taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not _tolerates(constraint.tolerations, taint):
            return taint
    return None


def _unwanted(constraint: Constraint, node: NodeTraits) -> str:
    """Which of selector and affinity excludes a node."""
    for key, value in constraint.selector:
        if node.labels.get(key) != value:
            return f"no label {key}={value}"
    if constraint.terms and not any(_holds(term, node) for term in constraint.terms):
        return "node affinity"
    return ""


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
    found = [requirement_of(each, "node affinity") for each in term.match_expressions]
    for each in term.match_fields:
        if each.key != "metadata.name":
            raise AskError(f"node affinity asks for field '{each.key[:80]}'; expected metadata.name")
        key, operator, values = requirement_of(each, "node affinity")
        found.append((f"@{key}", operator, values))
    return tuple(sorted(found))


def _holds(term: tuple[Requirement, ...], node: NodeTraits) -> bool:
    """Whether all of a term holds; a term of nothing holds nowhere."""
    return bool(term) and all(
        OPERATORS[operator](node.name if key.startswith("@") else node.labels.get(key), values)
        for key, operator, values in term
    )
