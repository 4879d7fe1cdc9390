"""The genetic algorithm of Kwon and Bahn 2024, as published."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from berth.arrays import FloatArray, IntArray
from berth.cluster import Cluster, Queue
from berth.cluster.kernels import GPU_MEM
from berth.errors import SettingError
from berth.model import WakeAt
from berth.policies.genetic.batch import Batch
from berth.policies.genetic.packing_kernels import seeded
from berth.policies.genetic.policy import Batching
from berth.policies.options import settings_from
from berth.policies.protocol import Decision, Progress, Setting
from berth_papers.genetic.fitness import decode, evaluate
from berth_papers.genetic.variation_kernels import evolve

GENERATIONS_A_STEP = 10
"""Generations between two checks whether the search is to stop."""


@dataclass(frozen=True, slots=True)
class PaperSettings:
    """The paper's numbers."""

    population: int = 100
    """Solutions kept (section III)."""
    generations: int = 100
    """How many pass; the paper gives none."""
    tournament_pct: int = 20
    """The part of the solutions that a parent is the fittest of (section III)."""
    replaced_pct: int = 40
    """The part of the solutions that children replace in each generation, the least fit (section III)."""
    mutation_above: float = 0.25
    """The probability that a gene mutates in a solution above the mean fitness (section III)."""
    mutation_others: float = 0.1
    """The same in the others. PyGAD's adaptive mutation means the reverse by (0.25, 0.1): 0.25 below the mean."""
    window: int = 500
    """Waiting jobs that are decided on at once, the first of the queue that fit somewhere."""
    round_ms: int = 10_000
    """It decides not more often than this; what comes meanwhile waits."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("population", 2, 100_000),
            ("generations", 1, 10_000_000),
            ("tournament_pct", 1, 100),
            ("replaced_pct", 1, 99),
            ("mutation_above", 0, 1),
            ("mutation_others", 0, 1),
            ("window", 1, 100_000),
            ("round_ms", 0, 86_400_000),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise SettingError(f"{name} is {value}; expected from {low:,} to {high:,}")


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """The best that a search has found."""

    node: IntArray  # (I,): the node of each instance as a number of the batch, −1: not placed
    devices: IntArray  # (I,): the bits of its GPUs
    fitness: float
    history: FloatArray = field(default_factory=lambda: np.zeros((0, 2)))
    """(generations + 1, 2): best and mean fitness, from the first population on."""
    interrupted: bool = False
    """Whether it was stopped before its time."""


class GeneticPaper:
    """Kwon and Bahn's genetic algorithm: random solutions, fitness by GPU utilisation, −1 for what does not fit.

    *Scheduling of Artificial Intelligence Workloads in Cloud Environments Using Genetic Algorithms*, JIIBC 24(3),
    2024, sections II–IV, with each GPU as a resource of its own. A gene is one of the nodes that have room for its
    instance before the round (section II: only such pairs are candidates). A gang counts as one instance per node;
    none of them fits unless all do, each on its own node.
    """

    def __init__(self, setting: Setting | None = None, settings: PaperSettings | None = None) -> None:
        self.setting = setting or Setting()
        self.settings = settings or PaperSettings()
        self._rounds = Batching(self.settings.window, self.settings.round_ms)
        self.progress: Progress | None = None
        self.history = np.zeros((0, 2))

    @classmethod
    def with_options(cls, setting: Setting, options: dict[str, str]) -> GeneticPaper:
        """Made with the settings in a policy's name: those of `PaperSettings`."""
        return cls(setting, settings_from(PaperSettings, options))

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        """Yield the placements of the best solution, in the order of the queue."""
        batch = self._rounds.batch(queue, cluster, now_ms)
        if isinstance(batch, WakeAt):
            yield batch
            return
        if batch is not None:
            seed = (self.setting.seed, self._rounds.number)
            best = evolve_paper(batch, self.settings, seed=seed, progress=self.progress)
            self.history = best.history
            yield from batch.placements(best.node, best.devices)
            if best.interrupted:
                raise KeyboardInterrupt
            if (best.node < 0).all():  # nothing starts that could end, and yet there was room
                yield WakeAt(now_ms + max(1, self.settings.round_ms))
        yield from self._rounds.spread(queue, cluster)


