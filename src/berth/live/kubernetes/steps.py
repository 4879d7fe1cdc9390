"""What the board wants done on the cluster."""

from __future__ import annotations

from typing import NamedTuple


class Bind(NamedTuple):
    """Bind a pod to a node, with its placement."""

    uid: str
    namespace: str
    name: str
    node: str
    placement: str
    """The annotation."""
    after: frozenset[str]
    """Ids of the pods that must have left the node before."""


class Stop(NamedTuple):
    """Delete a pod, for another takes its place or it should not be there."""

    uid: str
    namespace: str
    name: str
    why: str
    reason: str = "Preempted"


class Tell(NamedTuple):
    """Say something about a pod: an event, and where it waits a condition."""

    uid: str
    namespace: str
    name: str
    reason: str
    message: str
    waits: bool = True


Step = Bind | Stop | Tell
