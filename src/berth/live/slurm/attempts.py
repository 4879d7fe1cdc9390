"""What has changed in Slurm between two queries: which attempts of jobs have started, which have ended, and how, and
the journal of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from berth.live.slurm.candidates import Candidates
from berth.live.slurm.controller import Controller
from berth.live.slurm.decisions import ENDED, STARTED, Decision, Logged, append
from berth.live.slurm.jobs import SlurmJob
from berth.live.slurm.measured_use import Result, names, prune, taken
from berth.model import Job, Share

LATE_S = 60
"""How long before the last line of a log an end may lie that is not in it: its query was not finished."""
REPORTED_AGAIN_S = 3600
"""How long a logged end is remembered. A slurmctld that dies loses what it had not saved, of 5 s at most
(SAVE_MAX_WAIT); the one that takes over reports such jobs as running, and ends them once more."""
RESULTS_S = 7 * 86_400
"""How long an Epilog's result is kept if Slurm reports no job for it: the job may have run before berth did."""


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """An attempt of a job that has ended."""

    job: SlurmJob
    """As it was last seen: while it ran, or at its end."""
    state: str
    """Slurm's word for how it ended; PREEMPTED if it waits again."""
    end_ms: int
    result: Result | None
    """What Epilogs measured."""
    start_unseen: bool
    """Whether it started after the last query, so that its start is in no log."""
    logged: bool
    """Whether its end is in the log already: Slurm reports it a second time."""


class Attempts:
    """Compares each view of Slurm with the one before it."""

    def __init__(self, controller: Controller, *, results: Path, log: Path) -> None:
        self._controller = controller
        self._results, self._log = results, log
        self._taken_in: set[tuple[object, ...]] = set()
        """Ends of the last view: Slurm reports them for minutes (MinJobAge)."""
        self._logged: Logged | None = None
        """What the log of the berth before this one has; only while the first view is taken in."""
        self._reported: dict[tuple[str, int | None], int] = {}
        """When the ends of the last hour were seen, by the job's number and its start."""
        self._runs: dict[str, SlurmJob] | None = None
        self._waited: set[str] = set()

    def update(
        self, reported: Iterable[SlurmJob], found: Candidates, placed: Set[str], now_ms: int
    ) -> tuple[list[EndedAttempt], list[SlurmJob]]:
        """The attempts that have ended and the jobs that have started since the last view. Of the first view: the ends
        that are not in the log of the berth before this one, and the starts that its log lacks.

        `reported` are the ended jobs that Slurm reports, and `placed` the jobs that Slurm was to start. LiveError if
        Slurm does not answer: nothing is lost then.
        """
        first, runs = self._runs is None, self._runs or {}
        ends_now = {(job.raw_id, job.state, job.start_ms, job.end_ms): job for job in reported}
        by_id = {job.id: job for key, job in ends_now.items() if key not in self._taken_in}
        gone = [job_id for job_id in runs if job_id not in found.running]
        unseen = self._waited | placed  # what may have started and ended since the last query
        gone += sorted(job_id for job_id in unseen if job_id not in found.jobs and job_id not in runs)
        self._logged = Logged.of(self._log) if first else None
        if first:
            by_id = self._left_behind(by_id.values(), found)
            gone += [job_id for job_id in by_id if job_id not in gone]
        else:
            known = runs.keys() | unseen
            gone += [job.id for job in by_id.values() if job.node_list and job.id not in known]
        # Slurm may have forgotten them since: they ended longer ago than MinJobAge.
        lost = [job_id for job_id in gone if job_id not in by_id and job_id not in found.jobs]
        if lost:
            by_id |= {job.id: job for job in self._controller.jobs(lost)}
        numbers = {job.raw_id for job in (*by_id.values(), *(runs[i] for i in gone if i in runs))}
        results = taken(self._results, numbers) if numbers else {}
        ends = []
        for job_id in gone:
            now = by_id.get(job_id) or found.jobs.get(job_id)
            ran = runs.get(job_id) or now
            if ran is not None:
                ends.append(self._end(ran, now, job_id in runs, results.get(ran.raw_id), now_ms))
        self._taken_in = set(ends_now)
        self._remember(ends, now_ms)
        self._runs = {job.id: job for job in found.jobs.values() if job.runs}
        self._waited = {job.id for job in found.waiting}
        return ends, [job for job in self._runs.values() if self._is_new_start(job, runs, first)]

    def _is_new_start(self, job: SlurmJob, runs: Mapping[str, SlurmJob], first: bool) -> bool:
        """Whether a running job was started since the last view, or since the log of the berth before this one ends."""
        known = self._logged is None or self._in_log(job) if first else job.id in runs
        return not known and (job.raw_id, job.start_ms) not in self._reported

    def placed_before(self, job: SlurmJob) -> str:
        """Where the berth before this one placed a job; empty if it did not."""
        return "" if self._logged is None else self._logged.placed.get(job.raw_id, "")

    def _end(
        self, ran: SlurmJob, now: SlurmJob | None, seen: bool, result: Result | None, now_ms: int
    ) -> EndedAttempt:
        logged = ran.start_ms is not None and (ran.raw_id, ran.start_ms) in self._reported
        state = "CANCELLED" if now is None else "PREEMPTED" if now.waits else now.state
        return EndedAttempt(
            ran,
            state,
            now.end_ms or now_ms if now is not None and now.ended else now_ms,
            result,
            start_unseen=not seen and bool(ran.node_list) and not logged and not self._in_log(ran),
            logged=logged,
        )

    def _remember(self, ends: Iterable[EndedAttempt], now_ms: int) -> None:
        self._reported |= {(end.job.raw_id, end.job.start_ms): now_ms for end in ends if not end.logged}
        self._reported = {
            key: at_ms for key, at_ms in self._reported.items() if now_ms - at_ms < 1000 * REPORTED_AGAIN_S
        }

    def _in_log(self, job: SlurmJob) -> bool:
        """Whether the log of the berth before this one has this start."""
        return self._logged is not None and (job.raw_id, job.start_ms) in self._logged.started

    def _left_behind(self, ended: Iterable[SlurmJob], found: Candidates) -> dict[str, SlurmJob]:
        """The jobs that ended while berth was away: after the last line of its log, or with results of Epilogs."""
        prune(self._results, RESULTS_S)
        left = names(self._results) - {job.raw_id for job in found.jobs.values() if job.runs}
        logged = self._logged

        def is_new(job: SlurmJob) -> bool:
            if logged is None or not job.node_list or (job.raw_id, job.start_ms) in logged.ended:
                return False
            return (job.end_ms or 0) >= logged.last_ms - 1000 * LATE_S

        return {job.id: job for job in ended if job.raw_id in left or is_new(job)}


