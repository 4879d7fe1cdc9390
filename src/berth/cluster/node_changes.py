"""What has become of a cluster's nodes: those that came, changed or vanished, compared by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from berth.cluster.checks import check_nodes
from berth.model import Node

_AT_ONCE = 32


class NodeChanges(NamedTuple):
    """What became of a cluster's nodes, by the numbers of their rows, ascending."""

    added: tuple[int, ...] = ()
    changed: tuple[int, ...] = ()
    vanished: tuple[int, ...] = ()


class Difference(NamedTuple):
    """How the nodes that there are differ from those that are known."""

    new: list[Node]
    changed: dict[int, Node]
    """By the row of the node of the same name."""
    vanished: list[int]
    """Rows."""


def difference(
    known: tuple[Node, ...], rows: Mapping[str, int], gone: set[int], now: tuple[Node, ...]
) -> Difference:
    """Compare nodes with those known; `rows` has the row of each by its name, `gone` the rows that are left out.

    Raises ClusterError for nodes of the same name, or amounts that cannot be.
    """
    new: list[Node] = []
    changed: dict[int, Node] = {}
    same = 0
    shift = 0  # how many rows behind its place among `now` the last node has been found
    for first in range(0, len(now), _AT_ONCE):  # those that stand as they stood are compared many at once
        some = now[first : first + _AT_ONCE]
        there = range(first + shift, first + shift + len(some))
        if there.start >= 0 and some == known[there.start : there.stop] and gone.isdisjoint(there):
            same += len(some)
            continue
        for place, node in enumerate(some, first):
            row = rows.get(node.name)
            if row is None or row in gone:
                new.append(node)
                continue
            shift = row - place
            before = known[row]
            if before is node or before == node:
                same += 1
            else:
                changed[row] = node
    names = {node.name for node in now}
    if len(names) < len(now):
        check_nodes(now)
    if come := (*new, *changed.values()):
        check_nodes(come)
    vanished: list[int] = []
    if same + len(changed) < len(known) - len(gone):
        vanished = [row for row, node in enumerate(known) if node.name not in names and row not in gone]
    return Difference(new, changed, vanished)


def vanished_node(node: Node) -> Node:
    """What stands for a node that has vanished: what ran there may still ask what GPUs it had, and there are none."""
    return Node(node.name, 0, node.gpu_model, 0, 0)
