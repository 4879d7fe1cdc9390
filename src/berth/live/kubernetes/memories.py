"""GPU memory that pods ran out of: what the next pod of the same owner gets instead of what it asks for.

All of it is learned from pods that are on the cluster: the agent of their node writes into each what it used
(`berth.dev/measured`), so that a scheduler that restarts knows as much.
"""

from __future__ import annotations

from collections import OrderedDict

from berth.knowledge.out_of_memory import NO_NEED, MemoryNeed, need_after
from berth.live.kubernetes import objects as api
from berth.live.kubernetes.placements import Measured

MOST_OWNERS = 10_000
Owner = tuple[str, str]
"""Namespace, and the application that was named or the controller."""


def killed_by_kernel(pod: api.Pod) -> bool:
    """Whether a container exceeded its own limit of the node's memory, which says nothing of GPU memory."""
    return any(
        each.state.terminated is not None and each.state.terminated.reason == "OOMKilled"
        for each in pod.status.container_statuses
    )


class Memories:
    """By owner, those of the last `MOST_OWNERS` that ran out."""

    def __init__(self) -> None:
        self._known: OrderedDict[Owner, MemoryNeed] = OrderedDict()

    def ran_out(self, owner: Owner, measured: Measured) -> MemoryNeed:
        """A pod of this owner ran out of memory; what the next one needs."""
        before = self._known.pop(owner, NO_NEED)
        found = self._known[owner] = need_after(before, max(measured.peak_mib, measured.needed_mib))
        if len(self._known) > MOST_OWNERS:
            self._known.popitem(last=False)
        return found

    def of(self, owner: Owner) -> MemoryNeed | None:
        """What is known of an owner; None: none of its pods ran out."""
        return self._known.get(owner) if owner[1] else None
