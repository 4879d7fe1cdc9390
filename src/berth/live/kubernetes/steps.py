"""What is to be done on the cluster."""

from __future__ import annotations

from typing import NamedTuple

from berth.live.kubernetes.objects import Expression, Preferred, Term


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
    is_bound: bool = False
    """Whether kube-scheduler has bound it already, so that only its placement is written."""


class Withdraw(NamedTuple):
    """Take away the placement of a pod that is pinned to a node which refuses it."""

    uid: str
    namespace: str
    name: str
    version: str
    """The resource version at which it was refused: a pod that was bound meanwhile keeps its placement."""


class Release(NamedTuple):
    """Lift the gate of a pod that no node can hold, and pin it nowhere: autoscalers see it, and kube-scheduler binds it
    to a node that they make."""

    uid: str
    namespace: str
    name: str
    terms: tuple[Term, ...] = ()
    """Its required node affinity, to each term of which `needs` are added."""
    needs: tuple[Expression, ...] = ()
    """What its GPUs ask of a node's labels, which kube-scheduler does not count."""


class Suspend(NamedTuple):
    """Have the agent of a pod's node take it off its GPUs, or let it run on."""

    uid: str
    namespace: str
    name: str
    leaves: bool


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


Step = Lift | Withdraw | Release | Suspend | Remove | Tell
