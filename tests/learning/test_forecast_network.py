"""The network of `learned`: what it sees, that it is trained on what it decides by, and how it learns."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.errors import ModelError, SettingError
from berth.interference import make_speeds
from berth.learning.domains import Domain, Errors, family
from berth.learning.forecast_learner import ForecastLearner, ForecastSettings, Player
from berth.learning.jobsets import JobSets, thesis_sets, thesis_task
from berth.learning.rollouts import NETWORK_ALONE, Rollouts, heuristic
from berth.model import Job, Profile
from berth.network.forecast_network import (
    INPUTS,
    OF_QUEUE,
    UNITS,
    ForecastNetwork,
    begin_score,
    new_network,
    score,
    scores,
    scratch_for,
)
from berth.network.model_file import Model, model_bytes, read_model
from berth.policies.colocation.forecast import Candidate, Forecaster, Forecasts, Offer
from berth.policies.colocation.forecast_scores import ForecastScores
from berth.policies.colocation.scene import Scene
from berth.profiles import FIRST_TRAINING_SEED, THESIS_GPU, thesis_profiles

FEW = ForecastSettings(sets=2, choices=8, kept=64, updates=3, batch=16)


def domains(jobs: int = 6, count: int = 1) -> list[Domain]:
    task, speeds = thesis_task(), make_speeds("mps")
    sets = thesis_sets(task, "random", FIRST_TRAINING_SEED, 3, jobs=jobs)
    return family([Domain(task, speeds, sets, sets)], count, Errors(), 1)


@pytest.fixture(scope="module")
def moments():
    """Twelve queues under way, each at a moment with a choice."""
    task = thesis_task()
    rollouts = Rollouts(task, make_speeds("mps"), new_network(3))
    worlds = rollouts.begin(thesis_sets(task, "all", 300, 12, jobs=9))
    for _ in range(3):
        first = np.where(worlds.over, -1, worlds.allowed[:, ::-1].argmax(axis=1))
        worlds = rollouts.advance(worlds, np.where(first < 0, -1, worlds.allowed.shape[1] - 1 - first))
    return rollouts, worlds.take(np.flatnonzero(~worlds.over))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_the_compiled_score_is_that_of_the_plain_definition(seed: int) -> None:
    draw, network = np.random.default_rng(seed), new_network(seed)
    network = network._replace(first_bias=draw.normal(size=UNITS[0]), second_bias=draw.normal(size=UNITS[1]))
    inputs, scratch = draw.normal(size=INPUTS), scratch_for(network)
    scratch.of_queue[:], scratch.of_combination[:] = inputs[:OF_QUEUE], inputs[OF_QUEUE:]
    begin_score(network, scratch)
    assert score(network, scratch) == pytest.approx(scores(network, inputs, np), rel=1e-9, abs=1e-9)


def test_a_policy_scores_what_the_network_was_trained_on(moments) -> None:
    rollouts, worlds = moments
    names, profiles = rollouts.task.applications, thesis_profiles()
    forecaster = Forecaster(profiles, rollouts.speeds)
    trained = scores(rollouts.network, rollouts.inputs(worlds, worlds.allowed), np)
    chooser = ForecastScores(rollouts.network, profiles, lambda job: job.work_ms * 1000)
    for world in range(len(worlds.head)):
        waits = worlds.queue[world, worlds.head[world] :].tolist()
        tenants = [
            Candidate(names[one], left, work) for one, left, work in worlds.tenants[world].tolist() if left
        ]
        window = tuple(Candidate(names[one], work, work) for one, work in waits[:5])
        queue = [
            Job(str(at), 0, work // 1000, application=names[one]) for at, (one, work) in enumerate(waits)
        ]
        forecasts = forecaster.forecasts([Offer(tuple(tenants), window)], THESIS_GPU)
        scene = Scene(forecasts, THESIS_GPU, len(queue), 0, queue)
        allowed = worlds.allowed[[world], : 1 << len(window)]
        if allowed.sum() > 1:
            found = chooser(scene, allowed)[0]
            assert found[allowed[0]] == pytest.approx(
                trained[world, : 1 << len(window)][allowed[0]], rel=1e-4
            )
            assert np.isneginf(found[~allowed[0]]).all()


def test_queues_are_followed_by_the_network_as_it_would_decide_itself() -> None:
    task, network = thesis_task(), new_network(5)
    sets = thesis_sets(task, "random", 7, 3, jobs=8)
    domain = Domain(task, make_speeds("mps"), sets, sets)
    player, same = Player(domain), Player(replace(domain, belief=None))
    same.inputs, player.model.network = player.inputs, network
    compiled = player.model.heuristic_ms(NETWORK_ALONE, sets)
    assert compiled.tolist() == player.decided_ms(sets, network).tolist()
    other = player.model.heuristic_ms(heuristic((0, 1.0)), sets)
    assert (compiled != other).any()


def test_what_a_start_is_worth_is_the_better_of_the_rules_that_go_on(moments) -> None:
    rollouts, worlds = moments
    player = Player(Domain(rollouts.task, rollouts.speeds, JobSets(0, 0), JobSets(0, 0)))
    both, (one, other) = (
        player.worth_s(worlds, player.rules[:2]),
        (player.worth_s(worlds, [rule]) for rule in player.rules[:2]),
    )
    assert (np.isfinite(both) == worlds.allowed).all()
    assert np.array_equal(both, np.minimum(one, other))
    assert (one != other)[worlds.allowed].any()


def test_wrong_beliefs_change_what_is_seen_and_not_what_it_costs() -> None:
    one, *_, doubted = domains(count=3)
    assert one.belief is None
    assert doubted.belief is not None
    player, told = Player(doubted), Player(replace(doubted, belief=None))
    worlds = player.model.begin(doubted.sets)
    assert not np.array_equal(player.inputs(worlds, worlds.allowed), told.inputs(worlds, worlds.allowed))
    assert np.array_equal(player.worth_s(worlds, player.rules), told.worth_s(worlds, told.rules))


@pytest.mark.slow
def test_a_training_is_the_same_for_a_seed_and_goes_on_from_its_state() -> None:
    def trained(iterations: int, state=None):
        learner = ForecastLearner(domains(), FEW)
        state = learner.begin(4) if state is None else state
        for _ in range(iterations):
            state, figures = learner.iterate(state)
        return state, figures

    whole, figures = trained(3)
    half, _ = trained(2)
    rest, _ = trained(1, jax.tree.map(np.asarray, half))
    assert jax.tree.all(jax.tree.map(np.array_equal, whole, rest))
    assert float(figures.decisions) > 0
    assert not jax.tree.all(jax.tree.map(np.array_equal, whole.network, half.network))


def test_moments_without_a_choice_teach_nothing_and_are_refused() -> None:
    (domain,) = domains()
    learner = ForecastLearner([replace(domain, sets=JobSets(*(one[:, :1] for one in domain.sets)))], FEW)
    with pytest.raises(SettingError, match="there is nothing to learn"):
        learner.iterate(learner.begin(0))


def test_a_model_comes_back_from_its_file_and_no_other_network_is_taken_for_it(tmp_path) -> None:
    model = Model(new_network(2), "rollouts", ("mps",))
    path = tmp_path / "model.npz"
    path.write_bytes(model_bytes(model))
    found = read_model(path)
    for one, other in zip(found.network, model.network, strict=True):
        assert np.array_equal(one, other.astype(np.float32))
    path.write_bytes(
        model_bytes(replace(model, network=ForecastNetwork(*(one[:3] for one in model.network))))
    )
    with pytest.raises(ModelError, match=r"first is float32 \(3, 32\)"):
        read_model(path)


def test_jobs_without_a_profile_are_left_out_of_what_is_told_of_the_queue() -> None:
    profiles: dict[str, Profile] = thesis_profiles()
    chooser = ForecastScores(new_network(0), profiles, lambda job: 5)
    queue = [Job("0", 0, 1, application="vgg16"), Job("1", 0, 1, application="unheard-of")]
    forecasts = cast(Forecasts, SimpleNamespace(names=("alexnet", "vgg16")))
    scene = Scene(forecasts, None, len(queue), 0, queue)
    assert chooser.waiting(scene).tolist() == [[1, 5]]
