"""The state that policies are shown: nodes and GPUs, what runs where, and what waits."""

from berth.cluster.amounts import UNCOUNTED, Amounts, Request
from berth.cluster.cluster import Cluster
from berth.cluster.node_changes import NodeChanges
from berth.cluster.queue import Key, Lane, Queue
from berth.cluster.running import PLACE_MILLI, Part, Running, parts_of
from berth.cluster.usage import Account, Usage
