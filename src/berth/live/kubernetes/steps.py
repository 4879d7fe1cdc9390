"""What is to be done on the cluster."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from berth.live.kubernetes.objects import Preferred, Term
from berth.live.kubernetes.placements import Placed


class Lift(NamedTuple):
    """Write the placement of a pod, lift its gate and pin it to its node."""

    uid: str
    namespace: str
    name: str
    node: str
    placed: Placed
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

    @property
    def placement(self) -> str:
        """The annotation of its placement."""
        return msgspec.json.encode(self.placed).decode()


class PodEvent(NamedTuple):
    """Say something about a pod in an event."""

    uid: str
    namespace: str
    name: str
    reason: str
    message: str
    warning: bool = True


class Patch(NamedTuple):
    """Change a pod otherwise: take its placement away, release it unpinned, or have its node's agent suspend it."""

    uid: str
    namespace: str
    name: str
    body: dict[str, Any]
    """A merge patch. If it has a resource version, a pod that has changed since then stays as it is."""
    event: PodEvent | None = None
    """Recorded if the pod was changed by it: of two steerers, one has changed it."""


class Evict(NamedTuple):
    """Evict a pod: another takes its place, or its controller is to make a new one."""

    uid: str
    namespace: str
    name: str
    why: str
    reason: str = "Preempted"


Step = Lift | Patch | Evict | PodEvent
