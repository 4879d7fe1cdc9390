"""The jobs of `slurm_comparison.py` replayed without Slurm: how far can the compute of a card be oversubscribed?

    python bench/slurm_replay.py [--seeds 12] [--jobs 200]

There are twelve cards, whose kernels run in the order of their launch. A job begins 0.5 s after it was placed. Slurm's
shards start jobs in the order of submission, on the first card with enough eighths. berth starts the longest job first,
on the card with the most left. It begins knowing nothing, and learns memory and compute as `berth slurm run` does.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import mean

from berth.live.slurm.measured_use import MeasuredUse, kind_of
from berth.model import Job, Share
from harness import save
from local_queue_peers import CARD_MIB, Application, interval
from slurm_comparison import SHARDS, applications

GPUS = 12
BEGINS_MS = 500
LIMIT_MS = 300_000


@dataclass(slots=True)
class Card:
    """A card: what its jobs take by their numbers, and the launched kernels."""

    taken: dict[int, Share] = field(default_factory=dict)
    launched: deque[int] = field(default_factory=deque)
    busy: bool = False

    def left(self) -> Share:
        return Share(
            1000 - sum(each.milli for each in self.taken.values()),
            CARD_MIB - sum(each.mem_mib for each in self.taken.values()),
        )


class Replay:
    """One replay; `run` gives the total time in ms."""

    def __init__(self, jobs: list[Application], use: MeasuredUse | None) -> None:
        """Without `use` Slurm's shards decide."""
        self.jobs, self.use = jobs, use
        self.waiting = dict.fromkeys(range(len(jobs)))
        self.cards = [Card() for _ in range(GPUS)]
        self.ran_ms: dict[str, list[int]] = defaultdict(list)
        self.steps = [job.steps for job in jobs]
        self.begun = [0] * len(jobs)
        self.now = 0
        self._events: list[tuple[int, int, Callable[[int, int], None], int, int]] = []
        self._count = itertools.count()

    def run(self) -> int:
        """Replay until all jobs have ended."""
        self._decide()
        while self._events:
            self.now, _, what, job, card = heapq.heappop(self._events)
            what(job, card)
        assert not self.waiting
        return self.now

    def _at(self, ms: int, what: Callable[[int, int], None], job: int, card: int) -> None:
        heapq.heappush(self._events, (ms, next(self._count), what, job, card))

    def _decide(self) -> None:
        for job, card, share in list(self._by_shards() if self.use is None else self._by_use(self.use)):
            del self.waiting[job]
            self._at(self.now + BEGINS_MS, self._begin, job, card)
            self.cards[card].taken[job] = share

    def _by_shards(self) -> Iterator[tuple[int, int, Share]]:
        left = [card.left().milli for card in self.cards]
        for job in self.waiting:
            milli = 1000 // SHARDS * -(-self.jobs[job].declared_mib * SHARDS // CARD_MIB)
            card = next((at for at in range(GPUS) if left[at] >= milli), None)
            if card is not None:
                left[card] -= milli
                yield job, card, Share(milli, 0)

    def _by_use(self, use: MeasuredUse) -> Iterator[tuple[int, int, Share]]:
        left = [card.left() for card in self.cards]
        for job in sorted(self.waiting, key=lambda job: -self._believed_ms(self.jobs[job])):
            share = use.share(_job(self.jobs[job]))
            fits = [
                at
                for at in range(GPUS)
                if left[at].milli >= share.milli and left[at].mem_mib >= share.mem_mib
            ]
            if fits:
                card = max(fits, key=lambda at: (left[at].milli, -at))
                left[card] = Share(left[card].milli - share.milli, left[card].mem_mib - share.mem_mib)
                yield job, card, share

    def _believed_ms(self, job: Application) -> float:
        ran = self.ran_ms[job.name]
        return mean(ran) if ran else LIMIT_MS

    def _begin(self, job: int, card: int) -> None:
        self.begun[job] = self.now
        self._launch(job, card)

    def _launch(self, job: int, card: int) -> None:
        if not self.steps[job]:
            self._end(job, card)
            return
        self.cards[card].launched.append(job)
        self._next(card)

    def _next(self, card: int) -> None:
        here = self.cards[card]
        if not here.busy and here.launched:
            here.busy, job = True, here.launched.popleft()
            self._at(self.now + self.jobs[job].kernel_ms, self._computed, job, card)

    def _computed(self, job: int, card: int) -> None:
        self.cards[card].busy = False
        self.steps[job] -= 1
        self._at(self.now + self.jobs[job].think_ms, self._launch, job, card)
        self._next(card)

    def _end(self, job: int, card: int) -> None:
        one, ran_ms = self.jobs[job], self.now - self.begun[job]
        del self.cards[card].taken[job]
        self.ran_ms[one.name].append(ran_ms)
        if self.use is not None:
            told_ms = ran_ms // 1000 * 1000  # Slurm tells whole seconds
            gpu_ms = one.kernel_ms * one.steps
            self.use.ended(kind_of(_job(one)), told_ms, one.mem_mib, gpu_ms, completed=True)
        self._decide()


def _job(one: Application) -> Job:
    share = Share(max(1, 1000 * one.declared_mib // CARD_MIB), one.declared_mib)
    return Job(one.name, 0, None, user="ann", application=one.name, share=share)


WAYS: dict[str, Callable[[], MeasuredUse]] = {
    "declared memory, no bound on compute": lambda: MeasuredUse(1000, memory=False),
    "declared memory, 150 % of compute": lambda: MeasuredUse(150, memory=False),
    **{
        f"measured memory, {pct} % of compute": lambda pct=pct: MeasuredUse(pct)  # type: ignore[misc]
        for pct in (100, 130, 140, 150, 160, 180, 1000)
    },
}


def main() -> None:
    """Replay each seed in all ways."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=200)
    asked = parser.parse_args()
    workloads = [applications(seed, asked.jobs) for seed in range(asked.seeds)]
    shards = [Replay(jobs, None).run() for jobs in workloads]
    bound = [sum(job.kernel_ms * job.steps for job in jobs) / GPUS for jobs in workloads]
    print(f"shards {mean(shards) / 1000:.1f} s; no schedule is below {mean(bound) / 1000:.1f} s")
    found: dict[str, object] = {"shards_s": mean(shards) / 1000, "bound_s": mean(bound) / 1000}
    for name, make in WAYS.items():
        more = [
            100 * (Replay(jobs, make()).run() / before - 1)
            for jobs, before in zip(workloads, shards, strict=True)
        ]
        middle, half = interval(more)
        found[name] = {"mean_pct": round(middle, 1), "half_pct": round(half, 1)}
        print(f"{name}: {middle:+.1f} % ± {half:.1f}", flush=True)
    save("slurm_replay", found)


if __name__ == "__main__":
    main()
