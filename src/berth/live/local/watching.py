"""What keeps GPUs from jobs beside other jobs: processes of no job, partitions that others made, lost GPUs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace

from berth.errors import BerthError
from berth.live.local.book import Book
from berth.live.local.cards import Cards, Look
from berth.live.local.entry import NODE_FAIL, RUNNING
from berth.live.local.messages import Event
from berth.live.local.runner import Runner
from berth.live.local.samples import keep_samples

LOOK_S = 2.0


class Watch:
    """Looks at the GPUs now and then, keeps samples, and says what is not to be given away."""

    def __init__(
        self,
        book: Book,
        cards: Cards,
        runner: Runner,
        samples: str,
        log: Callable[..., None],
        *,
        now_ms: Callable[[], int],
        act: Callable[[], None],
    ) -> None:
        """`samples` is the folder of what jobs used; `act` is called after each look."""
        self._book, self._cards, self._runner, self._samples = book, cards, runner, samples
        self._log, self._now_ms, self._act = log, now_ms, act
        self.looks: tuple[Look, ...] = ()
        self._held: dict[int, tuple[int, int]] = {}
        """What the brain knows that others hold, by the GPU's index."""
        self._suspects: frozenset[str] = frozenset()
        self._due = asyncio.Event()

    def soon(self) -> None:
        """Look now rather than later."""
        self._due.set()

    async def run(self) -> None:
        """Look, until cancelled; in a thread, because a driver may hang."""
        while self._cards.cards:
            self._due.clear()
            try:
                looks = await asyncio.to_thread(self._cards.look, self._runner.run_of)
                self.heed(self._without_ours(looks))
            except (OSError, BerthError) as error:
                self._log("no-look", why=str(error))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._due.wait(), LOOK_S)

    def _without_ours(self, looks: tuple[Look, ...]) -> tuple[Look, ...]:
        """Leave out the partitions of jobs that run. A partition of this queue without a job is removed; it is held
        until then if two looks in a row have seen it, because between them a job may have begun or ended."""
        runner = self._runner
        running = {runner.partition_of(entry) for entry in self._book.active.values()}
        left = {
            each.name
            for look in looks
            for each in look.partitions
            if runner.is_ours(each.name) and each.name not in running
        }
        lasting = frozenset(left & self._suspects)
        self._suspects = frozenset(left)
        for name in lasting:
            runner.remove_left(name)
        return tuple(
            replace(
                look,
                partitions=tuple(
                    each for each in look.partitions if not runner.is_ours(each.name) or each.name in lasting
                ),
            )
            for look in looks
        )

    def heed(self, looks: tuple[Look, ...]) -> None:
        """Keep samples of what runs, and lose jobs whose GPU is gone."""
        self.looks = looks
        book, now_ms = self._book, self._now_ms()
        running = (job for job in book.active.values() if job.state == RUNNING and job.slots)
        slots = {f"{job.id}-{job.start}": job.slots for job in running}
        keep_samples(self._samples, looks, now_ms, slots)
        for look in looks:
            if look.lost:
                for entry in list(book.active.values()):
                    if look.index in entry.slots and entry.stop != NODE_FAIL:
                        self._log("gpu-lost", gpu=look.index, job=entry.id)
                        book.lose(entry, now_ms)
        self._act()

    def others(self, drained: frozenset[int], *, anew: bool = False) -> Event | None:
        """What the brain may not give away, where that has changed; all of it for one that has just begun. None: it
        knows."""
        if anew:
            self._held.clear()
        changed = []
        taken = {look.index: look.taken for look in self.looks}
        for card in self._cards.cards:
            milli, mem_mib = (1000, card.mem_mib) if card.index in drained else taken.get(card.index, (0, 0))
            mem_mib = min(mem_mib, card.mem_mib)
            if self._held.get(card.index, (0, 0)) != (milli, mem_mib):
                self._held[card.index] = (milli, mem_mib)
                changed.append((card.index, milli, mem_mib))
        return {"event": "others", "slots": changed} if changed else None
