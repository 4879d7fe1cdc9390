"""What a start is worth by rollouts is what becomes of it, and a network that learns it does better than none."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

from berth.errors import SettingError
from berth.interference import make_speeds
from berth.interference.known_speeds import BITS
from berth.learning.domains import Domain
from berth.learning.forecast_learner import ForecastLearner, ForecastSettings
from berth.learning.jobsets import JobSets, thesis_sets, thesis_task
from berth.learning.queue_kernels import SEATS, SEEN, room_for
from berth.learning.rollouts import Rollouts, heuristic
from berth.policies.colocation import cards
from berth.policies.colocation.forecast import Candidate, Forecaster, Offer
from berth.policies.colocation.future_kernels import DONE, FULL, UNKNOWN, follow
from berth.policies.colocation.scene import Scene
from berth.policies.colocation.shield import shielded
from berth.profiles import FIRST_TRAINING_SEED, THESIS_GPU, Series, thesis_profiles

PROGRESS = heuristic((0, 1.0))


@pytest.mark.slow
@pytest.mark.parametrize("interference", ["mps", "time-sliced"])
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
        scene = Scene(forecasts, THESIS_GPU, len(window), 0, ())
        allowed = shielded(scene)[0]
        allowed[0] = False
        assert worlds.allowed[0, : len(allowed)].tolist() == allowed.tolist()
        every = len(allowed) - 1
        if allowed[every]:
            worth_s = rollouts.worth_s(worlds, [PROGRESS])
            assert round(worth_s[0, every] * 1000) == forecasts.total_ms[0, every]
            compared += 1
    assert compared > 0


@pytest.mark.parametrize("interference", ["mps", "time-sliced", "mig"])
def test_one_gpu_followed_by_rollouts_ends_when_the_forecast_of_many_combinations_says(
    interference: str,
) -> None:
    """Jobs that have done some of their work end at the same millisecond, or run out of memory, at once or in steps."""
    task = thesis_task(horizon=32, step_ms=5000)
    speeds = make_speeds(interference)
    rollouts, forecaster = Rollouts(task, speeds), Forecaster(thesis_profiles(), speeds)
    random = np.random.default_rng(1)
    states = {DONE: 0, FULL: 0}
    for _ in range(60):
        size = int(random.integers(1, SEEN + 1))
        jobs = np.zeros((2 * SEATS, 3), np.int64)
        jobs[:size, 0] = random.integers(0, len(task.applications), size)
        jobs[:size, 2] = [1000 * task.series[row].run_time_ms for row in jobs[:size, 0]]
        fresh = random.random(size) < 0.3
        jobs[:size, 1] = np.where(fresh, jobs[:size, 2], random.integers(1, jobs[:size, 2] + 1))
        tenants = tuple(
            Candidate(task.applications[row], left, all_) for row, left, all_ in jobs[:size].tolist()
        )
        forecasts = forecaster.forecasts([Offer(tenants, ())], THESIS_GPU)
        room, card = room_for(0), rollouts.card
        while True:
            mine = jobs.copy()
            total_ms, state = follow(card.arrays, mine, size, 0, room.ends_ms, room.work)
            if state != UNKNOWN:
                break
            card.learn()
        states[state] += 1
        assert (state == DONE) == forecasts.fits[0, 0]
        if state == DONE:
            assert room.ends_ms[:size].tolist() == forecasts.ends_ms[0, 0].tolist()
            assert total_ms == forecasts.total_ms[0, 0]
            stepped, ends_ms, now_ms = jobs.copy(), np.zeros(size, np.int64), 0
            while (running := stepped[:size, 1] > 0).any():
                passed, _ = follow(card.arrays, stepped, size, 7_001, room.ends_ms, room.work)
                ended = running & (stepped[:size, 1] == 0)
                ends_ms[ended] = now_ms + room.ends_ms[:size][ended]
                now_ms += passed
            assert ends_ms.tolist() == forecasts.ends_ms[0, 0].tolist()
    assert min(states.values()) > 3


def test_the_best_start_by_rollouts_is_never_worse_than_what_the_habit_makes_of_it() -> None:
    task = thesis_task(horizon=32, step_ms=5000)
    rollouts = Rollouts(task, make_speeds("time-sliced"))
    sets = thesis_sets(task, "random", FIRST_TRAINING_SEED, 4, jobs=12)
    worth_s = rollouts.worth_s(rollouts.begin(sets), [PROGRESS])
    assert (worth_s.min(axis=1) * 1000 <= rollouts.heuristic_ms(PROGRESS, sets)).all()


def test_a_rollout_that_stops_for_unknown_speeds_ends_as_one_that_knows_them() -> None:
    task = thesis_task(horizon=32, step_ms=5000)
    sets = thesis_sets(task, "random", FIRST_TRAINING_SEED, 3, jobs=15)
    rollouts = Rollouts(task, make_speeds("mps"))
    stopped_ms = rollouts.heuristic_ms(PROGRESS, sets)  # asks for hundreds of speeds on the way
    known_ms = rollouts.heuristic_ms(PROGRESS, sets)
    assert stopped_ms.tolist() == known_ms.tolist()
    worlds = rollouts.begin(sets)
    other = Rollouts(task, make_speeds("mps"))
    known_s = rollouts.worth_s(worlds, [PROGRESS])
    assert np.array_equal(other.worth_s(worlds, [PROGRESS]), known_s)
    assert np.array_equal(rollouts.worth_s(worlds, [PROGRESS]), known_s)


def test_a_table_of_speeds_that_fills_up_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    task = thesis_task(horizon=32, step_ms=5000)
    sets = thesis_sets(task, "random", FIRST_TRAINING_SEED, 2, jobs=10)
    roomy = Rollouts(task, make_speeds("mps"))
    total_ms = roomy.heuristic_ms(PROGRESS, sets).tolist()
    monkeypatch.setattr(cards, "TABLE", 1 << 5)
    monkeypatch.setattr(cards, "AT_ONCE", 1 << 3)
    narrow = Rollouts(task, make_speeds("mps"))
    narrow.card = cards.Card(task.applications, task.series, task.gpu.mem_mib, make_speeds("mps"))
    assert narrow.heuristic_ms(PROGRESS, sets).tolist() == total_ms
    assert len(narrow.card.arrays.keys) > 1 << 5


def test_more_rows_of_use_than_can_be_told_apart_are_refused() -> None:
    task = thesis_task(horizon=32, step_ms=5000)
    usage = np.tile(np.array([[10, 0, 10, 0]], np.int32), (1 << BITS, 1))
    usage[:, 1] = np.arange(1 << BITS)
    many = replace(task, series=(Series(1000, usage), *task.series[1:]))
    with pytest.raises(
        SettingError, match=r"rows of use that differ than the 4,095 that rollouts tell apart"
    ):
        Rollouts(many, make_speeds("mps")).begin(thesis_sets(task, "random", FIRST_TRAINING_SEED, 1))


@pytest.mark.slow
def test_what_it_learns_is_worth_something_and_the_same_for_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    task = thesis_task(horizon=32, step_ms=5000)
    sets = thesis_sets(task, "random", FIRST_TRAINING_SEED, 8, jobs=SEEN)
    settings = ForecastSettings(taught=3, kept=400, updates=200, batch=64, averaged=0.05)
    learner = ForecastLearner([Domain(task, make_speeds("time-sliced"), sets, sets)], settings)
    untrained = learner.network(learner.begin(0))
    networks = [learned(learner), learned(learner)]
    assert learner.worth(networks[0]) < learner.worth(untrained)
    assert jax.tree.all(jax.tree.map(np.array_equal, *networks))
    taught = Rollouts.worth_s

    def inverted(*arguments):
        worth_s = taught(*arguments)
        return np.where(np.isfinite(worth_s), -worth_s, worth_s)

    monkeypatch.setattr(Rollouts, "worth_s", inverted)
    assert learner.worth(learned(learner)) > 1.02 * learner.worth(networks[0])


def learned(learner: ForecastLearner):
    """The network after three iterations."""
    state = learner.begin(0)
    for _ in range(3):
        state, figures = learner.iterate(state)
    assert np.isfinite(float(figures.loss))
    return learner.network(state)
