"""Genetic search over a batch of waiting jobs: fill the GPUs and strand as little of them as can be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace

import numpy as np

from berth.cluster import Cluster, Queue
from berth.model import Job, Profile, WakeAt
from berth.policies.genetic.batch import Batch
from berth.policies.genetic.batching import Batching
from berth.policies.genetic.search import Found, packing_of, search
from berth.policies.genetic.settings import GeneticSettings, Weights
from berth.policies.genetic.time_budget import TimeBudget
from berth.policies.options import settings_from
from berth.policies.placements.fgd import typical_requests
from berth.policies.placements.scored import Typical
from berth.policies.protocol import Decision, Progress, Setting


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
