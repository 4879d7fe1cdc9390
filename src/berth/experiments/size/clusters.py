"""The same cluster with more or fewer nodes of one GPU model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from berth.experiments.compare.conditions import Conditions
from berth.model import Node


@dataclass(frozen=True, slots=True)
class Resized:
    """A cluster of which one GPU model has more or fewer nodes than today."""

    model: str
    count: int
    """Nodes of the model."""
    nodes: tuple[Node, ...]
    rows: tuple[int | None, ...]
    """Of each node its row in today's cluster; None for one that was added."""

    @property
    def gpus(self) -> int:
        """GPUs of the model."""
        return sum(node.gpus for node in self.nodes if model_of(node) == self.model)

    def under(self, conditions: Conditions) -> Conditions:
        """The conditions of today's cluster, without outages and reservations of nodes that are gone."""
        row_of = {row: at for at, row in enumerate(self.rows) if row is not None}
        return replace(
            conditions,
            outages=tuple(
                each._replace(node=row_of[each.node]) for each in conditions.outages if each.node in row_of
            ),
            reservations=tuple(
                each._replace(nodes=tuple(row_of[node] for node in each.nodes if node in row_of))
                for each in conditions.reservations
                if not row_of.keys().isdisjoint(each.nodes)
            ),
        )


def model_of(node: Node) -> str:
    """The name of a node's GPU model; empty where it has none."""
    return node.gpu_model.name if node.gpu_model else ""


def models_of(nodes: Iterable[Node]) -> list[str]:
    """The GPU models of a cluster, in the order of its nodes."""
    return list(dict.fromkeys(model_of(node) for node in nodes if node.gpus))


def resized(nodes: Sequence[Node], model: str, count: int) -> Resized:
    """The cluster with this many nodes of a model.

    Nodes go one by one, the last first, always from the partition that has kept the largest part of its nodes, and
    come back as copies in the same order.
    """
    mine = [row for row, node in enumerate(nodes) if node.gpus and model_of(node) == model]
    order = _order(nodes, mine)
    gone = set(order[: max(0, len(mine) - count)])
    remaining = [row for row in range(len(nodes)) if row not in gone]
    added = [
        replace(
            nodes[order[-1 - at % len(order)]], name=f"{nodes[order[-1 - at % len(order)]].name}-more{at}"
        )
        for at in range(count - len(mine))
    ]
    return Resized(
        model, count, (*(nodes[row] for row in remaining), *added), (*remaining, *[None] * len(added))
    )


def _order(nodes: Sequence[Node], rows: Sequence[int]) -> list[int]:
    """These rows in the order in which they go."""
    there = Counter(nodes[row].labels for row in rows)
    left = {labels: [row for row in rows if nodes[row].labels == labels] for labels in there}
    order = []
    for _ in rows:
        labels = max(left, key=lambda each: (len(left[each]) / there[each], there[each]))
        order.append(left[labels].pop())
    return order
