"""Fragmentation gradient descent (FGD): where placing the job strands the fewest GPU milli."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from berth.cluster import Cluster
from berth.errors import PolicyError
from berth.model import GpuSlot, Job
from berth.policies.placements import score_kernels
from berth.policies.placements.score_kernels import MODEL_BITS
from berth.policies.placements.scored import Scored, Typical
from berth.policies.protocol import Setting

COVERED_PCT = 95
"""Percent of the workload that the typical requests cover (the authors' setting)."""


class Fgd(Scored):
    """The node and GPU that leave the least capacity unusable for typical requests.

    score = trunc 100·sigmoid((F(before) − F(after))/1000), where F(node) = Σ_m p_m·(GPU milli left on the node
    that a request of type m could not use). Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing
    Workloads with Fragmentation Gradient Descent", USENIX ATC 2023, sections 4.1 and 4.2, algorithm 1. The
    types m and their shares p come from the workload that the policy is made with.
    """

    kernel = score_kernels.FGD
    tightest = False
    by_request = True

    def __init__(self, setting: Setting | None = None) -> None:
        super().__init__(setting)
        self._learns = self.setting.knowledge.learns
        self._planned_for = 0  # usual requests that were known

    def __call__(self, job: Job, cluster: Cluster) -> tuple[GpuSlot, ...] | None:
        """The slots, or None; what is usual is asked anew when twice as much is known of it, until the knowledge keeps
        no more (`berth.knowledge.user.MOST_REQUESTS`)."""
        if self._learns and len(self.setting.knowledge.usual_requests()) > 2 * self._planned_for:
            cluster.memo.pop(self, None)
        return super().__call__(job, cluster)

    def typical(self, cluster: Cluster) -> Typical:
        """Those that usually come, else those of what runs; PolicyError where an oracle was told of none."""
        knowledge = self.setting.knowledge
        usual = knowledge.usual_requests()
        self._planned_for = len(usual)
        usual = usual or tuple(run.job for run in cluster.running.values())
        if not usual and knowledge.certain:
            raise PolicyError(
                "fgd places by what jobs usually ask for, and was told of none: give simulate() a list of jobs, or make"
                " the policy with a workload, make_policy('fgd', Setting(knowledge=Oracle(jobs)))"
            )
        return typical_requests(usual, cluster)


def typical_requests(workload: Iterable[Job], cluster: Cluster) -> Typical:
    """The most frequent requests of a workload, enough to cover 95 % of its jobs, and their shares of it.

    Ties in frequency go to the larger tuple of CPU, milli, GPUs and models, as in the authors' simulator.
    """
    counts = Counter(
        (job.cpu_milli, job.share.milli if job.gpus else 0, job.gpus, "|".join(job.models), job.models)
        for job in workload
    )
    total = sum(counts.values())
    if not total:
        return Typical()
    sizes = sorted({key[1] for key in counts})
    taken: list[tuple[int, ...]] = []
    weights: list[float] = []
    covered = 0
    for (cpu, milli, gpus, _, models), number in sorted(
        counts.items(), key=lambda item: (item[1], item[0]), reverse=True
    ):
        taken.append((gpus, milli, cpu, sizes.index(milli), *_words_of_models(models, cluster)))
        weights.append(number / total)
        covered += number
        if covered * 100 >= COVERED_PCT * total:
            break
    weight = np.array(weights)
    if len(taken) < len(counts):
        weight = weight / (covered / total)
    return Typical(np.array(taken, dtype=np.int64), weight, np.array(sizes, dtype=np.int64))


def _words_of_models(models: Sequence[str], cluster: Cluster) -> list[int]:
    """A bit for each GPU model of the cluster that is allowed, in words; every one for no names."""
    numbers = [cluster.models[name] for name in models if name in cluster.models] if models else None
    words = []
    for first in range(0, len(cluster.models) + 1, MODEL_BITS):
        there = range(first, first + MODEL_BITS)
        words.append(sum(1 << number - first for number in there if numbers is None or number in numbers))
    return words
