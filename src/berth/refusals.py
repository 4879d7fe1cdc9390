"""What a cluster refuses whatever is free on it, and how it says what is short."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import NoReturn

from berth.errors import ClusterError, DoesNotFit, NotAllowed
from berth.model import GpuSlot, Job, Node, Share

__all__ = ["check_job", "check_nodes", "check_traits", "named", "refuse_gpu"]


def check_nodes(nodes: tuple[Node, ...]) -> None:
    """Refuse nodes that make no cluster. Raises ClusterError."""
    if not nodes:
        raise ClusterError("a cluster needs at least one node")
    names: set[str] = set()
    for node, position in zip(nodes, count(1), strict=False):
        if node.name in names:
            raise ClusterError(f"two nodes are called '{node.name}' (the second is number {position})")
        names.add(node.name)
        amounts = (node.gpus, node.cpu_milli or 0, node.mem_mib or 0)
        if min(amounts) < 0:
            raise ClusterError(f"node '{node.name}' has a negative amount of something: {amounts}")


def check_job(job: Job) -> None:
    """Refuse a job that no cluster could hold. Raises NotAllowed."""
    if job.gpus < 0 or job.nodes < 0 or job.cpu_milli < 0 or job.mem_mib < 0:
        raise NotAllowed(f"job '{job.id}' asks for a negative amount of something")
    if job.nodes > 1 and job.gpus % job.nodes:
        raise NotAllowed(
            f"job '{job.id}' asks for {job.gpus} GPUs on exactly {job.nodes} nodes; each must give the same number"
        )
    if job.gpus and not 0 < job.share.milli <= 1000:
        raise NotAllowed(f"job '{job.id}' asks for {job.share.milli} milli of a GPU; a share is 1…1000")
    if job.share.mem_mib < 0:
        raise NotAllowed(f"job '{job.id}' asks for {job.share.mem_mib} MiB of GPU memory")


def check_traits(job: Job, node: Node) -> None:
    """Refuse a node without the GPU model or a label that the job asks for. Raises NotAllowed."""
    if job.models and job.gpus and (node.gpu_model is None or node.gpu_model.name not in job.models):
        has = f"GPU model '{node.gpu_model.name}'" if node.gpu_model else "no GPU model"
        raise NotAllowed(f"job '{job.id}' may run on {' or '.join(job.models)}; node '{node.name}' has {has}")
    for label in job.labels:
        if label not in node.labels:
            raise NotAllowed(
                f"job '{job.id}' asks for label '{label}', which node '{node.name}' does not carry"
            )


def refuse_gpu(job: Job, node: Node, slot: GpuSlot, share: Share, left: Share) -> NoReturn:
    """Say why a GPU of which so much is left cannot be given. Raises DoesNotFit, or NotAllowed where there is none."""
    where = f"GPU {slot.index} of node '{node.name}'"
    milli, mem = left
    if milli < 0:
        raise NotAllowed(f"job '{job.id}' names {where}, which has {node.gpus} GPUs")
    if milli < share.milli:
        raise DoesNotFit(f"job '{job.id}' takes {share.milli} milli of {where}, which has {milli} left")
    raise DoesNotFit(f"job '{job.id}' takes {share.mem_mib} MiB of {where}, which has {mem} left")


def named(slots: Sequence[GpuSlot]) -> str:
    """Slots in words, the first eight by their numbers."""
    shown = ", ".join(f"({node}, {index})" for node, index in slots[:8])
    return f"slots {shown}" + (f" and {len(slots) - 8} more" if len(slots) > 8 else "")
