"""The simulator against the reference: the same events on the same slots, whatever the jobs, cluster and conditions."""

from __future__ import annotations

from importlib import import_module
from inspect import getsource
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.mutants import FAULTS
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


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_a_stretch_does_what_the_reference_does(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it ends early, and the run goes on job by job."""
    monkeypatch.setattr("berth.engine.stretch.FEW_JOBS", 1)
    for seed in range(examples(200)):
        drawn = scenario(Random(seed), policy)
        assert drawn.told(policy, stretches=True) == drawn.wanted(policy), f"seed {seed}"


def test_every_fault_that_is_planted_stands_once_in_its_module() -> None:
    places = {fault.what: getsource(import_module(fault.module)).count(fault.text) for fault in FAULTS}
    assert places == dict.fromkeys(places, 1)
