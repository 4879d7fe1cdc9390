"""A budget of time, on a clock that the test sets."""

from __future__ import annotations

import numpy as np
import pytest

from berth.cluster import Cluster
from berth.model import GpuModel, Job, Node, Share
from berth.policies.genetic import search as genetic_search
from berth.policies.genetic.batch import batch_of
from berth.policies.genetic.search import Found, packing_of, search
from berth.policies.genetic.settings import GeneticSettings, TimeBudget
from berth.policies.placements.by_score import typical_requests


class Clock:
    """Stands still but for `pass_s`."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds


def worked(took_ms: list[float], budget_ms: int, reserve: bool = False) -> float:
    """How many milliseconds have passed when pieces of work that take so long have used up a budget."""
    clock = Clock()
    budget = TimeBudget(budget_ms, clock)
    for number, took in enumerate(took_ms):
        if not budget.has_time():
            break
        budget.timed(clock.pass_s, took / 1000)
        if reserve and number == 0:
            budget.reserve()
    return round(1000 * (clock.now_s - 100.0), 6)


def test_work_that_takes_the_same_each_time_ends_within_the_budget() -> None:
    assert worked([30.0] * 20, 200) == 180.0
    assert worked([30.0] * 20, 200, reserve=True) == 150.0  # and leaves time for what is done in the end


def test_a_long_piece_is_expected_again_but_not_for_ever() -> None:
    assert worked([60.0, *[10.0] * 30], 200) == 190.0
    assert worked([150.0, *[10.0] * 30], 200) == 150.0  # another such would end too late


def test_without_a_budget_there_is_always_time() -> None:
    budget = TimeBudget(None, Clock())
    assert budget.has_time()
    assert budget.steps(60) == 60
    assert TimeBudget(100, Clock()).steps(60) < 60


def problem() -> tuple[Cluster, list[Job]]:
    nodes = [Node(f"n{at}", 2 + 2 * (at % 4), GpuModel("T4"), 32_000, 128_000) for at in range(6)]
    jobs = [
        Job(
            f"j{at}", 0, 1000, share=Share([100, 250, 500, 700, 1000][at % 5]), cpu_milli=500 + 300 * (at % 7)
        )
        for at in range(60)
    ]
    return Cluster(nodes), jobs


def searched(chosen: GeneticSettings, budget: TimeBudget | None = None) -> Found:
    cluster, jobs = problem()
    packing = packing_of(batch_of(jobs, cluster), cluster, typical_requests(jobs, cluster), chosen)
    return search(packing, chosen, seed=(5,), budget=budget)


@pytest.mark.slow
def test_a_budget_that_is_not_used_up_changes_nothing() -> None:
    free, ample = searched(GeneticSettings()), searched(GeneticSettings(budget_ms=86_400_000))
    assert free.node.tolist() == ample.node.tolist()
    assert free.history.tolist() == ample.history.tolist()


@pytest.mark.parametrize(
    ("piece_ms", "nodes_a_type"),
    [pytest.param(1, 64, marks=pytest.mark.slow), (7, 64), (40, 64), (7, 0), (20, 0)],
)
def test_a_search_ends_within_its_budget(
    piece_ms: int, nodes_a_type: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it looks at some nodes alone, and what is left over is tried on all of them in the end."""
    if not nodes_a_type:
        monkeypatch.setattr(genetic_search, "NODES_A_JOB", 0)
        monkeypatch.setattr(genetic_search, "MORE_NODES", 1)
    clock = Clock()
    on_nodes = []
    original = {name: getattr(genetic_search, name) for name in ("build", "improve")}

    def slowed(name: str) -> object:
        def work(*arguments: object) -> object:
            packing = arguments[0]
            on_nodes.append(len(packing.cpu))  # type: ignore[attr-defined]
            more = on_nodes[-1] / on_nodes[0] if name == "build" else 1
            clock.pass_s(piece_ms * more / 1000)
            return original[name](*arguments)

        return work

    for name in original:
        monkeypatch.setattr(genetic_search, name, slowed(name))
    found = searched(GeneticSettings(threads=1, generations=10_000, patience=10_000), TimeBudget(200, clock))
    assert 100.0 < clock.now_s <= 100.2 + 1e-9
    assert (on_nodes[-1] > on_nodes[0]) == (not nodes_a_type)
    assert np.diff(found.history[:, 0]).min(initial=0) >= -1e-9
    assert len(found.history) > 1 or piece_ms >= 20
