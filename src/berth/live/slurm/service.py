"""`berth slurm run`: look at Slurm's queue every few seconds, decide, and say so or place.

It keeps nothing that it could not find again in Slurm: killed and started anew, it goes on where Slurm is.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field
from pathlib import Path

from berth.errors import BerthError, LiveError
from berth.experiments.lived import keep_machine
from berth.files import whole_file
from berth.history.values.applications import read_rules
from berth.history.values.causes import cause_after
from berth.knowledge import Knowledge, make_knowledge
from berth.live.slurm.candidates import Candidates, Reader, Scope
from berth.live.slurm.claim import Claim, ClaimChangedError
from berth.live.slurm.controller import Change, Controller, View, forgotten_after_s
from berth.live.slurm.decisions import (
    ADVISED,
    GIVEN_BACK,
    GIVEN_UP,
    PLACED,
    TAKEN_BACK,
    Decision,
    append,
)
from berth.live.slurm.happened import Happened, Waiting
from berth.live.slurm.jobs import SlurmJob
from berth.live.slurm.nodes import SlurmNode, SlurmPartition
from berth.live.slurm.placing import given_back, gpus_by_node, order_of, taken_back
from berth.live.slurm.priorities import Priorities
from berth.live.slurm.requests import Cards, LeftToSlurmError, note_of
from berth.live.slurm.results import names
from berth.live.slurm.world import World
from berth.model import NO_GPU, Job, Placement

__all__ = ["DECISIONS", "STATUS", "Service", "Settings"]

DECISIONS = "decisions.jsonl"
STATUS = "status.json"
RESULTS = "results"
SCOPE = "scope"
"""Whose jobs berth places: a line for each partition and QoS, for the watchdog; it is not there while berth advises."""
ALIVE_S = 5.0
"""How often berth shows, between looks, that it lives."""
NODES_EVERY = 4
"""Nodes and partitions are queried on every fourth look."""
TICK_S = 0.05
"""Time between two checks for what an Epilog has left, which ask nothing of Slurm."""
BORROWED = 3
"""How many looks may come early because of that, and be made up for by waiting longer."""
SHARES_EVERY_S = 300
"""PriorityCalcPeriod's default: Slurm does not reckon them more often."""
SLOW = 4
"""Multiplies the patience while Slurm names only resources or priority."""
LEAST_CLAIM_S = 60.0
CLAIM_INTERVALS = 40
"""How many intervals the right to place lasts: the nodes are read, and it is renewed, at least every fourteen."""
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
    ahead_s: float = 10.0
    """How long before the end of a job, as far as that is known, its GPUs are given to the next. Longer, and more is
    decided on that a job which ends sooner than believed, or a new one, would have changed."""


