"""What a start is worth by rollouts is what becomes of it, and a network that learns it does better than none."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from berth.interference import make_speeds
from berth.learning.jobsets import JobSets, thesis_sets, thesis_task
from berth.learning.queue_kernels import SEEN
from berth.learning.rollout_learner import RolloutLearner, RolloutSettings
from berth.learning.rollouts import Rollouts, habit
from berth.policies.dqn import shielded
from berth.policies.forecast import Candidate, Forecaster, Offer
from berth.profiles import FIRST_TRAINING_SEED, THESIS_GPU, thesis_profiles

PROGRESS = habit((0, 1.0))


@pytest.mark.parametrize("interference", ["measured", "time-sliced"])
def test_jobs_that_start_together_end_when_the_forecast_says(interference: str) -> None:
    task = thesis_task(horizon=32, step_ms=5000)
    speeds = make_speeds(interference)
    rollouts, forecaster = Rollouts(task, speeds), Forecaster(thesis_profiles(), speeds)
    random = np.random.default_rng(0)
    compared = 0
    for _ in range(20):
        rows = random.integers(0, len(task.applications), random.integers(2, SEEN + 1))
        work_ms = np.array([[task.series[row].run_time_ms for row in rows]], np.int32)
        worlds = rollouts.begin(JobSets(rows[None].astype(np.int32), work_ms))
        if worlds.over[0]:
            continue
        window = tuple(
            Candidate(task.applications[row], work * 1000, work * 1000)
            for row, work in zip(rows.tolist(), work_ms[0].tolist(), strict=True)
        )
        forecasts = forecaster.forecasts([Offer((), window)], THESIS_GPU)
        allowed = (forecasts.fits & shielded(forecasts))[0]
        allowed[0] = False
        assert worlds.allowed[0, : len(allowed)].tolist() == allowed.tolist()
        every = len(allowed) - 1
        if allowed[every]:
            worth_s = rollouts.worth_s(worlds, PROGRESS[None], ahead=3, draws=2, seed=0)
            assert round(worth_s[0, every] * 1000) == forecasts.total_ms[0, every]
            compared += 1
    assert compared > 0


def test_the_best_start_by_rollouts_is_never_worse_than_what_the_habit_makes_of_it() -> None:
    task = thesis_task(horizon=32, step_ms=5000)
    rollouts = Rollouts(task, make_speeds("time-sliced"))
    sets = thesis_sets(task, "random", FIRST_TRAINING_SEED, 4, jobs=12)
    worth_s = rollouts.worth_s(rollouts.begin(sets), PROGRESS[None], ahead=12, draws=1, seed=0)
    assert (worth_s.min(axis=1) * 1000 <= rollouts.habit_ms(PROGRESS, sets)).all()


@pytest.mark.slow
def test_what_it_learns_is_worth_something_and_the_same_for_a_seed() -> None:
    task = thesis_task(horizon=32, step_ms=5000)
    sets = thesis_sets(task, "random", FIRST_TRAINING_SEED, 12, jobs=10)
    settings = RolloutSettings(sets=6, tuned_on=6, tries=5, ahead=3, draws=1, better=2, batch=32)
    networks = []
    for _ in range(2):
        learner = RolloutLearner(task, [make_speeds("time-sliced")], sets, settings)
        state = learner.begin(0)
        untrained = learner.total_ms(learner.network(state), sets).sum()
        for _ in range(4):
            state, figures = learner.iterate(state)
        assert np.isfinite(float(figures.loss))
        networks.append(learner.network(state))
    assert learner.total_ms(networks[0], sets).sum() < untrained
    assert jax.tree.all(jax.tree.map(np.array_equal, *networks))
