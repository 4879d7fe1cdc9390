"""The optimum against exhaustive search, the bounds against the optimum, and files of batches."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from berth.bounds import optimum, pooled_milli, reachable, relaxed_milli
from berth.cluster import Cluster
from berth.errors import TraceError
from berth.experiments.batch_file import PlacingTask, random_batches, read_batches
from berth.experiments.optimality import measure_optimality, optimality_dict
from berth.model import GpuModel, Job, Node, Share
from berth.policies import genetic_search
from berth.policies.batch import batch_of

pytest.importorskip("highspy", reason="the optimum needs the extra 'optimum'")

T4 = GpuModel("T4")


def exhaustive(task: PlacingTask) -> int:
    """The most GPU milli, by trying every node for every instance: GPUs by every choice of them."""
    jobs = [job for job in task.jobs if job.gpus]
    best = 0

    def place(at: int, free: list[list[int]], cpu: list[int], placed: int) -> None:
        nonlocal best
        best = max(best, placed)
        if at == len(jobs):
            return
        job = jobs[at]
        place(at + 1, free, cpu, placed)
        for node, gpus in enumerate(free):
            if cpu[node] < job.cpu_milli:
                continue
            able = [index for index, left in enumerate(gpus) if left >= job.share.milli]
            for chosen in itertools.combinations(able, job.gpus):
                taken = [left - job.share.milli * (index in chosen) for index, left in enumerate(gpus)]
                left_cpu = [left - job.cpu_milli * (number == node) for number, left in enumerate(cpu)]
                place(
                    at + 1,
                    [*free[:node], taken, *free[node + 1 :]],
                    left_cpu,
                    placed + job.gpus * job.share.milli,
                )

    place(0, [list(gpus) for gpus in task.free_milli], [node.cpu_milli or 0 for node in task.nodes], 0)
    return best


def small(seed: int) -> PlacingTask:
    shares = [(1, 250), (1, 500), (1, 700), (1, 1000), (2, 1000), (1, 400)]
    jobs = []
    for at in range(6):
        gpus, milli = shares[(seed * 7 + at * at) % 6]
        jobs.append(
            Job(f"j{at}", 0, 1, gpus=gpus, share=Share(milli), cpu_milli=1_000 * (1 + (seed + at) % 4))
        )
    nodes = (Node("a", 2, T4, 5_000 + 1_000 * (seed % 3), None), Node("b", 1, T4, 4_000, None))
    return PlacingTask(str(seed), nodes, ((1000, 250 * (seed % 5)), (500 + 100 * (seed % 6),)), tuple(jobs))


@pytest.mark.parametrize("seed", range(12))
def test_the_optimum_is_that_of_trying_everything(seed: int) -> None:
    task = small(seed)
    cluster = task.cluster()
    batch = batch_of(task.jobs, cluster)
    found = optimum(batch)
    assert (found.milli, found.proven) == (exhaustive(task), True)
    for placement in batch.placements(found.node, found.devices):
        cluster.place(placement)
    assert found.milli <= round(relaxed_milli(batch)) <= pooled_milli(batch)


def test_no_policy_is_above_the_optimum_and_genetic_is_near_it() -> None:
    found = measure_optimality(random_batches(4, instances=20, machines=6, seed=3))
    for one in found:
        assert one.proven
        assert one.optimum_milli is not None
        assert all(gap.placed_milli <= one.optimum_milli for gap in one.gaps)
        assert one.optimum_milli <= one.relaxed_milli + 1e-6
    gaps = optimality_dict(found)["policies"]
    assert gaps["genetic"]["gap_worst_pct"] < 3  # type: ignore[index]


def test_what_sizes_add_up_to() -> None:
    filled = reachable(np.array([300, 500]), 1000)
    assert filled[[0, 299, 300, 599, 600, 799, 800, 1000]].tolist() == [0, 0, 300, 500, 600, 600, 800, 1000]


def test_a_file_of_batches_is_read_as_it_says(tmp_path: Path) -> None:
    file = tmp_path / "batches.json"
    machine = {"name": "m", "gpus": 2, "model": "T4", "cpu_milli": 8000, "free_milli": [250, 1000]}
    instance = {"id": "i", "gpus": 1, "milli": 500, "cpu_milli": 100, "models": ["T4"]}
    file.write_text(
        json.dumps({"batches": [{"name": "one", "machines": [machine], "instances": [instance]}]})
    )
    assert read_batches(file) == [
        PlacingTask(
            "one",
            (Node("m", 2, GpuModel("T4"), 8000, None),),
            ((250, 1000),),
            (Job("i", 0, 2**60, gpus=1, share=Share(500), cpu_milli=100, models=("T4",)),),
        )
    ]
    assert read_batches(file)[0].cluster().free_milli.tolist() == [[250, 1000]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gpus": "two"}, r"machines\[0\].gpus'.*a whole number from 0 to 64"),
        ({"free_milli": [5]}, r"machines\[0\].free_milli'.*2 whole numbers from 0 to 1000"),
        ({"colour": "red"}, r"machines\[0\]'.*colour"),
    ],
)
def test_a_bad_file_of_batches_is_refused_at_the_entry(change: dict, said: str, tmp_path: Path) -> None:  # type: ignore[type-arg]
    file = tmp_path / "batches.json"
    file.write_text(json.dumps({"machines": [{"gpus": 2} | change], "instances": [{"gpus": 1}]}))
    with pytest.raises(TraceError, match=said):
        read_batches(file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "a readable JSON file of batches"),
        ("[" * 100_000, "a readable JSON file of batches"),
        ("[]", "a list of them under"),
        ('{"machines": [], "instances": [], "machine": []}', r"batches\[0\]'.*machine"),
        (
            '{"machines": [{"gpus": 1}], "instances": [{"gpus": 1, "id": "x"}, {"gpus": 1, "id": "x"}]}',
            r"instances\[1\].id': 'x'.*an id that instances\[0\] has not",
        ),
        ('{"machines": [{}], "instances": []}', r"machines\[0\].gpus'.*how many gpus"),
    ],
)
def test_not_a_file_of_batches(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "batches.json"
    file.write_text(text)
    with pytest.raises(TraceError, match=said):
        read_batches(file)


def test_an_interrupted_policy_ends_it_with_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = random_batches(3, instances=20, machines=6)
    calls = []
    real = genetic_search.improve

    def improve(*given: object) -> object:
        calls.append(given)
        if len(calls) > 40:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(genetic_search, "improve", improve)
    found = measure_optimality(tasks, ["first-fit", "genetic", "fgd"])
    last = found[-1]
    assert last.interrupted
    assert len(found) < 3 or len(last.gaps) == 2
    assert [gap.policy for gap in last.gaps] == ["first-fit", "genetic"]
    cluster = tasks[len(found) - 1].cluster()
    for placement in last.gaps[-1].placements:
        cluster.place(placement)  # refuses what cannot be
    assert last.gaps[-1].placed_milli > 0
    answer = optimality_dict(found)
    told = answer["batches"][-1]["placements"]["genetic"]  # type: ignore[index]
    assert [one["instance"] for one in told] == [one.job.id for one in last.gaps[-1].placements]
    assert all(name in last.machines for one in told for name, _ in one["gpus"])


def test_the_cluster_of_a_task_holds_what_is_not_free() -> None:
    task = small(1)
    cluster = task.cluster()
    assert isinstance(cluster, Cluster)
    assert cluster.free_milli.tolist() == [[1000, 250], [600, -1]]
