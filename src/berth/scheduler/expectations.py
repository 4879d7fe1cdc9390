"""How far runs are expected to be, for a scheduler that does not know: by believed profiles, speeds and run times."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from berth.card_speeds import ALL_ALIKE, CardSpeeds, card_us
from berth.cluster import Cluster, Running
from berth.errors import KnowledgeError, in_one_line
from berth.interference.profiled import ProfiledInterference
from berth.interference.sharing import Sharing
from berth.knowledge import Knowledge, believed_run_ms
from berth.model import FOREVER_MS, GpuSlot, Placement
from berth.scheduler.feedback import Feedback, error_of_knowledge


def longer_us(done_us: int) -> int:
    """The work of a job that has done more than was believed of it, where nothing was learned: half as much again."""
    return done_us + max(done_us // 2, 1_000_000)


class Expectations:
    """How far the runs are expected to be if the truth is unknown: by believed profiles, speeds and run times."""

    def __init__(
        self, cluster: Cluster, knowledge: Knowledge, feedback: Feedback, speeds: CardSpeeds = ALL_ALIKE
    ) -> None:
        self._cluster = cluster
        self._feedback = feedback
        self._speeds = speeds
        self._knowledge = knowledge
        self._profiles = dict(knowledge.profiles)
        self._sharing = Sharing(cluster, ProfiledInterference(self._profiles, knowledge.speeds))
        self._changed_ms = 0
        """When tenants changed that have not been looked at since."""
        self._due: list[tuple[int, int, GpuSlot]] = []  # a heap: when an outlook ends to hold
        self._ends: list[tuple[int, int, Running]] = []  # a heap: when runs are believed to end
        self._serial = 0

    def change(self, run: Running, now_ms: int) -> None:
        """A run has come to its GPUs now, or has left them; `advance` was called before."""
        self._changed_ms = now_ms
        if run.job.gpus:
            self._sharing.change(run.slots)
        if self._cluster.running.get(run.job.id) is run:
            self._expect(run)

    def refresh(self) -> None:
        """Go by the profiles that are believed now, if they have changed."""
        profiles = self._knowledge.profiles
        if len(profiles) == len(self._profiles) and all(
            self._profiles.get(name) is profile for name, profile in profiles.items()
        ):
            return
        self._profiles = dict(profiles)
        self._sharing.model = ProfiledInterference(self._profiles, self._knowledge.speeds)

    def expected(self, placement: Placement, done_us: int) -> tuple[int, int | None]:
        """The time that a job is believed to take on its cards, and what is left of it, ms; None: all. What an earlier
        attempt has done and kept stays done, whatever was believed of its run time then."""
        job = placement.job
        milli = self._speeds.on(job, placement.slots, self._cluster.nodes)
        believed_ms = believed_run_ms(job, self._knowledge)
        work_ms = (
            FOREVER_MS if believed_ms is None else believed_ms
        )  # None: nothing that makes sense is known
        left_ms: int | None = None
        if done_us:
            if work_ms * 1000 <= done_us:
                work_ms = longer_us(done_us) // 1000
            left_ms = card_us(work_ms - done_us // 1000, milli)
        return (work_ms if work_ms >= FOREVER_MS else card_us(work_ms, milli)), left_ms

    def catch_up(self, now_ms: int) -> None:
        """Advance what is believed until now; runs that were believed to be over by now are expected anew. Raises
        KnowledgeError if the believed profiles or speeds do not allow it."""
        self._guarded(self._catch_up, now_ms)

    def advance(self, now_ms: int) -> None:
        """Look at every GPU at the moment at which something changes there, in the order of time. Raises
        KnowledgeError if the believed profiles or speeds do not allow it."""
        self._guarded(self._advance, now_ms)

    def _guarded(self, advance: Callable[[int], None], now_ms: int) -> None:
        """Advance, and say what a knowledge raises as its own error."""
        try:
            advance(now_ms)
        except KnowledgeError:
            raise
        except Exception as error:
            raise error_of_knowledge(error, self._knowledge, now_ms) or KnowledgeError(
                f"at {now_ms} ms knowledge {type(self._knowledge).__qualname__} does not tell how fast running jobs"
                f" are, by its profiles and speeds: {in_one_line(error)}"
            ) from error

    def _catch_up(self, now_ms: int) -> None:
        self._advance(now_ms)
        while self._ends and self._ends[0][0] <= now_ms:
            _, _, run = heappop(self._ends)
            if self._cluster.running.get(run.job.id) is run:
                self._outlive(run, now_ms)

    def _advance(self, now_ms: int) -> None:
        if self._sharing.changed:
            self._look(self._changed_ms)
        while self._due and (time_ms := self._due[0][0]) <= now_ms:
            while self._due and self._due[0][0] == time_ms:
                _, serial, slot = heappop(self._due)
                if self._sharing.is_current(slot, serial):
                    self._sharing.change((slot,))
            if self._sharing.changed:
                self._look(time_ms)

    def _look(self, now_ms: int) -> None:
        going, full = self._sharing.look(now_ms, self._call_again)
        for run in (*going, *full):  # a belief that memory runs out stops no job
            self._expect(run)

    def _call_again(self, time_ms: int, slot: GpuSlot) -> int:
        self._serial += 1
        heappush(self._due, (time_ms, self._serial, slot))
        return self._serial

    def _expect(self, run: Running) -> None:
        end_ms = run.end_ms()
        if end_ms < FOREVER_MS:
            self._serial += 1
            heappush(self._ends, (end_ms, self._serial, run))
            if len(self._ends) > 4 * len(self._cluster.running) + 64:
                self._drop_stale()

    def _drop_stale(self) -> None:
        """Keep the last entry of each run that still runs."""
        running = self._cluster.running
        last = {
            id(run): (end_ms, serial, run) for end_ms, serial, run in sorted(self._ends, key=lambda e: e[1])
        }
        self._ends = [entry for entry in last.values() if running.get(entry[2].job.id) is entry[2]]
        heapify(self._ends)

    def _outlive(self, run: Running, now_ms: int) -> None:
        """A run that was believed to be over by now is not: it is expected anew."""
        if run.left_us_at(now_ms) > 0:
            return  # it has been slowed since, and has a later entry
        run.advance(now_ms, run.speed_milli)
        done_us = run.work_us - run.left_us
        self._feedback.outlived(run.job, -(-done_us // 1000))
        expected_ms = believed_run_ms(run.job, self._knowledge)
        if expected_ms is not None and done_us < expected_ms * 1000:
            run.work_us = expected_ms * 1000
        else:  # nothing was learned from it
            run.work_us = longer_us(done_us)
        run.left_us = run.work_us - done_us
        self._expect(run)
