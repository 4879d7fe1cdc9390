"""`berth slurm run`: look at Slurm's queue every few seconds, decide, and say so or place.

It keeps nothing that it could not find again in Slurm: killed and started anew, it goes on where Slurm is.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from berth.errors import BerthError, LiveError
from berth.experiments.lived import keep_machine
from berth.files import whole_file
from berth.history.values.applications import read_rules
from berth.history.values.causes import cause_after
from berth.knowledge import Knowledge, LearnsMemory, make_knowledge
from berth.live.slurm.candidates import Candidates, Reader, Scope
from berth.live.slurm.controller import Change, Controller, View
from berth.live.slurm.decisions import (
    ADVISED,
    ENDED,
    GIVEN_BACK,
    GIVEN_UP,
    PLACED,
    STARTED,
    TAKEN_BACK,
    Decision,
    append,
)
from berth.live.slurm.jobs import SlurmJob
from berth.live.slurm.nodes import SlurmNode, SlurmPartition
from berth.live.slurm.placing import given_back, gpus_by_node, order_of, taken_back
from berth.live.slurm.priorities import Priorities
from berth.live.slurm.requests import Cards, Note, NotOursError, job_of, note_of
from berth.live.slurm.results import Result, taken
from berth.live.slurm.world import World, state_of
from berth.model import NO_GPU, Job, Placement, RecordState

__all__ = ["DECISIONS", "STATUS", "Service", "Settings", "lock"]

DECISIONS = "decisions.jsonl"
STATUS = "status.json"
RESULTS = "results"
NODES_EVERY = 4
"""The nodes are queried on every such look at the queue."""
SHARES_EVERY_S = 300
"""PriorityCalcPeriod's default: Slurm does not reckon them more often."""
FAILED = frozenset({"FAILED", "OUT_OF_MEMORY", "NODE_FAIL"})
SLOW = 4
"""How much longer a placed job may wait for which Slurm names no rule."""
LONGEST_WAIT_S = 600
"""How long a job is left alone at most after Slurm did not start it."""

Channel = Callable[[Iterable[Change]], dict[str, str]]
"""Makes changes; what went wrong, by the job's id."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How berth stands beside Slurm."""

    state: Path
    """Where it writes what it decided."""
    places: bool = False
    """Whether it places jobs, or only says what it would do."""
    partitions: frozenset[str] = frozenset()
    qos: frozenset[str] = frozenset()
    policy: str = "easy+priority+best-fit"
    knowledge: str = "user"
    interval_s: float = 5.0
    """Between two queries, on average."""
    patience_s: float = 30.0
    """How long a placed job may wait until it is taken back: Slurm found a rule against it."""
    retries: int = 2
    """How often a job is queued again that ran out of GPU memory."""
    card_mib: dict[str, int] = field(default_factory=dict)
    """Memory of the GPUs of a type."""
    decide_s: float = 20.0


