"""The bench of learners goes on from what it has kept, and compares set by set."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from berth.profiles import WORKLOADS

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import learners


def asked(kept: Path, budget_s: float = 10.0) -> learners.Asked:
    return learners.Asked(budget_s, points=2, point_sets=1, table_sets=1, seed=0, kept=kept)


def keep(kept: Path, label: str, budget_s: float, curve: list[list[float]]) -> None:
    what = {"budget_s": budget_s, "seed": 0, "points": 2, "point_sets": 1}
    (kept / f"{label}.json").write_text(json.dumps({"asked": what, "curve": curve}))


def test_a_training_that_is_kept_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learners, "train", None)  # whoever trains falls
    keep(tmp_path, "rollouts-mps", 10.0, [[0.0, 0.9], [5.0, 0.8], [10.0, 0.7]])
    found = learners.trained("rollouts", "mps", asked(tmp_path))
    assert found == [(0.0, 0.9), (5.0, 0.8), (10.0, 0.7)]
    with pytest.raises(TypeError):
        learners.trained("rollouts", "mps", asked(tmp_path, budget_s=20.0))
    with pytest.raises(TypeError):
        learners.trained("rollouts", "mps", replace(asked(tmp_path), seed=7))


def test_what_goes_on_from_the_half_of_another_follows_it_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learners, "train", None)
    monkeypatch.setattr(learners, "read_model", lambda path: None)
    keep(tmp_path, "ppo-half-mps", 5.0, [[0.0, 0.9], [5.0, 0.8]])
    keep(tmp_path, "ppo-then-rollouts-mps", 5.0, [[0.0, 0.8], [5.25, 0.7]])
    found = learners.trained("ppo-then-rollouts", "mps", asked(tmp_path))
    assert found == [(0.0, 0.9), (5.0, 0.8), (5.0, 0.8), (10.25, 0.7)]


def test_policies_are_compared_on_the_same_sets() -> None:
    one = {name: [0.5, 0.7] for name in WORKLOADS}
    other = {name: [0.6, 0.8] for name in WORKLOADS}
    assert learners.paired(one, other) == pytest.approx({"mean": -0.1, "half_interval": 0.0})
    other[next(iter(WORKLOADS))] = [0.6, 0.7]
    gaps = np.array([-0.1, 0.0] + 8 * [-0.1])
    expected = {"mean": gaps.mean(), "half_interval": 1.96 * gaps.std(ddof=1) / np.sqrt(10)}
    assert learners.paired(one, other) == pytest.approx(expected)


def test_a_set_is_played_once_for_a_policy_and_again_for_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "mine.npz"
    model.write_bytes(b"one")
    played: list[str] = []
    monkeypatch.setattr(learners, "played", lambda policy, *_: float(played.append(policy) or len(played)))
    policies = {"greedy": "greedy", "mine": f"learned?model={model}"}
    first = learners.table_of(policies, "mps", asked(tmp_path))
    assert len(played) == 2 * len(WORKLOADS)
    assert learners.table_of(policies, "mps", asked(tmp_path)) == first
    assert len(played) == 2 * len(WORKLOADS)
    model.write_bytes(b"another")
    learners.table_of(policies, "mps", asked(tmp_path))
    assert played[2 * len(WORKLOADS) :] == [f"learned?model={model}"] * len(WORKLOADS)


def test_the_plot_has_a_line_for_each_learner_under_each_model_of_interference() -> None:
    curves = {name: {"ppo": [(0.0, 0.9)], "rollouts": [(0.0, 0.8)]} for name in ("mps", "time-sliced")}
    figure = learners.drawn(curves, {"mps": 0.6, "time-sliced": 0.8})
    assert [line.name for line in figure.data] == ["ppo", "ppo", "rollouts", "rollouts"]
    assert [line.showlegend for line in figure.data] == [True, False, True, False]
