"""The search of `genetic`: every solution can be carried out, and what it says of itself is so."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.cluster import Cluster, Queue
from berth.errors import PolicyError, SettingError
from berth.interference import Outlook, Tenant, no_interference
from berth.interference.speeds import unhindered
from berth.knowledge import Oracle
from berth.model import GpuModel, GpuSlot, Job, Node, Placement, Profile, Share
from berth.policies import Setting, make_policy, names
from berth.policies.genetic.batch import batch_of, shortage_of
from berth.policies.genetic.search import packing_of, search
from berth.policies.genetic.settings import GeneticSettings, Weights
from berth.policies.placements.by_score import typical_requests
from tests.examples import examples

MODELS = [GpuModel("T4", mem_mib=16_000), GpuModel("V100", mem_mib=32_000)]
QUICK = GeneticSettings(population=3, generations=4, steps=10)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Cluster, list[Job]]:
    nodes = [
        Node(
            f"n{at}",
            gpus := draw(st.integers(0, 8)),
            draw(st.sampled_from(MODELS)) if gpus else None,
            draw(st.sampled_from([None, 8_000, 64_000])),
            draw(st.sampled_from([None, 32_000])),
        )
        for at in range(draw(st.integers(1, 5)))
    ]
    jobs = []
    for at in range(draw(st.integers(1, 25))):
        gpus = draw(st.sampled_from([0, 1, 1, 1, 2, 4, 8]))
        milli = draw(st.sampled_from([100, 250, 333, 500, 700, 1000])) if gpus == 1 else 1000
        over = draw(st.sampled_from([1, 1, 1, 0, 2, 3]))
        gpus *= max(1, over)
        jobs.append(
            Job(
                f"j{at}", 0, 1000, gpus=gpus, share=Share(milli, draw(st.sampled_from([0, 0, 4_000, 20_000]))),
                cpu_milli=draw(st.sampled_from([0, 1_000, 6_000])), mem_mib=draw(st.sampled_from([0, 8_000])),
                models=draw(st.sampled_from([(), (), ("T4",), ("V100",)])), nodes=over,
                application=draw(st.sampled_from(["", "a", "b"])),
            )
        )  # fmt: skip
    cluster = Cluster(nodes)
    for at in range(draw(st.integers(0, 6))):  # somebody is there already
        job = Job(f"there{at}", 0, 1000, share=Share(300, 1_000), cpu_milli=500, application="a")
        fitting = cluster.fitting_nodes(job)
        if fitting.size:
            cluster.place(Placement(job, cluster.slots_on(int(fitting[-1]), job), job.share))
    return cluster, jobs


@given(clusters(), st.integers(0, 3))
@settings(max_examples=examples(60), deadline=None)
def test_what_is_found_can_be_carried_out_and_nothing_that_fits_is_left(made, seed) -> None:
    cluster, jobs = made
    profiles = {"a": 0.7, "b": 0.5}
    chosen = GeneticSettings(population=3, generations=4, steps=10, profiles=profiles)
    batch = batch_of(jobs, cluster)
    packing = packing_of(batch, cluster, typical_requests(jobs, cluster), chosen)
    found = search(packing, chosen, seed=(seed,))
    for placement in batch.placements(found.node, found.devices):
        cluster.place(placement)  # refuses what does not fit
    left = [job for job, node in zip(batch.jobs, found.node.tolist(), strict=True) if node < 0]
    assert [job.id for job in left if cluster.fitting_nodes(job).size >= max(1, job.nodes)] == []
    assert cluster.free.milli.min() >= -1


def full_batch(count: int = 90) -> tuple[Cluster, list[Job]]:
    nodes = [Node(f"n{at}", 2 + 2 * (at % 4), MODELS[at % 2], 32_000, 128_000) for at in range(6)]
    shares = [100, 250, 500, 700, 1000]
    jobs = [
        Job(f"j{at}", 0, 1000, gpus=1, share=Share(shares[at % 5]), cpu_milli=500 + 300 * (at % 7))
        for at in range(count)
    ]
    return Cluster(nodes), jobs


@pytest.mark.slow
def test_the_number_of_threads_changes_nothing() -> None:
    cluster, jobs = full_batch()
    batch = batch_of(jobs, cluster)
    found = []
    for threads in (1, 2, 5):
        chosen = GeneticSettings(threads=threads)
        packing = packing_of(batch, cluster, typical_requests(jobs, cluster), chosen)
        found.append(search(packing, chosen, seed=(7, 1)))
    assert [one.node.tolist() for one in found] == [found[0].node.tolist()] * 3
    assert [one.history.tolist() for one in found] == [found[0].history.tolist()] * 3


@pytest.mark.slow
def test_its_worth_is_what_is_placed_less_what_is_stranded_and_never_falls() -> None:
    cluster, jobs = full_batch()
    batch = batch_of(jobs, cluster)
    chosen = GeneticSettings(weights=Weights(utilisation=1, fragmentation=0, waiting=0.5, interference=0))
    found = search(packing_of(batch, cluster, typical_requests(jobs, cluster), chosen), chosen)
    placed = found.node >= 0
    assert found.value == pytest.approx(batch.milli[placed].sum() / 1000 + 0.5 * placed.sum())
    assert (np.diff(found.history[:, 0]) >= -1e-9).all()


def test_jobs_that_use_a_gpu_hard_are_kept_apart_where_profiles_tell() -> None:
    cluster = Cluster([Node("n", 2, MODELS[0])])
    jobs = [Job(f"j{at}", 0, 1, share=Share(500), application="hard") for at in range(2)]
    placed = {}
    for name, profiles in (("unknown", {}), ("known", {"hard": 0.9})):
        chosen = GeneticSettings(profiles=profiles)
        batch = batch_of(jobs, cluster)
        found = search(packing_of(batch, cluster, typical_requests(jobs, cluster), chosen), chosen)
        placed[name] = sorted(found.devices.tolist())
    assert placed == {"unknown": [1, 1], "known": [1, 2]}


class Profiled:
    """A model of interference that is made from profiles."""

    def __init__(self, **use: float) -> None:
        gpu = MODELS[0]
        self.profiles = {
            name: Profile(name, "", 0, "", gpu, 1000, np.full((3, 4), value)) for name, value in use.items()
        }
        self.speeds = unhindered

    def with_profiles(self, profiles: object) -> Profiled:
        return self

    def __call__(self, tenants: Sequence[Tenant], gpu: GpuModel | None) -> Outlook:
        return Outlook((1000,) * len(tenants))


def test_the_profiles_of_the_runs_interference_are_used() -> None:
    jobs = [Job(f"j{at}", 0, 1, share=Share(500), application="hard") for at in range(2)]
    placed = {}
    for name, interference in (
        ("none", no_interference),
        ("soft", Profiled(hard=0.4)),
        ("hard", Profiled(hard=0.9)),
    ):
        cluster = Cluster([Node("n", 2, MODELS[0])])
        slots = decide(
            make_policy("genetic", Setting(0, knowledge=Oracle(jobs, interference))), cluster, jobs
        )
        placed[name] = len({slot for (slot,) in slots.values()})
    assert placed == {"none": 1, "soft": 1, "hard": 2}


def decide(policy: object, cluster: Cluster, jobs: list[Job]) -> dict[str, tuple[GpuSlot, ...]]:
    queue = Queue()
    for job in jobs:
        queue.add(job)
    placed = {}
    for decision in policy(queue, cluster, 0):  # type: ignore[operator]
        assert isinstance(decision, Placement)
        cluster.place(decision)
        queue.remove(decision.job)
        placed[decision.job.id] = decision.slots
    return placed


def test_a_job_that_fits_nowhere_is_named_with_what_is_short_and_the_rest_is_placed() -> None:
    cluster = Cluster([Node("a", 2, MODELS[0], 8_000, 10_000), Node("b", 4, MODELS[1], 8_000, 10_000)])
    asks = {
        "fine": Job("fine", 0, 1, gpus=2, cpu_milli=1_000),
        "model": Job("model", 0, 1, models=("A100",)),
        "gpus": Job("gpus", 0, 1, gpus=8),
        "parts": Job("parts", 0, 1, gpus=6, share=Share(500)),
        "memory of cards": Job("memory of cards", 0, 1, gpus=2, share=Share(500, 40_000)),
        "memory of the card": Job("memory of the card", 0, 1, share=Share(500, 40_000)),
        "cpu": Job("cpu", 0, 1, cpu_milli=9_000),
        "memory": Job("memory", 0, 1, mem_mib=20_000),
    }
    batch = batch_of(list(asks.values()), cluster)
    assert [str(shortage_of(job, cluster)) for job in batch.lost] == [
        "job 'model' fits on no node: no node has GPU model A100",
        "job 'gpus' fits on no node: 8 GPUs wanted; no such node has more than 4 free",
        "job 'parts' fits on no node: 50 % of each of 6 GPUs wanted;"
        " no such node has more than 4 with that much free",
        "job 'memory of cards' fits on no node: 40000 MiB of GPU memory on each of 2 GPUs wanted;"
        " no such node has more than 0 with that much, and the most free on one is 32000 MiB",
        "job 'memory of the card' fits on no node: 40000 MiB of GPU memory on 1 GPU wanted;"
        " no such node has more than 0 with that much, and the most free on one is 32000 MiB",
        "job 'cpu' fits on no node: 9 CPU cores wanted; no such node has more than 8 free",
        "job 'memory' fits on no node: 20000 MiB of memory wanted; no such node has more than 10000 free",
    ]
    assert list(decide(make_policy("genetic"), cluster, list(asks.values()))) == ["fine"]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("budget_ms=0", "budget_ms is 0; expected from 1 to 86,400,000"),
        ("population=1", "population is 1; expected from 2 to 1,000"),
        ("utilisation=0&fragmentation=0&waiting=0&interference=0&scarcity=0", "their sum above 0"),
        ("utilisation=-1", "expected each from 0 to 1,000,000"),
        ("speed=3", "no setting 'speed'; there are population, generations"),
        ("budget_ms=soon", "setting 'budget_ms' is 'soon'; expected a whole number"),
        ("waiting=nan", "utilisation 1, fragmentation 1, waiting nan"),
        ("seedy=1", "typical, threads, fragmentation, interference"),
    ],
)
def test_settings_out_of_range_are_refused_with_the_range(setting: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        make_policy(f"genetic?{setting}")


def test_a_setting_is_given_once() -> None:
    with pytest.raises(PolicyError, match="budget_ms is set twice"):
        make_policy("genetic?budget_ms=5&budget_ms=6")


@pytest.mark.parametrize(
    ("policy", "step"),
    [
        ("genetic", "berth.policies.genetic.search.improve"),
        *([("genetic-paper", "berth_papers.genetic.policy.evolve")] if "genetic-paper" in names() else []),
    ],
)
def test_interrupted_it_gives_the_best_so_far_and_then_stops(
    policy: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(step, interrupt)
    cluster, jobs = full_batch(30)
    queue = Queue()
    for job in jobs:
        queue.add(job)

    def carry_out() -> None:
        for decision in make_policy(policy, Setting(1, knowledge=Oracle(jobs)))(queue, cluster, 0):
            assert isinstance(decision, Placement)
            cluster.place(decision)  # refuses what cannot be
            queue.remove(decision.job)

    with pytest.raises(KeyboardInterrupt):
        carry_out()
    assert len(cluster.running) >= 20


@pytest.mark.slow
def test_a_budget_stops_the_search_soon_after() -> None:
    cluster, jobs = full_batch(200)
    batch = batch_of(jobs, cluster)
    chosen = GeneticSettings(budget_ms=1)
    found = search(packing_of(batch, cluster, typical_requests(jobs, cluster), chosen), chosen)
    assert len(found.history) <= 2
    for placement in batch.placements(found.node, found.devices):
        cluster.place(placement)
