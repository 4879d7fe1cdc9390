"""Quotas: each virtual cluster has its GPUs, and may borrow what the others leave idle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from berth.cluster import Account, Cluster, Queue, Running
from berth.errors import SettingError
from berth.model import Evict, Job, Node, Placement, placement_of
from berth.policies.protocol import Order, Place, draws, place_job
from berth.policies.schemes.preempt import needed
from berth.policies.sort_keys import key_of

_NO_USE = Account()


class Quotas:
    """Start each virtual cluster's jobs in order while it stays within its quota; then lend what is idle.

    Within a virtual cluster the order is strict, and one does not hold up another. With `borrow`, a virtual cluster
    whose own jobs wait beyond its quota may hold more, but only while no job that is within a quota waits for GPUs:
    what was lent comes back as borrowers end. With `reclaim` a job within its quota evicts jobs that borrow, those of
    the lowest priority first, and among them those that started last. One that has no quota lives on what it borrows.
    Quotas of GPUs count parts of a GPU as parts. After the capacity scheduler of Hadoop YARN, whose queues have a
    guaranteed capacity and share what is idle beyond it.
    """

    def __init__(
        self, order: Order, place: Place, quotas: Mapping[str, int], borrow: bool, reclaim: bool = False
    ) -> None:
        self.order = order
        self.place = place
        self.quotas = {name: gpus * 1000 for name, gpus in quotas.items()}
        self.borrow = borrow
        self.reclaim = reclaim
        self.draws = draws(place)
        self._key = key_of(order)

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement | Evict]:
        """Yield placements within the quotas first, with the evictions of borrowers before them, then those that
        borrow."""
        accounts = cluster.usage().virtual_clusters
        waits = False
        for pool in sorted(str(pool) for pool in queue.lanes(_pool, self._key or _none)):
            for job in self._jobs(queue, cluster, now_ms, pool):
                held = accounts.get(pool, _NO_USE).held_milli
                if held + job.gpus * job.share.milli > self.quotas.get(pool, 0) and job.gpus:
                    break
                placement = self._placement(job, pool, cluster)
                if placement is None and self.reclaim and job.patience_ms != 0:
                    for run in needed(self._borrowing(cluster), job, cluster):
                        yield Evict(run.job)
                    placement = self._placement(job, pool, cluster)
                if placement is not None:
                    yield placement
                elif job.patience_ms != 0:
                    waits = True
                    break
        if waits or not self.borrow:
            return
        for job in self.order(queue, cluster, now_ms):
            placement = self._placement(job, "", cluster)
            if placement is not None:
                yield placement
            elif job.patience_ms != 0:
                return

    def _borrowing(self, cluster: Cluster) -> list[Running]:
        """The runs by which virtual clusters hold more than their quota, the first to give back first."""
        accounts = cluster.usage().virtual_clusters
        excess = {pool: each.held_milli - self.quotas.get(pool, 0) for pool, each in accounts.items()}
        found = []
        for run in sorted(cluster.running.values(), key=lambda run: (run.job.priority, -run.start_ms)):
            pool = run.job.virtual_cluster
            if run.job.gpus and excess.get(pool, 0) > 0:
                excess[pool] -= run.job.gpus * run.share.milli
                found.append(run)
        return found

    def _placement(self, job: Job, pool: str, cluster: Cluster) -> Placement | None:
        stuck: dict[str, tuple[int, Job]] = cluster.memo.setdefault(self, {})  # by pool
        tried = stuck.get(pool)
        if tried is not None and tried[0] == cluster.openings and tried[1] is job:
            return None
        slots = place_job(self.place, job, cluster)
        if slots is None:
            stuck[pool] = (cluster.openings, job)
            return None
        return placement_of(job, slots)

    def _jobs(self, queue: Queue, cluster: Cluster, now_ms: int, pool: str) -> Iterator[Job]:
        """The waiting jobs of a virtual cluster, in order, as they are started one by one."""
        if self._key is None:
            yield from (job for job in self.order(queue, cluster, now_ms) if job.virtual_cluster == pool)
            return
        lanes = queue.lanes(_pool, self._key)
        while (waiting := lanes.get(pool)) is not None:
            job: Job = waiting[0][2]
            yield job
            if job in queue:
                yield from [entry[2] for entry in list(waiting)[1:]]  # it is leaving; go on behind it
                return


def check_quotas(quotas: Mapping[str, int], nodes: Sequence[Node]) -> None:
    """Refuse quotas that the cluster cannot give; SettingError says which."""
    gpus = sum(node.gpus for node in nodes)
    for name, quota in quotas.items():
        if quota < 0:
            raise SettingError(f"the quota of '{name}' is {quota} GPUs; expected 0 or more")
        if quota > gpus:
            raise SettingError(f"the quota of '{name}' is {quota} GPUs; the cluster has only {gpus}")


def quotas_of(text: str, *, form: str = "VC=GPUS, such as vcA=64") -> dict[str, int]:
    """Quotas as an option says them, such as `vcA=64,vcB=32`. Raises SettingError with the form that was expected."""
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, gpus = part.strip().rpartition("=")
        if not name or not gpus.isascii() or not gpus.isdigit():
            raise SettingError(f"quota '{part}' is not {form}")
        if name in found:
            raise SettingError(f"quota '{name}' is given twice")
        found[name] = int(gpus)
    return found


def check_names(quotas: Mapping[str, int], workload: Sequence[Job]) -> None:
    """Refuse quotas of virtual clusters none of which any job is of: they are most likely misspelt."""
    there = {job.virtual_cluster for job in workload}
    if quotas and there and there.isdisjoint(quotas):
        named = ", ".join(repr(pool) for pool in sorted(there)[:10])
        raise SettingError(
            f"quotas of {', '.join(repr(name) for name in quotas)}, of which there is no job; the jobs are of {named}"
        )


def _pool(job: Job) -> str:
    return job.virtual_cluster


def _none(job: Job) -> int:
    return 0
