"""Idle reclaim: interactive jobs that call CUDA no more leave their GPUs while others wait for them.

When to let one leave is the ski-rental problem: each second that it idles costs its part of a GPU, and to suspend it
costs moving what it holds twice, and its user's wait. One that leaves as soon as idling has cost as much as that never
costs more than twice what would have been best (Karlin et al., Competitive Snoopy Caching, Algorithmica 3, 1988). With
what was learned of earlier gaps it costs less on average, and is kept from ever costing much more (Purohit, Svitkina
and Kumar, Improving Online Algorithms via ML Predictions, NeurIPS 2018).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from berth.errors import BerthError
from berth.live.driver.growth import Growing, Growth
from berth.live.driver.suspending import Suspending
from berth.live.driver.tenants import SUSPENDED, SUSPENDING
from berth.live.local.book import Book
from berth.live.local.cards import Card
from berth.live.local.entry import RUNNING, WAITING, Entry, application_of
from berth.live.local.messages import asked_mib
from berth.live.local.request import WHOLE
from berth.live.local.watching import Watch

PATIENCE = 10.0
"""A second of which a user waits costs as many seconds of a GPU."""
TRUST = 3.0
"""What was learned moves the time by this factor at most, either way."""
LEAST_GAPS = 10
"""Fewer gaps teach nothing."""
MOST_GAPS = 200
"""How many of an application's gaps are kept, the last ones."""
GAP_S = 1.0
"""Shorter ones are no gaps: the calls are looked at about as often."""
AWAY_MS = 1_800_000
"""A job that has not asked comes back in its turn after this time: it may wait in a call that berth does not see."""


def cost_of(move_s: float) -> float:
    """For how many seconds of idling a job that moves in `move_s`, one way, costs as much as being suspended: it moves
    twice, and its user waits until it is back and the one that came is gone."""
    return 2 * (1 + PATIENCE) * move_s


def reclaim_s(gaps_s: Sequence[float], cost_s: float) -> float:
    """After how long without a call to suspend a job, if that costs as much as idling for `cost_s`.

    It is the time that would have cost least over earlier gaps.
    """
    if len(gaps_s) < LEAST_GAPS:
        return cost_s
    least_s, most_s = cost_s / TRUST, cost_s * TRUST
    times_s = {least_s, cost_s, most_s, *(gap_s for gap_s in gaps_s if least_s < gap_s < most_s)}

    def cost(time_s: float) -> float:
        return sum(gap_s if gap_s <= time_s else time_s + cost_s for gap_s in gaps_s)

    return min(sorted(times_s), key=cost)


@dataclass(slots=True)
class _Idle:
    """A gap between two calls of a job."""

    called_ms: int
    since_ms: int
    """Since when it idles on its GPUs; time that it was suspended does not count."""
    stays: bool = False
    """Whether it cannot be suspended, or was told to leave and did not."""


