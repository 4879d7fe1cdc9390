"""What jobs take: the numbers of GPUs on which an elastic one may run, and what stays while one runs."""

from __future__ import annotations

from berth.errors import SchedulerError
from berth.model import Job, sized


def check_sizes(job: Job) -> None:
    """Refuse numbers of GPUs and speeds that make no sense. Raises SchedulerError."""
    sizes, speeds = [size for size, _ in job.elastic], [speed for _, speed in job.elastic]
    if (
        job.gpus not in sizes
        or job.nodes > 1
        or min(*sizes, *speeds) < 1
        or sizes != sorted(set(sizes))
        or speeds != sorted(speeds)
    ):
        raise SchedulerError(
            f"job '{job.id}' on {job.gpus} GPUs of {job.nodes} nodes is elastic by {job.elastic}; expected ascending"
            " numbers of GPUs with speeds per mille that do not fall, its own number among them, and at most 1 node"
        )


def is_resized(job: Job, waiting: Job | None) -> bool:
    """Whether a job is this elastic one on another number of GPUs."""
    return waiting is not None and job.gpus in dict(waiting.elastic) and sized(waiting, job.gpus) == job


def size_of(job: Job) -> tuple[object, ...]:
    """Whose it is and all that it takes: what stays as it is while it runs."""
    owner = (job.user, job.virtual_cluster, job.application)
    return (*owner, job.gpus, job.share, job.nodes, job.cpu_milli, job.mem_mib, job.models, job.labels)
