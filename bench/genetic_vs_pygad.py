"""`genetic-paper` against the same algorithm on SimPy and PyGAD, which Kwon and Bahn used.

    python -m pip install --require-hashes -r requirements/bench.lock
    python bench/genetic_vs_pygad.py [--generations 100] [--repeats 10]

Population 100, 200 instances, 1,897 machines. The reference has no handicap: its fitness is worked out for the
whole population at once in NumPy, instance by instance, and it is held to give the same fitness as berth's for
the same solutions. Both get the same candidates. PyGAD's adaptive mutation gives the first of its two
probabilities to solutions *below* the mean, the paper to those above: so PyGAD is told (0.1, 0.25). Times are
of the processor, of all threads together, so that they hold on a busy machine too. Writes
bench/results/genetic_vs_pygad.json.
"""

from __future__ import annotations

import argparse
import random
import time
import warnings

import numpy as np

from berth.cluster import Cluster
from berth.model import Job, Placement
from berth.policies.genetic.batch import Batch, batch_of
from berth.policies.genetic.search import packing_of, search
from berth.policies.genetic.settings import GeneticSettings, Weights
from berth.policies.placements.by_score import BestFit, typical_requests
from berth_papers.genetic.cases import case_of
from berth_papers.genetic.policy import PaperSettings, evolve_paper, fitness_of
from harness import save

AS_THE_PAPER = Weights(
    utilisation=1e-6, fragmentation=0.0, waiting=0.0, jobs=1.0, scarcity=0.0, interference=0.0
)
"""What the paper's fitness comes to: each instance that is placed, and a little for its GPUs."""


