"""What policies that share GPUs keep of a cluster's nodes and of jobs on them, from decision to decision."""

from __future__ import annotations

from dataclasses import dataclass, field

from berth.cluster import Cluster
from berth.model import GpuModel
from berth.policies.colocation.forecast import Candidate
from berth.policies.colocation.rooms import Rooms
from berth.policies.colocation.waits import EmptyGpus

__all__ = ["MOST_CANDIDATES", "Kept"]

MOST_CANDIDATES = 100_000
"""Different jobs that are kept as forecasts see them."""


@dataclass(slots=True)
class Kept:
    """What is kept of the nodes of a cluster and of jobs on them, on the cluster's memo."""

    rooms: Rooms
    """Which GPUs have room, and which of them declined."""
    empty: EmptyGpus
    """When which of them are expected to be empty."""
    models: list[GpuModel | None] = field(default_factory=list)
    """Of each node."""
    cards: set[GpuModel | None] = field(default_factory=set)
    """The models of nodes that have GPUs."""
    alike: list[int] = field(default_factory=list)
    """A number of each node; those of one number are the same to every job that shares."""
    may: dict[tuple[int, str, int, int], bool] = field(default_factory=dict)
    """Whether a job may run on a node: by request type, application, work in μs and number of the node."""
    candidates: dict[tuple[str, int], Candidate] = field(default_factory=dict)
    """Waiting jobs as forecasts see them, by application and work, μs."""
    peaks: dict[tuple[str, GpuModel | None], int] = field(default_factory=dict)
    """GPU memory that an application is given on a model, MiB."""
    fits_somewhere: dict[tuple[object, ...], bool] = field(default_factory=dict)
    """Whether a job is believed to fit on any card, by application, models allowed and work, μs."""
    woken_ms: int = -1
    """The last time at which it asked to be woken."""

    @classmethod
    def of(cls, cluster: Cluster) -> Kept:
        """What is kept of a cluster that is new, or whose nodes have changed."""
        numbers: dict[tuple[object, ...], int] = {}
        alike = [
            numbers.setdefault((node.gpu_model, frozenset(node.labels)), len(numbers))
            for node in cluster.nodes
        ]
        rooms = Rooms(cluster, alike)
        return cls(
            rooms,
            EmptyGpus(rooms, alike, sum(node.gpus for node in cluster.nodes)),
            [node.gpu_model for node in cluster.nodes],
            {node.gpu_model for node in cluster.nodes if node.gpus},
            alike,
        )
