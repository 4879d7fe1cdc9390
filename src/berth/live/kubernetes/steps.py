"""What is to be done on the cluster."""

from __future__ import annotations

from typing import Any, NamedTuple

from berth.live.kubernetes.objects import Preferred, Term


class Lift(NamedTuple):
    """Write the placement of a pod, lift its gate and pin it to its node."""

    uid: str
    namespace: str
    name: str
    node: str
    placement: str
    """The annotation."""
    terms: tuple[Term, ...] = ()
    """Its required node affinity, to each term of which the pin is added."""
    after: frozenset[str] = frozenset()
    """Ids of the pods that must have left the node before."""
    hosts: tuple[str, ...] = ()
    """Hostnames of the nodes that it may run on, its own among them; empty: its own node alone."""
    preferred: tuple[Preferred, ...] = ()
    """Its preferred node affinity, which it keeps."""
    enough: str | None = None
    """What its profile says is enough, if that is less than it asks for."""
    is_applied: bool = False
    """Whether a client applies the pod's fields on the server, which needs the record of their managers."""
    is_bound: bool = False
    """Whether kube-scheduler has bound it already, so that only its placement is written."""


class Patch(NamedTuple):
    """Change a pod otherwise: take its placement away, release it unpinned, or have its node's agent suspend it."""

    uid: str
    namespace: str
    name: str
    body: dict[str, Any]
    """A merge patch. If it has a resource version, a pod that has changed since then stays as it is."""


class Remove(NamedTuple):
    """Evict a pod: another takes its place, or its controller is to make a new one."""

    uid: str
    namespace: str
    name: str
    why: str
    reason: str = "Preempted"


class Tell(NamedTuple):
    """Say something about a pod in an event."""

    uid: str
    namespace: str
    name: str
    reason: str
    message: str
    warning: bool = True


Step = Lift | Patch | Remove | Tell
