"""Why a job waits, in the words of every site: from the scheduler's state, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from berth.cluster import Cluster
from berth.cluster.shadow import Shadow
from berth.counts import counted
from berth.knowledge import believed_run
from berth.knowledge.belief import DEFAULT
from berth.live.driver.gangs import gang_title
from berth.live.driver.site import Gpu, SiteJob
from berth.live.driver.words import sizes, starts_text
from berth.model import FIRST_LOOK_MS, Job, starting_tasks
from berth.policies.protocol import GivesMore, WaitsForRuns
from berth.policies.schemes.quotas import Quotas
from berth.scheduler import Scheduler, StartInterval

MOST_WAIT_MS = 5 * 366 * 24 * 3_600_000
"""A reservation that begins longer after the submission is too far away to name a date."""
MOST_NAMED = 5
UNPLACED = "there is room; the policy has not placed it"


class WaitKind(StrEnum):
    """What holds a job up."""

    NODES = "nodes"
    """No node that is up may run it."""
    CPU = "cpu"
    MEMORY = "memory"
    ROOM = "room"
    """No GPUs with enough room are free."""
    TURN = "turn"
    """There is room, and the policy starts others first."""
    MISFIT = "misfit"
    """No node could hold it if nothing else ran."""
    START = "start"
    """Its last start failed, and the next one has to wait."""
    GANG = "gang"
    """It is a task of a gang of which others are missing."""


class WaitReason(NamedTuple):
    """Why a job waits."""

    kind: WaitKind
    obstacle: str
    """What holds it up, in words."""
    jobs_before: int = 0
    """How many waiting jobs are before it in the queue."""
    reserved_ms: int | None = None
    """When its reservation begins; None: it has none, or one too far away to name."""
    starts: StartInterval | None = None
    """When it is believed to start, in 80 of 100 cases; None: unknown."""
    unknown: str = ""
    """Why its start is unknown, in words; empty if it is known."""

    @property
    def text(self) -> str:
        before, reserved_ms = self.jobs_before, self.reserved_ms
        parts = [self.obstacle]
        if before:
            parts.append(f"{counted(before, 'job')} before it")
        if self.starts is not None:
            parts.append(starts_text(*self.starts))
        elif self.unknown:
            parts.append(self.unknown)
        elif reserved_ms is not None:
            parts.append(starts_text(reserved_ms, reserved_ms))
        return "; ".join(parts)


class Candidate(NamedTuple):
    """One GPU as a place for a job."""

    gpu: Gpu
    free_milli: int
    free_mib: int
    lacking: tuple[str, ...]
    """What it is short of, in words; empty if it has room."""
    left_milli: int
    """What would be left of it: best fit takes the GPU that is left with least."""
    left_mib: int


class WaitReasons:
    """Explains waiting jobs as of one moment. Jobs that ask for the same are looked at once."""

    def __init__(
        self,
        scheduler: Scheduler,
        reserved_ms: Mapping[str, int],
        starts: Mapping[str, StartInterval],
        startless: Container[str],
    ) -> None:
        """`reserved_ms` is when the reservation of a job begins, `starts` its start interval, both by its id;
        `startless` are the ids of which a forecast found no start."""
        self._cluster: Cluster = scheduler.cluster
        self._knowledge = scheduler.knowledge
        self._queue = scheduler.queue
        self._before = {job.id: at for at, job in enumerate(scheduler.queue)}
        self._reserved_ms = reserved_ms
        self._starts = starts
        self._startless = startless
        self._known: dict[object, tuple[WaitKind, str]] = {}
        self._behind_unknown_run: dict[int, bool] = {}
        policy = scheduler.policy
        self._quotas = policy if isinstance(policy, Quotas) and not policy.borrow else None
        self._waits_for: Callable[[Job], str] = (
            policy.waits_for if isinstance(policy, WaitsForRuns) else _no_run
        )
        self._given: Callable[[Job], Job] = policy.given if isinstance(policy, GivesMore) else _as_asked

    def of(self, waiting: SiteJob, job: Job) -> WaitReason:
        """Why this job waits; `job` asks for what it turned out to need, or is the gang that it waits in."""
        job = self._given(job)
        if job.tasks:
            return self._of_gang(job)
        alike = (waiting.only_gpus, _room_of(job))
        known = self._known.get(alike)
        if known is None:
            known = self._known[alike] = self._obstacle(waiting.only_gpus, job)
        kind, obstacle = known
        reserved_ms = self._start_ms(job)
        if kind in (WaitKind.TURN, WaitKind.ROOM) and (quota := self._over_quota(job)):
            kind, obstacle = WaitKind.TURN, quota
        elif kind in (WaitKind.TURN, WaitKind.ROOM) and (run := self._waits_for(job)):
            kind = WaitKind.TURN
            obstacle = (
                f"waits until job {run} has been measured for {FIRST_LOOK_MS // 1000} s, because nothing is known of"
                f" application '{job.application}'"
            )
        elif kind is WaitKind.TURN and (heads := self._kept_for(job)):
            more = f" and {len(heads) - MOST_NAMED:,} more" if len(heads) > MOST_NAMED else ""
            noun = "job" if len(heads) == 1 else "jobs"
            obstacle = f"room is kept for {noun} {', '.join(heads[:MOST_NAMED])}{more}"
        elif kind is WaitKind.ROOM and reserved_ms is None and job.id in self._reserved_ms:
            obstacle += self._gpus_out_of_use(waiting.only_gpus, job)
        return self._with_start(WaitReason(kind, obstacle, self._before.get(job.id, 0), reserved_ms), job)

    def _over_quota(self, job: Job) -> str:
        """What a job's virtual cluster has of its quota, if the job would exceed it; else nothing."""
        if self._quotas is None or not job.gpus:
            return ""
        pool, accounts = job.virtual_cluster, self._cluster.usage().virtual_clusters
        held_milli = accounts[pool].held_milli if pool in accounts else 0
        quota_milli = self._quotas.quotas.get(pool, 0)
        if held_milli + job.gpus * job.share.milli <= quota_milli:
            return ""
        gpus = counted(quota_milli / 1000, "GPU")
        return f"the quota of '{pool}' is {gpus}, of which {held_milli / 1000:g} are taken"

    def _with_start(self, reason: WaitReason, job: Job) -> WaitReason:
        """A reason with the start interval of a job, or with why it has none."""
        interval = self._starts.get(job.id)
        if interval is not None:
            useful = interval.to_ms - job.submit_ms <= MOST_WAIT_MS
            return reason._replace(starts=interval) if useful else reason
        may_start = reason.kind is not WaitKind.NODES
        if may_start and job.id in self._startless and (which := self._unknown_before(job)):
            unknown = f"start unknown: {which} has no time limit, and no job like it has ended yet"
            return reason._replace(reserved_ms=None, unknown=unknown)
        return reason

    def _unknown_before(self, job: Job) -> str:
        """Which kind of job with an unknown run time this one waits for; empty if there is none."""
        alike = self._cluster.request(job)
        if alike not in self._behind_unknown_run:
            self._behind_unknown_run[alike] = any(
                self._cluster.allows(job, row) for row in self._unknown_rows
            )
        if self._behind_unknown_run[alike]:
            return "a running job"
        before = self._before.get(job.id, len(self._before))
        return "a job before it" if self._first_unknown < before else ""

    @cached_property
    def _unknown_rows(self) -> list[int]:
        """The nodes on which a job runs whose run time is unknown."""
        unknown = (run for run in self._cluster.running.values() if self._is_unknown(run.job))
        return list({slot.node: None for run in unknown for slot in run.slots})

    @cached_property
    def _first_unknown(self) -> int:
        """The place in the queue of the first job whose run time is unknown; the queue's length if there is none."""
        return next((at for at, job in enumerate(self._queue) if self._is_unknown(job)), len(self._before))

    def _is_unknown(self, job: Job) -> bool:
        if job.time_limit_ms is not None:
            return False
        spread = believed_run(job, self._knowledge)
        return spread is None or spread.basis == DEFAULT

    def _start_ms(self, job: Job) -> int | None:
        """When the reservation of a job begins; None if it has none, or none with a date that means anything."""
        reserved_ms = self._reserved_ms.get(job.id)
        return None if reserved_ms is None or reserved_ms - job.submit_ms > MOST_WAIT_MS else reserved_ms

    def _kept_for(self, job: Job) -> list[str]:
        """The jobs whose reservations this one could be in the way of."""
        cluster = self._cluster
        nodes = range(len(cluster.nodes))
        names = []
        for job_id in self._reserved_ms:
            head = self._queue.named(job_id)
            if head is None or job_id == job.id or self._start_ms(head) is None:
                continue
            first = next(iter(starting_tasks(head))) if head.tasks else head
            if any(cluster.allows(job, row) and cluster.allows(first, row) for row in nodes):
                names.append(first.id)
        return names

    def _gpus_out_of_use(self, only_gpus: Sequence[Gpu], job: Job) -> str:
        """What keeps a job from starting even when all that runs has ended; empty if that is not known."""
        cluster, share = self._cluster, job.share
        room = Shadow(cluster)
        for run in cluster.running.values():
            room.end(run)
        count = 0
        for row, node in enumerate(cluster.nodes):
            card_mib = node.gpu_model.mem_mib if node.gpu_model is not None else 0
            if not cluster.up[row] or not cluster.allows(job, row) or share.mem_mib > card_mib:
                continue
            for index in range(node.gpus):
                short = room.milli[row, index] < share.milli or room.gpu_mem_mib[row, index] < share.mem_mib
                count += bool(short and (not only_gpus or Gpu(node.name, index) in only_gpus))
        if not count:
            return ""
        return (
            f"; it cannot start while {counted(count, 'GPU is', 'GPUs are')} drained, lost or used by others"
        )

    def _of_gang(self, gang: Job) -> WaitReason:
        """Why the tasks of a gang wait that start together: what holds up one of them, or else room for all."""
        found = [
            self._obstacle((), task)
            for task in {_room_of(task): task for task in starting_tasks(gang)}.values()
        ]
        kind, obstacle = next(
            (each for each in found if each[0] not in (WaitKind.TURN, WaitKind.ROOM)), (None, "")
        )
        if kind is None and (obstacle := self._over_quota(gang)):
            kind = WaitKind.TURN
        elif kind is None:
            kind = WaitKind.ROOM
            obstacle = f"waits for room for {gang.min_tasks} tasks of gang {gang_title(gang.gang)}"
        before = self._before.get(gang.id, 0)
        return self._with_start(WaitReason(kind, obstacle, before, self._start_ms(gang)), gang)

    def _obstacle(self, only_gpus: Sequence[Gpu], job: Job) -> tuple[WaitKind, str]:
        cluster = self._cluster
        rows = [row for row in range(len(cluster.nodes)) if cluster.up[row] and cluster.allows(job, row)]
        if not rows:
            return WaitKind.NODES, "waits for a node that may run it"
        parts = max(1, job.nodes)
        if short := self.lacks_of_nodes(job):
            return short[0]
        roomy = self._roomy_gpus(rows, job, only_gpus)
        if (job.nodes == 0 and sum(roomy) >= job.gpus) or (
            job.nodes and sum(count >= job.gpus // parts for count in roomy) >= parts
        ):
            return WaitKind.TURN, UNPLACED
        return WaitKind.ROOM, "waits for room"

    def lacks_of_nodes(self, job: Job) -> list[tuple[WaitKind, str]]:
        """What all nodes that may run a job are short of, other than GPUs."""
        cluster = self._cluster
        rows = [row for row in range(len(cluster.nodes)) if cluster.up[row] and cluster.allows(job, row)]
        parts = max(1, job.nodes)
        found = []
        cpu_milli, mem_mib = -(-job.cpu_milli // parts), -(-job.mem_mib // parts)
        counted = [row for row in rows if cluster.nodes[row].cpu_milli is not None]
        if counted and len(counted) == len(rows):
            best = max(counted, key=lambda row: int(cluster.free.cpu_milli[row]))
            free, there = int(cluster.free.cpu_milli[best]), cluster.nodes[best].cpu_milli or 0
            if free < cpu_milli:
                text = f"{free / 1000:g} of {there / 1000:g} CPUs are free, {cpu_milli / 1000:g} wanted"
                found.append((WaitKind.CPU, f"waits for CPUs: {text}"))
        counted = [row for row in rows if cluster.nodes[row].mem_mib is not None]
        if counted and len(counted) == len(rows):
            best = max(counted, key=lambda row: int(cluster.free.mem_mib[row]))
            free, there = int(cluster.free.mem_mib[best]), cluster.nodes[best].mem_mib or 0
            if free < mem_mib:
                text = "{} of {} of a node's memory is free, {} wanted".format(*sizes(free, there, mem_mib))
                found.append((WaitKind.MEMORY, f"waits for memory: {text}"))
        return found

    def _roomy_gpus(self, rows: Iterable[int], job: Job, only_gpus: Sequence[Gpu]) -> list[int]:
        """How many GPUs of each of these nodes have room for a job."""
        free, share = self._cluster.free, job.share
        counts = []
        for row in rows:
            node = self._cluster.nodes[row]
            there = slice(0, node.gpus)
            roomy = (free.milli[row, there] >= share.milli) & (free.gpu_mem_mib[row, there] >= share.mem_mib)
            if only_gpus:
                named = {gpu.index for gpu in only_gpus if gpu.node == node.name}
                roomy &= np.isin(np.arange(node.gpus), sorted(named))
            counts.append(int(roomy.sum()))
        return counts

    def candidates(self, waiting: SiteJob, job: Job) -> list[Candidate]:
        """Each GPU of the nodes that are up, with what it lacks for a job."""
        job = self._given(job)
        found = []
        for row, node in enumerate(self._cluster.nodes):
            if not self._cluster.up[row]:
                continue
            card_mib = node.gpu_model.mem_mib if node.gpu_model is not None else 0
            wanted_mib = job.share.mem_mib or (card_mib if job.share.milli >= 1000 else 0)
            for index in range(node.gpus):
                gpu = Gpu(node.name, index)
                milli = int(self._cluster.free.milli[row, index])
                mem_mib = int(self._cluster.free.gpu_mem_mib[row, index])
                lacking = []
                if waiting.only_gpus and gpu not in waiting.only_gpus:
                    lacking.append("it is not among those named by --gpu")
                if milli < job.share.milli:
                    lacking.append(
                        f"{milli / 10:g} % of its compute is free, {job.share.milli / 10:g} % wanted"
                    )
                if mem_mib < wanted_mib:
                    lacking.append("{} is free, {} wanted".format(*sizes(mem_mib, wanted_mib)))
                found.append(
                    Candidate(
                        gpu, milli, mem_mib, tuple(lacking), milli - job.share.milli, mem_mib - wanted_mib
                    )
                )
        return found


def _as_asked(job: Job) -> Job:
    return job


def _no_run(job: Job) -> str:
    return ""


def _room_of(job: Job) -> Hashable:
    """What jobs have in common that wait for the same room."""
    return job.gpus, job.nodes, job.share, job.cpu_milli, job.mem_mib, job.models, job.labels
