"""The nodes as they are on the cluster: read anew when they have changed, with the pods on each counted."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from berth.live.kubernetes import names
from berth.live.kubernetes import objects as api
from berth.live.kubernetes.constraints import Constraint
from berth.live.kubernetes.eligibility import Eligibility
from berth.live.kubernetes.entries import Entry
from berth.live.kubernetes.gpu_words import known_resources
from berth.live.kubernetes.jobs import Cards
from berth.live.kubernetes.nodes import View, named_by_size, plain_name
from berth.model import Node

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lost:
    """Nodes that are not what they were."""

    dropped: tuple[str, ...]
    """Gone, or to be made anew: nothing that ran there is counted any more."""
    moved: tuple[str, ...]
    """Of those, the ones that come back with `come_back`, with other GPUs or GPUs in other places."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What has become of the nodes."""

    names: tuple[str, ...]
    """Those that were read anew or carry other labels."""
    relabelled: frozenset[Constraint]
    """The constraints whose label has changed."""
    has_other_models: bool
    """Whether the cluster has other GPU models than before."""


class NodeBook:
    """Keeps the nodes, and counts the pods on each."""

    def __init__(self, eligibility: Eligibility, compat: str | None) -> None:
        self._eligibility = eligibility
        self.cards = Cards(())
        """The GPU models of the nodes."""
        self.views: dict[str, View] = {}
        self._nodes: dict[str, Node] = {}
        self._objects: dict[str, api.Node] = {}
        self._slices: dict[str, dict[str, api.ResourceSlice]] = {}
        self._dirty: dict[str, None] = {}  # in order, so that the same nodes make the same rows every time
        self._asked_by = known_resources(compat)
        self._named_apart = False
        self._full: set[str] = set()  # nodes that hold as many pods as they may
        self._dropped: list[str] = []  # since the last `read`

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
        return bool(self._dirty) or self._eligibility.is_stale

    @property
    def nodes(self) -> list[Node]:
        """The nodes as the scheduler is to have them."""
        return [*self._nodes.values()]

    @property
    def down(self) -> set[str]:
        """Those on which nothing new may start."""
        return self._eligibility.down | self._full

    def read(self) -> Lost:
        """Read the nodes that have changed; to be followed by `settle`."""
        moved = tuple(name for name in self._dirty if self._read_node(name))
        dropped, self._dropped = self._dropped, []
        return Lost(tuple(dropped), moved)

    def settle(self) -> Settled:
        """Name the cards and label the nodes that were read."""
        models = self.cards.models
        self._name_cards()
        self.cards = Cards(view.model for view in self.views.values() if view.model and view.gpus)
        relabelled = frozenset(self._eligibility.relabel())
        dirty, self._dirty = self._dirty, {}
        dirty |= dict.fromkeys(self.views if relabelled else sorted(self._eligibility.moved))
        names = tuple(name for name in dirty if name in self.views)
        for name in names:
            view = self.views[name]
            view.labels = self._eligibility.labels_on(name)
            self._nodes[name] = view.node()
        return Settled(names, relabelled, self.cards.models != models)

    def come_back(self, moved: Iterable[str]) -> None:
        """The scheduler knows that these are gone: have them read as they are now."""
        for name in moved:
            self.views[name] = View(name)
            self._dirty[name] = None

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
        self._eligibility.node_changed(view.traits)
        if view.pods >= view.pods_most:
            self._full.add(name)
        else:
            self._full.discard(name)
        return False

    def _drop(self, name: str) -> None:
        """A node is gone."""
        self.views.pop(name, None)
        self._nodes.pop(name, None)
        self._full.discard(name)
        self._eligibility.node_gone(name)
        self._dropped.append(name)

    def assign(self, entry: Entry) -> None:
        """Count a pod on its node, of whichever scheduler it is."""
        view = self.views[entry.node]
        view.pods += 1
        self._lies_elsewhere(self._eligibility.spreads.seat(entry))
        self._use_others(entry, 1)
        if view.pods >= view.pods_most and entry.node not in self._full:
            self._full.add(entry.node)
            self._dirty[entry.node] = None

    def unassign(self, entry: Entry) -> None:
        """A pod is not on its node any more."""
        self._lies_elsewhere(self._eligibility.spreads.unseat(entry))
        view = self.views.get(entry.node)
        if view is None:
            return
        view.pods -= 1
        self._use_others(entry, -1)
        if entry.node in self._full:
            self._dirty[entry.node] = None

    def pod_changed(self, entry: Entry, labels: Mapping[str, str]) -> None:
        """A pod on a node has these labels now, or is being deleted."""
        entry.labels = labels
        if entry.node in self.views:
            self._lies_elsewhere(self._eligibility.spreads.seat(entry))

    def _lies_elsewhere(self, changed: bool) -> None:
        if changed:
            self._eligibility.pods_moved()

    def _use_others(self, entry: Entry, sign: int) -> None:
        """Count the resources of a pod that are not CPU, memory or GPUs; those nodes are to be looked at again."""
        if not entry.others:
            return
        used = dict(self.views[entry.node].traits.others_used)
        for name, amount in entry.others:
            used[name] = used.get(name, 0) + sign * amount
        self.views[entry.node].traits.others_used = used
        if self._eligibility.counts({name for name, _ in entry.others}):
            self._dirty[entry.node] = None

    def dirty(self, node: str) -> None:
        """Have a node looked at again before the next decision."""
        self._dirty[node] = None
