"""Which waiting jobs berth may decide on: never those that Slurm keeps back by its own rules.

`Priorities` computes Slurm's own priority of a job that is held: its PriorityMultifactor, from what Slurm's commands
print. A held job has priority 0 in Slurm, and `sprio` leaves it out, so it is computed here as the plugin does it: each
factor from 0 to 1 times its weight (slurm.schedmd.com/priority_multifactor.html). Job size, TRES, association and site
factors are left out; `berth slurm check` says so where the site gives them a weight.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from berth.history.values.applications import Rules
from berth.history.values.causes import cause_after
from berth.history.values.durations import slurm_s
from berth.live.slurm.controller import View
from berth.live.slurm.jobs import SlurmJob, tasks_of
from berth.live.slurm.nodes import SlurmPartition
from berth.live.slurm.requests import Cards, LeftToSlurmError, Note, job_of, note_of
from berth.model import Job, Share

_AFTER = re.compile(r"(after\w*):(\d+)(?:_(?:\d+|\*))?\(unfulfilled\)")
_SINGLETON = "singleton(unfulfilled)"
MOST_TASKS = 200
"""Waiting tasks of one array that are looked at; the next come as these start."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose jobs berth decides on."""

    places: bool
    """Whether it places held jobs; else it advises on those that wait by themselves."""
    partitions: Set[str] = frozenset()
    """Empty: all, to advise on; none, to place."""
    qos: Set[str] = frozenset()

    def has(self, job: SlurmJob) -> bool:
        """Whether the job is of its partitions or QoS."""
        if not self.partitions and not self.qos:
            return not self.places
        return job.partition in self.partitions or job.qos in self.qos


@dataclass(slots=True)
class Candidates:
    """What one view has for the scheduler."""

    waiting: list[Job] = field(default_factory=list)
    """Jobs to decide on, in the order in which they were submitted."""
    running: dict[str, Job] = field(default_factory=dict)
    notes: dict[str, Note] = field(default_factory=dict)
    """Of the waiting jobs that berth holds, by id."""
    jobs: dict[str, SlurmJob] = field(default_factory=dict)
    """All jobs of the view, by id."""
    kept_back: dict[str, str] = field(default_factory=dict)
    """Waiting jobs that are not decided on now, and why."""
    to_hold: list[str] = field(default_factory=list)
    """Held by the plugin, which a user could undo: they need an administrator's hold."""
    to_give_back: dict[str, tuple[Note, str]] = field(default_factory=dict)
    """Jobs that berth took and cannot decide on, and why."""
    unheld: list[str] = field(default_factory=list)
    """Jobs with berth's note that are not held, though berth has not placed them."""
    outside: list[str] = field(default_factory=list)
    """Jobs that are held with berth's note, and that this berth does not place: the watchdog gives them back."""


class Others:
    """The jobs, and arrays, that wait or run, for what a held job waits for: Slurm does not look at the dependency of a
    held job. It does once the job is released, and then starts it or not."""

    def __init__(self, jobs: Iterable[SlurmJob]) -> None:
        self._waits: dict[str, bool] = {}
        """Whether some of it waits, by the number of the job or array."""
        self._namesakes: dict[tuple[str, str], list[SlurmJob]] = {}
        for job in jobs:
            head = _head(job)
            self._waits[head] = job.waits or self._waits.get(head, False)
            self._namesakes.setdefault((job.user, job.name), []).append(job)

    def let_go(self, job: SlurmJob) -> bool:
        """Whether nothing is left that a job waits for."""
        return all(self._is_over(part, job) for part in re.split("[,?]", job.dependency))

    def _is_over(self, part: str, job: SlurmJob) -> bool:
        if part == _SINGLETON:
            return not any(
                _head(each) != _head(job) and (each.runs or int(_head(each)) < int(_head(job)))
                for each in self._namesakes.get((job.user, job.name), ())
            )
        found = _AFTER.fullmatch(part)
        if found is None:
            return False
        if found[1] == "after":  # the other's start is enough
            return not self._waits.get(found[2], False)
        return found[2] not in self._waits


def _head(job: SlurmJob) -> str:
    """The number of a job, of its array, or of the heterogeneous job of which it is a component."""
    return re.split(r"[_+]", job.id)[0]


