"""A site in memory, as unkind as real ones: it forgets jobs, comes late, fails starts and tells everything twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from berth.live.driver.site import (
    Again,
    End,
    FailedStart,
    GiveUp,
    Gpu,
    NodeState,
    SiteJob,
    SiteNode,
    SiteRun,
    Start,
)
from berth.model import Node, Profile, RecordState, Share


@dataclass
class MemorySite:
    """Jobs in dicts. What was asked of it it has done a step later, if it is unkind."""

    there: dict[str, Node]
    unkind: bool = False
    name: str = "memory"
    states: dict[str, NodeState] = field(default_factory=dict)
    jobs: dict[str, SiteJob] = field(default_factory=dict)
    """Those that wait."""
    runs: dict[str, SiteRun] = field(default_factory=dict)
    held: dict[Gpu, Share] = field(default_factory=dict)
    over: dict[str, RecordState] = field(default_factory=dict)
    """Jobs that ended for good."""
    why: dict[str, str] = field(default_factory=dict)
    given_up: dict[str, str] = field(default_factory=dict)
    fails: dict[str, str] = field(default_factory=dict)
    """Jobs whose next start fails, and why."""
    starts: list[Start] = field(default_factory=list)
    told: list[End | FailedStart] = field(default_factory=list)
    """What is to be told of ends."""
    told_before: list[End | FailedStart] = field(default_factory=list)
    now_ms: int = 0
    asked: int = 0
    lies: Callable[[Start], Start] = lambda start: start
    """Where it starts a job that it was told to start there."""
    learned_starts: str = ""

    def nodes(self) -> Sequence[SiteNode]:
        return [SiteNode(node, self.states.get(name, NodeState.UP)) for name, node in self.there.items()]

    def waiting(self) -> Mapping[str, SiteJob]:
        return dict(sorted(self.jobs.items(), key=lambda item: item[1].order))

    def running(self) -> Mapping[str, SiteRun]:
        self.asked += 1
        if self.unkind and self.asked % 7 == 0:
            return dict(list(self.runs.items())[1:])
        return dict(self.runs)

    def others(self) -> Mapping[Gpu, Share]:
        return dict(self.held)

    def ended(self) -> Sequence[End | FailedStart]:
        told, self.told = self.told, []
        again = [each for each in self.told_before if isinstance(each, End)] if self.unkind else []
        self.told_before = told
        return [*told, *again]

    def start(self, start: Start) -> None:
        self.starts.append(start)
        if not self.unkind:
            self.come_to_it()

    def again(self, again: Again) -> None:
        job = self.jobs.pop(again.job_id, None) or self.runs.pop(again.job_id).of
        self.jobs[again.job_id] = replace(
            job, attempt=again.attempt, memory=again.memory, start_failures=again.start_failures,
            not_before_ms=again.not_before_ms, why=again.why, queued_ms=self.now_ms,
            order=job.order if again.keeps_place else (self.now_ms, *job.order),
        )  # fmt: skip

    def give_up(self, given_up: GiveUp) -> None:
        self.jobs.pop(given_up.job_id, None)
        self.runs.pop(given_up.job_id, None)
        self.over[given_up.job_id] = given_up.state
        self.given_up[given_up.job_id] = given_up.why

    def note(self, job_id: str, why: str) -> None:
        self.why[job_id] = why

    def come_to_it(self) -> None:
        """Do what was asked of it."""
        starts, self.starts = self.starts, []
        for start in map(self.lies, starts):
            if (job := self.jobs.get(start.job_id)) is None:
                continue
            if (why := self.fails.pop(start.job_id, "")) and self.told is not None:
                self.told.append(FailedStart(start.job_id, why))
                continue
            del self.jobs[start.job_id]
            job = replace(job, start_failures=0, not_before_ms=0, why="")
            self.runs[start.job_id] = SiteRun(
                job, start.gpus, share=start.share, best_effort=start.best_effort, start_ms=self.now_ms
            )

    def end(
        self, job_id: str, state: RecordState, *, needed_mib: int = 0, peak_mib: int | None = None
    ) -> None:
        """A job's processes end."""
        run = self.runs[job_id]
        cut_short = state is RecordState.NODE_FAIL
        self.told.append(
            End(
                job_id, state, self.now_ms, run.of.attempt, needed_mib=needed_mib, peak_mib=peak_mib, ran=run,
                cut_short=cut_short,
            )
        )  # fmt: skip
        if state is not RecordState.OUT_OF_MEMORY and not cut_short:
            del self.runs[job_id]
            self.over[job_id] = state


@dataclass
class GangSite(MemorySite):
    """A site with gangs, which ends the processes of what makes room at once, or suspends them."""

    ran: dict[str, str] = field(default_factory=dict)
    """Tasks that have run, and their gangs."""
    evicted: dict[str, SiteRun] = field(default_factory=dict)
    """Attempts that have ended."""
    wishes: dict[str, tuple[bool, bool]] = field(default_factory=dict)
    """Jobs that are to be suspended (True) or resumed, and whether they run on by themselves."""

    def ended_tasks(self, gang: str) -> int:
        there = {**self.jobs, **{job_id: run.of for job_id, run in self.runs.items()}}
        if not any(job.gang is not None and job.gang.name == gang for job in there.values()):
            self.ran = {job_id: name for job_id, name in self.ran.items() if name != gang}
        return sum(name == gang and job_id not in there for job_id, name in self.ran.items())

    def come_to_it(self) -> None:
        super().come_to_it()
        self._come_to_wishes()
        for job_id, run in self.runs.items():
            if run.of.gang is not None:
                self.ran[job_id] = run.of.gang.name

    def parked_mib(self, job_id: str) -> int | None:
        return 5000

    def suspend(self, job_id: str) -> None:
        """At once, or if it is unkind when it comes to it."""
        self.wishes[job_id] = (True, True)
        if not self.unkind:
            self._come_to_wishes()

    def resume(self, job_id: str) -> None:
        self.wishes[job_id] = (False, True)
        if not self.unkind:
            self._come_to_wishes()

    def _come_to_wishes(self) -> None:
        wishes, self.wishes = self.wishes, {}
        for job_id, (suspended, resumes) in wishes.items():
            if (run := self.runs.get(job_id)) is None:
                continue
            since_ms = run.suspended_since_ms
            passed_ms = 0 if suspended or since_ms is None else self.now_ms - since_ms
            self.runs[job_id] = replace(
                run, suspended_since_ms=self.now_ms if suspended else None, resumes=resumes, parked_mib=5000,
                suspended_ms=run.suspended_ms + passed_ms,
            )  # fmt: skip

    def evict(self, job_id: str) -> None:
        self.end(job_id, RecordState.PREEMPTED)
        del self.over[job_id]

    def end(
        self, job_id: str, state: RecordState, *, needed_mib: int = 0, peak_mib: int | None = None
    ) -> None:
        self.evicted[job_id] = self.runs[job_id]
        super().end(job_id, state, needed_mib=needed_mib, peak_mib=peak_mib)

    def again(self, again: Again) -> None:
        run = self.evicted.pop(again.job_id, None)
        if run is not None and again.job_id not in self.runs:
            self.jobs[again.job_id] = run.of
        super().again(again)


@dataclass
class SamplingSite(MemorySite):
    """A site that samples its runs."""

    seen: dict[str, Profile] = field(default_factory=dict)
    """What was sampled so far of the jobs that run."""
    asked_of: list[tuple[int, str]] = field(default_factory=list)
    """When it was asked, and of which job."""

    def sampled(self, job_id: str) -> Profile | None:
        self.asked_of.append((self.now_ms, job_id))
        return self.seen.get(job_id)
