"""First in, first out."""

from __future__ import annotations

from collections.abc import Iterator

from berth.model import Job
from berth.policies.keyed import as_queued, keyed
from berth.queue import Queue


@keyed(as_queued)
def fifo(queue: Queue) -> Iterator[Job]:
    """In the order in which the jobs were queued; a job that is queued again goes behind all others."""
    return iter(queue)