class Idling:
    """Finds the interactive jobs that idle, and has those leave that others wait for."""

    def __init__(
        self,
        book: Book,
        cards: tuple[Card, ...],
        growth: Growth[Entry],
        suspending: Suspending[Entry],
        watch: Watch,
        log: Callable[..., None],
        *,
        act: Callable[[], None],
        now_ms: Callable[[], int],
    ) -> None:
        """`act` is called when a job is to leave or may come back."""
        self._book, self._cards, self._growth, self._suspending = book, cards, growth, suspending
        self._watch, self._log, self._act, self._now_ms = watch, log, act, now_ms
        self._idle: dict[str, _Idle] = {}
        self._gaps_s: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=MOST_GAPS))
        """Of each application, how long its jobs called nothing."""

    def look(self) -> None:
        """Count calls, and suspend jobs that have idled for long enough."""
        jobs = [each for each in self._growth.jobs.values() if each.entry.request.interactive]
        self._idle = {each.entry.id: self._gap(each) for each in jobs}
        for growing in jobs:
            self._come_back(growing.entry)
        if any(each.entry.idle and each.entry.suspension == SUSPENDING for each in jobs):
            return
        for entry in self._who_leaves([each.entry for each in jobs]):
            if why := self._suspending.why_not(entry):
                self._idle[entry.id].stays = True
                self._log("idle-stays", job=entry.id, why=why)
                continue
            self._log("idle", job=entry.id, since_ms=self._idle[entry.id].since_ms)
            self._idle[entry.id].stays = True  # until it has left
            self._book.suspend_idle(entry, self._now_ms())
            self._act()

    def _gap(self, growing: Growing[Entry]) -> _Idle:
        """The gap that a job is in; one that it has ended is kept, to learn from."""
        entry, now_ms = growing.entry, self._now_ms()
        known = self._idle.get(entry.id)
        if known is not None and entry.suspension == SUSPENDING:
            return known  # its calls are counted again when it leaves (`Growth.leaves`)
        calls = self._growth.count_calls(growing)
        ended = calls != growing.calls or self._watch.is_busy(entry)
        growing.calls = calls
        if known is not None and not ended:
            if growing.waits:  # in a call
                return _Idle(now_ms, now_ms)
            return _Idle(known.called_ms, now_ms) if entry.suspension else known
        if known is not None and (gap_s := (now_ms - known.called_ms) / 1000) >= GAP_S:
            self._gaps_s[application_of(entry.request, entry.params)].append(gap_s)
        return _Idle(now_ms, now_ms)

    def _come_back(self, entry: Entry) -> None:
        """Let a job that is away come back without a call, if nobody wants its room or it has been away for long."""
        if entry.suspension != SUSPENDED or not entry.idle or entry.resumes:
            return
        away_ms = self._now_ms() - (entry.suspended_since_ms or 0)
        if away_ms >= AWAY_MS or (not self._waiting([]) and self._fits(entry, [])):
            self._book.let_resume(entry, self._now_ms())
            self._act()

    def _who_leaves(self, jobs: list[Entry]) -> list[Entry]:
        """Idle jobs whose GPUs others wait for, as few as give one of those room; the one that pays most first."""
        idle = [job for job in jobs if self._may_leave(job)]
        if not idle or not self._waiting([]):
            return []
        paying = sorted(((self._pays(job), job) for job in idle), key=lambda pair: -pair[0])
        leaving: list[Entry] = []
        idle = [job for pays, job in paying if pays > 0]
        for job in idle:
            if self._helps([job]):
                return [job]
            leaving.append(job)
        if not self._helps(leaving):
            return []
        for job in reversed(idle):
            if self._helps(fewer := [each for each in leaving if each is not job]):
                leaving = fewer
        return leaving

    def _may_leave(self, job: Entry) -> bool:
        stays = job.stop or job.suspension or job.over is not None or self._idle[job.id].stays
        return job.state == RUNNING and not stays

    def _pays(self, job: Entry) -> float:
        """What suspending a job is worth: the memory that it frees, for each second that it costs; 0: it has not idled
        for long enough yet."""
        try:
            move_s = self._suspending.move_s(job)
        except (BerthError, OSError):
            return 0.0
        cost_s = cost_of(move_s)
        idle_s = (self._now_ms() - self._idle[job.id].since_ms) / 1000
        gaps_s = self._gaps_s[application_of(job.request, job.params)]
        if idle_s < reclaim_s(gaps_s, cost_s):
            return 0.0
        return idle_s * sum(self._given(job, at)[1] for at in job.slots) / cost_s

    # Who waits

    def _helps(self, leaving: list[Entry]) -> bool:
        """Whether something that waits has room once these jobs have left, and has none before."""
        return any(self._fits(each, leaving) and not self._fits(each, []) for each in self._waiting(leaving))

    def _waiting(self, leaving: Iterable[Entry]) -> list[Entry]:
        """The jobs that wait for GPUs, those that are to come back, and those that wait for memory to grow."""
        jobs = self._book.jobs.values()
        waiting = [job for job in jobs if job.state == WAITING and job.offered and job.request.gpus]
        back = [job for job in self._book.active.values() if job.suspension == SUSPENDED and job.resumes]
        grows = [
            each.entry for each in self._growth.jobs.values() if each.waits and not each.entry.suspension
        ]
        return [job for job in [*waiting, *back, *grows] if job not in leaving]

    def _fits(self, job: Entry, leaving: Sequence[Entry]) -> bool:
        """Whether a job has room once others have left; one that grows takes whatever is left."""
        allowed = job.slots or job.request.pins or range(len(self._cards))
        grows = job.state == RUNNING and not job.suspension
        roomy = 0
        for at in allowed:
            milli, mem_mib = (0, 1) if grows else self._given(job, at)
            if milli == WHOLE:
                mem_mib = 0  # with whatever is left of its memory
            if grows and not any(at in each.slots for each in leaving):
                return False
            free_milli, free_mib = self._free(at, leaving)
            roomy += free_milli >= milli and free_mib >= mem_mib
        return roomy >= (len(job.slots) or job.request.gpus)

    def _given(self, job: Entry, at: int) -> tuple[int, int]:
        """What a job has of a GPU, or would have, in milli and MiB."""
        if job.slots:
            return (0 if job.best_effort else job.share[0]), job.share[1] or self._cards[at].mem_mib
        mem_mib = max(asked_mib(job, self._book.limits), job.needs_mib)
        return job.request.milli, mem_mib or self._cards[at].mem_mib

    def _free(self, at: int, leaving: Sequence[Entry]) -> tuple[int, int]:
        free_milli, free_mib = WHOLE, self._cards[at].mem_mib - self._watch.others_mib(at)
        for job in self._book.active.values():
            if at in job.slots and job.suspension != SUSPENDED and job not in leaving:
                milli, mem_mib = self._given(job, at)
                free_milli, free_mib = free_milli - milli, free_mib - mem_mib
        return free_milli, free_mib
