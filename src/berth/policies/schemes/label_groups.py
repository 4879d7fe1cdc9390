"""Which waiting jobs can meet on a node: those of different partitions cannot, and do not hold each other up."""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

from berth.cluster import Cluster, Queue
from berth.model import Job
from berth.policies.sort_keys import as_queued

Labels = tuple[str, ...]
"""What a job asks each of its nodes to carry."""


class Partitions:
    """How the labels of one cluster's nodes keep jobs apart."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._meet: dict[tuple[Labels, Labels], bool] = {}

    def can_meet(self, one: Labels, other: Labels) -> bool:
        """Whether some node carries the labels of both."""
        known = self._meet.get((one, other))
        if known is None:
            both = {*one, *other}
            known = any(both.issubset(node.labels) for node in self._cluster.nodes)
            self._meet[one, other] = known
        return known

    def is_held_up(self, labels: Labels, firsts: Collection[Labels]) -> bool:
        """Whether a job that asks for these labels could take a node that one of the first jobs could take."""
        return labels in firsts or any(self.can_meet(labels, other) for other in firsts)


def labels_waiting(queue: Queue) -> Collection[Labels]:
    """The different labels that the waiting jobs ask for."""
    return cast(Collection[Labels], queue.lanes(_labels, as_queued))


def _labels(job: Job) -> Labels:
    return job.labels
