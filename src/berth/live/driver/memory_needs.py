"""What jobs need of GPU memory after one like them ran out of it, and whether any GPU has as much."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from berth.knowledge.out_of_memory import NO_NEED, MemoryNeed, need_after
from berth.live.driver.site import SiteJob
from berth.model import WHOLE_GPU, Job, Share

MOST_KINDS = 1000
"""Kinds of jobs that ran out of memory and are remembered."""


class MemoryNeeds:
    """The need of jobs that are alike, for the kinds that ran out of memory last."""

    def __init__(self) -> None:
        self._of: OrderedDict[Hashable, MemoryNeed] = OrderedDict()

    def learn(self, job: SiteJob) -> None:
        """Note what a site remembers of a job."""
        if job.alike is None or not job.memory.mib:
            return
        known = self._of.pop(job.alike, NO_NEED)
        self._of[job.alike] = max(known, job.memory, key=lambda need: need.mib)
        if len(self._of) > MOST_KINDS:
            self._of.popitem(last=False)

    def forget(self, alike: Hashable) -> None:
        """Forget what was learned: a user says anew what such a job asks for."""
        self._of.pop(alike, None)

    def of(self, job: SiteJob, cards_mib: Callable[[SiteJob], Sequence[int]]) -> MemoryNeed:
        """What a waiting job needs: by its own attempts, or by those of jobs like it. `cards_mib`: memory of each GPU
        that it may use; asked only of jobs like one that ran out, for a cluster has thousands."""
        known = self._of.get(job.alike, NO_NEED) if job.alike is not None else NO_NEED
        raises = known.mib > max(job.memory.mib, job.job.share.mem_mib)
        if not (
            raises
            and job.job.retries
            and asks_for_memory(job.job)
            and fits(job.job, known.mib, cards_mib(job))
        ):
            return job.memory
        return MemoryNeed(job.memory.times, known.mib)


def asks_for_memory(job: Job) -> bool:
    """Whether a job asks for less than a whole GPU's memory."""
    return bool(job.gpus) and (job.share.mem_mib > 0 or job.share.milli < WHOLE_GPU.milli)


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
