"""The state that policies are shown: nodes and GPUs, who runs where, and who waits."""

from berth.cluster.cluster import UNCOUNTED, Cluster, spreadable_gpus
from berth.cluster.queue import Key, Lane, Queue
from berth.cluster.running import Part, Running, parts_of
from berth.cluster.usage import Account, Usage

__all__ = [
    "UNCOUNTED", "Account", "Cluster", "Key", "Lane", "Part", "Queue", "Running", "Usage", "parts_of",
    "spreadable_gpus",
]  # fmt: skip
