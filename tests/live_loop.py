"""A live driver on a fake clock: what a broker does with real processes, without any."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from berth.cluster import Cluster
from berth.model import GpuSlot, Job, Node, Placement, RecordState
from berth.scheduler import Evicted, Refused, Scheduler


@dataclass(frozen=True)
class Lose:
    """A node vanishes with what runs on it."""

    node: str


@dataclass(frozen=True)
class Back:
    """A lost node is back."""

    node: str


@dataclass(frozen=True)
class Nodes:
    """The cluster has these nodes from now on."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Strangers:
    """Processes of others use so much of a GPU from now on."""

    slot: GpuSlot
    milli: int
    mem_mib: int


@dataclass(frozen=True)
class Withdraw:
    """The user takes a job back, wherever it is; nothing happens if it has ended."""

    job_id: str


@dataclass(frozen=True)
class Replace:
    """The user changes a job that waits; nothing happens if it does not."""

    job: Job


ENDED, OUT, FAILED, LOST, BACK, CHANGED, ARRIVED, WAKE = range(8)
_KINDS = {
    Withdraw: CHANGED,
    Replace: CHANGED,
    Lose: LOST,
    Back: BACK,
    Nodes: CHANGED,
    Strangers: CHANGED,
    Job: ARRIVED,
}


@dataclass
class LiveLoop:
    """Drives a scheduler through a script; run times are the world's, which nobody is told."""

    scheduler: Scheduler
    run_ms: Callable[[Job], int]
    failing: Mapping[str, int] = field(default_factory=dict)
    """How many times the processes of a job cannot be started."""
    running_out: Mapping[str, int] = field(default_factory=dict)
    """How many times a job runs out of memory, half-way."""
    late_ms: int = 0
    """How late the loop is whenever it is to be woken."""
    watch: Callable[[LiveLoop], None] = lambda loop: None
    """Called after everything that happens."""
    starts: list[tuple[int, str, tuple[tuple[int, int], ...]]] = field(default_factory=list)
    """When, which job, where."""
    ends: dict[str, int] = field(default_factory=dict)
    """When each job came to its end."""
    submitted: set[str] = field(default_factory=set)
    replaced: set[str] = field(default_factory=set)
    """Jobs that waited when they were changed."""
    now_ms: int = 0

    def __post_init__(self) -> None:
        self._heap: list[tuple[int, int, int, Any]] = []
        self._serial = 0
        self._failed: dict[str, int] = {}
        self._ran_out: dict[str, int] = {}
        self._live: dict[str, int] = {}  # job -> number of the start that its processes belong to

    def run(self, script: Iterable[tuple[int, object]], until_ms: int = 10**12) -> None:
        """Let everything happen until nothing is left to."""
        for time_ms, what in script:
            self._push(time_ms, _KINDS[type(what)], what)
        while self._heap and self._heap[0][0] <= until_ms:
            self.now_ms = now_ms = self._heap[0][0]
            happened = False
            while self._heap and self._heap[0][0] == now_ms:
                _, kind, _, what = heappop(self._heap)
                happened |= self._happens(kind, what)
                self.watch(self)
            if happened:
                self._decide()

    def _happens(self, kind: int, what: Any) -> bool:
        """Whether it happens still: processes that are gone neither end nor fail."""
        scheduler, now_ms = self.scheduler, self.now_ms
        if kind in (ENDED, OUT, FAILED) and self._live.get(what[0]) != what[1]:
            return False
        if kind == ENDED:
            del self._live[what[0]]
            scheduler.ended(what[0], RecordState.COMPLETED, now_ms)
            assert what[0] not in self.ends
            self.ends[what[0]] = now_ms
        elif kind == OUT:
            del self._live[what[0]]
            scheduler.ended(what[0], RecordState.OUT_OF_MEMORY, now_ms, held_mib=6000)
            if not scheduler.waits(what[0]):
                self.ends[what[0]] = now_ms
        elif isinstance(what, Withdraw):
            if what.job_id not in self.ends:
                scheduler.withdraw(what.job_id, now_ms)
                self._live.pop(what.job_id, None)
                self.ends[what.job_id] = now_ms
        elif isinstance(what, Replace):
            if scheduler.waits(what.job.id):
                assert scheduler.replace(what.job)
                self.replaced.add(what.job.id)
        elif kind == FAILED:
            del self._live[what[0]]
            scheduler.failed_to_start(what[0], now_ms)
        elif kind == LOST:
            self._gone(scheduler.node_lost(what.node, now_ms))
        elif kind == BACK:
            scheduler.node_back(what.node)
        elif isinstance(what, Nodes):
            self._gone(scheduler.nodes_changed(what.nodes, now_ms))
        elif isinstance(what, Strangers):
            scheduler.strangers(what.slot, what.milli, what.mem_mib)
        elif kind == ARRIVED:
            self.submitted.update(task.id for task in what.tasks or (what,))
            scheduler.submit(what)
        self._gone(scheduler.take_evicted())
        return True

    def _gone(self, runs: Sequence[Any]) -> None:
        for run in runs:
            self._live.pop(run.job.id, None)

    def _decide(self) -> None:
        scheduler, now_ms = self.scheduler, self.now_ms
        if not len(scheduler.queue):
            return
        for outcome in scheduler.decide(now_ms):
            assert not isinstance(outcome, Refused), outcome.why
            if isinstance(outcome, Evicted):
                self._gone([outcome.run])
            elif isinstance(outcome, Placement):
                self._start(outcome.job, outcome.slots)
            self.watch(self)
        if (wake_ms := scheduler.next_wake_ms) is not None:
            self._push(wake_ms + self.late_ms, WAKE, None)

    def _start(self, job: Job, slots: Sequence[GpuSlot]) -> None:
        self._serial += 1
        self._live[job.id] = self._serial
        if self._failed.get(job.id, 0) < self.failing.get(job.id, 0):
            self._failed[job.id] = self._failed.get(job.id, 0) + 1
            self._push(self.now_ms + 1, FAILED, (job.id, self._serial))
            return
        self.scheduler.started(job.id)
        self.starts.append((self.now_ms, job.id, tuple(tuple(slot) for slot in slots)))  # type: ignore[misc]
        if self._ran_out.get(job.id, 0) < self.running_out.get(job.id, 0):
            self._ran_out[job.id] = self._ran_out.get(job.id, 0) + 1
            self._push(self.now_ms + self.run_ms(job) // 2, OUT, (job.id, self._serial))
            return
        self._push(self.now_ms + self.run_ms(job), ENDED, (job.id, self._serial))

    def _push(self, time_ms: int, kind: int, what: object) -> None:
        self._serial += 1
        heappush(self._heap, (time_ms, kind, self._serial, what))


def held(cluster: Cluster) -> dict[GpuSlot, tuple[int, int]]:
    """Milli and MiB that jobs hold of each GPU, added up from what runs."""
    found: dict[GpuSlot, tuple[int, int]] = {}
    for run in cluster.running.values():
        for slot in run.slots if run.job.gpus else ():
            milli, mem_mib = found.get(slot, (0, 0))
            found[slot] = (milli + run.taken.milli, mem_mib + run.taken.mem_mib)
    return found
