"""The nodes as the board keeps them: read anew when they have changed, and told to the scheduler before it decides."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from berth.live.kubernetes import names
from berth.live.kubernetes import objects as api
from berth.live.kubernetes.constraints import Constraint
from berth.live.kubernetes.entries import Entry, State
from berth.live.kubernetes.gpu_words import known_resources
from berth.live.kubernetes.jobs import Cards
from berth.live.kubernetes.nodes import View, named_by_size, plain_name
from berth.model import Node

if TYPE_CHECKING:
    from berth.live.kubernetes.board import Board

__all__ = ["NodeBook"]

log = logging.getLogger(__name__)


class NodeBook:
    """The nodes of a board."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self.views: dict[str, View] = {}
        self._nodes: dict[str, Node] = {}
        self._objects: dict[str, api.Node] = {}
        self._slices: dict[str, dict[str, api.ResourceSlice]] = {}
        self._dirty: dict[str, None] = {}  # in order, so that the same nodes make the same rows every time
        self._asked_by = known_resources(board.settings.compat)
        self._named_apart = False
        self._full: set[str] = set()  # nodes that hold as many pods as they may

    def changed(self, node: api.Node) -> None:
        """A node came or changed."""
        name = node.metadata.name
        before = self._objects.get(name)
        self._objects[name] = node
        if (
            before is not None
            and name in self.views
            and (before.metadata.labels, before.spec, before.status)
            == (node.metadata.labels, node.spec, node.status)
        ):
            return  # its kubelet said that it lives
        if name not in self.views:
            self.views[name] = View(name)
        self._dirty[name] = None

    def gone(self, node: api.Node) -> None:
        """A node is gone."""
        self._objects.pop(node.metadata.name, None)
        self._dirty[node.metadata.name] = None

    def slice_changed(self, each: api.ResourceSlice) -> None:
        """A ResourceSlice came or changed."""
        if each.spec.driver == names.DRIVER and each.spec.node_name:
            self._slices.setdefault(each.spec.node_name, {})[each.metadata.name] = each
            self._dirty[each.spec.node_name] = None

    def slice_gone(self, each: api.ResourceSlice) -> None:
        """A ResourceSlice is gone."""
        if self._slices.get(each.spec.node_name, {}).pop(each.metadata.name, None) is not None:
            self._dirty[each.spec.node_name] = None

    @property
    def has_news(self) -> bool:
        """Whether there is something to tell the scheduler."""
        return bool(self._dirty) or self._board.eligibility.is_stale

    def sync(self, now_ms: int) -> None:
        """Tell the scheduler what has become of the nodes."""
        self._board.admit_crowded(now_ms)
        if not self.has_news:
            return
        models = self._board.cards.models
        moved = [name for name in self._dirty if self._read_node(name)]
        self._name_cards()
        self._board.cards = Cards(view.model for view in self.views.values() if view.model and view.gpus)
        changed = set(self._board.eligibility.relabel())
        dirty, self._dirty = self._dirty, {}
        dirty |= dict.fromkeys(self.views if changed else sorted(self._board.eligibility.moved))
        for name in [name for name in dirty if name in self.views]:
            view = self.views[name]
            view.labels = self._board.eligibility.labels_on(name)
            self._nodes[name] = view.node()
        if self._board.cards.models != models or changed:
            self._remake(now_ms, None if self._board.cards.models != models else changed)
        self._push(dirty, now_ms)
        if not moved and self._board.eligibility.is_stale:  # pods have joined that fitted nowhere before
            self.sync(now_ms)
        if moved:  # they are gone for the scheduler, and come back as they are now
            for name in moved:
                self.views[name] = View(name)
                self._dirty[name] = None
            self.sync(now_ms)

    def _name_cards(self) -> None:
        """Tell cards of one name and different memory apart, for half of a card is half of the one that is chosen: all
        but those of the commonest size have their memory in their name."""
        sizes: dict[str, Counter[int]] = {}
        for view in self.views.values():
            if view.model is not None and view.gpus:
                sizes.setdefault(plain_name(view.model), Counter())[view.model.mem_mib] += 1
        for name, counts in sizes.items():
            if len(counts) > 1 or self._named_apart:
                self._named_apart = True
                commonest = min(counts, key=lambda mib: (-counts[mib], mib))
                for view in self.views.values():
                    if view.model is not None and plain_name(view.model) == name:
                        apart = view.model.mem_mib != commonest
                        view.model = named_by_size(view.model) if apart else replace(view.model, name=name)
                        if view.name in self._nodes and self._nodes[view.name].gpu_model != view.model:
                            self._dirty[view.name] = None

    def _push(self, dirty: Iterable[str], now_ms: int) -> None:
        cluster, scheduler = self._board.cluster, self._board.scheduler
        for run in scheduler.nodes_changed([*self._nodes.values()], now_ms):
            self._board.lost(run.job.id, now_ms)
        self._board.run_on_without(scheduler.take_evicted(), now_ms)
        down = self._board.eligibility.down | self._full
        for name in [name for name in dirty if name in self.views]:
            row = cluster.row_of(name)
            if row is None:
                continue
            if bool(cluster.up[row]) == (name in down):
                (scheduler.node_drained if name in down else scheduler.node_back)(name)
            self._board.foreign.note(name)
        self._board.nodes_are_in(now_ms)

    def _read_node(self, name: str) -> bool:
        """Take over what a node has become. Returns whether its GPUs are others or in other places: it is then gone
        until it is read again."""
        node, view = self._objects.get(name), self.views.get(name)
        if node is None or view is None:
            self._drop(name)
            return False
        before = view.gpus
        view.read(node, self._slices.get(name, {}).values(), self._asked_by)
        shared = min(len(before), len(view.gpus))
        if [gpu.index for gpu in before[:shared]] != [gpu.index for gpu in view.gpus[:shared]]:
            self._drop(name)
            return True
        if view.problem:
            log.warning("%s", view.problem)
        self._board.eligibility.node_changed(view.traits)
        if view.pods >= view.pods_most:
            self._full.add(name)
        else:
            self._full.discard(name)
        return False

    def _drop(self, name: str) -> None:
        """A node is gone; what the scheduler placed there is told by `Board.lost`."""
        self.views.pop(name, None)
        self._nodes.pop(name, None)
        self._full.discard(name)
        self._board.eligibility.node_gone(name)
        self._board.without_node(self._board.foreign.node_gone(name))

    def _remake(self, now_ms: int, changed: set[Constraint] | None) -> None:
        """Make the jobs anew whose labels or models have changed; None: all."""
        for entry in self._board.entries.values():
            ask = entry.ask
            if entry.state is not State.WAITING or ask is None or not self._board.scheduler.waits(entry.uid):
                continue
            if (changed is None and (ask.models or ask.mem_milli)) or (
                entry.constraint in changed if changed is not None else self._label_differs(entry)
            ):
                self._board.job_changed(entry)

    def _label_differs(self, entry: Entry) -> bool:
        queued = self._board.queued(entry.uid)
        return queued is not None and queued.labels != self._board.eligibility.labels_of(entry.constraint)

    def assign(self, entry: Entry) -> None:
        """Count a pod on its node, of whichever scheduler it is."""
        view = self.views[entry.node]
        view.pods += 1
        self._lies_elsewhere(self._board.spreads.seat(entry))
        self._use_others(entry, 1)
        if view.pods >= view.pods_most and entry.node not in self._full:
            self._full.add(entry.node)
            self._dirty[entry.node] = None

    def unassign(self, entry: Entry) -> None:
        """A pod is not on its node any more."""
        self._lies_elsewhere(self._board.spreads.unseat(entry))
        view = self.views.get(entry.node)
        if view is None:
            return
        view.pods -= 1
        self._use_others(entry, -1)
        if entry.node in self._full:
            self._dirty[entry.node] = None

    def told_again(self, entry: Entry, labels: Mapping[str, str]) -> None:
        """A pod on a node has these labels now, or was told to go."""
        entry.labels = labels
        if entry.node in self.views:
            self._lies_elsewhere(self._board.spreads.seat(entry))

    def _lies_elsewhere(self, changed: bool) -> None:
        if changed:
            self._board.eligibility.is_stale = True

    def _use_others(self, entry: Entry, sign: int) -> None:
        """Count the resources of a pod that are not CPU, memory or GPUs; those nodes are to be looked at again."""
        if not entry.others:
            return
        used = dict(self.views[entry.node].traits.others_used)
        for name, amount in entry.others:
            used[name] = used.get(name, 0) + sign * amount
        self.views[entry.node].traits.others_used = used
        if self._board.eligibility.counts({name for name, _ in entry.others}):
            self._dirty[entry.node] = None

    def dirty(self, node: str) -> None:
        """Have a node looked at again before the next decision."""
        self._dirty[node] = None
