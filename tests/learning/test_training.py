"""A training measures what it learns, and is made of the sets of jobs that were asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from berth.errors import SettingError
from berth.interference import make_speeds
from berth.learning.domains import Domain
from berth.learning.forecast_learner import ForecastLearner
from berth.learning.history_jobs import history_sets
from berth.learning.jobsets import LONGEST_SET_MS, JobSets, thesis_sets, thesis_task
from berth.learning.learner import Figures
from berth.learning.plan import VALIDATION_SEED, Plan, file_of, make
from berth.learning.training import Trained, TrainingSettings, train
from berth.model import Job, Record, RecordState, Share
from berth.network.forecast_network import new_network
from berth.network.model_file import read_model
from berth.plots.training import training_curve
from berth.policies.colocation.learned import model_named
from berth.profiles import FIRST_TRAINING_SEED


def norm(network) -> float:
    """Stands in for a measurement: deterministic, and different for every network."""
    return float(sum(float(jnp.sum(jnp.abs(leaf))) for leaf in jax.tree.leaves(network)))


def equal(one, other) -> bool:
    return jax.tree.all(jax.tree.map(np.array_equal, one, other))


class Wandering:
    """A learner whose network wanders at random: as quick as a learner can be, and different for every key."""

    name = "wandering"
    compiled = True

    def begin(self, seed: int):
        key, draw = jax.random.split(jax.random.key(seed))
        return {"network": jax.random.normal(draw, (3,)), "key": key}

    def iterate(self, state):
        key, draw = jax.random.split(state["key"])
        network = state["network"] + jax.random.normal(draw, (3,))
        return {"network": network, "key": key}, Figures(network[0], network[1], jnp.float32(1))

    def network(self, state):
        return state["network"]


class Counting:
    """A learner whose network is a number that grows by one with each iteration."""

    name = "counting"
    compiled = True

    def begin(self, seed: int):
        return {"number": jnp.float32(seed)}

    def iterate(self, state):
        return {"number": state["number"] + 1}, Figures(jnp.float32(0), jnp.float32(0), jnp.float32(1))

    def network(self, state):
        return state


def test_the_last_network_of_a_budget_is_measured() -> None:
    found = train(
        Counting(), lambda network: -float(network["number"]), TrainingSettings(1000, budget_s=1e-6)
    )
    assert len(found.curve) == found.iteration == 1
    assert found.curve[-1].measured == found.measured == -1


@pytest.mark.parametrize("name", ["learned", "rule"])
def test_every_learner_is_made_with_what_it_is_shown(name: str, tmp_path: Path) -> None:
    made = make(Plan(name, "random", ("mps",), jobs=4, sets=3, validation=2))
    network = made.learner.network(made.learner.begin(0))
    found = Trained(network, 0.9, 3)
    path = tmp_path / "model"
    path.write_bytes(file_of(made, found, ("random",), 0))
    if name == "rule":
        assert json.loads(path.read_text())["weights"] == np.round(np.float64(network), 6).tolist()
        return
    model = read_model(path)
    assert (model.demand, model.learner, model.interference) == ("series", made.learner.name, ("mps",))
    assert model.command.startswith(f"berth train --learner {name} --interference mps")


def test_a_family_has_drawn_applications_short_queues_and_errors() -> None:
    made = make(Plan("learned", "random", ("mps",), jobs=20, sets=3, validation=2, family=8))
    domains = [one.domain for one in made.learner.players]
    assert [one.task.applications[0].startswith("drawn") for one in domains] == [False, True] * 4
    assert [one.belief is not None for one in domains] == [False, False, True, True] * 2
    assert [one.sets.work_ms.shape[1] for one in domains] == [20, 20, 20, 20, 8, 8, 15, 15]
    belief = domains[2].belief
    assert belief.task.applications == domains[2].task.applications
    assert 0 < np.abs(np.log(belief.run)).max() < 1
    worlds = made.learner.players[0].model.begin(domains[0].sets)
    told, known = (made.learner.players[at].inputs(worlds, worlds.allowed) for at in (2, 0))
    assert not np.array_equal(told, known)


def test_rollouts_refuse_what_they_do_not_heed() -> None:
    with pytest.raises(SettingError, match="sees 5 waiting jobs; expected --slots 5 and not 3"):
        make(Plan("learned", slots=3, sets=1, validation=1))


def test_the_best_measured_network_is_kept() -> None:
    worth = {0.0: 9.0, 20.0: 1.0}
    found = train(Counting(), lambda network: worth.get(float(network["number"]), 5.0), TrainingSettings(60))
    assert (float(found.network["number"]), found.iteration, found.measured, found.begun) == (
        20,
        20,
        1.0,
        9.0,
    )
    assert [point.measured for point in found.curve if point.measured is not None] == [1.0, 5.0, 5.0]


def test_training_and_test_sets_share_no_seed() -> None:
    assert min(FIRST_TRAINING_SEED, VALIDATION_SEED) > 999
    plan = Plan()
    assert FIRST_TRAINING_SEED + plan.sets <= VALIDATION_SEED


def test_plans_that_make_no_sense_are_refused() -> None:
    with pytest.raises(SettingError, match="no learner 'sarsa'; there are learned"):
        Plan("sarsa")
    with pytest.raises(SettingError, match="no workload 'heavy'"):
        make(Plan(workload="heavy"))


def record(
    number: int, application: str, state: RecordState = RecordState.COMPLETED, work_ms: int = 60_000
) -> Record:
    return Record(
        *(str(number), 1, "u", application, "", number * 1000, number * 1000, number * 1000),
        *(number * 1000 + work_ms, state, 1, Share(), 0, 0, ("n",), "", None),
    )


def test_a_history_gives_sets_of_the_jobs_that_followed_each_other() -> None:
    task = thesis_task()
    records = [record(at, "vgg16" if at % 2 else "alexnet") for at in range(7)]
    records += [record(7, "unknown"), record(8, "vgg16", RecordState.FAILED)]
    sets, _ = history_sets(task, records, jobs=4, sets=(20, 2), seed=1)
    names = np.array(task.applications)[sets.application]
    assert names.shape == (20, 4)
    assert set(names.reshape(-1)) == {"vgg16", "alexnet"}
    assert (sets.work_ms == 60_000).all()
    with pytest.raises(SettingError, match="0 completed jobs on one GPU of an application with a profile"):
        history_sets(task, [record(1, "unknown")], jobs=4, sets=(2, 2), seed=1)


def test_what_is_measured_on_came_after_what_is_trained_on() -> None:
    task = thesis_task()
    records = [record(at, "vgg16", work_ms=60_000 + at) for at in range(96)]
    training, measured = history_sets(task, records, jobs=30, sets=(1000, 20), seed=0)
    assert training.work_ms.max() < measured.work_ms.min()
    assert training.work_ms.shape == (1000, 30)
    assert measured.work_ms.shape == (20, 30)


def test_jobs_of_days_are_counted_in_coarser_units() -> None:
    day_ms = 86_400_000
    task = thesis_task()
    records = [record(at, "vgg16", work_ms=30 * day_ms) for at in range(10)]
    coarse, (training, measured), unit_ms = task.counted(
        *history_sets(task, records, jobs=30, sets=(4, 2), seed=0)
    )
    assert training.work_ms.sum(axis=1, dtype=np.int64).max() <= LONGEST_SET_MS
    assert training.work_ms.dtype == measured.work_ms.dtype == np.int32
    assert int(training.work_ms[0, 0]) * unit_ms - 30 * day_ms in range(unit_ms)
    for one, other in zip(task.series, coarse.series, strict=True):
        assert one.interval_ms == other.interval_ms * unit_ms
    assert task.counted(training)[2] == 1
    with pytest.raises(SettingError, match="ms of work together"):
        task.counted(JobSets(training.application, np.full((4, 30), 2**45)))
    with pytest.raises(SettingError, match="work together; expected at most"):
        task.sets([[Job(str(at), 0, day_ms, application="vgg16") for at in range(30)]])


def test_a_training_goes_on_from_a_model() -> None:
    task = thesis_task(horizon=32, step_ms=5000)
    sets = thesis_sets(task, "random", FIRST_TRAINING_SEED, 2, jobs=6)
    start = new_network(7)
    learner = ForecastLearner([Domain(task, make_speeds("time-sliced"), sets, sets)], start=start)
    assert equal(learner.network(learner.begin(0)), jax.tree.map(np.float32, start))


def test_a_model_of_another_view_is_no_start() -> None:
    model = replace(model_named("learned-mps"), demand="peak")
    with pytest.raises(SettingError, match="was shown the peak of jobs"):
        make(Plan("learned", validation=1, sets=1), start=model)
    with pytest.raises(SettingError, match="rule learns no network of that kind"):
        make(Plan("rule", validation=1, sets=1), start=model)


@pytest.mark.slow
def test_the_training_curve_shows_returns_and_measurements() -> None:
    learner = Wandering()
    found = train(learner, norm, TrainingSettings(6, measure_every=3))
    assert found.begun == norm(learner.network(learner.begin(0)))
    figure = training_curve({"mended": found.curve}, begun={"mended": found.begun}, others={"greedy": 0.5})
    returns, measured = figure.data
    ended = [point for point in found.curve if point.episode_return is not None]
    assert list(returns.x) == [point.decisions for point in ended]
    assert list(measured.x) == [0, found.curve[2].decisions, found.curve[5].decisions]
    assert measured.y[0] == found.begun
    texts = [one.text for one in figure.layout.annotations]
    assert "greedy" in texts
    assert "Return of an episode, mean of 5 iterations" in texts


def test_no_network_is_trained_under_mig() -> None:
    with pytest.raises(SettingError, match="no network is trained under mig yet"):
        make(Plan("learned", "random", ("mig",), jobs=4, sets=3, validation=2))
