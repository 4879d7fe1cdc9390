"""What has happened in Slurm between two looks: which jobs have started, which have ended and what they held."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from berth.history.values.applications import Rules
from berth.history.values.gres import gres_list
from berth.history.values.hostlist import expand
from berth.knowledge import Knowledge, LearnsMemory
from berth.live.slurm.candidates import Candidates
from berth.live.slurm.controller import Change, Controller, forgotten_after_s
from berth.live.slurm.decisions import ENDED, GIVEN_UP, STARTED, TAKEN_BACK, Decision, Logged
from berth.live.slurm.jobs import KnownEnds, SlurmJob
from berth.live.slurm.requests import Cards, LeftToSlurmError, Note, job_of, note_of
from berth.live.slurm.results import Result, names, prune, taken
from berth.live.slurm.world import World, state_of
from berth.model import RecordState

__all__ = ["Ends", "Happened", "Waiting"]

FAILED = frozenset({"FAILED", "OUT_OF_MEMORY", "NODE_FAIL"})
LATE_S = 60
"""How long before the last line of a log a job may have ended that is not in it: the look was not finished."""
NO_PARTITION = "a Prolog could not make its GPU partition, so that it got no GPU there"
RETOLD_FOR_S = 3600
"""How long an end is remembered that was logged. A slurmctld that dies loses what it had not saved, of 5 s at most
(SAVE_MAX_WAIT); the one that takes over tells such jobs as running, and ends them once more."""
RESULTS_FOR_S = 7 * 86_400
"""What an Epilog left is thrown away then, if Slurm tells nothing of the job: it may have run before berth did."""


@dataclass(slots=True)
class Waiting:
    """A job that was placed and has not started yet."""

    at_ms: int
    note: Note
    where: str
    after: tuple[str, ...] = ()
    """The jobs that must have ended before."""


@dataclass(slots=True)
class Ends:
    """How jobs have ended."""

    states: dict[str, RecordState] = field(default_factory=dict)
    peaks_mib: dict[str, int] = field(default_factory=dict)
    """What those held that ran out of GPU memory."""
    changes: list[Change] = field(default_factory=list)
    """What queues them again."""
    users: set[str] = field(default_factory=set)
    """Whose jobs these were."""


class Happened:
    """Compares each look with the one before it."""

    def __init__(
        self, world: World, controller: Controller, knowledge: Knowledge, cards: Cards, rules: Rules, *,
        results: Path, log: Path, places: bool, retries: int,
    ) -> None:  # fmt: skip
        self._world, self._controller, self._knowledge = world, controller, knowledge
        self._cards, self._rules = cards, rules
        self._results, self._places, self._retries = results, places, retries
        self._log = log
        self._logged: Logged | None = None
        self.known_ends = KnownEnds()
        """The jobs whose ends were taken in."""
        self.again_after_s = forgotten_after_s({})
        """How long a job that is queued again may not begin."""
        self._ends = Ends()
        """What `ended` has told since `started` was called last: after an exception in between it is told again."""
        self._over: dict[tuple[str, int | None], int] = {}
        """When the ends of the last hour were logged, by the job's number and its start."""
        self._runs: dict[str, SlurmJob] | None = None
        self._waited: set[str] = set()

    def ended(
        self,
        ended: Iterable[SlurmJob],
        found: Candidates,
        placed: dict[str, Waiting],
        now_ms: int,
        log: list[Decision],
    ) -> Ends:
        """How jobs have ended since the last look, and what was learned of them; of the first look, those whose Epilogs
        have left something. `ended` are those of which Slurm tells, and those of `placed` are taken out of it. What was
        told before and not followed by `started` is told again, and logged once."""
        runs = self._runs or {}
        gone = [job_id for job_id in runs if job_id not in found.running]
        unseen = self._waited | placed.keys()  # what has begun and ended since the last look
        gone += sorted(job_id for job_id in unseen if job_id not in found.jobs and job_id not in runs)
        told = {job.id: job for job in ended}
        if self._runs is None:
            self._logged = Logged.of(self._log)
            told = self._left_behind(told.values(), found)
            gone += [job_id for job_id in told if job_id not in gone]
        else:  # begun and ended between two looks
            gone += [
                job.id
                for job in told.values()
                if job.node_list and job.id not in runs and job.id not in unseen
            ]
        gone = [job_id for job_id in gone if job_id not in self._ends.states]
        # Slurm may have forgotten them since: they ended longer ago than MinJobAge.
        lost = [job_id for job_id in gone if job_id not in told and job_id not in found.jobs]
        if lost:
            told |= {job.id: job for job in self._controller.jobs(lost)}
        by_raw = {job.raw_id for job in (*told.values(), *(runs[i] for i in gone if i in runs))}
        results = taken(self._results, by_raw) if by_raw else {}
        ends = self._ends
        for job_id in gone:
            job = told.get(job_id) or found.jobs.get(job_id)
            ran = runs.get(job_id) or job
            was_placed = placed.pop(job_id, None)
            if ran is None:
                self._world.take_back(job_id, now_ms)
                continue
            over = ran.start_ms is not None and (ran.raw_id, ran.start_ms) in self._over
            if (
                job_id not in runs
                and job is not None
                and job.node_list
                and not over
                and not self._was_told(job)
            ):
                log.append(Decision(
                    now_ms, STARTED, job_id, job.raw_id, submit_ms=job.submit_ms, start_ms=job.start_ms,
                    user=job.user, where=self._where(job), gpus=self._gpus_of(job),
                    planned=was_placed.where if was_placed else self._was_placed(job),
                ))  # fmt: skip
            state = "CANCELLED" if job is None else "PREEMPTED" if job.waits else job.state
            ends.states[job_id] = state_of(state)
            ends.users.add(ran.user)
            decision = Decision(
                now_ms, ENDED, job_id, ran.raw_id, state=state, start_ms=ran.start_ms, submit_ms=ran.submit_ms,
                end_ms=job.end_ms if job is not None and job.ended else now_ms, user=ran.user, where=ran.node_list,
            )  # fmt: skip
            result = results.get(ran.raw_id)
            if result is not None:
                decision = replace(
                    decision, peak_mib=result.peak_mib, refused=result.refused, card_mib=self._card_mib(ran),
                    why=NO_PARTITION if result.closed else "",
                )  # fmt: skip
                self._learn(job_id, result)
                if result.refused and state in FAILED:
                    ends.peaks_mib[job_id] = result.peak_mib or result.needs_mib
                    ends.changes += self._again(job_id, ran, result, decision, log)
            if not over:
                log.append(decision)
                self._over[ran.raw_id, ran.start_ms] = now_ms
        self._over = {key: at_ms for key, at_ms in self._over.items() if now_ms - at_ms < 1000 * RETOLD_FOR_S}
        self.known_ends.taken_in()
        return ends

    def started(
        self, found: Candidates, placed: dict[str, Waiting], waited: Iterable[str], now_ms: int
    ) -> list[Decision]:
        """The jobs that Slurm has started since the last look, which are taken out of `placed`; call it after `ended`.
        `waited` are the jobs that berth decides on from now on."""
        before, self._ends = self._runs, Ends()
        self._runs = {job.id: job for job in found.jobs.values() if job.runs}
        self._waited = set(waited)
        log = []
        for job_id, job in self._runs.items():
            was_placed = placed.pop(job_id, None)
            if job_id in before if before is not None else self._logged is None or self._was_told(job):
                continue
            if (job.raw_id, job.start_ms) in self._over:
                continue
            ours = found.running[job_id]
            log.append(Decision(
                now_ms, STARTED, job_id, job.raw_id, submit_ms=job.submit_ms, start_ms=job.start_ms, gpus=ours.gpus,
                milli=ours.share.milli, mem_mib=ours.share.mem_mib, user=job.user, application=ours.application,
                where=self._where(job), planned=was_placed.where if was_placed else self._was_placed(job),
            ))  # fmt: skip
        self._logged = None
        return log

    def _was_told(self, job: SlurmJob) -> bool:
        """Whether the log of the berth before this one has this start."""
        return self._logged is not None and (job.raw_id, job.start_ms) in self._logged.started

    def _was_placed(self, job: SlurmJob) -> str:
        """Where the berth before this one placed it."""
        return "" if self._logged is None else self._logged.placed.get(job.raw_id, "")

    def _left_behind(self, ended: Iterable[SlurmJob], found: Candidates) -> dict[str, SlurmJob]:
        """The jobs that have ended while berth was away: after the last line of its log, or with what Epilogs left."""
        prune(self._results, RESULTS_FOR_S)
        left = names(self._results) - {job.raw_id for job in found.jobs.values() if job.runs}
        logged = self._logged
        return {
            job.id: job
            for job in ended
            if job.raw_id in left
            or (
                logged is not None and job.node_list and (job.end_ms or 0) >= logged.last_ms - 1000 * LATE_S
                and (job.raw_id, job.start_ms) not in logged.ended
            )
        }  # fmt: skip

    def _where(self, job: SlurmJob) -> str:
        """Slurm's nodes of a job, with the indices of its GPUs where their types tell them."""
        kinds = [each.kind for each in gres_list(job.tres_per_node, odd=True) if each.kind]
        places = []
        for name in expand(job.node_list):
            node = self._world.slurm_nodes.get(name)
            at = [node.index_of(kind) for kind in kinds] if node is not None else []
            known = sorted(index for index in at if index is not None)
            places.append(f"{name}:{'+'.join(map(str, known))}" if known and len(known) == len(at) else name)
        return ",".join(sorted(places))

    def _card_mib(self, job: SlurmJob) -> int:
        """The memory of a GPU of the job's first node; 0 where it is not known."""
        node = self._world.slurm_nodes.get(next(iter(expand(job.node_list)), ""))
        return 0 if node is None else self._cards.model(node.model).mem_mib

    def _gpus_of(self, job: SlurmJob) -> int:
        """The GPUs that an ended job had; 0 where that cannot be told."""
        try:
            return job_of(job, self._cards, self._rules, priority=0, retries=0).gpus
        except LeftToSlurmError:
            return job.tres.gpus

    def _learn(self, job_id: str, result: Result) -> None:
        run = self._world.scheduler.cluster.running.get(job_id) if self._world.begun else None
        if run is not None and result.peak_mib and isinstance(self._knowledge, LearnsMemory):
            self._knowledge.measured(run.job, result.peak_mib)

    def _again(
        self, job_id: str, ran: SlurmJob, result: Result, decision: Decision, log: list[Decision]
    ) -> list[Change]:
        """Queue a job again that ran out of GPU memory, with what would have been enough and an eighth more."""
        note = note_of(ran.admin_comment)
        if note is None or not self._places:
            return []
        needs = max(result.needs_mib, result.peak_mib)
        largest = self._cards.most_mib
        if note.retries >= self._retries or 0 < largest < needs:
            why = f"it ran out of GPU memory {note.retries + 1} times, and needs {needs} MiB: ask for gpu_mem={needs}M"
            log.append(replace(decision, event=GIVEN_UP, why=why))
            return []
        grown = needs + needs // 8
        needs = min(grown, largest) if largest else grown
        again = replace(note, share=None, best_effort=False, retries=note.retries + 1, needs_mib=needs)
        log.append(replace(decision, event=TAKEN_BACK, why=f"out of GPU memory: again with {needs} MiB"))
        return [Change(
            job_id, requeue=True, after_s=self.again_after_s, hold=True, node_list="", admin_comment=str(again)
        )]  # fmt: skip
