"""Orders that are a key: what they sort by can be told to code that sorts a part of the queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from berth.card_speeds import ALL_ALIKE, CardSpeeds, card_us
from berth.cluster import Cluster, Key, Queue
from berth.knowledge import Knowledge, believed_run_ms
from berth.model import FOREVER_MS, Job
from berth.policies.protocol import Keyed

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
        if isinstance(function, Keyed):
            self.key = function.key

    def __call__(self, queue: Queue, cluster: Cluster | None = None, now_ms: int = 0) -> Iterator[Job]:
        """The function's order."""
        return self.function(queue)


class ExpectedMs:
    """A key: the run time that is believed of a job (its mean), ms; FOREVER_MS where nothing that makes sense is.

    With `said`, what its user says goes first: the time limit, else the estimate. Where cards differ in speed, it is
    the time on the fastest card that the job may run on, with `slowest` that on the slowest.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        *,
        said: bool = False,
        speeds: CardSpeeds = ALL_ALIKE,
        slowest: bool = False,
    ) -> None:
        self._knowledge = knowledge
        self._said = said
        self._speeds = speeds or None
        self._slowest = slowest

    def __call__(self, job: Job) -> int:
        """The key of a job."""
        if self._said:
            for said_ms in (job.time_limit_ms, job.estimate_ms):
                if said_ms is not None and said_ms > 0:
                    return said_ms
        expected_ms: int | None
        if self._knowledge.certain and job.work_ms is not None:
            expected_ms = job.work_ms
        else:
            expected_ms = believed_run_ms(job, self._knowledge)
        if self._speeds is not None and expected_ms is not None:
            least, most = self._speeds.span(job)
            return card_us(expected_ms * 1000, least if self._slowest else most) // 1000
        return FOREVER_MS if expected_ms is None else expected_ms


def key_of(order: object) -> Key | None:
    """The key that an order sorts by; None where it does not say or goes by more than the job."""
    return order.key if isinstance(order, Keyed) and callable(order.key) else None


def as_queued(job: Job) -> int:
    """The key of first in, first out: all are equal."""
    return 0
