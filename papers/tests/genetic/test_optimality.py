"""The optimum against exhaustive search, the bounds against the optimum, and files of batches."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from berth.cli.app import app
from berth.cluster import Cluster
from berth.errors import MissingExtraError, TraceError
from berth.model import GpuModel, Job, Node, Share
from berth.plots import policy_styles
from berth.policies.genetic import search as genetic_search
from berth.policies.genetic.batch import Batch, batch_of, pooled
from berth_papers.bounds import optimum, pooled_milli, reachable, relaxed_milli
from berth_papers.genetic import optimality
from berth_papers.genetic.batch_file import PlacingTask, random_batches, read_batches
from berth_papers.genetic.chapters import (
    convergence_chapter,
    optimality_answers,
    optimality_chapter,
)
from berth_papers.genetic.optimality import measure_optimality, optimality_dict
from berth_papers.genetic.plots import convergence

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
    assert found.milli <= round(relaxed_milli(batch))
    assert found.milli <= pooled_milli(pooled(task.jobs, task.cluster()))


@pytest.mark.slow
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
    assert read_batches(file)[0].cluster().free.milli.tolist() == [[250, 1000]]


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
            r"instances\[1\].id': 'x'.*an id other than that of instances\[0\]",
        ),
        ('{"machines": [{}], "instances": []}', r"machines\[0\].gpus'.*the number of its GPUs"),
    ],
)
def test_not_a_file_of_batches(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "batches.json"
    file.write_text(text)
    with pytest.raises(TraceError, match=said):
        read_batches(file)


@pytest.mark.slow
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


def test_pooled_counts_those_too_that_fit_on_no_single_machine() -> None:
    node = Node("n", 4, T4, 8_000, 1_000)
    jobs = (Job("whole", 0, 1), Job("half", 0, 1, share=Share(500)), Job("part", 0, 1, share=Share(400)))
    task = PlacingTask("0", (node,), ((500, 500, 500, 500),), jobs)
    one = measure_optimality([task], ["first-fit"])[0]
    assert (one.optimum_milli, one.pooled_milli, one.pooled_paper_milli) == (900, 1_900, 1_900)
    assert len(one.unplaceable) == 1


@pytest.mark.parametrize(
    ("free", "sizes", "most"),
    [
        ((1000, 1000), (600, 600, 600, 400), 1_800),
        ((1000, 500), (600, 600), 1_200),
        ((0, 100), (600,), 0),
        ((1000,), (), 0),
    ],
)
def test_pooled_is_the_most_that_requests_add_up_to(
    free: tuple[int, ...], sizes: tuple[int, ...], most: int
) -> None:
    jobs = tuple(Job(f"j{at}", 0, 1, share=Share(size)) for at, size in enumerate(sizes))
    task = PlacingTask("0", (Node("n", len(free), T4),), (free,), jobs)
    assert pooled_milli(pooled(jobs, task.cluster())) == most


@pytest.mark.slow
def test_the_searches_that_were_measured_are_drawn_and_told_of_by_generation() -> None:
    heard: list[tuple[float, str]] = []

    def hear(done: float, total: float, said: str = "", /) -> None:
        assert 0 <= done <= total == 2
        heard.append((done, said))

    tasks = random_batches(2, instances=20, machines=6)
    policies = ["first-fit", "genetic-paper?generations=20", "genetic?generations=3"]
    found = measure_optimality(tasks, policies, progress=hear)
    assert ("batch 0:0, genetic-paper?generations=20, generation 10 of 20") in [said for _, said in heard]
    assert any("genetic?generations=3, generation 1 of 3" in said for _, said in heard)
    assert [len(gap.history) if gap.history is not None else None for gap in found[0].gaps][:2] == [None, 21]
    told = convergence_chapter(found[0])
    assert [line.name for line in told[0].figures[0][1].data] == [
        "genetic-paper?generations=20",
        "genetic-paper?generations=20, mean",
        "genetic?generations=3",
        "genetic?generations=3, mean",
    ]
    assert convergence_chapter(measure_optimality(tasks[:1], ["first-fit"])[0]) == []


def test_where_all_solutions_are_alike_the_way_is_all_gone() -> None:
    histories = {"a": np.full((3, 2), 0.1 + 0.2), "b": np.array([[0.3, 0.3 + 1e-17], [0.3, 0.3]])}
    drawn = convergence(histories, policy_styles(histories), "title")
    assert {float(value) for line in drawn.data for value in line.y} == {100.0}


def test_without_the_solver_it_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    monkeypatch.setattr(optimality, "make_policy", lambda *_: pytest.fail("a policy was made"))
    with pytest.raises(MissingExtraError, match="optimum"):
        measure_optimality(random_batches(1, instances=2, machines=1), ["fgd"])


def test_an_interrupted_command_writes_what_there_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def improve(*_: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(genetic_search, "improve", improve)
    arguments = ["--count", "2", "--instances", "20", "--machines", "6", "--policies", "first-fit,genetic"]
    done = CliRunner().invoke(app, ["experiment", "optimality", *arguments, "--out", str(tmp_path)])
    assert done.exit_code == 130
    assert "genetic was stopped; the best that it had found places" in done.stderr
    assert "0 of 2 batches are done" in done.stderr
    answer = json.loads((tmp_path / "result.json").read_text())
    assert answer["batches"][0]["placements"]["genetic"]


def test_an_interruption_while_the_optimum_is_looked_for_keeps_the_batches_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tasks, real = random_batches(3, instances=8, machines=3), optimality.relaxed_milli
    calls: list[object] = []

    def relaxed(batch: Batch, *, time_limit_s: float = 1.0) -> float:
        calls.append(batch)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return real(batch, time_limit_s=time_limit_s)

    monkeypatch.setattr(optimality, "relaxed_milli", relaxed)
    assert [one.batch for one in measure_optimality(tasks, ["fgd"])] == [tasks[0].name]
    with pytest.raises(KeyboardInterrupt):
        measure_optimality(tasks, ["fgd"])


def test_the_cluster_of_a_task_holds_what_is_not_free() -> None:
    task = small(1)
    cluster = task.cluster()
    assert isinstance(cluster, Cluster)
    assert cluster.free.milli.tolist() == [[1000, 250], [600, -1]]


def test_the_page_begins_with_the_policies_that_reach_the_optimum() -> None:
    found = measure_optimality(
        random_batches(2, instances=4, machines=6, seed=0), ("round-robin", "fgd"), seed=0, time_limit_s=60.0
    )
    chapter = optimality_chapter(found)
    means = [float(row[2]) for row in chapter.rows]
    assert means == sorted(means)
    assert "HiGHS has proven it for each batch." in chapter.hint
    reached = [row[0] for row in chapter.rows if float(row[3]) == 0]
    assert reached
    assert optimality_answers(found)[0].startswith("The optimum is reached in all 2 batches by ")
    assert all(name in optimality_answers(found)[0] for name in reached)
