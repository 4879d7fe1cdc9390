"""GPUs of a model that some jobs name are left to them while others have a choice."""

import numpy as np
import pytest

from berth.arrays import FloatArray
from berth.cluster import Cluster
from berth.model import GpuModel, Job, Node
from berth.policies.genetic.search import demand_by_kind, detours, kinds_of
from berth.policies.placements.by_score import typical_requests

A100, T4 = GpuModel("A100", 80_000), GpuModel("T4", 16_000)
NODES = [Node("a", 4, A100, 64_000), Node("b", 4, T4, 64_000), Node("c", 0, None, 64_000)]


def any_gpu(name: str) -> Job:
    return Job(name, 0, 1000, gpus=1)


def one_t4(name: str) -> Job:
    return Job(name, 0, 1000, gpus=1, models=("T4",))


def by_model(of_kind: FloatArray, cluster: Cluster) -> dict[str, float]:
    """What holds of each kind, where models tell them apart."""
    kinds = kinds_of(cluster)
    names = {number: name for name, number in cluster.models.items()}
    return {names[model]: value for model, value in zip(kinds.models.tolist(), of_kind, strict=True) if model}


def test_demand_is_the_part_of_a_model_that_jobs_naming_it_fill_when_as_much_is_asked_for_as_there_is() -> (
    None
):
    cluster = Cluster(NODES)
    jobs = [any_gpu(f"a{at}") for at in range(6)] + [one_t4(f"t{at}") for at in range(2)]
    # A quarter of 8 GPUs is asked for on T4s, of which there are 4.
    expected = {"A100": 0.0, "T4": 0.5}
    of_kind = demand_by_kind(typical_requests(jobs, cluster), kinds_of(cluster))
    assert by_model(of_kind, cluster) == pytest.approx(expected)


def test_naming_every_model_or_none_is_no_demand_and_more_than_there_is_counts_as_all_of_it() -> None:
    cluster = Cluster(NODES)
    both = Job("both", 0, 1000, gpus=1, models=("A100", "T4"))
    kinds = kinds_of(cluster)
    assert not demand_by_kind(typical_requests([both, any_gpu("x")], cluster), kinds).any()
    assert demand_by_kind(typical_requests([one_t4("t")], cluster), kinds).max() == 1.0
    nothing = demand_by_kind(typical_requests([Job("cpu", 0, 1, cpu_milli=1)], cluster), kinds)
    assert not nothing.any()


def test_who_has_a_choice_pays_for_what_others_name_and_who_has_none_pays_nothing() -> None:
    cluster = Cluster(NODES)
    jobs = [any_gpu("a"), one_t4("t"), Job("cpu", 0, 1000, gpus=0, cpu_milli=1)]
    usual = typical_requests([any_gpu(f"a{at}") for at in range(6)] + [one_t4("t"), one_t4("u")], cluster)
    requests = cluster.request_rows([cluster.request(job) for job in jobs])
    cost = detours(jobs, np.arange(3), requests, usual, cluster, kinds_of(cluster))
    expected = ({"A100": 0.0, "T4": 0.5}, {"A100": 0.0, "T4": 0.0}, {"A100": 0.0, "T4": 0.0})
    assert [by_model(of_type, cluster) for of_type in cost] == [
        pytest.approx(of_type) for of_type in expected
    ]


@pytest.mark.parametrize(("large", "kept"), [(1, False), (2, True), (3, True)])
def test_large_nodes_are_kept_for_those_who_fit_nowhere_else_if_these_ask_for_all_of_them(
    large: int, kept: bool
) -> None:
    """Two nodes have the CPU of a job of four GPUs, of twelve; it is the number of such jobs that tells."""
    nodes = [Node(f"s{at}", 4, A100, 64_000) for at in range(10)]
    cluster = Cluster([*nodes, *(Node(f"l{at}", 4, A100, 128_000) for at in range(2))])
    small = [Job(f"s{at}", 0, 1000, gpus=4, cpu_milli=64_000) for at in range(12 - large)]
    greedy = [Job(f"l{at}", 0, 1000, gpus=4, cpu_milli=100_000) for at in range(large)]
    kinds = kinds_of(cluster)
    of_kind = demand_by_kind(typical_requests([*small, *greedy], cluster), kinds)
    assert dict(zip(kinds.cpu_milli.tolist(), of_kind.tolist(), strict=True)) == {
        64_000: 0.0,
        128_000: 1.0 * kept,
    }
