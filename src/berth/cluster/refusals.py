"""Why a cluster does not take a placement or a resize, and what is short."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import NoReturn

import numpy as np

from berth.cluster.rows import NodeRows
from berth.cluster.running import Part, Running, account_of, parts_of
from berth.errors import DoesNotFit, NotAllowed
from berth.model import NO_GPU, WHOLE_GPU, GpuSlot, Job, Node, Placement, Share


def _check_traits(job: Job, node: Node) -> None:
    """Refuse a node without the GPU model or a label that the job asks for. Raises NotAllowed."""
    if job.models and job.gpus and (node.gpu_model is None or node.gpu_model.name not in job.models):
        has = f"GPU model '{node.gpu_model.name}'" if node.gpu_model else "no GPU model"
        raise NotAllowed(f"job '{job.id}' may run on {' or '.join(job.models)}; node '{node.name}' has {has}")
    if node.reserved_for and job.user not in node.reserved_for:
        raise NotAllowed(
            f"job '{job.id}' is of user '{job.user}'; node '{node.name}' is reserved for {', '.join(node.reserved_for)}"
        )
    for label in job.labels:
        if label not in node.labels:
            raise NotAllowed(
                f"job '{job.id}' asks for label '{label}', which node '{node.name}' does not carry"
            )


def refuse(cluster: NodeRows, placement: Placement, *, runs: bool) -> NoReturn:
    """Say why a placement that the cluster does not take cannot be; `runs` if its job runs already. Raises NotAllowed
    or DoesNotFit."""
    job, slots, share, _, best_effort = placement
    gpus, number = job.gpus, len(slots)
    if runs:
        raise NotAllowed(f"job '{job.id}' cannot be placed: it is running already")
    if not number:
        raise NotAllowed(f"job '{job.id}' cannot be placed on no slots")
    if best_effort and not placement.shared:
        raise NotAllowed(f"job '{job.id}': a placement by best effort is shared; say shared=True")
    most_mem_mib = share.mem_mib if best_effort else job.share.mem_mib
    most_milli = job.share.milli if best_effort else WHOLE_GPU.milli
    if gpus and not (0 < share.milli <= most_milli and 0 <= share.mem_mib <= most_mem_mib):
        raise NotAllowed(
            f"job '{job.id}' may be given 1…{most_milli} milli and 0…{job.share.mem_mib} MiB of a GPU;"
            f" the placement gives {share.milli} milli and {share.mem_mib} MiB"
        )
    if len(set(slots)) < number:
        raise NotAllowed(f"job '{job.id}' names the same slot twice: {named(slots)}")
    if gpus != (0 if slots[0].index == NO_GPU else number):
        raise NotAllowed(f"job '{job.id}' asks for {gpus} GPUs, not for {named(slots)}")
    _refuse_slots(cluster, placement)
    parts = parts_of(job, slots)
    if job.nodes and (
        len(parts) != job.nodes or (number > 1 and any(part.gpus * job.nodes != gpus for part in parts))
    ):
        raise NotAllowed(
            f"job '{job.id}' asks for {gpus} GPUs on exactly {job.nodes} nodes, the same number on each;"
            f" the placement gives {[part.gpus for part in parts]}"
        )
    for part in parts:
        _refuse_part(cluster, job, part)
    raise NotAllowed(f"job '{job.id}' cannot be placed on {named(slots)}")


def _refuse_slots(cluster: NodeRows, placement: Placement) -> None:
    """Refuse slots that there are not, that are not what the job asks for, or that have too little left."""
    job, slots = placement.job, placement.slots
    milli, gpu_mem_mib = account_of(placement)
    rows, width = cluster.free.milli.shape
    for node, index in slots:
        if not all(isinstance(number, (int, np.integer)) for number in (node, index)):
            raise NotAllowed(
                f"job '{job.id}' names slot ({node!r}, {index!r}); a slot is two whole numbers, node and index"
            )
        if not 0 <= node < rows or not NO_GPU <= index < width:
            raise NotAllowed(
                f"job '{job.id}': there is no slot ({node}, {index}) in a cluster of {rows} nodes"
            )
        if (index == NO_GPU) != (job.gpus == 0):
            raise NotAllowed(
                f"job '{job.id}' asks for {job.gpus} GPUs; {named(slots)} are GPUs in part and in part none"
            )
        if job.gpus == 0:
            continue
        where = f"GPU {index} of node '{cluster.nodes[node].name}'"
        left, mem_left = int(cluster.free.milli[node, index]), int(cluster.free.gpu_mem_mib[node, index])
        if left < 0:
            raise NotAllowed(f"job '{job.id}' names {where}, which has {cluster.nodes[node].gpus} GPUs")
        if left < milli:
            raise DoesNotFit(f"job '{job.id}' takes {milli} milli of {where}, which has {left} left")
        if mem_left < gpu_mem_mib:
            raise DoesNotFit(f"job '{job.id}' takes {gpu_mem_mib} MiB of {where}, which has {mem_left} left")
        if placement.share.mem_mib > (card_mib := int(cluster.capacity.gpu_mem_mib[node, index])):
            raise DoesNotFit(
                f"job '{job.id}' may use {placement.share.mem_mib} MiB of {where}, which has {card_mib} in all"
            )


def _refuse_part(cluster: NodeRows, job: Job, part: Part) -> None:
    """Refuse a node that is lost, not of the kind that the job asks for, or has too little CPU or memory left."""
    node = cluster.nodes[part.node]
    if not cluster.up[part.node]:
        raise NotAllowed(f"job '{job.id}' cannot be placed on node '{node.name}': it is lost")
    _check_traits(job, node)
    for takes, left, unit in (
        (part.cpu_milli, int(cluster.free.cpu_milli[part.node]), "CPU milli"),
        (part.mem_mib, int(cluster.free.mem_mib[part.node]), "MiB"),
    ):
        if takes > left:
            raise DoesNotFit(
                f"job '{job.id}' takes {takes} {unit} of node '{node.name}', which has {left} left"
            )


def refuse_resize(cluster: NodeRows, run: Running, share: Share) -> None:
    """Refuse another share of a run's GPUs if that cannot be. Raises NotAllowed or DoesNotFit."""
    job = run.job
    if not job.gpus:
        raise NotAllowed(f"job '{job.id}' has no GPU of which it could have another share")
    amounts = tuple(share) if isinstance(share, tuple) else ()
    whole = len(amounts) == 2 and all(isinstance(amount, Integral) for amount in amounts)
    if not whole or not (0 < amounts[0] <= 1000 and amounts[1] >= 0):
        raise NotAllowed(
            f"job '{job.id}' cannot have {share!r} of a GPU; expected a Share of 1…1000 milli and 0 MiB or more"
        )
    taken = account_of(Placement(job, run.slots, share, run.shared, run.best_effort))
    more_milli, more_mib = taken.milli - run.taken.milli, taken.mem_mib - run.taken.mem_mib
    for slot in run.slots:
        where = f"GPU {slot.index} of node '{cluster.nodes[slot.node].name}'"
        left, card_mib = cluster.free_on(slot), int(cluster.capacity.gpu_mem_mib[slot])
        if share.mem_mib > max(card_mib, run.share.mem_mib):
            raise DoesNotFit(
                f"job '{job.id}' may use {share.mem_mib} MiB of {where}, which has {card_mib} in all"
            )
        if more_milli > max(0, left.milli):
            raise DoesNotFit(
                f"job '{job.id}' takes {more_milli} milli more of {where}, which has {left.milli} left"
            )
        if more_mib > max(0, left.mem_mib):
            raise DoesNotFit(
                f"job '{job.id}' takes {more_mib} MiB more of {where}, which has {left.mem_mib} left"
            )


def named(slots: Sequence[GpuSlot]) -> str:
    """Slots in words, the first eight by their numbers."""
    shown = ", ".join(f"({node}, {index})" for node, index in slots[:8])
    return f"slots {shown}" + (f" and {len(slots) - 8} more" if len(slots) > 8 else "")
