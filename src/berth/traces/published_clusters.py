"""The clusters on which published traces were recorded, if their files do not list them."""

from __future__ import annotations

from typing import Final

from berth.gpu_models import gpu_model
from berth.model import Node

PAI_MACHINES: Final = (
    (798, "P100", 2, 64, 512),
    (497, "T4", 2, 96, 512),
    (280, "MISC", 8, 96, 512),
    (135, "V100M32", 8, 96, 384),
    (83, "", 0, 96, 512),
    (59, "V100", 8, 96, 512),
    (45, "V100", 8, 96, 384),
)
"""Alibaba's `pai_machine_spec` by kind: machines, GPU type, GPUs, cores, memory (GiB) of each."""


def pai_nodes() -> tuple[Node, ...]:
    """Alibaba's PAI cluster of 2020 under made-up names: 1,897 machines with 6,742 GPUs."""
    return tuple(
        Node(f"pai-{kind}-{index:03d}", gpus, gpu_model(model) if gpus else None, cores * 1000, gib * 1024)
        for kind, (machines, model, gpus, cores, gib) in enumerate(PAI_MACHINES)
        for index in range(machines)
    )


def philly_nodes() -> tuple[Node, ...]:
    """Microsoft's Philly cluster of 2017: 2,490 GPUs in 552 servers.

    These are the totals that are given for the publisher's `cluster_machine_list`; that file itself, in an
    archive of 1 GB, was not counted here. With servers of two and of eight GPUs only, as it is described, the
    totals leave one answer: 321 of two and 231 of eight. The publisher's README shows 24 GB of memory for one
    GPU. Names of GPUs, and the servers' CPU and memory, are not known.
    """
    model = gpu_model("PHILLY")
    counts = (2,) * 321 + (8,) * 231
    return tuple(Node(f"philly-{number:03d}", gpus, model) for number, gpus in enumerate(counts))
