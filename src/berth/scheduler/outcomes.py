"""What becomes of a policy's decisions, as the scheduler hands them out."""

from __future__ import annotations

import re
from typing import NamedTuple

from berth.cluster import Running
from berth.errors import in_one_line
from berth.model import Job, Placement, Share, WakeAt


class Evicted(NamedTuple):
    """A running job was stopped, and is queued again."""

    run: Running


class Resized(NamedTuple):
    """A running job has another share of its GPUs."""

    run: Running
    before: Share


class Suspended(NamedTuple):
    """A running job has left its GPUs, and keeps what it has done."""

    run: Running


class Resumed(NamedTuple):
    """A suspended job runs on."""

    run: Running


class Refused(NamedTuple):
    """A decision that cannot be applied; nothing has changed."""

    decision: object
    why: str


class NeverFits(NamedTuple):
    """A waiting job that no nodes of today could hold if nothing else ran. It waits on, and in a strict queue it holds
    up those behind it: change it, withdraw it or bring nodes."""

    job: Job
    why: str


Outcome = Placement | Evicted | Suspended | Resumed | Resized | WakeAt | Refused | NeverFits


def malformed(placement: Placement, error: Exception, now_ms: int) -> str:
    """Why a placement whose values are of the wrong kind is refused."""
    return (
        f"at {now_ms} ms the policy starts job '{placement.job.id}' on slots {placement.slots!r} with share"
        f" {placement.share!r}; expected a tuple of GpuSlot(node, index) and a Share(milli, mem_mib):"
        f" {in_one_line(error)}"
    )


def returned_nonsense(policy: object, error: TypeError) -> str:
    """What is wrong with a policy that returned no decisions or cannot be called, and where the policy is."""
    code = getattr(policy, "__code__", None) or getattr(type(policy).__call__, "__code__", None)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    returned = re.fullmatch(r"'(\w+)' object is not iterable", str(error))
    if returned is None:
        return f"the policy cannot be asked: {error}; expected a function of queue, cluster and now_ms{where}"
    what = "None" if returned[1] == "NoneType" else f"a value of type {returned[1]}"
    return f"the policy returned {what}; expected it to yield decisions, or to return a list of them{where}"


def why_never(job: Job) -> str:
    """Why a job can start on none of today's nodes, in words."""
    if job.tasks:
        return (
            f"{job.min_tasks} tasks of gang '{job.gang}' ask for {job.gpus} GPUs, {job.cpu_milli} milli of CPU and"
            f" {job.mem_mib} MiB together{', on different nodes' if job.apart else ''}, and the nodes could not hold"
            " them if nothing else ran; change them, withdraw them or bring nodes"
        )
    parts = f"{job.nodes} parts of " if job.nodes > 1 else ""
    share = f" ({job.share.milli} milli and {job.share.mem_mib} MiB of each)" if job.gpus else ""
    on = f" on models {', '.join(job.models)}" if job.models and job.gpus else ""
    on += f" on nodes with the labels {', '.join(job.labels)}" if job.labels else ""
    return (
        f"job '{job.id}' asks for {parts}{job.gpus} GPUs{share}, {job.cpu_milli} milli of CPU and {job.mem_mib} MiB"
        f"{on}, and the nodes could not hold it if nothing else ran; change it, withdraw it or bring nodes"
    )
