"""The clusters of published traces whose jobs `formats` maps.

SenseTime's Helios, as its publishers have it or in fleetsim's columns: Hu, Sun, Yan, Wen and Zhang, *Characterization
and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters*, SC 2021; published as
github.com/S-Lab-System-Group/HeliosData.

Helios gives each virtual cluster nodes of its own, of eight GPUs each. They are known where the publisher's
`cluster_gpu_number.csv` lies beside the file (the most GPUs that each virtual cluster ever had, over the days
of that table) or where a comment of the file tells them (`per-VC pool sizes (nodes, 8 GPU/node): vcvGl=20`).
Each node then carries the name of its virtual cluster as a label, and each job asks for it.
"""

from __future__ import annotations

import re
from pathlib import Path

from berth.errors import TraceError
from berth.gpu_models import gpu_model
from berth.model import Node
from berth.traces.fields import count
from berth.traces.nodes import nodes_from_csv
from berth.traces.opening import open_table
from berth.traces.table import CsvTable, Table

_GPUS_PER_NODE = 8
_POOLS = re.compile(r"per-VC pool sizes \(nodes, ([0-9]{1,3}) GPU/node\): *(.+)")
_POOL = re.compile(r"([^\s,=]+)=([0-9]{1,6})")


def helios_nodes(table: Table) -> tuple[Node, ...] | None:
    """The nodes of each virtual cluster, from `cluster_gpu_number.csv` beside the file; None without it."""
    other_table = Path(table.path).parent / "cluster_gpu_number.csv"
    if not other_table.exists():
        return None
    with open_table(str(other_table)) as counted:
        pools = [name for name in counted.header if name not in ("date", "total")]
        fields = [count(name) for name in pools]
        most = dict.fromkeys(pools, 0)
        for line, row in counted.rows():
            for field in fields:
                most[field.name] = max(most[field.name], field.check(counted, line, row))
    if not any(most.values()):
        raise TraceError(str(other_table), "GPUs of at least one virtual cluster")
    return _nodes({name: -(-gpus // _GPUS_PER_NODE) for name, gpus in most.items()}, _GPUS_PER_NODE)


def canonical_nodes(table: Table) -> tuple[Node, ...] | None:
    """The nodes of each virtual cluster, from the file's comments; None where none tells them."""
    comments = table.comments if isinstance(table, CsvTable) else ()
    for comment in comments:
        if found := _POOLS.search(comment):
            pools = {name: int(nodes) for name, nodes in _POOL.findall(found[2])}
            if any(pools.values()):
                return _nodes(pools, int(found[1]))
    return None


def acme_nodes(table: Table) -> tuple[Node, ...]:
    """The cluster of a log of Acme: Kalos where it tells the memory of its pods, otherwise Seren.

    Both have nodes of eight A100 80 GB and 128 cores; Seren 286 with 1 TiB, Kalos 302 with 2 TiB (Hu and others,
    Characterization of Large Language Model Development in the Datacenter, NSDI 2024, table 1).
    """
    name, number, gib = ("kalos", 302, 2048) if "mem_per_pod_GB" in table.header else ("seren", 286, 1024)
    model = gpu_model("A100-80")
    return tuple(Node(f"{name}-{at:03d}", 8, model, 128_000, gib * 1024) for at in range(number))


def spot_nodes(table: Table) -> tuple[Node, ...] | None:
    """Alibaba's `node_info_df.csv` where it lies in the folder of the jobs."""
    node_file = Path(table.path).parent / "node_info_df.csv"
    return nodes_from_csv(str(node_file)) if node_file.exists() else None


def _nodes(pools: dict[str, int], gpus: int) -> tuple[Node, ...]:
    """The publisher tells "Volta" or "Pascal" for whole clusters and no card, so the model has no name here."""
    model = gpu_model("HELIOS")
    return tuple(
        Node(f"{pool}-{number:03d}", gpus, model, labels=(pool,))
        for pool, nodes in pools.items()
        for number in range(nodes)
    )
