"""The learners of the baselines: both signs of the thesis, whole trajectories, and what they begin with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from berth.errors import SettingError
from berth.interference import make_speeds
from berth.learning.domains import Domain
from berth.learning.environment import Environment, Settings
from berth.learning.jobsets import thesis_sets, thesis_task
from berth.learning.learners import learners
from berth.learning.plan import Plan, file_of, make
from berth.learning.queue_kernels import SEEN
from berth.learning.training import Trained
from berth.network.demands import Demand
from berth.network.model_file import read_model
from berth.policies.colocation.learned import model_named
from berth.profiles import FIRST_TRAINING_SEED
from berth_papers.baselines.deeprm import MODELS
from berth_papers.baselines.image_learner import ImageLearner, PaperSettings
from berth_papers.baselines.images import read_image_model
from berth_papers.baselines.learners import DemandPlayer
from tests.every_policy import some


def equal(one, other) -> bool:
    return jax.tree.all(jax.tree.map(np.array_equal, one, other))


@pytest.mark.parametrize("name", some(["dqn", "deeprm-max", "deeprm-mean", "dqn-as-printed"]))
def test_every_learner_is_made_with_what_it_is_shown(name: str, tmp_path: Path) -> None:
    made = make(Plan(name, "random", ("mps",), jobs=4, sets=3, validation=2))
    spec = learners()[name]
    assert made.task.horizon == 20
    network = made.learner.network(made.learner.begin(0))
    found = Trained(network, 0.9, 3)
    if spec.file is None:
        with pytest.raises(SettingError, match=f"no policy decides by what {name} learns"):
            file_of(made, found, ("random",), 0)
        return
    path = tmp_path / "model"
    path.write_bytes(file_of(made, found, ("random",), 0))
    model = read_image_model(path) if name == "dqn" else read_model(path)
    assert (model.learner, model.interference) == (made.learner.name, ("mps",))
    if name != "dqn":
        assert model.demand == spec.shown
    assert model.command.startswith(f"berth train --learner {name} --interference mps")


def test_a_model_of_another_view_is_no_start() -> None:
    model = model_named("deeprm-max-mps", package=MODELS)
    with pytest.raises(SettingError, match="was shown the peak of jobs"):
        make(Plan("learned", validation=1, sets=1), start=model)
    with pytest.raises(SettingError, match="dqn learns no network of that kind"):
        make(Plan("dqn", validation=1, sets=1), start=model)


def learner_of(name: str) -> ImageLearner:
    task = thesis_task()
    environment = Environment(task, make_speeds("time-sliced"), settings=Settings(2))
    settings = PaperSettings(2, 2, 96, hidden=8, mended=name == "dqn")
    return ImageLearner(environment, thesis_sets(task, "random", FIRST_TRAINING_SEED, 3, jobs=2), settings)


@pytest.mark.slow
def test_another_seed_begins_with_other_weights() -> None:
    learner = learner_of("dqn")
    assert equal(learner.begin(5).network, learner.begin(5).network)
    assert not equal(learner.begin(5).network, learner.begin(6).network)


@pytest.mark.slow
def test_every_v_is_the_return_of_a_whole_trajectory_and_all_n_are_about_the_same_set() -> None:
    learner = learner_of("dqn")
    settings = learner.settings
    states = learner._fresh(jax.random.key(1))
    jobs = np.asarray(states.application).reshape(settings.sets, settings.trajectories, -1)
    assert (jobs == jobs[:, :1]).all()

    class Taken:
        pass

    taken = Taken()
    taken.reward = jnp.array([[-1.0], [-2.0], [-4.0], [-8.0]])
    taken.steps = jnp.ones((4, 1))
    taken.over = jnp.array([[False], [True], [False], [False]])
    outcome, whole = learner._outcomes(taken)
    assert whole[:, 0].tolist() == [True, True, False, False]
    scale, discount = settings.return_scale, settings.discount
    np.testing.assert_allclose(outcome[:2, 0], [scale * (-1 - 2 * discount), scale * -2], rtol=1e-6)


@pytest.mark.slow
def test_the_mended_sign_makes_what_turned_out_better_likelier_and_the_printed_one_does_not() -> None:
    learner = learner_of("dqn")
    environment = learner.environment
    state = environment.reset(learner.sets.take(0))
    seen = jax.tree.map(lambda x: x[None], jax.jit(environment.observe)(state))
    network = learner.begin(0).network
    assert bool(seen.mask[0, 1])

    class Taken:
        pass

    taken = Taken()
    taken.seen, taken.action = seen, jnp.array([1])

    def log(network):
        score = jnp.where(seen.mask, learner.outputs(network, seen)[0], -1e30)
        return jax.nn.log_softmax(score)[0, 1]

    def lost(network, outcome):
        return learner._loss(network, taken, outcome, jnp.array([True]))

    prediction = learner.outputs(network, seen)[1]
    for mended, direction in ((True, 1), (False, -1)):
        learner.settings = replace(learner.settings, mended=mended)
        gradient = jax.grad(lost)(network, prediction + 1.0)
        moved = network._replace(action=network.action - 0.1 * gradient.action)
        moved = moved._replace(offset=network.offset - 0.1 * gradient.offset)
        assert np.sign(float(log(moved) - log(network))) == direction


def test_a_family_is_for_learners_of_many_worlds() -> None:
    with pytest.raises(SettingError, match="expected 0 or more for learned and rule"):
        make(Plan("deeprm-max", family=2, sets=1, validation=1))


@pytest.mark.parametrize("demand", ["peak", "mean"])
def test_with_one_demand_of_each_job_what_is_offered_is_what_these_demands_allow(demand: Demand) -> None:
    task = thesis_task()
    sets = thesis_sets(task, "random", FIRST_TRAINING_SEED, 30, jobs=12)
    player = DemandPlayer(Domain(task, make_speeds("mps"), sets, sets), demand)
    worlds = player.model.begin(sets)
    offered = player.offered(worlds)
    needs = [one.usage.max(axis=0) if demand == "peak" else one.usage.mean(axis=0) for one in task.series]
    capacity = np.array([1000, task.gpu.mem_mib, 1000, 1000])
    for queue, may in zip(worlds.queue[..., 0], offered, strict=True):
        for mask in range(1, len(may)):
            chosen = [slot for slot in range(SEEN) if mask >> slot & 1]
            fits = (np.sum([np.rint(needs[queue[slot]]) for slot in chosen], axis=0) <= capacity).all()
            first = all(
                queue[slot] != queue[other] for slot in chosen for other in set(range(slot)) - set(chosen)
            )
            assert may[mask] == (fits and first), chosen
    refused = offered & ~worlds.allowed
    worth_s = player.worth_s(worlds, player.rules)
    assert np.array_equal(np.isfinite(worth_s), offered)
    worst_s = np.max(worth_s, axis=1, where=worlds.allowed & offered, initial=0.0)
    assert (worth_s >= worst_s[:, None])[refused].all()
    inputs = player.inputs(worlds, offered)
    assert np.isfinite(inputs).all()
    assert inputs[offered].any(axis=-1).all()
    # What memory has no room for, though the means say that it has.
    assert refused.any() or demand == "peak"
