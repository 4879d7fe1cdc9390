"""What no cluster can have: nodes and jobs that make no sense."""

from __future__ import annotations

from numbers import Integral

from berth.errors import ClusterError, NotAllowed
from berth.model import Job, Node

MOST = 2**39
"""Of an amount of a node; what is not known is twice that."""
MOST_GPUS = 1 << 12
"""Of a node."""


def check_nodes(nodes: tuple[Node, ...]) -> None:
    """Refuse nodes that make no cluster. Raises ClusterError."""
    if not nodes:
        raise ClusterError("a cluster needs at least one node")
    names: set[str] = set()
    for node in nodes:
        if not isinstance(node, Node):
            raise ClusterError(f"node number {nodes.index(node) + 1} is {node!r}; expected a berth.Node")
        if node.name in names:
            position = len(names) + 1
            raise ClusterError(f"two nodes are called '{node.name}' (the second is number {position})")
        names.add(node.name)
        gpus, cpu_milli, mem_mib = node.gpus, node.cpu_milli or 0, node.mem_mib or 0
        if not (
            type(gpus) is type(cpu_milli) is type(mem_mib) is int
            and 0 <= gpus <= MOST_GPUS
            and 0 <= cpu_milli <= MOST
            and 0 <= mem_mib <= MOST
            and (node.gpu_model is None or node.gpu_model.mem_mib >= 0)
        ):
            _check_amounts(node)


def _check_amounts(node: Node) -> None:
    """Refuse what a node cannot have. Raises ClusterError."""
    amounts = (node.gpus, node.cpu_milli or 0, node.mem_mib or 0)
    if not all(isinstance(amount, Integral) and amount >= 0 for amount in amounts):
        raise ClusterError(
            f"node '{node.name}' has {node.gpus!r} GPUs, {node.cpu_milli!r} CPU milli and {node.mem_mib!r} MiB;"
            " expected whole numbers, 0 or more"
        )
    if max(amounts) > MOST or node.gpus > MOST_GPUS:
        raise ClusterError(
            f"node '{node.name}' has {node.gpus} GPUs, {node.cpu_milli} CPU milli and {node.mem_mib} MiB; expected"
            f" at most {MOST_GPUS} GPUs and {MOST} of the others"
        )
    if node.gpu_model is not None and node.gpu_model.mem_mib < 0:
        raise ClusterError(
            f"node '{node.name}' has GPUs with {node.gpu_model.mem_mib} MiB; expected 0 or more"
        )


def check_job(job: Job) -> None:
    """Refuse a job that no cluster could hold. Raises NotAllowed."""
    asked = job.gpus, job.nodes, job.cpu_milli, job.mem_mib, job.share.milli, job.share.mem_mib
    if not all(isinstance(amount, Integral) for amount in asked) or min(asked[:4]) < 0:
        raise NotAllowed(
            f"job '{job.id}' asks for {job.gpus!r} GPUs ({job.share!r}) on {job.nodes!r} nodes, {job.cpu_milli!r} CPU"
            f" milli and {job.mem_mib!r} MiB; expected whole numbers, 0 or more"
        )
    if job.nodes > 1 and job.gpus % job.nodes:
        raise NotAllowed(
            f"job '{job.id}' asks for {job.gpus} GPUs on exactly {job.nodes} nodes; each must give the same number"
        )
    if job.gpus and not 0 < job.share.milli <= 1000:
        raise NotAllowed(f"job '{job.id}' asks for {job.share.milli} milli of a GPU; a share is 1…1000")
    if job.share.mem_mib < 0:
        raise NotAllowed(f"job '{job.id}' asks for {job.share.mem_mib} MiB of GPU memory")
