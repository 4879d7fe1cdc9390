"""The matrix of worlds: every job is counted, pairs are of the same sets, and its sentence is true of its numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from berth.errors import SettingError
from berth_papers.colocation.matrix import Cell, Matrix, World, bounds_s, measure_matrix, worlds_of
from berth_papers.colocation.matrix_chapters import added, matrix_chapter, matrix_dict, sentences

WORLD = World("random", "mps", "oracle")


def matrix(learned: list[float], *worlds: World) -> Matrix:
    """`greedy` takes 100 s on each set, `rule` 110 s, in each world."""
    of = {"greedy": [100.0] * len(learned), "rule": [110.0] * len(learned), "learned": learned}
    cells = tuple(
        Cell(world, policy, seed, seconds, seconds / 2, 1.0, 30, 0, 0)
        for world in worlds
        for policy, row in of.items()
        for seed, seconds in enumerate(row)
    )
    return Matrix(worlds, tuple(of), tuple(range(len(learned))), cells)


def test_what_is_added_is_told_against_the_best_rule_of_each_world() -> None:
    arrives = replace(WORLD, arrivals=0.9)
    better = matrix([90.0, 91.0, 92.0, 90.0], WORLD, arrives)
    assert [(one.rule, one.verdict) for one in added(better)] == [("greedy", "helps")] * 2
    assert added(better)[0].mean_pct == pytest.approx(-9.25)
    assert sentences(better)[0] == (
        "Learned adds something over the best rule in 2 of 2 worlds: learned takes 9.2 % less than the best rule of"
        " each world on average; the 95 % interval is below zero in 2."
    )
    level = matrix([90.0, 112.0, 99.0, 98.0], WORLD)
    assert sentences(level)[0].startswith(
        "Learned adds nothing over the best rule that can be told from chance"
    )
    worse = matrix([120.0, 121.0, 122.0, 121.0], WORLD)
    assert "is above zero in 1: random (mps, oracle)" in sentences(worse)[0]
    assert sentences(better)[1].startswith(
        "What the network alone adds is not known: it takes learned?plans=0"
    )
    as_network = replace(
        better,
        policies=("greedy", "learned?plans=0"),
        cells=tuple(
            replace(one, policy="learned?plans=0") if one.policy == "learned" else one for one in better.cells
        ),
    )
    assert sentences(as_network)[1].startswith(
        "The network alone adds something over the best rule in 2 of 2 worlds: learned?plans=0 takes 9.2 % less"
    )
    few = matrix([90.0, 91.0], WORLD)
    assert sentences(few)[0] == "What learned adds is not known: it takes three sets or more."
    assert "on the same 2 sets: below zero" in matrix_chapter(few).hint
    assert "on the same 4 sets, with its 95 % interval: below" in matrix_chapter(better).hint
    answer = matrix_dict(few)
    assert answer["added"][0]["high_pct"] is None


@pytest.mark.slow
def test_a_matrix_counts_every_job_and_goes_on_from_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worlds = worlds_of(["drawn"], ["mps"], ["noisy?memory=0.03", "oracle"], "1x1", 1.2)
    found = measure_matrix(worlds, policies=("greedy", "sjf+first-fit"), seeds=(4,), keep=tmp_path)
    assert [one.jobs for one in found.cells] == [30] * 4
    assert [one.lost for one in found.cells] == [0] * 4
    assert all(0 < one.completion_s < one.total_s for one in found.cells)
    monkeypatch.setattr("berth_papers.colocation.matrix.run_all", None)  # would fail if anything ran again
    again = measure_matrix(worlds, policies=("greedy", "sjf+first-fit"), seeds=(4,), keep=tmp_path)
    assert again.cells == found.cells
    assert "What the network alone adds is not known: it takes learned?plans=0" in matrix_chapter(again).hint


def test_what_is_named_twice_is_run_once() -> None:
    worlds = worlds_of(["drawn", "drawn"], ["mps", "mps"], ["oracle", "oracle"], "1x1", 0.0)
    assert len(worlds) == 1
    found = measure_matrix(worlds * 2, policies=("fifo+first-fit",) * 2, seeds=(4, 4))
    assert found.policies == ("fifo+first-fit",)
    assert found.seeds == (4,)
    assert len(found.cells) == 1


def test_a_world_is_named_by_its_kind_of_knowledge_unless_there_are_several_of_the_kind() -> None:
    kinds = "oracle", "noisy?run=0.1", "noisy?run=0.2"
    for many, names in ((2, ["oracle", "noisy"]), (3, list(kinds))):
        worlds = worlds_of(["random"], ["mps"], kinds[:many], "1x1", 0)
        cells = tuple(
            Cell(world, "greedy", seed, 1.0, 1.0, 1.0, 30, 0, 0) for world in worlds for seed in (0, 1)
        )
        rows = matrix_chapter(Matrix(tuple(worlds), ("greedy",), (0, 1), cells)).rows
        assert [row[0] for row in rows] == [f"random, mps, {name}" for name in names]


def test_worlds_that_there_are_not_are_refused() -> None:
    for given, words in (
        ((["heavy"], ["mps"], ["oracle"], "1x1", 0), "no workload 'heavy'"),
        ((["random"], ["none"], ["oracle"], "1x1", 0), "'none' knows no profiles"),
        ((["random"], ["mps"], ["oracle"], "7", 0), "no cluster of '7' GPUs"),
        ((["random"], ["mps"], ["oracle"], "1x1", -1), "expected from 0 to 10"),
    ):
        with pytest.raises(SettingError, match=words):
            worlds_of(*given)
    with pytest.raises(SettingError, match="one that models are trained on"):
        measure_matrix([WORLD], seeds=(1_000_000,))


def test_no_run_of_a_world_ends_before_the_bound_of_its_set(tmp_path: Path) -> None:
    pytest.importorskip("highspy")
    world, seeds = World("GPU_light", "mps", "oracle"), (40_000,)
    bounds = bounds_s(world, seeds, tmp_path)
    (run,) = measure_matrix([world], policies=["greedy"], seeds=seeds).cells
    assert bounds[40_000] <= run.total_s < 1.5 * bounds[40_000]
    assert bounds_s(world, seeds, tmp_path) == bounds  # as it was kept
    assert bounds_s(replace(world, arrivals=0.9), seeds, tmp_path) == {}