def lock(state: Path) -> IO[str] | None:
    """The right to place, for as long as the file is open; None: another berth has it. LiveError for no folder."""
    try:
        state.mkdir(parents=True, exist_ok=True)
        file = open(state / "lock", "a+", encoding="ascii")  # noqa: SIM115
    except OSError as error:
        raise LiveError(
            f"{state} cannot be written ({error.strerror}); name another folder with --state"
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file


@dataclass(slots=True)
class _Waiting:
    """A job that was placed and has not started yet."""

    at_ms: int
    note: Note
    where: str


class Service:
    """One berth beside one Slurm."""

    def __init__(
        self, settings: Settings, controller: Controller, *, channel: Channel | None = None,
        knowledge: Knowledge | None = None,
    ) -> None:  # fmt: skip
        self.settings = settings
        self._controller = controller
        self._apply = channel or controller.apply
        self._cards = Cards(settings.card_mib)
        scope = Scope(settings.places, settings.partitions, settings.qos)
        self._rules = read_rules()
        self._reader = Reader(scope, self._cards, self._rules, settings.retries)
        self._knowledge = knowledge or make_knowledge(settings.knowledge)
        self.world = World(settings.policy, self._knowledge, self._cards)
        self._priorities = Priorities()
        self._shares_at_ms = 0
        self._looks = 0
        self._nodes: tuple[SlurmNode, ...] = ()
        self._partitions: tuple[SlurmPartition, ...] = ()
        self._placed: dict[str, _Waiting] = {}
        self._refused: dict[str, tuple[int, str]] = {}
        self._wait_s: dict[str, float] = {}
        self._advised: set[str] = set()
        self._runs: dict[str, SlurmJob] | None = None
        self._waited: set[str] = set()
        """Jobs that waited at the last look."""
        self.why: dict[str, str] = {}
        """Why waiting jobs were not started, as of the last look."""
        self.decide_s = 0.0

    def look(self) -> View:
        """What Slurm has now: the jobs each time, the nodes now and then."""
        if not self._partitions or time.time() * 1000 - self._shares_at_ms > SHARES_EVERY_S * 1000:
            self._partitions = self._controller.partitions()
            self._priorities = Priorities.of(
                self._controller.configuration(), self._controller.fair_shares(),
                {each.name: each.priority_factor for each in self._partitions},
            )  # fmt: skip
            self._shares_at_ms = int(time.time() * 1000)
        if self._looks % NODES_EVERY == 0:
            self._nodes = self._controller.nodes()
        self._looks += 1
        jobs = self._controller.jobs()
        return View(int(time.time() * 1000), jobs, self._nodes, self._partitions)

    def step(self) -> None:
        """Look, decide, and place or advise. LiveError where Slurm does not answer: nothing was changed then."""
        before = self._runs
        view = self.look()
        now_ms = view.at_ms
        found = self._reader.read(view, self._priorities, self._placed.keys(), self._refused)
        log: list[Decision] = []
        ended, peaks, changes = self._ended(found, now_ms, log)
        changes += self._back(found, now_ms, log)
        self.world.take(view, found.waiting, found.running, ended, peaks)
        self._runs = {job.id: job for job in found.jobs.values() if job.runs}
        self._waited = {job.id for job in found.waiting}
        log += self._started(before or {}, found, now_ms, known=before is not None)
        began = time.perf_counter()
        limit = began + self.settings.decide_s
        placements = self.world.decide(now_ms, out_of_time=lambda: time.perf_counter() > limit)
        self.decide_s = time.perf_counter() - began
        if self.settings.places:
            log += self._place(placements, found, changes, now_ms)
        else:
            log += self._advise(placements, found, now_ms)
        append(self.settings.state / DECISIONS, log)
        self._tell(found, now_ms)

    # What has happened

    def _ended(
        self, found: Candidates, now_ms: int, log: list[Decision]
    ) -> tuple[dict[str, RecordState], dict[str, int], list[Change]]:
        """How the jobs have ended that ran at the last look, what was learned of them, and which are queued again."""
        gone = [job_id for job_id in self._runs or {} if job_id not in found.running]
        unseen = self._waited | self._placed.keys()  # what has begun and ended since the last look
        gone += sorted(job_id for job_id in unseen if job_id not in found.jobs)
        told = {job.id: job for job in self._controller.jobs(gone)} if gone else {}
        results = self._results(
            [*told.values(), *((self._runs or {})[i] for i in gone if i in (self._runs or {}))]
        )
        ended: dict[str, RecordState] = {}
        peaks: dict[str, int] = {}
        changes: list[Change] = []
        for job_id in gone:
            job = told.get(job_id) or found.jobs.get(job_id)
            ran = (self._runs or {}).get(job_id) or job
            placed = self._placed.pop(job_id, None)
            if ran is None:
                self.world.take_back(job_id, now_ms)
                continue
            if job_id not in (self._runs or {}) and job is not None and job.node_list:
                log.append(Decision(
                    now_ms, STARTED, job_id, job.raw_id, submit_ms=job.submit_ms, start_ms=job.start_ms,
                    user=job.user, where=placed.where if placed else job.node_list, gpus=self._gpus_of(job),
                ))  # fmt: skip
            state = "CANCELLED" if job is None else "PREEMPTED" if job.waits else job.state
            ended[job_id] = state_of(state)
            decision = Decision(
                now_ms, ENDED, job_id, ran.raw_id, state=state, start_ms=ran.start_ms, submit_ms=ran.submit_ms,
                end_ms=job.end_ms if job is not None and job.ended else now_ms, user=ran.user, where=ran.node_list,
            )  # fmt: skip
            result = results.get(ran.raw_id)
            if result is not None:
                decision = replace(decision, peak_mib=result.peak_mib, refused=result.refused)
                self._learn(job_id, result)
                if result.refused and state in FAILED:
                    peaks[job_id] = result.peak_mib or result.needs_mib
                    changes += self._again(job_id, ran, result, decision, log)
            log.append(decision)
        users = {each.user for each in log if each.event == ENDED}
        for job_id in [
            *self._refused
        ]:  # what kept a job back may be over now that another of its user's has ended
            job = found.jobs.get(job_id)
            if job is None or job.user in users:
                del self._refused[job_id]
        return ended, peaks, changes

    def _gpus_of(self, job: SlurmJob) -> int:
        """The GPUs that an ended job had; 0 where that cannot be told."""
        try:
            return job_of(job, self._cards, self._rules, priority=0, retries=0).gpus
        except NotOursError:
            return job.tres.gpus

    def _results(self, jobs: Iterable[SlurmJob]) -> dict[str, Result]:
        """What the Epilogs measured of these jobs."""
        raw_ids = {job.raw_id for job in jobs}
        return taken(self.settings.state / RESULTS, raw_ids) if raw_ids else {}

    def _learn(self, job_id: str, result: Result) -> None:
        run = self.world.scheduler.cluster.running.get(job_id)
        if run is not None and result.peak_mib and isinstance(self._knowledge, LearnsMemory):
            self._knowledge.measured(run.job, result.peak_mib)

    def _again(
        self, job_id: str, ran: SlurmJob, result: Result, decision: Decision, log: list[Decision]
    ) -> list[Change]:
        """Queue a job again that ran out of GPU memory, with what would have been enough."""
        note = note_of(ran.admin_comment)
        if note is None or not self.settings.places:
            return []
        needs = max(result.needs_mib, result.peak_mib)
        largest = max(
            (node.gpu_model.mem_mib for node in self.world.scheduler.cluster.nodes if node.gpu_model),
            default=0,
        )
        if note.retries >= self.settings.retries or 0 < largest < needs:
            why = f"it ran out of GPU memory {note.retries + 1} times, and needs {needs} MiB: ask for gpu_mem={needs}M"
            log.append(replace(decision, event=GIVEN_UP, why=why))
            return []
        again = replace(note, share=None, best_effort=False, retries=note.retries + 1, needs_mib=needs)
        log.append(replace(decision, event=TAKEN_BACK, why=f"out of GPU memory: again with {needs} MiB"))
        return [Change(job_id, requeue=True, hold=True, node_list="", admin_comment=str(again))]

    def _started(
        self, before: dict[str, SlurmJob], found: Candidates, now_ms: int, known: bool
    ) -> list[Decision]:
        """The jobs that Slurm has started since the last look."""
        log = []
        for job_id, job in (self._runs or {}).items():
            if job_id in before or not known:
                self._placed.pop(job_id, None)
                continue
            ours = found.running[job_id]
            placed = self._placed.pop(job_id, None)
            self._wait_s.pop(job_id, None)
            log.append(Decision(
                now_ms, STARTED, job_id, job.raw_id, submit_ms=job.submit_ms, start_ms=job.start_ms, gpus=ours.gpus,
                milli=ours.share.milli, mem_mib=ours.share.mem_mib, user=job.user, application=ours.application,
                where=placed.where if placed else job.node_list,
            ))  # fmt: skip
        return log

    def _back(self, found: Candidates, now_ms: int, log: list[Decision]) -> list[Change]:
        """Jobs that berth does not decide on after all, that Slurm does not start, or that somebody let loose."""
        changes = []
        for job_id, (note, why) in found.to_give_back.items():
            changes.append(given_back(job_id, note, found.jobs[job_id].tres_per_node))
            log.append(self._line(now_ms, GIVEN_BACK, found.jobs[job_id], why))
        for job_id in found.loose:
            changes.append(taken_back(job_id, found.notes[job_id]))
            log.append(self._line(now_ms, TAKEN_BACK, found.jobs[job_id], found.kept_back[job_id]))
        for job_id, placed in [*self._placed.items()]:
            job = found.jobs.get(job_id)
            if job is None or not job.waits:
                continue
            slow = cause_after(job.reason) in ("resources", "priority")  # Slurm has not come to it yet
            patience_s = self.settings.patience_s * (SLOW if slow else 1)
            if job.held or now_ms - placed.at_ms > patience_s * 1000:
                self._placed.pop(job_id)
                self.world.take_back(job_id, now_ms)
                wait_s = min(LONGEST_WAIT_S, 2 * self._wait_s.get(job_id, self.settings.patience_s / 2))
                self._wait_s[job_id] = wait_s
                self._refused[job_id] = (now_ms + int(1000 * wait_s), job.reason)
                changes.append(taken_back(job_id, placed.note))
                log.append(self._line(now_ms, TAKEN_BACK, job, f"Slurm: {job.reason}"))
                found.kept_back[job_id] = f"Slurm: {job.reason}"
        return changes

    @staticmethod
    def _line(now_ms: int, event: str, job: SlurmJob, why: str) -> Decision:
        return Decision(now_ms, event, job.id, job.raw_id, submit_ms=job.submit_ms, user=job.user, why=why)

    # What is decided

    def _place(
        self, placements: list[Placement], found: Candidates, changes: list[Change], now_ms: int
    ) -> list[Decision]:
        """Carry out what was decided, and hold what waits."""
        log, orders = [], {}
        for placement in placements:
            job_id = placement.job.id
            if job_id not in found.notes:
                self.world.take_back(job_id, now_ms)
                continue
            orders[job_id] = order_of(
                placement, found.notes[job_id], self._rows(placement), found.jobs[job_id].tres_per_node
            )
        holds = {
            found.jobs[job_id].array_id or job_id: Change(found.jobs[job_id].array_id or job_id, hold=True)
            for job_id in found.to_hold
            if job_id not in orders and job_id not in found.to_give_back
        }
        failed = self._apply([*holds.values(), *changes, *orders.values()])
        for placement in placements:
            job_id = placement.job.id
            if job_id not in orders:
                continue
            decision = self._decision(PLACED, placement, found.jobs[job_id], now_ms)
            if job_id in failed:
                self.world.take_back(job_id, now_ms)
                until_ms = now_ms + int(1000 * self.settings.patience_s)
                self._refused[job_id] = (until_ms, failed[job_id])
                log.append(replace(decision, event=TAKEN_BACK, why=failed[job_id]))
            else:
                self._placed[job_id] = _Waiting(now_ms, found.notes[job_id], decision.where)
                log.append(decision)
        return log

    def _advise(self, placements: list[Placement], found: Candidates, now_ms: int) -> list[Decision]:
        """Say what would have been started, once a job, and forget it."""
        log = []
        for placement in placements:
            if placement.job.id not in self._advised:
                self._advised.add(placement.job.id)
                log.append(self._decision(ADVISED, placement, found.jobs[placement.job.id], now_ms))
        if placements:
            self.world.undo(placements, now_ms)
        return log

    def _decision(self, event: str, placement: Placement, job: SlurmJob, now_ms: int) -> Decision:
        ours: Job = placement.job
        where = ",".join(
            f"{name}:{'+'.join(map(str, at))}" if at != (NO_GPU,) else name
            for name, at in gpus_by_node(placement, self._rows(placement)).items()
        )
        return Decision(
            now_ms, event, ours.id, job.raw_id, policy=self.settings.policy, submit_ms=ours.submit_ms, gpus=ours.gpus,
            milli=placement.share.milli, mem_mib=placement.share.mem_mib, where=where, user=ours.user,
            application=ours.application,
        )  # fmt: skip

    def _rows(self, placement: Placement) -> dict[int, SlurmNode]:
        return {slot.node: self.world.node_named(slot.node) for slot in placement.slots}

    def _tell(self, found: Candidates, now_ms: int) -> None:
        """Write what `berth slurm status` and `why` show."""
        order = {job.id: at for at, job in enumerate(found.waiting)}
        self.why = dict(found.kept_back)
        for job_id, at in order.items():
            if job_id not in self._placed:
                never = self.world.never.get(job_id)
                self.why[job_id] = (
                    never or f"no room by policy {self.settings.policy}; {at} submitted before it wait"
                )
        for job_id, placed in self._placed.items():
            self.why[job_id] = f"placed on {placed.where}, and Slurm has not started it yet"
        values = {
            "at_ms": now_ms, "pid": os.getpid(), "mode": "place" if self.settings.places else "advise",
            "policy": self.settings.policy, "partitions": sorted(self.settings.partitions),
            "waiting": len(found.waiting), "kept_back": len(found.kept_back), "running": len(found.running),
            "placed": len(self._placed), "unplaced": self.world.unplaced, "refused": self.world.refused[:5],
            "decide_s": round(self.decide_s, 4), "queries": self._controller.queries, "why": self.why,
        }  # fmt: skip
        with whole_file(self.settings.state / STATUS) as aside:
            aside.write_text(json.dumps(values), encoding="utf-8")

    def run(self, say: Callable[[str], None], *, until: Callable[[], bool] = lambda: False) -> None:
        """Step for ever, no more often than one query an interval on average; what goes wrong is said, once each."""
        said, wait_s = "", self.settings.interval_s
        while not until():
            queries = self._controller.queries
            try:
                self.step()
                wait_s = self.settings.interval_s * max(1, self._controller.queries - queries)
                if said:
                    say("Slurm answers again")
                said = ""
            except BerthError as error:
                if str(error) != said:
                    said = str(error)
                    say(said)
                    if not isinstance(error, LiveError):
                        self.world.forget()  # a policy or a knowledge failed: begin with what Slurm has
                wait_s = min(60.0, 2 * wait_s)
            end = time.monotonic() + wait_s
            while not until() and (left := end - time.monotonic()) > 0:
                time.sleep(min(0.2, left))

    def keep_history(self, history: Path) -> None:
        """Keep what the nodes are and which policy decides, so that the history can be replayed."""
        with contextlib.suppress(BerthError):
            nodes = self.world.scheduler.cluster.nodes
            keep_machine(history, nodes, [(int(time.time() * 1000), self.settings.policy)])
