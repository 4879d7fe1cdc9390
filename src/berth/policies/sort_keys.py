"""Orders by a key, which code that sorts only a part of the queue can use, and run times as keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Final, TypeVar

import numpy as np

from berth.arrays import IntArray
from berth.card_speeds import ALL_ALIKE, CardSpeeds, card_us
from berth.cluster import Cluster, Key, Queue
from berth.knowledge import Knowledge, believed_run_ms
from berth.model import FOREVER_MS, GpuSlot, Job, Node, slots_by_task, starting_tasks
from berth.policies.protocol import Keyed
from berth.traces.job_table import JobNumbers

Function = Callable[[Queue], Iterator[Job]]
KeyFunction = TypeVar("KeyFunction", bound=Key)

LARGEST_KEY: Final = 1 << 62
"""Kernels sort by whole numbers between the negative of this and this."""


class _Last:
    def __gt__(self, other: object) -> bool:
        return True

    def __lt__(self, other: object) -> bool:
        return False


LAST = _Last()
"""Greater than any job, to find the place behind an entry (key, serial, job) of a lane: (key, serial, LAST)."""


def keyed(key: Key, *, run_times: str = "") -> Callable[[Function], Function]:
    """Note on an order which key it sorts by, the first queued on ties, and which run times that goes by, if any."""

    def mark(order: Function) -> Function:
        setattr(order, "key", key)  # noqa: B010  a function has no such attribute, says mypy
        setattr(order, "run_times", run_times)  # noqa: B010
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

    With `stated`, what its user says goes first: the time limit, else the estimate. Where cards differ in speed, it is
    the time on the fastest card that the job may run on; `on` has the time on given slots.
    """

    def __init__(self, knowledge: Knowledge, *, stated: bool = False, speeds: CardSpeeds = ALL_ALIKE) -> None:
        self._knowledge = knowledge
        self._stated = stated
        self._speeds = speeds

    def __call__(self, job: Job) -> int:
        """The key of a job."""
        stated_ms = self.stated_ms(job)
        if stated_ms is not None:
            return stated_ms
        work_ms = self._work_ms(job)
        return card_us(work_ms * 1000, self._speeds.fastest(job)) // 1000 if self._speeds else work_ms

    def least(self, job: Job) -> int:
        """The least that `on` can be, whatever the slots."""
        return max(map(self, starting_tasks(job))) if job.tasks else self(job)

    def on(self, job: Job, slots: tuple[GpuSlot, ...], nodes: Sequence[Node]) -> int:
        """The run time on these slots of these nodes, ms; of a gang, that of the task that runs longest."""
        if job.tasks:
            return max(self.on(task, its, nodes) for task, its in slots_by_task(job, slots))
        stated_ms = self.stated_ms(job)
        if stated_ms is not None:
            return stated_ms
        work_ms = self._work_ms(job)
        if work_ms >= FOREVER_MS or not (self._speeds or job.elastic):
            return work_ms
        return -(-card_us(work_ms * 1000, self._speeds.on(job, slots, nodes)) // 1000)

    def column(self, numbers: JobNumbers) -> IntArray | None:
        """(J,): the key of each job, none of them elastic or a gang; None if more than the jobs themselves counts."""
        if not self._knowledge.certain or self._speeds:
            return None
        found: IntArray = numbers.work_ms
        if self._stated:
            for stated_ms in (numbers.estimate_ms, numbers.time_limit_ms):
                if len(stated_ms):
                    found = np.where(stated_ms > 0, stated_ms, found)
        return found

    def stated_ms(self, job: Job) -> int | None:
        """What its user says, ms; None where that does not count or nothing that makes sense is said."""
        if self._stated:
            for stated_ms in (job.time_limit_ms, job.estimate_ms):
                if stated_ms is not None and stated_ms > 0:
                    return stated_ms
        return None

    def _work_ms(self, job: Job) -> int:
        if self._knowledge.certain and job.work_ms is not None:
            return job.work_ms
        expected_ms = believed_run_ms(job, self._knowledge)
        return FOREVER_MS if expected_ms is None else expected_ms


OF_JOB: set[Key] = set()
"""Keys that a job's own fields alone tell, whenever they are asked."""
OF_KIND: set[Key] = set()
"""Those of them that all jobs of a kind have in common (`berth.traces.job_table.JobNumbers`)."""


def of_job(key: KeyFunction) -> KeyFunction:
    """Note that a key depends on the job's own fields alone."""
    OF_JOB.add(key)
    return key


def of_kind(key: KeyFunction) -> KeyFunction:
    """Note that a key is the same for all jobs of a kind."""
    OF_KIND.add(key)
    return of_job(key)


def keys_of(order: object, jobs: Sequence[Job], numbers: JobNumbers) -> IntArray | None:
    """(J,): the key of each job; None if the order has no such key, or it is not a whole number that fits."""
    key = key_of(order)
    if type(key) is ExpectedMs:
        return key.column(numbers)
    if not (isinstance(key, FunctionType) and key in OF_JOB):
        return None
    asked = map(jobs.__getitem__, numbers.kind_rows.tolist()) if key in OF_KIND else jobs
    keys = list(map(key, asked))
    if set(map(type, keys)) != {int} or max(map(abs, keys)) >= LARGEST_KEY:
        return None
    found: IntArray = np.array(keys, dtype=np.int64)
    return found[numbers.kind] if key in OF_KIND else found


def key_of(order: object) -> Key | None:
    """The key that an order sorts by; None where it does not say or goes by more than the job."""
    return order.key if isinstance(order, Keyed) and callable(order.key) else None


@of_kind
def as_queued(job: Job) -> int:
    """The key of first in, first out: all are equal."""
    return 0
