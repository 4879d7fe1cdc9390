"""Preemption: a waiting job takes the place of running jobs that rank behind it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence

from berth.cluster import Cluster, Queue, Running
from berth.cluster.shadow import Shadow
from berth.model import NO_GPU, Evict, Job, Placement, Resume, WakeAt, placement_of
from berth.policies.protocol import Order, Place, draws, place_job
from berth.policies.sort_keys import key_of

Rank = tuple[int, ...]
"""The smaller comes first."""


class Ranks(ABC):
    """An order that also says which job may take another's place: the smaller rank evicts the larger."""

    @abstractmethod
    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Job]:
        """The waiting jobs, the smallest rank first."""

    @abstractmethod
    def waiting(self, job: Job) -> Rank:
        """The rank of a waiting job."""

    @abstractmethod
    def running(self, run: Running, now_ms: int) -> Rank:
        """The rank of a running job now."""

    def next_ms(self, cluster: Cluster, now_ms: int) -> int | None:
        """When the rank of a running job changes next; None where ranks stay."""
        return None


class ByPriority(Ranks):
    """Higher priority first, in place of lower ones; the order that follows ranks equals, and may evict too."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._ranks = order if isinstance(order, Ranks) else None
        self._key = None if (key := key_of(order)) is None else lambda job: (-job.priority, key(job))

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Job]:
        """By priority, then as the order has it."""
        if self._key is not None:
            return queue.by(self._key)
        return iter(sorted(self._order(queue, cluster, now_ms), key=self.waiting))

    def waiting(self, job: Job) -> Rank:
        """A higher priority is a smaller rank."""
        return (-job.priority, *(self._ranks.waiting(job) if self._ranks else ()))

    def running(self, run: Running, now_ms: int) -> Rank:
        """The priority of the job first."""
        return (-run.job.priority, *(self._ranks.running(run, now_ms) if self._ranks else ()))

    def next_ms(self, cluster: Cluster, now_ms: int) -> int | None:
        """When the order ranks a running job anew; priorities stay."""
        return self._ranks.next_ms(cluster, now_ms) if self._ranks else None


class Preemptive:
    """Start the first job; where it does not fit, evict jobs that rank behind it until it does.

    Those of the last rank go first, among them the ones that started last, and none whose GPUs would not help. The
    evicting job has the smaller rank, so that no job is evicted for one that it would evict. If evicting all candidates
    would not make room, none is evicted, and the job holds up those behind it, as in a strict order. A job that was
    suspended rather than evicted runs on in its turn, before waiting jobs of its rank.
    """

    resumes = True
    """It says when suspended jobs run on."""

    def __init__(self, ranks: Ranks, place: Place) -> None:
        self.ranks = ranks
        self.place = place
        self.draws = draws(place)

    def __call__(
        self, queue: Queue, cluster: Cluster, now_ms: int
    ) -> Iterator[Placement | Evict | Resume | WakeAt]:
        """Yield placements in the order's order, and evictions before them."""
        ranks = self.ranks
        blocked = anew = True
        while anew:
            blocked = anew = False
            for job in ranks(queue, cluster, now_ms):
                if job not in queue:
                    continue  # limits have hidden it since
                if cluster.suspended and (
                    yield from resume(ranks, cluster, now_ms, before=ranks.waiting(job))
                ):
                    blocked = True
                    break
                slots = place_job(self.place, job, cluster)
                if slots is None and job.patience_ms != 0:
                    for run in victims(ranks, job, cluster, now_ms):
                        yield Evict(run.job)
                        anew = True  # an evicted job waits before those that rank behind it
                    slots = place_job(self.place, job, cluster)
                if slots is not None:
                    yield placement_of(job, slots)
                elif job.patience_ms != 0:
                    blocked = True
                    break
                if anew:
                    break
            anew = anew and not blocked
        if not blocked:
            yield from resume(ranks, cluster, now_ms)
        next_ms = ranks.next_ms(cluster, now_ms) if blocked else None
        asked_ms = cluster.memo.get(self, -1)
        if next_ms is not None and (next_ms < asked_ms or asked_ms <= now_ms):
            cluster.memo[self] = next_ms
            yield WakeAt(next_ms)


def resume(
    ranks: Ranks, cluster: Cluster, now_ms: int, *, before: Rank | None = None
) -> Generator[Evict | Resume, None, bool]:
    """Let suspended jobs run on in the order of their ranks, in place of running jobs that rank behind them; `before`:
    only those that rank no later. Returns whether one of them waits for runs on its GPUs to end."""
    suspended = [(ranks.waiting(run.job), run) for run in cluster.suspended.values() if run.resumes]
    for rank, run in sorted(suspended, key=lambda pair: pair[0]):
        if before is not None and rank > before:
            return False
        if not cluster.can_resume(run.job.id):
            on_its_gpus = {each.job.id: each for slot in run.slots for each in cluster.jobs_on(slot)}
            ranked = [(ranks.running(each, now_ms), each) for each in on_its_gpus.values()]
            ranked.sort(key=lambda pair: (pair[0], pair[1].start_ms), reverse=True)
            behind = [each for other, each in ranked if other > rank]
            for each in behind[: _how_many(behind, run, cluster)]:
                yield Evict(each.job)
        if cluster.can_resume(run.job.id):
            yield Resume(run.job)
        elif _how_many([each for _, each in ranked], run, cluster):
            return True
    return False


def _how_many(others: list[Running], run: Running, cluster: Cluster) -> int:
    """How many of these, the first first, would have to leave for a suspended job to have room; 0: all are too few."""
    shadow = Shadow(cluster)
    for count, other in enumerate(others, 1):
        shadow.end(other)
        if all(
            shadow.milli[slot] >= run.taken.milli and shadow.gpu_mem_mib[slot] >= run.taken.mem_mib
            for slot in run.slots
            if slot.index != NO_GPU
        ):
            return count if cluster.up[run.slots[0].node] else 0
    return 0


def victims(ranks: Ranks, job: Job, cluster: Cluster, now_ms: int) -> list[Running]:
    """The runs to evict so that the job fits; empty if it would not fit even then."""
    rank = ranks.waiting(job)
    behind = [(ranks.running(run, now_ms), run) for run in cluster.running.values()]
    behind = [(other, run) for other, run in behind if other > rank]
    behind.sort(key=lambda pair: (pair[0], pair[1].start_ms), reverse=True)
    return needed([run for _, run in behind], job, cluster)


def needed(candidates: Sequence[Running], job: Job, cluster: Cluster) -> list[Running]:
    """Those of the candidates to evict so that the job fits, the first before the others and none that would not help;
    empty if it would not fit even without all of them."""
    if not candidates:
        return []
    shadow = Shadow(cluster)
    gone: list[Running] = []
    for run in candidates:
        shadow.end(run)
        gone.append(run)
        if shadow.might_fit(job, sorted({slot.node for slot in run.slots})) and shadow.slots(job) is not None:
            break
    else:
        return []
    found: list[Running] = []
    for place, run in enumerate(gone):
        shadow.undo_end(run)
        if place == len(gone) - 1 or shadow.slots(job) is None:
            shadow.end(run)
            found.append(run)
    return found
