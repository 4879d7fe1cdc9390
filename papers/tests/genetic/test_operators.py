"""The operators of the paper's algorithm, one by one, on solutions that fit in a line."""

import numpy as np
import pytest

from berth.cluster import Cluster
from berth.model import GpuModel, Job, Node, Share
from berth.policies.genetic.batch import batch_of, pooled
from berth.policies.genetic.packing_kernels import seeded, uniform
from berth_papers.genetic.policy import PaperSettings, evolve_paper, fitness_of
from berth_papers.genetic.variation_kernels import crossover, mutate, sort_by_fitness, tournament

T4 = GpuModel("T4", mem_mib=16_000)


def batch(*shares: tuple[int, int], gpus: tuple[int, ...] = (2, 2), cpu_milli: int = 0):
    nodes = [Node(f"n{at}", count, T4, 8_000, 64_000) for at, count in enumerate(gpus)]
    jobs = [
        Job(f"j{at}", 0, 1000, gpus=count, share=Share(milli), cpu_milli=cpu_milli)
        for at, (count, milli) in enumerate(shares)
    ]
    return batch_of(jobs, Cluster(nodes))


def test_each_gene_adds_its_gain_in_utilisation_and_minus_one_where_it_does_not_fit():
    one = batch((1, 1000), (1, 500), (2, 1000), (1, 600))
    # 4 GPUs. n0 takes 1000 + 500; two whole GPUs no longer fit there; 600 no longer fits beside 500 either.
    assert fitness_of(one, np.array([[0, 0, 0, 0]])) == pytest.approx([1.5 / 4 - 2])
    assert fitness_of(one, np.array([[0, 0, 1, 0]])) == pytest.approx([3.5 / 4 - 1])
    assert fitness_of(one, np.array([[0, 0, 1, 1]])) == pytest.approx([3.5 / 4 - 1])


def test_genes_apply_in_the_order_of_the_queue():
    small_first = batch((1, 400), (1, 1000), gpus=(1,))
    large_first = batch((1, 1000), (1, 400), gpus=(1,))
    assert fitness_of(small_first, np.array([[0, 0]])) == pytest.approx([0.4 - 1])
    assert fitness_of(large_first, np.array([[0, 0]])) == pytest.approx([1.0 - 1])


def test_cpu_counts_as_well_as_gpu():
    assert fitness_of(batch((1, 100), (1, 100), cpu_milli=5_000), np.array([[0, 0]])) == pytest.approx(
        [0.1 / 4 - 1]
    )


def test_gpu_memory_counts_where_somebody_asks_for_it():
    node = Node("n", 1, T4)
    jobs = [Job(name, 0, 1, share=Share(100, 9_000)) for name in "ab"]
    assert fitness_of(batch_of(jobs, Cluster([node])), np.array([[0, 0]])) == pytest.approx([0.1 - 1])


def test_pooled_gpus_hold_what_no_device_could():
    cluster, jobs = (
        Cluster([Node("a", 2, T4), Node("b", 1, T4)]),
        [Job(f"j{at}", 0, 1000, share=Share(600)) for at in range(5)],
    )
    one = pooled(jobs, cluster)
    assert fitness_of(one, np.zeros((1, 5), dtype=np.int64)) == pytest.approx([1.0])
    assert evolve_paper(one).fitness == pytest.approx(1.0)
    assert evolve_paper(batch_of(jobs, cluster)).fitness == pytest.approx(0.6 - 2)


def test_a_tournament_over_everybody_is_won_by_the_fittest():
    fitness = np.array([1.0, 5.0, 3.0, 5.0])
    assert [tournament(fitness, 4, np.arange(4), seeded(seed)) in (1, 3) for seed in range(5)] == [True] * 5


def test_a_tournament_draws_nobody_twice():
    fitness = np.arange(10.0)
    wins = [tournament(fitness, 9, np.arange(10), seeded(seed)) for seed in range(200)]
    assert set(wins) == {8, 9}  # the best of nine of ten is one of the two best


def test_one_point_crossover_takes_the_mothers_genes_and_then_the_fathers():
    child = np.empty(5, dtype=np.int64)
    crossover(np.array([1, 1, 1, 1, 1]), np.array([2, 2, 2, 2, 2]), 2, child)
    assert child.tolist() == [1, 1, 2, 2, 2]


def test_mutation_changes_the_part_of_the_genes_that_it_is_asked_to_and_only_to_candidates():
    starts, candidates = np.array([0, 3, 5]), np.array([10, 11, 12, 20, 21])
    type_of = np.tile([0, 1], 5_000)
    child = np.full(10_000, -7, dtype=np.int64)
    mutate(child, 0.25, type_of, starts, candidates, seeded(1))
    assert set(child[::2].tolist()) == {-7, 10, 11, 12}
    assert set(child[1::2].tolist()) == {-7, 20, 21}
    assert 0.23 < (child != -7).mean() < 0.27


def test_sorting_puts_the_fittest_first_and_leaves_equals_in_order():
    order = np.arange(4)
    sort_by_fitness(np.array([2.0, 7.0, 2.0, 9.0]), order)
    assert order.tolist() == [3, 1, 0, 2]


def test_random_numbers_are_even_and_of_the_seed():
    state = seeded(5)
    drawn = np.array([uniform(state) for _ in range(10_000)])
    again = seeded(5)
    assert [uniform(again) for _ in range(3)] == drawn[:3].tolist()
    assert np.histogram(drawn, 10, (0, 1))[0].min() > 850


@pytest.mark.slow
def test_the_best_is_never_lost_and_the_run_is_of_the_seed():
    one = batch(*[(1, 300 + 50 * (at % 9)) for at in range(30)], gpus=(2, 4, 8))
    found = [evolve_paper(one, PaperSettings(generations=40), seed=(3,)) for _ in range(2)]
    assert found[0].history.shape == (41, 2)
    assert (np.diff(found[0].history[:, 0]) >= 0).all()
    assert found[0].fitness == found[0].history[-1, 0]
    assert found[0].node.tolist() == found[1].node.tolist()
    assert found[0].history.tolist() == found[1].history.tolist()