class Reader:
    """Makes candidates of a view."""

    def __init__(self, scope: Scope, cards: Cards, rules: Rules, retries: int) -> None:
        self._scope, self._cards, self._rules, self._retries = scope, cards, rules, retries

    def read(self, view: View, priorities: Priorities, placed: Set[str]) -> Candidates:
        """Sort out the jobs of a view. `placed` are those that berth has placed and that have not started yet."""
        found = Candidates()
        self._cards.update(view.nodes)
        up = {each.name for each in view.partitions if each.up}
        others = Others(view.jobs)
        for job in tasks_of(view.jobs, MOST_TASKS):
            found.jobs[job.id] = job
            if job.runs:
                found.running[job.id] = self.taken_as(job, priorities.of_job(job, view.at_ms))
            elif job.waits:
                mine = self._scope.has(job)
                if mine:
                    self._waiting(job, found, priorities, placed, view.at_ms, up, others)
                if job.held and not (mine and self._scope.places) and note_of(job.admin_comment) is not None:
                    found.outside.append(job.id)
        if self._scope.places:
            _give_back_whole(found)
        found.waiting.sort(key=place_of)
        return found

    def _job_of(self, job: SlurmJob, priority: int) -> Job:
        """The job as the scheduler knows it; LeftToSlurmError as in `job_of`."""
        retries = self._retries if self._scope.places and note_of(job.admin_comment) is not None else 0
        return job_of(job, self._cards, self._rules, priority=priority, retries=retries)

    def taken_as(self, job: SlurmJob, priority: int = 0) -> Job:
        """A job that runs, or ran, as the scheduler knows it. One that berth does not decide on has what Slurm says."""
        try:
            return self._job_of(job, priority)
        except LeftToSlurmError:
            return self._of_slurm(job)

    def _of_slurm(self, job: SlurmJob) -> Job:
        nodes = max(1, job.nodes)
        gpus, share = job.tres.gpus or job.tres.gpus_a_node * nodes, Share()
        if not gpus and job.tres.shards:
            gpus = nodes
            milli = min(1000, 1000 * job.tres.shards // nodes // max(1, self._cards.shards_a_gpu))
            share = Share(max(1, milli), self._cards.least_mib * milli // 1000)
        return Job(
            job.id,
            job.submit_ms,
            None,
            user=job.user,
            gpus=gpus,
            share=share,
            nodes=nodes,
            cpu_milli=1000 * job.tres.cpus,
            mem_mib=job.tres.mem_mib,
            time_limit_ms=job.time_limit_ms,
            retries=0,
            virtual_cluster=job.partition,
        )

    def _waiting(
        self,
        job: SlurmJob,
        found: Candidates,
        priorities: Priorities,
        placed: Set[str],
        now_ms: int,
        up: Set[str],
        others: Others,
    ) -> None:
        note = note_of(job.admin_comment)
        if self._scope.places:
            if note is None:
                found.kept_back[job.id] = "Slurm decides: berth has not taken it"
                return
            found.notes[job.id] = note
            if job.id in placed:
                return
            if not job.held:
                found.unheld.append(job.id)
                found.kept_back[job.id] = "it was not held, and is held again"
                return
            if job.reason == "JobHeldUser":
                found.to_hold.append(job.id)
        try:
            ours = self._job_of(job, priorities.of_job(job, now_ms))
        except LeftToSlurmError as why:
            found.kept_back[job.id] = str(why)
            if note is not None and self._scope.places:
                found.to_give_back[job.id] = (note, str(why))
            return
        if why_not := by_slurm(job, self._scope.places, now_ms, up, others):
            found.kept_back[job.id] = why_not
        else:
            found.waiting.append(ours)


def _give_back_whole(found: Candidates) -> None:
    """Leave a heterogeneous job whole to Slurm if berth cannot decide on one of its components, or none has GPUs."""
    components: dict[str, list[SlurmJob]] = {}
    for job in found.jobs.values():
        if job.het and job.waits:
            components.setdefault(job.het_id, []).append(job)
    for jobs in components.values():
        odd = [job.id for job in jobs if job.id not in found.notes or job.id in found.to_give_back]
        why = f"berth does not decide on its component {odd[0]}" if odd else "none of its components has GPUs"
        notes = [found.notes[job.id] for job in jobs if job.id in found.notes]
        if not odd and any(note.per_node or note.per_job or note.per_task for note in notes):
            continue
        for job in jobs:  # those of other partitions too: released with the rest, they would run without GPUs
            if (note := found.notes.get(job.id) or note_of(job.admin_comment)) is not None:
                found.to_give_back.setdefault(job.id, (note, why))
                found.kept_back.setdefault(job.id, why)
    found.waiting = [job for job in found.waiting if job.id not in found.to_give_back]


def by_slurm(job: SlurmJob, held: bool, now_ms: int, up: Set[str], others: Others) -> str:
    """Why Slurm's own rules keep a job back; empty if they do not, as far as is known before its release. `others` are
    the jobs that wait or run."""
    if job.partition not in up:
        return f"its partition {job.partition} is not up"
    if "failed" in job.dependency or ("unfulfilled" in job.dependency and not (held and others.let_go(job))):
        return f"Dependency: {job.dependency}"
    if job.start_ms is not None and job.start_ms > now_ms and (held or job.reason == "BeginTime"):
        begins = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job.start_ms / 1000))
        return f"BeginTime: it begins at {begins} at the earliest" + (
            "; it was queued again, and Slurm runs no Prolog for it on a node that still knows the attempt before"
            if job.restarts
            else ""
        )
    if not held and (job.held or cause_after(job.reason) not in ("resources", "priority")):
        return job.reason
    return ""


