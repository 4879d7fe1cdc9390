"""Genetic search over a batch of waiting jobs: fill the GPUs and strand as little of them as can be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import numpy as np

from berth.cluster import Cluster
from berth.model import Job
from berth.policies.batch import Batch
from berth.policies.batch_rounds import BatchRounds
from berth.policies.fgd import typical_requests
from berth.policies.genetic_search import packing_of, search
from berth.policies.genetic_settings import GeneticSettings, Weights
from berth.policies.options import settings_from
from berth.policies.protocol import Decision, Setting
from berth.policies.scored import Typical
from berth.queue import Queue

__all__ = ["Genetic"]


class Genetic:
    """Genetic search over a batch of waiting jobs: most GPU in use, least stranded, nobody forgotten.

    After Kwon and Bahn, *Scheduling of Artificial Intelligence Workloads in Cloud Environments Using Genetic
    Algorithms*, JIIBC 24(3), 2024, and different from it in this: solutions begin as those of heuristics, every
    one of them can be carried out, a change costs what it changes, and the fragmentation that is left counts
    (Weng et al., USENIX ATC 2023). A gang is left to wait.
    """

    def __init__(self, setting: Setting | None = None, settings: GeneticSettings | None = None) -> None:
        self.setting = setting or Setting()
        self.settings = settings or GeneticSettings()
        self._rounds = BatchRounds(self.settings.window, self.settings.round_ms)
        self._typical: tuple[Cluster | None, Typical] = (None, Typical())
        self._hints: list[dict[str, int]] = []

    @classmethod
    def with_options(cls, setting: Setting, options: dict[str, str]) -> Genetic:
        """Made with the settings in a policy's name: those of `GeneticSettings`, and its weights."""
        of_weights = {field.name for field in fields(Weights)}
        weights = settings_from(Weights, {key: value for key, value in options.items() if key in of_weights})
        others = {key: value for key, value in options.items() if key not in of_weights}
        return cls(setting, settings_from(GeneticSettings, others, weights=weights))

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        """Yield the placements of the best solution found."""
        batch = self._rounds.batch(queue, cluster, now_ms)
        if not isinstance(batch, Batch):
            if batch:
                yield batch
            return
        packing = packing_of(batch, cluster, self._typical_of(cluster, batch.jobs), self.settings, now_ms)
        place = {number: at for at, number in enumerate(batch.nodes.tolist())}
        hints = [
            np.array([place.get(hint.get(job.id, -1), -1) for job in batch.jobs], dtype=np.int64)
            for hint in self._hints
        ]
        found = search(packing, self.settings, seed=(self.setting.seed, self._rounds.number), hints=hints)
        waiting = [at for at, node in enumerate(found.node.tolist()) if node < 0]
        self._hints = [
            {batch.jobs[at].id: int(batch.nodes[nodes[at]]) for at in waiting if nodes[at] >= 0}
            for nodes in found.others[:2]
        ]
        yield from batch.placements(found.node, found.devices)
        if found.interrupted:
            raise KeyboardInterrupt

    def _typical_of(self, cluster: Cluster, jobs: tuple[Job, ...]) -> Typical:
        """The usual requests: of the workload that the policy was made with, else of those who wait."""
        if not self.setting.workload:
            return typical_requests(jobs, cluster)
        if self._typical[0] is not cluster:
            self._typical = (cluster, typical_requests(self.setting.workload, cluster))
        return self._typical[1]
