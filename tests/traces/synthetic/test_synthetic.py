"""Made-up workloads: the same everywhere, and as told."""

from __future__ import annotations

import hashlib
import math
from collections import Counter

import numpy as np
import pytest

from berth import traces
from berth.errors import SettingError
from berth.traces.description import describe_jobs
from berth.traces.synthetic import WORKLOADS, draws

FINGERPRINTS = {
    "demo": "c464805ab98fdee6",
    "pai-like": "521f2b2f16b2848b",
    "philly-like": "6a3d39c640afaa77",
    "poisson": "1a2354adc5687b89",
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_same_seed_gives_the_same_jobs_on_every_machine(name: str) -> None:
    jobs = list(traces.read(f"synthetic:{name}?jobs=500&seed=7"))
    drawn = [
        (job.id, job.submit_ms, job.work_ms, job.user, job.gpus, tuple(job.share), job.cpu_milli, job.models)
        for job in jobs
    ]
    assert hashlib.sha256(repr(drawn).encode()).hexdigest()[:16] == FINGERPRINTS[name]
    assert jobs != list(traces.read(f"synthetic:{name}?jobs=500&seed=8"))


@pytest.mark.parametrize("name", WORKLOADS)
def test_jobs_come_in_order_as_many_as_asked_for_and_fit_the_cluster(name: str) -> None:
    spec = f"synthetic:{name}?jobs=3000&seed=1"
    jobs = list(traces.read(spec))
    nodes = traces.read_trace(spec).nodes
    assert nodes is not None
    assert len({job.id for job in jobs}) == len(jobs) == 3000
    assert [job.submit_ms for job in jobs] == sorted(job.submit_ms for job in jobs)
    for job in jobs:
        fitting = [
            node.gpus
            for node in nodes
            if not job.models or (node.gpu_model is not None and node.gpu_model.name in job.models)
        ]
        wanted = math.ceil(job.gpus / job.nodes) if job.nodes else 0
        assert max(fitting) >= wanted
        assert sum(fitting) >= job.gpus
    assert list(traces.read(f"synthetic:{name}?jobs=0")) == []


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name != "poisson"])
def test_the_load_is_the_one_that_was_asked_for(name: str) -> None:
    spec = f"synthetic:{name}?jobs=3000&load=0.7"
    load = describe_jobs(traces.read(spec), traces.nodes_of(spec)).load
    assert load == pytest.approx(0.7, rel=0.01)


def test_poisson_has_exponential_gaps_and_works_of_the_mean_that_was_asked_for() -> None:
    jobs = list(traces.read("synthetic:poisson?jobs=20000&gpus=4&load=0.5&work_s=100"))
    works = np.array([job.work_ms for job in jobs])
    gaps = np.diff([job.submit_ms for job in jobs])
    for values, mean_ms in ((works, 100_000), (gaps, 50_000)):
        assert values.mean() == pytest.approx(mean_ms, rel=0.03)
        assert values.std() == pytest.approx(mean_ms, rel=0.05)
    assert [node.gpus for node in traces.read_nodes("synthetic:poisson?gpus=20")] == [8, 8, 4]


@pytest.mark.slow
def test_pai_like_has_the_published_machines_requests_and_skew_of_users() -> None:
    spec = "synthetic:pai-like?jobs=50000"
    nodes = traces.nodes_of(spec)
    assert nodes is not None
    assert (len(nodes), sum(node.gpus for node in nodes)) == (1897, 6742)
    jobs = list(traces.read(spec))
    milli = [job.gpus * job.share.milli for job in jobs]
    published = {"<25 %": 0.147, "25-50 %": 0.264, "50-100 %": 0.132, "1": 0.428, ">1": 0.029}
    classes = Counter(
        "<25 %"
        if m < 250
        else "25-50 %"
        if m < 500
        else "50-100 %"
        if m < 1000
        else "1"
        if m == 1000
        else ">1"
        for m in milli
    )
    for name, part in published.items():
        assert classes[name] / len(jobs) == pytest.approx(part, abs=0.006)
    users = sorted(Counter(job.user for job in jobs).values(), reverse=True)
    assert sum(users[: len(users) // 20]) / len(jobs) > 0.6
    assert sum(bool(job.models) for job in jobs) / len(jobs) == pytest.approx(0.33, abs=0.02)


def test_draws_are_of_the_distribution_that_they_say() -> None:
    drawn = draws.uniform(3, "purpose", 200_000)
    assert 0 <= drawn.min() < drawn.max() < 1
    assert drawn.mean() == pytest.approx(0.5, abs=0.005)
    np.testing.assert_allclose(draws.exponential(drawn), -np.log(1 - drawn), rtol=1e-12, atol=1e-15)
    counts = np.bincount(draws.chosen(drawn, (1, 0, 3)), minlength=3) / len(drawn)
    np.testing.assert_allclose(counts, (0.25, 0, 0.75), atol=0.01)
    assert draws.quantile(np.array([0.0, 0.25, 0.5, 0.75]), (0, 0.5, 1), (0, 10, 100)).tolist() == [
        0,
        5,
        10,
        55,
    ]
    half_day = draws.arrivals(drawn, 86_400_000.0, (1.0,) * 12 + (0.0,) * 12)
    assert half_day.max() < 43_200_000
    assert np.all(np.diff(half_day) >= 0)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            "synthetic:nothing",
            "no synthetic workload 'nothing'; there are demo, pai-like, philly-like, poisson",
        ),
        ("synthetic:demo?size=3", "'demo' has no setting 'size'"),
        ("synthetic:demo?jobs=many", "is 'many'; expected a whole number"),
        (
            "synthetic:demo?jobs=-1",
            "^synthetic:demo.jobs=-1: expected jobs of 0 to 100,000,000, a seed of 0 or more and a load above 0 and",
        ),
        (f"synthetic:demo?jobs={10**20}", "expected jobs of 0 to 100,000,000"),
        ("synthetic:demo?load=nan", "load above 0"),
        ("synthetic:poisson?gpus=0", "at least one GPU"),
        ("synthetic:pai-like?pinned=2", "pinned from 0 to 1"),
    ],
)
def test_a_setting_that_is_none_is_refused(spec: str, said: str) -> None:
    with pytest.raises(SettingError, match=said.replace("?", r"\?")):
        list(traces.read(spec))
