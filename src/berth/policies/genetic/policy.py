"""Genetic search over a batch of waiting jobs: fill the GPUs and strand as little of them as can be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from berth.cluster import Cluster, Queue
from berth.model import FOREVER_MS, Job, Placement, Profile, WakeAt, placement_of
from berth.policies.genetic.batch import Batch, batch_of
from berth.policies.genetic.search import Found, packing_of, search
from berth.policies.genetic.settings import GeneticSettings, TimeBudget, Weights
from berth.policies.options import settings_from
from berth.policies.placements.by_score import typical_requests
from berth.policies.placements.scored import Typical
from berth.policies.protocol import Decision, Progress, Setting
from berth.policies.sort_keys import as_queued


class Genetic:
    """Genetic search over a batch of waiting jobs: most GPU in use, least stranded, no job forgotten.

    After Kwon and Bahn, *Scheduling of Artificial Intelligence Workloads in Cloud Environments Using Genetic
    Algorithms*, JIIBC 24(3), 2024. Unlike theirs, it starts from heuristic solutions, all solutions are feasible,
    only what a change touches is scored again, and remaining fragmentation counts (Weng et al., USENIX ATC 2023). A
    gang gets all of its nodes or waits.
    """

    def __init__(self, setting: Setting | None = None, settings: GeneticSettings | None = None) -> None:
        self.setting = setting or Setting()
        self.settings = settings or GeneticSettings()
        if not self.settings.profiles:
            self.settings = replace(self.settings, profiles=_use_of_gpus(self.setting.knowledge.profiles))
        self._rounds = Batching(self.settings.window, self.settings.round_ms)
        self._hints: list[dict[tuple[str, int], int]] = []
        self.progress: Progress | None = None
        self.history = np.zeros((0, 2))

    @classmethod
    def with_options(cls, setting: Setting, options: dict[str, str]) -> Genetic:
        """Made with the settings in a policy's name: those of `GeneticSettings`, and its weights."""
        of_weights = {field.name for field in fields(Weights)}
        weights = settings_from(Weights, {key: value for key, value in options.items() if key in of_weights})
        others = {key: value for key, value in options.items() if key not in of_weights}
        return cls(setting, settings_from(GeneticSettings, others, also=sorted(of_weights), weights=weights))

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        """Yield the placements of the best solution found."""
        budget = TimeBudget(self.settings.budget_ms)
        batch = self._rounds.batch(queue, cluster, now_ms)
        if isinstance(batch, WakeAt):
            yield batch
            return
        if batch is not None:
            found = self._search(batch, cluster, now_ms, budget)
            yield from batch.placements(found.node, found.devices)
            if found.interrupted:
                raise KeyboardInterrupt
        yield from self._rounds.spread(queue, cluster)

    def _search(self, batch: Batch, cluster: Cluster, now_ms: int, budget: TimeBudget) -> Found:
        """The best solution of a round, begun with what others of the round before had for those that still wait."""
        packing = packing_of(batch, cluster, self._typical_of(cluster, batch.jobs), self.settings, now_ms)
        place = {number: at for at, number in enumerate(batch.nodes.tolist())}
        numbers = list(zip((job.id for job in batch.jobs), _part_numbers(batch), strict=True))
        hints = [
            np.array([place.get(hint.get(number, -1), -1) for number in numbers], dtype=np.int64)
            for hint in self._hints
        ]
        seed = (self.setting.seed, self._rounds.number)
        found = search(packing, self.settings, seed=seed, hints=hints, budget=budget, progress=self.progress)
        self.history = found.history
        waiting = np.flatnonzero(found.node < 0).tolist()
        self._hints = [
            {numbers[at]: int(batch.nodes[nodes[at]]) for at in waiting if nodes[at] >= 0}
            for nodes in found.others[:2]
        ]
        return found

    def _typical_of(self, cluster: Cluster, jobs: tuple[Job, ...]) -> Typical:
        """The usual requests: of the workload that the policy was made with, else of those that wait."""
        usual = self.setting.knowledge.usual_requests()
        if not usual or self.setting.knowledge.learns:
            return typical_requests(usual or jobs, cluster)
        typical: Typical | None = cluster.memo.get(self)
        if typical is None:
            typical = cluster.memo[self] = typical_requests(usual, cluster)
        return typical


