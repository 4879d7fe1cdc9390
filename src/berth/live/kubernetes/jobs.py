"""A pod's ask as a job of the scheduler, on the cards that there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from berth.knowledge.out_of_memory import MemoryNeed
from berth.live.kubernetes.asks import Ask
from berth.model import WHOLE_GPU, GpuModel, Job, Share


class Cards:
    def __init__(self, models: Iterable[GpuModel]) -> None:
        self.models = frozenset(models)
        self.sizes_mib = sorted({model.mem_mib for model in self.models})
        """The memory of the different cards, the smallest first."""

    def called(self, words: Iterable[str]) -> tuple[str, ...]:
        """The names of the models that a user's words are about: equal, or beginning with one up to a hyphen. Words
        that are about none stay as they are, so that the job fits nowhere and says so."""
        words = tuple(words)
        starts = tuple(f"{word.lower()}-" for word in words)
        found = {model.name for model in self.models if f"{model.name.lower()}-".startswith(starts)}
        return tuple(sorted(found)) or words

    def variants(self, job: Job, ask: Ask) -> Iterator[Job]:
        """The same job for each size of card, where it asks for a part of the memory: that much of it in MiB, and the
        models of that size alone."""
        allowed = self.called(ask.models) or [model.name for model in self.models]
        for size_mib in self.sizes_mib:
            there = (model.name for model in self.models if model.mem_mib == size_mib)
            if models := sorted(name for name in there if name in allowed):
                mem_mib = max(ask.mem_mib, size_mib * ask.mem_milli // 1000)
                yield replace(job, models=tuple(models), share=Share(ask.milli, mem_mib))


def with_memory(ask: Ask, need: MemoryNeed, cards: Cards) -> Ask:
    """What a pod gets whose owner's pods ran out of GPU memory: as much as that one would have needed and a margin;
    after the third time whole GPUs, by itself, whatever profiles say of it."""
    largest_mib = max(cards.sizes_mib, default=0)
    if need.alone or (largest_mib and need.mib > largest_mib):
        return replace(ask, milli=WHOLE_GPU.milli, mem_mib=0, mem_milli=0, application="")
    if ask.milli == WHOLE_GPU.milli and not ask.mem_mib and not ask.mem_milli:
        return ask
    return replace(ask, mem_mib=max(ask.mem_mib, need.mib))


def job_of(uid: str, namespace: str, submit_ms: int, ask: Ask, labels: tuple[str, ...], cards: Cards) -> Job:
    """The job of a pod. One that asks for a part of a card's memory is for the smallest cards first;
    `PodSite.look_for_other_card` offers it others."""
    job = Job(
        id=uid,
        submit_ms=submit_ms,
        work_ms=None,
        user=namespace,
        application=ask.application,
        gpus=ask.gpus,
        share=Share(ask.milli, ask.mem_mib),
        cpu_milli=ask.cpu_milli,
        mem_mib=ask.host_mem_mib,
        models=cards.called(ask.models) if ask.gpus else (),
        labels=labels,
        priority=ask.priority,
        time_limit_ms=ask.time_limit_ms,
        estimate_ms=ask.estimate_ms,
        virtual_cluster=namespace,
        retries=0,  # its owner makes another pod
    )
    if ask.gpus and ask.mem_milli:
        if len(cards.sizes_mib) == 1 and not ask.models:
            mem_mib = max(ask.mem_mib, cards.sizes_mib[0] * ask.mem_milli // 1000)
            return replace(job, share=Share(ask.milli, mem_mib))
        return next(cards.variants(job, ask), job)
    return job