NO_PARTITION = "a Prolog could not make its GPU partition, so that it got no GPU there"


class Journal:
    """The log of one berth."""

    def __init__(self, path: Path, policy: str) -> None:
        self._path, self._policy = path, policy
        self._lines: list[Decision] = []

    def save(self) -> None:
        """Write the lines that are not written yet; LiveError leaves them for the next time."""
        append(self._path, self._lines)
        self._lines.clear()

    def withdraw(self, lines: list[Decision]) -> None:
        """Take lines out that are not written yet."""
        self._lines = [line for line in self._lines if line not in lines]

    def add(self, now_ms: int, event: str, job: SlurmJob, **more: Any) -> Decision:
        """Something happened to a job; `more` are fields of its line."""
        line = Decision(now_ms, event, job.id, job.raw_id, submit_ms=job.submit_ms, user=job.user, **more)
        self._lines.append(line)
        return line

    def decided(
        self,
        now_ms: int,
        event: str,
        job: SlurmJob,
        ours: Job,
        share: Share,
        where: str,
        *,
        best_effort: bool = False,
    ) -> Decision:
        """A job is placed, or would be."""
        return self.add(
            now_ms,
            event,
            job,
            policy=self._policy,
            gpus=ours.gpus,
            milli=share.milli,
            mem_mib=share.mem_mib,
            where=where,
            application=ours.application,
            best_effort=best_effort,
        )

    def started(self, now_ms: int, job: SlurmJob, ours: Job, where: str, planned: str) -> None:
        """Slurm has started a job; `planned` is where berth had placed it."""
        self.add(
            now_ms,
            STARTED,
            job,
            start_ms=job.start_ms,
            gpus=ours.gpus,
            milli=ours.share.milli,
            mem_mib=ours.share.mem_mib,
            application=ours.application,
            where=where,
            planned=planned,
            partition=job.partition,
            limit_ms=job.time_limit_ms,
        )

    def ended(self, now_ms: int, end: EndedAttempt, card_mib: int) -> None:
        """An attempt has ended on GPUs of this size."""
        job, result = end.job, end.result or Result("", "", 0, 0, 0)
        self.add(
            now_ms,
            ENDED,
            job,
            state=end.state,
            start_ms=job.start_ms,
            end_ms=end.end_ms,
            where=job.node_list,
            peak_mib=result.peak_mib,
            refused=result.refused,
            gpu_ms=result.gpu_ms,
            card_mib=card_mib if end.result is not None else 0,
            why=NO_PARTITION if result.closed else "",
        )
