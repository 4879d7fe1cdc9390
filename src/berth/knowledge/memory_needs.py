"""What jobs ask for of GPU memory: by what is believed of them, and after one like them ran out of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from berth.errors import BerthError
from berth.knowledge.belief import Knowledge, promised_mib
from berth.knowledge.out_of_memory import NO_NEED, MemoryNeed, need_after
from berth.model import WHOLE_GPU, Job, Share

MOST_KINDS = 1000
"""Kinds of jobs that ran out of memory and are remembered."""
PROMISE_QUANTILE = 0.6
"""A job whose memory may grow is promised what its use stays below with this probability."""
PROMISE_STEPS = 16
"""Waiting jobs get a new promise if what they are believed to need has changed by one part in 16."""


class MemoryNeeds:
    """The need of jobs that are alike, for the kinds that ran out of memory last."""

    def __init__(self) -> None:
        self._of: OrderedDict[Hashable, MemoryNeed] = OrderedDict()

    def learn(self, alike: Hashable, need: MemoryNeed) -> None:
        """Note what a job needs; None is like no other."""
        if alike is None or not need.mib:
            return
        known = self._of.pop(alike, NO_NEED)
        self._of[alike] = max(known, need, key=lambda each: each.mib)
        if len(self._of) > MOST_KINDS:
            self._of.popitem(last=False)

    def forget(self, alike: Hashable) -> None:
        """Forget what was learned: a user says anew what such a job asks for."""
        self._of.pop(alike, None)

    def of(
        self, job: Job, alike: Hashable, own: MemoryNeed, cards_mib: Callable[[], Sequence[int]]
    ) -> MemoryNeed:
        """What a waiting job needs: by its own attempts, or by those of jobs like it. `cards_mib`: memory of each GPU
        that it may use; asked only of jobs like one that ran out, for a cluster has thousands."""
        known = self._of.get(alike, NO_NEED) if alike is not None else NO_NEED
        raises = known.mib > max(own.mib, job.share.mem_mib)
        if not (raises and job.retries and asks_for_memory(job) and fits(job, known.mib, cards_mib())):
            return own
        return MemoryNeed(own.times, known.mib)


def asks_for_memory(job: Job) -> bool:
    """Whether a job asks for less than a whole GPU's memory."""
    return bool(job.gpus) and (job.share.mem_mib > 0 or job.share.milli < WHOLE_GPU.milli)


def as_promised(job: Job, most_mib: int, knowledge: Knowledge, quantile: float = PROMISE_QUANTILE) -> Job:
    """A job whose memory may grow to `most_mib`, with what it is believed to need, but at least what it asks for; 0: it
    does not grow."""
    if not most_mib:
        return job
    try:
        mem_mib = promised_mib(job, knowledge, quantile)
    except BerthError:
        mem_mib = None
    if mem_mib is None:
        return job
    return replace(job, share=Share(job.share.milli, min(max(mem_mib, job.share.mem_mib), most_mib)))


def expected_mib(job: Job, knowledge: Knowledge) -> int:
    """What a job is expected to need at most of each GPU, 0 where nothing is known."""
    try:
        return (promised_mib(job, knowledge, 0.5) or 0) if job.gpus else 0
    except BerthError:
        return 0


def as_needed(job: Job, need: MemoryNeed) -> Job:
    if not need.mib or not asks_for_memory(job):
        return job
    share = WHOLE_GPU if need.alone else Share(job.share.milli, max(job.share.mem_mib, need.mib))
    return job if share == job.share else replace(job, share=share)


def fits(job: Job, mem_mib: int, cards_mib: Sequence[int]) -> bool:
    return sum(card_mib >= mem_mib for card_mib in cards_mib) >= job.gpus


def need_of_next_attempt(before: MemoryNeed, held_mib: int, cards_mib: Sequence[int]) -> MemoryNeed:
    """The need after an attempt ran out of memory, within what the largest of these GPUs has; above that if even what
    it held is more than any of them has."""
    need, most_mib = need_after(before, held_mib), max(cards_mib, default=0)
    return need._replace(mib=min(need.mib, most_mib)) if most_mib >= held_mib else need
