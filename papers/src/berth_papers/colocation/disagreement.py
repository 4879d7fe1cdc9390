"""Two closer looks at co-location: pairs of applications (the thesis's figure 3), and network against `greedy`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from berth.arrays import IntArray
from berth.cluster import Cluster
from berth.engine import simulate
from berth.interference import Interference
from berth.interference.profiled import ProfiledInterference
from berth.knowledge import make_knowledge
from berth.model import GpuModel, Node
from berth.policies.colocation.forecast import Candidate, Forecaster, Offer
from berth.policies.colocation.greedy import best_progress
from berth.policies.colocation.learned import Learned
from berth.policies.colocation.scene import Chooser, Scene
from berth.policies.protocol import Setting
from berth.profiles import THESIS_GPU, series, workload_jobs

PAIR_APPLICATIONS = ("LAMMPS", "GROMACS", "googlenet", "CNN", "vgg16")
"""Those of figure 3."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two applications that start together on one GPU."""

    first: str
    second: str
    slowdown_pct: float | None
    """How much longer they take than alone, the mean of both; None where they run out of memory."""
    mem_pct: float
    """The most GPU memory that they would use together, of the card's."""
    cores_pct: float
    """Use of the GPU's cores by both, each at its mean, as the profiles have it."""
    pcie_pct: float
    """PCIe throughput of both, each at its mean."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """How often the network decides otherwise than `greedy` would in its place."""

    workload: str
    seeds: int
    decisions: int
    """Moments at which a job could have been started."""
    other_combination: int
    """Both start a job, but not the same."""
    holds: int
    """The network holds where `greedy` starts a job."""
    starts: int
    """The network starts a job where `greedy` holds."""

    @property
    def different_pct(self) -> float:
        """All three, of the decisions."""
        return 100 * (self.other_combination + self.holds + self.starts) / max(1, self.decisions)


def pairs(interference: ProfiledInterference, gpu: GpuModel = THESIS_GPU) -> list[Pair]:
    """Every pair of `PAIR_APPLICATIONS`, started together."""
    forecaster = Forecaster(interference.profiles, interference.speeds)
    found = []
    for first in PAIR_APPLICATIONS:
        for second in PAIR_APPLICATIONS:
            two = [series(interference.profiles[name], gpu) for name in (first, second)]
            work_us = [1000 * one.run_time_ms for one in two]
            window = tuple(Candidate(name, us, us) for name, us in zip((first, second), work_us, strict=True))
            forecast = forecaster.forecasts([Offer((), window)], gpu)
            both = 3  # the combination of the first two jobs
            slowdown = None
            if forecast.fits[0, both]:
                ends_us = forecast.ends_ms[0, both, :2] * 1000
                slowdown = float(100 * (np.mean(ends_us / np.array(work_us)) - 1))
            found.append(
                Pair(
                    first,
                    second,
                    slowdown,
                    float(100 * _together(two[0].usage[:, 1], two[1].usage[:, 1]) / max(1, gpu.mem_mib)),
                    float(sum(one.usage[:, 2].mean() for one in two) / 10),
                    float(sum(one.usage[:, 3].mean() for one in two) / 10),
                )
            )
    return found


def disagreement(
    workload: str, interference: Interference, seeds: Sequence[int], knowledge: str = "oracle"
) -> Disagreement:
    """Let `learned` run, and ask `greedy`, which believes the same, at each of its decisions what it would do."""
    counter = _Counter(best_progress)
    cluster = Cluster([Node("gpu", gpus=1, gpu_model=THESIS_GPU)])
    for seed in seeds:
        jobs = workload_jobs(workload, 30, seed)
        known = make_knowledge(knowledge, jobs, interference, seed)
        network = Learned(Setting(seed, knowledge=known))
        network.choose = counter.counted(network.choose)
        for _ in simulate(jobs, cluster, network, knowledge=known, interference=interference):
            pass
    return Disagreement(
        workload, len(seeds), counter.decisions, counter.other_combination, counter.holds, counter.starts
    )


@dataclass(slots=True)
class _Counter:
    """Counts where choosers decide otherwise than another one would in their place."""

    other: Chooser
    decisions: int = 0
    other_combination: int = 0
    holds: int = 0
    starts: int = 0

    def counted(self, choose: Chooser) -> Chooser:
        """The same chooser, with its decisions counted."""

        def counted(scene: Scene) -> IntArray:
            chosen, other = choose(scene), self.other(scene)
            possible = scene.forecasts.fits[:, 1:].any(axis=1)
            self.decisions += int(possible.sum())
            self.other_combination += int((possible & (chosen != other) & (chosen > 0) & (other > 0)).sum())
            self.holds += int((possible & (chosen == 0) & (other > 0)).sum())
            self.starts += int((possible & (chosen > 0) & (other == 0)).sum())
            return chosen

        return counted


def _together(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    """The most that two series reach together, step by step, the shorter one over by then."""
    length = max(len(one), len(other))
    return int((np.pad(one, (0, length - len(one))) + np.pad(other, (0, length - len(other)))).max())