class Service:
    """One berth beside one Slurm."""

    def __init__(
        self, settings: Settings, controller: Controller, *, channel: Channel | None = None,
        knowledge: Knowledge | None = None, claim: Claim | None = None,
    ) -> None:  # fmt: skip
        """`claim` is the right to place: a berth that places holds it, and one that would place waits for it."""
        self.settings = settings
        self._claim = claim
        self._controller = controller
        self._apply = channel or controller.apply
        self._cards = Cards(settings.card_mib)
        scope = Scope(settings.places, settings.partitions, settings.qos)
        self._rules = read_rules()
        self._reader = Reader(scope, self._cards, self._rules, settings.retries)
        self._knowledge = knowledge or make_knowledge(settings.knowledge)
        self.world = World(
            settings.policy, self._knowledge, self._cards,
            ahead_ms=int(1000 * settings.ahead_s) if settings.places else 0,
        )  # fmt: skip
        self._priorities = Priorities()
        self._shares_at_ms = 0
        self._looks = 0
        self._left: set[str] = set()
        """Jobs of which Epilogs had left something before the last look."""
        self._seen_ns = 0
        """When the folder was last changed in which they leave it, as far as that was looked at."""
        self._nodes: tuple[SlurmNode, ...] = ()
        self._partitions: tuple[SlurmPartition, ...] = ()
        self._placed: dict[str, Waiting] = {}
        self._refused: dict[str, tuple[int, str]] = {}
        self._wait_s: dict[str, float] = {}
        self._advised: set[str] = set()
        self._happened = Happened(
            self.world, controller, self._knowledge, self._cards, self._rules, results=settings.state / RESULTS,
            log=settings.state / DECISIONS, places=settings.places, retries=settings.retries,
        )  # fmt: skip
        self._log: list[Decision] = []
        """What is not written yet."""
        self._unmade: list[Change] = []
        """Changes that were not made because the log could not be written."""
        self._said: dict[str, str] = {}
        """What was logged last of jobs whose change was refused."""
        self._outside: list[str] = []
        self.why: dict[str, str] = {}
        """Why waiting jobs were not started, as of the last look."""
        self.decide_s = 0.0

    def look(self) -> View:
        """What Slurm has now and what has ended: the jobs each time, the nodes now and then."""
        if self._looks % NODES_EVERY == 0 or (self.settings.places and self._claim and self._claim.due):
            self._nodes, self._partitions = self._controller.nodes(), self._controller.partitions()
            if self._claim is not None:
                self._claim.check(self._nodes, self.settings.places)
        if time.time() * 1000 - self._shares_at_ms > SHARES_EVERY_S * 1000:
            configuration = self._controller.configuration()
            self._happened.again_after_s = forgotten_after_s(configuration)
            self._priorities = Priorities.of(
                configuration, self._controller.fair_shares(),
                {each.name: each.priority_factor for each in self._partitions},
            )  # fmt: skip
            self._shares_at_ms = int(time.time() * 1000)
        self._looks += 1
        self._left = names(self.settings.state / RESULTS)
        self._controller.unreadable.clear()
        jobs = self._controller.jobs(known_ends=self._happened.known_ends)
        ended = tuple(job for job in jobs if job.ended)
        live = tuple(job for job in jobs if not job.ended) if ended else jobs
        return View(int(time.time() * 1000), live, self._nodes, self._partitions, ended)

    def step(self) -> None:
        """Look, decide, and place or advise. LiveError where Slurm does not answer: nothing was changed then, nor where
        ClaimChangedError tells that the right to place has passed on."""
        view = self.look()
        now_ms = view.at_ms
        found = self._reader.read(view, self._priorities, self._placed.keys(), self._refused)
        log = self._log
        self.world.restore(now_ms)
        ends = self._happened.ended(view.ended, found, self._placed, now_ms, log)
        self._forget_refusals(found, ends.users)
        changes = [*ends.changes, *self._back(found, now_ms, log)]
        self.world.take(view, found.waiting, found.running, ends.states, ends.peaks_mib)
        for job_id in self.world.lost & self._placed.keys():
            placed = self._placed.pop(job_id)
            self.world.take_back(job_id, now_ms)
            changes.append(taken_back(job_id, placed.note, found.jobs[job_id].dependency))
            log.append(self._line(now_ms, TAKEN_BACK, found.jobs[job_id], "its room is gone"))
        log += self._happened.started(found, self._placed, (job.id for job in found.waiting), now_ms)
        began = time.perf_counter()
        limit = began + self.settings.decide_s
        free = {job_id for job_id in found.notes if not found.jobs[job_id].dependency}
        placements = self.world.decide(
            now_ms, lambda: time.perf_counter() > limit, free if self.settings.places else frozenset()
        )
        self.decide_s = time.perf_counter() - began
        if self.settings.places:
            self._place(placements, found, changes, now_ms)
        else:
            self._advise(placements, found, now_ms)
        self._save()
        self._tell(found, now_ms)
        if self.world.fault is not None:
            raise self.world.fault

    def _save(self) -> None:
        """Write the lines that are not written yet; LiveError leaves them for the next time."""
        append(self.settings.state / DECISIONS, self._log)
        self._log.clear()

    # What is taken and given back

    def _back(self, found: Candidates, now_ms: int, log: list[Decision]) -> list[Change]:
        """Jobs that berth does not decide on after all, that Slurm does not start, or that were released."""
        changes = []
        for job_id, (note, why) in found.to_give_back.items():
            changes.append(given_back(job_id, note, found.jobs[job_id].tres_per_node))
            log.append(self._line(now_ms, GIVEN_BACK, found.jobs[job_id], why))
        for job_id in found.loose:
            note = found.notes[job_id]
            dependency = found.jobs[job_id].dependency if note.share is not None else ""
            changes.append(taken_back(job_id, note, dependency))
            log.append(self._line(now_ms, TAKEN_BACK, found.jobs[job_id], found.kept_back[job_id]))
        for job_id, placed in [*self._placed.items()]:
            job = found.jobs.get(job_id)
            if job is None or not job.waits:
                continue
            ahead = bool(placed.after)
            placed.after = tuple(each for each in placed.after if each in found.running)
            if ahead and not placed.after:
                placed.at_ms = now_ms
            slow = cause_after(job.reason) in ("resources", "priority")  # Slurm has not come to it yet
            patience_s = self.settings.patience_s * (SLOW if slow or placed.after else 1)
            if placed.after:
                patience_s += self.settings.ahead_s
            if job.held or now_ms - placed.at_ms > patience_s * 1000:
                self._placed.pop(job_id)
                self.world.take_back(job_id, now_ms)
                changes.append(taken_back(job_id, placed.note, job.dependency))
                log.append(self._line(now_ms, TAKEN_BACK, job, f"Slurm: {job.reason}"))
                found.kept_back[job_id] = f"Slurm: {job.reason}"
                self._leave(job_id, job.reason, now_ms)
        return changes

    def _leave(self, job_id: str, why: str, now_ms: int) -> None:
        """Leave a job alone for a while, each time for longer, until another of its user's has ended."""
        wait_s = min(LONGEST_WAIT_S, 2 * self._wait_s.get(job_id, self.settings.patience_s / 2))
        self._wait_s[job_id] = wait_s
        self._refused[job_id] = (now_ms + int(1000 * wait_s), why)

    def _forget_refusals(self, found: Candidates, users: Set[str]) -> None:
        """What kept a job back may be over now that another of its user's has ended, and it need not wait for long."""
        for job_id in [*self._refused]:
            job = found.jobs.get(job_id)
            if job is None or job.user in users:
                del self._refused[job_id]
                self._wait_s.pop(job_id, None)
        for job_id in [each for each in self._wait_s if each not in found.jobs]:
            del self._wait_s[job_id]
        self._advised &= found.jobs.keys()

    def _carry_out(self, changes: list[Change], found: Candidates, now_ms: int) -> dict[str, str]:
        """Make changes; what was refused of them is logged, and tried again later."""
        failed = self._apply(changes)
        log = []
        for change in changes:
            why = failed.get(change.job_id)
            if why is None or change.admin_comment is None:  # a hold alone is repeated at the next look
                continue
            job = found.jobs.get(change.job_id)
            raw, submit_ms, user = (job.raw_id, job.submit_ms, job.user) if job is not None else ("", 0, "")
            self._leave(change.job_id, why, now_ms)
            if change.requeue:
                event, why = GIVEN_UP, f"Slurm does not queue it again: {why}"
            elif change.clears:
                event, why = GIVEN_UP, f"its request cannot be given back, and it is tried again later: {why}"
            else:
                event = TAKEN_BACK
            if self._said.get(change.job_id) != why:
                self._said[change.job_id] = why
                log.append(
                    Decision(now_ms, event, change.job_id, raw, submit_ms=submit_ms, user=user, why=why)
                )
        self._said = {job_id: why for job_id, why in self._said.items() if job_id in found.jobs}
        self._log += log
        return failed

    @staticmethod
    def _line(now_ms: int, event: str, job: SlurmJob, why: str) -> Decision:
        return Decision(now_ms, event, job.id, job.raw_id, submit_ms=job.submit_ms, user=job.user, why=why)

    # What is decided

    def _place(
        self, placements: list[Placement], found: Candidates, changes: list[Change], now_ms: int
    ) -> None:
        """Carry out what was decided, and hold what waits. It is logged first: what is not in the log is not done."""
        orders = {}
        for placement in placements:
            job_id = placement.job.id
            if job_id not in found.notes:
                self.world.take_back(job_id, now_ms)
                continue
            job, note = found.jobs[job_id], found.notes[job_id]
            try:
                orders[job_id] = order_of(
                    placement, note, self._rows(placement), job.tres_per_node, self.world.ahead.after(job_id)
                )
            except LeftToSlurmError as why:
                self.world.take_back(job_id, now_ms)
                changes.append(given_back(job_id, note, job.tres_per_node))
                self._log.append(self._line(now_ms, GIVEN_BACK, job, str(why)))
        decided = {
            each.job.id: self._decision(PLACED, each, found.jobs[each.job.id], now_ms) for each in placements
        }
        self._log += [decided[job_id] for job_id in orders]
        try:
            self._save()
        except LiveError:
            for job_id in orders:
                self.world.take_back(job_id, now_ms)
            del self._log[len(self._log) - len(orders) :]
            self._unmade += changes
            raise
        holds = {
            found.jobs[job_id].array_id or job_id: Change(found.jobs[job_id].array_id or job_id, hold=True)
            for job_id in found.to_hold
            if job_id not in orders and job_id not in found.to_give_back
        }
        for job_id in orders:
            note = note_of(orders[job_id].admin_comment or "") or found.notes[job_id]
            self._placed[job_id] = Waiting(
                now_ms, note, decided[job_id].where, self.world.ahead.after(job_id)
            )
        unmade, self._unmade = self._unmade, []
        failed = self._carry_out([*holds.values(), *unmade, *changes, *orders.values()], found, now_ms)
        for job_id in orders.keys() & failed.keys():
            self._placed.pop(job_id)
            self.world.take_back(job_id, now_ms)

    def _advise(self, placements: list[Placement], found: Candidates, now_ms: int) -> None:
        """Say what would have been started, once a job, and forget it."""
        for placement in placements:
            if placement.job.id not in self._advised:
                self._advised.add(placement.job.id)
                self._log.append(self._decision(ADVISED, placement, found.jobs[placement.job.id], now_ms))
        if placements:
            self.world.undo(placements, now_ms)

    def _decision(self, event: str, placement: Placement, job: SlurmJob, now_ms: int) -> Decision:
        ours: Job = placement.job
        where = ",".join(
            f"{name}:{'+'.join(map(str, at))}" if at != (NO_GPU,) else name
            for name, at in gpus_by_node(placement, self._rows(placement)).items()
        )
        return Decision(
            now_ms, event, ours.id, job.raw_id, policy=self.settings.policy, submit_ms=ours.submit_ms, gpus=ours.gpus,
            milli=placement.share.milli, mem_mib=placement.share.mem_mib, where=where, user=ours.user,
            application=ours.application, after=" ".join(self.world.ahead.after(ours.id)),
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
            self.why[job_id] = _why_placed(placed.where, placed.after)
        values = {
            "at_ms": now_ms, "pid": os.getpid(), "mode": "place" if self.settings.places else "advise",
            "policy": self.settings.policy, "partitions": sorted(self.settings.partitions),
            "waiting": len(found.waiting), "kept_back": len(found.kept_back), "running": len(found.running),
            "placed": len(self._placed), "unplaced": self.world.unplaced, "refused": self.world.refused[:5],
            "decide_s": round(self.decide_s, 4), "queries": self._controller.queries, "why": self.why,
            "qos": sorted(self.settings.qos), "outside": found.outside[:100],
            "unreadable": self._controller.unreadable[:5],
        }  # fmt: skip
        self._outside = found.outside
        self._tell_scope()
        with whole_file(self.settings.state / STATUS) as aside:
            aside.write_text(json.dumps(values), encoding="utf-8")

    def _tell_scope(self) -> None:
        """Tell the watchdog whose held jobs are in good hands."""
        path = self.settings.state / SCOPE
        if not self.settings.places:
            path.unlink(missing_ok=True)
            return
        lines = [f"partition {name}" for name in sorted(self.settings.partitions)]
        text = "".join(
            f"{line}\n" for line in (*lines, *(f"qos {name}" for name in sorted(self.settings.qos)))
        )
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            with whole_file(path) as aside:
                aside.write_text(text, encoding="utf-8")

    def run(self, say: Callable[[str], None], *, until: Callable[[], bool] = lambda: False) -> None:
        """Step for ever, no more often than one query an interval on average; what goes wrong is said, once each.
        Raises ClaimChangedError where the right to place has passed on."""
        said, warned, wait_s, paid = "", False, self.settings.interval_s, 0.0
        while not until():
            begun, queries, works = time.monotonic(), self._controller.queries, True
            try:
                self.step()
                wait_s = self.settings.interval_s
                paid = max(paid, begun) + wait_s * max(1, self._controller.queries - queries)
                if said:
                    say("Slurm answers again")
                said = ""
                if self._outside and not warned:
                    say(
                        f"{len(self._outside)} jobs are held for berth that this one does not place, job"
                        f" {self._outside[0]} first; name their partition or QoS, or let the watchdog give them back"
                    )
                warned = bool(self._outside)
            except ClaimChangedError:
                raise
            except BerthError as error:
                if str(error) != said:
                    said = str(error)
                    say(said)
                if not isinstance(
                    error, LiveError
                ):  # a policy or a knowledge failed: begin with what Slurm has
                    self.world.forget()
                    self._placed.clear()
                wait_s, works = min(60.0, 2 * wait_s), False
                paid = time.monotonic() + wait_s
            self._wait(paid, until, works)

    def _wait(self, end: float, until: Callable[[], bool], works: bool) -> None:
        """Wait for the next look, which an Epilog may bring forward; those after it come later for that. A berth that
        works shows meanwhile that it lives, so that the watchdog need not know how often it looks."""
        shown = time.monotonic()
        while not until() and (left := end - time.monotonic()) > 0:
            if works and left <= BORROWED * self.settings.interval_s and self._has_ended():
                return
            time.sleep(min(TICK_S, left))
            if works and time.monotonic() - shown > ALIVE_S:
                shown = time.monotonic()
                with contextlib.suppress(OSError):
                    os.utime(self.settings.state / STATUS)

    def _has_ended(self) -> bool:
        """Whether an Epilog has left something since the last look. The folder is opened, so that one on NFS tells."""
        folder = self.settings.state / RESULTS
        with contextlib.suppress(OSError):
            file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                changed_ns = os.fstat(file).st_mtime_ns
            finally:
                os.close(file)
            if changed_ns != self._seen_ns:
                self._seen_ns = changed_ns
                return not names(folder) <= self._left
        return False

    def keep_history(self, history: Path) -> None:
        """Keep what the nodes are and which policy decides, so that the history can be replayed."""
        with contextlib.suppress(BerthError):
            nodes = self.world.scheduler.cluster.nodes
            keep_machine(history, nodes, [(int(time.time() * 1000), self.settings.policy)])


def _why_placed(where: str, after: tuple[str, ...]) -> str:
    """Why a job that was placed does not run yet."""
    if not after:
        return f"placed on {where}, and Slurm has not started it yet"
    if len(after) == 1:
        return f"placed on {where}, to start when job {after[0]} has ended"
    return f"placed on {where}, to start when jobs {' and '.join(after)} have ended"