def _use_of_gpus(profiles: Mapping[str, Profile]) -> dict[str, float]:
    """Mean use of a GPU by application, as far as it is recorded."""
    return {name: float(np.mean(profile.usage[:, 0])) for name, profile in profiles.items()}


def _part_numbers(batch: Batch) -> list[int]:
    """(I,): the number of each instance within its job."""
    numbers: list[int] = []
    for parts in batch.parts.tolist():
        numbers.append(0 if parts else numbers[-1] + 1)
    return numbers


class Batching:
    """The batches that a policy decides on, one a round; a round ends early if a job's patience would."""

    def __init__(self, window: int, round_ms: int) -> None:
        self.window = window
        self.round_ms = round_ms
        self.number = 0

    def batch(self, queue: Queue, cluster: Cluster, now_ms: int) -> Batch | WakeAt | None:
        """What to decide on now; or when to look again, the round being young; or None: there is nothing.

        The batch is the first `window` jobs of the queue that there is room for, for a gang on as many nodes as it
        takes: those that wait for a full kind of GPU do not keep others from the rest.
        """
        turn = cluster.memo.get(self)
        if turn is None:
            turn = cluster.memo[self] = _Turn(now_ms)
        due_ms = _due_ms(queue, now_ms, turn.next_ms)
        if now_ms < due_ms:
            if not len(queue) or turn.woken_ms == due_ms:
                return None
            turn.woken_ms = due_ms
            return WakeAt(due_ms)
        batch = batch_of(self._first_jobs(queue, cluster), cluster)
        if not batch.jobs:
            return None
        turn.next_ms = now_ms + self.round_ms
        self.number += 1
        return batch

    def spread(self, queue: Queue, cluster: Cluster) -> Iterator[Placement]:
        """Start gangs of tasks, and jobs on several nodes that may spread and that no node could hold, even empty, as
        soon as there is room: they are in no batch."""
        waiting = queue.lanes(_may_spread, as_queued).get(True, ())
        hopeless: set[int] = set()
        on_one: dict[int, bool] = {}  # by request type: whether some node that is up could hold it, if empty
        for job in [job for _, _, job in waiting]:
            number = cluster.request(job)
            if number not in on_one:
                on_one[number] = bool(cluster.up[cluster.fitting_nodes_when_empty(job)].any())
            if number in hopeless or (on_one[number] and not job.tasks):
                continue
            slots = cluster.spread(job)
            if slots is None:
                hopeless.add(number)
            else:
                yield placement_of(job, slots)

    def _first_jobs(self, queue: Queue, cluster: Cluster) -> list[Job]:
        jobs: list[Job] = []
        fitting: dict[int, bool] = {}
        for job in queue:
            if job.tasks:
                continue
            number = cluster.request(job)
            fits = fitting.get(number)
            if fits is None:
                fits = fitting[number] = len(cluster.fitting_nodes(job)) >= max(1, job.nodes)
            if fits:
                jobs.append(job)
                if len(jobs) == self.window:
                    break
        return jobs


@dataclass(slots=True)
class _Turn:
    """Where the rounds of one cluster have got to."""

    next_ms: int
    woken_ms: int = -1


def _due_ms(queue: Queue, now_ms: int, next_ms: int) -> int:
    """When a round that is to end at `next_ms` ends: before a job's patience does."""
    if now_ms < next_ms:
        for job in queue.by(_leaves_ms):
            if _leaves_ms(job) >= now_ms:
                return min(next_ms, _leaves_ms(job))
    return next_ms


def _may_spread(job: Job) -> bool:
    return bool(job.tasks) or (job.nodes == 0 and job.gpus > 1)


def _leaves_ms(job: Job) -> int:
    """When a job that has waited since its submission runs out of patience."""
    return FOREVER_MS if job.patience_ms is None else job.submit_ms + job.patience_ms
