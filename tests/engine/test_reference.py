"""The simulator against the reference: the same events on the same slots, whatever the jobs, cluster and conditions."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.scenarios import POLICIES, scenario
from tests.examples import examples


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=examples(100), deadline=None)
@given(draw=st.randoms(use_true_random=False))
def test_the_simulator_does_what_the_reference_does(policy: str, draw: Random) -> None:
    drawn = scenario(draw, policy)
    assert drawn.told(policy) == drawn.wanted(policy)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_simulator_does_what_the_reference_does_in_scenarios_of_full_size(policy: str) -> None:
    """Hypothesis likes small ones."""
    for seed in range(examples(200)):
        drawn = scenario(Random(seed), policy)
        assert drawn.told(policy) == drawn.wanted(policy), f"seed {seed}"
