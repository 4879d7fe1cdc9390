"""What policies that share GPUs keep of a cluster's nodes and of jobs on them, from decision to decision."""

from __future__ import annotations

from dataclasses import dataclass, field

from berth.cluster import Cluster
from berth.model import GpuModel, Share
from berth.policies.colocation.forecast import Candidate
from berth.policies.colocation.open_gpus import OpenGpus
from berth.policies.colocation.pair_board import PairBoard
from berth.policies.colocation.waits import EmptyGpus

MOST_CANDIDATES = 100_000
"""Different jobs that are kept as forecasts see them."""


@dataclass(slots=True)
class ClusterCache:
    """What is kept of the nodes of a cluster and of jobs on them, on the cluster's memo."""

    open_gpus: OpenGpus
    """Which GPUs have room, and which of them declined."""
    empty: EmptyGpus
    """When which of them are expected to be empty."""
    models: list[GpuModel | None] = field(default_factory=list)
    """Of each node."""
    card_numbers: list[int] = field(default_factory=list)
    """A number of each node; those of one number have the same model."""
    cards: set[GpuModel | None] = field(default_factory=set)
    """The models of nodes that have GPUs."""
    alike: list[int] = field(default_factory=list)
    """A number of each node; those of one number are the same to every job that shares."""
    may: dict[tuple[int, str, int, int], bool] = field(default_factory=dict)
    """Whether a job may run on a node: by request type, application, work in μs and number of the node."""
    candidates: dict[tuple[str, int], Candidate] = field(default_factory=dict)
    """Waiting jobs as forecasts see them, by application and work, μs."""
    shares: dict[tuple[str, Share, int], Share] = field(default_factory=dict)
    """What a job that shares is given: by application, what it asks for, and number of the node."""
    fits_somewhere: dict[tuple[object, ...], bool] = field(default_factory=dict)
    """Whether a job is believed to fit on any card, by application, models allowed and work, μs."""
    pairs: PairBoard | None = None
    """What is known of starting waiting jobs on its GPUs, where a policy compares them all."""
    woken_ms: int = -1
    """The last time at which it asked to be woken."""

    @classmethod
    def of(cls, cluster: Cluster) -> ClusterCache:
        """What is kept of a cluster that is new, or whose nodes have changed."""
        numbers: dict[tuple[object, ...], int] = {}
        cards: dict[GpuModel | None, int] = {}
        card_numbers = [cards.setdefault(node.gpu_model, len(cards)) for node in cluster.nodes]
        there = set(cluster.names.values())
        alike = [
            numbers.setdefault(
                (card, frozenset(node.labels), frozenset(node.reserved_for), row in there), len(numbers)
            )
            for row, (card, node) in enumerate(zip(card_numbers, cluster.nodes, strict=True))
        ]
        open_gpus = OpenGpus(cluster, alike)
        return cls(
            open_gpus,
            EmptyGpus(open_gpus, alike, sum(node.gpus for node in cluster.nodes)),
            [node.gpu_model for node in cluster.nodes],
            card_numbers,
            {node.gpu_model for node in cluster.nodes if node.gpus},
            alike,
        )
