"""Environment and simulator tell the same of the same jobs, to the millisecond."""

from __future__ import annotations

from functools import cache

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.interference import SPEEDS, make_speeds
from berth.learning.environment import Settings
from berth.learning.jobsets import JobSets
from tests.examples import examples
from tests.learning.replay import environment_of, groups_of, profiles_of, random_episode, replayed

JOBS = 9


@cache
def drawn(seed: int, model: str, slots: int):
    """An environment of five random applications, some of which run out of memory together, and its episodes."""
    draw = np.random.default_rng(seed)
    usages = []
    for _ in range(5):
        rows = int(draw.integers(1, 12))
        usage = draw.integers(0, 1001, (rows, 4))
        usage[:, 1] = draw.choice([0, 300, 4000, 7000, 12_288], rows)
        usages.append(np.repeat(usage, draw.integers(1, 4, rows), axis=0))
    profiles = profiles_of(usages, [5000, 700, 1300, 1000, 250])
    speeds = make_speeds(model)
    environment = environment_of(profiles, speeds, Settings(slots, tenants=4, retries=3), step_ms=1500)
    return environment, profiles, speeds, random_episode(environment, 600)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [name for name in SPEEDS if name != "mig"]
)  # under which no network is trained
@settings(max_examples=examples(20))
@given(key=st.integers(0, 2**31 - 1))
def test_the_environment_equals_the_simulator(model: str, key: int) -> None:
    environment, profiles, speeds, episode = drawn(1, model, 3)
    draw = np.random.default_rng(key)
    jobs = JobSets(
        draw.integers(0, 5, JOBS).astype(np.int32), draw.integers(1, 40_000, JOBS).astype(np.int32)
    )
    state, record = episode(jobs, jax.random.key(key))
    groups = groups_of(record)
    start_ms, end_ms, failures = replayed(environment, profiles, speeds, jobs, groups)
    over = np.asarray(state.end_ms) >= 0
    assert np.asarray(state.failures).tolist() == failures
    assert np.asarray(state.start_ms).tolist() == start_ms
    # What had not ended when the episode was cut off goes on in the simulator.
    assert np.where(over, state.end_ms, -1).tolist() == np.where(over, end_ms, -1).tolist()
    assert over.mean() > 0.5
