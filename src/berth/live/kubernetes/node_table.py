"""The nodes as the driver is to see them, with what is used there by pods that berth did not place.

A GPU of the driver is a place in the node's list of GPUs (`View.gpus`), not the index by which the node knows it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from berth.live.driver.site import Gpu, NodeState, SiteNode
from berth.live.kubernetes import objects as api
from berth.live.kubernetes.constraints import Kinds
from berth.live.kubernetes.nodes import View
from berth.live.kubernetes.pod_requests import Cards
from berth.model import Node, Share

log = logging.getLogger(__name__)

WHOLE = Share(1000, 1 << 24)
"""All of a GPU; the memory is cut to what the card has."""


@dataclass(slots=True)
class Seat:
    """What a pod takes of its node that is no job of the driver's."""

    cpu_milli: int = 0
    mem_mib: int = 0
    gpus: Mapping[int, Share] = field(default_factory=dict)
    """By the place of the GPU."""
    some_gpus: int = 0
    """More whole GPUs, of which it does not say which."""


class NodeTable:
    """Keeps the nodes, and counts what is on each."""

    def __init__(self, kinds: Kinds) -> None:
        self.cards = Cards(())
        """The GPU models of the nodes."""
        self.views: dict[str, View] = {}
        self._kinds = kinds
        self._objects: dict[str, api.Node] = {}
        self._dirty: dict[str, None] = {}  # in order, so that the same nodes make the same rows every time
        self._known: dict[str, SiteNode] = {}
        self._nodes: tuple[SiteNode, ...] = ()
        self._pods: dict[str, dict[str, Seat | None]] = {}  # node -> pods there; None: the driver's job
        self._used: dict[str, dict[str, Mapping[int, Share]]] = {}  # node -> jobs -> their parts of its GPUs
        self._others_of: dict[str, dict[Gpu, Share]] = {}
        self._others: dict[Gpu, Share] = {}

    # What the cluster says

    def changed(self, node: api.Node) -> bool:
        """A node came or changed; whether that means anything, or its kubelet said that it lives."""
        name = node.metadata.name
        before, self._objects[name] = self._objects.get(name), node
        if before is not None and (before.metadata.labels, before.spec, before.status) == (
            node.metadata.labels,
            node.spec,
            node.status,
        ):
            return False
        self._dirty[name] = None
        return True

    def gone(self, node: api.Node) -> None:
        self._objects.pop(node.metadata.name, None)
        self._dirty[node.metadata.name] = None

    # What pods are on it

    def seat(self, uid: str, node: str, seat: Seat) -> None:
        if self._pods.setdefault(node, {}).get(uid) != seat:
            self._pods[node][uid] = seat
            self._dirty[node] = None

    def run(self, uid: str, node: str, gpus: Mapping[int, Share]) -> None:
        pods = self._pods.setdefault(node, {})
        if uid in pods and pods[uid] is None and self._used[node].get(uid) == gpus:
            return
        self.leave(uid, node)
        self._pods.setdefault(node, {})[uid] = None
        self._used.setdefault(node, {})[uid] = gpus
        self._job_moved(node, gpus)

    def leave(self, uid: str, node: str) -> None:
        pods = self._pods.get(node, {})
        if uid not in pods:
            return
        self._job_moved(node, self._used.get(node, {}).pop(uid, {}))
        if pods.pop(uid) is not None or node not in self._objects:
            self._dirty[node] = None

    def _job_moved(self, node: str, gpus: Mapping[int, Share]) -> None:
        """A job came or left. That is the driver's to count, unless the node is full or one of the GPUs is closed."""
        view = self.views.get(node)
        if view is not None and (
            len(self._pods[node]) >= view.pods_most
            or any(at < len(view.gpus) and not view.gpus[at].is_open for at in gpus)
        ):
            self._dirty[node] = None

    # What the driver sees

    @property
    def has_news(self) -> bool:
        return bool(self._dirty) or self._kinds.stale

    def refresh(self) -> tuple[tuple[str, ...], bool]:
        """Read again what has changed. Returns the nodes that came or went, or whose GPUs are others or in other
        places, for pods there are to be looked at again; and whether the cluster has other GPU models than before."""
        models, read = self.cards.models, [*self._dirty]
        moved = tuple(name for name in read if self._read(name))
        if read:
            self.cards = Cards(view.model for view in self.views.values() if view.model and view.gpus)
        stale, self._kinds.stale = self._kinds.stale, False
        dirty, self._dirty = self._dirty, {}
        for name in self.views if stale else dirty:
            if name in self.views:
                self._known[name] = self._site_node(name)
        if dirty:
            for name in dirty:
                self._others_of[name] = self._others_on(name)
            self._others = {gpu: share for each in self._others_of.values() for gpu, share in each.items()}
        if dirty or stale:
            self._nodes = tuple(self._known.values())
        return moved, self.cards.models != models

    def nodes(self) -> tuple[SiteNode, ...]:
        return self._nodes

    def node_state(self, name: str) -> NodeState:
        """Whether pods start on a node, as of the last `refresh`."""
        known = self._known.get(name)
        return NodeState.LOST if known is None else known.state

    def others(self) -> Mapping[Gpu, Share]:
        """What pods that berth did not place hold of each GPU; all of one on which nothing may start."""
        return self._others

    def _read(self, name: str) -> bool:
        """Take over what a node has become. Returns whether pods there are to be looked at again."""
        node, view = self._objects.get(name), self.views.get(name)
        if node is None:
            return self._lose(name)
        before = None if view is None else view.gpus
        if view is None:
            view = self.views[name] = View(node)
        was_there = name in self._known and self._known[name].state is not NodeState.LOST
        view.read(node)
        if view.problem:
            log.warning("%s", view.problem)
        self._kinds.node_changed(node)
        return not was_there or [gpu.index for gpu in before or ()] != [gpu.index for gpu in view.gpus]

    def _lose(self, name: str) -> bool:
        """A node is gone. While pods are known there, it is a lost node: it may come back with them."""
        if name not in self.views:
            return False
        if self._pods.get(name):
            return name not in self._known or self._known[name].state is not NodeState.LOST
        for table in (self.views, self._known, self._others_of, self._pods, self._used):
            table.pop(name, None)
        self._kinds.node_gone(name)
        return True

    def _site_node(self, name: str) -> SiteNode:
        view, pods = self.views[name], self._pods.get(name, {})
        seats = [seat for seat in pods.values() if seat is not None]
        node = Node(
            name,
            len(view.gpus),
            view.model if view.gpus else None,
            max(0, view.cpu_milli - sum(seat.cpu_milli for seat in seats)),
            max(0, view.mem_mib - sum(seat.mem_mib for seat in seats)),
            self._kinds.labels_on(name),
        )
        state = NodeState.UP
        if name not in self._objects:
            state = NodeState.LOST
        elif view.cordoned or not view.ready or len(pods) >= view.pods_most:
            state = NodeState.DRAINED
        before = self._known.get(name)
        return before if before is not None and before == (node, state) else SiteNode(node, state)

    # What others use

    def _others_on(self, name: str) -> dict[Gpu, Share]:
        view = self.views.get(name)
        if view is None:
            return {}
        card_mib = view.model.mem_mib if view.model else 0
        jobs = self._used.get(name, {}).values()
        used: dict[int, Share] = {}
        for at, gpu in enumerate(view.gpus):
            if not gpu.is_open:  # all that no job has
                has = [gpus[at] for gpus in jobs if at in gpus]
                milli = 1000 - sum(each.milli for each in has)
                mem_mib = card_mib - sum(each.mem_mib or card_mib for each in has)
                used[at] = Share(max(0, milli), max(0, mem_mib))
        seats = [seat for seat in self._pods.get(name, {}).values() if seat is not None]
        for seat in seats:
            for at, share in seat.gpus.items():
                before = used.get(at, Share(0, 0))
                used[at] = Share(before.milli + share.milli, before.mem_mib + share.mem_mib)
        # Which GPUs some pods have can only be guessed: GPUs not known to be in use, the last first.
        of_jobs = set[int]().union(*jobs)
        for seat in seats:
            free = [at for at in reversed(range(len(view.gpus))) if at not in used and at not in of_jobs]
            used |= dict.fromkeys(free[: seat.some_gpus], WHOLE)
        return {
            Gpu(name, at): Share(min(1000, share.milli), min(card_mib, share.mem_mib) if card_mib else 0)
            for at, share in used.items()
            if at < len(view.gpus)
        }
