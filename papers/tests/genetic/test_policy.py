"""The published genetic algorithm as a policy."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from berth.errors import SettingError
from berth.policies import make_policy
from berth.policies.genetic.batch import batch_of
from berth_papers.genetic.policy import PaperSettings, evolve_paper
from tests.examples import examples
from tests.policies.genetic.test_search import clusters


@given(clusters())
@settings(max_examples=examples(40), deadline=None)
def test_the_papers_best_can_be_carried_out(made) -> None:
    cluster, jobs = made
    batch = batch_of(jobs, cluster)
    if batch.jobs:
        found = evolve_paper(batch, PaperSettings(population=10, generations=5))
        for placement in batch.placements(found.node, found.devices):
            cluster.place(placement)
        placed = int(batch.milli[found.node >= 0].sum())
        expected = placed / max(1, batch.capacity_milli) - int((found.node < 0).sum())
        assert found.fitness == pytest.approx(expected)


def test_the_papers_settings_are_checked_too() -> None:
    with pytest.raises(SettingError, match="population is 1; expected from 2 to 100,000"):
        make_policy("genetic-paper?population=1")
