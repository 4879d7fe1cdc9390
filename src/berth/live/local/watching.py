"""What keeps GPUs from jobs beside other jobs: processes of no job, partitions that others made, lost GPUs."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from berth.errors import BerthError
from berth.live.local.cards import Look
from berth.live.local.entry import NODE_FAIL, RUNNING
from berth.live.local.samples import keep_samples

if TYPE_CHECKING:
    from berth.live.local.broker import Broker

__all__ = ["Watch"]

LOOK_S = 2.0


class Watch:
    """Looks at the GPUs now and then, and tells the brain what is not to be given away."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.looks: tuple[Look, ...] = ()
        self._told: dict[int, tuple[int, int]] = {}
        self._suspects: frozenset[str] = frozenset()
        self._due = asyncio.Event()

    def soon(self) -> None:
        """Look now rather than later."""
        self._due.set()

    async def run(self) -> None:
        """Look, until cancelled; in a thread, because a driver may hang."""
        broker = self._broker
        while broker.cards.cards:
            self._due.clear()
            try:
                looks = await asyncio.to_thread(broker.cards.look, broker.runner.run_of)
                self.heed(self._without_ours(looks))
            except (OSError, BerthError) as error:
                broker.log("no-look", why=str(error))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._due.wait(), LOOK_S)

    def _without_ours(self, looks: tuple[Look, ...]) -> tuple[Look, ...]:
        """Leave out the partitions of jobs that run. A partition of this queue without a job is removed; it is held
        until then if two looks in a row have seen it, because between them a job may have begun or ended."""
        runner = self._broker.runner
        running = {runner.partition_of(entry) for entry in self._broker.book.active.values()}
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
        """Keep samples of what runs, lose jobs whose GPU is gone, tell the brain."""
        self.looks = looks
        broker, now_ms = self._broker, self._broker.now_ms()
        running = (job for job in broker.book.active.values() if job.state == RUNNING and job.slots)
        slots = {f"{job.id}-{job.start}": job.slots for job in running}
        keep_samples(broker.places.samples, looks, now_ms, slots)
        for look in looks:
            if look.lost:
                for entry in list(broker.book.active.values()):
                    if look.index in entry.slots and entry.stop != NODE_FAIL:
                        broker.log("gpu-lost", gpu=look.index, job=entry.id)
                        broker.book.lose(entry, now_ms)
        self.tell()
        broker.act()

    def tell(self, *, anew: bool = False) -> None:
        """Tell the brain what it may not give away, where that has changed; all of it to one that has just begun."""
        broker = self._broker
        if anew:
            self._told.clear()
        if not broker.link.ready:
            return
        changed = []
        taken = {look.index: look.taken for look in self.looks}
        for card in broker.cards.cards:
            milli, mem_mib = (
                (1000, card.mem_mib) if card.index in broker.drained else taken.get(card.index, (0, 0))
            )
            mem_mib = min(mem_mib, card.mem_mib)
            if self._told.get(card.index, (0, 0)) != (milli, mem_mib):
                self._told[card.index] = (milli, mem_mib)
                changed.append((card.index, milli, mem_mib))
        if changed:
            broker.book.notes.append({"note": "strangers", "slots": changed})
            broker.deciding.offer_again()