def place_of(job: Job) -> tuple[int, ...]:
    """A job's place in the queue: in the order of submission, and of ids."""
    numbers = (int(part) for part in job.id.replace("+", "_").split("_") if part.isdigit())
    return (job.submit_ms, *numbers)


LEFT_OUT = ("PriorityWeightAssoc", "PriorityWeightJobSize", "PriorityWeightTRES", "PrioritySiteFactorPlugin")


TIER = 1 << 33
"""What a tier of partitions is worth: more than any priority of Slurm's, which has 32 bits."""
HIGHEST = 1 << 60
"""The priority of a run that makes room for no other job."""


@dataclass(frozen=True, slots=True)
class Priorities:
    """The weights of a site, and the shares of its users."""

    multifactor: bool = False
    """False: priority/basic, first come, first served."""
    age: int = 0
    max_age_s: int = 7 * 86_400
    fair_share: int = 0
    partition: int = 0
    shares: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """The fair-share factor by account and user."""
    partition_factors: Mapping[str, float] = field(default_factory=dict)
    """By name, from 0 to 1."""
    tiers: Mapping[str, int] = field(default_factory=dict)
    """The PriorityTier of each partition, less the lowest."""

    @classmethod
    def of(
        cls,
        configuration: Mapping[str, str],
        shares: Mapping[tuple[str, str], float],
        partitions: Iterable[SlurmPartition],
    ) -> Priorities:
        """From `scontrol show config`, `sshare`, and the partitions."""
        partitions = tuple(partitions)
        most = max((each.priority_factor for each in partitions), default=0) or 1
        lowest = min((each.tier for each in partitions), default=0)

        def number(name: str) -> int:
            text = configuration.get(name, "0").split()[0] if configuration.get(name, "").split() else "0"
            return int(text) if text.isdecimal() else 0

        return cls(
            configuration.get("PriorityType", "").endswith("multifactor"),
            number("PriorityWeightAge"),
            slurm_s(configuration.get("PriorityMaxAge", "7-0")) or 7 * 86_400,
            number("PriorityWeightFairShare"),
            number("PriorityWeightPartition"),
            shares,
            {each.name: each.priority_factor / most for each in partitions},
            {each.name: each.tier - lowest for each in partitions},
        )

    def of_run(self, job: SlurmJob) -> int:
        """Of a job that berth started: above all that wait in its tier, and below those of the next."""
        return (self.tiers.get(job.partition, 0) + 1) * TIER - 1

    def of_job(self, job: SlurmJob, now_ms: int) -> int:
        """The higher, the sooner: by the tier of its partition first."""
        return self.tiers.get(job.partition, 0) * TIER + self._in_tier(job, now_ms)

    def _in_tier(self, job: SlurmJob, now_ms: int) -> int:
        """A job that is not held has its priority from Slurm."""
        if job.priority:
            return job.priority
        if not self.multifactor:
            return 0
        waited_s = max(0, now_ms - (job.eligible_ms or job.submit_ms)) / 1000
        aged = min(1.0, waited_s / self.max_age_s)
        share = self.shares.get((job.account, job.user), 0.0)
        sum_of = self.age * aged + self.fair_share * share
        sum_of += self.partition * self.partition_factors.get(job.partition, 0.0)
        return max(1, round(sum_of) - job.nice)
