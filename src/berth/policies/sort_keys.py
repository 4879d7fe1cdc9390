"""Orders that are a key: what they sort by can be told to those who sort a part of the queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from berth.cluster import Cluster, Key, Queue
from berth.model import Job

__all__ = ["LAST", "OfQueue", "as_queued", "key_of", "keyed"]

Function = Callable[[Queue], Iterator[Job]]


class _Last:
    def __gt__(self, other: object) -> bool:
        return True

    def __lt__(self, other: object) -> bool:
        return False


LAST = _Last()
"""Greater than any job, to find the place behind an entry (key, serial, job) of a lane: (key, serial, LAST)."""


def keyed(key: Key) -> Callable[[Function], Function]:
    """Note on an order which key it sorts by, the first queued on ties."""

    def mark(order: Function) -> Function:
        setattr(order, "key", key)  # noqa: B010  a function has no such attribute, says mypy
        return order

    return mark


class OfQueue:
    """An order that is a function of the queue alone, as one that is given the cluster and the time too."""

    def __init__(self, function: Function) -> None:
        self.function = function
        if (key := getattr(function, "key", None)) is not None:
            self.key = key

    def __call__(self, queue: Queue, cluster: Cluster | None = None, now_ms: int = 0) -> Iterator[Job]:
        """The function's order."""
        return self.function(queue)


def key_of(order: object) -> Key | None:
    """The key that an order sorts by; None where it does not say or goes by more than the job."""
    key: Any = getattr(order, "key", None)
    return key if callable(key) else None


def as_queued(job: Job) -> int:
    """The key of first in, first out: all are equal."""
    return 0
