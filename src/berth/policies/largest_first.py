"""Largest first: the job that asks for the most GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from berth.model import Job
from berth.policies.keyed import keyed
from berth.queue import Queue


def _size(job: Job) -> tuple[int, int]:
    return (-job.gpus * job.share.milli, -job.cpu_milli)


@keyed(_size)
def largest_first(queue: Queue) -> Iterator[Job]:
    """By the GPUs asked for, the most first, parts of GPUs counted as parts; then by CPU, the first queued on ties.

    Decreasing order of size, as in first-fit decreasing: Johnson, "Near-optimal bin packing algorithms", PhD
    thesis, MIT, 1973.
    """
    return queue.by(_size)