class Reference:
    """The fitness of many solutions at once, in NumPy: letters P, I, N, G as in berth."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        wanted = batch.requests[batch.type_of]
        self.gpus, self.milli, self.gpu_mem, self.cpu, self.mem = wanted[:, :5].T
        self.evaluations = 0

    def fitness(self, genes: np.ndarray) -> np.ndarray:
        """(P,): of solutions (P, I). Only what a solution touches is copied, not the whole cluster."""
        batch = self.batch
        count, length = genes.shape
        self.evaluations += count
        rows = np.arange(count)
        nodes, place = np.unique(genes, return_inverse=True)
        place = place.reshape(genes.shape)
        cpu, mem = np.tile(batch.free_cpu[nodes], (count, 1)), np.tile(batch.free_mem[nodes], (count, 1))
        milli = np.tile(batch.free_milli[nodes], (count, 1, 1))
        gpu_mem = np.tile(batch.free_gpu_mem[nodes], (count, 1, 1))
        fits_empty = batch.fit[batch.type_of[None, :], genes]
        placed = np.zeros(count, dtype=np.int64)
        misfits = np.zeros(count, dtype=np.int64)
        for i in range(length):
            at = place[:, i]
            here, here_mem = milli[rows, at], gpu_mem[rows, at]
            able = (here >= self.milli[i]) & (here_mem >= self.gpu_mem[i])
            ok = (
                (able.sum(axis=1) >= self.gpus[i])
                & (cpu[rows, at] >= self.cpu[i])
                & (mem[rows, at] >= self.mem[i])
            )
            ok &= fits_empty[:, i]
            if self.gpus[i]:
                # The tightest GPUs that are able, the first on ties.
                order = np.argsort(np.where(able, here, 1 << 40), axis=1, kind="stable")[:, : self.gpus[i]]
                taken = np.zeros(here.shape, dtype=bool)
                np.put_along_axis(taken, order, True, axis=1)
                taken &= ok[:, None]
                milli[rows, at] -= taken * self.milli[i]
                gpu_mem[rows, at] -= taken * self.gpu_mem[i]
            cpu[rows, at] -= ok * self.cpu[i]
            mem[rows, at] -= ok * self.mem[i]
            placed += ok * self.gpus[i] * self.milli[i]
            misfits += ~ok
        return placed / batch.capacity_milli - misfits

    def evolve(self, generations: int, seed: int) -> tuple[float, list[float], float]:
        """Seconds, the best fitness after each generation, and the best of all."""
        import pygad
        import simpy

        starts, candidates = self.batch.candidates()
        first = starts[self.batch.type_of]
        room = starts[self.batch.type_of + 1] - first

        def nodes_of(genes: np.ndarray) -> np.ndarray:
            return candidates[first + (np.asarray(genes, dtype=np.float64) * room).astype(np.int64)]

        curve: list[float] = []
        result: dict[str, float] = {}
        environment = simpy.Environment()
        self.fitness_seconds = 0.0

        def timed(nodes: np.ndarray) -> np.ndarray:
            begin = time.process_time()
            values = self.fitness(nodes)
            self.fitness_seconds += time.process_time() - begin
            return values

        def scheduler():  # type: ignore[no-untyped-def]
            begin = time.process_time()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                search = pygad.GA(
                    num_generations=generations,
                    num_parents_mating=40,
                    sol_per_pop=100,
                    num_genes=len(first),
                    # A gene is a number below 1 that picks one of the candidates: lists of candidates as
                    # PyGAD's gene_space would make it many times slower.
                    gene_type=float,
                    init_range_low=0.0,
                    init_range_high=1.0,
                    random_mutation_min_val=0.0,
                    random_mutation_max_val=1.0,
                    mutation_by_replacement=True,
                    parent_selection_type="tournament",
                    K_tournament=20,
                    keep_elitism=60,
                    crossover_type="single_point",
                    mutation_type="adaptive",
                    mutation_probability=(0.1, 0.25),
                    fitness_func=lambda _ga, genes, _which: timed(nodes_of(genes)),
                    fitness_batch_size=100,
                    on_generation=lambda ga: curve.append(float(np.max(ga.last_generation_fitness))),
                    random_seed=seed,
                )
                search.run()
            result["seconds"] = time.process_time() - begin
            yield environment.timeout(1)

        environment.process(scheduler())
        environment.run()
        return result["seconds"], curve, max(curve)


def problem(instances: int, seed: int = 0) -> tuple[Batch, Cluster, list[Job], int]:
    """A batch on the whole PAI machine list when little is free: filled by best fit, then 3 % of the jobs end."""
    nodes, jobs = case_of("synthetic:pai-like?jobs=30000&seed=1").load(1)
    cluster, place, missed, number = Cluster(nodes), BestFit(), 0, 0
    for job in jobs:
        number += 1
        slots = place(job, cluster)
        missed = 0 if slots else missed + 1
        if slots:
            cluster.place(Placement(job, slots, job.share))
        if missed == 40:
            break
    draw = random.Random(seed)
    for job_id in draw.sample(sorted(cluster.running), len(cluster.running) * 3 // 100):
        cluster.release(job_id)
    waiting = [job for job in jobs[number:] if cluster.fitting_nodes(job).size][:instances]
    return batch_of(waiting, cluster), cluster, jobs, len(nodes)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--generations", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=10)
    asked = parser.parse_args()
    batch, cluster, jobs, machines = problem(200)
    print(
        f"{len(batch.jobs)} instances, {machines:,} machines, {len(batch.nodes):,} of them with room for any"
    )
    reference = Reference(batch)
    draw = np.random.default_rng(0)
    starts, candidates = batch.candidates()
    begin = starts[batch.type_of]
    room = starts[batch.type_of + 1] - begin
    genes = candidates[begin + (draw.random((1000, len(batch.jobs))) * room).astype(np.int64)]
    genes[::2, ::3] = genes[::2, :1]  # and solutions that crowd a machine
    same = np.allclose(reference.fitness(genes), fitness_of(batch, genes), rtol=0, atol=1e-9)
    print(f"same fitness for the same 1,000 solutions: {same}")
    if not same:
        raise SystemExit(1)

    rows = []
    evolve_paper(batch, PaperSettings(generations=2))
    for seed in range(asked.repeats):
        before = reference.evaluations
        seconds, curve, best = reference.evolve(asked.generations, seed)
        evaluated = reference.evaluations - before
        theirs = evaluated / seconds
        alone = evaluated / reference.fitness_seconds
        settings = PaperSettings(generations=asked.generations * 10)
        t = time.process_time()
        ours_found = evolve_paper(batch, settings, seed=(seed,))
        ours_seconds = time.process_time() - t
        # Each child is worked out twice, before its mutation and after.
        ours = (settings.population + 80 * settings.generations) / ours_seconds
        to_equal = None
        typical = typical_requests(jobs, cluster)
        for budget in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024):
            t = time.process_time()
            wanted = GeneticSettings(
                weights=AS_THE_PAPER, budget_ms=budget, generations=10_000, patience=10_000
            )
            found = search(packing_of(batch, cluster, typical, wanted), wanted, seed=(seed,))
            took = time.process_time() - t
            if (
                int(batch.milli[found.node >= 0].sum()) / batch.capacity_milli - (found.node < 0).sum()
                >= best - 1e-12
            ):
                to_equal = took
                break
        paper_equal = np.flatnonzero(ours_found.history[:, 0] >= best - 1e-12)
        paper_s = ours_seconds * int(paper_equal[0]) / settings.generations if len(paper_equal) else None
        rows.append(
            {
                "seed": seed,
                "pygad_seconds": seconds,
                "pygad_evaluations_per_s": theirs,
                "pygad_fitness_alone_per_s": alone,
                "berth_evaluations_per_s": ours,
                "ratio": ours / theirs,
                "pygad_fitness": best,
                "berth_fitness": ours_found.fitness,
                "genetic_seconds_to_equal": to_equal,
                "genetic_paper_seconds_to_equal": paper_s,
                "generations_pygad": len(curve),
            }
        )
        speed = f"PyGAD {theirs:,.0f} evaluations/s ({alone:,.0f} in the fitness alone), berth {ours:,.0f}"
        print(f"seed {seed}: {speed}: {ours / theirs:,.0f} times ({ours / alone:,.0f})")
        print(
            f"        fitness {best:.6f} after {seconds:.1f} s (PyGAD), {ours_found.fitness:.6f} (genetic-paper)"
        )
        for name, reached in (("genetic", to_equal), ("genetic-paper", paper_s)):
            part = f"1/{seconds / reached:,.0f} of PyGAD's time" if reached else "-"
            print(f"        {name} is as fit after {_ms(reached)}: {part}", flush=True)
    ratios = [row["ratio"] for row in rows]
    print(
        f"evaluations per second: {np.median(ratios):,.0f} times in the median, {min(ratios):,.0f} at the least"
    )
    for name in ("genetic_paper", "genetic"):
        to_equal_s = [row[f"{name}_seconds_to_equal"] for row in rows]
        faster = [
            row["pygad_seconds"] / seconds if seconds else 0.0
            for row, seconds in zip(rows, to_equal_s, strict=True)
        ]
        often = sum(times >= 100 for times in faster)
        print(
            f"{name.replace('_', '-')} is as fit as PyGAD in 1/{np.median(faster):,.0f} of its time in the median,"
            f" 1/{min(faster):,.0f} at the worst; in a hundredth on {often} of {len(rows)} seeds"
        )
    save("genetic_vs_pygad", rows)


def _ms(seconds: float | None) -> str:
    return "never" if seconds is None else f"{1000 * seconds:.0f} ms"


if __name__ == "__main__":
    main()