def fitness_of(batch: Batch, genes: IntArray) -> FloatArray:
    """(P,): the fitness of solutions (P, I), each gene a node's number in the batch."""
    problem, scratch = _arrays(batch), _scratch(batch)
    scale = 1.0 / max(1, batch.capacity_milli)
    rows = np.ascontiguousarray(genes, dtype=np.int64)
    evaluated: Any = evaluate
    return np.array([evaluated(row, *problem, scale, *scratch) for row in rows])


def evolve_paper(
    batch: Batch,
    settings: PaperSettings | None = None,
    *,
    seed: Sequence[int] = (0,),
    progress: Progress | None = None,
) -> Solution:
    """Run the algorithm on one batch.

    With `batch_of` each GPU is a resource of its own; with `pooled` all GPUs are one logical machine: then `node`
    is 0 for what "fits" and names no real node. `progress` hears of generations done and to do. Stopped by the
    keyboard it returns the best so far.
    """
    settings = settings or PaperSettings()
    count, length = settings.population, len(batch.jobs)
    starts, candidates = batch.candidates()
    random = np.random.default_rng(list(seed))
    begin = starts[batch.type_of]
    room = starts[batch.type_of + 1] - begin
    genes = candidates[begin + (random.random((count, length)) * room).astype(np.int64)]
    fitness = fitness_of(batch, genes)
    children = np.empty((max(1, count * settings.replaced_pct // 100), length), dtype=np.int64)
    history = np.zeros((settings.generations + 1, 2))
    history[0] = fitness.max(), fitness.mean()
    problem, scratch = _arrays(batch), _scratch(batch)
    kept = (np.arange(count), np.argsort(-fitness, kind="stable"))
    mutation = np.array([settings.mutation_above, settings.mutation_others])
    size = max(1, count * settings.tournament_pct // 100)
    state = seeded(*seed)
    evolved: Any = evolve
    done = 0
    interrupted = False
    try:
        while done < settings.generations:
            step = min(GENERATIONS_A_STEP, settings.generations - done)
            evolved(
                step, genes, fitness, children, np.empty(len(children)), size, mutation, state, starts, candidates,
                *problem, 1.0 / max(1, batch.capacity_milli), *scratch, *kept, history[done + 1 :],
            )  # fmt: skip
            done += step
            if progress:
                progress(done, settings.generations)
    except KeyboardInterrupt:
        interrupted = True
    best = int(np.argmax(fitness))
    node, devices = np.empty((2, length), dtype=np.int64)
    _, type_of, requests, fit, free, width = problem
    decode(genes[best], batch.parts, type_of, requests, fit, free.copy(), width, node, devices)
    return Solution(node, devices, float(fitness[best]), history[: done + 1], interrupted)


def _arrays(batch: Batch) -> tuple[Any, ...]:
    """What the kernels need to know of a batch; parts and GPU memory only if a job asks for them."""
    parts = batch.parts if (batch.parts != 1).any() else batch.parts[:0]
    columns = [batch.free_cpu[:, None], batch.free_mem[:, None], batch.free_milli]
    if batch.requests[:, GPU_MEM].any():
        columns.append(batch.free_gpu_mem)
    free = np.concatenate(columns, axis=1)
    return parts, batch.type_of, batch.requests, batch.fit, free, batch.free_milli.shape[1]


def _scratch(batch: Batch) -> tuple[Any, ...]:
    count = len(batch.nodes)
    stamp, first = np.zeros(count + 1, dtype=np.int64), np.zeros(count, dtype=np.int64)
    return stamp, first, np.empty_like(_arrays(batch)[4]), np.zeros(len(batch.jobs), dtype=np.int64)
