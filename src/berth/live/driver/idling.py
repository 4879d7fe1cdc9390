"""Idle reclaim: interactive jobs that call CUDA no more leave their GPUs while others wait for them.

When to let one leave is the ski-rental problem: each second that it idles costs its part of a GPU, and to suspend it
costs moving what it holds twice, and its user's wait. One that leaves as soon as idling has cost as much as that never
costs more than twice what would have been best (Karlin et al., Competitive Snoopy Caching, Algorithmica 3, 1988). With
what was learned of earlier gaps it costs less on average, and is kept from ever costing much more (Purohit, Svitkina
and Kumar, Improving Online Algorithms via ML Predictions, NeurIPS 2018).
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol

from berth.errors import BerthError
from berth.growth import Growing, Growth
from berth.live.driver.suspending import Suspending
from berth.tenants import (
    SUSPENDED,
    SUSPENDING,
    WHOLE_MILLI,
    MovingHost,
    T,
    Tenant,
    given,
    given_milli,
    room,
)

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


def cost_of(moves_s: float) -> float:
    """How many seconds of idling cost as much as a suspension whose moves, away and back, take `moves_s` in all: the
    GPU does nothing meanwhile, and the job's user waits."""
    return (1 + PATIENCE) * moves_s


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

    called_s: float
    since_s: float
    """Since when it idles on its GPUs; time that it was suspended does not count."""
    stays: bool = False
    """Whether it cannot be suspended, or was told to leave and did not."""


class Need(NamedTuple):
    """What something that waits needs: a part of each of `gpus` GPUs."""

    gpus: int
    among: Sequence[int]
    """The GPUs that will do; empty: all."""
    milli: int
    mem_mib: int
    """0: the whole card."""


class IdleHost(MovingHost[T], Protocol[T]):
    """A host whose interactive tenants leave their GPUs while they idle."""

    def application_of(self, tenant: T) -> str:
        """What tenants have in common that idle alike."""
        ...

    def is_busy(self, tenant: T) -> bool:
        """Whether its GPUs worked for it when they were last looked at."""
        ...

    def waiting(self) -> Iterable[Need]:
        """What jobs need that wait to be started here."""
        ...

    def suspend_idle(self, tenant: T) -> None:
        """Have it leave its GPUs until its next call of CUDA."""
        ...

    def away_ms(self, tenant: T) -> int:
        """For how long it has been away from its GPUs."""
        ...


class Idling(Generic[T]):
    """Finds the interactive jobs that idle, and has those leave that others wait for."""

    def __init__(self, host: IdleHost[T], growth: Growth[T], suspending: Suspending[T]) -> None:
        self._host, self._growth, self._suspending = host, growth, suspending
        self._idle: dict[str, _Idle] = {}
        self._gaps_s: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=MOST_GAPS))
        """Of each application, how long its jobs called nothing."""

    def look(self, now_s: float | None = None) -> None:
        """Count calls, and suspend jobs that have idled for long enough by now, in seconds of a steady clock."""
        now_s = time.monotonic() if now_s is None else now_s
        jobs = [each for each in self._growth.jobs.values() if each.entry.interactive]
        self._idle = {each.entry.id: self._gap(each, now_s) for each in jobs}
        for growing in jobs:
            self._come_back(growing.entry)
        if any(each.entry.idle and each.entry.suspension == SUSPENDING for each in jobs):
            return
        for job in self._who_leaves([each.entry for each in jobs], now_s):
            self._idle[job.id].stays = True  # until it has left
            if why := self._suspending.why_not(job):
                self._host.log("idle-stays", job=job.id, why=why)
                continue
            self._host.log("idle", job=job.id, idle_s=round(now_s - self._idle[job.id].since_s))
            self._host.suspend_idle(job)
            self._host.act()

    def _gap(self, growing: Growing[T], now_s: float) -> _Idle:
        """The gap that a job is in; one that it has ended is kept, to learn from."""
        job = growing.entry
        known = self._idle.get(job.id)
        if known is not None and job.suspension == SUSPENDING:
            return known  # its calls are counted again when it leaves (`Growth.leaves`)
        calls = self._growth.count_calls(growing)
        ended = calls != growing.calls or self._host.is_busy(job)
        growing.calls = calls
        if known is not None and not ended:
            if growing.waits:  # in a call
                return _Idle(now_s, now_s)
            return _Idle(known.called_s, now_s) if job.suspension else known
        if known is not None and (gap_s := now_s - known.called_s) >= GAP_S:
            self._gaps_s[self._host.application_of(job)].append(gap_s)
        return _Idle(now_s, now_s)

    def _come_back(self, job: T) -> None:
        """Resume an idle job before its next call of CUDA, if none needs its room or it has been away for long."""
        if job.suspension != SUSPENDED or not job.idle or job.resumes:
            return
        if self._host.away_ms(job) >= AWAY_MS or (not self._waiting() and self._fits(_need_of(job), [])):
            self._host.let_resume(job)
            self._host.act()

    def _who_leaves(self, jobs: list[T], now_s: float) -> list[T]:
        """Idle jobs whose GPUs others wait for, as few as give one of those room; the one that pays most first."""
        idle = [job for job in jobs if job.runs and not (job.suspension or self._idle[job.id].stays)]
        if not idle or not self._waiting():
            return []
        paying = sorted(((self._pays(job, now_s), job) for job in idle), key=lambda pair: -pair[0])
        leaving: list[T] = []
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

    def _pays(self, job: T, now_s: float) -> float:
        """What suspending a job is worth: the memory that it frees, for each second that it costs; 0: it has not idled
        for long enough yet."""
        try:
            cost_s = cost_of(self._suspending.moves_s(job))
        except (BerthError, OSError):
            return 0.0
        idle_s = now_s - self._idle[job.id].since_s
        if idle_s < reclaim_s(self._gaps_s[self._host.application_of(job)], cost_s):
            return 0.0
        return idle_s * sum(given(self._host, job, at)[1] for at in job.slots) / cost_s

    # Who waits

    def _helps(self, leaving: list[T]) -> bool:
        """Whether something that waits has room once these jobs have left, and has none before."""
        return any(self._fits(each, leaving) and not self._fits(each, []) for each in self._waiting())

    def _waiting(self) -> list[Need | T]:
        """What jobs need that wait for GPUs, that are to come back; and the jobs that wait for memory to grow."""
        back = [_need_of(job) for job in self._host.tenants() if job.suspension == SUSPENDED and job.resumes]
        grows = [
            each.entry for each in self._growth.jobs.values() if each.waits and not each.entry.suspension
        ]
        return [*self._host.waiting(), *back, *grows]

    def _fits(self, wants: Need | T, leaving: Sequence[T]) -> bool:
        """Whether something has room once others have left; a job that grows takes whatever is left."""
        if not isinstance(wants, Need):
            on_its_gpus = all(any(at in each.slots for each in leaving) for at in wants.slots)
            return on_its_gpus and all(room(self._host, at, leaving)[1] > 0 for at in wants.slots)
        roomy = 0
        for at in wants.among or range(len(self._host.gpus)):
            free_milli, free_mib = room(self._host, at, leaving)
            whole = wants.milli == WHOLE_MILLI  # with whatever is left of its memory
            mem_mib = 0 if whole else wants.mem_mib or self._host.gpus[at].mem_mib
            roomy += free_milli >= wants.milli and free_mib >= mem_mib
        return roomy >= wants.gpus


def _need_of(job: Tenant) -> Need:
    return Need(len(job.slots), job.slots, given_milli(job), job.share[1])
