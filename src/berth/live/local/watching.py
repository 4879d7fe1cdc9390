"""What keeps GPUs from jobs beside other jobs: processes of no job, partitions that others made, lost GPUs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace

from berth.errors import BerthError
from berth.live.local.book import Book
from berth.live.local.cards import Cards, GpuReading
from berth.live.local.entry import NODE_FAIL, RUNNING, Entry
from berth.live.local.messages import Event
from berth.live.local.runner import Runner
from berth.live.local.samples import keep_samples
from berth.partition.checkpoint import note_strangers
from berth.partition.reconciling import OF_ANY, THROTTLED_PCT, Counted, Difference, Reconciler

LOOK_S, AGAIN_S = 1.0, 0.25
"""Between two readings, and after one that showed memory that no partition counted."""


class Watch:
    """Reads the GPUs now and then, keeps samples, and says what is not to be given away."""

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
        suspend: Callable[[Entry, str], str],
        uncounted: str = "report",
    ) -> None:
        """`samples` is the folder of what jobs used; `act` is called after each reading. `uncounted`: what is done
        about a job whose processes hold more than its partition counted: `report` it, or also `throttle` or `suspend`
        it. `suspend` has a job leave its GPUs, for a reason, and returns why it cannot."""
        self._book, self._cards, self._runner, self._samples = book, cards, runner, samples
        self._log, self._now_ms, self._act = log, now_ms, act
        self.readings: tuple[GpuReading, ...] = ()
        self._held: dict[int, tuple[int, int]] = {}
        """What the brain knows that others hold, by the GPU's index."""
        self._suspects: frozenset[str] = frozenset()
        self._due = asyncio.Event()
        self._reconciler = Reconciler()
        self._uncounted_does, self._suspend = uncounted, suspend
        self._throttled: dict[str, str] = {}
        """Jobs that were throttled since they hold uncounted memory, and why they could not be suspended."""
        self.uncounted: dict[str, Difference] = {}
        """What jobs hold beyond what their partitions counted, by the job's id; the largest of its GPUs."""

    def soon(self) -> None:
        """Read now rather than later."""
        self._due.set()

    async def run(self) -> None:
        """Read, until cancelled; in a thread, because a driver may hang."""
        while self._cards.cards:
            self._due.clear()
            try:
                readings = await asyncio.to_thread(self._cards.read, self._runner.run_of)
                self._reconcile(readings)
                self.take(self._without_ours(readings))
            except (OSError, BerthError) as error:
                self._log("no-look", why=str(error))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S if self._reconciler.suspects else LOOK_S):
                    await self._due.wait()

    def _reconcile(self, readings: tuple[GpuReading, ...]) -> None:
        """Find the jobs whose processes hold more than their partitions counted."""
        runner = self._runner
        jobs = {
            runner.partition_of(entry): (entry, f"{entry.id}-{entry.start}")
            for entry in self._book.active.values()
            if entry.slots
        }
        found = self._reconciler.look(
            Counted(
                each.name,
                reading.index,
                each.mem_mib,
                each.peak_mib,
                len(each.pids),
                reading.runs.get(jobs[each.name][1], (None, 0))[1],
            )
            for reading in readings
            for each in reading.partitions
            if each.name in jobs
        )
        before, self.uncounted = self.uncounted, {}
        for difference in sorted(found, key=lambda each: each.uncounted_mib):
            entry, _ = jobs[difference.name]
            self.uncounted[entry.id] = difference
            if entry.id not in before:
                self._log(
                    "uncounted",
                    job=entry.id,
                    gpu=difference.gpu,
                    seen_mib=difference.seen_mib,
                    counted_mib=difference.counted_mib,
                    does=self._uncounted_does,
                )
            if self._uncounted_does == "report" or entry.suspension or entry.id in self._throttled:
                continue
            stays = ""
            if self._uncounted_does == "suspend":
                run = jobs[difference.name][1]
                note_strangers(
                    difference.name, {pid for reading in readings for pid in reading.pids.get(run, ())}
                )
                stays = self._suspend(entry, self.uncounted_text(entry.id, "held"))
                if not stays:
                    continue
            runner.throttle(entry, THROTTLED_PCT)
            self._throttled[entry.id] = f", since it cannot be suspended: {stays}" if stays else ""
        for job in self._throttled.keys() - self.uncounted.keys():
            there = self._book.active.get(job)
            if there is not None and there.suspension:
                continue  # its limits are away with it
            del self._throttled[job]
            if there is not None and there.slots:
                runner.throttle(there, None)

    def came_back(self, entry: Entry) -> None:
        """Give a job that was suspended its own share of the time, which it may have left without; if it still holds
        uncounted memory, it is throttled again."""
        self._throttled.pop(entry.id, None)
        self._runner.throttle(entry, None)

    def uncounted_text(self, job_id: str, holds: str = "holds") -> str:
        """What a job `holds` or held beyond its partition's count, for people; empty where there is nothing."""
        found = self.uncounted.get(job_id)
        if found is None:
            return ""
        return found.text(f"job {job_id}", holds, self._throttled.get(job_id), cause=OF_ANY)

    def _without_ours(self, readings: tuple[GpuReading, ...]) -> tuple[GpuReading, ...]:
        """Leave out the partitions of jobs that run. A partition of this queue without a job is removed; it is held
        until then if two readings in a row have seen it, because between them a job may have begun or ended."""
        runner = self._runner
        running = {runner.partition_of(entry) for entry in self._book.active.values()}
        left = {
            each.name
            for reading in readings
            for each in reading.partitions
            if runner.is_ours(each.name) and each.name not in running
        }
        lasting = frozenset(left & self._suspects)
        self._suspects = frozenset(left)
        for name in lasting:
            runner.remove_left(name)
        return tuple(
            replace(
                reading,
                partitions=tuple(
                    each
                    for each in reading.partitions
                    if not runner.is_ours(each.name) or each.name in lasting
                ),
            )
            for reading in readings
        )

    def take(self, readings: tuple[GpuReading, ...]) -> None:
        """Keep samples of what runs, and lose jobs whose GPU is gone."""
        self.readings = readings
        book, now_ms = self._book, self._now_ms()
        running = (job for job in book.active.values() if job.state == RUNNING and job.slots)
        slots = {f"{job.id}-{job.start}": job.slots for job in running}
        keep_samples(self._samples, readings, now_ms, slots)
        for reading in readings:
            if reading.lost:
                for entry in list(book.active.values()):
                    if reading.index in entry.slots and entry.stop != NODE_FAIL:
                        self._log("gpu-lost", gpu=reading.index, job=entry.id)
                        book.lose(entry, now_ms)
        self._act()

    def is_busy(self, entry: Entry) -> bool:
        """Whether the GPUs worked for a job at the last reading, as far as the driver tells."""
        run = f"{entry.id}-{entry.start}"
        return any((reading.runs.get(run, (None, 0))[0] or 0.0) > 0 for reading in self.readings)

    def others_mib(self, index: int) -> int:
        """What others than the jobs of this queue hold of a GPU, or are promised."""
        return next((reading.taken[1] for reading in self.readings if reading.index == index), 0)

    def others(self, drained: frozenset[int], *, anew: bool = False) -> Event | None:
        """What the brain may not give away, where that has changed; all of it for one that has just begun. None: it
        knows."""
        if anew:
            self._held.clear()
        changed = []
        taken = {reading.index: reading.taken for reading in self.readings}
        for card in self._cards.cards:
            milli, mem_mib = (1000, card.mem_mib) if card.index in drained else taken.get(card.index, (0, 0))
            mem_mib = min(mem_mib, card.mem_mib)
            if self._held.get(card.index, (0, 0)) != (milli, mem_mib):
                self._held[card.index] = (milli, mem_mib)
                changed.append((card.index, milli, mem_mib))
        return {"event": "others", "slots": changed} if changed else None
